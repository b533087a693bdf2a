//! Puts a pair of engines and the router up on one machine, and says what a machine is worth.

#![forbid(unsafe_code)]

pub mod config;
pub mod fetch;
pub mod head;

mod clock;
