//! Evaluations beside others' and by hand: one program, which is compiled and linked once. Pages have theirs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says why it fails by panicking"
)]

mod encoder;
mod forecast;
mod scikit_learn;
