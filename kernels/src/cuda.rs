//! A GPU: the gate before it, its memory, its kernels, and what can be queued on it.

mod beside;
mod buffer;
mod clock;
mod launch;
mod pinned;
mod share;
mod sources;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, DriverError, sys};

use beside::Queues;
pub use buffer::Buffer;
pub use clock::Clock;
pub use launch::{Arg, Graph, Grid};
pub use pinned::{Inbox, Mapped, Outbox};
pub use share::{Shared, receive_descriptor, send_descriptor};
pub use sources::version;

/// What the kernels need: CUDA 13.0.
const DRIVER_MIN: i32 = 13_000;

/// One GPU with all kernels loaded and one queue, on which everything happens in order but for what
/// is queued [beside](Self::beside) it.
pub struct Device {
    context: Arc<CudaContext>,
    queues: Queues,
    functions: HashMap<&'static str, CudaFunction>,
    facts: Facts,
    /// Whether a kernel may start while the one before it ends.
    overlaps: bool,
}

/// Which GPU, of those that the process may see.
#[derive(Clone, Debug, PartialEq)]
pub enum Card {
    Number(usize),
    /// The identifier of a card (`GPU-...`) or of a part of one (`MIG-...`).
    Named(String),
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "cuda:{number}"),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// What is known of a GPU.
#[derive(Clone, Debug)]
pub struct Facts {
    pub name: String,
    pub capability: (u32, u32),
    pub multiprocessors: u32,
    pub memory_bytes: u64,
    /// Shared memory that a block can get.
    pub shared_bytes_max: usize,
    /// Whether the kernels were compiled when the program was built.
    pub compiled_ahead: bool,
}

impl Facts {
    /// Whether the card has the tensor-core instructions of Hopper.
    pub fn is_hopper(&self) -> bool {
        self.capability == (9, 0)
    }
}

impl Device {
    /// Opens a GPU. Kernels that have to be compiled first are kept in `cache`.
    pub fn open(card: &Card, cache: Option<&Path>) -> Result<Self, DeviceError> {
        let context = launch::open(card, DRIVER_MIN)?;
        let attribute = |it| context.attribute(it).map(i32::cast_unsigned);
        let shared_max = attribute(
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?;
        let (major, minor) = context.compute_capability()?;
        let capability = (major.cast_unsigned(), minor.cast_unsigned());
        if capability < (8, 0) {
            let detail = format!("it has compute capability {major}.{minor}, kernels need 8.0");
            return Err(DeviceError::NoDevice(detail));
        }
        let facts = Facts {
            name: context.name()?,
            capability,
            multiprocessors: attribute(
                sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )?,
            memory_bytes: context.total_mem()? as u64,
            shared_bytes_max: shared_max as usize,
            compiled_ahead: sources::has_images(),
        };
        let mut functions = HashMap::new();
        for source in sources::SOURCES {
            let module = context.load_module(source.load(capability, cache)?)?;
            for &name in source.kernels {
                let function = module.load_function(name)?;
                allow_shared(&function, shared_max)?;
                functions.insert(name, function);
            }
        }
        let queues = Queues::new(&context)?;
        Ok(Self { context, queues, functions, facts, overlaps: (9, 0) <= capability })
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether kernels may start while the ones before them end: on where the card can do it.
    pub fn set_overlap(&mut self, overlaps: bool) {
        self.overlaps = overlaps && (9, 0) <= self.facts.capability;
    }

    /// Bytes that nobody has taken, of the whole card.
    pub fn memory_free(&self) -> Result<u64, DeviceError> {
        Ok(self.context.mem_get_info()?.0 as u64)
    }

    /// Waits for everything that was queued.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.queues.main.synchronize()?;
        // What failed where no error could be returned.
        self.context.check_err()?;
        Ok(())
    }
}

/// Lets a kernel have all the shared memory that a block can.
fn allow_shared(function: &CudaFunction, shared_max: u32) -> Result<(), DeviceError> {
    let own = function.shared_size_bytes()?;
    let rest = shared_max.cast_signed() - own;
    function.set_attribute(
        sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        rest,
    )?;
    Ok(())
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("facts", &self.facts).finish_non_exhaustive()
    }
}

/// Why a GPU cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceError {
    /// No driver is installed.
    NoDriver,
    /// The driver answered, but offers nothing usable.
    NoDevice(String),
    /// The driver is older than the kernels need; versions as the driver counts them.
    DriverTooOld { have: i32, need: i32 },
    /// No image for this card was made ahead, and the run-time compiler is missing.
    NoKernels { target: String },
    /// A card cannot read another's memory; their numbers.
    NoPeer { from: usize, to: usize },
    /// The memory asked for is not there.
    OutOfMemory { bytes: u64 },
    /// A call failed: the device is not to be used any further.
    Failed(String),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => write!(
                f,
                "no CUDA driver: libcuda.so.1 was not found (is the NVIDIA driver installed?)"
            ),
            Self::NoDevice(detail) => {
                write!(f, "there is a CUDA driver but no usable GPU: {detail}")
            }
            Self::DriverTooOld { have, need } => write!(
                f,
                "the CUDA driver speaks {}.{}, the kernels need {}.{}",
                have / 1000,
                have % 1000 / 10,
                need / 1000,
                need % 1000 / 10
            ),
            Self::NoKernels { target } => write!(
                f,
                "this program has no kernels for {target}, and libnvrtc, which could compile \
                 them now, was not found"
            ),
            Self::NoPeer { from, to } => write!(
                f,
                "cuda:{from} cannot reach the memory of cuda:{to}: GPUs that compute together need \
                 peer access, over NVLink or PCIe"
            ),
            Self::OutOfMemory { bytes } => {
                write!(f, "the GPU has no {} MiB left", bytes.div_ceil(1 << 20))
            }
            Self::Failed(detail) => write!(f, "the GPU failed: {detail}"),
        }
    }
}

impl std::error::Error for DeviceError {}

impl From<DriverError> for DeviceError {
    fn from(error: DriverError) -> Self {
        Self::Failed(format!("{:?}", error.0))
    }
}

#[cfg(test)]
mod tests;
