//! The fence: what cudarc leaves unsafe. Launching kernels and the start gate.

#![expect(unsafe_code, reason = "the fence: launches and the start gate")]

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, result, sys};

use super::{Card, Device, DeviceError};

/// cudarc panics when a library is missing, so presence is asked first; then the driver's age.
pub(super) fn open(card: &Card, driver_min: i32) -> Result<Arc<CudaContext>, DeviceError> {
    // SAFETY: it only tries to open the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoDriver);
    }
    // Why there is no device comes as an ordinary error here.
    result::init().map_err(|error| DeviceError::NoDevice(format!("{:?}", error.0)))?;
    let mut have = 0;
    // SAFETY: the library is present and the pointer is to a local.
    unsafe { sys::cuDriverGetVersion(&raw mut have).result()? };
    if have < driver_min {
        return Err(DeviceError::DriverTooOld { have, need: driver_min });
    }
    let count = usize::try_from(result::device::get_count()?).unwrap_or(0);
    let ordinal = match card {
        Card::Number(number) if *number < count => *number,
        Card::Number(number) => {
            let detail = format!("{count} are visible, number {number} was asked for");
            return Err(DeviceError::NoDevice(detail));
        }
        Card::Named(name) => named(name, count)?,
    };
    let context = CudaContext::new(ordinal)?;
    // SAFETY: nothing was allocated yet; everything runs in order on one stream, or beside it
    // between a fork and a join.
    unsafe { context.disable_event_tracking() };
    Ok(context)
}

/// The number of the GPU, or of the part of one, that has this identifier.
fn named(name: &str, count: usize) -> Result<usize, DeviceError> {
    let wanted = name.trim_start_matches("MIG-").trim_start_matches("GPU-").replace('-', "");
    for ordinal in 0..count {
        let number = i32::try_from(ordinal).expect("counted by the driver");
        let id = result::device::get_uuid(result::device::get(number)?)?;
        let id: String = id.bytes.iter().map(|it| format!("{:02x}", it.cast_unsigned())).collect();
        if id.eq_ignore_ascii_case(&wanted) {
            return Ok(ordinal);
        }
    }
    let detail = format!(
        "none of the {count} visible is {name}; a part of a card is visible to a process that is \
         started with CUDA_VISIBLE_DEVICES={name}"
    );
    Err(DeviceError::NoDevice(detail))
}

/// Whether kernels can be compiled at run time.
pub(super) fn has_compiler() -> bool {
    // SAFETY: it only tries to open the library.
    unsafe { cudarc::nvrtc::sys::is_culib_present() }
}

/// One argument, in the order of the kernel's signature.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// An address of device memory, or 0.
    Address(u64),
    U32(u32),
    F32(f32),
    /// A structure that the kernel takes by value.
    Value(&'a [u8]),
}

impl<'a> Arg<'a> {
    pub fn value<T: Pod>(value: &'a T) -> Self {
        Self::Value(bytemuck::bytes_of(value))
    }

    fn pointer(&self) -> *mut c_void {
        let at: *const c_void = match self {
            Self::Address(it) => ptr::from_ref(it).cast(),
            Self::U32(it) => ptr::from_ref(it).cast(),
            Self::F32(it) => ptr::from_ref(it).cast(),
            Self::Value(bytes) => bytes.as_ptr().cast(),
        };
        at.cast_mut()
    }
}

/// Blocks in three dimensions, threads of a block, and its dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    pub blocks: (u32, u32, u32),
    pub threads: u32,
    pub shared_bytes: u32,
}

impl Grid {
    pub fn new(blocks: u32, threads: u32) -> Self {
        Self { blocks: (blocks, 1, 1), threads, shared_bytes: 0 }
    }
}

fn attribute(id: sys::CUlaunchAttributeID) -> sys::CUlaunchAttribute {
    // SAFETY: the structure is plain numbers and unions of them.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = id;
    attribute
}

fn clusters((x, y, z): (u32, u32, u32)) -> sys::CUlaunchAttribute {
    let mut attribute = attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    attribute.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
    attribute
}

