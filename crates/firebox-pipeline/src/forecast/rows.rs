//! Every forecast of a test window beside what came, as a table in the folder of a run: all scores can be made of it again.

use std::path::Path;

use firebox_data::{DataError, TableColumn, TableWriter};
use firebox_eval::Forecaster;

use super::measure::Measured;
use super::sequences::Sequences;

pub(super) use crate::test_table::FILE;

/// Rows that are written at a time, and those of a window more.
const AT_ONCE: usize = 1 << 16;

/// Writes a row for each test window, in the order of time, and each output of it: `series`, the moment of the window's last
/// step (`end`; its place where there is no clock), `target`, `horizon`, `truth` (null where it was not measured), what each forecaster said, the model once
/// for each seed, and the `scale` of MASE.
pub(super) fn write(
    path: &Path,
    sequences: &Sequences,
    measured: &Measured,
) -> Result<(), DataError> {
    let (set, rule) = (sequences.set(), sequences.rule());
    let (outputs, targets) = (&measured.evaluation.outputs, rule.targets.len());
    let has_clock = sequences.windows.ingested.checks.span.is_some();
    let mut table = TableWriter::create(path)?;
    let at_once = AT_ONCE.div_ceil(outputs.len().max(1));
    for first in (0..measured.windows.len()).step_by(at_once) {
        let windows = measured.windows.range(first..measured.windows.len().min(first + at_once));
        let rows =
            || windows.clone().flat_map(|window| (0..outputs.len()).map(move |at| (window, at)));
        let own = || first * outputs.len()..(first + windows.len()) * outputs.len();
        let values = |all: &[f64]| TableColumn::Exact(all[own()].to_vec());
        let series = rows().map(|(window, _)| set.series()[window.series as usize].name.clone());
        let end = rows()
            .map(|(window, _)| set.series()[window.series as usize].time[window.steps().end - 1]);
        let end = end.collect();
        let scale = rows()
            .map(|(window, at)| measured.scales[window.series as usize * targets + at % targets]);
        let mut columns = vec![
            ("series".to_owned(), TableColumn::Text(series.collect())),
            (
                "end".to_owned(),
                if has_clock { TableColumn::Time(end) } else { TableColumn::Whole(end) },
            ),
            (
                "target".to_owned(),
                TableColumn::Text(rows().map(|(_, at)| outputs[at].target.clone()).collect()),
            ),
            (
                "horizon".to_owned(),
                TableColumn::Whole(rows().map(|(_, at)| outputs[at].horizon as i64).collect()),
            ),
            ("truth".to_owned(), where_measured(&measured.truth[own()])),
        ];
        for of in &measured.forecasts {
            for (seed, run) in (1..).zip(&of.runs) {
                columns.push((named(of.forecaster, seed), values(run)));
            }
        }
        columns.push(("scale".to_owned(), TableColumn::Exact(scale.collect())));
        table.write(columns)?;
    }
    table.finish().map(|_| ())
}

/// Values of which those are NaN that were not measured.
fn where_measured(values: &[f64]) -> TableColumn {
    let measured = values.iter().map(|value| Some(*value).filter(|value| !value.is_nan()));
    TableColumn::ExactIfAny(measured.collect())
}

/// The column of a forecaster, and of its training by this seed, from 1.
fn named(forecaster: Forecaster, seed: u32) -> String {
    match forecaster {
        Forecaster::Model if seed > 1 => format!("model_{seed}"),
        Forecaster::Model => "model".to_owned(),
        Forecaster::LastValue => "last_value".to_owned(),
        Forecaster::SeasonalNaive(_) => "seasonal_naive".to_owned(),
        Forecaster::Linear => "linear".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_null() {
        let found = where_measured(&[1.5, f64::NAN, f64::INFINITY]);
        assert_eq!(found, TableColumn::ExactIfAny(vec![Some(1.5), None, Some(f64::INFINITY)]));
    }
}
