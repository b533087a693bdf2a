//! The step loop. No clock, no I/O, no async, no device code: values in, values out.

pub mod ids;
pub mod pages;
pub mod plan;
pub mod planner;
pub mod sampling;
pub mod sequence;
pub mod step;
