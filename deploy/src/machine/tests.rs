use std::fs;

use tempfile::TempDir;

use super::{Cores, Memory, ranges};

/// A /sys with (package, core) for each CPU.
fn system(cpus: &[(u32, u32)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (cpu, (package, core)) in cpus.iter().enumerate() {
        let topology = dir.path().join(format!("cpu{cpu}/topology"));
        fs::create_dir_all(&topology).unwrap();
        fs::write(topology.join("physical_package_id"), format!("{package}\n")).unwrap();
        fs::write(topology.join("core_id"), format!("{core}\n")).unwrap();
    }
    dir
}

fn halves(cpus: &[(u32, u32)], allowed: &[usize], paid: usize) -> [String; 2] {
    Cores::read(allowed, paid, system(cpus).path()).halves()
}

#[test]
fn cores_are_halved() {
    let plain = [(0, 0), (0, 1), (0, 2), (0, 3)];
    assert_eq!(halves(&plain, &[0, 1, 2, 3], 4), ["cpu:0-1", "cpu:2-3"]);
    assert_eq!(halves(&plain, &[0, 1, 3], 3), ["cpu:0-1", "cpu:3"]);
    assert_eq!(halves(&plain, &[0, 1], 2), ["cpu:0", "cpu:1"]);
    assert_eq!(halves(&plain, &[2], 1), ["cpu:2", "cpu:2"]);
}

#[test]
fn threads_of_one_core_stay_together() {
    let threaded = [(0, 0), (0, 1), (0, 0), (0, 1)];
    assert_eq!(halves(&threaded, &[0, 1, 2, 3], 4), ["cpu:0,2", "cpu:1,3"]);
}

#[test]
fn packages_stay_together() {
    let interleaved = [(0, 0), (1, 0), (0, 1), (1, 1)];
    assert_eq!(halves(&interleaved, &[0, 1, 2, 3], 4), ["cpu:0,2", "cpu:1,3"]);
}

#[test]
fn a_quota_counts() {
    let plain = [(0, 0), (0, 1), (0, 2), (0, 3)];
    assert_eq!(halves(&plain, &[0, 1, 2, 3], 2), ["cpu:0", "cpu:1"]);
}

#[test]
fn a_machine_that_tells_nothing_has_cores_all_the_same() {
    assert_eq!(halves(&[], &[0, 1], 2), ["cpu:0", "cpu:1"]);
    assert!(0 < Cores::of_machine().cores());
}

#[test]
fn numbers_in_ranges() {
    assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    assert_eq!(ranges(&[4]), "4");
}

#[test]
fn memory_is_what_the_group_leaves() {
    let meminfo = "MemTotal:       2000 kB\nMemFree: 1 kB\nMemAvailable:   1000 kB\n";
    let check = |limit, used, total: u64, available: u64| {
        let found = Memory::read(meminfo, limit, used).unwrap();
        assert_eq!(found, Memory { total: total * 1024, available: available * 1024 });
    };
    check(None, None, 2000, 1000);
    check(Some(500 * 1024), Some(100 * 1024), 500, 400);
    check(Some(u64::MAX), None, 2000, 1000);
    assert_eq!(Memory::read("", None, None), None);
    assert!(Memory::of_machine().is_some());
}
