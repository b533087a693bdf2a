//! Measures a pair: drives load, finds the crossover, compares with peers, keeps dated results.

#![forbid(unsafe_code)]

pub mod arrivals;
pub mod calibrate;
pub mod calibration;
pub mod cell;
pub mod client;
pub mod clock;
pub mod compare;
mod events;
pub mod hop;
pub mod lengths;
pub mod load;
pub mod machine;
pub mod prompts;
pub mod report;
pub mod sample;
pub mod scrape;
pub mod simulate;
pub mod stats;
pub mod sweep;
pub mod target;
