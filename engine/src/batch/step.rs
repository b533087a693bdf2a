//! The loop body: admit, plan, submit, collect, commit.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::backend::{Backend, BackendError, Shape};
use crate::batch::guide::{Guide, Stuck};
use crate::batch::ids::{SeqId, TokenId};
use crate::batch::load::{Counts, EngineLoad};
use crate::batch::pages::{PagePool, Salt};
use crate::batch::plan::{Entry, StepChoices, StepPlan, TokenLogprobs};
use crate::batch::planner::{Outcome, Planner};
use crate::batch::running::{Running, Sent};
use crate::batch::sampling::Sampling;
use crate::batch::sequence::{Place, Sequence};
use crate::batch::ticket::{Ticket, Yield};
use crate::batch::waiting::Waiting;
use crate::draft::{Drafter, depth::Depth, proposer::Proposer};

/// The step loop over one backend.
#[derive(Debug)]
pub struct Engine {
    limits: Limits,
    shape: Shape,
    waiting: Waiting,
    running: Running,
    pool: PagePool,
    proposer: Proposer,
    backend: Box<dyn Backend>,
    /// Submitted and not collected, the oldest first.
    flights: VecDeque<Vec<Ticket>>,
    /// Plans that may be in flight while the next is made.
    ahead: usize,
    arrivals: u64,
    counts: Counts,
    plan: StepPlan,
    choices: StepChoices,
}

/// Bounds of an engine that its backend does not set. Fixed when it starts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests in the queue, beside those for which there are free lanes.
    pub waiting_max: usize,
    /// Tokens of a text, prompt included: what the model was made for. The pages may allow less.
    pub tokens_max: u32,
    /// Rows of prompts in a step in which others decode.
    pub prompt_rows_max: u32,
}

/// What is asked of the engine.
#[derive(Debug)]
pub struct Request {
    /// Never used before.
    pub id: SeqId,
    pub prompt: Vec<TokenId>,
    /// Tokens to write at most.
    pub new_max: u32,
    pub sampling: Arc<Sampling>,
    /// Lower is sooner. Equal ones go by arrival.
    pub priority: i32,
    /// Drafts that it may get in one step.
    pub drafts_max: u32,
    pub guide: Option<Box<dyn Guide>>,
    /// Whose pages it may share.
    pub salt: Salt,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refused {
    /// Later there may be room.
    QueueFull,
    /// Prompt and `new_max` together are more than `tokens_max`.
    TooLong { tokens_max: u32 },
    /// The prompt has no token, or none is asked for.
    Empty,
    /// The prompt has a token that the model does not know.
    UnknownToken(TokenId),
}

/// What the engine tells the outside after a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Tokens {
        seq: SeqId,
        tokens: Vec<TokenId>,
        /// One for each token if they were asked for, else none.
        logprobs: Vec<TokenLogprobs>,
        /// With the first tokens, one for each of the prompt's but the first, if asked for.
        prompt: Vec<TokenLogprobs>,
        /// Drafts that were made for this step.
        drafted: u32,
        /// How many of `tokens` are drafts that were accepted.
        kept: u32,
        /// Prompt tokens that were found in the pages of earlier requests.
        cached: u32,
    },
    /// The request is gone from the engine.
    Done {
        seq: SeqId,
        reason: Finish,
        /// As with the tokens.
        cached: u32,
    },
}

/// Why a text ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Finish {
    /// This stop token was chosen; it is the last of the tokens. Before all other reasons.
    Stop(TokenId),
    /// The guide allows nothing more.
    Complete,
    /// `new_max` tokens stand.
    Length,
    /// The guide could not go on.
    Stuck(Stuck),
}

impl Engine {
    pub fn new(
        limits: Limits,
        backend: Box<dyn Backend>,
        drafter: Box<dyn Drafter>,
        depth: Depth,
    ) -> Self {
        let shape = backend.shape();
        assert!(shape.ahead_max <= 1, "the loop runs at most one plan ahead");
        assert!(0 < limits.prompt_rows_max && 0 < shape.rows_max && 0 < shape.lanes);
        let ahead = if drafter.reads_tokens() { 0 } else { shape.ahead_max as usize };
        Self {
            limits,
            shape,
            waiting: Waiting::default(),
            running: Running::new(shape.lanes),
            pool: PagePool::new(shape.pages, shape.page_tokens),
            proposer: Proposer::new(drafter, depth),
            backend,
            flights: VecDeque::new(),
            ahead,
            arrivals: 0,
            counts: Counts::default(),
            plan: StepPlan::default(),
            choices: StepChoices::default(),
        }
    }

