//! The engine's service over real HTTP, with a parrot for a model.

mod bad;
mod ends;
mod fixture;
mod texts;
