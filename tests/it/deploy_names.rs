//! Every flag, key and metric that the files of `deploy/` name exists in the programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use engine::config::raw::Raw;
use router::config::raw::File;

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy").join(path)
}

pub(crate) fn read(path: &str) -> String {
    let path = deploy(path);
    fs::read_to_string(&path).unwrap_or_else(|it| panic!("{}: {it}", path.display()))
}

/// All files below a directory of `deploy/` whose names end in `ending`, with their texts.
pub(crate) fn texts(dir: &str, ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(deploy(dir)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = format!("{dir}/{name}");
        if deploy(&path).is_dir() {
            found.extend(texts(&path, ending));
        } else if name.ends_with(ending) {
            found.push((path.clone(), read(&path)));
        }
    }
    found
}

/// Takes the mark off lines that show a key's default, such as `#threads = 0`.
fn with_defaults(text: &str) -> String {
    let shown = |line: &str| match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with(' ') => rest.to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(|it| shown(it) + "\n").collect()
}

#[test]
fn every_routers_file_is_one_that_the_router_runs() {
    let mut files = vec![("config/router.toml".to_owned(), read("config/router.toml"))];
    files.extend(texts("examples", "router.toml"));
    assert!(3 <= files.len());
    for (path, text) in files {
        let file: File = toml::from_str(&text).unwrap_or_else(|it| panic!("{path}: {it}"));
        router::config::check::check(&file).unwrap_or_else(|it| panic!("{path}: {it}"));
        let _: File =
            toml::from_str(&with_defaults(&text)).unwrap_or_else(|it| panic!("{path}: {it}"));
    }
}

#[test]
fn every_engines_file_is_one_that_the_engine_runs() {
    for name in ["speculative", "throughput"] {
        let path = format!("config/engine-{name}.toml");
        let text = read(&path);
        let raw: Raw = toml::from_str(&text).unwrap_or_else(|it| panic!("{path}: {it}"));
        engine::config::Config::new(raw).unwrap_or_else(|it| panic!("{path}: {it}"));
        let _: Raw =
            toml::from_str(&with_defaults(&text)).unwrap_or_else(|it| panic!("{path}: {it}"));
    }
}

/// The names of one crate's metrics, as its only file that may know them spells them.
fn metrics(file: &str, prefixes: &[&str]) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let source = fs::read_to_string(root.join(file)).unwrap();
    let is_name =
        |it: &&str| !it.is_empty() && it.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let names: Vec<_> = source.split('"').filter(is_name).collect();
    let all =
        prefixes.iter().flat_map(|prefix| names.iter().map(move |it| format!("{prefix}{it}")));
    all.collect()
}

/// Words of a text that look like names of metrics.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |it: char| it.is_ascii_alphanumeric() || it == '_' || it == ':';
    let words = text.split(|it| !is_part(it));
    let is_ours = |it: &&str| {
        ["crossover_router_", "crossover_engine_", "crossover:", "vllm:"]
            .iter()
            .any(|prefix| it.len() > prefix.len() && it.starts_with(prefix))
    };
    words.filter(is_ours).map(str::to_owned).collect()
}

#[test]
fn every_metric_that_is_asked_for_exists() {
    let mut known = metrics("router/src/metrics.rs", &["crossover_router_"]);
    known.extend(metrics("engine/src/metrics.rs", &["crossover_engine_", "vllm:"]));
    let rules = read("prometheus/recording.yml");
    let recorded = rules.lines().filter_map(|it| it.trim().strip_prefix("- record: "));
    known.extend(recorded.map(str::to_owned));
    let mut files = texts("prometheus", ".yml");
    files.extend(texts("prometheus", ".html"));
    files.extend(texts("grafana", ".json"));
    files.extend(texts("guides", ".md"));
    let mut asked = 0;
    for (path, text) in files {
        for name in named(&text) {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it));
            let exists = known.contains(&name) || base.is_some_and(|it| known.contains(it));
            assert!(exists, "{path} names {name}, which nobody has");
            asked += 1;
        }
    }
    assert!(50 < asked, "{asked}");
}

#[test]
fn every_alert_has_its_place_in_the_runbook_and_a_test() {
    let (alerts, runbook) = (read("prometheus/alerts.yml"), read("guides/runbook.md"));
    let tests = read("prometheus/alerts_test.yml");
    let names: Vec<_> =
        alerts.lines().filter_map(|it| it.trim().strip_prefix("- alert: ")).collect();
    assert!(10 < names.len());
    for name in names {
        assert!(runbook.contains(&format!("\n## {name}\n")), "{name} is not in the runbook");
        assert!(tests.contains(&format!("alertname: {name}\n")), "{name} has no test");
    }
}

#[test]
fn units_leave_time_for_what_the_files_allow() {
    let seconds = |unit: &str, key: &str| -> u64 {
        let text = read(unit);
        let line = text.lines().find_map(|it| it.strip_prefix(key)).unwrap();
        line.trim_start_matches('=').parse().unwrap()
    };
    let default = |text: &str, key: &str| -> u64 {
        let line = text.lines().find(|it| it.trim_start_matches('#').starts_with(key)).unwrap();
        line.split('=').nth(1).unwrap().trim().parse().unwrap()
    };
    let router = read("config/router.toml");
    let drain = default(&router, "drain_ms_max") + default(&router, "settle_ms");
    assert!(drain < 1000 * seconds("units/crossover-router.service", "TimeoutStopSec"));
    let engine = read("config/engine-throughput.toml");
    let drain = default(&engine, "drain-seconds");
    assert!(drain < seconds("units/crossover-engine@.service", "TimeoutStopSec"));
}

/// The bridge is the router once more: it differs in its name, its admin port and its socket.
#[test]
fn the_bridge_is_the_router_in_all_but_four_lines() {
    let lines = |path: &str| -> BTreeSet<String> {
        let text = read(path);
        let said = text.lines().filter(|it| !it.starts_with('#') && !it.is_empty());
        said.map(str::to_owned).collect()
    };
    let router = lines("units/crossover-router.service");
    let bridge = lines("units/crossover-router-bridge.service");
    let only_bridge: Vec<_> = bridge.difference(&router).map(String::as_str).collect();
    let expected = [
        "Description=Crossover router: takes who comes while the router restarts",
        "ExecStart=/usr/bin/crossover-router --config /etc/crossover/router.toml --admin \
         127.0.0.1:8002",
        "Sockets=crossover-router.socket",
    ];
    assert_eq!(only_bridge, expected);
    assert_eq!(router.difference(&bridge).count(), 4, "{router:?}");
}
