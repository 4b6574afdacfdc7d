//! TensorBoard's event files (`tensorboard/compat/proto/event.proto`, `summary.proto`): scalars,
//! histograms of a checkpoint's weights, pictures, the settings of the run, and which curves belong into
//! one graph.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use firebox_core::Event;

use super::histogram::{self, Histogram};
use super::png::png;
use super::points::{Name, Points, settings};
use super::protobuf::{Message, record};
use super::{Ending, Picture, Track, TrackError, TrackedRun, at, hparams, layout, now};
use crate::TensorBoardConfig;

/// An event file being written.
pub(crate) struct TensorBoard {
    path: PathBuf,
    file: File,
    /// Records that are not on disk yet.
    pending: Vec<u8>,
    points: Points,
    histograms: bool,
    run: TrackedRun,
    step: u64,
    /// Whether the attempt began from the start and has told no step yet.
    anew: bool,
}

impl TensorBoard {
    /// A new event file beside those of earlier attempts, which TensorBoard reads as one run.
    pub(crate) fn open(config: &TensorBoardConfig, run: TrackedRun) -> Result<Self, TrackError> {
        let folder = match config.folder.as_os_str().is_empty() {
            true => run.folder.join("tensorboard"),
            false => config.folder.join(&run.name),
        };
        std::fs::create_dir_all(&folder).map_err(at(&folder))?;
        let (path, file) = new_file(&folder)?;
        let points = Points::new(config.every);
        let mut board = Self {
            path,
            file,
            pending: vec![],
            points,
            histograms: config.histograms,
            run,
            step: 0,
            anew: false,
        };
        // What every file must begin with.
        board.add(now(), None, Message::new().text(3, "brain.Event:2"));
        board.flush()?;
        Ok(board)
    }

    /// An event: its time, its step, and what happened.
    fn add(&mut self, time: u64, step: Option<u64>, what: Message) {
        let mut event = Message::new().double(1, time as f64 / 1e3);
        if let Some(step) = step {
            event = event.int(2, step);
        }
        let mut bytes = event.bytes();
        bytes.extend(what.bytes());
        self.pending.extend(record(&bytes));
    }

    fn summaries(&mut self, time: u64, step: u64, values: Vec<Message>) {
        let summary = values.into_iter().fold(Message::new(), |all, value| all.message(1, value));
        self.add(time, Some(step), Message::new().message(5, summary));
    }

    /// The mark with which TensorBoard forgets what an attempt that was cut off had told of this step and later ones.
    fn forget_from(&mut self, time: u64, step: u64) {
        let start = Message::new().int(1, 1);
        self.add(time, Some(step), Message::new().message(7, start));
    }

    /// The settings; and where a run goes on, the mark of the step after the last. One that begins from the start has it
    /// with its first step: what it tells before that has none.
    fn started(&mut self, time: u64, resumed: Option<u64>) {
        self.anew = resumed.is_none();
        if let Some(step) = resumed {
            self.step = step;
            self.forget_from(time, step + 1);
        }
        let settings = settings(&self.run.settings);
        let start = hparams::session_start(&settings, &self.run.name, time as f64 / 1e3);
        self.summaries(time, 0, vec![hparams::experiment(&settings), start, layout::graphs()]);
    }

    fn checkpoint(&mut self, time: u64, step: u64, path: &Path) {
        let weights = histogram::of_file(&path.join("weights.safetensors"), "");
        // AdamW's first moment is the running mean of the gradient, SGD's buffer its running sum.
        let gradients = |of| histogram::of_file(&path.join("optimizer.safetensors"), of);
        let all = [
            ("weights", weights),
            ("gradients, running mean", gradients("exp_avg.")),
            ("gradients, momentum", gradients("momentum_buffer.")),
        ];
        let values: Vec<Message> = all
            .iter()
            .flat_map(|(kind, all)| all.iter().map(move |(name, one)| summary(kind, name, one)))
            .collect();
        if !values.is_empty() {
            self.summaries(time, step, values);
        }
    }
}

/// A histogram as `HistogramProto`.
fn summary(kind: &str, name: &str, histogram: &Histogram) -> Message {
    let proto = Message::new()
        .double(1, histogram.min)
        .double(2, histogram.max)
        .double(3, histogram.count)
        .double(4, histogram.sum)
        .double(5, histogram.sum_squares)
        .doubles(6, &histogram.limits)
        .doubles(7, &histogram.counts);
    Message::new().text(1, &format!("{kind}/{name}")).message(5, proto)
}

/// A file that was not there: TensorBoard reads the files of a folder in the order of their names.
fn new_file(folder: &Path) -> Result<(PathBuf, File), TrackError> {
    let seconds = now() / 1000;
    let process = std::process::id();
    let mut place = 0;
    loop {
        let path =
            folder.join(format!("events.out.tfevents.{seconds:010}.firebox.{process}.{place}"));
        match OpenOptions::new().create_new(true).append(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => place += 1,
            Err(error) => return Err(at(&path)(error)),
        }
    }
}

