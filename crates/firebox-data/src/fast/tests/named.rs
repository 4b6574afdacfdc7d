//! Tables with a column that names the series.

use super::*;
use firebox_core::Origin;

/// Files that hold runs of rows of one series each, one after the other.
pub(super) struct Case {
    pub(super) folder: tempfile::TempDir,
    pub(super) config: DataConfig,
    /// Rows of each file.
    pub(super) rows: Vec<usize>,
    /// Whether every row has a name, and the rows of every series stand together.
    together: bool,
}

pub(super) const NAMES: [&str; 5] = ["a", "b", "c", "test/a", "7"];

/// The names of rows, of several runs, some of one row; some of a series that was there before, or of none. And where
/// each file begins, and the last ends.
fn named_rows(seed: u64, rows: usize) -> (Vec<Option<&'static str>>, Vec<usize>) {
    let mut draws = Stream::new(seed, "names").draws();
    let mut draw = |of: usize| (draws.uniform_f64() * of as f64) as usize % of;
    let (again, unnamed) = (draw(6) == 0, draw(12) == 0);
    let first = draw(NAMES.len());
    let (mut names, mut next, mut borders) = (vec![], first, vec![0]);
    while names.len() < rows {
        let length = [1, 1, 2, 3, 10, 40][draw(6)].min(rows - names.len());
        let name = if unnamed && draw(4) == 0 { None } else { Some(NAMES[next % NAMES.len()]) };
        names.extend(std::iter::repeat_n(name, length));
        next += if again && draw(3) == 0 { NAMES.len() - 1 } else { 1 };
        // Another file begins here, or within the run.
        if draw(5) == 0 {
            borders.push(names.len() - [0, draw(length)][draw(2)]);
        }
        if next - first >= NAMES.len() && !again {
            break;
        }
    }
    borders.retain(|border| *border < names.len());
    borders.push(names.len());
    borders.dedup();
    (names, borders)
}

