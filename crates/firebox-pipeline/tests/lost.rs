//! A device that had too little memory for a step on which others were built: the run ends with an error after
//! which the program begins anew, and goes on from there in smaller parts.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::Device;
use firebox_core::Silent;
use firebox_kernels::DeviceStep;
use firebox_pipeline::{ChosenDevice, Outcome, Prepared, Source};
use firebox_train::{DIVISIONS_FILE, History, without_memory_once};

const PIPELINE: &str = r#"
labels = "none"
[data]
path = "bars.csv"
[window]
length = 16
stride = 2
[augment]
versions = 1
[loader]
batch_size = 16
resident = "stream"
upload_ahead = 0
[model.bilstm-mae]
hidden = 6
layers = 1
decoder_hidden = 6
[train]
epochs = 2
early_stopping = false
[evaluate]
resamples = 100
[monitor]
period = 0
"#;

#[test]
fn a_run_that_lost_steps_goes_on_in_smaller_parts_once_it_is_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let price = |i: usize| 100.0 + (i * i % 17) as f64 * 0.1;
    let row = |i: usize| {
        let (open, close) = (price(i), price(i + 1));
        format!("{open},{},{},{close}\n", open.max(close) + 0.1, open.min(close) - 0.1)
    };
    let rows: String = (0..600).map(row).collect();
    std::fs::write(folder.path().join("bars.csv"), format!("open,high,low,close\n{rows}")).unwrap();
    let at = folder.path().display();
    let places = format!("[run]\ndirectory = \"{at}/runs\"\ncache = \"{at}/cache\"\n");
    let file = folder.path().join("p.toml");
    std::fs::write(&file, format!("{PIPELINE}{places}")).unwrap();
    // Named as no processor, the device trains on this thread, to which both of the below apply.
    let device = ChosenDevice {
        device: Device::flex(),
        backend: "test".to_owned(),
        description: "test: a processor".to_owned(),
        reason: String::new(),
    };
    let run = || {
        let prepared = Prepared::new(&Source::File(file.clone()), [], &[]).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        DeviceStep::force(true, || prepared.run(&device, &stop, &Silent))
    };
    let error = without_memory_once(8, run).unwrap_err();
    assert!(error.begins_anew(), "{error}");
    let finished = run().unwrap();
    assert_eq!(finished.outcome, Outcome::Finished);
    assert!(finished.run.join(DIVISIONS_FILE).is_file());
    let steps = History::read(&finished.run).unwrap().steps;
    assert!(steps.len() > 8 && steps.iter().zip(1..).all(|(step, number)| step.step == number));
    let report = std::fs::read_to_string(&finished.report).unwrap();
    assert!(report.contains("had too little memory"), "the report is silent");
}
