//! The engine's service over real HTTP, with a parrot for a model.

mod asking;
mod bad;
mod clients;
mod ends;
mod fixture;
mod formats;
mod killed;
mod real;
mod texts;
