//! The pipeline `pseudolabel`, reference system R4: ingest → windows → iterations of clustering the
//! embeddings and training the encoder on the clusters → evaluate → report.
//!
//! Each iteration embeds the training windows with the encoder of the one before, clusters the
//! embeddings, and trains encoder and classifier together on the clusters: deep clustering (Caron et
//! al., "Deep clustering for unsupervised learning of visual features", 2018). It draws anew whatever is
//! drawn in training (the order of batches, noise, dropout, what is hidden), has a folder of its own,
//! `parts/iteration-1`, and goes on where it was stopped. Clusters are judged by true labels of
//! windows that were never trained on, and never by themselves; true labels choose nothing.

mod config;
mod iterate;
mod judge;
mod objective;
mod page;

use std::sync::atomic::Ordering;

use firebox_core::{Event, Key, KeyBuilder, Labels, Stream, count};
use firebox_eval::TestScore;
use firebox_export::{Architecture, Task};
use firebox_models::read_parameters;
use serde_json::Value;

use crate::PipelineConfig;
use crate::bench::{Measured, Probe};
use crate::chain::{Chain, Made, Making, Work, check_names};
use crate::config::ModelConfig;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::kept::{Kept, Shown, named};
use crate::keys::{Keys, json, learnt_by, newest, ordered};
use crate::online;
use crate::pretrain::probe_shape;
use crate::stages::{Run, split_reasons};
use crate::unread::only_evaluates_by;

pub use config::PseudolabelConfig;
use objective::Clusters;

/// An encoder that learns from its own clusters.
pub(crate) struct Pseudolabel;

impl Chain for Pseudolabel {
    fn check(&self, config: &PipelineConfig) -> Result<(), PipelineError> {
        let refuse =
            |what: &str, way_out: &str| Err(PipelineError::Setting(format!("{what}\n  {way_out}")));
        if json(&config.model) != json(&ModelConfig::default()) {
            let what = "[model] is not read by `pseudolabel`";
            return refuse(what, "remove it, and set [pseudolabel.model]");
        }
        online::check(config, None, "[pseudolabel.masking]")?;
        if config.labels == Labels::None {
            // Without true classes nothing is judged.
            only_evaluates_by(config, &["seed", "batch_size"])?;
        }
        settings(config).validate()
    }

    fn check_model(
        &self,
        config: &PipelineConfig,
        device: &ChosenDevice,
    ) -> Result<(), PipelineError> {
        // Names do not depend on the number of channels.
        check_names(&config.train, || {
            let (settings, stream) = (settings(config), Stream::new(0, "names"));
            Ok(settings.model.init(stream, 1, settings.clusters, &device.device)?)
        })
    }

    fn keys(&self, config: &PipelineConfig, device: &ChosenDevice) -> Result<Keys, PipelineError> {
        let series = crate::feed::series_key(config)?;
        let arithmetic = device.arithmetic_of(config)?;
        let keys = Keys::new(config, series, &arithmetic);
        // No iteration has anything held out.
        let training =
            newest(ordered(Key::builder("pseudolabel", 3), config), &config.train, false);
        let training = drawn(online::varied(training, config, &arithmetic), &settings(config))
            .upstream("windows", keys.windows)
            .field("pseudolabel", json(&settings(config)))
            .field("train", json(&learnt_by(&config.train)))
            .field("batch_size", config.loader.batch_size.to_le_bytes())
            .field("precision", config.run.precision.to_string())
            .field("seed", config.run.seed.to_le_bytes())
            .field("arithmetic", arithmetic)
            .finish();
        Ok(keys.trained(training, config))
    }

