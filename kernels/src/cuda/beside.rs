//! Work beside the queue: it forks off, takes what the queue leaves idle, and joins again; also in
//! what is recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};

use super::{Device, DeviceError};

/// The device's queues.
pub(super) struct Queues {
    pub(super) main: Arc<CudaStream>,
    beside: Arc<CudaStream>,
    forked: CudaEvent,
    joined: CudaEvent,
    /// Whether what is launched goes beside the queue.
    is_beside: AtomicBool,
    /// Whether the next kernel has to wait for all before it as a whole: it is the first after a
    /// fork or a join.
    is_first: AtomicBool,
}

impl Queues {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, DeviceError> {
        let (least, greatest) = result::stream::get_priority_range()?;
        Ok(Self {
            // The null stream cannot be captured.
            main: context.new_stream_with_priority(greatest)?,
            beside: context.new_stream_with_priority(least)?,
            forked: context.new_event(None)?,
            joined: context.new_event(None)?,
            is_beside: AtomicBool::new(false),
            is_first: AtomicBool::new(false),
        })
    }

    /// Where the next kernel goes, and whether it may start while the one before it ends.
    pub(super) fn next(&self) -> (&CudaStream, bool) {
        let is_beside = self.is_beside.load(Ordering::Relaxed);
        let is_first = self.is_first.swap(false, Ordering::Relaxed);
        (if is_beside { &self.beside } else { &self.main }, !is_first)
    }
}

impl Device {
    /// Queues what `queue` launches beside everything that is launched between now and
    /// [`Self::join`]; it begins when all before is over. Launches only, and none of them may share
    /// what it writes with those on the queue.
    pub fn beside<E: From<DeviceError>>(
        &self,
        queue: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let fork = || -> Result<(), DeviceError> {
            self.queues.forked.record(&self.queues.main)?;
            Ok(self.queues.beside.wait(&self.queues.forked)?)
        };
        fork()?;
        self.queues.is_beside.store(true, Ordering::Relaxed);
        self.queues.is_first.store(true, Ordering::Relaxed);
        let queued = queue();
        self.queues.is_beside.store(false, Ordering::Relaxed);
        self.queues.is_first.store(false, Ordering::Relaxed);
        queued
    }

    /// What is queued from now on begins when all that was queued beside is over.
    pub fn join(&self) -> Result<(), DeviceError> {
        self.queues.joined.record(&self.queues.beside)?;
        self.queues.main.wait(&self.queues.joined)?;
        self.queues.is_first.store(true, Ordering::Relaxed);
        Ok(())
    }
}
