//! Times as text or numbers → microseconds since 1970-01-01 UTC.
//!
//! ISO 8601 dates with an optional time of day and zone, and epoch numbers with a declared unit.
//! Nothing is guessed: a number without a declared unit is refused by the caller.

use chrono::{DateTime, LocalResult, NaiveDateTime, TimeZone as _};

use crate::TimeUnit;

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
/// Offsets of most zones change on full quarter hours.
const QUARTER: i64 = 15 * 60 * SECOND;

/// A time as it is written: in UTC, with another offset from it, which is taken off, or in a zone that is not written
/// with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Utc(i64),
    Offset(i64),
    Local(i64),
}

/// By which clocks the times of some rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clocks {
    pub(crate) utc: bool,
    pub(crate) offset: bool,
    pub(crate) local: bool,
}

impl Clocks {
    pub(crate) const UTC: Self = Self { utc: true, offset: false, local: false };
    pub(crate) const LOCAL: Self = Self { utc: false, offset: false, local: true };

    /// Those of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            utc: self.utc || other.utc,
            offset: self.offset || other.offset,
            local: self.local || other.local,
        }
    }

    /// Whether rows without a zone are of another one than rows beside them.
    pub(crate) fn differ(self, zone: Zone) -> bool {
        self.local && (self.offset || (self.utc && zone != Zone::Utc))
    }
}

/// Reads `YYYY-MM-DD` or `YYYYMMDD`, then optionally `T` or a space and `HH:MM[:SS[.fraction]]` or
/// `HHMM[SS]`, then optionally `Z`, `UTC` or `±HH[[:]MM]`. Digits beyond microseconds are cut.
pub(crate) fn parse_iso(text: &[u8]) -> Option<Written> {
    let text = text.trim_ascii();
    let extended = text.get(4) == Some(&b'-');
    let (year, month, day, rest) = if extended {
        let (date, rest) = text.split_at_checked(10)?;
        if date[7] != b'-' {
            return None;
        }
        (digits(&date[..4])?, digits(&date[5..7])?, digits(&date[8..])?, rest)
    } else {
        let (date, rest) = text.split_at_checked(8)?;
        // Eight digits alone may as well be a number; with a time of day they are a date.
        if rest.is_empty() {
            return None;
        }
        (digits(&date[..4])?, digits(&date[4..6])?, digits(&date[6..])?, rest)
    };
    let date = days(year, month, day)? * DAY;
    let [separator, rest @ ..] = rest else { return Some(Written::Local(date)) };
    if !matches!(separator, b'T' | b't' | b' ') {
        return None;
    }
    let end = rest
        .iter()
        .position(|byte| matches!(byte, b'Z' | b'z' | b'+' | b'-' | b' ' | b'U'))
        .unwrap_or(rest.len());
    let time = date + time_of_day(&rest[..end])?;
    Some(match rest[end..].trim_ascii() {
        b"" => Written::Local(time),
        b"Z" | b"z" | b"UTC" => Written::Utc(time),
        zone => match offset(zone)? {
            0 => Written::Utc(time),
            offset => Written::Offset(time - offset),
        },
    })
}

/// Whether a text looks like a date or a time of day, however it is written: `02.01.2023 00:00`, `1/2/23`, `12:30`.
pub(crate) fn is_like_time(text: &str) -> bool {
    let first = text.trim().split([' ', 'T', ',']).next().unwrap_or_default();
    let is_number = |part: &str| (1..=4).contains(&part.len()) && digits(part.as_bytes()).is_some();
    let is_of = |parts: &[usize], between: char| {
        parts.contains(&first.split(between).count()) && first.split(between).all(is_number)
    };
    // Shorter ones are numbers of versions.
    let is_date = first.len() >= 6 && ['.', '/', '-'].into_iter().any(|by| is_of(&[3], by));
    is_date || is_of(&[2, 3], ':') || parse_iso(text.as_bytes()).is_some()
}

