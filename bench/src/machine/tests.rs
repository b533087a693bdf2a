use super::{Origin, command, cpu_seconds, ticks};

#[test]
fn processor_time_is_found_behind_any_name() {
    let stat = "7 (a) b ) S 1 7 7 0 -1 4 100 0 0 0 250 50 0 0 20 0 3 0 9 1 1";
    assert_eq!(ticks(stat), Some(300.0));
    assert_eq!(ticks("nonsense"), None);
    assert!(cpu_seconds().is_none_or(|it| it.is_finite()));
}

#[test]
fn a_command_can_be_typed_again() {
    let args = ["/somewhere/crossover-bench", "sweep", "--out", "a b", "--tokens", "64-128"];
    let found = command(args.into_iter().map(str::to_owned));
    assert_eq!(found, "crossover-bench sweep --out 'a b' --tokens 64-128");
}

#[test]
fn an_origin_has_a_day_and_cores() {
    let origin = Origin::now();
    assert_eq!(origin.day().len(), "2026-11-29".len());
    assert!(0 < origin.cores && !origin.commit.is_empty());
}
