//! `firebox data convert`: arrays of other programs as samples that can be streamed.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use firebox_core::Storage;
use firebox_pipeline::{ConvertConfig, Odd};

use crate::output::say;
use crate::terminal::{LogFormat, Terminal};

#[derive(Args)]
pub(crate) struct ConvertFlags {
    /// The folder of .npy arrays of float16, float32 or float64 (rounded to float32): `[time]`, `[time,
    /// channel]` or `[sample, time, channel]`. Folders in it become classes; arrays beside them have none.
    arrays: PathBuf,
    /// The folder to write.
    output: PathBuf,
    /// The type that values are stored in; that of the arrays if none is given.
    #[arg(long, value_enum, value_name = "TYPE")]
    storage: Option<StorageName>,
    /// Cut longer samples to this many steps.
    #[arg(long, value_parser = crate::apply::at_least_one, value_name = "STEPS")]
    length: Option<usize>,
    /// What to do about arrays of float16 beside wider ones (or the reverse), of whole numbers, text or other values, of
    /// another width than the first, of other axes, without a step, big-endian, in Fortran order, damaged, or with NaN or
    /// infinite values.
    #[arg(long, value_enum, default_value = "refuse")]
    odd: OddName,
    /// Size of a shard in MiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096), value_name = "MIB")]
    shard_size: u32,
    /// How progress is shown.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log: LogFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum StorageName {
    F32,
    F16,
    Bf16,
}

#[derive(Clone, Copy, ValueEnum)]
enum OddName {
    Refuse,
    Skip,
}

pub(crate) fn convert(flags: &ConvertFlags) -> anyhow::Result<ExitCode> {
    let config = ConvertConfig {
        storage: flags.storage.map(|storage| match storage {
            StorageName::F32 => Storage::F32,
            StorageName::F16 => Storage::F16,
            StorageName::Bf16 => Storage::Bf16,
        }),
        length: flags.length.unwrap_or(0),
        odd: match flags.odd {
            OddName::Refuse => Odd::Refuse,
            OddName::Skip => Odd::Skip,
        },
        shard_bytes: (flags.shard_size as usize) << 20,
    };
    let terminal = Terminal::new(flags.log);
    let converted = firebox_pipeline::convert(&flags.arrays, &flags.output, &config, &terminal);
    terminal.close();
    let converted = converted?;
    say(format_args!("{}: {converted}", flags.output.display()))?;
    Ok(ExitCode::SUCCESS)
}
