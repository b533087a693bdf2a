//! Divides a step's rows: first those one token behind, then prompts, then drafts.

use std::sync::Arc;

use crate::backend::Shape;
use crate::batch::guide::{Guide, Stuck};
use crate::batch::ids::TokenId;
use crate::batch::load::Counts;
use crate::batch::pages::{Found, PagePool};
use crate::batch::plan::{Entry, StepPlan};
use crate::batch::running::{Next, Running, Sent, Tenure};
use crate::batch::sequence::Sequence;
use crate::draft::proposer::Proposer;
use crate::draft::{Ask, Proposal};

/// What a plan is made from. Rows and pages go to sequences in their order, so the first always
/// gets on: if pages are short the last gives up its own and waits to read its text again.
pub(super) struct Planner<'a> {
    pub(super) running: &'a mut Running,
    pub(super) pool: &'a mut PagePool,
    pub(super) proposer: &'a mut Proposer,
    pub(super) counts: &'a mut Counts,
    /// The number of this plan.
    pub(super) step: u64,
    pub(super) shape: Shape,
    /// Rows that prompts may take beside decoding sequences.
    pub(super) prompt_rows_max: u32,
    /// What is on its way, by lane.
    pub(super) sent: Vec<Option<Sent>>,
    /// Rows of each lane's own tokens, as far as they are given out.
    pub(super) fed: Vec<u32>,
    /// What may be chosen after each lane's own tokens, if its guide was asked.
    pub(super) masks: Vec<Vec<u32>>,
    pub(super) outcome: Outcome,
}

/// What else came of making a plan.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Sequences that gave up their pages.
    pub(super) preempted: Vec<Sequence>,
    /// Lanes whose guide cannot go on.
    pub(super) stuck: Vec<(u32, Stuck)>,
    /// A sequence could not go on, and another would have had to give up pages while its rows are
    /// on their way: those are to be read first.
    pub(super) is_short: bool,
}