impl Track for TensorBoard {
    fn take(&mut self, time: u64, event: &Event) -> Result<(), TrackError> {
        match event {
            Event::RunStarted { resumed_at_step, .. } => self.started(time, *resumed_at_step),
            Event::Checkpoint { step, path, .. } if self.histograms => {
                self.checkpoint(time, *step, Path::new(path));
            }
            _ => {}
        }
        if let Event::Step { step, .. } | Event::LossScale { step, .. } = event
            && std::mem::take(&mut self.anew)
        {
            // Settings and what the machine did before training are of step 0.
            self.forget_from(time, (*step).max(1));
        }
        if let Some((step, pairs)) = self.points.of(event) {
            self.step = step;
            let scalar =
                |(name, value): &(Name, f64)| Message::new().text(1, name).float(2, *value as f32);
            self.summaries(time, step, pairs.iter().map(scalar).collect());
        }
        // Kept small whatever happens between two flushes.
        if self.pending.len() > 1 << 20 { self.flush() } else { Ok(()) }
    }

    fn picture(&mut self, time: u64, picture: &Picture) -> Result<(), TrackError> {
        let image = Message::new()
            .int(1, picture.height as u64)
            .int(2, picture.width as u64)
            // Red, green and blue.
            .int(3, 3)
            .blob(4, &png(picture));
        let value = Message::new().text(1, &picture.name).message(4, image);
        self.summaries(time, self.step, vec![value]);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TrackError> {
        self.file.write_all(&self.pending).map_err(at(&self.path))?;
        self.pending.clear();
        Ok(())
    }

    fn close(&mut self, time: u64, ending: Ending) -> Result<(), TrackError> {
        let end = hparams::session_end(ending, time as f64 / 1e3);
        self.summaries(time, self.step, vec![end]);
        self.flush()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let run = TrackedRun {
            name: "r".to_owned(),
            folder: folder.path().to_path_buf(),
            settings: serde_json::json!({ "a": 1 }),
        };
        let mut board = TensorBoard::open(&TensorBoardConfig::default(), run.clone()).unwrap();
        board.take(1, &crate::testing::step(1, 0.5)).unwrap();
        board.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = board.flush().unwrap_err().to_string();
        assert!(error.contains("cannot write") && error.contains("events.out.tfevents"), "{error}");
        assert!(error.contains("No space left"), "{error}");
        // An attempt that begins in the same second has a file of its own.
        let other = TensorBoard::open(&TensorBoardConfig::default(), run).unwrap();
        assert_ne!(other.path, board.path);
    }

    /// Steps from which on earlier attempts are to be forgotten.
    fn forgotten(records: &[u8]) -> Vec<u8> {
        // The step, and a session log whose status is START.
        let marks =
            records.windows(6).filter(|bytes| bytes[0] == 0x10 && bytes[2..] == [58, 2, 8, 1]);
        marks.map(|bytes| bytes[1]).collect()
    }

    #[test]
    fn an_attempt_without_a_checkpoint_forgets_those_before_it_with_its_first_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let run = TrackedRun { name: "r".to_owned(), folder: path.into(), settings: ().into() };
        let check = |resumed_at_step, events: &[Event], expected: &[u8]| {
            let mut board = TensorBoard::open(&TensorBoardConfig::default(), run.clone()).unwrap();
            let (run, device) = ("r".to_owned(), "cpu".to_owned());
            board.take(1, &Event::RunStarted { run, device, resumed_at_step }).unwrap();
            events.iter().for_each(|event| board.take(2, event).unwrap());
            assert_eq!(forgotten(&board.pending), expected, "{resumed_at_step:?} {events:?}");
        };
        let step = |step| crate::testing::step(step, 0.5);
        let scale = Event::LossScale { step: 1, before: 2.0, scale: 1.0, overflows: 1 };
        let machine = Event::Machine(Default::default());
        check(None, std::slice::from_ref(&machine), &[]);
        check(None, &[machine, step(1), step(2), scale.clone()], &[1]);
        check(None, &[scale, step(2)], &[1]);
        check(Some(4), &[step(5), step(6)], &[5]);
    }

    #[test]
    fn what_either_optimizer_remembers_of_the_gradients_is_drawn() {
        use safetensors::tensor::{Dtype, TensorView};

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let run = TrackedRun { name: "r".to_owned(), folder: path.into(), settings: ().into() };
        let bytes: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        for (tensor, expected) in [
            ("exp_avg.w", "gradients, running mean/w"),
            ("momentum_buffer.w", "gradients, momentum/w"),
        ] {
            let view = TensorView::new(Dtype::F32, vec![2], &bytes).unwrap();
            let file = safetensors::serialize([(tensor, view)], None).unwrap();
            std::fs::write(path.join("optimizer.safetensors"), file).unwrap();
            let mut board = TensorBoard::open(&TensorBoardConfig::default(), run.clone()).unwrap();
            board.checkpoint(1, 1, path);
            let told = String::from_utf8_lossy(&board.pending).into_owned();
            assert!(told.contains(expected), "{told}");
        }
    }
}
