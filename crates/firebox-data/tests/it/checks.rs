//! What each policy does to each defect, and how it is counted.

use firebox_data::{Action, Checks, DataError, Defect, Ingested};

use crate::Files;

/// Bars of one price, `[open, high, low, close]`, at minutes.
fn bars(rows: &[(u32, [&str; 4])]) -> String {
    let mut text = "time,open,high,low,close\n".to_owned();
    for (minute, prices) in rows {
        text += &format!("2024-01-02T00:{minute:02},{}\n", prices.join(","));
    }
    text
}

/// Values of one channel at minutes.
fn values(rows: &[(u32, &str)]) -> String {
    let mut text = "time,x\n".to_owned();
    rows.iter().for_each(|(minute, x)| text += &format!("2024-01-02T00:{minute:02},{x}\n"));
    text
}

fn run(text: &str, checks: &str) -> Result<Ingested, DataError> {
    let files = Files::new();
    files.write("a.csv", text);
    files.ingest("a.csv", &format!("interval = '1min'\nchecks = {{ {checks} }}"))
}

/// Values, minutes and segments of the only series.
fn check(
    text: &str,
    checks: &str,
    expected: &[f64],
    minutes: &[i64],
    segments: &[std::ops::Range<usize>],
) -> Checks {
    let data = run(text, checks).unwrap();
    let series = &data.set.series()[0];
    assert_eq!(*series.values.all(), *expected, "{checks}");
    let start = series.time[0] - series.time[0] % 3_600_000_000;
    let found: Vec<i64> = series.time.iter().map(|time| (time - start) / 60_000_000).collect();
    assert_eq!(found, minutes, "{checks}");
    assert_eq!(series.segments, segments, "{checks}");
    data.checks
}

fn found(checks: &Checks) -> Vec<(Defect, u64, Action)> {
    checks.findings.iter().map(|finding| (finding.defect, finding.count, finding.action)).collect()
}

#[test]
fn unsorted_rows() {
    let text = values(&[(0, "1"), (3, "4"), (1, "2"), (2, "3"), (4, "5")]);
    let sorted =
        check(&text, "unsorted = 'fill'", &[1., 2., 3., 4., 5.], &[0, 1, 2, 3, 4], &[0..5]);
    assert_eq!(found(&sorted), [(Defect::Unsorted, 2, Action::Filled)]);
    assert_eq!(sorted.by_series[0].unsorted, 2);
    let checks =
        check(&text, "unsorted = 'drop', gaps = 'split'", &[1., 4., 5.], &[0, 3, 4], &[0..1, 1..3]);
    assert_eq!((checks.rows, checks.steps, checks.by_series[0].rows_dropped), (5, 3, 2));
}

#[test]
fn duplicate_times() {
    let text = values(&[(0, "1"), (1, "2"), (1, "3"), (1, "4"), (2, "5")]);
    let checks = check(&text, "duplicates = 'drop'", &[1., 2., 5.], &[0, 1, 2], &[0..3]);
    assert_eq!(found(&checks), [(Defect::Duplicates, 2, Action::Dropped)]);
    check(&text, "duplicates = 'fill'", &[1., 4., 5.], &[0, 1, 2], &[0..3]);
}

