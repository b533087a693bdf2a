//! What the front door was told: the environment, flags, and what follows from them.

pub mod raw;
