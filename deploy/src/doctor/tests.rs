use super::{Finding, Mark, bandwidth, gpus, of_cores, of_memory, report};
use crate::machine::{Cores, Memory};

#[test]
fn what_is_missing_is_named_at_the_end() {
    let finding = |mark, topic| Finding { mark, topic, text: "so and so".to_owned() };
    let good = report(&[finding(Mark::Good, "cores"), finding(Mark::Note, "GPUs")]);
    assert!(good.ends_with("\n`crossover up` would work here.\n"), "{good}");
    let bad = report(&[finding(Mark::Missing, "pip"), finding(Mark::Missing, "ports")]);
    assert!(bad.ends_with("would not work here: see pip, ports.\n"), "{bad}");
}

#[test]
fn one_core_is_a_note_and_no_memory_is_missing() {
    assert_eq!(of_cores(&Cores::new(vec![vec![0, 1]])).mark, Mark::Note);
    assert_eq!(of_cores(&Cores::new(vec![vec![0], vec![1]])).mark, Mark::Good);
    let memory = |available| of_memory(Some(Memory { total: 24_000_000_000, available }));
    assert_eq!(memory(900_000_000).mark, Mark::Missing);
    let good = memory(22_150_000_000);
    assert_eq!(good.mark, Mark::Good);
    assert_eq!(good.text, "22.1 GB available of 24.0 GB; the default pair needs about 1.0 GB");
}

#[test]
fn cards_are_described() {
    let line = "0, NVIDIA H200, 143771 MiB, 4 MiB";
    assert_eq!(gpus::describe(line).unwrap(), "cuda:0 NVIDIA H200, 4 MiB of 143771 MiB in use");
    assert_eq!(gpus::describe("nonsense"), None);
}

#[test]
fn memory_is_read_at_some_speed() {
    let found = bandwidth::measure(2, u64::MAX).unwrap();
    assert!(0.0 < found.one && 0.0 < found.all);
    // A small machine is told what it lacks instead of being filled.
    assert!(bandwidth::measure(64, 300 << 20).is_some());
    assert!(bandwidth::measure(64, 200 << 20).is_none());
}
