//! The real programs, built once by the cargo that runs the tests, with the tests' own profile.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The path of one of the workspace's programs.
pub(crate) fn program(name: &str) -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(build).join(name)
}

/// The tests run from `<target>/<profile>/deps/`, and the programs belong one above.
fn build() -> PathBuf {
    let own = env::current_exe().unwrap();
    let dir = own.parent().and_then(Path::parent).unwrap();
    let profile = match dir.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        other => other,
    };
    let built = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--workspace", "--bins", "--profile", profile, "--target-dir"])
        .arg(dir.parent().unwrap())
        .status()
        .unwrap();
    assert!(built.success(), "the programs do not build");
    dir.to_owned()
}
