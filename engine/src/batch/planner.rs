//! Divides a step's rows: first those one token behind, then prompts, then drafts.

use std::sync::Arc;

use crate::batch::pages::PagePool;
use crate::batch::plan::{Entry, StepPlan};
use crate::batch::sequence::Sequence;
use crate::draft::{Ask, Drafter, Proposal};

/// What one step may spend.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub rows_max: u32,
    pub drafts_max: u32,
}

/// Fills `plan` for the sequences in `running`, oldest first.
pub fn plan(
    running: &mut [Sequence],
    pool: &mut PagePool,
    drafter: &mut dyn Drafter,
    budget: Budget,
    plan: &mut StepPlan,
) {
    plan.rows.clear();
    plan.pages.clear();
    plan.masks.clear();
    plan.entries.clear();
    let (fed, rows_left) = share_rows(running, pool, budget.rows_max);
    let drafts = ask_drafts(running, &fed, pool, drafter, budget.drafts_max.min(rows_left));
    for (lane, ((sequence, &fed), drafts)) in (0..).zip(running.iter().zip(&fed).zip(&drafts)) {
        if 0 < fed {
            push_entry(plan, lane, sequence, fed, drafts);
        }
    }
}

/// Rows for the sequences' own tokens. A decoding sequence never waits for another's prompt.
fn share_rows(running: &mut [Sequence], pool: &mut PagePool, rows_max: u32) -> (Vec<u32>, u32) {
    let mut fed = vec![0; running.len()];
    let mut left = rows_max;
    for is_prompt in [false, true] {
        for (index, sequence) in running.iter_mut().enumerate() {
            if (1 < sequence.behind()) != is_prompt || left == 0 {
                continue;
            }
            let rows = sequence.behind().min(left);
            let slots = sequence.computed() + rows;
            if pool.reserve(&mut sequence.pages, slots) {
                fed[index] = rows;
                left -= rows;
            }
        }
    }
    (fed, left)
}

/// Drafts ride on rows and pages that nothing else wants, in equal shares.
fn ask_drafts(
    running: &mut [Sequence],
    fed: &[u32],
    pool: &mut PagePool,
    drafter: &mut dyn Drafter,
    rows_left: u32,
) -> Vec<Proposal> {
    let mut all = vec![Proposal::default(); running.len()];
    let reaches_end = |index: &usize| 0 < fed[*index] && fed[*index] == running[*index].behind();
    let askers: Vec<usize> = (0..running.len()).filter(reaches_end).collect();
    let share = rows_left / u32::try_from(askers.len()).expect("bounded by running_max").max(1);
    if share == 0 {
        return all;
    }
    let ask = |&index: &usize| {
        let sequence = &running[index];
        let wanted = sequence.drafts_max().min(share);
        Ask { seq: sequence.id, tokens: sequence.tokens(), wanted }
    };
    let asks: Vec<Ask<'_>> = askers.iter().map(ask).collect();
    let mut proposals = vec![Proposal::default(); asks.len()];
    drafter.propose(&asks, &mut proposals);
    let wanted: Vec<u32> = asks.iter().map(|it| it.wanted).collect();
    for ((index, wanted), mut proposal) in askers.into_iter().zip(wanted).zip(proposals) {
        proposal.given.truncate(wanted as usize);
        let given = u32::try_from(proposal.given.len()).expect("at most wanted");
        proposal.held = proposal.held.min(wanted - given);
        let sequence = &mut running[index];
        let slots = sequence.len() + given + proposal.held;
        if pool.reserve(&mut sequence.pages, slots) {
            all[index] = proposal;
        }
    }
    all
}

fn push_entry(plan: &mut StepPlan, lane: u32, sequence: &Sequence, fed: u32, drafts: &Proposal) {
    let start = sequence.computed();
    let own = &sequence.tokens()[start as usize..][..fed as usize];
    plan.rows.extend_from_slice(own);
    plan.rows.extend_from_slice(&drafts.given);
    let pages_start = plan.pages.len();
    plan.pages.extend_from_slice(&sequence.pages);
    plan.entries.push(Entry {
        seq: sequence.id,
        lane,
        start,
        fed,
        chained: false,
        given: u32::try_from(drafts.given.len()).expect("bounded by the row budget"),
        held: drafts.held,
        chooses: fed == sequence.behind(),
        masked: false,
        outputs_start: sequence.prompt_len(),
        sampling: Arc::clone(&sequence.sampling),
        pages: pages_start..plan.pages.len(),
    });
}