/// Files of rows of these names, which begin at these rows, and the last ends at the last of them.
pub(super) fn case(seed: u64, names: &[Option<&'static str>], borders: &[usize]) -> Case {
    let mut draws = Stream::new(seed, "case").draws();
    let mut draw = |of: usize| (draws.uniform_f64() * of as f64) as usize % of;
    let mut table = odd_bars(seed, names.len());
    // Blanks around a name are none of it.
    let blank = |(row, name): (usize, &Option<&str>)| match (row % 3, name) {
        (_, None) => Some(" ").filter(|_| row % 2 == 0).map(str::to_owned),
        (0, Some(name)) => Some(format!(" {name}")),
        (_, Some(name)) => Some((*name).to_owned()),
    };
    let blanks: Vec<Option<String>> = names.iter().enumerate().map(blank).collect();
    table.with_column(Column::new("symbol".into(), blanks)).unwrap();
    if draw(8) == 0 {
        table = table.drop("time").unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let mut config = DataConfig::new(folder.path());
    if seed % 4 == 1 {
        table = labelled(table, seed, &mut config);
    }
    let (mut paths, rows) = write_files(&table, borders, folder.path());
    // Test files come last, and may name what training files do.
    let train = if draw(3) == 0 { paths.len().div_ceil(2) } else { paths.len() };
    config.test = (train < paths.len()).then(|| crate::Paths(paths.split_off(train)));
    config.path.0 = paths;
    config.checks = policies(seed);
    if table.column("time").is_ok() {
        config.columns.time_unit = crate::TimeUnit::S;
        config.interval =
            Interval::from_microseconds(60_000_000).filter(|_| seed.is_multiple_of(3));
    }
    let mut seen = std::collections::HashSet::new();
    let sided = borders.windows(2).enumerate().flat_map(|(file, border)| {
        names[border[0]..border[1]].iter().map(move |name| (*name, file >= train))
    });
    let sided: Vec<_> = sided.collect();
    let mut together = names.iter().all(Option::is_some);
    sided.chunk_by(|a, b| a == b).for_each(|run| together &= seen.insert(run[0]));
    // What a test series would be called if one of its name is trained on may be another's name.
    together &= !(seen.contains(&(Some("a"), false))
        && seen.contains(&(Some("a"), true))
        && (seen.contains(&(Some("test/a"), true)) || seen.contains(&(Some("test/a"), false))));
    Case { folder, config, rows, together }
}

#[test]
fn series_that_a_column_names_are_those_of_the_long_way_whatever_the_borders() {
    let (mut taken, mut refused, mut apart, mut several) = (0, 0, 0, 0);
    for seed in 0..600 {
        let rows = 2 + (Stream::new(seed, "rows").draws().uniform_f64() * 60.0) as usize;
        let (names, borders) = named_rows(seed, rows);
        let Case { folder, config, rows, together } = case(seed, &names, &borders);
        let files = inputs(&config).unwrap();
        let expected = long(&files, &config);
        let mut draws = Stream::new(seed, "parts").draws();
        let ends: Vec<_> = rows.iter().map(|rows| some_ends(*rows, &mut draws)).collect();
        for found in in_all_ways(&files, &config, &ends, folder.path()) {
            let is_odd = found.as_ref().is_err_and(|said| said == "odd");
            match (&found, &expected) {
                _ if !together => apart += 1,
                (Ok((set, _)), Ok(_)) => {
                    taken += 1;
                    several += usize::from(set.series().len() > 2);
                }
                _ if !is_odd => refused += 1,
                _ => {}
            }
            let errors = [found.as_ref().err(), expected.as_ref().err()];
            let says = format!("{seed}, parts {ends:?}: {errors:?}, {:?}", config.checks);
            match together {
                true => assert!(is_left(&found, &expected) || found == expected, "{says}"),
                false => assert!(is_odd, "{says}"),
            }
        }
    }
    let counts = format!("{taken} taken, {several} several, {refused} refused, {apart} apart");
    assert!(taken > 600 && several > 200 && refused > 100 && apart > 200, "{counts}");
}

/// Rows `time,symbol,x` of these names, a minute apart.
pub(super) fn text(names: &str, from: usize) -> String {
    let row = |(row, name): (usize, char)| {
        let minute = from + row;
        format!("2024-01-01T{:02}:{:02},{name},{}\n", minute / 60, minute % 60, minute * minute)
    };
    let rows: String = names.chars().enumerate().map(row).collect();
    format!("time,symbol,x\n{rows}")
}

/// What both ways say of CSV files, of which so many are to train on: the short one from the store, if it does not in memory.
pub(super) fn of_files(
    texts: &[String],
    train: usize,
    edit: impl Fn(&mut DataConfig),
) -> [Found; 2] {
    let folder = tempfile::tempdir().unwrap();
    let write = |(number, text): (usize, &String)| {
        let path = folder.path().join(format!("{number}.csv"));
        std::fs::write(&path, text).unwrap();
        path
    };
    let mut paths: Vec<_> = texts.iter().enumerate().map(write).collect();
    let mut config = DataConfig::new(&paths[0]);
    config.test = (train < paths.len()).then(|| crate::Paths(paths.split_off(train)));
    config.path.0 = paths;
    edit(&mut config);
    let files = inputs(&config).unwrap();
    let in_memory = said(short(&files, &config, Sink::Memory));
    let (cache, stop) = (folder.path().join("cache"), AtomicBool::new(false));
    let key = Key::builder("test", 1).finish();
    let stored = said(short(&files, &config, Sink::store(&cache, key, &stop)));
    let is_odd = in_memory.as_ref().is_err_and(|said| said == "odd");
    assert!(is_odd || in_memory == stored, "{:?}, {:?}", in_memory.err(), stored.err());
    [stored, long(&files, &config)]
}

#[test]
fn a_series_goes_on_in_the_next_file_and_not_in_one_to_test_on() {
    let texts = [text("aaab", 0), text("bbb", 4), text("bccaaa", 7)];
    let split = |config: &mut DataConfig| config.checks.gaps = GapPolicy::Split;
    let [short, long] = of_files(&texts, 3, split);
    assert!(short == long, "`a` comes again: {:?}", short.err());
    assert_eq!(long.unwrap().0.series()[0].len(), 6);
    let [short, long] = of_files(&texts[..2], 2, |_| ());
    let (set, checks) = short.as_ref().unwrap();
    let lengths: Vec<_> = set.series().iter().map(|series| (&*series.name, series.len())).collect();
    assert_eq!(lengths, [("a", 3), ("b", 4)]);
    assert_eq!(checks.series_column.as_deref(), Some("symbol"));
    assert!(short == long);
    let [short, long] = of_files(&texts, 2, |_| ());
    let set = &short.as_ref().unwrap().0;
    let names: Vec<_> = set.series().iter().map(|one| (&*one.name, one.origin)).collect();
    let [train, test] = [Origin::Train, Origin::Test];
    assert_eq!(
        names,
        [("a", train), ("b", train), ("test/b", test), ("c", test), ("test/a", test)]
    );
    assert!(short == long);
}

#[test]
fn a_place_in_a_series_is_told_by_its_file_and_row() {
    let gap = |texts: &mut [String; 2]| texts[1] = text("bbb", 14);
    let twice = |texts: &mut [String; 2]| texts[1] = text("bbb", 3);
    let back = |texts: &mut [String; 2]| texts[1] = text("bbb", 2);
    let value = |texts: &mut [String; 2]| texts[1] = texts[1].replace(",25\n", ",\n");
    type Edit<'a> = &'a dyn Fn(&mut [String; 2]);
    let cases: [(Edit<'_>, &str); 4] = [
        (&gap, "series `b`, row 1 of 1.csv"),
        (&twice, "series `b`, row 1 of 1.csv"),
        (&back, "series `b`, row 1 of 1.csv"),
        (&value, "series `b`, row 2 of 1.csv"),
    ];
    for (edit, expected) in cases {
        let mut texts = [text("aaab", 0), text("bbb", 4)];
        edit(&mut texts);
        let [short, long] = of_files(&texts, 2, |_| ());
        let said = short.as_ref().unwrap_err();
        assert!(said.contains(expected), "{said}");
        assert!(short == long, "{said}, {:?}", long.err());
        // Of two rows of one time, the last or the first is left out: before and behind the end of a file.
        for policy in [Policy::Drop, Policy::Fill] {
            let [short, long] = of_files(&texts, 2, same_policy(policy));
            assert!(short.is_ok() && short == long, "{expected}");
        }
    }
}

#[test]
fn a_row_without_a_name_goes_the_long_way() {
    for names in ["aab bb", "ab ab"] {
        let [short, long] = of_files(&[text(names, 0)], 1, |_| ());
        assert_eq!(short.unwrap_err(), "odd", "{names}");
        assert!(long.is_err(), "{names}");
    }
    // Blank lines are no rows.
    let blank = text("aabb", 0).replace("2024-01-01T00:02", "\n2024-01-01T00:02");
    for text in [format!("{}\n\n", text("aabb", 0)), blank] {
        let [short, long] = of_files(&[text], 1, |_| ());
        assert!(short.is_ok() && short == long);
    }
    // Of several series, none may be of several rows.
    assert_eq!(of_files(&[text("abc", 0)], 1, |_| ())[0].as_ref().unwrap_err(), "odd");
}

#[test]
fn several_series_are_not_taken_for_one_where_their_times_are_refused() {
    let texts = [text("aabb", 0), text("bb", 3)];
    let [short, long] = of_files(&texts, 2, |_| ());
    assert!(short.as_ref().unwrap_err().contains("the time of another"));
    assert!(short == long);
}

#[test]
fn series_of_one_step_each_keep_their_times() {
    let texts = [text("aa", 0).replace("T00:01", "T00:00"), text("b", 5)];
    let [short, long] = of_files(&texts, 2, same_policy(Policy::Drop));
    let (set, checks) = short.as_ref().unwrap();
    assert!(short == long, "{:?}", long.err());
    let start = 1_704_067_200_000_000;
    let times: Vec<i64> = set.series().iter().map(|series| series.time[0]).collect();
    assert_eq!(times, [start, start + 300_000_000]);
    assert_eq!((checks.interval, checks.span), (None, Some([times[0], times[1]])));
}

#[test]
fn a_series_of_which_nothing_is_left_is_refused_with_the_same_words() {
    let fill = "remove it, or set `data.checks` to \"fill\" what it can";
    let cases: [(&str, [&str; 4], Policy, &str); 7] = [
        (
            "x",
            ["", "NaN", "", "inf"],
            Policy::Drop,
            "its channel `x` has no value; remove the series",
        ),
        (
            "x",
            ["", "1e39", "-2e300", "inf"],
            Policy::Drop,
            "for f32, which ends at 3.4e38 (they reach 2e300); scale the column",
        ),
        ("x", ["", "", "", ""], Policy::Fill, "its channel `x` has no value; remove the series"),
        (
            "x,y",
            ["1,", "2,", "3,", ""],
            Policy::Drop,
            "`y` has no value; remove the series, or list the other channels",
        ),
        ("x,y", ["1,", ",2", "3,", "NaN,4"], Policy::Drop, fill),
        ("x,y", ["1e39,", ",2", "3,", "NaN,4"], Policy::Drop, fill),
        ("x,y", ["1e39,", ",2", ",", "NaN,4"], Policy::Drop, "`x` are too large for f32"),
    ];
    for (channels, lost, policy, expected) in cases {
        // Between two others, that its rows are behind those of one and before those of the next.
        let kept = |row: usize| {
            channels.replace('x', &row.to_string()).replace('y', &(9 - row).to_string())
        };
        let mut text = format!("symbol,time,{channels}\n");
        for (name, row) in
            ["a", "b", "c"].into_iter().flat_map(|name| (0..4).map(move |row| (name, row)))
        {
            let values = if name == "b" { lost[row].to_owned() } else { kept(row) };
            writeln!(text, "{name},2024-01-01T00:{row:02},{values}").unwrap();
        }
        let rows: Vec<&str> = text.lines().skip(1).collect();
        let turned: String =
            (0..12).map(|row| format!("{}\n", rows[row % 3 * 4 + row / 3])).collect();
        let turned = format!("symbol,time,{channels}\n{turned}");
        for text in [&text, &turned] {
            for constant in [ConstantPolicy::Error, ConstantPolicy::Drop] {
                let edit = |config: &mut DataConfig| {
                    same_policy(policy)(config);
                    config.checks.constant = constant;
                };
                let [short, long] = of_files(std::slice::from_ref(text), 1, edit);
                let said = short.as_ref().unwrap_err();
                assert!(said.starts_with("nothing is left of series `b` (4 rows)"), "{said}");
                assert!(said.contains(expected), "{said}");
                assert!(short == long, "{said}, {:?}", long.err());
            }
        }
    }
}