    fn probe(
        &self,
        config: &PipelineConfig,
        probe: Probe<'_>,
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError> {
        let (settings, shape) = (settings(config), probe_shape(config)?);
        let stream = Stream::new(config.run.seed, "weights");
        let clusters = settings.clusters;
        let model = settings.model.init(stream, shape[1], clusters, &device.device)?;
        let all: Vec<u32> = (0..clusters as u32).collect();
        let objective = Clusters::new(&all, clusters, settings.noise, settings.time_mask);
        let model = model.in_precision(probe.precision).recomputed(config.run.recompute);
        probe.run_labelled(model, &objective, shape, clusters, device)
    }

    fn training_windows(&self, run: &Run<'_>) -> Result<Option<usize>, PipelineError> {
        Ok(Some(run.windows(&mut 0)?.parts.train.len()))
    }

    fn slots(&self, config: &PipelineConfig) -> usize {
        online::slots(&config.augment)
    }

    /// The layers of its LSTM do; convolutions keep what they compute.
    fn recomputes(&self, _: &PipelineConfig) -> bool {
        true
    }

    fn stages(&self, keys: &Keys) -> Vec<(&'static str, Option<Key>)> {
        keys.stages()
    }

    fn make(&self, run: &Run<'_>, work: &mut Work<'_>) -> Result<Making, PipelineError> {
        let settings = settings(run.config);
        let windows = run.windows(&mut work.remade)?;
        work.reasons.extend(split_reasons(run.config, &windows, run.config.labels.horizon()));
        let parts = iterate::ClusterParts::new(&windows);
        work.reasons.push(run.placed(run.learnt_in(&parts, 1)?.as_ref())?.reason());
        work.resolved()?;
        if let Some(message) = parts.mask_warning(settings.time_mask) {
            run.listener.on(&Event::Warning { message });
        }
        let iterated = match run.iterate(work, &settings, &parts)? {
            Ok(iterated) => iterated,
            Err(step) => return Ok(Making::Interrupted { step }),
        };
        let mut remade = 0;
        let judged = run.stage("evaluate", Some(run.keys.evaluation), &mut remade, || {
            let judged = judge::judge(run, work.path, &settings, &windows, &parts, &iterated)?;
            let detail = format!("{} test windows with a true class", judged.windows);
            Ok((judged, false, detail))
        });
        let judged = match judged {
            Ok(judged) => judged,
            Err(_) if run.stop.load(Ordering::SeqCst) => {
                return Ok(Making::Interrupted { step: iterated.steps() });
            }
            Err(error) => return Err(error),
        };
        work.remade += remade;
        for (name, value) in judged.scores() {
            run.listener.on(&Event::Scored { name: name.to_owned(), value });
        }
        let (made, steps) = (iterated.rounds.len() as u64, iterated.steps());
        let said = format!("{}, {} in all", count(made, "iteration"), count(steps, "step"));
        let classes: Vec<String> =
            (0..settings.clusters).map(|cluster| format!("cluster {cluster}")).collect();
        let kept = Kept {
            task: Task::Classification,
            architecture: Architecture::CnnBilstm {
                config: settings.model.clone(),
                channels: windows.ingested.set.channels().len(),
                classes: settings.clusters,
            },
            parameters: read_parameters(&iterated.model),
            classes: &classes,
            trained: &said,
            scores: named(&judged.scores()),
            scores_of: "Of the clusters that test windows lie in by their nearest centre of K-means on this encoder's vectors (`firebox embed`); the classes that this classifier tells are not what was scored."
                .to_owned(),
            shown: Shown::windows(run, &windows)?,
        };
        run.keep_model(work, kept)?;
        let outcome = if iterated.settled { "stopped early" } else { "finished" }.to_owned();
        let report = page::report(run, work.prepared.name(), &windows, &iterated, judged);
        Ok(Making::Complete(Box::new(Made { report, trained: said, outcome })))
    }

    fn main_scores(&self, figures: &Value) -> Vec<TestScore> {
        // The first is the trained encoder.
        let own = figures["subjects"][0]["normalised_information"].clone();
        let own = serde_json::from_value(own).ok();
        let name = "normalised mutual information with the true classes";
        own.map(|estimate| TestScore::number(name, estimate)).into_iter().collect()
    }

    fn unread(&self, config: &PipelineConfig) -> Vec<String> {
        online::unread(config).into_iter().chain(["model".to_owned()]).collect()
    }

    fn unsearched(&self) -> Option<&'static str> {
        Some(
            "a search needs a validation loss that compares, and losses on clusters of its own do not\n  \
             search a pipeline of another kind",
        )
    }
}

/// The key of a training of several iterations, which once had all the same order of batches, noise, dropout and hidden
/// steps; left out where there is one alone, so that such runs keep their keys.
fn drawn(training: KeyBuilder, settings: &PseudolabelConfig) -> KeyBuilder {
    if settings.iterations > 1 { training.field("draws", "of each iteration") } else { training }
}

/// The table, or its defaults.
pub(crate) fn settings(config: &PipelineConfig) -> PseudolabelConfig {
    config.pseudolabel.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_iterations_have_another_key_than_those_that_all_drew_the_same() {
        let begun = || Key::builder("pseudolabel", 3);
        let key = |iterations| {
            drawn(begun(), &PseudolabelConfig { iterations, ..PseudolabelConfig::default() })
        };
        assert_eq!(key(1).finish(), begun().finish());
        assert_ne!(key(2).finish(), begun().finish());
    }
}