/// Whether a text looks like a time of day without a date: `9:30`, `09:30:00.5`, `9:30 PM`.
pub(crate) fn is_time_of_day(text: &str) -> bool {
    let first = text.trim().split(' ').next().unwrap_or_default();
    let parts: Vec<&str> = first.split(':').collect();
    let is_whole = |part: &&str| (1..=2).contains(&part.len()) && digits(part.as_bytes()).is_some();
    let (last, others) = match &parts[..] {
        [hour, minute, second] => (*second, vec![*hour, *minute]),
        [hour, minute] => (*minute, vec![*hour]),
        _ => return false,
    };
    let mut last = last.split(['.', ',']);
    others.iter().all(is_whole)
        && last.next().as_ref().is_some_and(is_whole)
        && last.all(|fraction| digits(fraction.as_bytes()).is_some())
}

fn time_of_day(text: &[u8]) -> Option<i64> {
    let (clock, fraction) = match text.iter().position(|byte| matches!(byte, b'.' | b',')) {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &[][..]),
    };
    let (hour, minute, second) = match *clock {
        [a, b, b':', c, d] => (digits(&[a, b])?, digits(&[c, d])?, 0),
        [a, b, b':', c, d, b':', e, f] => (digits(&[a, b])?, digits(&[c, d])?, digits(&[e, f])?),
        [a, b, c, d] => (digits(&[a, b])?, digits(&[c, d])?, 0),
        [a, b, c, d, e, f] => (digits(&[a, b])?, digits(&[c, d])?, digits(&[e, f])?),
        _ => return None,
    };
    let fraction_allowed = matches!(clock.len(), 8 | 6);
    if hour > 23 || minute > 59 || second > 59 || (clock.len() < text.len() && !fraction_allowed) {
        return None;
    }
    if clock.len() < text.len() && fraction.is_empty() {
        return None;
    }
    Some(((hour * 60 + minute) * 60 + second) * SECOND + fraction_microseconds(fraction)?)
}

fn fraction_microseconds(fraction: &[u8]) -> Option<i64> {
    if fraction.len() > 18 || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some((0..6).fold(0, |sum, place| {
        sum * 10 + i64::from(fraction.get(place).map_or(0, |digit| digit - b'0'))
    }))
}

fn offset(zone: &[u8]) -> Option<i64> {
    let [sign, zone @ ..] = zone else { return None };
    let sign = match sign {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = match *zone {
        [a, b] => (digits(&[a, b])?, 0),
        [a, b, c, d] | [a, b, b':', c, d] => (digits(&[a, b])?, digits(&[c, d])?),
        _ => return None,
    };
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes) * 60 * SECOND)
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0i64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| i64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Days since 1970-01-01 of a date in the proleptic Gregorian calendar. Source: Howard Hinnant,
/// "chrono-compatible low-level date algorithms", `days_from_civil`.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let length = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(leap),
        _ => return None,
    };
    if day < 1 || day > length {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

/// Reads a decimal number of `unit`s since 1970-01-01 UTC.
pub(crate) fn parse_epoch(text: &[u8], unit: TimeUnit) -> Option<i64> {
    let text = text.trim_ascii();
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &[][..]),
    };
    if whole.is_empty() || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let whole = digits(whole)?;
    let magnitude = match unit {
        TimeUnit::S => whole.checked_mul(SECOND)?.checked_add(fraction_microseconds(fraction)?)?,
        // A fraction of a finer unit must be zero: `1398902400000.0` is common, `.5` a mistake.
        _ if fraction.iter().any(|digit| *digit != b'0') => return None,
        _ => return epoch(if negative { -whole } else { whole }, unit),
    };
    Some(if negative { -magnitude } else { magnitude })
}

/// A whole number of `unit`s in microseconds, if it fits.
pub(crate) fn epoch(number: i64, unit: TimeUnit) -> Option<i64> {
    match unit {
        TimeUnit::S => number.checked_mul(SECOND),
        TimeUnit::Ms => number.checked_mul(1_000),
        TimeUnit::Us => Some(number),
        TimeUnit::Ns => Some(number.div_euclid(1_000)),
        TimeUnit::Auto => None,
    }
}

/// A time as a number of `unit`s since 1970-01-01 UTC.
pub(crate) fn in_units(time: i64, unit: TimeUnit) -> f64 {
    let per_unit = match unit {
        TimeUnit::S => 1e6,
        TimeUnit::Ms => 1e3,
        TimeUnit::Us | TimeUnit::Auto => 1.0,
        TimeUnit::Ns => 1e-3,
    };
    time as f64 / per_unit
}

