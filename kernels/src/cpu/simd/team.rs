//! Threads that share one operation: work is claimed in chunks, and done when the chunks are.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::instructions::Instructions;

/// Looks at a shared word before a thread goes to sleep: some 100 us, longer than the gap between
/// two operations of a step and shorter than the gap between two requests.
const LOOKS_MAX: u32 = 2000;

type Body<'a> = dyn Fn(usize) + Sync + 'a;

/// One thread a core. The caller of [`Team::run`] is the first of them.
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    instructions: Instructions,
}

/// What the threads of a team see.
struct Shared {
    /// The job's number in the upper half, its chunks that nobody has claimed in the lower: one
    /// word, so that a late thread can never claim from a job other than the one it looked at.
    unclaimed: AtomicU64,
    /// Chunks of the job that are not done.
    pending: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    running: AtomicBool,
    stopping: AtomicBool,
    sleeping: Vec<AtomicBool>,
    caller_waits: AtomicBool,
    caller: (Mutex<()>, Condvar),
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    chunks: usize,
}

// SAFETY: `job` is written only by the thread that holds `running`, while `pending` is 0 and so no
// other thread holds a chunk; it is read only by a thread that holds a chunk. `unclaimed` orders
// the two (release on publishing, acquire on claiming). The body behind the pointer is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is used by whichever thread holds a chunk.
unsafe impl Send for Shared {}

/// Why a team could not be put together.
#[derive(Debug)]
pub enum TeamError {
    /// The set of cores is empty.
    NoCores,
    /// The core is not there, or not ours.
    Pin { core: usize, detail: String },
    /// The system gave no thread.
    Spawn(std::io::Error),
}

impl fmt::Display for TeamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCores => write!(f, "a team needs at least one core"),
            Self::Pin { core, detail } => write!(f, "cannot run on core {core}: {detail}"),
            Self::Spawn(error) => write!(f, "cannot start a thread: {error}"),
        }
    }
}

impl std::error::Error for TeamError {}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team")
            .field("threads", &self.threads())
            .field("instructions", &self.instructions)
            .finish_non_exhaustive()
    }
}

impl Team {
    /// Starts one thread on each core but the first, which is the caller's; see [`pin_current`].
    pub fn new(cores: &[usize]) -> Result<Self, TeamError> {
        Self::with_instructions(cores, Instructions::detect())
    }

    /// The same, computing with fewer instructions than the machine has.
    pub fn with_instructions(
        cores: &[usize],
        instructions: Instructions,
    ) -> Result<Self, TeamError> {
        let [_, others @ ..] = cores else { return Err(TeamError::NoCores) };
        let shared = Arc::new(Shared {
            unclaimed: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            running: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            sleeping: others.iter().map(|_| AtomicBool::new(false)).collect(),
            caller_waits: AtomicBool::new(false),
            caller: (Mutex::new(()), Condvar::new()),
            panicked: Mutex::new(None),
        });
        let mut team = Self { shared, threads: Vec::new(), instructions };
        for (index, &core) in others.iter().enumerate() {
            let shared = Arc::clone(&team.shared);
            let (ready, pinned) = sync_channel(1);
            let thread = thread::Builder::new()
                .name(format!("cpu-{core}"))
                .spawn(move || {
                    let pinned = pin_current(core);
                    let go = pinned.is_ok();
                    if ready.send(pinned).is_ok() && go {
                        shared.serve(index);
                    }
                })
                .map_err(TeamError::Spawn)?;
            team.threads.push(thread);
            pinned.recv().expect("the thread says how it went before anything else")?;
        }
        Ok(team)
    }

    /// Threads that take part, the caller's included.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// What the team computes with.
    pub fn instructions(&self) -> Instructions {
        self.instructions
    }