    pub fn submit(&mut self, request: Request) -> Result<(), Refused> {
        let tokens_max = self.tokens_max();
        let prompt_len = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        if prompt_len == 0 || request.new_max == 0 {
            return Err(Refused::Empty);
        }
        if tokens_max < prompt_len.saturating_add(request.new_max) {
            return Err(Refused::TooLong { tokens_max });
        }
        if let Some(token) = request.prompt.iter().find(|it| self.shape.vocab <= it.0) {
            return Err(Refused::UnknownToken(*token));
        }
        // Who finds a free lane does not wait, unless for pages.
        let lanes_free = self.running.lanes() - self.running.len();
        if self.limits.waiting_max + lanes_free <= self.waiting.len() {
            return Err(Refused::QueueFull);
        }
        self.proposer.limit(request.id, request.drafts_max);
        self.arrivals += 1;
        let place = Place { priority: request.priority, arrival: self.arrivals };
        self.waiting.push(Sequence::new(place, request));
        Ok(())
    }

    /// The longest text, prompt included, that a request may ask for.
    pub fn tokens_max(&self) -> u32 {
        // The last token of a text is never fed, so it needs no slot.
        let slots = self.pool.total().saturating_mul(self.pool.page_tokens());
        self.limits.tokens_max.min(slots.saturating_add(1))
    }

    /// Requests that run and wait, at most.
    pub fn texts_max(&self) -> usize {
        self.running.lanes() + self.limits.waiting_max
    }

    /// Forgets a request; its pages are free at once. False if it is not here (any more).
    pub fn abort(&mut self, seq: SeqId) -> bool {
        let lane = self.running.all().find(|(_, it)| it.sequence.id == seq).map(|(lane, _)| lane);
        if let Some(lane) = lane {
            self.remove(lane);
            return true;
        }
        let is_waiting = self.waiting.remove(seq);
        if is_waiting {
            self.proposer.forget(seq);
        }
        is_waiting
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.flights.is_empty()
    }

    /// The requests on a lane.
    pub fn running(&self) -> impl Iterator<Item = SeqId> {
        self.running.all().map(|(_, it)| it.sequence.id)
    }

    pub fn load(&self) -> EngineLoad {
        let sent = self.sent();
        let decoding = self.running.all().filter(|(lane, it)| it.is_decoding(sent[*lane as usize]));
        let count = |it: usize| u32::try_from(it).expect("bounded by limits");
        EngineLoad {
            running: count(self.running.len()),
            waiting: count(self.waiting.len()),
            decoding: count(decoding.count()),
            pages_total: self.pool.total(),
            pages_used: self.pool.total() - self.pool.free(),
            pages_cached: self.pool.cached(),
            depth: self.proposer.depth(),
            counts: self.counts,
            drafts: self.proposer.counts(),
        }
    }

    /// Stops the process if anything is left behind while nobody is here.
    pub fn check_idle(&self) {
        assert!(self.is_idle(), "only an idle engine is expected to be clean");
        self.pool.check_idle();
    }

