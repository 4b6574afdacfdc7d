//! What training needs beside layers, against PyTorch and float64.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod embedding;
mod entropy;
mod losses;
mod optimizer;
