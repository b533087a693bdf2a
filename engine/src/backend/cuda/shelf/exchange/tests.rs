use std::os::unix::net::UnixListener;

use tempfile::tempdir;

use super::super::Place;
use super::*;

fn contents(key: &str) -> Contents {
    let place = |name: &str, piece, at| Place { name: name.to_owned(), words: 4, piece, at };
    Contents {
        key: key.to_owned(),
        pieces: vec![1024, 16],
        matrices: vec![place("a", 0, 0), place("b", 0, 256), place("c", 1, 0)],
    }
}

fn piece(dir: &Path, text: &str) -> OwnedFd {
    let path = dir.join(text);
    fs::write(&path, text).unwrap();
    File::open(path).unwrap().into()
}

fn read(fd: OwnedFd) -> String {
    let mut text = String::new();
    File::from(fd).read_to_string(&mut text).unwrap();
    text
}

#[test]
fn who_comes_later_gets_what_is_offered_and_keeps_it() {
    let dir = tempdir().unwrap();
    let (shared, wanted) = (dir.path().join("weights"), contents("k"));
    drop(turn(&shared).unwrap());
    assert_eq!(ask(&shared, "k").unwrap().map(|it| it.0), None);
    let fds = vec![piece(dir.path(), "one"), piece(dir.path(), "two")];
    let offered = offer(&shared, &wanted, fds).unwrap();
    assert_eq!(ask(&shared, "other").unwrap().map(|it| it.0), None);
    let (found, fds) = ask(&shared, "k").unwrap().unwrap();
    drop(offered);
    assert_eq!(found, wanted);
    assert_eq!(fds.into_iter().map(read).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(ask(&shared, "k").unwrap().map(|it| it.0), None);
    assert_eq!(fs::read_dir(&shared).unwrap().count(), 1, "only the lock is left");
}

#[test]
fn a_socket_of_one_that_was_killed_is_removed() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("1.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    assert!(ask(dir.path(), "k").unwrap().is_none());
    assert!(!path.exists());
}

#[test]
fn one_has_its_turn_at_a_time() {
    let dir = tempdir().unwrap();
    let first = turn(dir.path()).unwrap();
    let lock = File::create(dir.path().join("lock")).unwrap();
    assert!(lock.try_lock().is_err());
    drop(first);
    lock.try_lock().unwrap();
}

#[test]
fn what_is_offered_is_not_trusted() {
    let mut wrong = contents("k");
    wrong.matrices[2].at = 256;
    assert!(wrong.check("k").is_err());
    wrong.matrices[2] = Place { words: usize::MAX, ..contents("k").matrices[2].clone() };
    assert!(wrong.check("k").is_err());
    wrong.matrices[2] = Place { piece: 2, ..contents("k").matrices[2].clone() };
    assert!(wrong.check("k").is_err());
    assert!(contents("other").check("k").is_err());
    assert!(contents("k").check("k").is_ok());
}
