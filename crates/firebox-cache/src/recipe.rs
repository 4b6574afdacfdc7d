//! What is drawn of a version of a window: its coins, its factors, its speeds of time. What they do to
//! the values is in `augment`, for a processor; a device that holds the values does it by itself.

use firebox_core::{Augmentation, Channel, Stream};

use crate::parameters::{ParameterError, check_parameters};
use crate::price::Bars;

/// Smallest speed at a knot of the time-warp: time never stands still or runs backwards.
const SLOWEST: f64 = 0.1;

/// Substreams of a window version, one for each augmentation, so that the draws of one do not
/// depend on the parameters of another.
const JITTER: u64 = 0;
const SCALING: u64 = 1;
const TIME_WARP: u64 = 2;
const VOLATILITY: u64 = 3;
/// Substream of the jitter's noise, apart from its coin.
const NOISE: u64 = 4;

/// How versions of windows are drawn: a function of the seed, the window's index and the version's
/// number, and of nothing else.
///
/// A version starts from the original and gets what was [`Drawn`] in the order of its fields. After
/// each, the high of a bar is its highest price again, and the low its lowest.
#[derive(Clone, Debug)]
pub struct Recipe {
    settings: Augmentation,
    channels: usize,
    bars: Option<Bars>,
    seed: Stream,
}

/// Everything that is drawn of a version, but for the noise of its values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drawn {
    /// Where the noise comes from, if there is any: value `i` of the window, counted step by step,
    /// gets number `i` of [`Stream::fill_normal`] times its channel's deviation
    /// ([`Recipe::deviations`]).
    pub jitter: Option<Stream>,
    /// The factor of all values, if there is one.
    pub scaling: Option<f32>,
    /// The speeds of time at evenly spaced knots, two or more, linear in between; none where time is
    /// not warped. The warp is their integral, scaled to end at the last step.
    pub speeds: Vec<f64>,
    /// The factor of each price's distance from the middle of its bar, if there is one.
    pub stretch: Option<f32>,
}

impl Drawn {
    /// Whether the version is its original.
    pub fn is_original(&self) -> bool {
        let Self { jitter, scaling, speeds, stretch } = self;
        jitter.is_none() && scaling.is_none() && speeds.is_empty() && stretch.is_none()
    }
}

impl Recipe {
    /// How windows with these channels are augmented.
    ///
    /// # Errors
    ///
    /// The first parameter outside its range.
    pub fn new(
        settings: &Augmentation,
        channels: &[Channel],
        seed: u64,
    ) -> Result<Self, ParameterError> {
        check_parameters(settings)?;
        Ok(Self {
            settings: settings.clone(),
            channels: channels.len(),
            bars: Bars::of(channels),
            seed: Stream::new(seed, "augment"),
        })
    }

    /// The channels of a step.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Where prices stand whose order is kept; none without a high and a low.
    pub fn bars(&self) -> Option<&Bars> {
        self.bars.as_ref()
    }

    /// Knots of a time-warp.
    pub fn knots(&self) -> usize {
        self.settings.time_warp.knots
    }

    /// Draws a version of a window. Version 0 is the original.
    pub fn draw(&self, window: u64, version: u32, drawn: &mut Drawn) {
        let stream = self.seed.substream(window).substream(u64::from(version));
        let Augmentation { jitter, scaling, time_warp, volatility_scaling, .. } = &self.settings;
        drawn.speeds.clear();
        if version == 0 {
            (drawn.jitter, drawn.scaling, drawn.stretch) = (None, None, None);
            return;
        }
        let coin = stream.substream(JITTER).draws().chance(jitter.probability);
        drawn.jitter = coin.then(|| stream.substream(NOISE));
        let mut draws = stream.substream(SCALING).draws();
        let coin = draws.chance(scaling.probability);
        drawn.scaling = coin.then(|| (1.0 + scaling.sigma * draws.normal()) as f32);
        let mut draws = stream.substream(TIME_WARP).draws();
        if draws.chance(time_warp.probability) {
            let speed = |_| (1.0 + time_warp.sigma * draws.normal()).max(SLOWEST);
            drawn.speeds.extend((0..time_warp.knots).map(speed));
        }
        let mut draws = stream.substream(VOLATILITY).draws();
        let stretched = self.bars.as_ref().is_some_and(Bars::have_middle);
        let coin = stretched && draws.chance(volatility_scaling.probability);
        let [low, high] = [volatility_scaling.low, volatility_scaling.high];
        drawn.stretch = coin.then(|| (low + (high - low) * draws.uniform_f64()) as f32);
    }

    /// The standard deviation of the jitter of each channel: its share of the channel's own
    /// (population) standard deviation in the window.
    ///
    /// # Shapes
    ///
    /// - `values`: `[time, channel]`, row-major; only valid steps, no padding
    /// - added to `out`: `[channel]`
    pub fn deviations(&self, values: &[f32], out: &mut Vec<f32>) {
        let sigma = self.settings.jitter.sigma;
        // Four channels are by far the most frequent; a constant width doubles the speed.
        match self.channels {
            4 => deviations::<4>(values, 4, sigma, out),
            channels => deviations::<0>(values, channels, sigma, out),
        }
    }
}

/// Multiples of the (population) standard deviation of each channel, for each channel once.
fn deviations<const WIDTH: usize>(
    values: &[f32],
    channels: usize,
    factor: f64,
    out: &mut Vec<f32>,
) {
    let channels = if WIDTH == 0 { channels } else { WIDTH };
    let steps = (values.len() / channels).max(1) as f64;
    // All channels of a step together: their sums do not wait for each other.
    let mut sums = vec![[0.0; 2]; channels];
    for step in values.chunks_exact(channels) {
        sums.iter_mut().zip(step).for_each(|([mean, _], value)| *mean += f64::from(*value));
    }
    sums.iter_mut().for_each(|[mean, _]| *mean /= steps);
    for step in values.chunks_exact(channels) {
        for ([mean, square], value) in sums.iter_mut().zip(step) {
            *square += (f64::from(*value) - *mean).powi(2);
        }
    }
    out.extend(sums.iter().map(|[_, square]| (factor * (square / steps).sqrt()) as f32));
}