#[test]
fn rows_of_a_higher_rate() {
    let mut text =
        values(&["1", "2", "3", "4", "5", "6", "7"].map(|x| (x.parse::<u32>().unwrap() - 1, x)));
    // A clock that is early and late, then rows every ten seconds, then every minute again.
    for (second, x) in [(415, 8), (485, 9), (495, 10), (505, 11), (515, 12), (545, 13), (600, 14)] {
        text += &format!("2024-01-02T00:{:02}:{:02},{x}\n", second / 60, second % 60);
    }
    let refused = run(&text, "").unwrap_err().to_string();
    assert!(
        refused.contains("3 rows follow less than half an interval after another"),
        "{refused}"
    );
    assert!(
        refused.contains("the interval is 1min; first: series `a`, row 10 of a.csv"),
        "{refused}"
    );
    assert!(refused.contains("10.0 seconds after the row before it"), "{refused}");
    assert!(refused.contains("set `data.checks.crowded` to"), "{refused}");
    let all: Vec<f64> = (1..=14).map(f64::from).collect();
    let kept = run(&text, "crowded = 'keep'").unwrap();
    assert_eq!(*kept.set.series()[0].values.all(), *all);
    let uneven = (Defect::Uneven, 2, Action::Kept);
    assert_eq!(found(&kept.checks), [(Defect::Crowded, 3, Action::Kept), uneven]);
    let said = kept.checks.findings[1].to_string();
    assert!(said.starts_with("2 steps are off the interval by more than a tenth of it (the interval is 1min, the farthest off by "), "{said}");
    assert!(said.contains("first: series `a`, row 9 of a.csv"), "{said}");
    assert_eq!(kept.checks.by_series[0].uneven, 2);
    let dropped = run(&text, "crowded = 'drop'").unwrap();
    // The row after half a minute is none of a minute.
    let rows = [1., 2., 3., 4., 5., 6., 7., 8., 9., 13., 14.];
    assert_eq!(*dropped.set.series()[0].values.all(), rows);
    let uneven = (Defect::Uneven, 1, Action::Kept);
    assert_eq!(found(&dropped.checks), [(Defect::Crowded, 3, Action::Dropped), uneven]);
    assert_eq!(dropped.checks.by_series[0].rows_dropped, 3);
    assert_eq!(dropped.set.series()[0].segments, [0..11]);
}

#[test]
fn what_is_not_filled_is_said() {
    let rows = ["", "1", "", "3", "", "", "", "7", "8"];
    let text = values(&(0..).zip(rows).collect::<Vec<_>>());
    let said = |text: &str, checks: &str| {
        let found = run(text, checks).unwrap().checks.findings;
        (found[0].action, found[0].count, found[0].to_string())
    };
    let (action, count, text_of) = said(&text, "not_finite = 'fill', longest_fill = 2");
    assert_eq!((action, count), (Action::Filled, 5));
    assert!(
        text_of.contains("1 filled and 4 left out with their rows")
            && text_of.contains("`data.checks.longest_fill` = 2"),
        "{text_of}"
    );
    let (action, _, text_of) = said(&text, "not_finite = 'fill', longest_fill = 0");
    assert_eq!(action, Action::Dropped, "{text_of}");
    let (action, _, text_of) = said(&values(&[(0, "1"), (1, ""), (2, "3")]), "not_finite = 'fill'");
    assert!(action == Action::Filled && !text_of.contains("longest_fill"), "{text_of}");
    let gaps = [(0, "1"), (1, "2"), (3, "4"), (4, "5"), (20, "6"), (21, "7")];
    let (action, _, text_of) = said(&values(&gaps), "gaps = 'fill', longest_fill = 5");
    assert_eq!(action, Action::Filled);
    assert!(
        text_of.contains("16 steps missing")
            && text_of.contains("1 step put in, and cut at gaps of more than"),
        "{text_of}"
    );
    let (action, _, text_of) = said(&values(&gaps[3..]), "gaps = 'fill', longest_fill = 5");
    assert!(action == Action::Split && text_of.contains("0 steps put in"), "{text_of}");
}

#[test]
fn an_extra_row_on_a_clock_that_is_not_quite_even() {
    let mut text = "time,x\n".to_owned();
    let mut draws = firebox_core::Stream::new(3, "clock").draws();
    let start = 1_704_153_600_000_000i64;
    for row in 0..100i64 {
        let at = start + row * 60_000_000 + (1e5 * (2.0 * draws.uniform_f64() - 1.0)) as i64;
        text += &format!("{at},{row}\n");
        if row == 50 {
            text += &format!("{},{row}.5\n", at + 20_000_000);
        }
    }
    let files = Files::new();
    files.write("a.csv", &text);
    let settings =
        "interval = '1min'\ncolumns = { time_unit = 'us' }\nchecks = { crowded = 'drop' }";
    let dropped = files.ingest("a.csv", settings).unwrap();
    assert_eq!(found(&dropped.checks), [(Defect::Crowded, 1, Action::Dropped)]);
    let rows: Vec<f64> = (0..100).map(f64::from).collect();
    assert_eq!(*dropped.set.series()[0].values.all(), *rows);
}

/// So many rows, one every so many seconds.
fn rate(seconds: u64, rows: u64) -> String {
    let times = (0..rows).map(|row| row * seconds);
    let line =
        |at: u64| format!("2024-01-02T{:02}:{:02}:{:02},{at}\n", at / 3600, at / 60 % 60, at % 60);
    "time,x\n".to_owned() + &times.map(line).collect::<String>()
}

