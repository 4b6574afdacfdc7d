//! Every test window that was judged beside what was said of it, as a table in the folder of a run: its scores can be made
//! of it again. Forecasts, which have a row for each output, are in `forecast::rows`, and texts in `text::rows`.

use std::ops::Range;
use std::path::Path;

use firebox_core::{SeriesSet, Window, WindowList};
use firebox_data::{DataError, TableColumn, TableWriter};

/// Its name.
pub(crate) const FILE: &str = "test.parquet";
/// Cells that are written at a time, and those of a window more.
const CELLS: usize = 1 << 19;

/// Test windows, and what was said of each.
pub(crate) struct TestTable<'a> {
    /// The series of the windows.
    pub(crate) set: &'a SeriesSet,
    /// Whether these have moments; their places are written else.
    pub(crate) has_clock: bool,
    /// Names of the classes.
    pub(crate) classes: &'a [String],
    /// The windows, with their true classes.
    pub(crate) windows: WindowList,
    /// Columns beside where a window lies and what it is.
    pub(crate) said: Vec<(String, Said<'a>)>,
}

/// What was said of each window.
pub(crate) enum Said<'a> {
    /// A class, which is written by its name.
    Class(&'a [u32]),
    /// A class by its name, where there is one.
    ClassIfAny(Vec<Option<u32>>),
    /// A number, such as that of a cluster or a fold.
    Number(&'a [u32]),
    /// An exact number, where there is one.
    ExactIfAny(Vec<Option<f64>>),
    /// One of several numbers of each window.
    ///
    /// # Shapes
    /// - values: `[window, width]`
    Share { values: &'a [f32], place: usize, width: usize },
}

impl TestTable<'_> {
    /// Writes a row for each window: `series`, the moments of its first and last step (`start`, `end`), its true class
    /// (`truth`), if it has one, and what was said of it.
    ///
    /// # Errors
    ///
    /// When the disk is full, or the file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<(), DataError> {
        let mut table = TableWriter::create(path)?;
        let at_once = (CELLS / (self.said.len() + 4)).max(1);
        for from in (0..self.windows.len()).step_by(at_once) {
            table.write(self.rows(from..self.windows.len().min(from + at_once)))?;
        }
        table.finish().map(|_| ())
    }

    fn rows(&self, rows: Range<usize>) -> Vec<(String, TableColumn)> {
        let windows = || self.windows.range(rows.clone());
        let all = self.set.series();
        let moments = |step: fn(Window) -> usize| {
            let moment = |window: Window| all[window.series as usize].time[step(window)];
            let moments = windows().map(moment).collect();
            if self.has_clock { TableColumn::Time(moments) } else { TableColumn::Whole(moments) }
        };
        let class = |class: u32| self.classes.get(class as usize).cloned().unwrap_or_default();
        let series = windows().map(|window| all[window.series as usize].name.clone());
        let truth = windows().map(|window| window.label.map(class));
        let mut columns = vec![
            ("series".to_owned(), TableColumn::Text(series.collect())),
            ("start".to_owned(), moments(|window| window.steps().start)),
            ("end".to_owned(), moments(|window| window.steps().end - 1)),
            ("truth".to_owned(), TableColumn::TextIfAny(truth.collect())),
        ];
        for (name, said) in &self.said {
            let column = match said {
                Said::Class(all) => {
                    TableColumn::Text(all[rows.clone()].iter().map(|own| class(*own)).collect())
                }
                Said::ClassIfAny(all) => TableColumn::TextIfAny(
                    all[rows.clone()].iter().map(|own| own.map(class)).collect(),
                ),
                Said::ExactIfAny(all) => TableColumn::ExactIfAny(all[rows.clone()].to_vec()),
                Said::Number(all) => TableColumn::Whole(
                    all[rows.clone()].iter().map(|own| i64::from(*own)).collect(),
                ),
                Said::Share { values, place, width } => TableColumn::Number(
                    rows.clone().map(|row| values[row * width + place]).collect(),
                ),
            };
            columns.push((name.clone(), column));
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::{Channel, Role, Series};

    use super::*;

    #[test]
    fn a_row_says_where_a_window_lies_what_it_is_and_what_was_said() {
        let one = |name: &str| Series::regular(name, 100, 10, (0..8).map(f64::from).collect(), 1);
        let classes = ["rest", "move"].map(str::to_owned).to_vec();
        let channels = vec![Channel::new("x", Role::Other)];
        let set = SeriesSet::new(channels, classes.clone(), vec![one("a"), one("b")]).unwrap();
        let window = |series, start, label| Window { series, start, length: 4, label: Some(label) };
        let shares = [0.75, 0.25, 0.5, 0.5, 0.125, 0.875];
        let said = vec![
            ("class".to_owned(), Said::Class(&[0, 0, 1])),
            ("probability_move".to_owned(), Said::Share { values: &shares, place: 1, width: 2 }),
            ("fold".to_owned(), Said::Number(&[1, 1, 2])),
            ("probe".to_owned(), Said::ClassIfAny(vec![Some(0), None, Some(1)])),
            ("error".to_owned(), Said::ExactIfAny(vec![None, Some(0.1), None])),
        ];
        let unlabelled = Window { label: None, ..window(1, 2, 0) };
        let windows = [window(0, 0, 0), window(0, 4, 1), unlabelled].into_iter().collect();
        let table = TestTable { set: &set, has_clock: true, classes: &classes, windows, said };
        let text = |names: &[&str]| {
            TableColumn::Text(names.iter().map(|name| (*name).to_owned()).collect())
        };
        let if_any = |names: &[Option<&str>]| {
            TableColumn::TextIfAny(names.iter().map(|name| name.map(str::to_owned)).collect())
        };
        let expected = [
            ("series", text(&["a", "b"])),
            ("start", TableColumn::Time(vec![140, 120])),
            ("end", TableColumn::Time(vec![170, 150])),
            ("truth", if_any(&[Some("move"), None])),
            ("class", text(&["rest", "move"])),
            ("probability_move", TableColumn::Number(vec![0.5, 0.875])),
            ("fold", TableColumn::Whole(vec![1, 2])),
            ("probe", if_any(&[None, Some("move")])),
            ("error", TableColumn::ExactIfAny(vec![Some(0.1), None])),
        ];
        assert_eq!(table.rows(1..3), expected.map(|(name, own)| (name.to_owned(), own)));
        let untimed = TestTable { has_clock: false, ..table };
        assert_eq!(untimed.rows(0..1)[1], ("start".to_owned(), TableColumn::Whole(vec![100])));
    }

    #[test]
    fn rows_of_many_windows_are_written_in_parts() {
        let folder = tempfile::tempdir().unwrap();
        let series = Series::regular("a", 0, 1, vec![0.0; 4], 1);
        let channels = vec![Channel::new("x", Role::Other)];
        let set = SeriesSet::new(channels, vec!["only".to_owned()], vec![series]).unwrap();
        let window = Window { series: 0, start: 0, length: 4, label: Some(0) };
        let windows = std::iter::repeat_n(window, CELLS / 2).collect();
        let table = TestTable {
            set: &set,
            has_clock: false,
            classes: set.classes(),
            windows,
            said: vec![],
        };
        let path = folder.path().join(FILE);
        table.write(&path).unwrap();
        assert!(path.is_file());
        // No window, no file.
        let none = TestTable { windows: WindowList::default(), ..table };
        none.write(&folder.path().join("none.parquet")).unwrap();
        assert!(!folder.path().join("none.parquet").exists());
    }
}
