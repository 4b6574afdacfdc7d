//! Exports, read back and run elsewhere: one program, which is compiled and linked once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says why it fails by panicking"
)]

mod graphs;
mod normalise;
mod peers;
mod saved;
mod zoo;
