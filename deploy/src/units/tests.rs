use std::fs;
use std::path::Path;

use super::{FILES, install, seen_by_units};
use crate::config::flags::Install;
use crate::head::NAME;

#[test]
fn units_name_the_programs_that_are_there_and_keep_what_was_changed() {
    let root = tempfile::tempdir().unwrap();
    let settings = root.path().join("etc/crossover/router.toml");
    fs::create_dir_all(settings.parent().unwrap()).unwrap();
    fs::write(&settings, "my own").unwrap();
    let flags = Install { root: root.path().to_owned(), programs: None, dry_run: false };
    let said = install(&flags, Path::new("/opt/crossover/bin")).unwrap().join("\n");
    assert!(said.contains("kept ") && said.contains("wrote "), "{said}");
    assert_eq!(fs::read_to_string(&settings).unwrap(), "my own");
    let unit = root.path().join("etc/systemd/system/crossover-router.service");
    let unit = fs::read_to_string(unit).unwrap();
    assert!(unit.contains("ExecStart=/opt/crossover/bin/crossover-router --config"), "{unit}");
    assert!(!unit.contains("/usr/bin/"), "{unit}");
    assert!(root.path().join("etc/crossover/engine-throughput.toml").is_file());
}

#[test]
fn units_name_programs_by_whole_and_plain_paths() {
    let check = |given: &str| seen_by_units(Path::new(given));
    assert_eq!(check("/opt/crossover-0.1").unwrap(), Path::new("/opt/crossover-0.1"));
    let here = std::env::current_dir().unwrap();
    match check("bin") {
        Ok(path) => assert_eq!(path, here.join("bin")),
        Err(why) => assert!(why.contains("below"), "{why}"),
    }
    for wrong in ["/opt/my programs", "/opt/100%", "/opt/it's", "/opt/\u{e4}"] {
        assert!(check(wrong).unwrap_err().contains("characters"), "{wrong}");
    }
    for hidden in ["/home/me/crossover", "/root", "/opt/../tmp"] {
        assert!(check(hidden).unwrap_err().contains("units see nothing"), "{hidden}");
    }
}

#[test]
fn an_archive_has_its_head_beside_the_programs() {
    let (root, archive) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir_all(archive.path().join("models").join(NAME)).unwrap();
    let flags = Install { root: root.path().to_owned(), programs: None, dry_run: false };
    install(&flags, archive.path()).unwrap();
    let text = fs::read_to_string(root.path().join("etc/crossover/engine-speculative.toml"));
    let text = text.unwrap();
    let head = archive.path().join("models").join(NAME);
    assert!(text.contains(&format!("draft = \"{}\"", head.display())), "{text}");
}

#[test]
fn a_dry_run_writes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let flags = Install { root: root.path().to_owned(), programs: None, dry_run: true };
    let said = install(&flags, Path::new("/usr/bin")).unwrap();
    assert_eq!(said.len(), FILES.len() + 3);
    assert!(said.iter().all(|it| it.starts_with("would write")), "{said:?}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}
