//! The one thread that owns the loop: a bounded inbox in, a channel for each text out.
//!
//! A text's channel has room for all it can ever say, so the loop never waits for a client; and a
//! receiver that is dropped is the whole of an abort, so a client that is gone is noticed wherever
//! it was: in the queue, before its first token or between two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use crate::backend::BackendError;
use crate::batch::guide::Guide;
use crate::batch::ids::{SeqId, TokenId};
use crate::batch::pages::Salt;
use crate::batch::plan::TokenLogprobs;
use crate::batch::sampling::Sampling;
use crate::batch::step::{Engine, Event, Finish, Refused, Request};
use crate::clock;
use crate::runner::observer::Observer;

pub mod memory;
pub mod observer;
pub mod pulse;
pub mod start;

/// A text that is asked for.
#[derive(Debug)]
pub struct Job {
    pub prompt: Vec<TokenId>,
    pub new_max: u32,
    pub sampling: Arc<Sampling>,
    pub priority: i32,
    pub drafts_max: u32,
    pub guide: Option<Box<dyn Guide>>,
    /// Whose pages it may share.
    pub salt: Salt,
    /// When it ends, done or not.
    pub deadline: Instant,
}

/// What a text got in one step.
#[derive(Debug)]
pub struct Round {
    pub tokens: Vec<TokenId>,
    /// One for each token if they were asked for, else none.
    pub logprobs: Vec<TokenLogprobs>,
    /// In the first round one for each of the prompt's tokens but the first, if asked for.
    pub prompt: Vec<TokenLogprobs>,
    /// Guesses that were made for this step, and how many of them stand among the tokens.
    pub guessed: u32,
    pub kept: u32,
    /// Prompt tokens that an earlier request had left in the pages, as far as is known.
    pub cached: u32,
    pub end: Option<EndReason>,
    /// When the text's first step began, and when this one ended.
    pub started: Instant,
    pub at: Instant,
}

/// How a text ended.
#[derive(Clone, Debug, PartialEq)]
pub enum EndReason {
    Loop(Finish),
    /// Someone asked by name that it end.
    Aborted,
    /// Its deadline came first.
    Expired,
}

/// Why a request was not taken in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NotTaken {
    /// The inbox or the waiting room is full.
    Full,
    /// One request asks for more texts than the engine ever holds, `most`.
    TooMany {
        most: usize,
    },
    Refused(Refused),
    /// The thread is gone.
    Stopped,
}

/// The way to the thread; the thread ends when all of them are dropped and nothing runs.
#[derive(Clone, Debug)]
pub struct Inbox {
    letters: mpsc::Sender<Letter>,
}

#[derive(Debug)]
enum Letter {
    Submit {
        names: [Arc<str>; 2],
        jobs: Vec<(Job, mpsc::Sender<Round>)>,
        answer: oneshot::Sender<Result<(), NotTaken>>,
    },
    Abort {
        name: String,
        answer: oneshot::Sender<usize>,
    },
}

impl Inbox {
    /// A way in for at most `letters_max` letters that the thread has not read.
    pub fn new(letters_max: usize) -> (Self, Letters) {
        let (letters, receiver) = mpsc::channel(letters_max.max(1));
        (Self { letters }, Letters(receiver))
    }

    /// Hands in the texts of one request, all or none. [`Self::abort`] knows it by both `names`.
    pub async fn submit(
        &self,
        names: [Arc<str>; 2],
        jobs: Vec<Job>,
    ) -> Result<Vec<mpsc::Receiver<Round>>, NotTaken> {
        let mut receivers = Vec::with_capacity(jobs.len());
        let with_channel = |job: Job| {
            // Every round but one that only ends has a token.
            let (sender, receiver) = mpsc::channel(job.new_max as usize + 1);
            receivers.push(receiver);
            (job, sender)
        };
        let jobs = jobs.into_iter().map(with_channel).collect();
        let (answer, answered) = oneshot::channel();
        self.letters.try_send(Letter::Submit { names, jobs, answer }).map_err(|it| match it {
            mpsc::error::TrySendError::Full(_) => NotTaken::Full,
            mpsc::error::TrySendError::Closed(_) => NotTaken::Stopped,
        })?;
        answered.await.unwrap_or(Err(NotTaken::Stopped))?;
        Ok(receivers)
    }

