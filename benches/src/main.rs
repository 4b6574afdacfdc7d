//! Speed of the way from files to batches: one JSON line for each case, named `stage/case`.
//!
//! `benches/compare.py` runs this and the same work in polars and NumPy on the same files, and
//! prints both side by side. Every case checks its result. Nothing here is a test: no time is
//! ever too long.
//!
//! Usage: `firebox-benches [SUITE] FOLDER`. The suites are `data` (the default), of the `bars.csv` and
//! `bars.parquet` in FOLDER; `ingest`, of `many.csv` and `many.parquet` there; `stream`, of the arrays
//! in `clips/`; and `larger BYTES`, which makes and reads a set of that size in FOLDER.

mod data;
mod larger;
mod measure;
mod stream;

use std::path::PathBuf;

use anyhow::{Context, bail};

/// As the program has it: a batch's memory is taken from what the one before gave up.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let usage = "usage: firebox-benches [data | ingest | stream | larger BYTES] FOLDER";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let folder = PathBuf::from(texts.last().context(usage)?);
    match texts[..] {
        [_] | ["data", _] => data::run(&folder),
        ["ingest", _] => data::many(&folder),
        ["stream", _] => stream::run(&folder),
        ["larger", bytes, _] => larger::run(&folder, bytes.parse().context("BYTES is a number")?),
        _ => bail!(usage),
    }
}
