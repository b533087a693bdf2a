use super::*;

#[test]
fn what_the_system_says() {
    let text = "MemTotal:       24000000 kB\nMemAvailable:   16000000 kB\nBuffers: 1 kB\n";
    assert_eq!(meminfo(text), Some(16_384_000_000));
    assert_eq!(meminfo("MemTotal: 1 kB\n"), None);
    assert_eq!(allowed("Name: x\nCpus_allowed_list:\t0-1,4\n"), Some(vec![0, 1, 4]));
    assert_eq!(allowed("Cpus_allowed_list:\tx\n"), None);
}

/// A service's group has a limit, or one around it, or a container's is all there is to see.
#[test]
fn the_tightest_group_counts() {
    let check = |own: &str, files: &[(&str, &str)], expected| {
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| format!("{text}\n"))
        };
        assert_eq!(groups_left(own, read), expected, "{own} {files:?}");
    };
    check("0::/\n", &[("memory.max", "100"), ("memory.current", "30")], Some(70));
    check("0::/\n", &[("memory.max", "100"), ("memory.current", "130")], Some(0));
    check("0::/\n", &[("memory.max", "max"), ("memory.current", "5")], None);
    check("0::/\n", &[], None);
    check("", &[("memory.max", "100"), ("memory.current", "30")], None);
    let stat = ("memory.stat", "anon 60\nfile 40\ninactive_file 25\nactive_file 15");
    check("0::/\n", &[("memory.max", "100"), ("memory.current", "100"), stat], Some(25));
    let service = "0::/system.slice/engine.service\n";
    let own = [
        ("system.slice/engine.service/memory.max", "100"),
        ("system.slice/engine.service/memory.current", "30"),
    ];
    let slice = |max| [("system.slice/memory.max", max), ("system.slice/memory.current", "60")];
    check(service, &own, Some(70));
    check(service, &[own, slice("max")].concat(), Some(70));
    check(service, &[own, slice("90")].concat(), Some(30));
    // The mount begins at the container's own group.
    check("0::/docker/abc\n", &[("memory.max", "9"), ("memory.current", "1")], Some(8));
    let older = "5:cpuset:/a\n4:cpu,memory:/a/b\n0::/\n";
    let limit = "memory/a/memory.limit_in_bytes";
    check(older, &[(limit, "50"), ("memory/a/memory.usage_in_bytes", "8")], Some(42));
}

#[test]
fn this_machine_has_something() {
    assert_ne!(available(), Some(0));
    assert!(!cfg!(target_os = "linux") || !cores().is_empty());
}
