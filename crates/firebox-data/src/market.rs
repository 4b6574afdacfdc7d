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

use firebox_core::{Channel, Origin, Role, Stream};
use serde::{Deserialize, Serialize};

use crate::raw::{Piece, Raw, RawLabels, RawSeries, Rows};
use crate::simulation::{Bars, DAY, Simulation};
use crate::{DataError, time};

/// Of the generator. A change of the bars that it makes needs a new number.
pub(crate) const VERSION: u32 = 1;

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

/// Regimes by name, in the order of the alphabet.
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

impl MarketConfig {
    /// Reads settings, which are checked when the market is made.
    ///
    /// # Errors
    ///
    /// For text that is no such settings: line and column are in the message.
    pub fn from_toml(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
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
            ..Raw::default()
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
        // As many decimals as the tick has: 2 for 0.25.
        let exact = |digits: &i32| {
            let scaled = self.tick * 10f64.powi(*digits);
            (scaled - scaled.round()).abs() < 1e-9 * scaled
        };
        let digits = (0..9).find(exact).unwrap_or(9) as usize;
        let mut to = BufWriter::new(to);
        let mut write = || {
            writeln!(to, "symbol,timestamp,open,high,low,close,regime")?;
            for (name, bars) in self.instruments.iter().zip(&markets) {
                let name = quoted(name);
                for (step, moment) in bars.time.iter().enumerate() {
                    write!(to, "{name},{}", time::format(*moment))?;
                    for prices in &bars.prices {
                        write!(to, ",{:.digits$}", prices[step])?;
                    }
                    writeln!(to, ",{}", quoted(&self.regimes.0[bars.regime[step] as usize].0))?;
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
        whole_file(path, |file| self.write_csv(file))
    }
}

/// Writes a file that appears only once it is whole.
pub(crate) fn whole_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // Temporary files are private unless told otherwise; this one is to be shared.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
    let mut file = builder
        .prefix(".generated-")
        .tempfile_in(folder)
        .map_err(DataError::io("write to the folder", folder))?;
    write(file.as_file_mut()).map_err(|error| match error {
        DataError::Io { action, source, .. } => {
            DataError::Io { action, path: path.to_owned(), source }
        }
        other => other,
    })?;
    file.as_file().sync_all().map_err(DataError::io("write", path))?;
    file.persist(path).map_err(|error| DataError::io("write", path)(error.error))?;
    Ok(())
}

/// A name as a field of CSV: in quotes where it would not be one field without them.
fn quoted(name: &str) -> std::borrow::Cow<'_, str> {
    match name.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")).into(),
        false => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::settings;
    use crate::simulation::MINUTE;

    fn sample() -> MarketConfig {
        let text = include_str!("../../../data/sample.market.toml");
        MarketConfig::from_toml(text).unwrap()
    }

    fn csv(config: &MarketConfig) -> Vec<u8> {
        let mut csv = Vec::new();
        config.write_csv(&mut csv).unwrap();
        csv
    }

    #[test]
    fn the_same_settings_give_the_same_bytes() {
        let small = MarketConfig { bars: 900, ..sample() };
        let text = csv(&small);
        assert_eq!(text, csv(&small));
        assert_ne!(text, csv(&MarketConfig { seed: 2, ..small.clone() }));
        // Pinned, so that a change of the generator is seen: it changes every published figure.
        insta::assert_snapshot!(blake3::hash(&text).to_hex().to_string(), @"10a3415f4e2ad9d8335699dfb09d34e4f1e2503d087c718dc07e0bb3053b7235");
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().take(3).collect();
        insta::assert_snapshot!(lines.join("\n"), @r#"
symbol,timestamp,open,high,low,close,regime
ALPHA,2024-01-02T14:30:00Z,112.408,112.596,112.392,112.596,trend
ALPHA,2024-01-02T14:31:00Z,112.596,112.633,112.497,112.633,trend
"#);
    }

    #[test]
    fn bars_are_ordered_and_lie_in_sessions() {
        for bars in sample().bars().unwrap() {
            assert_eq!(bars.time.len(), 14_000);
            assert!(bars.time.windows(2).all(|pair| pair[0] < pair[1]));
            for (step, time) in bars.time.iter().enumerate() {
                let minute = time.rem_euclid(DAY) / MINUTE;
                assert!((870..1260).contains(&minute) && (time / DAY + 3).rem_euclid(7) < 5);
                let [open, high, low, close] = [0, 1, 2, 3].map(|price| bars.prices[price][step]);
                assert!(high >= open.max(close) && low <= open.min(close) && low > 0.0);
            }
            let gap =
                |days: i64| bars.time.windows(2).filter(|p| (p[1] - p[0]) / DAY == days).count();
            assert!(gap(2) >= 3, "weekends");
            let missing = bars.time.windows(2).filter(|p| p[1] - p[0] == 2 * MINUTE).count();
            assert!(missing > 0, "missing bars");
        }
    }

    #[test]
    fn regimes_differ_in_the_memory_of_their_moves_and_volatility_clusters() {
        let config = sample();
        let mut products = vec![(0.0, 0.0); config.regimes.0.len()];
        let mut sizes = Vec::new();
        for bars in config.bars().unwrap() {
            let close = &bars.prices[3];
            let change = |step: usize| close[step] / close[step - 1] - 1.0;
            for step in 2..close.len() {
                let together = bars.time[step] - bars.time[step - 2] == 2 * MINUTE
                    && bars.regime[step] == bars.regime[step - 2];
                if together && change(step).abs() < 4e-3 && change(step - 1).abs() < 4e-3 {
                    let (sum, squares) = &mut products[bars.regime[step] as usize];
                    *sum += change(step) * change(step - 1);
                    *squares += change(step).powi(2);
                    sizes.push([change(step).abs(), change(step - 1).abs()]);
                }
            }
        }
        let [consolidation, retracement, trend] = [0, 1, 2].map(|r| products[r].0 / products[r].1);
        assert!(consolidation < -0.15, "{consolidation}");
        assert!(retracement.abs() < 0.1, "{retracement}");
        assert!(trend > 0.25, "{trend}");
        let mean = sizes.iter().map(|pair| pair[0]).sum::<f64>() / sizes.len() as f64;
        let covariance: f64 = sizes.iter().map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
        let variance: f64 = sizes.iter().map(|pair| (pair[0] - mean).powi(2)).sum();
        assert!(covariance / variance > 0.1, "sizes of moves hang together");
    }

    #[test]
    fn settings_that_make_no_market_are_refused() {
        let problem = |text: &str| {
            let config = settings::<MarketConfig>(Path::new("a.market.toml"), text.as_bytes());
            config.and_then(|config| config.bars().map(drop)).unwrap_err().to_string()
        };
        let regime = "[regimes.a]\n";
        insta::assert_snapshot!(problem(""), @"the market's `regimes` is empty: name at least one, such as [regimes.calm]");
        insta::assert_snapshot!(problem(&format!("bars = 1\n{regime}")), @"the market's `bars` is 1: it must be at least 2 and below 100 million");
        insta::assert_snapshot!(problem(&format!("garch_shock = 0.5\ngarch_memory = 0.6\n{regime}")), @"the market's `garch_memory` is 0.6: it must be at least 0 and, with `garch_shock`, below 1");
        insta::assert_snapshot!(problem("[regimes.a]\nmomentum = 1.5"), @"the market's `regimes.a.momentum` is 1.5: it must lie between -1 and 1");
        insta::assert_snapshot!(problem(&format!("first_day = '2024-02-30'\n{regime}")), @"the market's `first_day` is `2024-02-30`: it must be a date such as 2024-01-02");
        insta::assert_snapshot!(problem(&format!("instruments = ['A', 'A']\n{regime}")), @r#"the market's `instruments` is ["A", "A"]: name at least one, and each once"#);
        insta::assert_snapshot!(problem("\nbars = 10\nbarz = 3"), @"a.market.toml, line 3: unknown field `barz`, expected one of `seed`, `bars`, `instruments`, `first_day`, `session_open`, `session_bars`, `price`, `tick`, `volatility`, `moves`, `garch_shock`, `garch_memory`, `session_smile`, `jump_probability`, `jump_size`, `overnight`, `missing_bars`, `regimes`");
    }

    #[test]
    fn names_are_quoted_where_they_would_break_a_line() {
        let text = "bars = 3\ninstruments = ['A, B']\n[regimes.only]\nshortest = 1\nduration = 1";
        let text = String::from_utf8(csv(&MarketConfig::from_toml(text).unwrap())).unwrap();
        assert!(text.lines().nth(1).unwrap().starts_with("\"A, B\",2024"), "{text}");
        assert_eq!([quoted("plain"), quoted("a\"b")], ["plain", "\"a\"\"b\""]);
    }

    #[test]
    fn one_regime_alone_makes_a_market() {
        let config =
            MarketConfig::from_toml("bars = 50\n[regimes.only]\nshortest = 1\nduration = 1")
                .unwrap();
        assert_eq!(config.bars().unwrap()[0].time.len(), 50);
    }
}
