//! Speed of the way from files to batches: one JSON line for each case, named `stage/case`.
//!
//! `benches/compare.py` runs this and the same work in polars and NumPy on the same files, and
//! prints both side by side. Every case checks its result. Nothing here is a test: no time is
//! ever too long.
//!
//! Usage: `firebox-benches FOLDER`, where FOLDER holds `bars.csv` and `bars.parquet`.

mod data;
mod measure;

use std::path::PathBuf;

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    data::run(&folder.context("usage: firebox-benches FOLDER (with bars.csv and bars.parquet)")?)
}