impl Planner<'_> {
    /// Fills `plan`.
    pub(super) fn plan(mut self, plan: &mut StepPlan) -> Outcome {
        plan.clear();
        self.trim();
        let mut left = self.shape.rows_max;
        self.share_decoding(&mut left);
        self.share_prompts(&mut left);
        let given = self.fed.iter().sum::<u32>();
        assert_eq!(given + left, self.shape.rows_max, "a row is lost or given out twice");
        let mut drafts = self.ask_drafts(left);
        let order: Vec<u32> = self.running.order().collect();
        for lane in order {
            if 0 < self.fed[lane as usize] {
                self.push_entry(plan, lane, std::mem::take(&mut drafts[lane as usize]));
            }
        }
        self.outcome
    }

    /// Takes back pages that were there for drafts only.
    fn trim(&mut self) {
        for lane in 0..self.sent.len() {
            let Some(tenure) = self.running.get_mut(lane_of(lane)) else { continue };
            let sent = self.sent[lane].map_or(0, |it| it.fed + it.choices_max.saturating_sub(1));
            let slots = tenure.sequence.computed() + sent;
            self.pool.trim(&mut tenure.sequence.table, slots);
        }
    }

    /// A row for each sequence that is one token behind: none waits for another's prompt.
    fn share_decoding(&mut self, left: &mut u32) {
        let order: Vec<u32> = self.running.order().collect();
        for lane in order {
            let Some(tenure) = self.running.get(lane) else { continue };
            let Next::Decode { start_max, .. } = tenure.next(self.sent[lane as usize]) else {
                continue;
            };
            if 0 < *left && self.make_room(lane, start_max + 1, left) && self.ask_guide(lane) {
                self.fed[lane as usize] = 1;
                *left -= 1;
            }
        }
    }

    /// Rows for prompts, in order, so that a long one ends; few while others decode, so that the
    /// step stays short.
    fn share_prompts(&mut self, left: &mut u32) {
        let mut prompt_left = match self.fed.iter().sum() {
            0 => u32::MAX,
            decoding => rows_beside(self.prompt_rows_max, decoding),
        };
        let order: Vec<u32> = self.running.order().collect();
        for lane in order {
            let rows_max = prompt_left.min(*left);
            let is_open = self.fed[lane as usize] == 0 && self.running.get(lane).is_some();
            // One whose guide was asked before and cannot go on is not asked again.
            let is_stuck = self.outcome.stuck.iter().any(|it| it.0 == lane);
            if rows_max == 0 || !is_open || is_stuck || self.find_pages(lane) {
                continue;
            }
            let tenure = self.running.get(lane).expect("seen above");
            let (start, behind) = match tenure.next(self.sent[lane as usize]) {
                Next::Read { start, behind } => (start, behind),
                // All but one token were found just now.
                Next::Decode { start, .. } if !tenure.started => (start, 1),
                Next::Decode { .. } | Next::Wait => continue,
            };
            let rows = behind.min(rows_max);
            let has_room = self.make_room(lane, start + rows, left);
            if has_room && (rows < behind || self.ask_guide(lane)) {
                self.fed[lane as usize] = rows;
                *left -= rows;
                prompt_left -= rows;
                let sequence = &mut self.running.get_mut(lane).expect("seen above").sequence;
                let end = (start + rows) as usize;
                let (table, tokens) = sequence.table_and_tokens();
                self.pool.publish(table, &tokens[..end], self.step);
            }
        }
    }

    /// Takes the pages that others filled with this text's start. True if more of them will be
    /// there after this step, so that reading the same tokens now would be work done twice.
    fn find_pages(&mut self, lane: u32) -> bool {
        let tenure = self.running.get_mut(lane).expect("the caller saw it");
        !tenure.started && tenure.sequence.find_pages(self.pool, self.step) == Found::Soon
    }

    /// Makes `slots` slots; takes them from the sequences behind it in the order if it must.
    fn make_room(&mut self, lane: u32, slots: u32, left: &mut u32) -> bool {
        loop {
            let sequence = &mut self.running.get_mut(lane).expect("the caller saw it").sequence;
            if self.pool.reserve(&mut sequence.table, slots) {
                return true;
            }
            let last = self.running.last().expect("at least this one runs");
            if last == lane {
                return false;
            }
            if self.sent.iter().any(Option::is_some) {
                self.outcome.is_short = true;
                return false;
            }
            let mut preempted = self.running.remove(last);
            self.outcome.stuck.retain(|it| it.0 != last);
            *left += std::mem::take(&mut self.fed[last as usize]);
            preempted.rewind(self.pool);
            self.counts.preemptions += 1;
            self.outcome.preempted.push(preempted);
        }
    }

    /// What may be chosen after the lane's own tokens. False if its guide does not know.
    fn ask_guide(&mut self, lane: u32) -> bool {
        let sequence = &mut self.running.get_mut(lane).expect("the caller saw it").sequence;
        let Some(guide) = &mut sequence.guide else { return true };
        let mask = &mut self.masks[lane as usize];
        mask.resize(self.shape.vocab.div_ceil(32) as usize, 0);
        match guide.allow(mask) {
            Ok(()) => true,
            Err(stuck) => {
                self.outcome.stuck.push((lane, stuck));
                false
            }
        }
    }

    /// Drafts ride on rows and pages that nothing else wants, in equal shares. Only a sequence
    /// that chose its last token on this lane gets any: a backend guesses from where it stands.
    fn ask_drafts(&mut self, left: u32) -> Vec<Proposal> {
        let mut all = vec![Proposal::default(); self.running.lanes()];
        let decodes = |(lane, it): &(u32, &Tenure)| it.is_decoding(self.sent[*lane as usize]);
        let decoding: Vec<u32> = self.running.all().filter(decodes).map(|(lane, _)| lane).collect();
        let depth = self.proposer.next_depth(u32::try_from(decoding.len()).expect("a lane each"));
        let limit = |lane: u32| {
            let id = self.running.get(lane).expect("it decodes").sequence.id;
            self.proposer.limit_of(id)
        };
        let wants = |lane: &u32| 0 < self.fed[*lane as usize] && 0 < limit(*lane);
        let askers: Vec<u32> = decoding.into_iter().filter(wants).collect();
        let share = left / u32::try_from(askers.len()).expect("a lane each").max(1);
        let wanted_max = depth.min(share);
        if wanted_max == 0 {
            return all;
        }
        let asked = |&lane: &u32| ask(self.running, &self.sent, lane, wanted_max.min(limit(lane)));
        let asks: Vec<Ask<'_>> = askers.iter().map(asked).collect();
        let proposals = self.proposer.propose(&asks, self.shape.held_max);
        for (lane, proposal) in askers.into_iter().zip(proposals) {
            all[lane as usize] = self.fit(lane, proposal);
        }
        all
    }

    /// Cuts drafts that have no room or cannot be accepted.
    fn fit(&mut self, lane: u32, mut proposal: Proposal) -> Proposal {
        let tenure = self.running.get_mut(lane).expect("it asked");
        let Next::Decode { start_max, .. } = tenure.next(self.sent[lane as usize]) else {
            return Proposal::default();
        };
        let sequence = &mut tenure.sequence;
        if sequence.guide.is_some() {
            proposal.held = 0;
        }
        // A token that ends the text is chosen, never followed.
        let ends = proposal.given.iter().position(|&it| sequence.stops_at(it));
        proposal.given.truncate(ends.unwrap_or(usize::MAX));
        if !self.pool.reserve(&mut sequence.table, start_max + 1 + proposal.len()) {
            let slots = sequence.table.len() * self.pool.page_tokens();
            proposal.truncate(slots - (start_max + 1));
        }
        proposal
    }

    fn push_entry(&mut self, plan: &mut StepPlan, lane: u32, mut drafts: Proposal) {
        let fed = self.fed[lane as usize];
        let tenure = self.running.get_mut(lane).expect("it has rows");
        let (start, chained, behind) = match tenure.next(self.sent[lane as usize]) {
            Next::Decode { start, chained, .. } => (start, chained, 1),
            Next::Read { start, behind } => (start, false, behind),
            Next::Wait => return,
        };
        let is_reading = !tenure.is_decoding(self.sent[lane as usize]);
        let chooses = fed == behind;
        let sequence = &mut tenure.sequence;
        if chooses && let Some(guide) = &mut sequence.guide {
            plan.masks.extend_from_slice(&self.masks[lane as usize]);
            mask_drafts(guide.as_mut(), &mut drafts.given, self.shape.vocab, &mut plan.masks);
        }
        if !chained {
            plan.rows.extend_from_slice(&sequence.tokens()[start as usize..][..fed as usize]);
        }
        plan.rows.extend_from_slice(&drafts.given);
        let scored = sequence.scored(start, fed);
        plan.scored.extend_from_slice(scored);
        let scored = u32::try_from(scored.len()).expect("rows of a step are counted in u32");
        let pages_start = plan.pages.len();
        plan.pages.extend_from_slice(sequence.table.pages());
        let entry = Entry {
            seq: sequence.id,
            lane,
            start,
            fed,
            chained,
            given: drafts.len() - drafts.held,
            held: drafts.held,
            chooses,
            masked: chooses && sequence.guide.is_some(),
            scored,
            outputs_start: sequence.prompt_len(),
            sampling: Arc::clone(&sequence.sampling),
            pages: pages_start..plan.pages.len(),
        };
        if sequence.cached.is_none() {
            sequence.cached = Some(sequence.computed());
            self.counts.prefix_queries += u64::from(sequence.len());
            self.counts.prefix_hits += u64::from(sequence.computed());
        }
        tenure.started = true;
        self.counts.rows += u64::from(entry.rows());
        self.counts.prompt_rows += u64::from(if is_reading { fed } else { 0 });
        plan.entries.push(entry);
    }
}

