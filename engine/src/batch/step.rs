//! The loop body: admit, plan, run, commit.

use std::collections::VecDeque;

use crate::backend::{Backend, BackendError};
use crate::batch::ids::{SeqId, TokenId};
use crate::batch::pages::PagePool;
use crate::batch::plan::{StepChoices, StepPlan};
use crate::batch::planner::{self, Budget};
use crate::batch::sequence::Sequence;
use crate::draft::Drafter;

/// What the engine tells the outside after a step.
#[derive(Debug, PartialEq)]
pub enum Event {
    Tokens { seq: SeqId, tokens: Vec<TokenId> },
    Done { seq: SeqId },
}

/// Why a request was not taken.
#[derive(Debug, PartialEq)]
pub enum Refused {
    QueueFull,
    TooLong,
}

/// All bounds of an engine, fixed when it starts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub waiting_max: usize,
    pub running_max: usize,
    pub budget: Budget,
}

#[derive(Debug)]
pub struct Engine {
    limits: Limits,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    pool: PagePool,
    drafter: Box<dyn Drafter>,
    backend: Box<dyn Backend>,
    plan: StepPlan,
    choices: StepChoices,
}

impl Engine {
    pub fn new(limits: Limits, backend: Box<dyn Backend>, drafter: Box<dyn Drafter>) -> Self {
        let shape = backend.shape();
        Self {
            limits,
            waiting: VecDeque::new(),
            running: Vec::new(),
            pool: PagePool::new(shape.pages, shape.page_tokens),
            drafter,
            backend,
            plan: StepPlan::default(),
            choices: StepChoices::default(),
        }
    }

    pub fn submit(&mut self, sequence: Sequence) -> Result<(), Refused> {
        let slots = self.pool.total() * self.pool.page_tokens();
        if slots <= sequence.len() + sequence.drafts_max() {
            return Err(Refused::TooLong);
        }
        if self.waiting.len() == self.limits.waiting_max {
            return Err(Refused::QueueFull);
        }
        self.waiting.push_back(sequence);
        Ok(())
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Runs one step and appends what happened to `events`.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<(), BackendError> {
        self.admit();
        self.plan_or_preempt();
        if self.plan.entries.is_empty() {
            return Ok(());
        }
        self.choices.clear();
        self.backend.submit(&self.plan)?;
        self.backend.collect(&mut self.choices)?;
        self.commit(events);
        self.check();
        Ok(())
    }

    fn admit(&mut self) {
        while self.running.len() < self.limits.running_max {
            let Some(sequence) = self.waiting.pop_front() else { return };
            self.running.push(sequence);
        }
    }

    /// Plans; if no one could get pages, takes them from the youngest and plans again.
    fn plan_or_preempt(&mut self) {
        let budget = self.limits.budget;
        loop {
            let drafter = self.drafter.as_mut();
            planner::plan(&mut self.running, &mut self.pool, drafter, budget, &mut self.plan);
            if !self.plan.entries.is_empty() || self.running.is_empty() {
                return;
            }
            assert!(1 < self.running.len(), "admission lets in only what fits alone");
            let mut youngest = self.running.pop().expect("not empty");
            self.pool.release(youngest.rewind());
            self.waiting.push_front(youngest);
        }
    }

    fn commit(&mut self, events: &mut Vec<Event>) {
        let mut choices = self.choices.tokens.as_slice();
        assert_eq!(self.choices.counts.len(), self.plan.entries.len(), "answers another plan");
        for (entry, &count) in self.plan.entries.iter().zip(&self.choices.counts) {
            assert!(count <= entry.choices_max() && (0 < count) == entry.chooses);
            let (chosen, left) = choices.split_at(count as usize);
            choices = left;
            let sequence = self.running.iter_mut().find(|it| it.id == entry.seq);
            let sequence = sequence.expect("the plan names running sequences only");
            sequence.commit(entry.fed, chosen);
            if !chosen.is_empty() {
                events.push(Event::Tokens { seq: entry.seq, tokens: chosen.to_vec() });
            }
        }
        assert!(choices.is_empty(), "the backend answered another plan");
        for mut sequence in self.running.extract_if(.., |it| it.is_done()) {
            self.pool.release(sequence.rewind());
            self.drafter.forget(sequence.id);
            events.push(Event::Done { seq: sequence.id });
        }
    }

    /// The budget held; every page is free or owned once; no owner has computed past its pages.
    fn check(&self) {
        assert!(self.plan.rows.len() <= self.limits.budget.rows_max as usize);
        let owned: usize = self.running.iter().map(|it| it.pages.len()).sum();
        assert_eq!(owned + self.pool.free() as usize, self.pool.total() as usize);
        for sequence in &self.running {
            let slots = sequence.pages.len() * self.pool.page_tokens() as usize;
            assert!(sequence.computed() as usize <= slots);
        }
    }
}
