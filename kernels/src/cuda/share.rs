//! Memory of a card that others reach: processes that map it, and how one hands it to another; and
//! other cards.
//!
//! It lives as long as any process maps it or holds its descriptor: one that ends, in whatever
//! way, takes nothing from the others (CUDA driver API, virtual memory management).

#![expect(unsafe_code, reason = "the fence: shareable memory and passing its descriptors")]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::{fmt, io, mem, ptr};

use bytemuck::{Pod, Zeroable};
use cudarc::driver::{CudaContext, sys};

use super::{Buffer, Device, DeviceError};

const KIND: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// A piece of shared memory, mapped here.
pub struct Shared {
    address: u64,
    bytes: usize,
    context: Arc<CudaContext>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Shared {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it begins, for kernels of every card that reaches it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.context.record_err(self.context.synchronize());
        // SAFETY: mapped by `map` with these sizes; nothing that was queued reads it any longer,
        // and no buffer outlives it.
        unsafe {
            self.context.record_err(sys::cuMemUnmap(self.address, self.bytes).result());
            self.context.record_err(sys::cuMemAddressFree(self.address, self.bytes).result());
        }
    }
}

/// The driver's handle of memory, given back when dropped: a mapping keeps the memory.
struct Handle(sys::CUmemGenericAllocationHandle);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it was created or imported here and is released once. That can only fail for a
        // handle that is none.
        let _ = unsafe { sys::cuMemRelease(self.0) };
    }
}

impl Device {
    /// The identifier of the card or of the part of one, equal in every process.
    pub fn identifier(&self) -> Result<String, DeviceError> {
        let id = self.context.uuid()?;
        Ok(id.bytes.iter().map(|it| format!("{:02x}", it.cast_unsigned())).collect())
    }

    fn location(&self) -> sys::CUmemLocation {
        let id = i32::try_from(self.context.ordinal()).expect("counted by the driver");
        sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id }
    }

    fn property(&self, kind: sys::CUmemAllocationHandleType) -> sys::CUmemAllocationProp {
        sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: kind,
            location: self.location(),
            win32HandleMetaData: ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        }
    }

    /// At least `bytes` of memory that is not mapped yet.
    fn create(
        &self,
        bytes: usize,
        kind: sys::CUmemAllocationHandleType,
    ) -> Result<(Handle, usize), DeviceError> {
        self.context.bind_to_thread()?;
        let property = self.property(kind);
        let (mut unit, mut handle) = (0, 0);
        let smallest = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the pointers are to locals.
        unsafe { sys::cuMemGetAllocationGranularity(&raw mut unit, &raw const property, smallest) }
            .result()?;
        let bytes = bytes.max(1).next_multiple_of(unit);
        // SAFETY: the pointers are to locals.
        let created = unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const property, 0) };
        if created == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(DeviceError::OutOfMemory { bytes: bytes as u64 });
        }
        created.result()?;
        Ok((Handle(handle), bytes))
    }

    /// At least `bytes` of memory, and the descriptor with which another process maps it.
    pub fn share(&self, bytes: usize) -> Result<(Shared, OwnedFd), DeviceError> {
        let (handle, bytes) = self.create(bytes, KIND)?;
        let mut fd: c_int = -1;
        // SAFETY: this kind of handle is written as a C integer, which is a descriptor of our own.
        let fd = unsafe {
            sys::cuMemExportToShareableHandle((&raw mut fd).cast(), handle.0, KIND, 0).result()?;
            OwnedFd::from_raw_fd(fd)
        };
        Ok((self.map(&handle, bytes, &[self.location()])?, fd))
    }

    /// At least `bytes` of memory that kernels on all of `devices`, this one among them, read and
    /// write.
    pub fn share_with(&self, bytes: usize, devices: &[Arc<Self>]) -> Result<Shared, DeviceError> {
        for device in devices {
            let [from, to] = [device, self].map(|it| it.context.cu_device());
            let mut reaches = c_int::from(from == to);
            if from != to {
                // SAFETY: the pointer is to a local.
                unsafe { sys::cuDeviceCanAccessPeer(&raw mut reaches, from, to) }.result()?;
            }
            if reaches == 0 {
                let [from, to] = [device, self].map(|it| it.context.ordinal());
                return Err(DeviceError::NoPeer { from, to });
            }
        }
        let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        let (handle, bytes) = self.create(bytes, kind)?;
        let mut locations: Vec<_> = devices.iter().map(|it| it.location()).collect();
        locations.sort_by_key(|it| it.id);
        locations.dedup_by_key(|it| it.id);
        self.map(&handle, bytes, &locations)
    }

    /// Maps the memory of `bytes` that another process shared on the same card.
    pub fn open_shared(&self, fd: BorrowedFd<'_>, bytes: usize) -> Result<Shared, DeviceError> {
        self.context.bind_to_thread()?;
        let mut handle = 0;
        // The driver takes this kind of handle as a number in place of an address.
        let at: *mut c_void = ptr::without_provenance_mut(fd.as_raw_fd().unsigned_abs() as usize);
        // SAFETY: the descriptor is open; the driver tells whether it is of its memory.
        unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, at, KIND) }.result()?;
        self.map(&Handle(handle), bytes, &[self.location()])
    }

    /// Maps memory for the cards at `locations`.
    fn map(
        &self,
        handle: &Handle,
        bytes: usize,
        locations: &[sys::CUmemLocation],
    ) -> Result<Shared, DeviceError> {
        let mut address = 0;
        // SAFETY: the pointer is to a local.
        unsafe { sys::cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0) }.result()?;
        // SAFETY: the range was just reserved; a size that is not the memory's is refused.
        let mapped = unsafe { sys::cuMemMap(address, bytes, 0, handle.0, 0) };
        if let Err(error) = mapped.result() {
            // SAFETY: reserved above, with nothing in it.
            self.context.record_err(unsafe { sys::cuMemAddressFree(address, bytes) }.result());
            return Err(error.into());
        }
        let shared = Shared { address, bytes, context: Arc::clone(&self.context) };
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access: Vec<_> =
            locations.iter().map(|&location| sys::CUmemAccessDesc { location, flags }).collect();
        // SAFETY: mapped above; there are so many descriptions.
        unsafe { sys::cuMemSetAccess(address, bytes, access.as_ptr(), access.len()) }.result()?;
        Ok(shared)
    }

    /// `len` values of shared memory, from byte `at` on.
    pub fn within<T: Pod + Zeroable>(
        &self,
        shared: &Arc<Shared>,
        at: usize,
        len: usize,
    ) -> Buffer<T> {
        let size = len * size_of::<T>();
        assert!(at.is_multiple_of(256) && at + size <= shared.bytes, "the values are within it");
        // SAFETY: the memory is mapped, and stays as long as the buffer holds `shared`; the buffer
        // does not free it.
        let bytes =
            unsafe { self.queues.main.upgrade_device_ptr(shared.address + at as u64, size) };
        Buffer::over(bytes, Arc::clone(shared), len)
    }
}

