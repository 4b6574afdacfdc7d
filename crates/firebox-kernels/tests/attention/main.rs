//! Attention against float64, finite differences and PyTorch, by every variant of the kernels that
//! this processor has.

#![allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
#![allow(unreachable_pub, reason = "nothing outside of this program can name its modules")]

mod case;
mod disentangled;
mod limits;
mod masked;
mod numbers;
mod pytorch;
mod reference;
mod rounded;
mod window;
