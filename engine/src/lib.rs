//! The inference engine: a pure step loop, the drafters and the backends it drives.

#![forbid(unsafe_code)]

pub mod backend;
pub mod batch;
pub mod draft;
pub mod model;
