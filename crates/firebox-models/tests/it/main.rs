//! Models beside PyTorch's: one program, which is compiled and linked once. What counts memory has one of its
//! own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says why it fails by panicking"
)]

mod classifiers;
mod finetune;
mod forecaster;
mod parity;
mod recompute;
#[path = "../support/mod.rs"]
mod support;
mod transformer;
