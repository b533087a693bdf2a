//! The fence: page-locked memory of the host, which is copied to and from the device, or which
//! kernels read and write where it is.

#![expect(unsafe_code, reason = "the fence: page-locked memory")]

use std::fmt;
use std::ptr;
use std::slice;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use cudarc::driver::{CudaEvent, CudaStream, result};

use super::{Buffer, Device, DeviceError};

/// Page-locked memory and the event after the last that reads or writes it.
struct Pinned<T> {
    at: *mut T,
    len: usize,
    used: CudaEvent,
    stream: Arc<CudaStream>,
}

// SAFETY: the memory is owned, and every access goes through `&mut self` or waits for the device.
unsafe impl<T: Send> Send for Pinned<T> {}

impl<T> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<T: Pod + Zeroable> Pinned<T> {
    fn new(device: &Device, len: usize) -> Result<Self, DeviceError> {
        device.context.bind_to_thread()?;
        let used = device.context.new_event(None)?;
        // SAFETY: the flags ask for ordinary, cached page-locked memory.
        let at: *mut T = unsafe { result::malloc_host(len.max(1) * size_of::<T>(), 0)? }.cast();
        // SAFETY: the memory was just allocated for `len` values, and zeros are values.
        unsafe { ptr::write_bytes(at, 0, len) };
        Ok(Self { at, len, used, stream: Arc::clone(&device.queues.main) })
    }

    /// Waits until it is free again.
    fn wait(&self) -> Result<(), DeviceError> {
        Ok(self.used.synchronize()?)
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // Errors have no one to go to here; the device's next `synchronize` reports them.
        let context = self.stream.context();
        context.record_err(self.stream.synchronize());
        context.record_err(context.bind_to_thread());
        // SAFETY: allocated by `malloc_host`, and nothing that reads or writes it is under way.
        context.record_err(unsafe { result::free_host(self.at.cast()) });
    }
}

/// Words on their way to the device: filled by the host, copied in the device's order.
#[derive(Debug)]
pub struct Inbox<T> {
    memory: Pinned<T>,
}

impl<T: Pod + Zeroable> Inbox<T> {
    pub fn new(device: &Device, len: usize) -> Result<Self, DeviceError> {
        Ok(Self { memory: Pinned::new(device, len)? })
    }

    /// Waits for the copy before, then queues a copy of `values` to the start of `to`.
    pub fn send(&mut self, to: &mut Buffer<T>, values: &[T]) -> Result<(), DeviceError> {
        assert!(values.len() <= self.memory.len && values.len() <= to.len(), "beyond the inbox");
        self.memory.wait()?;
        // SAFETY: `len` values are allocated and no copy reads them.
        let own = unsafe { slice::from_raw_parts_mut(self.memory.at, self.memory.len) };
        let own = &mut own[..values.len()];
        own.copy_from_slice(values);
        let stream = &self.memory.stream;
        stream.context().bind_to_thread()?;
        // SAFETY: source and target have the length; the source stays until `used`.
        unsafe { result::memcpy_htod_async(to.write(), own, stream.cu_stream())? };
        self.memory.used.record(stream)?;
        Ok(())
    }
}

/// Words on their way from the device.
#[derive(Debug)]
pub struct Outbox<T> {
    memory: Pinned<T>,
}

impl<T: Pod + Zeroable> Outbox<T> {
    pub fn new(device: &Device, len: usize) -> Result<Self, DeviceError> {
        Ok(Self { memory: Pinned::new(device, len)? })
    }

    /// Queues a copy of the first `len` values of `from`.
    pub fn fetch(&mut self, from: &Buffer<T>, len: usize) -> Result<(), DeviceError> {
        assert!(len <= self.memory.len && len <= from.len(), "beyond the outbox");
        self.memory.wait()?;
        let stream = &self.memory.stream;
        stream.context().bind_to_thread()?;
        // SAFETY: `len` values are allocated, and nobody reads them before `used`.
        unsafe {
            let own = slice::from_raw_parts_mut(self.memory.at, len);
            result::memcpy_dtoh_async(own, from.read(), stream.cu_stream())?;
        }
        self.memory.used.record(stream)?;
        Ok(())
    }

    /// Waits for the last fetch and gives what came.
    pub fn wait(&mut self) -> Result<&[T], DeviceError> {
        self.memory.wait()?;
        // SAFETY: `len` values are allocated and initialised, and no copy writes them.
        Ok(unsafe { slice::from_raw_parts(self.memory.at, self.memory.len) })
    }
}

/// Words that kernels read and write where they are, in the host's memory: all that is page-locked
/// is in their reach. Whoever queues such kernels says with [`Self::expect`] when they all are.
#[derive(Debug)]
pub struct Mapped<T> {
    memory: Pinned<T>,
}

impl<T: Pod + Zeroable> Mapped<T> {
    /// Memory of `len` zeros.
    pub fn new(device: &Device, len: usize) -> Result<Self, DeviceError> {
        Ok(Self { memory: Pinned::new(device, len)? })
    }

    /// Where it begins, for kernels.
    pub(crate) fn address(&self) -> u64 {
        self.memory.at.addr() as u64
    }

    /// What is queued so far is all that [`Self::wait`] waits for.
    pub fn expect(&mut self) -> Result<(), DeviceError> {
        Ok(self.memory.used.record(&self.memory.stream)?)
    }

    /// Waits for what was last expected and gives the memory, until something is queued again.
    pub fn wait(&mut self) -> Result<&mut [T], DeviceError> {
        self.memory.wait()?;
        // SAFETY: `len` values are allocated and initialised, and no kernel writes them now; one
        // that reads them may find either what was there or what is written.
        Ok(unsafe { slice::from_raw_parts_mut(self.memory.at, self.memory.len) })
    }
}
