//! Finds the engine and the router, and has cargo build them when this is a source tree.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::config::raw::Environment;
use crate::screen::Screen;

pub(crate) const ENGINE: &str = "crossover-engine";
pub(crate) const ROUTER: &str = "crossover-router";
const NO_PATH: &str = "the system does not tell this program's path";

/// Paths of the programs.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    pub(super) front: PathBuf,
    pub(super) engine: PathBuf,
    pub(super) router: PathBuf,
}

/// The engine and the router beside this program. Under `cargo run` they are built first, so that
/// they are never older than the source.
pub(super) fn find(screen: &Screen) -> Result<Programs, String> {
    let environment = Environment::read();
    let front = environment.executable.clone().ok_or(NO_PATH)?;
    let beside = front.parent().expect("a file has a directory");
    if let Some(build) = Build::under_cargo(&environment, beside) {
        build.run(screen)?;
    }
    Programs::beside(front)
}

/// What `find` would come to, without building anything: a sentence, or what is missing.
pub(crate) fn foresee(environment: &Environment) -> Result<String, String> {
    let front = environment.executable.clone().ok_or(NO_PATH)?;
    let beside = front.parent().expect("a file has a directory").to_owned();
    if Build::under_cargo(environment, &beside).is_some() {
        return Ok("the engine and the router are built from source when they are needed".into());
    }
    Programs::beside(front)?;
    Ok(format!("{ENGINE} and {ROUTER} are in {}", beside.display()))
}

impl Programs {
    fn beside(front: PathBuf) -> Result<Self, String> {
        let beside = front.parent().expect("a file has a directory");
        let programs = Self { engine: beside.join(ENGINE), router: beside.join(ROUTER), front };
        let missing: Vec<_> = [&programs.engine, &programs.router]
            .into_iter()
            .filter(|it| !it.is_file())
            .map(|it| it.display().to_string())
            .collect();
        if missing.is_empty() {
            return Ok(programs);
        }
        Err(format!(
            "{} is missing. The three programs belong in one directory; in a source tree start \
             with `cargo run --release --bin crossover -- up`, which builds them",
            missing.join(" and ")
        ))
    }
}

/// A `cargo build` of the siblings, with the profile that this program was built with.
#[derive(Debug)]
struct Build {
    cargo: PathBuf,
    source: PathBuf,
    profile: String,
}

impl Build {
    /// `None` unless cargo runs this program out of its source tree.
    fn under_cargo(environment: &Environment, beside: &Path) -> Option<Self> {
        let cargo = environment.cargo.clone()?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.to_owned();
        source.join("Cargo.toml").is_file().then_some(())?;
        let profile = match beside.file_name()?.to_str()? {
            "debug" => "dev",
            other => other,
        };
        Some(Self { cargo, source, profile: profile.to_owned() })
    }

    fn run(&self, screen: &Screen) -> Result<(), String> {
        screen.line(&format!("building the engine and the router (profile {})", self.profile));
        let status = Command::new(&self.cargo)
            .current_dir(&self.source)
            .args(["build", "--locked", "--profile", &self.profile])
            .args(["--package", "engine", "--package", "router", "--bins"])
            .stdin(Stdio::null())
            .status()
            .map_err(|it| format!("cannot run {}: {it}", self.cargo.display()))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("cargo could not build the engine and the router ({status})"))
        }
    }
}
