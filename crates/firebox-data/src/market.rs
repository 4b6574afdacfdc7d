//! A small market made from settings: one-minute bars whose regimes differ in their dynamics.
//!
//! Regimes follow each other by a Markov chain. Each has its own memory of the last move (trend or
//! reversal), pull towards an anchor, volatility and direction. On top lie volatility clustering
//! (GARCH(1,1): Bollerslev, "Generalized autoregressive conditional heteroskedasticity", 1986), a
//! busier open and close, jumps, and sessions with gaps over nights and weekends. Prices move in
//! ticks within each bar, from which the bar's open, high, low and close are taken.
//!
//! Nobody should trade on this.

use std::io::{BufWriter, Write};
use std::path::Path;

use firebox_core::{Channel, Draws, Origin, Role, Stream};
use serde::{Deserialize, Serialize};

use crate::raw::{Piece, Raw, RawLabels, RawSeries, Rows};
use crate::{DataError, time};

const MINUTE: i64 = 60_000_000;
const DAY: i64 = 24 * 60 * MINUTE;

/// Settings of a market: the content of a `.market.toml` file.
///
/// # Example
///
/// ```
/// let market = firebox_data::MarketConfig::from_toml(r#"
///     seed = 7
///     bars = 500
///     instruments = ["ONE", "TWO"]
///     [regimes.calm]
///     reversion = 0.02
///     [regimes.lively]
///     volatility = 2.0
/// "#)?;
/// let mut csv = Vec::new();
/// market.write_csv(&mut csv)?;
/// assert_eq!(csv.iter().filter(|byte| **byte == b'\n').count(), 1 + 2 * 500);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MarketConfig {
    /// Seed of every draw.
    pub seed: u64,
    /// Bars of each instrument.
    pub bars: usize,
    /// Names of the instruments.
    pub instruments: Vec<String>,
    /// First day, as `YYYY-MM-DD`.
    pub first_day: String,
    /// First minute of a session, in minutes after midnight UTC.
    pub session_open: u32,
    /// Bars of a session; a day has one session, a weekend none.
    pub session_bars: u32,
    /// Price of the first bar; instruments differ by up to a third.
    pub price: f64,
    /// Smallest difference between two prices.
    pub tick: f64,
    /// Standard deviation of the change of a quiet bar, as a share of the price.
    pub volatility: f64,
    /// Price changes within a bar.
    pub moves: u32,
    /// Weight of the last bar's squared change in the variance of the next.
    pub garch_shock: f64,
    /// Weight of the last bar's variance in the variance of the next.
    pub garch_memory: f64,
    /// How much busier the ends of a session are than its middle, as a share.
    pub session_smile: f64,
    /// Probability that a bar jumps.
    pub jump_probability: f64,
    /// Standard deviation of a jump, in standard deviations of a quiet bar.
    pub jump_size: f64,
    /// Standard deviation of the change over a night, in standard deviations of a quiet bar.
    pub overnight: f64,
    /// Probability that a bar is missing.
    pub missing_bars: f64,
    /// The regimes by name, which are the classes of the bars.
    pub regimes: Regimes,
}

impl Default for MarketConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            bars: 7_000,
            instruments: ["ALPHA", "BRAVO", "CHARLIE"].map(str::to_owned).to_vec(),
            first_day: "2024-01-02".to_owned(),
            session_open: 14 * 60 + 30,
            session_bars: 390,
            price: 100.0,
            tick: 0.001,
            volatility: 4e-4,
            moves: 12,
            garch_shock: 0.08,
            garch_memory: 0.88,
            session_smile: 0.6,
            jump_probability: 0.002,
            jump_size: 6.0,
            overnight: 12.0,
            missing_bars: 0.000_5,
            regimes: Regimes::default(),
        }
    }
}

/// Regimes in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Regimes(pub Vec<(String, Regime)>);

/// How the price moves while a regime lasts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Regime {
    /// Mean number of bars that it lasts, geometrically distributed beyond `shortest`.
    pub duration: f64,
    /// Fewest bars that it lasts.
    pub shortest: u32,
    /// Volatility, as a multiple of a quiet bar's.
    pub volatility: f64,
    /// Correlation of a move within a bar with the move before it, between −1 and 1: above zero
    /// moves go on, below zero they turn back.
    pub momentum: f64,
    /// Share of the last bar's change that the next bar repeats, between −1 and 1: below zero the
    /// bar takes it back.
    pub memory: f64,
    /// Share of the distance from the anchor that a bar takes back; the anchor is the price at
    /// which the regime began.
    pub reversion: f64,
    /// Drift of a bar, in standard deviations of a quiet bar. Its direction is drawn when the
    /// regime begins.
    pub drift: f64,
    /// Probability that the drift is upwards.
    pub upwards: f64,
}

