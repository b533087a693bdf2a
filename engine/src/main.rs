//! One model replica behind an OpenAI-compatible endpoint.

#![forbid(unsafe_code)]

fn main() {}
