//! Measures a pair: drives load, finds the crossover, compares with peers, keeps dated results.

#![forbid(unsafe_code)]

pub mod client;
pub mod clock;
pub mod load;
pub mod prompts;
pub mod report;
pub mod rounds;
pub mod sample;
pub mod stats;
pub mod sweep;
