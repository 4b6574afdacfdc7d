//! Cuts series into windows, before anything is divided.

use std::ops::Range;
use std::sync::Arc;

use super::SplitError;
use crate::{HeldOutWindows, Labels, Series, SeriesSet, Window, WindowList, WindowRule, Windows};

/// Every window of every segment, labelled.
///
/// # Errors
///
/// When the rule is out of range, labels lack their channel, or no window fits.
pub(crate) fn all_windows(
    set: &SeriesSet,
    windows: &WindowRule,
    labels: &Labels,
) -> Result<WindowList, SplitError> {
    let &WindowRule { length, stride, .. } = windows;
    let range = 1..=u32::MAX as usize;
    if !range.contains(&length) || !range.contains(&stride) {
        return Err(SplitError::Rule { length, stride });
    }
    let close = set.role(crate::Role::Close).is_some();
    match labels {
        Labels::Forward { .. } if !close => return Err(SplitError::NoClose),
        Labels::Return { .. } if !close && set.role(crate::Role::Return).is_none() => {
            return Err(SplitError::NoReturn);
        }
        _ => {}
    }
    // What comes after a window is forecast from the newest that has it.
    let latest = matches!(labels, Labels::Ahead { .. });
    if windows.whole {
        refuse_pieces(set, length + labels.horizon(), latest)?;
    }
    let all = cut(set, windows, labels, latest);
    if all.is_empty() { Err(too_long(set, windows, labels)) } else { Ok(all) }
}

/// Every window of a set that had no part in any training: new data for a finished model. They have no
/// labels, and there may be none. `latest` says whether the one window of a whole series is of its last steps, as
/// what goes on from them is to be forecast, or of its first.
///
/// # Errors
///
/// When the rule is out of range, or asks for whole series and one is in pieces.
pub fn unseen(
    set: &Arc<SeriesSet>,
    windows: &WindowRule,
    latest: bool,
) -> Result<HeldOutWindows, SplitError> {
    let &WindowRule { length, stride, .. } = windows;
    let range = 1..=u32::MAX as usize;
    if !range.contains(&length) || !range.contains(&stride) {
        return Err(SplitError::Rule { length, stride });
    }
    if windows.whole {
        refuse_pieces(set, length, latest)?;
    }
    let all = cut(set, windows, &Labels::None, latest);
    Ok(HeldOutWindows::new(Windows::new(Arc::clone(set), all, set.classes().into())))
}

/// The piece of a series that its one window lies in.
fn piece(series: &Series, latest: bool) -> Option<&Range<usize>> {
    if latest { series.segments.last() } else { series.segments.first() }
}

/// One window of a series is the whole of it, or nothing honest can be said of its label.
fn refuse_pieces(set: &SeriesSet, needed: usize, latest: bool) -> Result<(), SplitError> {
    let is_short = |own: &Range<usize>, steps: usize| own.len() < needed.min(steps);
    let broken = |series: &&Series| {
        series.segments.len() > 1
            && piece(series, latest).is_some_and(|own| is_short(own, series.len()))
    };
    let cut = || set.series().iter().filter(broken);
    match cut().next() {
        Some(first) => Err(SplitError::Pieces {
            needed,
            end: if latest { "last" } else { "first" },
            count: cut().count(),
            series: set.series().len(),
            example: first.name.clone(),
            pieces: first.segments.len(),
        }),
        None => Ok(()),
    }
}

/// Every window of every segment, labelled.
fn cut(set: &SeriesSet, rule: &WindowRule, labels: &Labels, latest: bool) -> WindowList {
    let horizon = labels.horizon();
    let mut windows = WindowList::default();
    for (index, series) in set.series().iter().enumerate() {
        let mut push = |start: usize, length: usize| {
            windows.push(Window {
                series: index as u32,
                start: start as u32,
                length: length as u32,
                label: labels.of(set, series, start, length),
            });
        };
        if rule.whole {
            if let Some(own) = piece(series, latest) {
                let room = own.len().saturating_sub(horizon);
                let length = room.min(rule.length);
                if length > 0 {
                    push(own.start + if latest { room - length } else { 0 }, length);
                }
            }
            continue;
        }
        for segment in &series.segments {
            let last = segment.end.checked_sub(rule.length.saturating_add(horizon));
            for start in
                last.map(|last| segment.start..last + 1).into_iter().flatten().step_by(rule.stride)
            {
                push(start, rule.length);
            }
        }
    }
    windows
}

