//! The iterations: embed, cluster, train on the clusters, until they settle.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use firebox_core::{Event, HeldOutWindows, Key, Stream, TrainWindows, count};
use firebox_eval::{EvalError, KMeans, KMeansConfig, embed, moved};
use firebox_loader::{LoaderConfig, NormalisedWindows, Relabelled, Source, TrainSource};
use firebox_models::{CnnBiLstm, read_parameters, write_parameters};
use firebox_train::{Data, Outcome};

use super::PseudolabelConfig;
use super::objective::Clusters;
use crate::chain::Work;
use crate::config::RunConfig;
use crate::error::PipelineError;
use crate::measure::Stoppable;
use crate::online::{slots, source};
use crate::page::setting_keys;
use crate::stages::{Run, Windows, training};
use crate::sub::{Sub, sub_trained_before};

/// Parameters that are drawn anew in each iteration, because clusters change their names.
const CLASSIFIER: [&str; 2] = ["classifier.", "output."];

/// The windows, scaled by what was fitted on the training part.
pub(super) struct ClusterParts {
    pub(super) train: Arc<NormalisedWindows<TrainWindows>>,
    pub(super) test: Arc<NormalisedWindows<HeldOutWindows>>,
}

impl ClusterParts {
    pub(super) fn new(windows: &Windows) -> Self {
        let (parts, normaliser) = (&windows.parts, &windows.normaliser);
        Self {
            train: Arc::new(NormalisedWindows::new(parts.train.clone(), normaliser.clone())),
            test: Arc::new(NormalisedWindows::new(parts.test.clone(), normaliser.clone())),
        }
    }

    /// What to know of hidden runs that no window is long enough for: half of a window stays.
    pub(super) fn mask_warning(&self, time_mask: usize) -> Option<String> {
        let windows = self.train.windows();
        let longest = (!windows.is_empty()).then(|| windows.longest())?;
        let most = longest / 2 + 1;
        (time_mask > most).then(|| {
            format!(
                "`pseudolabel.time_mask` is {time_mask}, and the longest training window has {longest} steps, of which at least half stay: it is as if it were {most}"
            )
        })
    }
}

/// One iteration.
pub(super) struct Round {
    pub(super) number: usize,
    /// Training windows of each cluster.
    pub(super) sizes: Vec<usize>,
    /// Share of the training windows in another cluster than in the iteration before.
    pub(super) moved: Option<f64>,
    /// Clusters of the test windows, by the centers of the training windows.
    pub(super) test: Vec<u32>,
    pub(super) steps: u64,
    pub(super) epochs: u64,
    pub(super) loss: Option<f64>,
    pub(super) seconds: f64,
}

/// What came of all iterations.
pub(super) struct Iterated {
    pub(super) rounds: Vec<Round>,
    /// Whether the clusters had settled.
    pub(super) settled: bool,
    /// The encoder after the last iteration.
    pub(super) model: CnnBiLstm,
    /// Clusters of the test windows by that encoder.
    pub(super) last: Vec<u32>,
}

impl Iterated {
    /// Steps of all iterations together.
    pub(super) fn steps(&self) -> u64 {
        self.rounds.iter().map(|round| round.steps).sum()
    }
}

/// Clusters of the training windows, and of the test windows by the same centers.
pub(super) struct Clustered {
    pub(super) found: KMeans,
    pub(super) test: Vec<u32>,
}

