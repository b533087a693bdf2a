//! Rules about the files themselves. Each list of exceptions may only shrink.

use std::fs;
use std::path::{Path, PathBuf};

const LINES_MAX: usize = 400;
const TEST_LINES_MAX: usize = 600;
const COLUMNS_MAX: usize = 100;

/// Which local crates each crate may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("kernels", &[]),
    ("engine", &["kernels"]),
    ("router", &[]),
    ("deploy", &[]),
    ("tests", &["bench", "deploy", "engine", "kernels", "router"]),
    ("bench", &["engine", "kernels", "router", "tests"]),
];

/// Words that stay in their rooms: (word, the paths that may say it).
const WORDS: &[(&str, &[&str])] = &[
    (
        "draft",
        &[
            "engine/examples/",
            "engine/src/backend/",
            "engine/src/batch/",
            "engine/src/config",
            "engine/src/draft",
            "engine/src/inspect.rs",
            "engine/src/serve",
            "engine/src/lib.rs",
            "engine/src/metrics",
            "engine/src/model",
            "engine/src/runner",
            "engine/src/serve/wire.rs",
            "engine/src/main.rs",
            "engine/tests/",
            "kernels/",
            "bench/",
            "deploy/",
            "tests/",
        ],
    ),
    (
        "cuda",
        &[
            "kernels/",
            "engine/examples/",
            "engine/src/backend",
            "engine/src/config",
            "engine/src/runner/start",
            "bench/",
            "deploy/",
            "tests/",
        ],
    ),
    ("prefill", &["engine/src/metrics.rs", "tests/"]),
    ("Manager", &["tests/"]),
];

/// Where unsafe code may stand.
const FENCE: &[&str] = &[
    "kernels/src/cuda/launch.rs",
    "kernels/src/cuda/pinned.rs",
    "kernels/src/cuda/share.rs",
    "kernels/src/cpu/simd",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

pub(crate) fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.starts_with("target") || name.starts_with('.') {
                continue;
            }
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs" || it == "cu") {
            found.push(path);
        }
    }
}

#[test]
fn files_are_small_and_open_with_a_sentence() {
    let mut paths = Vec::new();
    sources(&root(), &mut paths);
    assert!(10 < paths.len());
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let at = path.strip_prefix(root()).unwrap().to_str().unwrap();
        let is_test = at.starts_with("tests/it/") || at.ends_with("tests.rs");
        let lines_max = if is_test { TEST_LINES_MAX } else { LINES_MAX };
        assert!(text.lines().count() <= lines_max, "{at} is too long");
        for (number, line) in text.lines().enumerate() {
            assert!(line.chars().count() <= COLUMNS_MAX, "{at}:{} is too wide", number + 1);
        }
        let is_test_child = path.ends_with("tests.rs");
        let opens_well = text.starts_with("//! ") || text.starts_with("// ");
        assert!(is_test_child || opens_well, "{at} does not say what it is for");
        let names_it = at == "tests/it/tidy.rs";
        let in_fence = names_it || FENCE.iter().any(|room| at.starts_with(room));
        let has_unsafe = text.lines().any(|it| it.contains("unsafe {") || it.contains("unsafe fn"));
        assert!(in_fence || !has_unsafe, "{at} is outside the unsafe fence");
    }
}

#[test]
fn dependencies_point_one_way() {
    let locals: Vec<_> = MAY_USE.iter().map(|(name, _)| *name).collect();
    for (name, allowed) in MAY_USE {
        let manifest = fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
        for local in &locals {
            let uses = manifest.lines().any(|it| it.starts_with(&format!("{local}.workspace")));
            assert!(!uses || allowed.contains(local), "{name} must not use {local}");
        }
    }
}

#[test]
fn words_stay_in_their_rooms() {
    let mut paths = Vec::new();
    sources(&root(), &mut paths);
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let code = || text.lines().filter(|it| !it.trim_start().starts_with("//"));
        let at = path.strip_prefix(root()).unwrap().to_str().unwrap();
        for (word, rooms) in WORDS {
            let allowed = rooms.iter().any(|room| at.starts_with(room));
            assert!(allowed || !code().any(|it| it.contains(word)), "{at} says {word:?}");
        }
    }
}
