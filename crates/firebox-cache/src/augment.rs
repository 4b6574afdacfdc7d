//! The four augmentations, on one normalised window at a time.
//!
//! Nothing here knows threads or files: a version of a window is a pure function of the seed, the
//! window's index, the version's number and the values.

use firebox_core::{Augmentation, Channel};

use crate::parameters::ParameterError;
use crate::price::PriceScale;
use crate::recipe::{Drawn, Recipe};

/// Which augmentations a version got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Applied {
    /// Noise.
    pub jitter: bool,
    /// One factor for the window.
    pub scaling: bool,
    /// A change of speed.
    pub time_warp: bool,
    /// A factor on distances from the middle of bars.
    pub volatility_scaling: bool,
}

/// Makes augmented versions of normalised windows, one window after the other. It keeps scratch
/// memory; give each thread its own.
///
/// Each version starts from the original and gets, in this order and each by its own coin: jitter,
/// scaling, time-warp, volatility scaling. After each, the high of a bar is its highest price
/// again, and the low its lowest.
///
/// # Example
///
/// ```
/// use firebox_cache::{Augmenter, PriceScale};
/// use firebox_core::{Augmentation, Channel, Role};
///
/// let channels = [Channel::new("close", Role::Close)];
/// let mut augmenter = Augmenter::new(&Augmentation::default(), &channels, 1337)?;
/// augmenter.load(0, &[0.0, 0.5, -0.5, 1.0], PriceScale::SHARED);
/// let (mut once, mut again) = ([0.0; 4], [0.0; 4]);
/// let applied = augmenter.version(3, &mut once);
/// assert_eq!(augmenter.version(3, &mut again), applied);
/// assert_eq!(once, again);
/// # Ok::<(), firebox_cache::ParameterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Augmenter {
    recipe: Recipe,
    channels: usize,
    window: u64,
    scale: PriceScale,
    original: Vec<f32>,
    /// Standard deviation of the jitter of each value.
    amplitude: Vec<f32>,
    drawn: Drawn,
    noise: Vec<f32>,
    unwarped: Vec<f32>,
    times: Vec<f64>,
}

impl Augmenter {
    /// An augmenter of windows with these channels.
    ///
    /// # Errors
    ///
    /// The first parameter outside its range.
    pub fn new(
        settings: &Augmentation,
        channels: &[Channel],
        seed: u64,
    ) -> Result<Self, ParameterError> {
        Ok(Self {
            recipe: Recipe::new(settings, channels, seed)?,
            channels: channels.len(),
            window: 0,
            scale: PriceScale::SHARED,
            original: Vec::new(),
            amplitude: Vec::new(),
            drawn: Drawn::default(),
            noise: Vec::new(),
            unwarped: Vec::new(),
            times: Vec::new(),
        })
    }

    /// What is drawn of versions.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Takes the window whose versions are made next.
    ///
    /// # Shapes
    ///
    /// - `values`: `[time, channel]`, row-major; only valid steps, no padding.
    ///
    /// # Panics
    ///
    /// When `values` does not hold whole steps.
    pub fn load(&mut self, window: u64, values: &[f32], scale: PriceScale) {
        let steps = values.len() / self.channels;
        assert_eq!(
            values.len(),
            steps * self.channels,
            "whole steps of {} channels",
            self.channels
        );
        self.window = window;
        self.scale = scale;
        self.original.clear();
        self.original.extend_from_slice(values);
        self.amplitude.clear();
        self.recipe.deviations(values, &mut self.amplitude);
        for _ in 1..steps {
            self.amplitude.extend_from_within(..self.channels);
        }
        self.amplitude.truncate(values.len());
    }

    /// Writes a version of the loaded window. Version 0 is the original.
    ///
    /// # Shapes
    ///
    /// - `out`: `[time, channel]`, as loaded.
    ///
    /// # Panics
    ///
    /// When `out` has another length than the loaded window.
    pub fn version(&mut self, version: u32, out: &mut [f32]) -> Applied {
        assert_eq!(out.len(), self.original.len(), "the window that was loaded");
        out.copy_from_slice(&self.original);
        self.recipe.draw(self.window, version, &mut self.drawn);
        Applied {
            jitter: self.jitter(out),
            scaling: self.scaling(out),
            time_warp: self.time_warp(out),
            volatility_scaling: self.volatility_scaling(out),
        }
    }