impl Default for Regime {
    fn default() -> Self {
        Self {
            duration: 200.0,
            shortest: 60,
            volatility: 1.0,
            momentum: 0.0,
            memory: 0.0,
            reversion: 0.0,
            drift: 0.0,
            upwards: 0.5,
        }
    }
}

impl Serialize for Regimes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, regime)| (name, regime)))
    }
}

impl<'de> Deserialize<'de> for Regimes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RegimesVisitor;
        impl<'de> serde::de::Visitor<'de> for RegimesVisitor {
            type Value = Regimes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a table of regimes by name")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Regimes, A::Error> {
                let mut regimes = Vec::new();
                while let Some(entry) = map.next_entry::<String, Regime>()? {
                    regimes.push(entry);
                }
                // The order of tables in a file is not kept by every reader of TOML.
                regimes.sort_by(|a, b| a.0.cmp(&b.0));
                Ok(Regimes(regimes))
            }
        }
        deserializer.deserialize_map(RegimesVisitor)
    }
}

/// The bars of one instrument.
#[derive(Clone, Debug, Default, PartialEq)]
struct Bars {
    time: Vec<i64>,
    /// Open, high, low, close.
    prices: [Vec<f64>; 4],
    regime: Vec<u32>,
}

impl MarketConfig {
    /// Reads settings, which are checked when the market is made.
    ///
    /// # Errors
    ///
    /// For text that is no such settings: line and column are in the message.
    pub fn from_toml(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    pub(crate) fn read(path: &Path, text: &[u8]) -> Result<Self, DataError> {
        let text = std::str::from_utf8(text)
            .map_err(|_| DataError::line(path, 1, "the file is not UTF-8"))?;
        Self::from_toml(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = text[..start.min(text.len())].matches('\n').count() + 1;
            DataError::line(path, line, error.message())
        })
    }

    /// Checks every setting.
    fn check(&self) -> Result<i64, DataError> {
        let positive = |value: f64| value > 0.0 && value.is_finite();
        let share = |value: f64| (0.0..1.0).contains(&value);
        let zero_or_more = |value: f64| value >= 0.0 && value.is_finite();
        let not_negative = "it must be zero or more";
        let rules: [(&str, f64, bool, &str); 13] = [
            (
                "bars",
                self.bars as f64,
                (2..100_000_000).contains(&self.bars),
                "it must be at least 2 and below 100 million",
            ),
            ("price", self.price, positive(self.price), "it must be positive"),
            (
                "tick",
                self.tick,
                positive(self.tick) && self.tick < self.price / 10.0,
                "it must be positive and below a tenth of the price",
            ),
            (
                "volatility",
                self.volatility,
                positive(self.volatility) && self.volatility < 0.05,
                "it must be positive and below 0.05",
            ),
            (
                "moves",
                f64::from(self.moves),
                (1..=1_000).contains(&self.moves),
                "it must be between 1 and 1000",
            ),
            (
                "session_bars",
                f64::from(self.session_bars),
                self.session_bars > 0
                    && self.session_open.saturating_add(self.session_bars) <= 24 * 60,
                "a session must have a bar and end before midnight",
            ),
            (
                "garch_shock",
                self.garch_shock,
                share(self.garch_shock),
                "it must be at least 0 and below 1",
            ),
            (
                "garch_memory",
                self.garch_memory,
                share(self.garch_memory) && self.garch_shock + self.garch_memory < 1.0,
                "it must be at least 0 and, with `garch_shock`, below 1",
            ),
            ("session_smile", self.session_smile, zero_or_more(self.session_smile), not_negative),
            (
                "jump_probability",
                self.jump_probability,
                share(self.jump_probability),
                "it must be at least 0 and below 1",
            ),
            ("jump_size", self.jump_size, zero_or_more(self.jump_size), not_negative),
            ("overnight", self.overnight, zero_or_more(self.overnight), not_negative),
            (
                "missing_bars",
                self.missing_bars,
                share(self.missing_bars),
                "it must be at least 0 and below 1",
            ),
        ];
        let wrong = |key: &str, found: String, wanted: &str| {
            Err(DataError::Market { key: key.to_owned(), found, wanted: wanted.to_owned() })
        };
        if let Some((key, found, _, wanted)) = rules.into_iter().find(|(_, _, holds, _)| !holds) {
            return wrong(key, found.to_string(), wanted);
        }
        for (name, regime) in &self.regimes.0 {
            let rules: [(&str, f64, bool, &str); 7] = [
                (
                    "duration",
                    regime.duration,
                    regime.duration.is_finite()
                        && regime.duration >= f64::from(regime.shortest.max(1)),
                    "it must be at least `shortest` and 1",
                ),
                (
                    "volatility",
                    regime.volatility,
                    positive(regime.volatility),
                    "it must be positive",
                ),
                (
                    "momentum",
                    regime.momentum,
                    regime.momentum.abs() < 1.0,
                    "it must lie between -1 and 1",
                ),
                (
                    "memory",
                    regime.memory,
                    regime.memory.abs() < 1.0,
                    "it must lie between -1 and 1",
                ),
                (
                    "reversion",
                    regime.reversion,
                    share(regime.reversion),
                    "it must be at least 0 and below 1",
                ),
                ("drift", regime.drift, regime.drift.is_finite(), "it must be a number"),
                (
                    "upwards",
                    regime.upwards,
                    (0.0..=1.0).contains(&regime.upwards),
                    "it must lie between 0 and 1",
                ),
            ];
            if let Some((key, found, _, wanted)) = rules.into_iter().find(|(_, _, holds, _)| !holds)
            {
                return wrong(&format!("regimes.{name}.{key}"), found.to_string(), wanted);
            }
        }
        if self.regimes.0.is_empty() {
            return wrong(
                "regimes",
                "empty".to_owned(),
                "name at least one, such as [regimes.calm]",
            );
        }
        let mut seen = std::collections::HashSet::new();
        if self.instruments.is_empty() || !self.instruments.iter().all(|name| seen.insert(name)) {
            let found = format!("{:?}", self.instruments);
            return wrong("instruments", found, "name at least one, and each once");
        }
        match time::parse_iso(self.first_day.as_bytes()) {
            Some(time::Written::Local(day)) if day % DAY == 0 => Ok(day),
            _ => wrong(
                "first_day",
                format!("`{}`", self.first_day),
                "it must be a date such as 2024-01-02",
            ),
        }
    }

