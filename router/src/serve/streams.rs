//! Runs the requests of HTTP/2 connections, and ends those whose client leaves its answer lying.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::Executor;
use tokio::time::Sleep;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::outcome::Outcome;

/// The largest frame that every client over HTTP/2 takes.
const PIECE_BYTES_MAX: usize = 16 << 10;

tokio::task_local! {
    /// Of the request that this task runs.
    static HANDOVER: Cell<Handover>;
}

/// Where the last piece of an answer is.
#[derive(Clone, Copy, Debug, Default)]
enum Handover {
    /// On its way: the HTTP library has asked for the next one.
    #[default]
    Taken,
    /// With the HTTP library, which asks for no other until the client has room for this one.
    Lying { since: Instant, total_until: Option<Instant> },
    /// It lay there for too long.
    Late(Outcome),
}

/// The next piece of the answer is asked for. Over HTTP/1 this and what follows does nothing:
/// there the socket itself sees that a client takes nothing.
pub(crate) fn asked() {
    set(Handover::Taken);
}

/// A piece of the answer is handed over, of a request that may last until `total_until`.
pub(crate) fn handed_over(total_until: Option<Instant>, now: Instant) {
    set(Handover::Lying { since: now, total_until });
}

/// How many bytes of an answer may be handed over at once. Over HTTP/2 few, since a piece counts
/// as taken when all of it has gone: a client that is slow is not to look like one that stands.
pub(crate) fn piece_bytes_max() -> usize {
    HANDOVER.try_with(|_| PIECE_BYTES_MAX).unwrap_or(usize::MAX)
}

/// How the request of this task ended, if its answer was left lying for too long.
pub(crate) fn late() -> Option<Outcome> {
    match HANDOVER.try_with(Cell::get) {
        Ok(Handover::Late(outcome)) => Some(outcome),
        _ => None,
    }
}

fn set(handover: Handover) {
    // Without a place for it this is no request over HTTP/2.
    HANDOVER.try_with(|it| it.set(handover)).unwrap_or(());
}

/// Runs each request of HTTP/2 connections as a task, in the set that shutdown joins.
///
/// While a client has no room for a piece of an answer, the HTTP library does not ask for the
/// next, so the answer cannot look at any limit itself: its task does. To drop the request resets
/// its stream and lets go of the endpoint; the other streams of the connection go on.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    pub(super) tasks: TaskTracker,
    pub(super) send_stall: Option<Duration>,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let run = until_late(stream, self.send_stall);
        drop(self.tasks.spawn(HANDOVER.scope(Cell::default(), run)));
    }
}

async fn until_late(stream: impl Future<Output = ()>, send_stall: Option<Duration>) {
    let mut stream = pin!(stream);
    let mut sleep = None;
    let ended = poll_fn(|cx| match stream.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => poll_late(&mut sleep, send_stall, cx),
    });
    ended.await;
}

/// Is a piece of the answer late? If one may become so, makes sure of being woken then.
fn poll_late(
    sleep: &mut Option<Pin<Box<Sleep>>>,
    send_stall: Option<Duration>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let Handover::Lying { since, total_until } = HANDOVER.with(Cell::get) else {
        return Poll::Pending;
    };
    let stall_until = send_stall.map(|it| since + it);
    let Some(until) = [stall_until, total_until].into_iter().flatten().min() else {
        return Poll::Pending;
    };
    let sleep = sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until.into())));
    if tokio::time::Instant::from_std(until) < sleep.deadline() {
        sleep.as_mut().reset(until.into());
    }
    while sleep.as_mut().poll(cx).is_ready() {
        if until <= clock::now() {
            let is_total = total_until == Some(until);
            let outcome = if is_total { Outcome::TotalTimeout } else { Outcome::ClientStalled };
            set(Handover::Late(outcome));
            return Poll::Ready(());
        }
        sleep.as_mut().reset(until.into());
    }
    Poll::Pending
}