    /// Ends all texts of the requests with this name; gives how many there were.
    pub async fn abort(&self, name: String) -> Result<usize, NotTaken> {
        let (answer, answered) = oneshot::channel();
        let letter = Letter::Abort { name, answer };
        self.letters.send(letter).await.map_err(|_| NotTaken::Stopped)?;
        answered.await.map_err(|_| NotTaken::Stopped)
    }
}

/// What the thread reads from.
#[derive(Debug)]
pub struct Letters(mpsc::Receiver<Letter>);

/// A text in the loop.
#[derive(Debug)]
struct Active {
    names: [Arc<str>; 2],
    outbox: mpsc::Sender<Round>,
    deadline: Instant,
    /// When its first step began.
    started: Option<Instant>,
}

/// Owns the loop until nobody can ask for anything any more.
#[derive(Debug)]
pub struct Runner {
    engine: Engine,
    letters: mpsc::Receiver<Letter>,
    active: BTreeMap<SeqId, Active>,
    observer: Observer,
    events: Vec<Event>,
    last_id: u64,
}

impl Runner {
    pub fn new(engine: Engine, letters: Letters, observer: Observer) -> Self {
        let active = BTreeMap::new();
        Self { engine, letters: letters.0, active, observer, events: Vec::new(), last_id: 0 }
    }

    /// Runs until the inbox is dropped and all texts have ended, or the backend fails. Either way
    /// all channels are dropped with the loop; one without an end tells its reader of failure.
    pub fn run(mut self) -> Result<(), BackendError> {
        while self.take_in() {
            self.drop_gone(clock::now());
            self.turn()?;
        }
        Ok(())
    }

    /// Reads what came in; waits for something only if there is nothing else to do. False when
    /// nothing will come any more.
    fn take_in(&mut self) -> bool {
        if self.active.is_empty() && self.engine.is_idle() {
            self.engine.check_idle();
            self.observer.idle(&self.engine.load());
            let Some(letter) = self.letters.blocking_recv() else { return false };
            self.observer.wake();
            self.read(letter);
        }
        // As many as fit the inbox: those that come meanwhile wait for the next turn.
        for _ in 0..self.letters.max_capacity() {
            let Ok(letter) = self.letters.try_recv() else { break };
            self.read(letter);
        }
        true
    }

    fn read(&mut self, letter: Letter) {
        match letter {
            Letter::Submit { names, jobs, answer } => {
                let ids: Vec<SeqId> = jobs.iter().map(|_| self.next_id()).collect();
                let taken = self.submit(&names, &ids, jobs);
                if taken.is_err() {
                    for id in ids {
                        self.forget(id);
                    }
                }
                self.observer.queued(&self.engine.load());
                // A client that is gone by now dropped its receivers as well.
                let _gone = answer.send(taken);
            }
            Letter::Abort { name, answer } => {
                let has_name = |it: &Active| it.names.iter().any(|it| **it == *name);
                let named = self.active.iter().filter(|(_, it)| has_name(it));
                let ids: Vec<SeqId> = named.map(|(id, _)| *id).collect();
                for id in &ids {
                    self.end(*id, EndReason::Aborted, clock::now());
                }
                let _gone = answer.send(ids.len());
            }
        }
    }

    fn next_id(&mut self) -> SeqId {
        self.last_id += 1;
        SeqId(self.last_id)
    }

