//! Typed memory of a GPU, allocated once and never grown.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use cudarc::driver::{CudaSlice, DevicePtr, sys};

use super::{Device, DeviceError, Shared};

/// `len` values of `T` on the device.
pub struct Buffer<T> {
    memory: Memory,
    address: u64,
    len: usize,
    of: PhantomData<T>,
}

/// Bytes of this buffer alone, or a part of what is shared.
struct Memory {
    /// There until it is dropped.
    bytes: Option<CudaSlice<u8>>,
    shared: Option<Arc<Shared>>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take_if(|_| self.shared.is_some()) {
            // It is freed with all of what is shared.
            bytes.leak();
        }
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<T: Pod + Zeroable> Buffer<T> {
    /// Values that stand in shared memory.
    pub(super) fn over(bytes: CudaSlice<u8>, shared: Arc<Shared>, len: usize) -> Self {
        Self::on(bytes, Some(shared), len)
    }

    fn on(bytes: CudaSlice<u8>, shared: Option<Arc<Shared>>, len: usize) -> Self {
        let (address, _) = bytes.device_ptr(bytes.stream());
        let memory = Memory { bytes: Some(bytes), shared };
        Self { memory, address, len, of: PhantomData }
    }

    fn slice(&self) -> &CudaSlice<u8> {
        self.memory.bytes.as_ref().expect("it is there until it is dropped")
    }

    fn slice_mut(&mut self) -> &mut CudaSlice<u8> {
        self.memory.bytes.as_mut().expect("it is there until it is dropped")
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// Where it begins, for a kernel that reads it.
    pub fn read(&self) -> u64 {
        self.address
    }

    /// Where it begins, for a kernel that writes it.
    pub fn write(&mut self) -> u64 {
        self.address
    }

    pub(super) fn byte_range(&self, range: &Range<usize>) -> Range<usize> {
        assert!(range.start <= range.end && range.end <= self.len, "beyond the buffer");
        range.start * size_of::<T>()..range.end * size_of::<T>()
    }
}

impl Device {
    /// Memory of `len` zeros.
    pub fn zeros<T: Pod + Zeroable>(&self, len: usize) -> Result<Buffer<T>, DeviceError> {
        let size = len.max(1) * size_of::<T>();
        let bytes = self.queues.main.alloc_zeros::<u8>(size).map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                DeviceError::OutOfMemory { bytes: size as u64 }
            }
            _ => error.into(),
        })?;
        Ok(Buffer::on(bytes, None, len))
    }

    /// A copy of `values` on the device.
    pub fn upload<T: Pod + Zeroable>(&self, values: &[T]) -> Result<Buffer<T>, DeviceError> {
        let mut buffer = self.zeros(values.len())?;
        self.write(&mut buffer, 0, values)?;
        Ok(buffer)
    }

    /// Copies `values` into the buffer from place `at` on.
    pub fn write<T: Pod + Zeroable>(
        &self,
        buffer: &mut Buffer<T>,
        at: usize,
        values: &[T],
    ) -> Result<(), DeviceError> {
        let range = buffer.byte_range(&(at..at + values.len()));
        if !values.is_empty() {
            let mut view = buffer.slice_mut().slice_mut(range);
            self.queues.main.memcpy_htod(bytemuck::cast_slice::<T, u8>(values), &mut view)?;
        }
        Ok(())
    }

    /// Makes all of it zeros.
    pub(crate) fn clear<T: Pod + Zeroable>(
        &self,
        buffer: &mut Buffer<T>,
    ) -> Result<(), DeviceError> {
        Ok(self.queues.main.memset_zeros(buffer.slice_mut())?)
    }

    /// Copies all of `from` to the start of `to`.
    pub fn copy<T: Pod + Zeroable>(
        &self,
        from: &Buffer<T>,
        to: &mut Buffer<T>,
    ) -> Result<(), DeviceError> {
        let range = to.byte_range(&(0..from.len()));
        let source = from.slice().slice(from.byte_range(&(0..from.len())));
        Ok(self.queues.main.memcpy_dtod(&source, &mut to.slice_mut().slice_mut(range))?)
    }

    /// Waits for what was queued and copies part of a buffer to the host.
    pub fn read<T: Pod + Zeroable>(
        &self,
        buffer: &Buffer<T>,
        range: Range<usize>,
    ) -> Result<Vec<T>, DeviceError> {
        let mut values = vec![T::zeroed(); range.len()];
        if !range.is_empty() {
            let view = buffer.slice().slice(buffer.byte_range(&range));
            self.queues.main.memcpy_dtoh(&view, bytemuck::cast_slice_mut::<T, u8>(&mut values))?;
        }
        self.synchronize()?;
        Ok(values)
    }
}
