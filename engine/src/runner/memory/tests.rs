use super::*;

#[test]
fn what_the_system_says() {
    let text = "MemTotal:       24000000 kB\nMemAvailable:   16000000 kB\nBuffers: 1 kB\n";
    assert_eq!(meminfo(text), Some(16_384_000_000));
    assert_eq!(meminfo("MemTotal: 1 kB\n"), None);
    assert_eq!(group_left(Some("max\n"), Some("5\n")), None);
    assert_eq!(group_left(Some("100\n"), Some("30\n")), Some(70));
    assert_eq!(group_left(Some("100\n"), Some("130\n")), Some(0));
    assert_eq!(allowed("Name: x\nCpus_allowed_list:\t0-1,4\n"), Some(vec![0, 1, 4]));
    assert_eq!(allowed("Cpus_allowed_list:\tx\n"), None);
}

#[test]
fn this_machine_has_something() {
    assert_ne!(available(), Some(0));
}