    fn restore_order(&self, out: &mut [f32]) -> bool {
        if let Some(bars) = self.recipe.bars() {
            bars.restore_order(&self.scale, out);
        }
        true
    }

    fn jitter(&mut self, out: &mut [f32]) -> bool {
        let Some(noise) = self.drawn.jitter else { return false };
        self.noise.resize(out.len(), 0.0);
        noise.fill_normal(&mut self.noise);
        for ((out, amplitude), noise) in out.iter_mut().zip(&self.amplitude).zip(&self.noise) {
            *out += amplitude * noise;
        }
        self.restore_order(out)
    }

    fn scaling(&self, out: &mut [f32]) -> bool {
        let Some(factor) = self.drawn.scaling else { return false };
        out.iter_mut().for_each(|value| *value *= factor);
        self.restore_order(out)
    }

    fn time_warp(&mut self, out: &mut [f32]) -> bool {
        if self.drawn.speeds.is_empty() {
            return false;
        }
        self.unwarped.clear();
        self.unwarped.extend_from_slice(out);
        warped_times(&self.drawn.speeds, out.len() / self.channels, &mut self.times);
        match self.channels {
            4 => interpolate::<4>(&self.unwarped, 4, &self.times, out),
            channels => interpolate::<0>(&self.unwarped, channels, &self.times, out),
        }
        self.restore_order(out)
    }

    fn volatility_scaling(&self, out: &mut [f32]) -> bool {
        let Some(factor) = self.drawn.stretch else { return false };
        if let Some(bars) = self.recipe.bars() {
            bars.stretch(&self.scale, factor, out);
        }
        self.restore_order(out)
    }
}

/// The times at which a warped window is read, in steps.
///
/// `speeds` are the speeds of time at evenly spaced knots, linear in between; the warp is their
/// integral, scaled to end at the last step: a smooth, increasing map of `[0, T − 1]` onto itself.
fn warped_times(speeds: &[f64], steps: usize, times: &mut Vec<f64>) {
    times.clear();
    times.resize(steps, 0.0);
    if steps < 2 {
        return;
    }
    let last = (steps - 1) as f64;
    let pieces = speeds.len() - 1;
    let area: f64 = speeds.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])).sum();
    let per_step = pieces as f64 / last;
    let scale = last / area;
    // The first step of a piece, and the integral up to its beginning.
    let (mut first, mut before) = (0, 0.0);
    for (piece, pair) in speeds.windows(2).enumerate() {
        let [speed, half_slope] = [pair[0], 0.5 * (pair[1] - pair[0])];
        let end = ((piece + 1) as f64 / per_step).ceil() as usize;
        let end = if piece + 1 == pieces { steps } else { end.min(steps) };
        let offset = first as f64 * per_step - piece as f64;
        for (step, time) in times[first..end].iter_mut().enumerate() {
            let within = f64::from(step as i32) * per_step + offset;
            let integral = before + within * (speed + half_slope * within);
            *time = (integral * scale).clamp(0.0, last);
        }
        before += speed + half_slope;
        first = end;
    }
}

/// Reads `values` at these times, by linear interpolation between two steps. `WIDTH` is the number
/// of channels, or 0 for any number.
fn interpolate<const WIDTH: usize>(
    values: &[f32],
    channels: usize,
    times: &[f64],
    out: &mut [f32],
) {
    let channels = if WIDTH == 0 { channels } else { WIDTH };
    let Some(last_pair) = times.len().checked_sub(2) else {
        out.copy_from_slice(values);
        return;
    };
    for (time, out) in times.iter().zip(out.chunks_exact_mut(channels)) {
        let from = (*time as usize).min(last_pair);
        let share = (time - from as f64) as f32;
        let (a, b) = values[from * channels..][..2 * channels].split_at(channels);
        for channel in 0..channels {
            out[channel] = a[channel] + share * (b[channel] - a[channel]);
        }
    }
}

#[cfg(test)]
mod tests;
