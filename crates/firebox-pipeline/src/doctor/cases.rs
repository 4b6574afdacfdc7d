//! The models that are examined: the reference workloads at their own sizes, and each other model of the zoo at a small
//! one.

use std::str::FromStr;

use firebox_core::{Precision, Silent};
use firebox_kernels::CpuKernels;

use super::DoctorConfig;
use crate::bench::{
    BenchConfig, Measured, SmallModel, Workload, measure, measure_composed, measure_small,
};
use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// A model that is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoctorCase {
    /// A reference workload, whose times decide what is recommended.
    Reference(Workload),
    /// Another model of the zoo, at a small size.
    Small(SmallModel),
}

impl DoctorCase {
    /// Every one.
    pub fn all() -> impl Iterator<Item = Self> {
        let reference = Workload::ALL.into_iter().map(|(workload, _)| Self::Reference(workload));
        reference.chain(SmallModel::ALL.into_iter().map(|(model, _)| Self::Small(model)))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference(workload) => workload.name(),
            Self::Small(model) => model.name(),
        }
    }

    /// Samples of a batch.
    pub(super) fn default_batch(self) -> usize {
        match self {
            Self::Reference(workload) => workload.default_batch(),
            Self::Small(model) => model.default_batch(),
        }
    }

    /// Whether it is at a small size.
    pub(super) fn is_small(self) -> bool {
        matches!(self, Self::Small(_))
    }

    /// Whether it reads texts. A quick examination has no time for those, and their tokens are in memory in a run, too.
    pub(super) fn reads_texts(self) -> bool {
        match self {
            Self::Reference(workload) => workload == Workload::BertBase,
            Self::Small(model) => model.reads_texts(),
        }
    }

    /// Whether a processor has as much memory as it takes: what is refused there ends the program, with all that was
    /// measured. Of the others nobody asks.
    pub(super) fn fits(self, room: Option<u64>) -> bool {
        /// Bytes: its steps held 3.1 GB with two threads, the program among them, in f32 and in bf16 (measured).
        const LEAST: u64 = 3_000_000_000;
        self != Self::Reference(Workload::BertBase) || room.is_none_or(|room| LEAST <= room)
    }

    /// Settings of a measurement.
    pub(super) fn steps(self, precision: Precision, steps: u64, warmup: u64) -> BenchConfig {
        let workload = match self {
            Self::Reference(workload) => workload,
            // Samples that are stored are asked how many versions it has, and nothing else.
            Self::Small(_) => Workload::LstmMae,
        };
        BenchConfig { precision, steps, warmup, ..BenchConfig::new(workload) }
    }

    /// Takes steps.
    pub(super) fn measure(
        self,
        config: &BenchConfig,
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError> {
        match self {
            Self::Reference(_) => measure(config, device, &Silent),
            Self::Small(model) => measure_small(model, config, device),
        }
    }

    /// Takes steps in Burn's own operations alone, whatever kernels there are.
    pub(super) fn measure_composed(
        self,
        config: &BenchConfig,
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError> {
        match self {
            Self::Reference(_) => measure_composed(config, device),
            Self::Small(model) => {
                CpuKernels::Composed.force(|| measure_small(model, config, device))
            }
        }
    }
}

impl From<Workload> for DoctorCase {
    fn from(workload: Workload) -> Self {
        Self::Reference(workload)
    }
}

impl FromStr for DoctorCase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all().find(|case| case.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::all().map(Self::name).collect();
            format!("`{text}` is no model that is examined; there is {}", names.join(", "))
        })
    }
}

/// The models of an examination, the quickest first: what they leave of their time is for the others.
pub(super) fn chosen(config: DoctorConfig) -> Vec<DoctorCase> {
    let place = |case: &DoctorCase| match case {
        DoctorCase::Reference(Workload::Mlp) => 0,
        DoctorCase::Reference(Workload::LstmForecast) => 1,
        DoctorCase::Small(_) => 2,
        DoctorCase::Reference(Workload::BertBase) => 4,
        DoctorCase::Reference(_) => 3,
    };
    let mut chosen: Vec<DoctorCase> = match config.only {
        Some(only) => vec![only],
        None => DoctorCase::all().filter(|case| !(config.quick && case.reads_texts())).collect(),
    };
    chosen.sort_by_key(place);
    chosen
}

