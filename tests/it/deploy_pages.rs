//! What people read of `deploy/`: manuals and completions, flags that are named, threats and tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use clap::CommandFactory;

use super::deploy_names::{read, texts};
use super::tidy;

#[expect(dead_code, reason = "its main is the example's")]
#[path = "../examples/pages.rs"]
mod pages;

#[test]
fn manuals_and_completions_are_made_for_every_program() {
    let dir = tempfile::tempdir().unwrap();
    pages::write_all(dir.path()).unwrap();
    let has_man = Command::new("man").arg("--version").output().is_ok();
    for name in ["crossover", "crossover-up", "crossover-engine", "crossover-router"] {
        let path = dir.path().join(format!("man/{name}.1"));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(".SH NAME") && text.contains(".SH OPTIONS"), "{name}: {text}");
        if has_man {
            let read = Command::new("man").args(["--warnings", "-l"]).arg(&path).output().unwrap();
            let complaints = String::from_utf8_lossy(&read.stderr);
            assert!(read.status.success() && complaints.is_empty(), "{name}: {complaints}");
        }
    }
    for name in ["crossover", "crossover-engine", "crossover-router"] {
        for file in [format!("{name}.bash"), format!("_{name}"), format!("{name}.fish")] {
            let text = fs::read_to_string(dir.path().join("completions").join(&file)).unwrap();
            assert!(text.contains(name), "{file}");
        }
    }
}

/// All long flags of a program, those of its subcommands among them.
fn flags(command: &clap::Command) -> BTreeSet<String> {
    let mut found: BTreeSet<String> =
        command.get_arguments().filter_map(|it| it.get_long()).map(str::to_owned).collect();
    found.extend(command.get_subcommands().flat_map(flags));
    found.extend(["help", "version"].map(str::to_owned));
    found
}

/// Words of a line that are flags: what follows `--`, up to what no flag has.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '_' || it == '.';
    let starts = line.match_indices("--").map(|it| it.0);
    // Not the dashes of a table or of a chain, nor of `---`.
    let starts = starts.filter(|at| *at == 0 || !line[..*at].ends_with(['-', '─']));
    let words = starts.map(move |at| line[at + 2..].split(|it| !is_part(it)).next().unwrap());
    let words = words.map(|it| it.trim_end_matches('.'));
    words.filter(|it| it.starts_with(|it: char| it.is_ascii_alphabetic()))
}

/// Flags of programs that are not ours, by who has them.
const FOREIGN: &[(&str, &[&str])] = &[
    ("cargo", &["release", "bin", "bins", "locked", "profile"]),
    ("docker", &["build-arg", "network", "from"]),
    ("systemctl and journalctl", &["now", "since"]),
    ("apt-get", &["no-install-recommends"]),
    ("prometheus", &["web.console.templates"]),
    (
        "ray, and vLLM's script for it",
        &["head", "port", "address", "ray_cluster_size", "ray_address"],
    ),
    (
        "vLLM",
        &[
            "host",
            "enable-server-load-tracking",
            "max-model-len",
            "pipeline-parallel-size",
            "served-model-name",
            "speculative-config",
            "tensor-parallel-size",
        ],
    ),
    (
        "SGLang",
        &[
            "dist-init-addr",
            "enable-metrics",
            "model-path",
            "nnodes",
            "node-rank",
            "speculative-algorithm",
            "speculative-draft-model-path",
            "speculative-eagle-topk",
            "speculative-num-draft-tokens",
            "speculative-num-steps",
            "tp",
        ],
    ),
];

#[test]
fn every_flag_that_is_named_exists() {
    let programs = [
        ("crossover-engine ", flags(&engine::config::raw::Line::command())),
        ("crossover-router ", flags(&router::config::raw::Args::command())),
        ("crossover ", flags(&deploy::config::flags::Line::command())),
    ];
    let ours: BTreeSet<&String> = programs.iter().flat_map(|it| &it.1).collect();
    let mut files = vec![("README.md".to_owned(), read("README.md"))];
    for (dir, ending) in [
        ("config", ".toml"),
        ("container", "file"),
        ("examples", ".md"),
        ("examples", ".toml"),
        ("examples", ".yaml"),
        ("guides", ".md"),
        ("units", ""),
    ] {
        files.extend(texts(dir, ending));
    }
    let mut seen = 0;
    for (path, text) in &files {
        for line in text.lines() {
            for flag in named(line) {
                let foreign = FOREIGN.iter().any(|it| it.1.contains(&flag));
                // A line that runs one of ours has its flags and no other's.
                let runs = programs.iter().find(|(name, _)| {
                    let line = line.trim_start().trim_start_matches("ExecStart=/usr/bin/");
                    line.trim_start_matches("sudo ").starts_with(name)
                });
                let exists = match runs {
                    Some((_, flags)) => flags.contains(flag),
                    None => foreign || ours.iter().any(|it| *it == flag),
                };
                assert!(exists, "{path} names --{flag}, which nobody has: {line}");
                seen += 1;
            }
        }
    }
    assert!(60 < seen, "{seen}");
}

/// A threat without a test is a hope.
#[test]
fn every_threat_names_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut paths = Vec::new();
    tidy::sources(root, &mut paths);
    let mut tests = BTreeSet::new();
    for path in paths {
        let text = fs::read_to_string(path).unwrap();
        for mark in ["test]\n", "test(flavor = "] {
            for part in text.split(mark).skip(1) {
                let head = part.split_once("fn ").map_or("", |it| it.1);
                tests.insert(head.split('(').next().unwrap().to_owned());
            }
        }
    }
    let page = read("guides/security.md");
    let rows = page.lines().skip_while(|it| !it.starts_with("| threat |")).skip(2);
    let rows: Vec<_> = rows.take_while(|it| it.starts_with('|')).collect();
    assert!(10 < rows.len());
    for row in rows {
        let shown = row.split('|').nth(3).unwrap();
        let names: Vec<_> = shown.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for name in names {
            assert!(tests.contains(name), "{name} is no test: {row}");
        }
    }
}
