//! One instrument of a [market](crate::MarketConfig), bar by bar.

use firebox_core::{Draws, Stream};

use crate::MarketConfig;

pub(crate) const MINUTE: i64 = 60_000_000;
pub(crate) const DAY: i64 = 24 * 60 * MINUTE;

/// The bars of one instrument.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Bars {
    pub(crate) time: Vec<i64>,
    /// Open, high, low, close.
    pub(crate) prices: [Vec<f64>; 4],
    pub(crate) regime: Vec<u32>,
}

/// One instrument while it is made. Prices are logarithms relative to the first one.
pub(crate) struct Simulation<'a> {
    config: &'a MarketConfig,
    draws: Draws,
    first_price: f64,
    price: f64,
    /// The last move within a bar, in units of its own standard deviation.
    last_move: f64,
    /// The change of the last bar, without its jump.
    last_change: f64,
    /// Variance of a bar relative to a quiet one.
    variance: f64,
    regime: usize,
    bars_left: u32,
    anchor: f64,
    direction: f64,
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(config: &'a MarketConfig, stream: Stream) -> Self {
        let mut draws = stream.draws();
        let first_price = config.price * (1.0 + draws.uniform_f64() / 3.0);
        let regime = draws.below(config.regimes.0.len() as u64) as usize;
        let mut simulation = Self {
            config,
            draws,
            first_price,
            price: 0.0,
            last_move: 0.0,
            last_change: 0.0,
            variance: 1.0,
            regime,
            bars_left: 0,
            anchor: 0.0,
            direction: 1.0,
        };
        simulation.begin(regime);
        simulation
    }

    pub(crate) fn run(mut self, first_day: i64) -> Bars {
        let config = self.config;
        let mut bars = Bars::default();
        let mut day = first_day;
        while bars.time.len() < config.bars {
            // 1970-01-01 was a Thursday.
            let weekday = (day / DAY + 3).rem_euclid(7);
            if weekday < 5 {
                for minute in 0..config.session_bars {
                    let opens = day + i64::from(config.session_open + minute) * MINUTE;
                    self.bar(minute, opens, &mut bars);
                }
                let night = self.draws.normal() * config.overnight * config.volatility;
                self.price += night;
                self.anchor += night;
            }
            day += DAY;
        }
        bars.time.truncate(config.bars);
        bars.regime.truncate(config.bars);
        bars.prices.iter_mut().for_each(|prices| prices.truncate(config.bars));
        bars
    }

    /// Another regime than the last, with its length, anchor and direction.
    fn begin(&mut self, regime: usize) {
        let settings = &self.config.regimes.0[regime].1;
        let extra = (settings.duration - f64::from(settings.shortest)).max(0.0);
        let length = -extra * (1.0 - self.draws.uniform_f64()).ln();
        self.regime = regime;
        self.bars_left = settings.shortest.max(1).saturating_add(length.min(1e9) as u32);
        self.anchor = self.price;
        self.direction = if self.draws.chance(settings.upwards) { 1.0 } else { -1.0 };
    }

    fn bar(&mut self, minute: u32, opens: i64, bars: &mut Bars) {
        let config = self.config;
        if self.bars_left == 0 {
            let others = config.regimes.0.len().max(2) as u64 - 1;
            let step = 1 + self.draws.below(others) as usize;
            self.begin((self.regime + step) % config.regimes.0.len());
        }
        self.bars_left -= 1;
        let regime = &config.regimes.0[self.regime].1;
        let place = (f64::from(minute) + 0.5) / f64::from(config.session_bars) * 2.0 - 1.0;
        let smile = 1.0 + config.session_smile * place * place;
        let deviation = config.volatility * regime.volatility * smile * self.variance.sqrt();
        let begin = self.price;
        let (mut high, mut low) = (begin, begin);
        let moves = f64::from(config.moves);
        let drift = self.direction * regime.drift * config.volatility;
        let drift = (drift + regime.memory * self.last_change) / moves;
        // Scaled so that the momentum changes the memory of the price and not the size of its
        // moves.
        let fresh = (1.0 - regime.momentum * regime.momentum).sqrt();
        for _ in 0..config.moves {
            self.last_move = regime.momentum * self.last_move + fresh * self.draws.normal();
            let pull = regime.reversion / moves * (self.anchor - self.price);
            self.price += deviation / moves.sqrt() * self.last_move + drift + pull;
            (high, low) = (high.max(self.price), low.min(self.price));
        }
        self.last_change = self.price - begin;
        if self.draws.chance(config.jump_probability) {
            let jump = self.draws.normal() * config.jump_size * config.volatility;
            self.price += jump;
            self.anchor += jump;
            (high, low) = (high.max(self.price), low.min(self.price));
        }
        let shock =
            ((self.price - begin) / (config.volatility * regime.volatility * smile)).powi(2);
        let base = 1.0 - config.garch_shock - config.garch_memory;
        // Capped, so that a jump does not shake the rest of the day.
        self.variance =
            base + config.garch_shock * shock.min(25.0) + config.garch_memory * self.variance;
        if self.draws.chance(config.missing_bars) {
            return;
        }
        bars.time.push(opens);
        bars.regime.push(self.regime as u32);
        for (column, price) in bars.prices.iter_mut().zip([begin, high, low, self.price]) {
            let ticks = (self.first_price * price.exp() / config.tick).round().max(1.0);
            column.push(ticks * config.tick);
        }
    }
}