/// What is left out of an examination for its length, in one line.
pub(super) fn left_out(config: DoctorConfig) -> Option<String> {
    let long: Vec<_> =
        DoctorCase::all().filter(|case| case.reads_texts()).map(DoctorCase::name).collect();
    (config.quick && config.only.is_none())
        .then(|| format!("not examined with --quick: {}", long.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use firebox_text::SUPPORTED;

    use super::*;

    /// Each file of the zoo with the cases that train what it has; none for what is no model.
    const FILES: [(&str, &[&str]); 20] = [
        ("bert", &["bert-base"]),
        ("bilstm_attention", &["bilstm-attention"]),
        ("bilstm_mae", &["lstm-mae"]),
        ("classifier", &["classifier"]),
        ("cnn_bilstm", &["cnn-lstm"]),
        ("dilated", &["dilated"]),
        ("encoder", &[]),
        ("encoder_layer", &[]),
        ("error", &[]),
        ("lib", &[]),
        ("mask", &[]),
        ("masked", &["gru", "dilated"]),
        ("mlp", &["mlp"]),
        ("parameters", &[]),
        ("patch_transformer", &["patch-transformer"]),
        ("pretrain", &[]),
        ("recurrent", &["gru", "classifier"]),
        ("size", &[]),
        ("stacked_lstm", &["lstm-forecast"]),
        ("transformer", &["transformer"]),
    ];
    /// Other names of families, by which the same encoder is built.
    const ALIASES: [&str; 2] = ["xlm-roberta", "camembert"];

    /// The zoo has a file for each model, and a folder for those of texts.
    #[test]
    fn every_model_of_the_zoo_is_examined() {
        let zoo = concat!(env!("CARGO_MANIFEST_DIR"), "/../firebox-models/src");
        let files: BTreeSet<String> = std::fs::read_dir(zoo)
            .unwrap()
            .map(|file| file.unwrap().path())
            .filter(|path| path.is_file())
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        let known = FILES.iter().map(|(file, _)| (*file).to_owned()).collect();
        assert_eq!(files, known, "a model needs a case here, and a line in FILES");
        let names: BTreeSet<&str> = DoctorCase::all().map(DoctorCase::name).collect();
        for (file, cases) in FILES {
            assert!(cases.iter().all(|case| names.contains(case)), "{file}: {cases:?}");
        }
        for family in SUPPORTED.split(", ") {
            let family = family.split_whitespace().next().unwrap();
            // What stands in brackets belongs to the one before it.
            let known = names.contains(family) || ALIASES.contains(&family);
            assert!(known, "{family} is supported and not examined");
        }
        assert_eq!(names.len(), DoctorCase::all().count(), "two have one name");
    }

    #[test]
    fn the_largest_model_is_left_out_where_its_steps_find_no_room() {
        let rooms = [None, Some(2_999_999_999), Some(3_000_000_000)];
        let fits = |name: &str| rooms.map(|room| name.parse::<DoctorCase>().unwrap().fits(room));
        assert_eq!([fits("bert-base"), fits("mlp")], [[true, false, true], [true; 3]]);
    }

    #[test]
    fn a_quick_examination_says_what_it_leaves_out() {
        let quick = DoctorConfig { quick: true, only: None };
        let names: Vec<_> = chosen(quick).into_iter().map(DoctorCase::name).collect();
        assert_eq!(names[..2], ["mlp", "lstm-forecast"]);
        assert!(names.contains(&"gru") && !names.contains(&"longformer"), "{names:?}");
        let said = left_out(quick).unwrap();
        for case in DoctorCase::all().filter(|case| case.reads_texts()) {
            assert!(!names.contains(&case.name()) && said.contains(case.name()), "{said}");
        }
        let whole = DoctorConfig { quick: false, only: None };
        assert_eq!(chosen(whole).len(), DoctorCase::all().count());
        assert_eq!(chosen(whole).last(), Some(&Workload::BertBase.into()));
        assert_eq!(left_out(whole), None);
        let only = DoctorConfig { quick: true, only: Some("longformer".parse().unwrap()) };
        assert_eq!((chosen(only).len(), left_out(only)), (1, None));
        assert!("lstm".parse::<DoctorCase>().unwrap_err().contains("lstm-mae"));
    }
}
