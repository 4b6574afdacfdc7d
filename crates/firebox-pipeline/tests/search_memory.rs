//! What the trials of one worker hold in memory: one copy of the data for all of them, and nothing of a
//! trial that was given up. Counted by an allocator of this test's own, so that each byte is seen.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};

use burn::tensor::Device;
use firebox_core::{Event, Listener};
use firebox_pipeline::memory::{gave, held, took};
use firebox_pipeline::{ChosenDevice, Search, SearchSource};

/// The system's allocator, counting.
struct Counting;

// SAFETY: every block is the system's, asked for and given back with the same layout.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promise is the system's condition.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The counts are the whole process's.
static ONE_BY_ONE: Mutex<()> = Mutex::new(());

fn by_itself() -> MutexGuard<'static, ()> {
    ONE_BY_ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What was held when trials began, at the ends of their epochs, and after their ends.
#[derive(Default)]
struct Seen {
    running: Mutex<BTreeMap<String, ()>>,
    /// Trials that ran, and bytes.
    within: Mutex<Vec<(usize, u64)>>,
    /// Trial, what became of it, and bytes.
    after: Mutex<Vec<(String, String, u64)>>,
}

impl Listener for Seen {
    fn on(&self, event: &Event) {
        match event {
            Event::StageStarted { stage } if stage.starts_with("trial") => {
                self.running.lock().unwrap().insert(stage.clone(), ());
            }
            Event::Progress { stage, .. } if stage.starts_with("trial") => {
                let running = self.running.lock().unwrap().len();
                self.within.lock().unwrap().push((running, held().unwrap()));
            }
            Event::StageFinished { stage, detail, .. } if stage.starts_with("trial") => {
                self.running.lock().unwrap().remove(stage);
                let end = (stage.clone(), detail.clone(), held().unwrap());
                self.after.lock().unwrap().push(end);
            }
            _ => {}
        }
    }
}

fn bars(folder: &Path, count: usize) {
    let price = |i: usize| 100.0 + (i * i % 17) as f64 * 0.1 + (i % 101) as f64 * 0.05;
    let row = |i: usize| {
        let (open, close) = (price(i), price(i + 1));
        let (high, low) = (open.max(close) + 0.1, open.min(close) - 0.1);
        format!("{open},{high},{low},{close}\n")
    };
    let rows: String = (0..count).map(row).collect();
    std::fs::write(folder.join("bars.csv"), format!("open,high,low,close\n{rows}")).unwrap();
}

/// Pre-training on [`bars`].
const BARS: &str = r#"
labels = "none"
[data]
path = "bars.csv"
[window]
length = 64
stride = 1
[augment]
versions = 1
[model.bilstm-mae]
hidden = 4
layers = 1
decoder_hidden = 4
"#;

fn work(folder: &Path, pipeline: &str, search: &str) -> Seen {
    let pipeline = format!(
        r#"
{pipeline}
[run]
directory = "{0}/runs"
cache = "{0}/cache"
[train]
epochs = 3
max_steps = 24
[monitor]
period = 0
{search}"#,
        folder.display()
    );
    let file = folder.join("p.toml");
    std::fs::write(&file, pipeline).unwrap();
    let source = SearchSource::File(file);
    let search = Search::open(&source, [], &[], &Arc::new(AtomicBool::new(false))).unwrap();
    let device = ChosenDevice {
        device: Device::flex(),
        backend: "cpu".to_owned(),
        description: "a processor".to_owned(),
        reason: String::new(),
    };
    let seen = Seen::default();
    search.work(&device, &seen).unwrap();
    seen
}

const MIB: f64 = 1_048_576.0;

#[test]
fn a_trial_that_is_given_up_leaves_nothing_in_memory() {
    let _one = by_itself();
    let folder = tempfile::tempdir().unwrap();
    bars(folder.path(), 3000);
    let search = r#"
[loader]
batch_size = 32
[search]
trials = 6
sampler = "grid"
[search.pruner.threshold]
upper = 1e-9
[search.space]
"model.bilstm-mae.hidden" = { choices = [4, 5, 6, 256, 272, 288] }
"#;
    assert_nothing_left(work(folder.path(), BARS, search));
}

