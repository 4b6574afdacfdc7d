//! Data that change under a search: its trials would be compared by losses of other data.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use burn::tensor::Device;
use firebox_core::{Event, Listener};
use firebox_pipeline::{ChosenDevice, PipelineError, Search, SearchSource};
use tempfile::TempDir;

fn bars(folder: &Path, count: usize) {
    let price = |step: usize| 100.0 + (step * step % 17) as f64 * 0.1 + (step % 101) as f64 * 0.05;
    let row = |step: usize| {
        let (open, close) = (price(step), price(step + 1));
        let (high, low) = (open.max(close) + 0.1, open.min(close) - 0.1);
        format!("{open},{high},{low},{close}\n")
    };
    let rows: String = (0..count).map(row).collect();
    std::fs::write(folder.join("bars.csv"), format!("open,high,low,close\n{rows}")).unwrap();
}

/// A search of two trials on 2,000 bars.
fn project() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    bars(folder.path(), 2000);
    let pipeline = format!(
        r#"
labels = "none"
[data]
path = "bars.csv"
[window]
length = 16
stride = 1
[augment]
versions = 1
[model.bilstm-mae]
hidden = 4
layers = 1
decoder_hidden = 4
[run]
directory = "{0}/runs"
cache = "{0}/cache"
[train]
epochs = 1
max_steps = 4
[loader]
batch_size = 16
[monitor]
period = 0
[search]
trials = 2
sampler = "grid"
pruner = "none"
[search.space]
"model.bilstm-mae.hidden" = {{ choices = [4, 5] }}
"#,
        folder.path().display()
    );
    std::fs::write(folder.path().join("p.toml"), pipeline).unwrap();
    folder
}

/// Gives the data a step more when a trial begins.
struct Changer<'a> {
    folder: &'a Path,
    /// The trial of this worker, from 0.
    nth: Option<usize>,
    begun: AtomicUsize,
}

impl Listener for Changer<'_> {
    fn on(&self, event: &Event) {
        if let Event::StageStarted { stage } = event
            && stage.starts_with("trial")
            && Some(self.begun.fetch_add(1, Ordering::SeqCst)) == self.nth
        {
            bars(self.folder, 2001);
        }
    }
}

/// Works on the study; the data change as soon as the `nth` trial of this worker begins.
fn work(folder: &Path, nth: Option<usize>) -> Result<(), PipelineError> {
    let source = SearchSource::File(folder.join("p.toml"));
    let search = Search::open(&source, [], &[], &Arc::new(AtomicBool::new(false)))?;
    let device = ChosenDevice {
        device: Device::flex(),
        backend: "cpu".to_owned(),
        description: "a processor".to_owned(),
        reason: String::new(),
    };
    search.work(&device, &Changer { folder, nth, begun: AtomicUsize::new(0) })
}

fn assert_refused(result: Result<(), PipelineError>) {
    assert!(
        matches!(result, Err(PipelineError::OtherStudyData { .. })),
        "{:?}",
        result.map_err(|error| error.to_string())
    );
}

#[test]
fn a_search_stops_when_its_data_change_and_goes_on_when_they_are_back() {
    let folder = project();
    // While it works, before its second trial.
    assert_refused(work(folder.path(), Some(1)));
    // Before it begins, with a value known.
    assert_refused(work(folder.path(), None));
    bars(folder.path(), 2000);
    work(folder.path(), None).unwrap();
}

#[test]
fn data_of_which_nothing_was_learnt_may_be_mended() {
    let folder = project();
    assert_refused(work(folder.path(), Some(0)));
    // No trial has a value: the study takes the data as they are.
    work(folder.path(), None).unwrap();
}
