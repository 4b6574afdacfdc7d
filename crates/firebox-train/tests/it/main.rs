//! The trainer as its users call it: one program, which is compiled and linked once. Trainings that are
//! killed have one of their own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says why it fails by panicking"
)]

mod accumulate;
mod ahead;
mod checkpoints;
mod failing;
mod groups;
mod memory;
mod precision;
mod scaling;
mod statistics;
mod storms;
#[path = "../support/mod.rs"]
mod support;
mod threads;
mod torch;
mod training;
