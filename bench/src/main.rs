//! Load generator, sweep, calibration and simulation.

#![forbid(unsafe_code)]

fn main() {}
