//! What training needs beside layers, against PyTorch and float64; and what every operation says of operands that do
//! not go together.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod embedding;
mod entropy;
mod losses;
mod masked;
mod messages;
mod optimizer;