#[test]
fn series_whose_steps_count_as_one_and_are_of_another_length() {
    let files = Files::new();
    files.write("both/a.csv", rate(60, 90));
    for (seconds, step) in [(35, "35s"), (45, "45s"), (66, "66s"), (89, "89s")] {
        files.write("both/b.csv", rate(seconds, 80));
        let refused = files.error("both", "");
        let expected = format!(
            "series `b` has steps of {step}, and the usual step is 1min (so it is for 1 of 2 series): a window would span another time there than it says\n  use series of one rate at a time:"
        );
        assert!(refused.contains(&expected), "{refused}");
        let declared = files.error("both", "interval = '1min'");
        assert!(declared.contains("and `data.interval` is 1min"), "{declared}");
        assert!(declared.contains("correct `data.interval`, or leave it out"), "{declared}");
    }
    let refused = files.error("both/b.csv", "interval = '1min'");
    assert!(refused.contains("series `b` has steps of 89s, and `data.interval` is 1min: a window"));
    assert!(files.ingest("both/b.csv", "").is_ok(), "alone, its own step is the usual one");
    // Of twice the length, all are gaps.
    files.write("both/b.csv", rate(120, 80));
    for checks in ["", "checks = { gaps = 'split' }"] {
        let refused = files.error("both", checks);
        assert!(refused.contains("series `b` has steps of 2min"), "{refused}");
    }
    assert!(files.ingest("both", "checks = { gaps = 'fill' }").is_ok());
    // Rows of several series that nothing tells apart are told as such.
    let rows = rate(60, 90) + rate(45, 90).split_once('\n').unwrap().1;
    files.write("c.csv", rows);
    let refused = files.error("c.csv", "");
    assert!(refused.contains("data.columns.series"), "{refused}");
}

#[test]
fn series_of_another_rate_and_times_of_none() {
    let files = Files::new();
    files.write("both/a.csv", rate(60, 90));
    files.write("both/b.csv", rate(1, 80));
    let refused = files.error("both", "");
    assert!(refused.contains("79 rows follow less than half an interval"), "{refused}");
    let taken = files.ingest("both", "checks = { crowded = 'drop' }").unwrap();
    assert_eq!(taken.set.series().iter().map(|s| s.time.len()).collect::<Vec<_>>(), [90, 2]);
    // Waiting times of a random process: no interval is theirs.
    let mut draws = firebox_core::Stream::new(1, "times").draws();
    let (mut at, mut text) = (0.0, "time,x\n".to_owned());
    for row in 0..500 {
        at += -60e6 * (1.0 - draws.uniform_f64()).ln();
        text += &format!("{},{row}\n", 1_704_153_600_000_000 + at as i64);
    }
    files.write("random.csv", text);
    let refused = files.error("random.csv", "columns = { time_unit = 'us' }");
    assert!(refused.contains("of 499 steps between rows are near the interval of"), "{refused}");
    assert!(refused.contains("put them on steps of one length first"), "{refused}");
}

#[test]
fn gaps_in_time() {
    let text = values(&[(0, "1"), (1, "2"), (4, "3"), (5, "4"), (30, "5")]);
    let checks = check(
        &text,
        "gaps = 'split'",
        &[1., 2., 3., 4., 5.],
        &[0, 1, 4, 5, 30],
        &[0..2, 2..4, 4..5],
    );
    assert_eq!(found(&checks), [(Defect::Gaps, 2, Action::Split)]);
    let series = &checks.by_series[0];
    assert_eq!((series.gaps, series.gap_steps, series.longest_gap), (2, 26, 25 * 60_000_000));
    let filled = check(
        &text,
        "gaps = 'fill', longest_fill = 2",
        &[1., 2., 2., 2., 3., 4., 5.],
        &[0, 1, 2, 3, 4, 5, 30],
        &[0..6, 6..7],
    );
    assert_eq!(filled.by_series[0].steps_filled, 2);
    assert_eq!((filled.rows, filled.steps), (5, 7));
}

