//! Takes requests, chooses an endpoint, streams the answer.

#![forbid(unsafe_code)]

fn main() {}