    /// Makes the bars of all instruments.
    fn bars(&self) -> Result<Vec<Bars>, DataError> {
        let first_day = self.check()?;
        let stream = Stream::new(self.seed, "market");
        let instruments = 0..self.instruments.len() as u64;
        Ok(instruments
            .map(|index| Simulation::new(self, stream.substream(index)).run(first_day))
            .collect())
    }

    /// The market as series, for the checks that all data goes through.
    pub(crate) fn raw(&self, path: &Path, origin: Origin) -> Result<Raw, DataError> {
        let roles = [Role::Open, Role::High, Role::Low, Role::Close];
        let names = ["open", "high", "low", "close"];
        let series = self.instruments.iter().zip(self.bars()?).map(|(name, bars)| RawSeries {
            name: name.clone(),
            origin,
            pieces: vec![Piece { path: path.into(), steps: bars.time.len(), rows: Rows::From(1) }],
            time: Some(bars.time),
            columns: bars.prices.into(),
            labels: RawLabels::PerStep(bars.regime),
        });
        Ok(Raw {
            channels: names.into_iter().zip(roles).map(|(n, role)| Channel::new(n, role)).collect(),
            classes: self.regimes.0.iter().map(|(name, _)| name.clone()).collect(),
            series: series.collect(),
            time: Some("timestamp".to_owned()),
            by: Some("symbol".to_owned()),
            label: Some("regime".to_owned()),
        })
    }

    /// Writes the market as CSV with the columns symbol, timestamp, open, high, low, close and
    /// regime. The same settings give the same bytes.
    ///
    /// # Errors
    ///
    /// For settings that make no market, and when writing fails.
    pub fn write_csv(&self, to: &mut dyn Write) -> Result<(), DataError> {
        let markets = self.bars()?;
        let failed = |error| DataError::io("write", Path::new("the market"))(error);
        let digits = (-self.tick.log10()).ceil().clamp(0.0, 9.0) as usize;
        let mut to = BufWriter::new(to);
        let mut write = || {
            writeln!(to, "symbol,timestamp,open,high,low,close,regime")?;
            for (name, bars) in self.instruments.iter().zip(&markets) {
                for (step, moment) in bars.time.iter().enumerate() {
                    write!(to, "{name},{}", time::format(*moment))?;
                    for prices in &bars.prices {
                        write!(to, ",{:.digits$}", prices[step])?;
                    }
                    writeln!(to, ",{}", self.regimes.0[bars.regime[step] as usize].0)?;
                }
            }
            to.flush()
        };
        write().map_err(failed)
    }

    /// Writes the market to a CSV file, which appears only once it is whole.
    ///
    /// # Errors
    ///
    /// Those of [`MarketConfig::write_csv`].
    pub fn write_csv_file(&self, path: &Path) -> Result<(), DataError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        // Temporary files are private unless told otherwise; this one is to be shared.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
        let mut file = builder
            .prefix(".market-")
            .tempfile_in(folder)
            .map_err(DataError::io("write to the folder", folder))?;
        self.write_csv(file.as_file_mut())?;
        file.as_file().sync_all().map_err(DataError::io("write", path))?;
        file.persist(path).map_err(|error| DataError::io("write", path)(error.error))?;
        Ok(())
    }
}

/// One instrument while it is made. Prices are logarithms relative to the first one.
struct Simulation<'a> {
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
    fn new(config: &'a MarketConfig, stream: Stream) -> Self {
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

    fn run(mut self, first_day: i64) -> Bars {
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
