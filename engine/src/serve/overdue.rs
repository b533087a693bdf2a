//! Streams whose clients stopped reading: given up when their time is over.
//!
//! An answer's body is asked for more only while its client takes what was sent, so nothing within
//! the body can notice that its time has come.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::Stream;

use crate::clock;
use crate::serve::streams;

/// How often streams are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The events of an answer.
pub type Events = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Something that can be given up.
trait Slot: Send + Sync {
    fn empty(&self);
}

impl<T: Send> Slot for Mutex<Option<T>> {
    fn empty(&self) {
        // What panicked while it was asked for more ended with its connection.
        let Ok(mut slot) = self.lock() else { return };
        let given_up = slot.take();
        drop(slot);
        drop(given_up);
    }
}

/// All streams, by when they are given up. Clones share them.
#[derive(Clone, Default)]
pub struct Overdue(Arc<Mutex<Streams>>);

#[derive(Default)]
struct Streams {
    slots: BTreeMap<(Instant, u64), Weak<dyn Slot>>,
    bound: u64,
}

/// A stream with what is held as long as it is there.
pub struct Timed<T> {
    overdue: Overdue,
    key: (Instant, u64),
    slot: Arc<Mutex<Option<(Events, T)>>>,
}

impl fmt::Debug for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overdue").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Timed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timed").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Overdue {
    /// `events`, to be given up together with `held` at `until`.
    pub fn bind<T: Send + 'static>(self, events: Events, held: T, until: Instant) -> Timed<T> {
        let slot = Arc::new(Mutex::new(Some((events, held))));
        let mut streams = self.0.lock().expect("nothing panics while it is held");
        streams.bound += 1;
        let key = (until, streams.bound);
        let weak: Weak<dyn Slot> = Arc::downgrade(&slot) as Weak<dyn Slot>;
        streams.slots.insert(key, weak);
        drop(streams);
        Timed { overdue: self, key, slot }
    }

    /// Gives up one stream after the other as their times come; never ends.
    pub async fn watch(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            self.give_up(clock::now());
        }
    }

    fn give_up(&self, now: Instant) {
        let mut streams = self.0.lock().expect("nothing panics while it is held");
        let later = streams.slots.split_off(&(now, 0));
        let over = std::mem::replace(&mut streams.slots, later);
        drop(streams);
        for slot in over.into_values().filter_map(|it| it.upgrade()) {
            slot.empty();
        }
    }
}

impl<T: Unpin> Stream for Timed<T> {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        streams::bind(self.key.0);
        let mut slot = self.slot.lock().expect("a stream that panicked is not asked again");
        match &mut *slot {
            Some((events, _)) => events.as_mut().poll_next(cx),
            None => Poll::Ready(Some(Err(io::Error::other("nobody read it in time")))),
        }
    }
}

impl<T> Drop for Timed<T> {
    fn drop(&mut self) {
        let mut streams = self.overdue.0.lock().expect("nothing panics while it is held");
        streams.slots.remove(&self.key);
    }
}