fn too_long(set: &SeriesSet, windows: &WindowRule, labels: &Labels) -> SplitError {
    let key = match labels {
        Labels::Forward { .. } => Some("labels.forward.horizon"),
        Labels::Return { .. } => Some("labels.return.horizon"),
        Labels::Ahead { .. } => Some("forecast.horizons"),
        Labels::None | Labels::Last | Labels::Majority { .. } => None,
    };
    let lengths =
        || set.series().iter().flat_map(|series| &series.segments).map(ExactSizeIterator::len);
    let [shortest, longest] = [lengths().min(), lengths().max()].map(Option::unwrap_or_default);
    let has_longest = |series: &&Series| series.segments.iter().any(|run| run.len() == longest);
    let series = set.series().iter().find(has_longest);
    let series = series.map_or(String::new(), |series| series.name.clone());
    SplitError::TooLong {
        // One of a whole series is as long as that.
        length: if windows.whole { 1 } else { windows.length },
        whole: windows.whole,
        after: key.map(|key| (labels.horizon(), key)),
        runs: [shortest, longest],
        cut: set.series().iter().any(|series| series.segments.len() > 1),
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::tests::rule;
    use crate::{Channel, Role, SplitRule, split};

    #[test]
    fn windows_stay_within_segments() {
        let mut series = Series::regular("a", 0, 1, vec![0.0; 100], 1);
        series.segments = vec![0..30, 40..100];
        let channels = vec![Channel::new("x", Role::Other)];
        let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
        let parts = split(&set, &rule(8, 3), &SplitRule::time(0.0, 0.0), &Labels::None).unwrap();
        assert!(parts.train.windows().iter().all(|w| w.steps().end <= 30 || w.steps().start >= 40));
        assert_eq!(parts.train.len(), 8 + 18);
    }

    #[test]
    fn whole_windows_need_whole_series() {
        let mut series = Series::regular("a", 0, 1, vec![0.0; 100], 1);
        series.segments = vec![0..30, 40..100];
        let channels = vec![Channel::new("x", Role::Other)];
        let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
        let whole = WindowRule { length: 100, stride: 1, whole: true };
        let error = split(&set, &whole, &SplitRule::time(0.0, 0.0), &Labels::None).unwrap_err();
        assert!(matches!(&error, SplitError::Pieces { count: 1, pieces: 2, .. }), "{error}");
        let said = "1 of 1 are cut within their first 100 steps (`a` into 2 pieces in all)";
        assert!(error.to_string().contains(said), "{error}");
        // Of another one the first piece is enough, and it is not counted.
        let of = |first: usize, name: &str| {
            let mut series = Series::regular(name, 0, 1, vec![0.0; 100], 1);
            series.segments = vec![0..first, first + 5..100];
            series
        };
        let channels = vec![Channel::new("x", Role::Other)];
        let pair = vec![of(60, "a"), of(30, "b")];
        let set = Arc::new(SeriesSet::new(channels, vec![], pair).unwrap());
        let whole = WindowRule { length: 48, stride: 1, whole: true };
        let error = split(&set, &whole, &SplitRule::time(0.0, 0.0), &Labels::None).unwrap_err();
        let said = "1 of 2 are cut within their first 48 steps (`b` into 2 pieces in all)";
        assert!(error.to_string().contains(said), "{error}");
    }

    #[test]
    fn the_window_of_a_whole_series_that_is_forecast_is_its_newest() {
        let series = [62, 40, 23]
            .map(|steps| Series::regular(format!("s{steps}"), 0, 1, vec![0.0; steps], 1));
        let channels = vec![Channel::new("x", Role::Other)];
        let set = Arc::new(SeriesSet::new(channels.clone(), vec![], series.into()).unwrap());
        let whole = WindowRule { length: 40, stride: 1, whole: true };
        let steps = |windows: &crate::Windows| -> Vec<Range<usize>> {
            windows.windows().iter().map(|window| window.steps()).collect()
        };
        let time = SplitRule::time(0.0, 0.0);
        let of = |labels: &Labels| steps(&split(&set, &whole, &time, labels).unwrap().train);
        // Five steps after each are its targets, of which the last is the last of the series.
        assert_eq!(of(&Labels::Ahead { steps: 5 }), [17..57, 0..35, 0..18]);
        assert_eq!(of(&Labels::None), [0..40, 0..40, 0..23]);
        let unseen = |latest| steps(&unseen(&set, &whole, latest).unwrap());
        assert_eq!(unseen(true), [22..62, 0..40, 0..23]);
        assert_eq!(unseen(false), [0..40, 0..40, 0..23]);
        // The piece that counts is the last one.
        let mut series = Series::regular("a", 0, 1, vec![0.0; 100], 1);
        series.segments = vec![0..50, 60..100];
        let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
        let ahead = |steps| split(&set, &whole, &time, &Labels::Ahead { steps });
        let error = ahead(5).unwrap_err().to_string();
        assert!(error.contains("1 of 1 are cut within their last 45 steps (`a`"), "{error}");
        assert_eq!(steps(&super::unseen(&set, &whole, true).unwrap())[0], 60..100);
    }

    #[test]
    fn windows_that_do_not_fit_are_told_with_the_keys_that_made_them() {
        let series =
            [30, 12].map(|steps| Series::regular(format!("s{steps}"), 0, 1, vec![1.0; steps], 1));
        let channels = vec![Channel::new("close", Role::Close)];
        let set = Arc::new(SeriesSet::new(channels, vec![], series.into()).unwrap());
        let said = |length, labels: &Labels| {
            let rule = WindowRule { length, ..WindowRule::default() };
            split(&set, &rule, &SplitRule::time(0.0, 0.0), labels).unwrap_err().to_string()
        };
        let runs =
            ", and the longest run without a gap has 30 (series `s30`), the shortest 12\n  set ";
        let check = |said: String, parts: [&str; 2]| {
            assert!(said.contains(&format!("{}{runs}{}", parts[0], parts[1])), "{said}");
        };
        check(
            said(105, &Labels::Last),
            [
                "it needs 105 consecutive steps (`window.length`, the default)",
                "window.length to 30 or less, or window.whole = true",
            ],
        );
        let forward = |horizon| Labels::Forward { horizon, threshold: 0.5 };
        check(
            said(40, &forward(6)),
            [
                "it needs 46 consecutive steps, 40 of its own (`window.length`) and 6 after them (`labels.forward.horizon`)",
                "window.length to 24 or less, or a smaller `labels.forward.horizon`; or give longer",
            ],
        );
        let returned = Labels::Return { horizon: 6000, threshold: 0.5 };
        check(
            said(5, &returned),
            ["and 6000 after them (`labels.return.horizon`)", "a smaller `labels.return.horizon`;"],
        );
        // A window of a whole series has a step at least, whatever the longest may have.
        let whole = WindowRule { length: 40, stride: 1, whole: true };
        let time = SplitRule::time(0.0, 0.0);
        check(
            split(&set, &whole, &time, &forward(30)).unwrap_err().to_string(),
            [
                "it needs 31 consecutive steps, 1 of its own (`window.whole`) and 30 after them (`labels.forward.horizon`)",
                "a smaller `labels.forward.horizon`; or give longer",
            ],
        );
    }

    #[test]
    fn windows_that_no_run_between_gaps_holds_are_told_with_numbered_rows() {
        let said = |segments: Vec<std::ops::Range<usize>>| {
            let mut series = Series::regular("a", 0, 1, vec![1.0; 14], 1);
            series.segments = segments;
            let channels = vec![Channel::new("x", Role::Other)];
            let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
            let time = SplitRule::time(0.0, 0.0);
            split(&set, &rule(32, 1), &time, &Labels::None).unwrap_err().to_string()
        };
        let numbered = "leave the column of times out of the files";
        let weeks = said(vec![0..5, 5..10, 10..14]);
        assert!(weeks.contains("set window.length to 5 or less; or give"), "{weeks}");
        assert!(weeks.contains(numbered), "{weeks}");
        let whole = said(std::iter::once(0..14).collect());
        assert!(whole.contains("or window.whole = true") && !whole.contains(numbered), "{whole}");
    }
}
