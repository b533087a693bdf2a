//! The step loop. No clock, no I/O, no async, no device code: values in, values out.

pub mod guide;
pub mod ids;
pub mod load;
pub mod pages;
pub mod plan;
mod planner;
mod running;
pub mod sampling;
pub mod sequence;
pub mod step;
mod ticket;
mod waiting;
