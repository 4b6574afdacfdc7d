//! Pictures of a report as pixels, for trackers that show no SVG. They have no text: names stand
//! beside them.

use super::Report;
use crate::{Confusion, MaskedWindow};

/// A picture of few colours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raster {
    /// Its name, such as `test/masked window 17`.
    pub name: String,
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Red, green and blue of each colour.
    pub palette: Vec<[u8; 3]>,
    /// Rows of pixels, each an index into the palette.
    pub pixels: Vec<u8>,
}

/// Masked windows that are drawn.
const MOST_WINDOWS: usize = 3;
/// Channels of one that are drawn.
const MOST_CHANNELS: usize = 12;
/// Pixels of a step at least, of a channel's row, and of the margin around it.
const WIDTH: usize = 480;
const ROW: usize = 60;
const MARGIN: usize = 6;
/// Pixels of a cell of the confusion matrix, and shades of its colours.
const CELL: usize = 24;
/// Pixels of its side, about, where there are many classes.
const LARGEST: usize = 2048;
/// Classes beyond which there is no picture: of a pixel and its edge each, it would take as many bytes as four times their square.
const MOST_CLASSES: usize = 2000;
const SHADES: usize = 15;

/// Indices into the palette of masked windows.
const PAPER: u8 = 0;
const MASK: u8 = 1;
const LINE: u8 = 2;
const TRUTH: u8 = 3;
const MODEL: u8 = 4;
/// The page's colours by light.
const COLOURS: [[u8; 3]; 5] =
    [[255, 255, 255], [246, 231, 216], [229, 223, 216], [71, 97, 126], [194, 65, 12]];

impl Report {
    /// The masked windows with what the model made of them, and the confusion matrix of the
    /// pre-trained encoder, where there are any.
    pub fn pictures(&self) -> Vec<Raster> {
        let channels = self.channels.len();
        let windows = self.masked_windows.iter().take(MOST_WINDOWS);
        let windows = windows.filter_map(|window| masked_window(window, channels));
        let confusion = self.evaluation.iter().map(|evaluation| &evaluation.confusion);
        let confusion =
            confusion.filter(|confusion| (2..=MOST_CLASSES).contains(&confusion.classes));
        windows.chain(confusion.map(confusion_matrix)).collect()
    }
}

struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Canvas {
    fn new(width: usize, height: usize) -> Self {
        Self { width, height, pixels: vec![PAPER; width * height] }
    }

    fn fill(&mut self, columns: std::ops::Range<usize>, rows: std::ops::Range<usize>, colour: u8) {
        for row in rows.start..rows.end.min(self.height) {
            let end = columns.end.min(self.width);
            let start = columns.start.min(end);
            self.pixels[row * self.width..][start..end].fill(colour);
        }
    }

    /// A line two pixels thick between two points that are finite.
    fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: u8) {
        let steps = (to.0 - from.0).abs().max((to.1 - from.1).abs()).ceil().max(1.0);
        for step in 0..=steps as usize {
            let share = step as f64 / steps;
            let x = (from.0 + share * (to.0 - from.0)).round().max(0.0) as usize;
            let y = (from.1 + share * (to.1 - from.1)).round().max(0.0) as usize;
            self.fill(x..x + 1, y..y + 2, colour);
        }
    }
}

/// A window, a row for each channel: what was hidden, the truth, and the model's values where it was.
fn masked_window(window: &MaskedWindow, channels: usize) -> Option<Raster> {
    let steps = window.mask.len();
    let whole = steps * channels;
    if whole == 0 || window.truth.len() != whole || window.reconstructed.len() != whole {
        return None;
    }
    let rows = channels.min(MOST_CHANNELS);
    // At least a pixel a step.
    let width = WIDTH.max(steps);
    let mut canvas = Canvas::new(width, ROW * rows);
    let at = |step: usize| (width - 1) as f64 * step as f64 / (steps.max(2) - 1) as f64;
    let half = 0.5 * at(1);
    for step in (0..steps).filter(|step| window.mask[*step]) {
        let columns = (at(step) - half).max(0.0) as usize..(at(step) + half).ceil() as usize;
        canvas.fill(columns, 0..ROW * rows, MASK);
    }
    for channel in 0..rows {
        let top = ROW * channel;
        canvas.fill(0..width, top + ROW - 1..top + ROW, LINE);
        let truth = |step: usize| f64::from(window.truth[step * channels + channel]);
        let model = |step: usize| match window.counts(step, channels) {
            true => f64::from(window.reconstructed[step * channels + channel]),
            false => f64::NAN,
        };
        let seen = |step: usize| if window.mask[step] { model(step) } else { truth(step) };
        let values = (0..steps).flat_map(|step| [truth(step), seen(step)]);
        let [low, high] = super::plot::range(values)?;
        let scale = (ROW - 2 * MARGIN) as f64 / (high - low).max(f64::MIN_POSITIVE);
        let y = |value: f64| (top + ROW - MARGIN) as f64 - (value - low) * scale;
        for step in 1..steps {
            let mut draw = |of: &dyn Fn(usize) -> f64, colour| {
                let (before, now) = (of(step - 1), of(step));
                if before.is_finite() && now.is_finite() {
                    canvas.line((at(step - 1), y(before)), (at(step), y(now)), colour);
                }
            };
            draw(&truth, TRUTH);
            if window.mask[step] || window.mask[step - 1] {
                draw(&seen, MODEL);
            }
        }
    }
    let name = format!("test/masked window {}", window.index);
    let Canvas { width, height, pixels } = canvas;
    Some(Raster { name, width, height, palette: COLOURS.to_vec(), pixels })
}

