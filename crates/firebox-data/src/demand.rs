//! Hourly demand at several stations, made from settings: what reference system R2 forecasts.
//!
//! Each station has a size, a share of homes among what surrounds it, and so a daily profile of its
//! own: homes have their peaks before and after work, offices during the day, and both a calmer
//! weekend. A mood of the whole city (its weather) and one of each station drift from hour to hour as
//! first-order autoregressions, which is what a model can know beyond the calendar. Counts are drawn by
//! Poisson's law.
//!
//! No real city is meant.

use std::f64::consts::TAU;
use std::io::{BufWriter, Write};
use std::path::Path;

use firebox_core::{Channel, Draws, Origin, Role, Stream};
use serde::{Deserialize, Serialize};

use crate::raw::{Piece, Raw, RawLabels, RawSeries, Rows};
use crate::{DataError, time};

/// Of the generator. A change of the counts that it makes needs a new number.
pub(crate) const VERSION: u32 = 1;

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;
/// Rate from which on a Poisson count is drawn as a rounded normal number.
const MANY: f64 = 50.0;

/// Settings of demand: the content of a `.demand.toml` file.
///
/// # Example
///
/// ```
/// let demand = firebox_data::DemandConfig::from_toml("stations = 2\nhours = 48")?;
/// let mut csv = Vec::new();
/// demand.write_csv(&mut csv)?;
/// let text = String::from_utf8(csv)?;
/// assert_eq!(text.lines().count(), 1 + 2 * 48);
/// assert!(text.starts_with("station,timestamp,demand,size,homes\nS01,"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DemandConfig {
    /// Seed of every draw.
    pub seed: u64,
    /// Hours of each station, at least 2.
    pub hours: usize,
    /// Number of stations, `S01`, `S02`, …; at least 1.
    pub stations: usize,
    /// First day, as `YYYY-MM-DD`.
    pub first_day: String,
    /// Counts of a mean hour at a station of mean size, above 0.
    pub mean: f64,
    /// How much sizes differ: standard deviation of their logarithm, 0 or more.
    pub size_spread: f64,
    /// How far the daily profile reaches up and down: standard deviation of its logarithm, 0 or more.
    pub daily: f64,
    /// What a weekend day has less than a working day, as a share, `0..1`.
    pub weekend: f64,
    /// How far the year reaches up and down, as a share, `0..1`.
    pub yearly: f64,
    /// Growth within a year, as a share, above −1.
    pub growth: f64,
    /// Standard deviation of the logarithm of what the mood of the city does to demand, 0 or more.
    pub city_mood: f64,
    /// The same of a station's own mood.
    pub station_mood: f64,
    /// Share of a mood that an hour hands on to the next, `0..1`.
    pub memory: f64,
}

impl Default for DemandConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            hours: 24 * 7 * 26,
            stations: 4,
            first_day: "2024-01-01".to_owned(),
            mean: 20.0,
            size_spread: 0.4,
            daily: 0.5,
            weekend: 0.25,
            yearly: 0.2,
            growth: 0.1,
            city_mood: 0.25,
            station_mood: 0.15,
            memory: 0.92,
        }
    }
}

/// The hours of one station.
struct Station {
    name: String,
    size: f64,
    homes: f64,
    counts: Vec<f64>,
}

