use super::*;

#[test]
fn lines_that_a_full_disk_refuses_are_counted() {
    let metrics = Metrics::new();
    let full = Path::new("/dev/full");
    let log = AccessLog::open(Some(full), None, Arc::clone(&metrics)).unwrap();
    (0..200).for_each(|_| drop(Line::new(Arc::clone(&log), UNIX_EPOCH)));
    // The writer ends with the last that could send.
    drop(log);
    assert_eq!(metrics.access_log_dropped.get(), 200);
}