/// A confusion matrix, a row for each true class: green where it was met, red where it was not, by
/// the share of the row.
fn confusion_matrix(confusion: &Confusion) -> Raster {
    let classes = confusion.classes;
    let cell = (LARGEST / classes.max(1)).clamp(2, CELL);
    let side = cell * classes;
    let mut canvas = Canvas::new(side, side);
    for truth in 0..classes {
        let row = &confusion.counts[truth * classes..][..classes];
        let all = row.iter().sum::<u64>().max(1) as f64;
        for (predicted, count) in row.iter().enumerate() {
            let shade = (SHADES as f64 * *count as f64 / all).round() as usize;
            let colour = if truth == predicted { shade } else { SHADES + 1 + shade };
            let cell = |place: usize| cell * place + 1..cell * (place + 1);
            canvas.fill(cell(predicted), cell(truth), colour as u8);
        }
    }
    let towards = |colour: [u8; 3], share: f64| {
        colour.map(|part| (238.0 + share * (f64::from(part) - 238.0)).round() as u8)
    };
    let shades = |colour| (0..=SHADES).map(move |s| towards(colour, s as f64 / SHADES as f64));
    let palette = shades([24, 115, 74]).chain(shades([168, 50, 43])).collect();
    let Canvas { width, height, pixels } = canvas;
    Raster { name: "test/confusion matrix".to_owned(), width, height, palette, pixels }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_shows_what_was_hidden_the_truth_and_the_model() {
        let steps = 50;
        let truth: Vec<f32> = (0..2 * steps).map(|i| (i as f32 * 0.2).sin()).collect();
        let mask: Vec<bool> = (0..steps).map(|step| (20..30).contains(&step)).collect();
        let reconstructed = vec![0.0; 2 * steps];
        let window = MaskedWindow { index: 7, truth, reconstructed, mask, filled: vec![] };
        let picture = masked_window(&window, 2).unwrap();
        assert_eq!((picture.width, picture.height), (WIDTH, 2 * ROW));
        assert_eq!(picture.pixels.len(), picture.width * picture.height);
        assert_eq!(picture.name, "test/masked window 7");
        let columns_of = |picture: &Raster, colour: u8| {
            let all = picture.pixels.iter().enumerate();
            let found = all.filter(|(_, pixel)| **pixel == colour).map(|(at, _)| at % WIDTH);
            super::super::plot::range(found.map(|column| column as f64)).unwrap()
        };
        let columns = |colour: u8| columns_of(&picture, colour);
        // Steps 20 to 29 of 49: from 19.5 / 49 to 29.5 / 49 of the width.
        let [from, to] = columns(MASK);
        assert!((189.0..=192.0).contains(&from) && (287.0..=290.0).contains(&to), "{from} {to}");
        let [from, to] = columns(MODEL);
        assert!((184.0..=188.0).contains(&from) && (291.0..=295.0).contains(&to), "{from} {to}");
        assert_eq!(columns(TRUTH), [0.0, (WIDTH - 1) as f64]);
        assert_eq!(masked_window(&window, 3), None);
        // Of the last five hidden steps the model restores nothing: step 24 of 49 is the last that is drawn.
        let filled = (0..2 * steps).map(|at| (50..60).contains(&at)).collect();
        let restored = masked_window(&MaskedWindow { filled, ..window }, 2).unwrap();
        let [from, to] = columns_of(&restored, MODEL);
        assert!((184.0..=188.0).contains(&from) && (233.0..=237.0).contains(&to), "{from} {to}");
    }

    #[test]
    fn a_matrix_is_green_where_classes_are_met() {
        let confusion = Confusion { classes: 2, counts: vec![4, 0, 3, 1] };
        let picture = confusion_matrix(&confusion);
        let many = Confusion { classes: 1500, counts: vec![0; 1500 * 1500] };
        assert_eq!(confusion_matrix(&many).width, 3000);
        let at = |row: usize, column: usize| {
            picture.palette
                [picture.pixels[(CELL * row + 9) * picture.width + CELL * column + 9] as usize]
        };
        assert_eq!(at(0, 0), [24, 115, 74]);
        assert_eq!(at(0, 1), [238, 238, 238]);
        let [red, green, blue] = at(1, 0);
        assert!(red > green && red > blue && at(1, 1)[1] > at(1, 1)[0]);
        assert!(picture.pixels.iter().all(|pixel| usize::from(*pixel) < picture.palette.len()));
    }
}