    fn submit(
        &mut self,
        names: &[Arc<str>; 2],
        ids: &[SeqId],
        jobs: Vec<(Job, mpsc::Sender<Round>)>,
    ) -> Result<(), NotTaken> {
        let most = self.engine.texts_max();
        if most < jobs.len() {
            return Err(NotTaken::TooMany { most });
        }
        for (&id, (job, outbox)) in ids.iter().zip(jobs) {
            let Job { prompt, new_max, sampling, priority, drafts_max, guide, salt, deadline } =
                job;
            let request =
                Request { id, prompt, new_max, sampling, priority, drafts_max, guide, salt };
            self.engine.submit(request).map_err(|refused| match refused {
                Refused::QueueFull => NotTaken::Full,
                other => NotTaken::Refused(other),
            })?;
            let active = Active { names: names.clone(), outbox, deadline, started: None };
            self.active.insert(id, active);
        }
        Ok(())
    }

    fn forget(&mut self, id: SeqId) -> Option<Active> {
        let active = self.active.remove(&id)?;
        self.engine.abort(id);
        Some(active)
    }

    /// Ends a text before its time, and says so.
    fn end(&mut self, id: SeqId, reason: EndReason, now: Instant) {
        let active = self.forget(id).expect("the caller saw it");
        deliver(&active.outbox, Round::ending(reason, (now, now)));
    }

    /// Ends the texts that nobody reads and those that are out of time, read or not.
    fn drop_gone(&mut self, now: Instant) {
        let is_over = |it: &Active| it.outbox.is_closed() || it.deadline <= now;
        let over: Vec<SeqId> =
            self.active.iter().filter(|(_, it)| is_over(it)).map(|(id, _)| *id).collect();
        for id in over {
            self.end(id, EndReason::Expired, now);
        }
    }

    fn turn(&mut self) -> Result<(), BackendError> {
        let start = clock::now();
        self.events.clear();
        let stepped = self.engine.step(&mut self.events);
        let end = clock::now();
        stepped?;
        self.observer.stepped(&self.engine.load(), start, end, &self.events);
        for id in self.engine.running() {
            if let Some(active) = self.active.get_mut(&id) {
                active.started.get_or_insert(start);
            }
        }
        let mut events = std::mem::take(&mut self.events).into_iter().peekable();
        while let Some(event) = events.next() {
            let id = seq_of(&event);
            // The end of a text stands right after its last tokens.
            let done = events.next_if(|it| matches!(it, Event::Done { seq, .. } if *seq == id));
            let Some(active) = self.active.get(&id) else { continue };
            let started = active.started.unwrap_or(start);
            let round = Round::new(event, done, (started, end));
            let ends = round.end.is_some();
            deliver(&active.outbox, round);
            if ends {
                self.active.remove(&id);
            }
        }
        Ok(())
    }
}

/// The channel has room for all that a text can say, so only its reader can be missing.
fn deliver(outbox: &mpsc::Sender<Round>, round: Round) {
    let sent = outbox.try_send(round);
    assert!(!matches!(sent, Err(mpsc::error::TrySendError::Full(_))), "a text said too much");
}

impl Round {
    /// A round without tokens that only ends a text.
    pub fn ending(reason: EndReason, (started, at): (Instant, Instant)) -> Self {
        let (tokens, logprobs, prompt) = (Vec::new(), Vec::new(), Vec::new());
        let end = Some(reason);
        Self { tokens, logprobs, prompt, guessed: 0, kept: 0, cached: 0, end, started, at }
    }

    fn new(event: Event, done: Option<Event>, times: (Instant, Instant)) -> Self {
        let (started, at) = times;
        match event {
            Event::Tokens { tokens, logprobs, prompt, drafted: guessed, kept, cached, .. } => {
                let end = done.and_then(|it| Self::new(it, None, times).end);
                Self { tokens, logprobs, prompt, guessed, kept, cached, end, started, at }
            }
            Event::Done { reason, cached, .. } => {
                Self { cached, ..Self::ending(EndReason::Loop(reason), times) }
            }
        }
    }
}

fn seq_of(event: &Event) -> SeqId {
    match event {
        Event::Tokens { seq, .. } | Event::Done { seq, .. } => *seq,
    }
}
