//! The prices of a bar within a window: where they stand, on which scale, and in which order.

use firebox_core::{Channel, Normalisation, Normaliser, Role, SeriesSet, Window};

/// The roles of a bar's prices, in the order that they have everywhere in this module.
const ROLES: [Role; 4] = [Role::Open, Role::High, Role::Low, Role::Close];
const HIGH: usize = 1;
const LOW: usize = 2;

/// Brings each price of a bar, normalised by its own map, to one scale that all four share.
///
/// Prices that were normalised by one map share it already. Where each channel has its own (standard
/// and robust normalisation), a high may be normalised to less than its low; only on a shared scale
/// do their order and their middle mean anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PriceScale {
    factor: [f32; 4],
    offset: [f32; 4],
    inverse: [f32; 4],
}

impl PriceScale {
    /// The scale of prices that were normalised by one map.
    pub const SHARED: Self = Self { factor: [1.0; 4], offset: [0.0; 4], inverse: [1.0; 4] };

    /// The maps of open, high, low and close: a price `p` is `p · factor + offset` on the shared scale,
    /// and `s` on it is `(s − offset) · inverse` in the price's own.
    ///
    /// # Shapes
    ///
    /// - output: `[factor, offset and inverse, price]`
    pub fn maps(&self) -> [[f32; 4]; 3] {
        [self.factor, self.offset, self.inverse]
    }

    /// The scale of the prices of a window as `normaliser` writes them.
    pub fn of(normaliser: &Normaliser, set: &SeriesSet, window: &Window) -> Self {
        match normaliser.kind() {
            Normalisation::None | Normalisation::WindowRelative => return Self::SHARED,
            Normalisation::Standard | Normalisation::Robust | Normalisation::WindowStandard => {}
        }
        let maps = ROLES.map(|role| {
            set.role(role).map(|channel| normaliser.center_and_scale(set, window, channel))
        });
        let Some([center, scale]) = maps.iter().flatten().next().copied() else {
            return Self::SHARED;
        };
        let maps = maps.map(|map| map.unwrap_or([center, scale]));
        Self {
            factor: maps.map(|[_, own]| (own / scale) as f32),
            offset: maps.map(|[own, _]| ((own - center) / scale) as f32),
            inverse: maps.map(|[_, own]| (scale / own) as f32),
        }
    }
}

/// Where the prices of a bar stand among the channels of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bars {
    /// Channels of a step.
    channels: usize,
    /// The channel of each price; that of another price where one is missing.
    at: [usize; 4],
    high: bool,
    low: bool,
}

impl Bars {
    /// None if there is neither a high nor a low, and so no order to keep. Of several channels with
    /// one role, the first counts.
    pub(crate) fn of(channels: &[Channel]) -> Option<Self> {
        let at = ROLES.map(|role| channels.iter().position(|channel| channel.role == role));
        // The first price, whose scale a `PriceScale` gives to missing ones too.
        let other = at.iter().flatten().next().copied()?;
        let ordered = at[HIGH].is_some() || at[LOW].is_some();
        ordered.then(|| Self {
            channels: channels.len(),
            at: at.map(|channel| channel.unwrap_or(other)),
            high: at[HIGH].is_some(),
            low: at[LOW].is_some(),
        })
    }

    /// The channels of open, high, low and close; that of another price, with its scale, where one is
    /// missing.
    pub fn channels(&self) -> [usize; 4] {
        self.at
    }

    /// Whether there is a high, which is a bar's largest price.
    pub fn have_high(&self) -> bool {
        self.high
    }

    /// Whether there is a low, which is a bar's smallest price.
    pub fn have_low(&self) -> bool {
        self.low
    }

    /// Whether bars have a middle, `(high + low) / 2`.
    pub(crate) fn have_middle(&self) -> bool {
        self.high && self.low
    }

    /// Raises each high to the largest price of its bar, and lowers each low to the smallest.
    pub(crate) fn restore_order(&self, scale: &PriceScale, values: &mut [f32]) {
        let Self { high, low, .. } = *self;
        self.for_each_bar(values, |step, at| {
            let prices = shared(scale, step, at);
            let highest = prices.into_iter().fold(prices[HIGH], larger);
            let lowest = prices.into_iter().fold(prices[LOW], smaller);
            // Chosen, not branched on: after jitter, nobody can predict which bars are in order.
            if high {
                let raised = (highest - scale.offset[HIGH]) * scale.inverse[HIGH];
                let kept = step[at[HIGH]];
                step[at[HIGH]] = if highest > prices[HIGH] { raised } else { kept };
            }
            if low {
                let lowered = (lowest - scale.offset[LOW]) * scale.inverse[LOW];
                let kept = step[at[LOW]];
                step[at[LOW]] = if lowest < prices[LOW] { lowered } else { kept };
            }
        });
    }

