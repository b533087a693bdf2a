use std::path::Path;

use super::{Args, keep, parse_chance, run, standing, usable};
use crate::calibration::{File, Key, Threshold};

#[test]
fn a_file_stands_only_for_its_own_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calibration.json");
    let key = Key { model: "m".to_owned(), ..Key::default() };
    assert_eq!(standing(&path, &key), None);
    let curve = vec![(1, 2.0)];
    let mut file = File { key: key.clone(), ..File::of(curve.clone(), curve) };
    std::fs::write(&path, file.text()).unwrap();
    assert_eq!(standing(&path, &key), None);
    file.threshold = Some(Threshold { high: 8, low: 6, confidence: 0.9 });
    std::fs::write(&path, file.text()).unwrap();
    assert_eq!(standing(&path, &key), Some(8));
    assert_eq!(standing(&path, &Key { device: "other".to_owned(), ..key.clone() }), None);
    file.format = 2;
    std::fs::write(&path, file.text()).unwrap();
    assert_eq!(standing(&path, &key), None);
}

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn args(out: &Path, more: &str) -> Args {
    let line = format!("calibrate --out {} {more}", out.display());
    <Line as clap::Parser>::try_parse_from(line.split_whitespace()).unwrap().args
}

fn file(speed: f64) -> File {
    File::of(vec![(1, speed)], vec![(1, speed)])
}

/// A router may read it at any time; a link to it stays one.
#[test]
fn a_file_is_replaced_as_a_whole_and_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let [path, link, opened] = ["a.json", "b.json", "c.json"].map(|it| folder.path().join(it));
    std::fs::write(&path, "old").unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    // The old file under another name: who had opened it still reads all of it.
    std::fs::hard_link(&path, &opened).unwrap();
    keep(&args(&link, ""), Key::default(), file(2.0), None).unwrap();
    assert_eq!(std::fs::read_to_string(&opened).unwrap(), "old");
    assert!(std::fs::read_to_string(&path).unwrap().contains("2.0"));
    assert!(link.is_symlink());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    let why = keep(&args(&link, ""), Key::default(), file(-1.0), None).unwrap_err();
    assert!(why.contains("what no router takes") && path.is_file(), "{why}");
}

#[tokio::test]
async fn what_cannot_be_kept_is_not_measured() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/a.json");
    let nobody = "--speculative http://127.0.0.1:1";
    let why = run(&args(&missing, nobody)).await.unwrap_err();
    assert!(why.starts_with("cannot write "), "{why}");
    let why = run(&args(folder.path(), nobody)).await.unwrap_err();
    assert!(why.ends_with("it is not a file"), "{why}");
    let path = folder.path().join("a.json");
    std::fs::write(&path, file(2.0).text()).unwrap();
    let why = run(&args(&path, &format!("--one {nobody}"))).await.unwrap_err();
    assert!(why.contains("the curves of a pair"), "{why}");
    for (more, reached) in [("--one --again", true), ("", true)] {
        let why = run(&args(&path, &format!("{more} {nobody}"))).await.unwrap_err();
        assert_eq!(why.starts_with("http://127.0.0.1:1/v1/models: "), reached, "{why}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_key_that_no_router_would_take_is_told_before() {
    let key = |quantisation: &str, device: &str| Key {
        model: "m".to_owned(),
        quantisation: quantisation.to_owned(),
        device: device.to_owned(),
    };
    let info = serde_json::json!({ "quantisation": "q4_1", "device": "cpu:1" });
    assert!(usable(&key("q4_1", "cpu:0"), &info).is_ok());
    assert!(usable(&key("", ""), &info).is_ok());
    assert!(usable(&key("q8_0", "cpu:0"), &info).unwrap_err().contains("quantisation"));
    assert!(usable(&key("q4_1", "cpu:0-1"), &info).unwrap_err().contains("device"));
    assert!(usable(&key("q8_0", "gpu"), &serde_json::Value::Null).is_ok());
}

#[test]
fn a_chance_is_one() {
    for wrong in ["nan", "0.5", "1", "95", "x"] {
        assert!(parse_chance(wrong).is_err(), "{wrong}");
    }
    assert_eq!(parse_chance("0.9"), Ok(0.9));
}