/// The unit in which a number would be a time between 1980 and 2100.
pub(crate) fn likely_unit(number: f64) -> Option<&'static str> {
    let seconds = 3.15e8..4.1e9;
    [("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)]
        .into_iter()
        .find(|(_, factor)| seconds.contains(&(number.abs() / factor)))
        .map(|(unit, _)| unit)
}

/// A date of the years 1900 to 2100 that a number of 8, 12 or 14 digits is, `YYYYMMDD` with or without `HHMM` or
/// `HHMMSS`, as ISO 8601. As a time since 1970, such a number is of no year between 1980 and 2100, whatever its unit.
pub(crate) fn as_date(number: f64) -> Option<String> {
    if number.fract() != 0.0 || !(1e7..1e14).contains(&number) {
        return None;
    }
    let text = format!("{number:.0}");
    let (date, clock) = text.split_at_checked(8)?;
    if !(1900..=2100).contains(&digits(&date.as_bytes()[..4])?) {
        return None;
    }
    let date = format!("{}-{}-{}", &date[..4], &date[4..6], &date[6..]);
    let written = match clock.len() {
        0 => date,
        4 => format!("{date}T{}:{}", &clock[..2], &clock[2..]),
        6 => format!("{date}T{}:{}:{}", &clock[..2], &clock[2..4], &clock[4..]),
        _ => return None,
    };
    parse_iso(written.as_bytes()).is_some().then_some(written)
}

/// ISO 8601 with the microseconds that are not zero.
pub(crate) fn format(time: i64) -> String {
    match DateTime::from_timestamp_micros(time) {
        Some(time) => {
            let text = time.naive_utc().format("%Y-%m-%dT%H:%M:%S%.f").to_string();
            format!("{text}Z")
        }
        None => format!("{time} us"),
    }
}

/// The zone of times that are written without one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Zone {
    #[default]
    Utc,
    Named(chrono_tz::Tz),
}

/// A local time that a zone does not have: clocks were put forward over it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Skipped;

impl Zone {
    /// The zone of this name; `Err` holds the most similar one.
    pub(crate) fn named(name: Option<&str>) -> Result<Self, Option<String>> {
        match name {
            None | Some("UTC" | "Z") => Ok(Self::Utc),
            Some(name) => name.parse().map(Self::Named).map_err(|_| {
                let zones = || chrono_tz::TZ_VARIANTS.iter().map(|zone| zone.name());
                // Of a city without its continent.
                let city = name.replace(' ', "_");
                let is_city = |zone: &&str| {
                    zone.rsplit('/').next().is_some_and(|own| own.eq_ignore_ascii_case(&city))
                };
                let of_city = zones().find(is_city).map(str::to_owned);
                of_city.or_else(|| crate::error::nearest(name, zones()))
            }),
        }
    }

    /// Local times → UTC, in place: one that clocks show twice becomes the first of the two, until they are
    /// [settled](Self::settle). `Err` holds the row of a skipped time.
    pub(crate) fn to_utc(self, times: &mut [i64]) -> Result<(), (usize, Skipped)> {
        let Self::Named(zone) = self else { return Ok(()) };
        let mut offsets = by_quarters(|time| Some(time - instants(zone, &naive(time)?)?.0));
        for (row, time) in times.iter_mut().enumerate() {
            *time -= offsets(*time).ok_or((row, Skipped))?;
        }
        Ok(())
    }

    /// Settles the times of one series, in the order of its rows: which of two moments one is that clocks show twice is
    /// told by the rows before it, `series` those before the first ([`Course::which`]).
    pub(crate) fn settle(self, times: &mut [i64], series: &mut Course) {
        let Self::Named(zone) = self else { return };
        let mut shifts = by_quarters(|time| shift(zone, time));
        // Where the first rows are shown twice, those behind them say where the times go.
        let mut ahead = 0;
        if series.step == 0 && times.first().is_some_and(|time| shifts(*time).is_some()) {
            let mut pairs = times.windows(2);
            let clear = pairs.find(|pair| pair[0] != pair[1] && shifts(pair[1]).is_none());
            ahead = clear.map_or(0, |pair| pair[1] - pair[0]);
        }
        for time in times {
            if let Some(shift) = shifts(*time) {
                *time = series.which([*time, *time + shift], ahead < 0);
            }
            series.go_on(*time);
        }
    }

