//! Runs the requests of HTTP/2 connections, and ends those whose client takes nothing.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;
use tokio::time::Sleep;

use crate::clock;
use crate::serve::answer::Body;

/// What is handed over at once: a piece counts as taken when all of it has gone, and a client that
/// is slow is not to look like one that stands.
const PIECE_BYTES_MAX: usize = 16 << 10;

tokio::task_local! {
    /// Of the request that this task runs.
    static HANDOVER: Cell<Handover>;
}

/// Where the last piece of an answer is.
#[derive(Clone, Copy, Debug, Default)]
struct Handover {
    /// When the HTTP library was given the piece, if it has not asked for the next one: it does
    /// once the client has room for this one.
    lies_since: Option<Instant>,
    /// When the answer is given up.
    until: Option<Instant>,
}

/// The answer of this task's request is given up at `until`.
pub fn bind(until: Instant) {
    change(|it| Handover { until: Some(until), ..it });
}

fn change(change: impl FnOnce(Handover) -> Handover) {
    // Without a place for it this is no request over HTTP/2.
    HANDOVER.try_with(|it| it.set(change(it.get()))).unwrap_or(());
}

/// Runs each request of HTTP/2 connections as a task.
///
/// While a client has no room for a piece of an answer, the HTTP library does not ask for the
/// next, so the answer cannot look at any limit itself: its task does. To drop the request resets
/// its stream and lets go of all that it holds; the other streams of the connection go on. Over
/// HTTP/1 the socket itself sees that a client takes nothing.
#[derive(Clone, Debug)]
pub struct Streams {
    /// Time for a client to make room for a piece.
    pub unheard_max: Duration,
}

/// An answer's body that tells its task where its pieces are.
#[derive(Debug)]
pub struct Watched {
    body: Body,
    /// Came from the body, and is still to be handed over.
    rest: Bytes,
}

impl Watched {
    pub fn new(body: Body) -> Self {
        Self { body, rest: Bytes::new() }
    }

    /// As much of a frame as goes at once; keeps the rest.
    fn piece(&mut self, mut frame: Frame<Bytes>) -> Frame<Bytes> {
        if let Some(data) = frame.data_mut() {
            self.rest = data.split_off(data.len().min(PIECE_BYTES_MAX));
        }
        frame
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, request: F) {
        let run = until_late(request, self.unheard_max);
        TokioExecutor::new().execute(HANDOVER.scope(Cell::default(), run));
    }
}

async fn until_late(request: impl Future<Output = ()>, unheard_max: Duration) {
    let mut request = pin!(request);
    let mut sleep = None;
    let ended = poll_fn(|cx| match request.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => poll_late(&mut sleep, unheard_max, cx),
    });
    ended.await;
}

/// Has a piece of the answer lain for too long? If one lies, makes sure of being woken then.
fn poll_late(
    sleep: &mut Option<Pin<Box<Sleep>>>,
    unheard_max: Duration,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let Handover { lies_since: Some(since), until } = HANDOVER.with(Cell::get) else {
        return Poll::Pending;
    };
    let unheard = since + unheard_max;
    let late = tokio::time::Instant::from_std(until.map_or(unheard, |it| it.min(unheard)));
    let sleep = sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(late)));
    if sleep.deadline() != late {
        sleep.as_mut().reset(late);
    }
    sleep.as_mut().poll(cx)
}

impl hyper::body::Body for Watched {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let polled = if self.rest.is_empty() {
            Pin::new(&mut self.body).poll_frame(cx)
        } else {
            Poll::Ready(Some(Ok(Frame::data(mem::take(&mut self.rest)))))
        };
        let polled = polled.map_ok(|frame| self.piece(frame));
        let lies_since = matches!(polled, Poll::Ready(Some(Ok(_)))).then(clock::now);
        change(|it| Handover { lies_since, ..it });
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let of_body = self.body.size_hint();
        let mut whole = SizeHint::new();
        whole.set_lower(of_body.lower().saturating_add(rest));
        if let Some(upper) = of_body.upper() {
            whole.set_upper(upper.saturating_add(rest));
        }
        whole
    }
}

#[cfg(test)]
mod tests;