    /// Calls `body` once for each number below `chunks`, in any order, on any of the threads, and
    /// returns when all have ended. A panic in `body` is passed on.
    pub fn run(&self, chunks: usize, body: &(dyn Fn(usize) + Sync)) {
        if chunks <= 1 || self.threads.is_empty() {
            (0..chunks).for_each(body);
            return;
        }
        let shared = &*self.shared;
        assert!(!shared.running.swap(true, Ordering::Acquire), "a team runs one job at a time");
        shared.publish(chunks, body);
        for (sleeping, thread) in shared.sleeping.iter().zip(&self.threads) {
            if sleeping.load(Ordering::SeqCst) && sleeping.swap(false, Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
        while shared.take_chunk() {}
        shared.wait_for_others();
        let panicked = shared.panicked.lock().unwrap_or_else(PoisonError::into_inner).take();
        shared.running.store(false, Ordering::Release);
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
    }

    /// Cuts `out`, rows of `columns`, into windows of at most `window_rows` by `window_columns`,
    /// and calls `body` once for each.
    pub fn run_windows<T: Send>(
        &self,
        out: &mut [T],
        columns: usize,
        (window_rows, window_columns): (usize, usize),
        body: &(dyn Fn(&mut Window<'_, T>) + Sync),
    ) {
        if out.is_empty() {
            return;
        }
        assert!(out.len().is_multiple_of(columns), "rows are whole");
        let rows = out.len() / columns;
        let across = columns.div_ceil(window_columns);
        let start = Pointer(out.as_mut_ptr());
        self.run(across * rows.div_ceil(window_rows), &|chunk| {
            let row = chunk / across * window_rows;
            let column = chunk % across * window_columns;
            body(&mut Window {
                start: start.get(),
                stride: columns,
                rows: row..(row + window_rows).min(rows),
                columns: column..(column + window_columns).min(columns),
                borrowed: PhantomData,
            });
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A thread that was never pinned has ended with an error that `new` reported; no thread
            // ends by a panic, since those of a body are caught.
            let _ended = thread.join();
        }
    }
}

impl Shared {
    fn publish(&self, chunks: usize, body: &Body<'_>) {
        let count = u32::try_from(chunks).expect("chunks are counted in 32 bits");
        // SAFETY: only the lifetime changes. `run` returns only after `pending` is 0, when no
        // thread calls the body any more, so the borrow outlives every use.
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        // SAFETY: this thread holds `running`, and `pending` is 0: nobody else looks at `job`.
        unsafe { *self.job.get() = Some(Job { body, chunks }) };
        self.pending.store(chunks, Ordering::Relaxed);
        let number = (self.unclaimed.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.unclaimed.store(number << 32 | u64::from(count), Ordering::SeqCst);
    }

    /// Claims and does one chunk; false when none is left.
    fn take_chunk(&self) -> bool {
        let mut seen = self.unclaimed.load(Ordering::Acquire);
        let left = loop {
            let left = seen & u64::from(u32::MAX);
            if left == 0 {
                return false;
            }
            let claim = self.unclaimed.compare_exchange_weak(
                seen,
                seen - 1,
                Ordering::Acquire,
                Ordering::Acquire,
            );
            match claim {
                Ok(_) => break usize::try_from(left).expect("it is below 2^32"),
                Err(now) => seen = now,
            }
        };
        // SAFETY: this thread holds a chunk, so the job stays as it was published.
        let job = unsafe { *self.job.get() }.expect("a job is published before its chunks");
        // SAFETY: `run` has not returned, since this chunk is pending, so the borrow is alive.
        let body = unsafe { &*job.body };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| body(job.chunks - left))) {
            *self.panicked.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
        }
        if self.pending.fetch_sub(1, Ordering::SeqCst) == 1
            && self.caller_waits.load(Ordering::SeqCst)
        {
            drop(self.caller.0.lock());
            self.caller.1.notify_all();
        }
        true
    }

    fn wait_for_others(&self) {
        for _ in 0..LOOKS_MAX {
            if self.pending.load(Ordering::SeqCst) == 0 {
                return;
            }
            spin_loop();
        }
        self.caller_waits.store(true, Ordering::SeqCst);
        let mut guard = self.caller.0.lock().unwrap_or_else(PoisonError::into_inner);
        while self.pending.load(Ordering::SeqCst) != 0 {
            guard = self.caller.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_waits.store(false, Ordering::SeqCst);
    }

    /// The life of thread `index`: chunks while there are some, looks for a while, then sleep.
    fn serve(&self, index: usize) {
        let mut looks = 0;
        while !self.stopping.load(Ordering::SeqCst) {
            if self.take_chunk() {
                looks = 0;
            } else if looks < LOOKS_MAX {
                looks += 1;
                spin_loop();
            } else {
                self.sleeping[index].store(true, Ordering::SeqCst);
                let idle = self.unclaimed.load(Ordering::SeqCst) & u64::from(u32::MAX) == 0;
                if idle && !self.stopping.load(Ordering::SeqCst) {
                    thread::park();
                }
                self.sleeping[index].store(false, Ordering::SeqCst);
                looks = 0;
            }
        }
    }
}

/// A part of a (rows, columns) array that one call of a body has for itself.
#[derive(Debug)]
pub struct Window<'a, T> {
    start: *mut T,
    stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    borrowed: PhantomData<&'a mut [T]>,
}

impl<T> Window<'_, T> {
    /// Rows of the whole array that it covers.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Columns of the whole array that it covers.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The window's part of a row, which is counted in the whole array.
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(self.rows.contains(&row), "the row is in the window");
        // SAFETY: windows of one run do not overlap and lie inside the array, which `run_windows`
        // holds by `&mut`; the slice borrows the window by `&mut`.
        unsafe {
            let start = self.start.add(row * self.stride + self.columns.start);
            std::slice::from_raw_parts_mut(start, self.columns.len())
        }
    }
}

/// A pointer that threads may share, since each uses its own part.
struct Pointer<T>(*mut T);

impl<T> Pointer<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: only `run_windows` makes one, and its windows do not overlap.
unsafe impl<T: Send> Sync for Pointer<T> {}

/// Pins the calling thread to a core. Elsewhere than on Linux the system decides.
pub fn pin_current(core: usize) -> Result<(), TeamError> {
    #[cfg(target_os = "linux")]
    {
        let failed = |detail: String| TeamError::Pin { core, detail };
        if 8 * size_of::<libc::cpu_set_t>() <= core {
            return Err(failed("no such core".to_owned()));
        }
        // SAFETY: a set of bits is valid when zeroed; the core is inside it; 0 is this thread.
        let result = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
        };
        if result != 0 {
            return Err(failed(std::io::Error::last_os_error().to_string()));
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = core;
    Ok(())
}

#[cfg(test)]
mod tests;