/// Room for one descriptor beside a message, aligned as its header wants it.
type Control = [u64; 8];

/// Bytes of a descriptor.
const DESCRIPTOR: u32 = c_int::BITS / 8;

/// Calls `with` with a message of one byte and room for one descriptor.
fn message<T>(byte: &mut u8, with: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let mut control: Control = [0; 8];
    let mut part = libc::iovec { iov_base: ptr::from_mut(byte).cast(), iov_len: 1 };
    // SAFETY: the structure is plain numbers and pointers that may be null.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    // SAFETY: it only computes a length.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(DESCRIPTOR) } as usize;
    with(&mut message)
}

/// Hands a descriptor to who reads from the other end.
pub fn send_descriptor(stream: &UnixStream, fd: BorrowedFd<'_>) -> io::Result<()> {
    let sent = message(&mut 0, |message| {
        // SAFETY: the control part has room for one header and one descriptor.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(DESCRIPTOR) as usize;
            ptr::write_unaligned(libc::CMSG_DATA(header).cast(), fd.as_raw_fd());
            libc::sendmsg(stream.as_raw_fd(), message, libc::MSG_NOSIGNAL)
        }
    });
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes the descriptor that comes next.
pub fn receive_descriptor(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = 0;
    message(&mut byte, |message| {
        // SAFETY: the message's parts are locals of the caller.
        let got = unsafe { libc::recvmsg(stream.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) };
        match got {
            1 => {}
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => return Err(io::Error::last_os_error()),
        }
        // SAFETY: the kernel wrote the headers that are walked; a descriptor in one is ours.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            let is_right = !header.is_null()
                && (*header).cmsg_level == libc::SOL_SOCKET
                && (*header).cmsg_type == libc::SCM_RIGHTS;
            if !is_right {
                let why = "a message without a descriptor";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            Ok(OwnedFd::from_raw_fd(ptr::read_unaligned(libc::CMSG_DATA(header).cast())))
        }
    })
}

#[cfg(test)]
mod tests;
