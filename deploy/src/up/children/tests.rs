use std::fs::{self, OpenOptions};
use std::io::Write;

use super::{last_lines, turn};

#[test]
fn a_log_that_grew_starts_anew_and_keeps_its_past_once() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("router.log");
    let mut child = OpenOptions::new().append(true).create(true).open(&log).unwrap();
    for round in ["first ", "second", "third "] {
        child.write_all(round.as_bytes()).unwrap();
        turn(&log, 6);
        assert_eq!(fs::read_to_string(&log).unwrap(), round, "6 bytes are allowed");
        child.write_all(b"!").unwrap();
        turn(&log, 6);
        let past = fs::read_to_string(dir.path().join("router.log.1")).unwrap();
        assert_eq!((fs::metadata(&log).unwrap().len(), past), (0, format!("{round}!")));
    }
    child.write_all(b"end\n").unwrap();
    assert_eq!(last_lines(&log), "    end\n");
}

#[test]
fn a_line_without_end_is_shown_by_its_last_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("router.log");
    fs::write(&log, "\u{e4}".repeat(1 << 20)).unwrap();
    assert!(last_lines(&log).len() < 4200);
    fs::write(&log, "").unwrap();
    assert_eq!(last_lines(&log), "    (nothing was written)");
}
