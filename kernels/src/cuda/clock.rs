//! Moments in the device's queue, and the time between them.

use std::fmt;

use cudarc::driver::{CudaEvent, sys};

use super::{Device, DeviceError};

/// A moment in the device's queue.
pub struct Clock {
    event: CudaEvent,
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").finish_non_exhaustive()
    }
}

impl Clock {
    /// Microseconds from an earlier moment to this one; waits for it.
    pub fn since_us(&self, earlier: &Self) -> Result<f32, DeviceError> {
        Ok(earlier.event.elapsed_ms(&self.event)? * 1000.0)
    }
}

impl Device {
    pub fn clock(&self) -> Result<Clock, DeviceError> {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        Ok(Clock { event: self.queues.main.record_event(flags)? })
    }
}