    /// Multiplies each price's distance from the middle of its bar.
    pub(crate) fn stretch(&self, scale: &PriceScale, factor: f32, values: &mut [f32]) {
        self.for_each_bar(values, |step, at| {
            let prices = shared(scale, step, at);
            let middle = 0.5 * (prices[HIGH] + prices[LOW]);
            // A missing price writes what the one that stands for it writes.
            for price in 0..4 {
                let moved = middle + factor * (prices[price] - middle);
                step[at[price]] = (moved - scale.offset[price]) * scale.inverse[price];
            }
        });
    }

    /// Calls `change` with each step and the places of its prices. Steps of four channels in the
    /// usual order are by far the most frequent: with constants, the compiler vectorises them.
    #[inline(always)]
    fn for_each_bar(&self, values: &mut [f32], change: impl Fn(&mut [f32], [usize; 4])) {
        const USUAL: [usize; 4] = [0, 1, 2, 3];
        if self.channels == 4 && self.at == USUAL {
            values.as_chunks_mut::<4>().0.iter_mut().for_each(|step| change(step, USUAL));
        } else {
            values.chunks_exact_mut(self.channels).for_each(|step| change(step, self.at));
        }
    }
}

/// The prices of a step on their shared scale.
#[inline(always)]
fn shared(scale: &PriceScale, step: &[f32], at: [usize; 4]) -> [f32; 4] {
    let mut prices = [0.0; 4];
    for price in 0..4 {
        prices[price] = step[at[price]] * scale.factor[price] + scale.offset[price];
    }
    prices
}

/// One instruction, where `f32::max` needs three to be right about NaN, which no series contains.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn smaller(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(roles: &[Role]) -> Option<Bars> {
        let channels: Vec<_> = roles
            .iter()
            .enumerate()
            .map(|(i, role)| Channel::new(format!("c{i}"), *role))
            .collect();
        Bars::of(&channels)
    }

    #[test]
    fn order_is_restored_with_any_prices_missing() {
        let check = |roles: &[Role], before: &[f32], after: &[f32]| {
            let mut values = before.to_vec();
            bars(roles).unwrap().restore_order(&PriceScale::SHARED, &mut values);
            assert_eq!(values, after);
        };
        use Role::{Close, High, Low, Open, Other};
        check(&[Open, High, Low, Close], &[5.0, 1.0, 2.0, 3.0], &[5.0, 5.0, 1.0, 3.0]);
        check(&[Open, High, Low, Close], &[1.0, 2.0, 0.0, 1.5], &[1.0, 2.0, 0.0, 1.5]);
        check(&[Close, Other, High], &[3.0, 9.0, 1.0], &[3.0, 9.0, 3.0]);
        check(&[Low, Close], &[3.0, 1.0], &[1.0, 1.0]);
        assert_eq!(bars(&[Open, Close, Other]), None);
    }

    #[test]
    fn own_scales_are_seen_through() {
        // High = 2 · h + 1, low = 0.5 · l − 1 on the shared scale.
        let scale = PriceScale {
            factor: [1.0, 2.0, 0.5, 1.0],
            offset: [0.0, 1.0, -1.0, 0.0],
            inverse: [1.0, 0.5, 2.0, 1.0],
        };
        let roles = [Role::Open, Role::High, Role::Low, Role::Close];
        let bars = bars(&roles).unwrap();
        // On the shared scale: 0, 1, −1, 0: in order, so nothing is touched.
        let mut values = [0.0, 0.0, 0.0, 0.0];
        bars.restore_order(&scale, &mut values);
        assert_eq!(values, [0.0; 4]);
        bars.stretch(&scale, 2.0, &mut values);
        assert_eq!(values, [0.0, 0.5, -2.0, 0.0]); // 0, 2, −2, 0
        values[3] = 7.0;
        bars.restore_order(&scale, &mut values);
        assert_eq!(values, [0.0, 3.0, -2.0, 7.0]);
    }
}