#[test]
fn gaps_that_leave_short_runs_are_refused_with_the_way_out_of_numbered_rows() {
    let files = Files::new();
    let said = |weeks: i64, days: i64, checks: &str| {
        let times = (0..weeks).flat_map(|week| (0..days).map(move |day| 7 * week + day));
        // Days after 1 January 2024, a Monday.
        let rows = times.map(|day| format!("{},{day}\n", 1_704_067_200 + 86_400 * day));
        files.write("a.csv", format!("time,x\n{}", rows.collect::<String>()));
        let config = format!("columns = {{ time_unit = 's' }}\nchecks = {{ {checks} }}");
        match files.ingest("a.csv", &config) {
            Err(error) => error.to_string(),
            Ok(data) => data.checks.findings[0].to_string(),
        }
    };
    let hint = "leave the column of times out of the files, which numbers the rows; ";
    let found = said(12, 5, "");
    let start = "\n- 11 gaps in time (22 steps missing, the longest gap 3.0 days; between them lie 5.0 rows in the mean, ";
    assert!(found.contains(start) && found.contains(hint), "{found}");
    // Few gaps are no rule, and what is done about them by the settings needs no way out.
    assert!(!said(9, 5, "").contains(hint));
    assert!(!said(12, 5, "gaps = 'split'").contains(hint));
}

#[test]
fn bars_put_into_gaps_are_flat_at_the_last_close() {
    let text =
        bars(&[(0, ["1", "4", "1", "3"]), (1, ["3", "5", "2", "4"]), (3, ["4", "6", "3", "5"])]);
    let expected = [[1., 4., 1., 3.], [3., 5., 2., 4.], [4., 4., 4., 4.], [4., 6., 3., 5.]];
    check(&text, "gaps = 'fill'", expected.as_flattened(), &[0, 1, 2, 3], &[0..4]);
}

#[test]
fn values_that_are_not_finite() {
    let text = values(&[(0, ""), (1, "2"), (2, "NaN"), (3, "inf"), (4, "5"), (5, "6")]);
    let checks = check(&text, "not_finite = 'drop'", &[2., 5., 6.], &[1, 4, 5], &[0..1, 1..3]);
    assert_eq!(found(&checks), [(Defect::NotFinite, 3, Action::Dropped)]);
    let channel = &checks.by_series[0].channels[0];
    assert_eq!((channel.missing, channel.infinite, channel.filled), (2, 1, 0));
    let filled =
        check(&text, "not_finite = 'fill'", &[2., 2., 2., 5., 6.], &[1, 2, 3, 4, 5], &[0..5]);
    assert_eq!(filled.by_series[0].channels[0].filled, 2);
    assert_eq!(filled.by_series[0].rows_dropped, 1, "nothing stands before the first value");
    check(&text, "not_finite = 'fill', longest_fill = 1", &[2., 5., 6.], &[1, 4, 5], &[0..1, 1..3]);
}

#[test]
fn nothing_is_carried_over_a_gap_that_is_not_filled() {
    let behind = [(0, "1"), (1, "2"), (2, "3"), (30, ""), (31, ""), (32, "9"), (33, "8")];
    let split = "not_finite = 'fill', gaps = 'split'";
    check(&values(&behind), split, &[1., 2., 3., 9., 8.], &[0, 1, 2, 32, 33], &[0..3, 3..5]);
    let over = [(0, "1"), (1, "2"), (2, ""), (30, ""), (31, "5"), (32, "6")];
    let checks =
        check(&values(&over), split, &[1., 2., 2., 5., 6.], &[0, 1, 2, 31, 32], &[0..3, 3..5]);
    let said = checks.findings[0].to_string();
    assert!(said.contains("1 filled and 1 left out with its rows: at the beginning"), "{said}");
    // Where the gap itself is filled, so is what lies behind it.
    let fill = "not_finite = 'fill', gaps = 'fill', longest_fill = 30";
    let mut expected = vec![1., 2.];
    expected.extend([3.; 30]);
    expected.extend([9., 8.]);
    let minutes: Vec<i64> = (0..34).collect();
    check(&values(&behind), fill, &expected, &minutes, &[0..34]);
}