/// Six trials were given up, held much, and left nothing.
fn assert_nothing_left(seen: Seen) {
    let after = seen.after.into_inner().unwrap();
    assert_eq!(after.len(), 6);
    assert!(after.iter().all(|(_, detail, _)| detail.starts_with("given up early")), "{after:?}");
    // The first trial also makes what all share.
    let left: Vec<f64> = after.iter().map(|(.., bytes)| *bytes as f64 / MIB).collect();
    let within: Vec<f64> =
        seen.within.into_inner().unwrap().iter().map(|(_, bytes)| *bytes as f64 / MIB).collect();
    println!("MiB within: {within:.1?}, after: {left:.1?}");
    let largest = within.iter().copied().fold(0.0, f64::max);
    assert!(largest > left[0] + 10.0, "the large trials hold too little to show anything");
    let most = left.iter().copied().fold(0.0, f64::max);
    let least = left.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(most - least < 2.0, "MiB after each trial: {left:.1?}");
}

/// A word of eight letters for each number.
fn word(number: u64) -> String {
    let letters = (0..8u32).map(|place| (number.wrapping_mul(2_654_435_761) >> (4 * place)) % 26);
    letters.map(|letter| char::from(b'a' + letter as u8)).collect()
}

#[test]
fn a_trial_that_is_given_up_leaves_no_gradient_of_its_table() {
    let _one = by_itself();
    let folder = tempfile::tempdir().unwrap();
    let words = |text: u64| (0..40).map(|at| word(40 * text + at)).collect::<Vec<_>>().join(" ");
    let rows: String = (0..120).map(|text| format!("{},{}\n", words(text), text % 2)).collect();
    std::fs::write(folder.path().join("letters.csv"), format!("text,late\n{rows}")).unwrap();
    let texts = r#"
pipeline = "text"
[text]
path = "letters.csv"
longest = 16
[text.tokenizer]
vocabulary = 3000
[model.bert]
width = 256
heads = 1
layers = 1
feedforward = 8
"#;
    // A table of each width has a gradient of some 3 MiB.
    let search = r#"
[loader]
batch_size = 32
[search]
trials = 6
sampler = "grid"
[search.pruner.threshold]
upper = 1e-9
[search.space]
"model.bert.width" = { low = 232, high = 272, step = 8 }
"#;
    assert_nothing_left(work(folder.path(), texts, search));
}

#[test]
fn trials_at_once_have_one_copy_of_the_data() {
    let _one = by_itself();
    for place in ["memory", "device"] {
        let most = |concurrent: usize| {
            let folder = tempfile::tempdir().unwrap();
            bars(folder.path(), 24_000);
            let search = format!(
                r#"
[loader]
resident = "{place}"
[search]
trials = 6
sampler = "grid"
pruner = "none"
concurrent = {concurrent}
[search.space]
"loader.batch_size" = {{ choices = [16, 24, 32, 40, 48, 56] }}
"#
            );
            let before = held().unwrap();
            let seen = work(folder.path(), BARS, &search);
            let after = seen.after.into_inner().unwrap();
            let complete = |detail: &str| detail.starts_with("validation loss");
            assert!(after.iter().all(|(_, detail, _)| complete(detail)), "{after:?}");
            let within = seen.within.into_inner().unwrap();
            let at_once = within.iter().map(|(running, _)| *running).max().unwrap();
            assert_eq!(at_once, concurrent, "they never ran together");
            let bytes = within.iter().map(|(_, bytes)| bytes.saturating_sub(before)).max().unwrap();
            assert_eq!(held().unwrap().saturating_sub(before) / (8 << 20), 0, "what stays");
            bytes as f64 / MIB
        };
        let (one, three) = (most(1), most(3));
        // Two versions of some 16,000 windows of 64 steps of 4 channels in 4 bytes.
        let data = 2.0 * 16_000.0 * 64.0 * 4.0 * 4.0 / MIB;
        println!("{place}: {one:.1} MiB with one trial, {three:.1} MiB with three, data {data:.1}");
        assert!(one > data, "the data are not held: {one:.1} MiB of {data:.1}");
        assert!(three < one + data / 2.0, "{three:.1} MiB beside {one:.1}: more than one copy");
    }
}
