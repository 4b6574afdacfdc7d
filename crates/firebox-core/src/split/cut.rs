//! Cuts series into windows, before anything is divided.

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
    if windows.whole {
        refuse_pieces(set, length + labels.horizon())?;
    }
    let all = cut(set, windows, labels);
    if all.is_empty() { Err(too_long(set, length + labels.horizon())) } else { Ok(all) }
}

/// Every window of a set that had no part in any training: new data for a finished model. They have no
/// labels, and there may be none.
///
/// # Errors
///
/// When the rule is out of range, or asks for whole series and one is in pieces.
pub fn unseen(set: &Arc<SeriesSet>, windows: &WindowRule) -> Result<HeldOutWindows, SplitError> {
    let &WindowRule { length, stride, .. } = windows;
    let range = 1..=u32::MAX as usize;
    if !range.contains(&length) || !range.contains(&stride) {
        return Err(SplitError::Rule { length, stride });
    }
    if windows.whole {
        refuse_pieces(set, length)?;
    }
    let all = cut(set, windows, &Labels::None);
    Ok(HeldOutWindows::new(Windows::new(Arc::clone(set), all, set.classes().into())))
}

/// One window of a series is the whole of it, or nothing honest can be said of its label.
fn refuse_pieces(set: &SeriesSet, needed: usize) -> Result<(), SplitError> {
    let broken = |series: &&Series| {
        series.segments.len() > 1 && series.segments[0].len() < needed.min(series.len())
    };
    let cut = || set.series().iter().filter(broken);
    match cut().next() {
        Some(first) => Err(SplitError::Pieces {
            count: cut().count(),
            series: set.series().len(),
            example: first.name.clone(),
            pieces: first.segments.len(),
        }),
        None => Ok(()),
    }
}

/// Every window of every segment, labelled.
fn cut(set: &SeriesSet, rule: &WindowRule, labels: &Labels) -> WindowList {
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
            if let Some(first) = series.segments.first() {
                let length = first.len().saturating_sub(horizon).min(rule.length);
                if length > 0 {
                    push(first.start, length);
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

fn too_long(set: &SeriesSet, needed: usize) -> SplitError {
    let longest = set
        .series()
        .iter()
        .flat_map(|series| series.segments.iter().map(move |segment| (segment.len(), &series.name)))
        .max_by_key(|(length, _)| *length);
    let (longest, series) = longest.map_or((0, String::new()), |(n, name)| (n, name.clone()));
    SplitError::TooLong { needed, longest, series }
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
        assert!(error.to_string().contains("`a` into 2"), "{error}");
    }
}
