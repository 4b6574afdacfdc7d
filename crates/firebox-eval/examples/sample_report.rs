//! Writes a report made of invented numbers, to look at: `cargo run --example sample_report FOLDER
//! [market|edge|plain]`. `edge` has nine classes, twelve channels and 300,000 steps; `plain` has no
//! labels, one epoch and no masked window.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::path::PathBuf;

use firebox_core::{Silent, Stream};
use firebox_eval::{
    CheckpointRow, EmbeddingView, EpochPoint, EvalConfig, Fact, Features, MaskedWindow, Parts,
    Reason, ReconstructionTally, Report, Stage, StepPoint, Subjects, Table, Together, evaluate,
    project, verdict,
};

struct Sample {
    title: &'static str,
    classes: Vec<String>,
    channels: Vec<String>,
    steps: u64,
    epochs: u64,
    windows: usize,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().unwrap_or_else(|| "sample-report".to_owned()));
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let sample = match arguments.next().as_deref() {
        None | Some("market") => Sample {
            title: "SAMPLE with invented numbers: pre-training on a small market",
            classes: names(&["trend", "mean reversion", "consolidation", "breakout"]),
            channels: names(&["open", "high", "low", "close"]),
            steps: 5_800,
            epochs: 50,
            windows: 900,
        },
        Some("edge") => Sample {
            title: "SAMPLE with invented numbers: nine classes, <twelve> channels & 300,000 steps",
            classes: (1..=9).map(|speaker| format!("speaker number {speaker}")).collect(),
            channels: (1..=12).map(|channel| format!("coefficient {channel}")).collect(),
            steps: 300_000,
            epochs: 400,
            windows: 370,
        },
        Some("plain") => Sample {
            title: "SAMPLE with invented numbers: no labels, one epoch",
            classes: vec![],
            channels: names(&["value"]),
            steps: 40,
            epochs: 1,
            windows: 0,
        },
        Some(other) => return Err(format!("`{other}`: market, edge or plain").into()),
    };
    let report = sample.report()?;
    let written = report.write(&folder)?;
    println!("{}", written.html.display());
    Ok(())
}

impl Sample {
    fn report(&self) -> Result<Report, Box<dyn std::error::Error>> {
        let config = EvalConfig::default();
        let mut report = Report::new(self.title, "sample-0001", verdict(None, None));
        report.created = "2026-01-01 12:00 UTC".to_owned();
        report.device = "cpu (flex), invented".to_owned();
        report.outcome = "finished".to_owned();
        report.seconds = 161.0;
        report.facts = vec![
            Fact::new("Model", "BiLSTM masked autoencoder"),
            Fact::new("Parameters", "566,408 (encoder 532,480)"),
        ];
        self.train(&mut report);
        self.stages(&mut report);
        let (pretrained, raw) = (self.parts(2.1, 1), self.parts(1.2, 2));
        let subjects = Subjects {
            classes: &self.classes,
            pretrained: &pretrained,
            raw: &raw,
            together: &Together::every(4),
        };
        let scores = evaluate(&config, &subjects, |seed| Ok(self.parts(1.0, seed)), &Silent)?;
        let mut tally = ReconstructionTally::new(self.channels.clone());
        for index in 0..self.windows.min(200) {
            let window = self.window(index);
            tally.add(&window)?;
            if index % 50 == 7 {
                report.masked_windows.push(window);
            }
        }
        report.channels.clone_from(&self.channels);
        report.judge(scores, tally.finish(&config, &Together::every(4)));
        report.embedding = (!self.classes.is_empty()).then(|| EmbeddingView {
            projection: project(&pretrained.test.rows, pretrained.test.width),
            labels: pretrained.test.labels.iter().map(|label| Some(*label)).collect(),
            classes: self.classes.clone(),
        });
        report.warnings = vec!["all numbers of this report are invented".to_owned()];
        Ok(report)
    }

    /// Features whose first columns carry the class as strongly as `signal` says.
    fn parts(&self, signal: f64, seed: u64) -> Parts {
        let width = 32;
        let part = |rows: usize, place: u64| {
            let mut classes = Stream::new(7, "classes").substream(place).draws();
            let mut draws = Stream::new(seed, "features").substream(place).draws();
            let mut features = Features { width, ..Features::default() };
            for _ in 0..rows.min(rows * self.classes.len()) {
                let label = classes.below(self.classes.len() as u64) as usize;
                for column in 0..width {
                    let shift = if column == label { signal } else { 0.0 };
                    features.rows.push((draws.normal() + shift) as f32);
                }
                features.labels.push(label as u32);
            }
            features
        };
        Parts {
            train: part(2 * self.windows, 0),
            validation: part(self.windows / 2, 1),
            test: part(self.windows, 2),
        }
    }