    /// Whether one of these is the first of two moments that clocks show alike.
    pub(crate) fn shows_twice(self, times: &[i64]) -> bool {
        let Self::Named(zone) = self else { return false };
        let mut shifts = by_quarters(|time| shift(zone, time));
        times.iter().any(|time| shifts(*time).is_some())
    }
}

/// How the times of a series go on from row to row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Course {
    /// The last time.
    last: Option<i64>,
    /// What lies between two rows, the last time that they went on in their direction; 0 as long as there is none.
    step: i64,
    /// Whether the last row went the other way.
    turned: bool,
}

impl Course {
    /// Takes the next time.
    pub(crate) fn go_on(&mut self, time: i64) {
        let step = self.last.map_or(0, |last| time.saturating_sub(last));
        self.last = Some(time);
        if step == 0 {
            return;
        }
        // One row may be in a wrong place; of two, the times go the other way.
        let turns = self.step != 0 && (step > 0) != (self.step > 0);
        if !turns || self.turned {
            self.step = step;
        }
        self.turned = turns && !self.turned;
    }

    /// The same of many times, each behind the one before it, of which the last ones are enough.
    pub(crate) fn go_on_rising(&mut self, times: &[i64]) {
        times[times.len().saturating_sub(3)..].iter().for_each(|time| self.go_on(*time));
    }

    /// Which of two moments a row is of that clocks show alike: the first of them, in the direction of the times, that
    /// lies behind the row before; or the other one, which also is it where that alone lies a step behind it, as steps of
    /// hours do. A row that would go back by less than a step, and by the other moment on by another than one, is there
    /// twice, and one that would go back by two small ones in a wrong place: the rows around it are not of another hour.
    /// `falls` says whether the times go back, as long as that is not known.
    fn which(&self, [earlier, later]: [i64; 2], falls: bool) -> i64 {
        // Of times that go back, everything is the other way round.
        let falls = self.step < 0 || (self.step == 0 && falls);
        let sign = if falls { -1 } else { 1 };
        let [first, second] = if falls { [later, earlier] } else { [earlier, later] };
        let Some(last) = self.last else { return first };
        let (back, on) = (sign * (last - first), sign * (second - last));
        let step = self.step.abs();
        if back < 0 {
            let off = (on - step).abs();
            // A tenth is for clocks that are not quite even.
            let is_step = 10 * off <= step && off < (-back - step).abs();
            return if is_step { second } else { first };
        }
        let is_next = 2 * (on - step).abs() <= step;
        let is_small = 8 * step <= later - earlier;
        let is_odd = back < step || (is_small && back <= 2 * step);
        if !is_next && is_odd { first } else { second }
    }
}

/// How much later clocks show the same as at a moment once more, if they do.
fn shift(zone: chrono_tz::Tz, time: i64) -> Option<i64> {
    let local = zone.from_utc_datetime(&naive(time)?).naive_local();
    let (_, later) = instants(zone, &local)?;
    (later > time).then(|| later - time)
}

/// The same function of times, which is asked twice of a quarter hour in which it does not change, as nearly always.
fn by_quarters<T: Copy + PartialEq>(of: impl Fn(i64) -> T) -> impl FnMut(i64) -> T {
    let mut known: Option<(i64, T)> = None;
    move |time| {
        let quarter = time.div_euclid(QUARTER);
        if let Some((_, value)) = known.filter(|(known, _)| *known == quarter) {
            return value;
        }
        let begin = quarter.saturating_mul(QUARTER);
        let [first, last] = [begin, begin.saturating_add(QUARTER - 1)].map(&of);
        if first != last {
            return of(time);
        }
        known = Some((quarter, first));
        first
    }
}

fn naive(time: i64) -> Option<NaiveDateTime> {
    DateTime::from_timestamp_micros(time).map(|time| time.naive_utc())
}

