//! The fence: threads that borrow from their caller, and code compiled for one instruction set.
#![expect(unsafe_code, reason = "what this room is for; each block says why it is sound")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod dispatch;
pub(crate) mod instructions;
pub(crate) mod lines;
#[cfg(target_arch = "x86_64")]
mod prefetch;
pub(crate) mod team;
pub(crate) mod vector;