    /// A random walk with blocks of masked steps, reconstructed with a little error.
    fn window(&self, index: usize) -> MaskedWindow {
        let (steps, channels) = (105, self.channels.len());
        let mut draws = Stream::new(index as u64, "window").draws();
        let mut level = vec![0.0; channels];
        let mut window = MaskedWindow { index, ..MaskedWindow::default() };
        let starts = [7 * (1 + draws.below(6)), 7 * (8 + draws.below(6))];
        for step in 0..steps {
            let shared = draws.normal();
            let masked = starts.iter().any(|start| (*start..*start + 7).contains(&step));
            for level in &mut level {
                *level = 0.98 * *level + 0.25 * (shared + 0.3 * draws.normal());
                window.truth.push(*level as f32);
                let error = if masked { 0.14 } else { 0.05 };
                window.reconstructed.push((*level + error * draws.normal()) as f32);
            }
            window.mask.push(masked);
        }
        window
    }

    fn train(&self, report: &mut Report) {
        let mut draws = Stream::new(3, "curves").draws();
        let loss = |progress: f64| 0.12 + 1.1 * (-7.0 * progress).exp() + 0.1 * (1.0 - progress);
        for step in 1..=self.steps {
            let progress = step as f64 / self.steps as f64;
            let rate = (20.0 * progress).min(0.5 + 0.5 * (std::f64::consts::PI * progress).cos());
            report.curves.steps.push(StepPoint {
                step,
                loss: loss(progress) * (1.0 + 0.12 * draws.normal()),
                learning_rate: 1e-3 * rate,
                gradient_norm: (0.9 - 0.5 * progress) * (0.35 * draws.normal()).exp(),
            });
        }
        for epoch in 1..=self.epochs {
            let progress = epoch as f64 / self.epochs as f64;
            let overfit = 0.12 * (progress - 0.7).max(0.0);
            report.curves.epochs.push(EpochPoint {
                epoch,
                step: self.steps * epoch / self.epochs,
                train_loss: loss(progress),
                validation_loss: Some(1.04 * loss(progress) + overfit + 0.004 * draws.normal()),
                best: false,
            });
        }
        report.curves.clip_norm = Some(1.0);
        report.curves.skipped = if self.epochs > 1 { vec![17] } else { vec![] };
        report.checkpoints = [self.steps / 2, self.steps]
            .map(|step| CheckpointRow {
                step,
                path: format!("checkpoints/step-{step:06}"),
                bytes: 6_823_412,
                blocked_milliseconds: 2.1,
                save_milliseconds: 48.0,
            })
            .to_vec();
    }

    fn stages(&self, report: &mut Report) {
        let stage = |name: &str, seconds, reused, detail: &str| Stage {
            name: name.to_owned(),
            key: Some("4f2a90c1be77".to_owned()),
            reused,
            seconds,
            detail: detail.to_owned(),
        };
        report.stages = vec![
            stage("ingest", 0.31, true, "3 series, 24,120 bars, 4 channels"),
            stage("augment", 1.92, true, "4,210 windows, 4 versions each, 35.4 MB"),
            stage("train", 148.0, false, "stopped after epoch 50 of 50"),
            Stage { key: None, ..stage("evaluate", 9.4, false, "5 random encoders") },
            Stage { key: None, ..stage("report", 0.04, false, "") },
        ];
        let rows = |rows: &[&[&str]]| {
            let row = |row: &&[&str]| row.iter().map(|cell| (*cell).to_owned()).collect();
            rows.iter().map(row).collect()
        };
        let columns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        report.data = vec![
            Table {
                title: "Split".to_owned(),
                note: "By time, with a gap of one window after each boundary.".to_owned(),
                columns: columns(&["part", "windows", "labelled", "from", "to"]),
                rows: rows(&[
                    &["training", "4,210", "1,800", "2024-01-02 09:30", "2024-09-12 16:00"],
                    &["validation", "601", "450", "2024-09-13 11:15", "2024-10-30 16:00"],
                    &["test", "1,203", "900", "2024-10-31 11:15", "2024-12-30 16:00"],
                    &["left out", "212", "", "", ""],
                ]),
            },
            Table {
                title: "Checks".to_owned(),
                note: "What was found before anything was trained.".to_owned(),
                columns: columns(&["check", "found", "done"]),
                rows: rows(&[
                    &["duplicate times", "3", "kept the last"],
                    &["gaps", "118", "windows stay on one side"],
                    &["high below low", "0", ""],
                    &["not finite", "12", "filled forward"],
                ]),
            },
        ];
        report.reasons = vec![
            Reason {
                key: "train.precision".to_owned(),
                value: "f32".to_owned(),
                reason: "the device is a CPU".to_owned(),
            },
            Reason {
                key: "evaluate.block".to_owned(),
                value: "4".to_owned(),
                reason: "windows of 105 steps begin every 30 steps".to_owned(),
            },
        ];
        report.configuration = "seed = 1337\n\n[data]\npath = \"data/market\"\n\n[model.bilstm-mae]\nhidden = 128\nlayers = 2\n\n[train]\nepochs = 50\nbatch_size = 512\n".to_owned();
    }
}