#[test]
fn prices_that_are_put_in_stay_within_what_was_measured_of_their_bar() {
    let rows = [
        (0, ["10", "12", "9", "11"]),
        // The last open lies below the low, and the last high below the open and the close.
        (1, ["", "20", "15", "18"]),
        (2, ["16", "", "14", "17"]),
        (3, ["30", "", "29", "31"]),
        (4, ["28", "33", "27", ""]),
        (5, ["40", "", "", ""]),
    ];
    let mut expected = [
        [10., 12., 9., 11.],
        [15., 20., 15., 18.],
        [16., 20., 14., 17.],
        [30., 31., 29., 31.],
        [28., 33., 27., 31.],
        [40., 40., 27., 31.],
    ];
    let minutes: Vec<i64> = (0..6).collect();
    let put_in = [1, 3, 1, 2].map(|count| (Defect::NotFinite, count, Action::Filled));
    for ohlc in ["error", "drop", "fill"] {
        let policies = format!("not_finite = 'fill', ohlc = '{ohlc}'");
        let checks = check(&bars(&rows), &policies, expected.as_flattened(), &minutes, &[0..6]);
        assert_eq!(found(&checks), put_in, "{ohlc}");
    }
    // What is measured is still held against itself.
    let mut broken = rows;
    broken[1].1[1] = "14";
    expected[1] = [15., 18., 15., 18.];
    expected[2] = [16., 17., 14., 17.];
    let policies = "not_finite = 'fill', ohlc = 'fill'";
    let checks = check(&bars(&broken), policies, expected.as_flattened(), &minutes, &[0..6]);
    assert_eq!(found(&checks)[4..], [(Defect::Ohlc, 1, Action::Filled)]);
}

#[test]
fn a_row_that_one_channel_lacks_is_left_out_of_all() {
    let files = Files::new();
    files.write("a.csv", "x,y\n1,1\n,2\n3,\n4,4\n5,6\n");
    let data = files.ingest("a.csv", "checks = { not_finite = 'drop' }").unwrap();
    let series = &data.set.series()[0];
    assert_eq!(series.values, [1., 1., 4., 4., 5., 6.]);
    assert_eq!(series.time, [0, 3, 4], "rows without times keep their numbers");
    assert_eq!(series.segments, [0..1, 1..3]);
    assert_eq!(data.checks.span, None);
}

#[test]
fn bars_out_of_order() {
    let text = bars(&[
        (0, ["1", "4", "1", "3"]),
        (1, ["3", "2", "2", "4"]),
        (2, ["4", "5", "4.5", "5"]),
        (3, ["5", "3", "6", "4"]),
        (4, ["4", "4", "4", "4"]),
    ]);
    let expected =
        [[1., 4., 1., 3.], [3., 4., 2., 4.], [4., 5., 4., 5.], [5., 5., 4., 4.], [4.; 4]];
    let checks = check(&text, "ohlc = 'fill'", expected.as_flattened(), &[0, 1, 2, 3, 4], &[0..5]);
    assert_eq!(
        found(&checks),
        [(Defect::Ohlc, 2, Action::Filled), (Defect::Ohlc, 2, Action::Filled)]
    );
    let dropped = [[1., 4., 1., 3.], [4.; 4]];
    let checks = check(
        &text,
        "ohlc = 'drop', constant = 'keep'",
        dropped.as_flattened(),
        &[0, 4],
        &[0..1, 1..2],
    );
    let ohlc: Vec<_> =
        checks.by_series[0].channels.iter().map(|c| (c.channel.as_str(), c.ohlc)).collect();
    assert_eq!(ohlc, [("high", 2), ("low", 2)]);
}

#[test]
fn constant_channels() {
    let files = Files::new();
    files.write("f/a.csv", "x,y,z\n1,7,1\n2,7,1\n");
    files.write("f/b.csv", "x,y,z\n3,7,2\n5,7,2\n");
    let kept = files.ingest("f", "checks = { constant = 'keep' }").unwrap();
    assert_eq!(kept.set.channels().len(), 3);
    assert_eq!(found(&kept.checks), [(Defect::Constant, 1, Action::Kept)]);
    // z is constant within each series, and tells them apart: counted, and no defect.
    let z = kept.checks.by_series.iter().flat_map(|s| &s.channels).filter(|c| c.channel == "z");
    assert!(z.filter(|c| c.constant).count() == 2);
    let dropped = files.ingest("f", "checks = { constant = 'drop' }").unwrap();
    let names: Vec<_> = dropped.set.channels().iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["x", "z"]);
    assert_eq!(dropped.set.series()[1].values, [3., 2., 5., 2.]);
    assert_eq!(dropped.checks.channels, dropped.set.channels());
}