    /// Runs one step and appends what happened to `events`.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<(), BackendError> {
        self.admit();
        let flying = self.flights.len();
        let outcome = self.make_plan();
        let is_planned = !self.plan.entries.is_empty();
        if is_planned {
            self.counts.steps += 1;
            self.backend.submit(&self.plan)?;
            self.flights.push_back(self.tickets());
        }
        let is_stalled = !is_planned && flying == 0 && outcome.stuck.is_empty();
        assert!(!is_stalled || self.running.is_empty(), "the first in order always gets on");
        for sequence in outcome.preempted {
            self.waiting.push(sequence);
        }
        for (lane, stuck) in outcome.stuck {
            self.finish(lane, Finish::Stuck(stuck), events);
        }
        let ahead = if is_planned && !outcome.is_short { self.ahead } else { 0 };
        while ahead < self.flights.len() {
            self.choices.clear();
            self.backend.collect(&mut self.choices)?;
            self.commit(events);
        }
        self.check();
        Ok(())
    }

    fn admit(&mut self) {
        while !self.running.is_full() {
            let step = self.counts.steps + 1;
            let Some(next) = self.waiting.next(&self.running, &mut self.pool, step) else { return };
            self.running.start(next);
        }
    }

    fn make_plan(&mut self) -> Outcome {
        let sent = self.sent();
        let planner = Planner {
            fed: vec![0; sent.len()],
            masks: vec![Vec::new(); sent.len()],
            sent,
            step: self.counts.steps + 1,
            running: &mut self.running,
            pool: &mut self.pool,
            proposer: &mut self.proposer,
            counts: &mut self.counts,
            shape: self.shape,
            prompt_rows_max: self.limits.prompt_rows_max,
            outcome: Outcome::default(),
        };
        planner.plan(&mut self.plan)
    }

    fn tickets(&self) -> Vec<Ticket> {
        let tenure = |lane| self.running.get(lane).expect("a plan names running ones").number;
        self.plan.entries.iter().map(|it| Ticket::new(it, tenure(it.lane))).collect()
    }

    /// By lane, the rows of running sequences whose results were not read.
    fn sent(&self) -> Vec<Option<Sent>> {
        let mut sent = vec![None; self.running.lanes()];
        for ticket in self.flights.iter().flatten() {
            if self.running.get(ticket.lane).is_some_and(|it| it.number == ticket.tenure) {
                let Ticket { fed, choices_max, .. } = *ticket;
                sent[ticket.lane as usize] = Some(Sent { fed, choices_max });
            }
        }
        sent
    }

    fn commit(&mut self, events: &mut Vec<Event>) {
        let mut tickets = self.flights.pop_front().expect("collected what was submitted");
        assert_eq!(self.choices.counts.len(), tickets.len(), "answers another plan");
        let choices = std::mem::take(&mut self.choices);
        for (ticket, &drafts) in tickets.iter_mut().zip(&choices.drafts) {
            assert!(drafts <= ticket.drafts, "the backend made more drafts than planned");
            ticket.drafts = drafts;
        }
        let mut left = Yield::whole(&choices);
        for (ticket, &count) in tickets.iter().zip(&choices.counts) {
            let own = left.split_off(ticket, count);
            if self.running.get(ticket.lane).is_some_and(|it| it.number == ticket.tenure) {
                self.commit_entry(ticket, own, events);
            }
        }
        assert!(left.is_empty(), "the backend answered another plan");
        self.choices = choices;
    }

    fn commit_entry(
        &mut self,
        ticket: &Ticket,
        Yield { chosen, logprobs, scored }: Yield<'_>,
        events: &mut Vec<Event>,
    ) {
        let tenure = self.running.get_mut(ticket.lane).expect("the caller saw it");
        let sequence = &mut tenure.sequence;
        let (len, finish) = sequence.end(chosen);
        let accepted = chosen.len().saturating_sub(1);
        let chosen = &chosen[..len];
        sequence.keep_scores(scored);
        sequence.commit(ticket.fed, chosen);
        let prompt = if chosen.is_empty() { Vec::new() } else { sequence.take_scores() };
        let read = sequence.computed() as usize;
        let (table, tokens) = sequence.table_and_tokens();
        self.pool.publish(table, &tokens[..read], self.counts.steps);
        if !chosen.is_empty() {
            let kept = u32::try_from(accepted.min(len)).expect("few drafts");
            self.proposer.count(ticket.drafts, kept);
            events.push(Event::Tokens {
                seq: sequence.id,
                tokens: chosen.to_vec(),
                logprobs: logprobs[..len.min(logprobs.len())].to_vec(),
                prompt,
                drafted: ticket.drafts,
                kept,
                cached: sequence.cached.unwrap_or(0),
            });
        }
        if let Some(finish) = finish {
            self.finish(ticket.lane, finish, events);
        }
    }

    fn finish(&mut self, lane: u32, reason: Finish, events: &mut Vec<Event>) {
        let sequence = self.remove(lane);
        let cached = sequence.cached.unwrap_or(0);
        events.push(Event::Done { seq: sequence.id, reason, cached });
    }

    fn remove(&mut self, lane: u32) -> Sequence {
        let mut sequence = self.running.remove(lane);
        sequence.rewind(&mut self.pool);
        self.proposer.forget(sequence.id);
        sequence
    }

    /// The budget held; every page is free or owned; no owner has computed past its pages.
    fn check(&self) {
        let rows: u32 = self.plan.entries.iter().map(Entry::rows).sum();
        assert!(rows <= self.shape.rows_max);
        let held = self.running.all().map(|(_, it)| it.sequence.table.pages().len()).sum();
        self.pool.check(held);
        for (_, tenure) in self.running.all() {
            let slots = tenure.sequence.table.len() * self.pool.page_tokens();
            assert!(tenure.sequence.computed() <= slots);
        }
    }
}