impl Run<'_> {
    /// All iterations: `Err` with the steps taken if they were interrupted.
    pub(super) fn iterate(
        &self,
        work: &mut Work<'_>,
        settings: &PseudolabelConfig,
        parts: &ClusterParts,
    ) -> Result<Result<Iterated, u64>, PipelineError> {
        let mut remade = 0;
        let result = self.stage("train", Some(self.keys.training), &mut remade, || {
            let [_, channels] = parts.train.shape();
            let mut model = self.initial(settings, self.config.run.seed, channels)?;
            let (mut rounds, mut before) = (Vec::<Round>::new(), None::<Vec<u32>>);
            let (mut settled, mut reused, mut key) = (false, true, self.keys.training);
            let stopped = |rounds: &[Round]| {
                let steps: u64 = rounds.iter().map(|round| round.steps).sum();
                Ok((Err(steps), false, "interrupted".to_owned()))
            };
            let mut clustered = match self.cluster(settings, &model, parts) {
                Err(PipelineError::Interrupted) => return stopped(&rounds),
                clustered => clustered?,
            };
            for number in 1..=settings.iterations {
                key = Key::builder("iteration", 1)
                    .upstream("before", key)
                    .field("number", (number as u64).to_le_bytes())
                    .finish();
                let name = format!("iteration-{number}");
                reused &= sub_trained_before(work, &name);
                let assigned = clustered.found.assigned.clone();
                let share = before.as_ref().map(|before| moved(before, &assigned));
                let round = Round {
                    number,
                    sizes: sizes(&assigned, settings.clusters),
                    moved: share,
                    test: clustered.test.clone(),
                    steps: 0,
                    epochs: 0,
                    loss: None,
                    seconds: 0.0,
                };
                self.keep_clusters(work, &name, &clustered.found)?;
                let sub = Sub {
                    name: &name,
                    key,
                    seed: self.drawn_by(number),
                    batch_size: self.config.loader.batch_size,
                    keys: setting_keys(self.config),
                };
                let (next, round, outcome) =
                    self.train_on(work, settings, parts, &sub, model, &assigned, round)?;
                rounds.push(round);
                if outcome == Outcome::Interrupted {
                    return stopped(&rounds);
                }
                model = next;
                clustered = match self.cluster(settings, &model, parts) {
                    Err(PipelineError::Interrupted) => return stopped(&rounds),
                    clustered => clustered?,
                };
                self.listener.on(&Event::Progress {
                    stage: "train".to_owned(),
                    done: number as u64,
                    total: settings.iterations as u64,
                    unit: "iterations".to_owned(),
                });
                settled = moved(&assigned, &clustered.found.assigned) <= settings.settled;
                before = Some(assigned);
                if settled {
                    break;
                }
            }
            let last = clustered.test;
            let iterated = Iterated { rounds, settled, model, last };
            let detail = format!(
                "{} in {}{}",
                count(iterated.steps(), "step"),
                count(iterated.rounds.len() as u64, "iteration"),
                if settled { ", the clusters have settled" } else { "" }
            );
            Ok((Ok(iterated), reused, detail))
        })?;
        work.remade += remade;
        Ok(result)
    }

    /// The encoder as it is initialised from a seed.
    pub(super) fn initial(
        &self,
        settings: &PseudolabelConfig,
        seed: u64,
        channels: usize,
    ) -> Result<CnnBiLstm, PipelineError> {
        let stream = Stream::new(seed, "weights");
        let model =
            settings.model.init(stream, channels, settings.clusters, &self.device.device)?;
        Ok(model.in_precision(self.config.run.precision))
    }

    /// Embeds and clusters the training windows, and assigns the test windows: [`PipelineError::Interrupted`] if the run
    /// is asked to stop meanwhile.
    pub(super) fn cluster(
        &self,
        settings: &PseudolabelConfig,
        model: &CnnBiLstm,
        parts: &ClusterParts,
    ) -> Result<Clustered, PipelineError> {
        let (batch, device) = (self.config.evaluate.batch_size, &self.device.device);
        let (train, test) = (&parts.train, &parts.test);
        let normalised = || train.normaliser().clone();
        let train = NormalisedWindows::new(train.windows().clone(), normalised());
        let test = NormalisedWindows::new(test.windows().clone(), normalised());
        let stop = || Arc::clone(self.stop);
        let train: Arc<dyn Source> = Arc::new(Stoppable { source: train, stop: stop() });
        let test: Arc<dyn Source> = Arc::new(Stoppable { source: test, stop: stop() });
        let embedded = |source| match embed(model, source, 0, batch, device) {
            Err(_) if self.stop.load(Ordering::Relaxed) => Err(PipelineError::Interrupted),
            embedded => embedded.map_err(PipelineError::from),
        };
        let (train, test) = (embedded(&train)?, embedded(&test)?);
        let found = self.cluster_rows(settings, &train.rows, train.width, |_| ())?;
        Ok(Clustered { test: found.assign(&test.rows, train.width), found })
    }

    /// Clusters training rows; `watch` is told how many starts are done.
    pub(super) fn cluster_rows(
        &self,
        settings: &PseudolabelConfig,
        train: &[f32],
        width: usize,
        watch: impl FnMut(u32),
    ) -> Result<KMeans, PipelineError> {
        let config = KMeansConfig {
            clusters: settings.clusters,
            restarts: settings.restarts,
            seed: self.config.run.seed,
            ..KMeansConfig::default()
        };
        match config.fit_watched(train, width, self.stop, watch) {
            Err(EvalError::Stopped) => Err(PipelineError::Interrupted),
            found => Ok(found?),
        }
    }

    /// Writes the clusters of an iteration beside its training.
    fn keep_clusters(
        &self,
        work: &Work<'_>,
        name: &str,
        found: &KMeans,
    ) -> Result<(), PipelineError> {
        let folder = crate::sub::folder(work, name)?;
        let text = serde_json::to_vec(found)
            .map_err(|error| crate::error::at(&folder)(std::io::Error::other(error)))?;
        work.folder.write(&format!("parts/{name}/clusters.json"), &text)
    }

    /// The seed of all that an iteration draws: versions of windows, the order of batches, what is hidden, noise and
    /// dropout. The first one draws by the run's own.
    fn drawn_by(&self, iteration: usize) -> u64 {
        self.config.run.seed.wrapping_add(iteration as u64 - 1)
    }

    /// The training windows as an iteration learns from them: with their versions, if any are drawn. Each iteration has
    /// others.
    pub(super) fn learnt_in(
        &self,
        parts: &ClusterParts,
        iteration: usize,
    ) -> Result<Arc<dyn TrainSource>, PipelineError> {
        let (windows, normaliser) = (parts.train.windows().clone(), parts.train.normaliser());
        source(windows, normaliser.clone(), &self.config.augment, self.drawn_by(iteration))
    }

    /// Trains encoder and classifier on the clusters, from the encoder of the iteration before.
    #[allow(
        clippy::too_many_arguments,
        reason = "one call, and each argument has a type of its own"
    )]
    fn train_on(
        &self,
        work: &Work<'_>,
        settings: &PseudolabelConfig,
        parts: &ClusterParts,
        sub: &Sub<'_>,
        encoder: CnnBiLstm,
        assigned: &[u32],
        round: Round,
    ) -> Result<(CnnBiLstm, Round, Outcome), PipelineError> {
        let names = (1..=settings.clusters).map(|cluster| format!("cluster {cluster}")).collect();
        // Versions are of the cluster of their window.
        let slots = slots(&self.config.augment);
        let labels = assigned.iter().flat_map(|own| std::iter::repeat_n(*own, slots)).collect();
        let source = Relabelled::new(self.learnt_in(parts, round.number)?, labels, names);
        let loader = LoaderConfig { seed: sub.seed, ..self.loader() };
        let loader = self.placed_loader(Arc::new(source), None, loader)?;
        let loader = loader.with_masking(settings.masking)?;
        let objective =
            Clusters::new(assigned, settings.clusters, settings.noise, settings.time_mask);
        let [_, channels] = parts.train.shape();
        let model = self.with_new_classifier(settings, &encoder, round.number as u64, channels)?;
        let data = Data { train: &loader, validation: None };
        let trained = self.train_sub(work, sub, model, &objective, data, &training(self.config))?;
        let summary = trained.summary;
        let round = Round {
            steps: summary.steps,
            epochs: summary.epochs,
            loss: summary.best.map(|best| best.loss),
            seconds: summary.seconds,
            ..round
        };
        Ok((trained.model, round, summary.outcome))
    }

    /// The encoder with a classifier as it is initialised.
    fn with_new_classifier(
        &self,
        settings: &PseudolabelConfig,
        encoder: &CnnBiLstm,
        iteration: u64,
        channels: usize,
    ) -> Result<CnnBiLstm, PipelineError> {
        let seed = self.config.run.seed;
        let stream = Stream::new(seed, "classifier").substream(iteration);
        let model =
            settings.model.init(stream, channels, settings.clusters, &self.device.device)?;
        let RunConfig { precision, recompute, .. } = self.config.run;
        let mut model = model.in_precision(precision).recomputed(recompute);
        let new = |name: &str| CLASSIFIER.iter().any(|prefix| name.starts_with(prefix));
        let mut parameters = read_parameters(&model);
        parameters.retain(|parameter| new(&parameter.name));
        let kept = read_parameters(encoder);
        parameters.extend(kept.into_iter().filter(|parameter| !new(&parameter.name)));
        write_parameters(&mut model, parameters).map_err(|mismatch| {
            PipelineError::Setting(format!(
                "the encoder does not fit its next iteration: {mismatch}"
            ))
        })?;
        Ok(model)
    }
}

fn sizes(assigned: &[u32], clusters: usize) -> Vec<usize> {
    let mut sizes = vec![0; clusters];
    assigned.iter().for_each(|cluster| sizes[*cluster as usize] += 1);
    sizes
}