fn config(
    stream: &CudaStream,
    grid: Grid,
    attributes: &mut [sys::CUlaunchAttribute],
) -> sys::CUlaunchConfig {
    sys::CUlaunchConfig {
        gridDimX: grid.blocks.0,
        gridDimY: grid.blocks.1,
        gridDimZ: grid.blocks.2,
        blockDimX: grid.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: grid.shared_bytes,
        hStream: stream.cu_stream(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: u32::try_from(attributes.len()).expect("at most two"),
    }
}

impl Device {
    /// Queues a kernel. The operations in `ops` check what it is given.
    pub(crate) fn launch(
        &self,
        kernel: &str,
        grid: Grid,
        args: &[Arg<'_>],
    ) -> Result<(), DeviceError> {
        self.launch_clusters(kernel, grid, (1, 1, 1), args)
    }

    /// [`Self::launch`], so many blocks at the same time and within each other's reach.
    pub(crate) fn launch_clusters(
        &self,
        kernel: &str,
        grid: Grid,
        cluster: (u32, u32, u32),
        args: &[Arg<'_>],
    ) -> Result<(), DeviceError> {
        let mut attributes = Vec::new();
        attributes.extend((cluster != (1, 1, 1)).then(|| clusters(cluster)));
        let (stream, may_overlap) = self.queues.next();
        if self.overlaps && may_overlap {
            let mut attribute = attribute(
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            );
            attribute.value.programmaticStreamSerializationAllowed = 1;
            attributes.push(attribute);
        }
        self.launch_with(stream, kernel, grid, &mut attributes, args)
    }

    /// [`Self::launch`] in clusters of `cluster` blocks, all blocks at the same time, so that they
    /// may wait for each other: an error where they do not fit the card. It starts when all before
    /// it is over.
    pub(crate) fn launch_at_once(
        &self,
        kernel: &str,
        grid: Grid,
        cluster: u32,
        args: &[Arg<'_>],
    ) -> Result<(), DeviceError> {
        let mut at_once = attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
        at_once.value.cooperative = 1;
        let mut attributes = vec![at_once];
        attributes.extend((cluster != 1).then(|| clusters((cluster, 1, 1))));
        let (stream, _) = self.queues.next();
        self.launch_with(stream, kernel, grid, &mut attributes, args)
    }

    /// Whether the card has room for all blocks of [`Self::launch_at_once`]: a cluster stands
    /// within one part of the card, and parts differ in how many multiprocessors they have.
    pub(crate) fn has_room(
        &self,
        kernel: &str,
        grid: Grid,
        cluster: u32,
    ) -> Result<bool, DeviceError> {
        self.context.bind_to_thread()?;
        let mut attributes = [clusters((cluster, 1, 1))];
        let config = config(&self.queues.main, grid, &mut attributes);
        let (function, mut count) = (self.functions[kernel].cu_function(), 0);
        // SAFETY: it reads the configuration and writes to a local.
        unsafe { sys::cuOccupancyMaxActiveClusters(&raw mut count, function, &raw const config) }
            .result()?;
        Ok(grid.blocks.0 <= count.cast_unsigned() * cluster)
    }

    fn launch_with(
        &self,
        stream: &CudaStream,
        kernel: &str,
        grid: Grid,
        attributes: &mut [sys::CUlaunchAttribute],
        args: &[Arg<'_>],
    ) -> Result<(), DeviceError> {
        let function = self.functions.get(kernel);
        let function = function.unwrap_or_else(|| panic!("no kernel is called {kernel:?}"));
        let (x, y, z) = grid.blocks;
        if x == 0 || y == 0 || z == 0 {
            return Ok(());
        }
        self.context.bind_to_thread()?;
        let mut pointers: Vec<*mut c_void> = args.iter().map(Arg::pointer).collect();
        let config = config(stream, grid, attributes);
        // SAFETY: each caller in `ops` checked the lengths against the shapes that its kernel
        // documents and lists the arguments in the order of that kernel's signature; every kernel
        // that may be let in early waits for the one before it.
        unsafe {
            let arguments = pointers.as_mut_ptr();
            let function = function.cu_function();
            sys::cuLaunchKernelEx(&raw const config, function, arguments, ptr::null_mut())
        }
        .result()?;
        Ok(())
    }

    /// Records what `queue` queues instead of running it. Everything it launches must have run
    /// before: loading a kernel cannot be recorded.
    pub fn capture(
        &self,
        queue: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<Graph, DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.queues.main.begin_capture(mode)?;
        let queued = queue();
        // Also after an error, or the stream stays unusable.
        let graph = self.queues.main.end_capture(sys::CUgraphInstantiate_flags(0));
        queued?;
        let graph = graph?.ok_or_else(|| DeviceError::Failed("an empty graph".to_owned()))?;
        graph.upload()?;
        Ok(Graph { graph })
    }
}

/// Work that was recorded and can be queued again. Its buffers must outlive it.
pub struct Graph {
    graph: CudaGraph,
}

// SAFETY: it is handed over whole and used by one thread at a time.
unsafe impl Send for Graph {}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}

impl Graph {
    pub fn launch(&self) -> Result<(), DeviceError> {
        Ok(self.graph.launch()?)
    }
}
