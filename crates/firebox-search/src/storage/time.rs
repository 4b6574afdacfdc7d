//! Times as the journal has them: ISO 8601 with microseconds, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

const FORMAT: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]+00:00");

/// Seconds since the epoch, now.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Seconds since the epoch as a journal's time. A number out of the calendar gives the epoch.
pub(super) fn write(seconds: f64) -> String {
    let nanoseconds = (seconds * 1e6).round() as i128 * 1000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds);
    let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    time.format(FORMAT).unwrap_or_else(|_| "1970-01-01T00:00:00.000000+00:00".to_owned())
}

/// Seconds since the epoch of a journal's time. One without an offset is taken for UTC.
pub(super) fn read(text: &str) -> Result<f64, String> {
    let parsed = OffsetDateTime::parse(text, &Rfc3339)
        .or_else(|_| OffsetDateTime::parse(&format!("{text}Z"), &Rfc3339));
    let time = parsed.map_err(|error| format!("`{text}` is no time: {error}"))?;
    // Whole microseconds first: a float holds them exactly, and not their thousandths.
    Ok((time.unix_timestamp_nanos() / 1000) as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_go_both_ways() {
        let check = |text: &str, seconds: f64| {
            assert_eq!(super::read(text).unwrap(), seconds);
            assert_eq!(super::write(seconds), text);
        };
        // Python: datetime.fromisoformat(text).timestamp()
        check("2026-11-21T18:00:01.250000+00:00", 1_795_284_001.25);
        check("1970-01-01T00:00:00.000001+00:00", 1e-6);
        let offset = super::read("2026-11-22T03:00:01.250000+09:00").unwrap();
        assert_eq!(offset, 1_795_284_001.25);
        assert_eq!(super::read("2026-11-21T18:00:01.250000").unwrap(), 1_795_284_001.25);
        assert!(super::read("yesterday").is_err());
    }
}
