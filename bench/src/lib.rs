//! Measures a pair: drives load, finds the crossover, compares with peers, keeps dated results.

#![forbid(unsafe_code)]
