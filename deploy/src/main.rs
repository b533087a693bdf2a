//! The front door: up, fetch, doctor.

#![forbid(unsafe_code)]

fn main() {}
