use std::sync::Arc;

use super::*;
use crate::batch::ids::{PageId, SeqId, TokenId};

const SIZES: Sizes =
    Sizes { hidden: 64, intermediate: 64, heads: 9, kv_heads: 3, head_dim: 64, eps: 1e-5 };

/// An entry of lane `lane` with `fed` own tokens and so many drafts made on the device.
fn entry(plan: &mut StepPlan, lane: u32, fed: u32, held: u32, pages: &[u32]) {
    let pages_start = plan.pages.len();
    plan.pages.extend(pages.iter().map(|it| PageId(*it)));
    plan.rows.extend((0..fed).map(|at| TokenId(10 * lane + at)));
    plan.entries.push(Entry {
        seq: SeqId(u64::from(lane)),
        lane,
        start: 5,
        fed,
        chained: false,
        given: 0,
        held,
        chooses: true,
        masked: false,
        scored: 0,
        outputs_start: 3,
        sampling: Arc::new(Sampling::greedy()),
        pages: pages_start..plan.pages.len(),
    });
}

fn fill(plan: &StepPlan, tables: &mut Tables) -> Outgoing {
    let mut outgoing = Outgoing::default();
    outgoing.fill(plan, tables, SIZES, (100, 64));
    outgoing
}

#[test]
fn only_changes_of_page_tables_are_sent() {
    let mut tables = Tables::new(4, 64);
    let patches = |pages: &[u32], tables: &mut Tables| {
        let mut plan = StepPlan::default();
        entry(&mut plan, 1, 1, 0, pages);
        fill(&plan, tables).words.patches()
    };
    assert_eq!(patches(&[7, 8], &mut tables), 2);
    assert_eq!(patches(&[7, 8], &mut tables), 0);
    assert_eq!(patches(&[7, 8, 9], &mut tables), 1);
    // Another sequence on the lane, then the first pages again.
    assert_eq!(patches(&[3], &mut tables), 1);
    assert_eq!(patches(&[7, 8, 9], &mut tables), 1);
}

#[test]
fn decoding_is_a_recorded_shape_and_a_prompt_is_not() {
    let shape = |entries: &[(u32, u32)]| {
        let mut plan = StepPlan::default();
        for (lane, &(fed, held)) in (0..).zip(entries) {
            entry(&mut plan, lane, fed, held, &[lane]);
        }
        fill(&plan, &mut Tables::new(6, 64)).recorded
    };
    let recorded =
        |entries, rows, depth| Some(Recorded { entries, rows, depth, way: Way::default() });
    assert_eq!(shape(&[(1, 0)]), recorded(1, 1, 0));
    assert_eq!(shape(&[(1, 0), (1, 3), (1, 1)]), recorded(4, 4, 3));
    assert_eq!(shape(&[(1, 0); 5]), recorded(6, 1, 0));
    assert_eq!(shape(&[(1, 0), (2, 0)]), None);
    assert_eq!(shape(&[(1, 30)]), None);
}

#[test]
fn a_shape_without_room_for_the_rows_that_pad_it_is_not_recorded() {
    // The fifth has three rows; padded, six have as many.
    let mut plan = StepPlan::default();
    for lane in 0..5 {
        entry(&mut plan, lane, 1, if lane == 4 { 2 } else { 0 }, &[lane]);
    }
    for (rows_max, rows) in [(18, 18), (17, 7)] {
        let mut outgoing = Outgoing::default();
        outgoing.fill(&plan, &mut Tables::new(6, 64), SIZES, (100, rows_max));
        assert_eq!(outgoing.recorded.is_some(), rows_max == 18);
        assert_eq!(outgoing.extent().rows, rows, "of {rows_max}");
    }
}

#[test]
fn entries_of_a_recorded_shape_have_equal_rows() {
    let mut plan = StepPlan::default();
    entry(&mut plan, 0, 1, 0, &[0]);
    entry(&mut plan, 1, 1, 2, &[1]);
    let outgoing = fill(&plan, &mut Tables::new(2, 64));
    assert_eq!((outgoing.words.rows(), outgoing.words.choosers()), (6, 6));
    assert_eq!(outgoing.words.entries()[1].row, 3);
    assert_eq!(outgoing.words.entries()[1].choice, 3);
    let Extent { entries, rows, choosers } = outgoing.extent();
    assert_eq!((entries, rows, choosers), (2, 6, 6));
}

#[test]
fn other_steps_tell_few_rows_from_many() {
    let mut plan = StepPlan::default();
    entry(&mut plan, 0, 1, 2, &[0]);
    entry(&mut plan, 1, 100, 0, &[1]);
    entry(&mut plan, 2, 8, 0, &[2]);
    let outgoing = fill(&plan, &mut Tables::new(3, 64));
    assert_eq!(outgoing.few, [[0, 3], [103, 8]]);
    assert_eq!(outgoing.many, [[3, 42], [45, 42], [87, 16]]);
    assert_eq!(outgoing.depth, 2);
    assert_eq!(outgoing.words.choosers(), 5);
}

#[test]
fn what_few_rows_see_is_told_and_prompts_are_not_few() {
    let mut plan = StepPlan::default();
    entry(&mut plan, 0, 1, 2, &[0]);
    entry(&mut plan, 1, 1, 0, &[1]);
    plan.entries[1].start = 900;
    let outgoing = fill(&plan, &mut Tables::new(2, 64));
    assert_eq!((outgoing.few(), outgoing.keys, outgoing.many.len()), ((2, 3), 901, 0));
    entry(&mut plan, 2, 30, 0, &[2]);
    plan.entries[2].start = 4000;
    let outgoing = fill(&plan, &mut Tables::new(4, 64));
    assert_eq!((outgoing.few(), outgoing.keys, outgoing.many.len()), ((2, 3), 901, 1));
}