fn ask<'a>(running: &'a Running, sent: &[Option<Sent>], lane: u32, wanted_max: u32) -> Ask<'a> {
    let sequence = &running.get(lane).expect("it decodes").sequence;
    // The step itself brings one token more than it accepts, and so may the one before.
    let pending = sent[lane as usize].map_or(0, |it| it.choices_max);
    let room = sequence.len_max() - sequence.len() - pending - 1;
    Ask { seq: sequence.id, tokens: sequence.tokens(), wanted: room.min(wanted_max) }
}

/// A mask for what may follow each draft. Drafts that the guide does not allow, or that nothing may
/// follow, are cut.
fn mask_drafts(guide: &mut dyn Guide, drafts: &mut Vec<TokenId>, vocab: u32, masks: &mut Vec<u32>) {
    let mut kept = 0;
    for &draft in drafts.iter() {
        if !guide.advance(draft) {
            break;
        }
        let mut mask = vec![0; vocab.div_ceil(32) as usize];
        if guide.is_complete() || guide.allow(&mut mask).is_err() {
            guide.rewind(1);
            break;
        }
        kept += 1;
        masks.extend(mask);
    }
    drafts.truncate(kept);
    guide.rewind(u32::try_from(kept).expect("few drafts"));
}

/// Rows that the widest products of a GPU take at once: one more costs nearly as much again.
const ROWS_AT_ONCE: u32 = 256;

/// Rows that prompts take beside `others`, at most `rows_max`: a few less where all together would
/// be a few more than the products take at once.
fn rows_beside(rows_max: u32, others: u32) -> u32 {
    let over = (rows_max + others) % ROWS_AT_ONCE;
    if over <= rows_max / 4 { rows_max - over } else { rows_max }
}

fn lane_of(index: usize) -> u32 {
    u32::try_from(index).expect("lanes are counted in u32")
}

#[cfg(test)]
mod tests;