impl DemandConfig {
    /// Reads settings, which are checked when the demand is made.
    ///
    /// # Errors
    ///
    /// For text that is no such settings: line and column are in the message.
    pub fn from_toml(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// Checks every setting, and returns the first moment.
    fn check(&self) -> Result<i64, DataError> {
        let share = |value: f64| (0.0..1.0).contains(&value);
        let spread = |value: f64| (0.0..=3.0).contains(&value);
        let (shares, spreads) = ("it must be at least 0 and below 1", "it must lie from 0 to 3");
        let counts = |count: usize| (1..10_000_000).contains(&count);
        let rules: [(&str, f64, bool, &str); 11] = [
            (
                "hours",
                self.hours as f64,
                self.hours > 1 && counts(self.hours),
                "it must be at least 2 and below 10 million",
            ),
            (
                "stations",
                self.stations as f64,
                counts(self.stations) && self.stations < 10_000,
                "it must be at least 1 and below 10 thousand",
            ),
            (
                "mean",
                self.mean,
                self.mean > 0.0 && self.mean < 1e9,
                "it must be above 0 and below 1e9",
            ),
            ("size_spread", self.size_spread, spread(self.size_spread), spreads),
            ("daily", self.daily, spread(self.daily), spreads),
            ("weekend", self.weekend, share(self.weekend), shares),
            ("yearly", self.yearly, share(self.yearly), shares),
            (
                "growth",
                self.growth,
                self.growth > -1.0 && self.growth < 10.0,
                "it must be above -1 and below 10",
            ),
            ("city_mood", self.city_mood, spread(self.city_mood), spreads),
            ("station_mood", self.station_mood, spread(self.station_mood), spreads),
            ("memory", self.memory, share(self.memory), shares),
        ];
        let wrong = |key: &str, found: String, wanted: &str| {
            Err(DataError::Demand { key: key.to_owned(), found, wanted: wanted.to_owned() })
        };
        if let Some((key, found, _, wanted)) = rules.into_iter().find(|(_, _, holds, _)| !holds) {
            return wrong(key, found.to_string(), wanted);
        }
        match time::parse_iso(self.first_day.as_bytes()) {
            Some(time::Written::Local(day)) if day % DAY == 0 => Ok(day),
            _ => wrong(
                "first_day",
                format!("`{}`", self.first_day),
                "it must be a date such as 2024-01-01",
            ),
        }
    }

    /// Makes all stations, and the first moment.
    fn make(&self) -> Result<(i64, Vec<Station>), DataError> {
        let first = self.check()?;
        let stream = Stream::new(self.seed, "demand");
        let city = self.mood(self.city_mood, &mut stream.substream(0).draws());
        let digits = self.stations.to_string().len().max(2);
        let stations = (1..=self.stations).map(|number| {
            let mut draws = stream.substream(number as u64).draws();
            let size = (self.size_spread * draws.normal()).exp();
            let homes = draws.uniform_f64();
            let own = self.mood(self.station_mood, &mut draws);
            let moods = city.iter().zip(own).enumerate();
            let counts = moods.map(|(hour, (city, own))| {
                let usual = self.mean * size * self.usual(first, hour, homes);
                poisson(usual * (city + own).exp(), &mut draws)
            });
            let counts = counts.collect();
            Station { name: format!("S{number:0digits$}"), size, homes, counts }
        });
        Ok((first, stations.collect()))
    }

    /// A drifting logarithm of this standard deviation and mean one of its exponential.
    fn mood(&self, deviation: f64, draws: &mut Draws) -> Vec<f64> {
        let step = (1.0 - self.memory * self.memory).sqrt();
        let mut state = draws.normal();
        let hours = (0..self.hours).map(|_| {
            state = self.memory * state + step * draws.normal();
            deviation * state - deviation * deviation / 2.0
        });
        hours.collect()
    }

    /// What the calendar says of an hour, about 1.
    fn usual(&self, first: i64, hour: usize, homes: f64) -> f64 {
        let day = first / DAY + (hour / 24) as i64;
        // 1 January 1970 was a Thursday.
        let weekend = (day + 3).rem_euclid(7) >= 5;
        let at = (hour % 24) as f64;
        let peak = |center: f64, width: f64| {
            let off = (at - center + 12.0).rem_euclid(24.0) - 12.0;
            (-off * off / (2.0 * width * width)).exp()
        };
        let commute = peak(8.0, 1.5) + peak(18.0, 2.0);
        let profile = match weekend {
            // A calm midday for all.
            true => 0.8 * peak(14.0, 4.0),
            false => homes * commute + (1.0 - homes) * peak(13.0, 3.5),
        };
        let weekly = if weekend { 1.0 - self.weekend } else { 1.0 };
        let years = hour as f64 / (24.0 * 365.2425);
        let season = 1.0 - self.yearly * (TAU * (day as f64 / 365.2425)).cos();
        (self.daily * (4.0 * profile - 1.5)).exp()
            * weekly
            * season
            * (1.0 + self.growth).powf(years)
    }

    /// The demand as series, for the checks that all data goes through.
    pub(crate) fn raw(&self, path: &Path, origin: Origin) -> Result<Raw, DataError> {
        let (first, stations) = self.make()?;
        let series = stations.into_iter().map(|station| {
            let hours = station.counts.len();
            let constant = |value: f64| vec![value; hours];
            RawSeries {
                name: station.name,
                origin,
                pieces: vec![Piece { path: path.into(), steps: hours, rows: Rows::From(1) }],
                time: Some((0..hours as i64).map(|hour| first + hour * HOUR).collect()),
                columns: vec![station.counts, constant(station.size), constant(station.homes)],
                labels: RawLabels::None,
            }
        });
        Ok(Raw {
            channels: ["demand", "size", "homes"].map(|n| Channel::new(n, Role::Other)).to_vec(),
            series: series.collect(),
            time: Some("timestamp".to_owned()),
            by: Some("station".to_owned()),
            ..Raw::default()
        })
    }

    /// Writes the demand as CSV with the columns station, timestamp, demand, size and homes. The same
    /// settings give the same bytes.
    ///
    /// # Errors
    ///
    /// For settings that make no demand, and when writing fails.
    pub fn write_csv(&self, to: &mut dyn Write) -> Result<(), DataError> {
        let (first, stations) = self.make()?;
        let failed = |error| DataError::io("write", Path::new("the demand"))(error);
        let mut to = BufWriter::new(to);
        let mut write = || {
            writeln!(to, "station,timestamp,demand,size,homes")?;
            for Station { name, size, homes, counts } in &stations {
                for (hour, count) in counts.iter().enumerate() {
                    let moment = time::format(first + hour as i64 * HOUR);
                    writeln!(to, "{name},{moment},{count},{size},{homes}")?;
                }
            }
            to.flush()
        };
        write().map_err(failed)
    }

    /// Writes the demand to a CSV file, which appears only once it is whole.
    ///
    /// # Errors
    ///
    /// Those of [`DemandConfig::write_csv`].
    pub fn write_csv_file(&self, path: &Path) -> Result<(), DataError> {
        crate::market::whole_file(path, |file| self.write_csv(file))
    }
}

/// A count of this mean. Source for few: Knuth, "The Art of Computer Programming", volume 2, 3.4.1.
fn poisson(rate: f64, draws: &mut Draws) -> f64 {
    if rate >= MANY {
        return (rate + rate.sqrt() * draws.normal()).round().max(0.0);
    }
    let (limit, mut product, mut count) = ((-rate).exp(), draws.uniform_f64(), 0.0);
    while product > limit {
        product *= draws.uniform_f64();
        count += 1.0;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::settings;

    fn sample() -> DemandConfig {
        DemandConfig::from_toml(include_str!("../../../data/sample.demand.toml")).unwrap()
    }

    fn mean(values: impl Iterator<Item = f64>) -> f64 {
        let (count, sum) = values.fold((0.0, 0.0), |(n, sum), value| (n + 1.0, sum + value));
        sum / count
    }

    #[test]
    fn the_same_settings_give_the_same_bytes() {
        let csv = |config: &DemandConfig| {
            let mut csv = Vec::new();
            config.write_csv(&mut csv).unwrap();
            csv
        };
        let small = DemandConfig { hours: 200, ..sample() };
        let text = csv(&small);
        assert_eq!(text, csv(&small));
        assert_ne!(text, csv(&DemandConfig { seed: 2, ..small.clone() }));
        // Pinned, so that a change of the generator is seen: it changes every published figure.
        insta::assert_snapshot!(blake3::hash(&text).to_hex().to_string(), @"a95342e44ee92c5e8b546428da50822bea72c577ba82ecc39005fe8d229eb485");
        let text = String::from_utf8(text).unwrap();
        insta::assert_snapshot!(text.lines().take(3).collect::<Vec<_>>().join("\n"), @r#"
station,timestamp,demand,size,homes
S01,2024-01-01T00:00:00Z,2,0.945594515716393,0.12798757467641675
S01,2024-01-01T01:00:00Z,8,0.945594515716393,0.12798757467641675
"#);
    }

    #[test]
    fn days_and_weeks_repeat_and_moods_last() {
        let (_, stations) = sample().make().unwrap();
        for Station { counts, name, .. } in stations {
            let mean = mean(counts.iter().copied());
            let together = |lag: usize| {
                let pairs = counts.iter().zip(&counts[lag..]);
                let products = pairs.map(|(a, b)| (a - mean) * (b - mean));
                products.sum::<f64>() / (counts.len() - lag) as f64
            };
            let like = |lag| together(lag) / together(0);
            assert!(like(24 * 7) > like(24) && like(24) > like(12) + 0.2, "{name}");
            assert!(like(1) > 0.5, "{name}: {}", like(1));
            assert!(counts.iter().all(|count| *count >= 0.0 && count.fract() == 0.0));
        }
    }

    #[test]
    fn counts_have_the_mean_and_variance_of_poissons_law() {
        for rate in [0.0, 0.3, 7.0, 49.0, 60.0, 4000.0] {
            let mut draws = Stream::new(3, "counts").draws();
            let counts: Vec<f64> = (0..20_000).map(|_| poisson(rate, &mut draws)).collect();
            let found = mean(counts.iter().copied());
            let variance = mean(counts.iter().map(|count| (count - found).powi(2)));
            assert!((found - rate).abs() <= 4.0 * (rate / 20_000.0).sqrt(), "{rate}: {found}");
            assert!((variance - rate).abs() <= 0.06 * rate, "{rate}: {variance}");
        }
    }

    #[test]
    fn settings_that_make_no_demand_are_refused() {
        let problem = |text: &str| {
            let config = settings::<DemandConfig>(Path::new("a.demand.toml"), text.as_bytes());
            config.and_then(|config| config.make().map(drop)).unwrap_err().to_string()
        };
        insta::assert_snapshot!(problem("hours = 1"), @"the demand's `hours` is 1: it must be at least 2 and below 10 million");
        insta::assert_snapshot!(problem("memory = 1"), @"the demand's `memory` is 1: it must be at least 0 and below 1");
        insta::assert_snapshot!(problem("mean = nan"), @"the demand's `mean` is NaN: it must be above 0 and below 1e9");
        insta::assert_snapshot!(problem("first_day = 'Monday'"), @"the demand's `first_day` is `Monday`: it must be a date such as 2024-01-01");
        insta::assert_snapshot!(problem("\nstation = 3"), @"a.demand.toml, line 2: unknown field `station`, expected one of `seed`, `hours`, `stations`, `first_day`, `mean`, `size_spread`, `daily`, `weekend`, `yearly`, `growth`, `city_mood`, `station_mood`, `memory`");
    }
}