#[test]
fn channels_without_a_value_are_left_out_with_constant_ones() {
    let files = Files::new();
    files.write("a.csv", "x,y,z\n1,,7\n2,NaN,7\n3,inf,7\n");
    let dropped = files.ingest("a.csv", "checks = { constant = 'drop' }").unwrap();
    assert_eq!(dropped.set.series()[0].values, [1., 2., 3.]);
    assert_eq!(dropped.checks.channels.len(), 1);
    let action = (Defect::Constant, 1, Action::Dropped);
    assert_eq!(found(&dropped.checks), [action, action]);
    let last = dropped.checks.findings.last().unwrap().to_string();
    assert_eq!(last, "channel `y` is constant (no value is finite)");
}

#[test]
fn clean_data_has_no_findings_and_the_interval_is_the_most_frequent() {
    let files = Files::new();
    files.write("a.csv", crate::bars(200));
    let checks = files.ingest("a.csv", "").unwrap().checks;
    assert!(checks.findings.is_empty() && checks.by_series.is_empty());
    assert_eq!(checks.interval.unwrap().to_string(), "1min");
    assert!(!checks.interval_declared);
    assert_eq!((checks.rows, checks.steps, checks.segments), (200, 200, 1));
}

#[test]
fn all_defects_are_reported_at_once() {
    let text = bars(&[
        (0, ["1", "4", "1", "3"]),
        (2, ["3", "2", "2", "4"]),
        (1, ["", "5", "4", "5"]),
        (3, ["5", "inf", "6", "4"]),
        (3, ["5", "6", "4", "4"]),
        (40, ["4", "4", "4", "4"]),
    ]);
    let error = run(&text, "").unwrap_err();
    let DataError::Defects { findings } = &error else { panic!("{error}") };
    assert_eq!(findings.len(), 7);
    insta::assert_snapshot!(error, @r#"
the data has defects that `data.checks` does not allow
- 1 row is not in the order of time (first: series `a`, row 3 of a.csv, 2024-01-02T00:01:00Z after 2024-01-02T00:02:00Z); set `data.checks.unsorted` to "fill" to sort the rows, or to "drop" to leave those out
- 1 row has the time of another (first: series `a`, row 5 of a.csv, 2024-01-02T00:03:00Z); set `data.checks.duplicates` to "drop" to keep the first row of each time, or to "fill" to keep the last
- channel `open`: 1 value missing, NaN or too large for f32 (first: series `a`, row 3 of a.csv, 2024-01-02T00:01:00Z); set `data.checks.not_finite` to "drop" to cut the series there, or to "fill" to repeat the last value
- channel `high`: 1 value missing, NaN or too large for f32 (first: series `a`, row 4 of a.csv, 2024-01-02T00:03:00Z); set `data.checks.not_finite` to "drop" to cut the series there, or to "fill" to repeat the last value
- channel `high`: 1 bar whose high lies inside the bar (first: series `a`, row 2 of a.csv, 2024-01-02T00:02:00Z); set `data.checks.ohlc` to "drop" to leave those bars out, or to "fill" to widen their range
- 1 gap in time (36 steps missing, the longest gap 37.0 minutes; first: series `a`, row 6 of a.csv, 2024-01-02T00:40:00Z: 37.0 minutes after the row before it); set `data.checks.gaps` to "split" to cut the series there (usual for market data, where that leaves runs as long as a window), or to "fill"
- channel `high` is constant (every value is 4); set `data.checks.constant` to "drop" or "keep"
"#);
}

#[test]
fn places_where_clocks_were_changed_name_the_zone() {
    let files = Files::new();
    let said = |day: &str, times: &[&str]| {
        let rows: String = times.iter().zip(1..).map(|(t, x)| format!("{day} {t},{x}\n")).collect();
        files.write("a.csv", format!("time,x\n{rows}"));
        files
            .error("a.csv", "")
            .contains("the zone of these local times in `data.columns.time_zone`")
    };
    let skipped = ["01:30", "01:45", "03:00", "03:15"];
    assert!(said("2024-03-31", &skipped) && !said("2024-04-02", &skipped));
    let twice = ["02:30", "02:45", "02:00", "02:15", "02:30", "02:45", "03:00"];
    assert!(said("2024-10-27", &twice));
    assert!(files.ingest("a.csv", "columns = { time_zone = 'Europe/Zurich' }").is_ok());
    assert!(said("2024-10-27", &["01:00", "02:00", "02:00", "03:00"]));
}
