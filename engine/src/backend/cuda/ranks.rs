//! The ranks of a model on several GPUs: the first computes where the engine's loop runs, each
//! other on a thread of its own that does what the first one does.
//!
//! A queue of the driver's is bounded, and a kernel that adds up what all ranks have waits for the
//! others: one thread that filled the queues one after the other could wait forever.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use kernels::cuda::{Card, Device};
use kernels::ops::collective::{Collective, CollectiveSizes};

use super::rank::{Rank, Seat};
use super::shard::Shard;
use super::sizes::choosers_max;
use super::{CudaOptions, Dummy};
use crate::backend::BackendError;
use crate::batch::plan::{StepChoices, StepPlan};

/// Orders on their way to a rank: a step ahead, and what collects the one before.
const ORDERS_MAX: usize = 4;

/// Opens the GPUs and connects them if there are several.
pub(super) fn seats(sizes: Dummy<'_>, options: &CudaOptions) -> Result<Vec<Seat>, BackendError> {
    let CudaOptions { cards, cache, .. } = options;
    let open = |card: &Card| {
        let mut device = Device::open(card, cache.as_deref())?;
        // With two ranks on a card, what is let in early could take the place of what it waits for.
        device.set_overlap(!options.shares_a_card());
        Ok(Arc::new(device))
    };
    let devices: Vec<Arc<Device>> = cards.iter().map(open).collect::<Result<_, BackendError>>()?;
    let count = devices.len();
    let mut ways: Vec<Option<Collective>> = Vec::new();
    if 1 < count {
        let all = Collective::connect(&devices, collective_sizes(sizes, options, count))?;
        ways.extend(all.into_iter().map(Some));
    }
    ways.resize_with(count, || None);
    let seats = devices.into_iter().zip(Shard::all(count)).zip(ways);
    Ok(seats.map(|((device, shard), ranks)| Seat { device, shard, ranks }).collect())
}

fn collective_sizes(sizes: Dummy<'_>, options: &CudaOptions, ranks: usize) -> CollectiveSizes {
    let widest = |vocab| Shard::all(ranks).map(|it| it.tokens(vocab).len()).max().unwrap_or(0);
    let choosers = choosers_max(options);
    let drafts = sizes.head.map_or(0, |it| options.lanes as usize * widest(it.draft_vocab));
    CollectiveSizes {
        rows: options.rows_max as usize,
        columns: sizes.model.hidden,
        choosers,
        slice: drafts.max(choosers * widest(sizes.model.vocab)),
    }
}

/// Lays all ranks out at the same time.
pub(super) fn at_once(
    seats: Vec<Seat>,
    cards: &[Card],
    lay: impl Fn(Seat) -> Result<Rank, BackendError> + Sync,
) -> Result<Vec<Rank>, BackendError> {
    let lay = &lay;
    let laid: Vec<_> = thread::scope(|scope| {
        let started: Vec<_> =
            seats.into_iter().map(|seat| scope.spawn(move || lay(seat))).collect();
        started.into_iter().map(|it| it.join().unwrap_or_else(|_| Err(gone()))).collect()
    });
    laid.into_iter().zip(cards).map(|(it, card)| it.map_err(|error| of(card, error))).collect()
}

fn of(card: &Card, error: BackendError) -> BackendError {
    BackendError { detail: format!("{card}: {}", error.detail) }
}

fn gone() -> BackendError {
    BackendError { detail: "its thread has ended".to_owned() }
}

/// What a rank is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Record all steps with drafts of these numbers. Answered.
    Record(Vec<u32>),
    Submit(Arc<StepPlan>),
    /// Answered with the choices.
    Collect,
}

type Answer = Result<StepChoices, BackendError>;

/// A rank on a thread of its own.
#[derive(Debug)]
pub(super) struct Follower {
    card: Card,
    /// There until it is dropped.
    orders: Option<SyncSender<Order>>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    pub(super) fn start(rank: Rank, card: &Card) -> Result<Self, BackendError> {
        let (orders, taken) = sync_channel(ORDERS_MAX);
        let (given, answers) = sync_channel(ORDERS_MAX);
        let thread = thread::Builder::new().name(card.to_string());
        let thread = thread.spawn(move || follow(rank, &taken, &given));
        let thread = thread.map_err(|error| BackendError { detail: error.to_string() })?;
        Ok(Self { card: card.clone(), orders: Some(orders), answers, thread: Some(thread) })
    }

    pub(super) fn order(&self, order: Order) -> Result<(), BackendError> {
        let sent = self.orders.as_ref().is_some_and(|it| it.send(order).is_ok());
        // One that has ended has said why.
        if sent { Ok(()) } else { Err(self.reason().unwrap_or_else(|| of(&self.card, gone()))) }
    }

    /// Waits for its answer.
    fn answer(&self) -> Answer {
        self.answers.recv().unwrap_or_else(|_| Err(gone())).map_err(|error| of(&self.card, error))
    }

    /// Why it failed, if it has said so by now.
    fn reason(&self) -> Option<BackendError> {
        let mut said = self.answers.try_iter();
        said.find_map(Result::err).map(|error| of(&self.card, error))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            drop(thread.join());
        }
    }
}

/// Ends when nobody gives orders any longer, and after a failure.
fn follow(mut rank: Rank, orders: &Receiver<Order>, answers: &SyncSender<Answer>) {
    for order in orders {
        let mut choices = StepChoices::default();
        let done = match order {
            Order::Record(depths) => rank.record_all(&depths),
            Order::Submit(plan) => match rank.submit(&plan) {
                Ok(()) => continue,
                failed => failed,
            },
            Order::Collect => rank.collect(&mut choices),
        };
        let failed = done.is_err();
        if answers.send(done.map(|()| choices)).is_err() || failed {
            return;
        }
    }
}

/// `own`, once every follower has answered, and as `agrees` wants it.
pub(super) fn agree(
    own: Result<(), BackendError>,
    followers: &[Follower],
    agrees: impl Fn(&StepChoices) -> bool,
) -> Result<(), BackendError> {
    own.map_err(|error| with_reasons(error, followers))?;
    for follower in followers {
        if !agrees(&follower.answer()?) {
            let detail = "it has other choices than the first GPU".to_owned();
            return Err(of(&follower.card, BackendError { detail }));
        }
    }
    Ok(())
}

/// A GPU that waits for another in vain fails too: the other's reason is the better one.
pub(super) fn with_reasons(error: BackendError, followers: &[Follower]) -> BackendError {
    let reasons = followers.iter().filter_map(Follower::reason);
    let details: Vec<String> = reasons.chain([error]).map(|it| it.detail).collect();
    BackendError { detail: details.join("; ") }
}
