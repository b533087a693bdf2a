use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::Parser;

use super::plan::Plan;
use super::programs::Programs;
use super::{RunDir, ports_in_use};
use crate::config::Up;
use crate::config::flags::{Command, Line};
use crate::machine::Cores;

fn plan(words: &str, dir: &Path) -> Plan {
    let words = ["crossover", "up"].into_iter().chain(words.split_whitespace());
    let Command::Up(flags) = Line::try_parse_from(words).unwrap().command else { panic!() };
    let config = Up::check(&flags, &Cores::new(vec![vec![0], vec![1]])).unwrap();
    let programs = Programs {
        front: "/bin/crossover".into(),
        engine: "/bin/crossover-engine".into(),
        router: "/bin/crossover-router".into(),
    };
    Plan::new(&config, &programs, Path::new("/models/m.gguf"), dir)
}

fn line(plan: &Plan, at: usize) -> String {
    let words = plan.programs[at].args.iter().map(|it| it.to_str().unwrap());
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn paths_are_told_as_they_are() {
    let dir = Path::new(OsStr::from_bytes(b"/run/\xff"));
    let plan = plan("--device-speculative cuda:0 --device-throughput cuda:0", dir);
    let names = |at: usize, it: &Path| plan.programs[at].args.contains(&it.as_os_str().to_owned());
    assert!(names(0, &dir.join("weights")) && names(2, &dir.join("router.toml")));
    assert_eq!(plan.programs[2].log, dir.join("router.log"));
}

#[test]
fn the_engines_differ_by_mode_cores_and_port() {
    let plan = plan("--draft-max 5 --draft-until 3", Path::new("/run/crossover"));
    let line = |at: usize| line(&plan, at);
    let speculative = line(0);
    assert!(
        speculative.starts_with(
            "--model /models/m.gguf --device cpu:0 --activations int8 --listen 127.0.0.1:8101 \
             --drain-seconds 5 --mode eagle3 --draft "
        ),
        "{speculative}"
    );
    assert!(speculative.ends_with(" --draft-max 5 --draft-until 3"), "{speculative}");
    assert_eq!(
        line(1),
        "--model /models/m.gguf --device cpu:1 --activations int8 --listen 127.0.0.1:8102 \
         --drain-seconds 5 --mode baseline"
    );
    assert_eq!(line(2), "--config /run/crossover/router.toml");
    assert_eq!(plan.programs[0].log, Path::new("/run/crossover/speculative-engine.log"));
}

#[test]
fn a_card_is_shared_only_when_both_name_it() {
    let dir = Path::new("/run/crossover");
    let shared = plan("--device-speculative cuda:0 --device-throughput cuda:0", dir);
    let apart = plan("--device-speculative cuda:0 --device-throughput cuda:1", dir);
    let shares = |plan: &Plan| {
        let lines = (0..3).map(|it| line(plan, it));
        let wanted = "--memory-fraction 0.4 --share-weights /run/crossover/weights";
        lines.filter(|it| it.contains(wanted)).count()
    };
    assert_eq!((shares(&shared), shares(&apart)), (2, 0));
    let two = plan("--device-speculative cuda:0,1 --device-throughput cuda:0,1", dir);
    let line = line(&two, 0);
    assert!(line.contains("--memory-fraction 0.4") && !line.contains("--share-weights"), "{line}");
}

#[test]
fn both_engines_store_weights_alike() {
    let devices = "--device-speculative cuda:0 --device-throughput cuda:1";
    let eight = |words: &str| {
        let plan = plan(&format!("{devices}{words}"), Path::new("/run/crossover"));
        let lines = (0..3).map(|it| line(&plan, it));
        lines.filter(|it| it.contains("--quantization fp8")).count()
    };
    assert_eq!((eight(""), eight(" --quantization fp8")), (0, 2));
}

#[test]
fn the_routers_file_is_written_where_it_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    plan("--high 8 --listen 0.0.0.0:80", dir.path()).write().unwrap();
    let text = std::fs::read_to_string(dir.path().join("router.toml")).unwrap();
    let file: toml::Table = text.parse().unwrap();
    assert_eq!(file["listen"].as_str(), Some("0.0.0.0:80"));
    assert_eq!(file["policy"]["high"].as_integer(), Some(8));
    assert_eq!(file["policy"]["low"].as_integer(), Some(6));
    assert_eq!(file["endpoint"][1]["url"].as_str(), Some("http://127.0.0.1:8102"));
    assert_eq!(file["endpoint"][1]["role"].as_str(), Some("throughput"));
    let in_flight_max = |file: &toml::Table| file["endpoint"][0]["in_flight_max"].as_integer();
    assert_eq!(in_flight_max(&file), Some(64));
    plan("--device-speculative cuda:0", dir.path()).write().unwrap();
    let text = std::fs::read_to_string(dir.path().join("router.toml")).unwrap();
    assert_eq!(in_flight_max(&text.parse().unwrap()), Some(256));
}

#[test]
fn a_port_in_use_is_named_with_its_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let said = ports_in_use(&[("listen", address)]);
    let port = address.port();
    assert_eq!(
        said,
        [format!(
            "port {port} is in use: stop what listens on {address}, or choose another with --listen"
        )]
    );
    drop(taken);
    assert!(ports_in_use(&[("listen", address)]).is_empty());
}

#[test]
fn a_run_directory_that_was_named_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let named = dir.path().join("run");
    RunDir::make(Some(&named)).unwrap().remove();
    assert!(named.is_dir());
    let temporary = RunDir::make(None).unwrap();
    let path = temporary.path.clone();
    assert!(path.is_dir());
    temporary.remove();
    assert!(!path.exists());
}
