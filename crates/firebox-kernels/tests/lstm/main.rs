//! LSTM and GRU against references that were made without it: float64 in `numbers`, golden files of
//! PyTorch in `pytorch`. One program, so that both share the code in `support`.

#![allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
#![allow(unreachable_pub, reason = "nothing outside of this program can name its modules")]

mod gru;
mod import;
mod infinite;
mod long_memory;
mod numbers;
mod pytorch;
mod support;
