//! `firebox cache list | verify | prune`: what runs share on disk.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use firebox_core::count;
use firebox_pipeline::cache::{Store, Stored};

use crate::output::say;

#[derive(Subcommand)]
pub(crate) enum CacheCommand {
    /// What is stored, how large it is and when it was last used.
    List(CacheFolder),
    /// Read everything and compare it with its checksums; exit code 1 if anything is damaged.
    Verify(CacheFolder),
    /// Delete the least recently used results until the rest fits.
    Prune {
        #[command(flatten)]
        folder: CacheFolder,
        /// What may remain, such as 500MB, 10GB or 0.
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        max_size: u64,
    },
}

#[derive(Args)]
pub(crate) struct CacheFolder {
    /// The cache's folder.
    #[arg(long, default_value = "cache", value_name = "DIR")]
    cache: PathBuf,
}

impl CacheFolder {
    fn open(&self) -> anyhow::Result<Store> {
        // Looking at a cache must not make one.
        anyhow::ensure!(
            self.cache.is_dir(),
            "there is no cache in {}\n  name its folder with --cache DIR",
            self.cache.display()
        );
        Ok(Store::open(&self.cache)?)
    }
}

pub(crate) fn run(command: &CacheCommand) -> anyhow::Result<ExitCode> {
    match command {
        CacheCommand::List(folder) => list(&folder.open()?),
        CacheCommand::Verify(folder) => verify(&folder.open()?),
        CacheCommand::Prune { folder, max_size } => prune(&folder.open()?, *max_size),
    }
}

fn list(store: &Store) -> anyhow::Result<ExitCode> {
    let listing = store.list()?;
    for stored in &listing.stored {
        say(row(stored))?;
    }
    for leftover in &listing.leftovers {
        let state = if leftover.alive { "being made" } else { "left over; prune removes it" };
        let url = leftover.url.as_ref().map(|url| format!("  {url}")).unwrap_or_default();
        let (path, bytes) = (leftover.path.display(), size(leftover.bytes));
        say(format_args!("{path:<49} {bytes:>9}  {state}{url}"))?;
    }
    let (results, bytes) = (count(listing.stored.len() as u64, "result"), size(listing.bytes()));
    say(format_args!("{results}, {bytes} in {}", store.root().display()))?;
    Ok(ExitCode::SUCCESS)
}

fn row(stored: &Stored) -> String {
    let age = SystemTime::now().duration_since(stored.last_used).unwrap_or_default();
    let used = if stored.in_use {
        "in use now".to_owned()
    } else {
        format!("used {} ago", long(age.as_secs()))
    };
    let url = stored.url.as_ref().map(|url| format!("  {url}")).unwrap_or_default();
    format!("{:<13} {:<35} {:>9}  {used}{url}", stored.bucket, stored.key, size(stored.bytes))
}

fn verify(store: &Store) -> anyhow::Result<ExitCode> {
    let verified = store.verify()?;
    let (mut damaged, mut left_alone) = (0, 0);
    for result in &verified {
        let state = match result.damaged.is_empty() {
            _ if result.left_alone => "in use by another process: not looked at",
            true => "whole",
            false => "DAMAGED; the next run that needs it makes it again",
        };
        say(format_args!(
            "{:<13} {} {:>9}  {state}",
            result.stored.bucket,
            result.stored.key,
            size(result.checked)
        ))?;
        for (path, damage) in &result.damaged {
            say(format_args!("  {}: {damage}", path.display()))?;
        }
        damaged += usize::from(!result.damaged.is_empty());
        left_alone += usize::from(result.left_alone);
    }
    let not_looked_at = match left_alone {
        0 => String::new(),
        some => format!(", {some} not looked at"),
    };
    let results = count(verified.len() as u64, "result");
    say(format_args!("{results}, {damaged} damaged{not_looked_at}"))?;
    Ok(if damaged == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn prune(store: &Store, most: u64) -> anyhow::Result<ExitCode> {
    let pruned = store.prune(most)?;
    for stored in &pruned.removed {
        say(format_args!("removed {}", row(stored)))?;
    }
    for leftover in &pruned.leftovers {
        say(format_args!("removed {}, left over from a run that died", leftover.path.display()))?;
    }
    for stored in &pruned.kept_in_use {
        say(format_args!("kept    {}", row(stored)))?;
    }
    say(format_args!("freed {}, {} left", size(pruned.freed), size(pruned.left)))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads `500MB`, `1.5 GiB`, `0`.
fn parse_size(text: &str) -> Result<u64, String> {
    let units = [
        ("", 1.0),
        ("b", 1.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("tb", 1e12),
        ("kib", 1024.0),
        ("mib", 1_048_576.0),
        ("gib", 1_073_741_824.0),
    ];
    let text = text.trim().to_ascii_lowercase();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = units.iter().find(|(name, _)| *name == unit.trim()).map(|(_, factor)| factor);
    match (number.parse::<f64>(), factor) {
        (Ok(number), Some(factor)) => Ok((number * factor) as u64),
        _ => Err("a size is a number with an optional unit: 0, 500MB, 1.5GB, 2GiB".to_owned()),
    }
}

/// Bytes as a person reads them.
fn size(bytes: u64) -> String {
    match bytes as f64 {
        b if b < 999.5 => format!("{b:.0} B"),
        b if b < 999_500.0 => format!("{:.1} kB", b / 1e3),
        b if b < 999_500_000.0 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.1} GB", b / 1e9),
    }
}

/// Seconds as a person reads them.
fn long(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        let sizes = ["0", "500MB", "1.5 GiB", "12"].map(parse_size);
        assert_eq!(sizes, [Ok(0), Ok(500_000_000), Ok(1_610_612_736), Ok(12)]);
        for bad in ["", "MB", "5 MX", "-1"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!([size(12), size(1_500), size(2_000_000_000)], ["12 B", "1.5 kB", "2.0 GB"]);
    }
}
