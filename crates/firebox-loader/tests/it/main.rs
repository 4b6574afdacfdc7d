//! Batches and where they come from: one program, which is compiled and linked once. What measures memory or
//! loses files has one of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says why it fails by panicking"
)]

mod loader;
mod shared;
mod sources;
