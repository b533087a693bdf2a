use std::sync::Arc;

use super::*;
use crate::backend::cuda::way::Way;
use crate::batch::ids::SeqId;
use crate::batch::plan::Entry;
use crate::batch::sampling::Sampling;

fn plan(lanes: &[u32], chained: bool) -> StepPlan {
    let entry = |&lane: &u32| Entry {
        seq: SeqId(u64::from(lane)),
        lane,
        start: 5,
        fed: 1,
        chained,
        given: 0,
        held: 0,
        chooses: true,
        masked: false,
        scored: 0,
        outputs_start: 3,
        sampling: Arc::new(Sampling::greedy()),
        pages: 0..0,
    };
    StepPlan { entries: lanes.iter().map(entry).collect(), ..StepPlan::default() }
}

fn shape(entries: usize, rows: usize) -> Recorded {
    Recorded { entries, rows, depth: rows - 1, way: Way::default() }
}

#[test]
fn plain_steps_of_few_sequences_wait() {
    assert_eq!(window(shape(1, 1), 2048), Some(Window { rows: 1, steps: 32 }));
    assert_eq!(window(shape(64, 1), 2048), Some(Window { rows: 64, steps: 16 }));
    assert_eq!(window(shape(96, 1), 2048), Some(Window { rows: 96, steps: 10 }));
    assert_eq!(window(shape(160, 1), 2048), None);
    assert_eq!(window(shape(1, 4), 2048), None);
    // The rows that wait are at most those of a step.
    assert_eq!(window(shape(32, 1), 96), Some(Window { rows: 32, steps: 3 }));
    assert_eq!(window(shape(64, 1), 96), None);
    for entries in 1..=ENTRIES_MAX {
        let window = window(shape(entries, 1), usize::MAX).unwrap();
        assert!(window.rows.next_multiple_of(8) * window.steps <= ROWS_MAX, "{window:?}");
    }
}

#[test]
fn only_one_more_step_of_the_same_sequences_joins() {
    let window = Window { rows: 4, steps: 3 };
    let mut waiting = Waiting::default();
    assert!(!waiting.takes(&plan(&[7, 2], true), window), "nothing waits yet");
    assert_eq!(waiting.add(&plan(&[7, 2], false), window), 0);
    assert!(waiting.takes(&plan(&[7, 2], true), window));
    for (lanes, chained) in
        [(&[2, 7][..], true), (&[7], true), (&[7, 2, 3], true), (&[7, 2], false)]
    {
        assert!(!waiting.takes(&plan(lanes, chained), window), "{lanes:?} {chained}");
    }
    assert!(!waiting.takes(&plan(&[7, 2], true), Window { rows: 8, steps: 3 }));
    assert_eq!(waiting.add(&plan(&[7, 2], true), window), 1);
    assert!(!waiting.is_full());
    assert_eq!(waiting.add(&plan(&[7, 2], true), window), 2);
    assert!(waiting.is_full());
    assert!(!waiting.takes(&plan(&[7, 2], true), window), "no place is left");
    assert_eq!(waiting.end(), Some(window));
    waiting.add(&plan(&[3], false), window);
    assert_eq!(waiting.end(), Some(Window { steps: 1, ..window }));
    assert_eq!(waiting.end(), None);
    assert!(!waiting.takes(&plan(&[7, 2], true), window));
    // The next begins with what it is given.
    assert_eq!(waiting.add(&plan(&[1], false), window), 0);
    assert!(waiting.takes(&plan(&[1], true), window));
}
