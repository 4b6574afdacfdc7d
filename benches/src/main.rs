//! Speed of the way from files to batches: one JSON line for each case, named `stage/case`.
//!
//! `benches/compare.py` runs this and the same work in polars and NumPy on the same files, and
//! prints both side by side. Every case checks its result. Nothing here is a test: no time is
//! ever too long.
//!
//! Usage: `firebox-benches [SUITE] FOLDER`. The suites are `data` (the default), of the `bars.csv` and
//! `bars.parquet` in FOLDER; `data CASE`, a stage of it in a process of its own, so that its memory can be told;
//! `gather CASE`, of batches made of `bars.parquet`, one case a process, too; `wait`, of the same batches in a training;
//! `ingest CASE`, of `many.csv` and `many.parquet`; `stream CASE`, of the arrays in `clips/`; and `larger BYTES`, which
//! makes and reads a set of that size in FOLDER.

mod data;
mod gather;
mod larger;
mod measure;
mod stream;
mod wait;

use std::path::PathBuf;

use anyhow::{Context, bail};

/// As the program has it: a batch's memory is taken from what the one before gave up.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let usage = "usage: firebox-benches [data [CASE] | gather CASE | overlapping CASE | wait | ingest CASE | stream CASE | larger BYTES] FOLDER";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let folder = PathBuf::from(texts.last().context(usage)?);
    match texts[..] {
        [_] | ["data", _] => data::run(&folder),
        ["data", case, _] => data::one(case, &folder),
        ["gather", case, _] => gather::run(case, &folder),
        ["overlapping", case, _] => gather::overlapping(case, &folder),
        ["wait", _] => wait::run(&folder),
        ["ingest", case, _] => data::many(case, &folder),
        ["stream", case, _] => stream::run(case, &folder),
        ["larger", bytes, _] => larger::run(&folder, bytes.parse().context("BYTES is a number")?),
        _ => bail!(usage),
    }
}
