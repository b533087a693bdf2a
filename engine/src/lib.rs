//! The inference engine: a pure step loop, the drafters and the backends it drives.

#![forbid(unsafe_code)]

pub mod backend;
pub mod batch;
pub mod clock;
pub mod config;
pub mod draft;
pub mod inspect;
pub mod metrics;
pub mod model;
pub mod runner;
pub mod serve;
pub mod text;
