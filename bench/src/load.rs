//! Ways of sending requests: so many at once, or at given times.

pub mod closed;