fn instants(zone: chrono_tz::Tz, local: &NaiveDateTime) -> Option<(i64, i64)> {
    match zone.from_local_datetime(local) {
        LocalResult::Single(time) => Some((time.timestamp_micros(), time.timestamp_micros())),
        LocalResult::Ambiguous(a, b) => {
            let (a, b) = (a.timestamp_micros(), b.timestamp_micros());
            Some((a.min(b), a.max(b)))
        }
        LocalResult::None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn utc(text: &str) -> i64 {
        match parse_iso(text.as_bytes()) {
            Some(Written::Utc(time) | Written::Offset(time) | Written::Local(time)) => time,
            None => panic!("{text}"),
        }
    }

    #[test]
    fn iso_texts_of_one_moment_agree() {
        let moment = 1_398_902_460_000_000;
        for text in [
            "2014-05-01T00:01:00",
            "2014-05-01 00:01",
            "2014-05-01T00:01:00Z",
            "2014-05-01 02:01:00+02:00",
            "2014-05-01T02:01:00.000+0200",
            "2014-04-30T19:01:00-05",
            "20140501T000100Z",
            "20140501 0001",
            "2014-05-01 00:01:00 UTC",
            " 2014-05-01T00:01:00.000000000 ",
        ] {
            assert_eq!(utc(text), moment, "{text}");
        }
        assert_eq!(utc("1969-12-31T23:59:59.999999"), -1);
        assert_eq!(utc("2000-02-29"), 951_782_400_000_000);
        assert_eq!(utc("2014-05-01T00:01:00.1234567") - moment, 123_456);
        assert_eq!(parse_iso(b"2014-05-01T00:01"), Some(Written::Local(moment)));
        assert_eq!(parse_iso(b"2014-05-01T00:01Z"), Some(Written::Utc(moment)));
    }

    #[test]
    fn what_looks_like_a_time_does_however_it_is_written() {
        for text in ["02.01.2023 00:00", "1/2/23", "12:30", " 2024-01-02T00:00Z", "20230102 0000"] {
            assert!(is_like_time(text), "{text}");
        }
        for text in ["", "1.5", "1.2.3", "fine", "10-20", "192.168.1.1", "20230102", "1,234.5"] {
            assert!(!is_like_time(text), "{text}");
        }
    }

    #[test]
    fn times_of_day_are_told_from_dates() {
        for text in ["9:30", "09:30", " 09:30:00", "09:30:00.500", "9:30 PM"] {
            assert!(is_time_of_day(text), "{text}");
        }
        for text in ["", "9", "2024-01-01 09:30", "2024-01-01", "a:b", "9:", "100:30", "1:2:3:4"] {
            assert!(!is_time_of_day(text), "{text}");
        }
    }

    #[test]
    fn what_is_no_iso_time_is_refused() {
        for text in [
            "",
            "2014",
            "20140501",
            "2014-13-01",
            "2014-02-29",
            "2014-05-01T24:00",
            "2014-05-01T1:00",
            "2014-05-01T00:60",
            "2014-05-01T00:00:60",
            "2014/05/01",
            "01-05-2014",
            "1398902460",
            "2014-05-01T00:00:00.",
            "2014-05-01T00:00+25:00",
            "2014-05-01T",
            "2014-05-01x00:00",
            "NaT",
        ] {
            assert_eq!(parse_iso(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn epoch_numbers_keep_their_fraction_and_refuse_overflow() {
        let check = |text: &str, unit, expected| {
            assert_eq!(parse_epoch(text.as_bytes(), unit), expected, "{text}");
        };
        check("1398902460", TimeUnit::S, Some(1_398_902_460_000_000));
        check("1398902460.25", TimeUnit::S, Some(1_398_902_460_250_000));
        check("-0.5", TimeUnit::S, Some(-500_000));
        check("1398902460000.0", TimeUnit::Ms, Some(1_398_902_460_000_000));
        check("1398902460000.5", TimeUnit::Ms, None);
        check("-1500", TimeUnit::Ns, Some(-2));
        check("1704153660000000001", TimeUnit::Ns, Some(1_704_153_660_000_000));
        check("9223372036854775808", TimeUnit::Us, None);
        check("999999999999999999", TimeUnit::S, None);
        check("1e9", TimeUnit::S, None);
        check("", TimeUnit::S, None);
        check("-", TimeUnit::Us, None);
        assert_eq!(likely_unit(1_398_902_460.0), Some("s"));
        assert_eq!(likely_unit(1_398_902_460_000.0), Some("ms"));
        assert_eq!(likely_unit(1_398_902_460_000_000.0), Some("us"));
        assert_eq!(likely_unit(17.0), None);
    }

    #[test]
    fn numbers_that_are_dates_without_separators_are_told_from_others() {
        let check = |number: f64, expected: Option<&str>| {
            assert_eq!(as_date(number).as_deref(), expected, "{number}");
        };
        check(20_240_101.0, Some("2024-01-01"));
        check(20_240_229.0, Some("2024-02-29"));
        check(202_401_020_930.0, Some("2024-01-02T09:30"));
        check(20_240_102_093_015.0, Some("2024-01-02T09:30:15"));
        check(19_000_101.0, Some("1900-01-01"));
        check(21_001_231.0, Some("2100-12-31"));
        for number in [
            18_991_231.0,
            21_010_101.0,
            20_230_229.0,
            20_241_301.0,
            20_240_100.0,
            20_240_101.5,
            -20_240_101.0,
            2_024_010_109.0,
            202_401_022_460.0,
            20_240_102_093_060.0,
            f64::NAN,
            f64::INFINITY,
            1_704_153_600.0,
            0.0,
        ] {
            check(number, None);
        }
        // Those that are have no unit that would be likely.
        for number in [19_000_101.0, 21_001_231.0, 190_001_010_000.0, 21_001_231_235_959.0] {
            assert!(as_date(number).is_some() && likely_unit(number).is_none(), "{number}");
        }
    }

    #[test]
    fn local_times_of_a_named_zone_become_utc() {
        let Ok(zone) = Zone::named(Some("America/New_York")) else { panic!("the zone is known") };
        let convert = |texts: &[&str]| {
            let mut times: Vec<i64> = texts.iter().map(|text| utc(text)).collect();
            zone.to_utc(&mut times)?;
            zone.settle(&mut times, &mut Course::default());
            Ok(times.into_iter().map(format).collect::<Vec<_>>())
        };
        assert_eq!(convert(&["2020-01-02 09:30"]).unwrap(), ["2020-01-02T14:30:00Z"]);
        assert_eq!(convert(&["2020-07-02 09:30"]).unwrap(), ["2020-07-02T13:30:00Z"]);
        // Clocks show 01:30 twice on this day.
        assert_eq!(
            convert(&["2020-11-01 01:30", "2020-11-01 01:59", "2020-11-01 01:00"]).unwrap(),
            ["2020-11-01T05:30:00Z", "2020-11-01T05:59:00Z", "2020-11-01T06:00:00Z"]
        );
        assert_eq!(convert(&["2020-03-08 01:59", "2020-03-08 02:30"]), Err((1, Skipped)));
        assert_eq!(Zone::named(Some("Europe/Zurch")).err().flatten().unwrap(), "Europe/Zurich");
    }

    #[test]
    fn steps_of_hours_go_on_where_clocks_show_a_moment_twice() {
        let Ok(zone) = Zone::named(Some("America/New_York")) else { panic!("the zone is known") };
        let (start, hour) = (utc("2023-10-29T01:00Z"), 3_600 * SECOND);
        for step in [2, 3, 4, 6, 8, 12] {
            // In both directions; the hours from 05:00 to 06:59 in UTC of 5 November are shown as one.
            for sign in [1, -1] {
                for late in 0..step {
                    let time = |row: i64| {
                        start + hour * (late + if sign > 0 { row } else { 200 - row } * step)
                    };
                    let moments: Vec<i64> = (0..200).map(time).collect();
                    // Behind the night of the change, clocks are five hours behind UTC, before it four.
                    let change = utc("2023-11-05T06:00Z");
                    let shown = |time: &i64| time - hour * if *time < change { 4 } else { 5 };
                    let mut times: Vec<i64> = moments.iter().map(shown).collect();
                    zone.to_utc(&mut times).unwrap();
                    zone.settle(&mut times, &mut Course::default());
                    assert_eq!(times, moments, "{step} {sign} {late}");
                }
            }
        }
        // Rows a day of clocks apart are shown alike each day.
        let mut days: Vec<i64> = (0..14).map(|day| utc("2023-10-29T01:30Z") + day * DAY).collect();
        zone.to_utc(&mut days).unwrap();
        zone.settle(&mut days, &mut Course::default());
        assert_eq!(format(days[7]), "2023-11-05T05:30:00Z");
    }

    proptest! {
        #[test]
        fn formatted_times_are_read_back(time in -62_135_596_800_000_000i64..253_402_300_800_000_000) {
            prop_assert_eq!(parse_iso(format(time).as_bytes()), Some(Written::Utc(time)));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            parse_iso(&bytes);
            parse_epoch(&bytes, TimeUnit::S);
            parse_epoch(&bytes, TimeUnit::Ns);
        }
    }
}
