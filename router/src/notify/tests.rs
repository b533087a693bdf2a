use super::*;

#[test]
fn one_stuck_thread_stops_the_watchdog() {
    let beats = Beats::new(3);
    for beat in &beats.0 {
        beat.store(10_000, Ordering::Relaxed);
    }
    assert!(beats.all_moved(14_000));
    beats.0[0].store(16_000, Ordering::Relaxed);
    beats.0[1].store(16_000, Ordering::Relaxed);
    assert!(!beats.all_moved(16_000));
}
