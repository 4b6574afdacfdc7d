//! The pages as a reader gets them: a snapshot of the summary, and what must hold for any page.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod page;

use firebox_core::{Event, Silent, Stream};
use firebox_eval::{
    Advice, Answers, ComparedRun, EmbeddingView, EpochPoint, Estimate, EvalConfig, EvalError,
    Evaluation, Fact, Features, MaskedWindow, Measure, Outcome, Parts, Projection, Reason,
    ReconstructionTally, Report, SideBySide, Stage, StepPoint, Subjects, Table, TestScore,
    Together, evaluate, verdict,
};

/// Features whose first columns carry the class as strongly as `signal` says.
fn parts(signal: f64, seed: u64, classes: u32) -> Parts {
    let part = |rows: u32, place: u64| {
        let mut draws = Stream::new(seed, "report").substream(place).draws();
        let mut features = Features { width: 10, ..Features::default() };
        for row in 0..rows {
            let label = row % classes;
            for column in 0..10 {
                let shift = if column == label { signal } else { 0.0 };
                features.rows.push((draws.normal() + shift) as f32);
            }
            features.labels.push(label);
        }
        features
    };
    Parts { train: part(200, 0), validation: part(40, 1), test: part(120, 2) }
}

fn judged(report: &mut Report, classes: &[&str], signal: f64) {
    let names: Vec<String> = classes.iter().map(|name| (*name).to_owned()).collect();
    let config = EvalConfig { resamples: 200, ..EvalConfig::default() };
    let count = names.len() as u32;
    let (pretrained, raw) = (parts(signal, 1, count), parts(1.0, 2, count));
    let subjects = Subjects {
        classes: &names,
        pretrained: &pretrained,
        raw: &raw,
        together: &Together::default(),
    };
    let scores = evaluate(&config, &subjects, |seed| Ok(parts(0.5, seed, count)), &Silent).unwrap();
    let mut tally = ReconstructionTally::new(report.channels.clone());
    report.masked_windows.iter().for_each(|window| tally.add(window).unwrap());
    report.judge(scores, tally.finish(&config, &Together::default()));
}

fn window(index: usize, channels: usize) -> MaskedWindow {
    let mut draws = Stream::new(index as u64, "window").draws();
    let truth: Vec<f32> = (0..20 * channels).map(|_| draws.normal() as f32).collect();
    let reconstructed = truth.iter().map(|value| value * 0.9).collect();
    let mask = (0..20).map(|s| s % 7 > 4).collect();
    MaskedWindow { index, truth, reconstructed, mask, filled: vec![] }
}

fn point(step: u64) -> StepPoint {
    let loss = 1.0 / step as f64;
    StepPoint { step, loss, learning_rate: 1e-3, gradient_norm: 0.5 }
}

fn epoch(epoch: u64) -> EpochPoint {
    let loss = 0.5 / epoch as f64;
    EpochPoint {
        epoch,
        step: 10 * epoch,
        train_loss: loss,
        validation_loss: Some(1.1 * loss),
        best: true,
    }
}

/// A small report with every part filled.
fn small() -> Report {
    let mut report = Report::new("pretrain", "run-7", verdict(None, None));
    report.created = "2026-01-01 12:00 UTC".to_owned();
    report.device = "cpu".to_owned();
    report.outcome = "finished".to_owned();
    report.seconds = 12.5;
    report.facts = vec![Fact::new("Parameters", "566,408")];
    report.channels = vec!["open".to_owned(), "close".to_owned()];
    report.masked_windows = (0..30).map(|index| window(index, 2)).collect();
    report.curves.steps = (1..=20).map(point).collect();
    report.curves.epochs = vec![epoch(1), epoch(2)];
    report.stages = vec![Stage {
        name: "ingest".to_owned(),
        key: Some("0123456789ab".to_owned()),
        reused: true,
        seconds: 0.25,
        detail: "2 series | 1,000 bars".to_owned(),
    }];
    report.data = vec![Table {
        title: "Checks".to_owned(),
        note: "What was found.".to_owned(),
        columns: vec!["check".to_owned(), "found".to_owned()],
        rows: vec![vec!["gaps".to_owned(), "3".to_owned()]],
    }];
    report.machine.notes = vec!["The processor was busy 40.0 % of the time.".to_owned()];
    let measure = |name: &str, unit: &str, mean: Option<f64>, peak| Measure {
        name: name.to_owned(),
        unit: unit.to_owned(),
        training_mean: mean,
        training_peak: mean.map(|mean| 1.5 * mean),
        peak,
    };
    report.machine.measures = vec![
        measure("share of the processor", "share", Some(0.4), 0.75),
        measure("resident memory", "bytes", Some(12_400_000.0), 2e9),
        measure("read from a disk", "bytes/s", None, 1500.0),
        measure("page faults", "1/s", Some(31.416), 1e4),
        measure("GPU 0 temperature", "°C", Some(50.0), 71.0),
    ];
    report.advice = vec![Advice {
        finding: "12.5 % of the time went by waiting for data".to_owned(),
        setting: "`loader.workers` from 1 to 2".to_owned(),
    }];
    report.reasons = vec![Reason {
        key: "train.precision".to_owned(),
        value: "f32".to_owned(),
        reason: "the device is a CPU".to_owned(),
    }];
    report.configuration = "seed = 1337\n".to_owned();
    report.record(&Event::Warning { message: "the disk is nearly full".to_owned() });
    judged(&mut report, &["rest", "move"], 4.0);
    report
}

#[test]
fn the_summary_is_this() {
    insta::assert_snapshot!(small().markdown());
}

#[test]
fn scores_json_holds_every_figure_and_reads_back() {
    let report = small();
    let scores: serde_json::Value = serde_json::from_str(&report.scores_json()).unwrap();
    assert_eq!(scores["verdict"]["outcome"], "beats");
    let evaluation = serde_json::from_value(scores["evaluation"].clone()).unwrap();
    // What was predicted of each window has a table of its own.
    let own = report.evaluation.clone();
    let own = own.map(|own| Evaluation { answers: Answers::default(), ..own });
    assert_eq!(own, Some(evaluation));
    assert_eq!(scores["evaluation"]["scores"][0]["subject"], "pre-trained");
    assert!(scores["evaluation"]["scores"][0]["metrics"]["accuracy"]["low"].is_f64());
    assert!(scores["reconstruction"]["reductions"][0]["reduction"]["high"].is_f64());
    assert_eq!(scores["training"]["best_epoch"], 2);
    assert_eq!(scores["machine"]["measures"][0]["training_mean"], 0.4);
    assert_eq!(scores["advice"][0]["setting"], "`loader.workers` from 1 to 2");
}

fn check(report: &Report) -> String {
    page::check(report.html())
}

#[test]
fn a_full_page_is_well_formed_and_begins_with_the_verdict() {
    let report = small();
    let page = check(&report);
    assert_eq!(report.verdict.outcome, Outcome::Beats);
    let verdict = page.find("Pre-training beats its baselines: a linear").unwrap();
    assert!(verdict < page.find("<h1>").unwrap());
    for id in
        ["warnings", "scores", "reconstruction", "training", "data", "stages", "configuration"]
    {
        assert!(page.contains(&format!("<section id=\"{id}\"")), "{id}");
    }
}

#[test]
fn a_badge_of_its_own_is_said_in_place_of_that_on_baselines() {
    let mut report = small();
    assert!(check(&report).contains(">Beats its baselines</strong>"));
    report.badge = "Clusters agree better".to_owned();
    let page = check(&report);
    assert!(page.contains(">Clusters agree better</strong>"));
    assert!(!page.contains("Beats its baselines"));
}

/// Runs of these names with these settings.
fn compared(names: &[&str], evil: &str) -> Vec<ComparedRun> {
    let run = |(place, name): (usize, &&str)| {
        let mut report = small();
        report.run = (*name).to_owned();
        let settings = [("same", "1".to_owned()), ("train.epochs", place.to_string())];
        let settings = settings.map(|(key, value)| (key.to_owned(), value));
        let timings = vec![(evil.to_owned(), evil.to_owned())];
        let scores = [("test/accuracy".to_owned(), 0.25), (evil.to_owned(), f64::NAN)];
        let (settings, scores, trainings) = (settings.into(), scores.into(), [].into());
        let (tests, own_training) = (vec![], String::new());
        ComparedRun { report, tests, own_training, settings, scores, timings, trainings }
    };
    names.iter().enumerate().map(run).collect()
}

#[test]
fn runs_side_by_side_are_one_page_with_what_differs() {
    let page = SideBySide::new(compared(&["a", "b", "a"], "step")).unwrap().html();
    let page = page::check(page);
    for part in [
        "Comparison of 3 runs",
        "a, b, a (2)",
        "1 setting is the same",
        "train.epochs",
        "Validation loss",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert!(!page.contains(">same<"), "a setting that does not differ is shown");
    let evil = "</title><script>alert('\"&')</script>";
    page::check(SideBySide::new(compared(&[evil, "b"], evil)).unwrap().html());
    // Files that changed under the same settings.
    let mut changed = compared(&["a", "b"], "step");
    for run in &mut changed {
        run.settings.clear();
    }
    let same = page::check(SideBySide::new(changed.clone()).unwrap().html());
    assert!(same.contains("nothing differs"));
    changed[1].report.stages[0].key = Some("ba9876543210".to_owned());
    let other = page::check(SideBySide::new(changed).unwrap().html());
    assert!(other.contains("what was read of the data") && other.contains("ba9876543210"));
    assert!(!other.contains("nothing differs"));
    // Runs that have not ended have no scores, and runs of one pipeline may not differ at all.
    let mut young = compared(&["a", "b"], "step");
    for run in &mut young {
        run.report = Report::new("", &run.report.run, verdict(None, None));
        run.settings.clear();
        run.scores.clear();
    }
    let page = page::check(SideBySide::new(young.clone()).unwrap().html());
    assert!(page.contains("None of these runs has scores yet") && page.contains("nothing differs"));
    // A run of several trainings has no curve in its log, and its scores are of its own kind.
    young[1].scores.insert("test/demand/1/mae".to_owned(), 12.5);
    let page = page::check(SideBySide::new(young.clone()).unwrap().html());
    for part in ["Every score in the logs", "test/demand/1/mae", "12.5"] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert!(!page.contains("has scores yet") && !page.contains("error on masked steps"));
    assert!(page.contains("has trained yet") && !page.contains("Nothing to draw"));
    // Its trainings have curves; those that others have, too, are beside each other.
    let curves = small().curves;
    for (run, all) in young.iter_mut().zip([14, 2]) {
        let names = (1..=all).map(|number| format!("fold-{number:02}/lstm"));
        run.trainings = names.map(|name| (name, curves.clone())).collect();
    }
    let page = page::check(SideBySide::new(young).unwrap().html());
    assert!(page.contains("2 more trainings") && !page.contains("has trained yet"));
    for (name, runs) in [("fold-01/lstm", 2), ("fold-14/lstm", 1)] {
        let chart = page.split("<figure>").find(|chart| chart.contains(name)).unwrap();
        assert_eq!(chart.matches("class=\"curve\"").count(), runs, "{chart}");
        // A single curve has no legend.
        assert_eq!(chart.contains("validation loss (a)"), runs == 1, "{chart}");
    }
}

#[test]
fn each_run_tells_its_own_score_and_what_its_steps_and_its_loss_are_of() {
    let estimate = |value| Estimate { value, low: value - 0.1, high: value + 0.1 };
    let mut runs = compared(&["probed", "tuned", "folds", "texts"], "step");
    let curves = runs[1].report.curves.clone();
    for run in &mut runs[1..] {
        run.report.judge(None, None);
    }
    let tuned = TestScore::share("accuracy with 25.0 % of the labels", estimate(0.625));
    (runs[1].tests, runs[1].own_training) = (vec![tuned], "pre-training".to_owned());
    runs[1].trainings = [("a".to_owned(), curves.clone()), ("b".to_owned(), curves)].into();
    let fold = |model: &str, value| TestScore {
        model: model.to_owned(),
        ..TestScore::share("accuracy", estimate(value))
    };
    runs[2].tests = vec![fold("LSTM", 0.5), fold("MLP", 0.375)];
    runs[2].trainings = runs[1].trainings.clone();
    runs[2].report.curves = firebox_eval::Curves::default();
    // One that is no number is not told.
    runs[3].tests = vec![
        TestScore::number("scaled error", estimate(f64::NAN)),
        TestScore::number("macro F1", estimate(0.75)),
    ];
    // Lines do not break before the sign.
    let page = page::check(SideBySide::new(runs).unwrap().html()).replace("\u{a0}%", " %");
    let first = page.split("<section id=\"curves\"").next().unwrap();
    for part in [
        " of a linear probe<",
        "<td>20 in the pre-training, 40 in 2 other trainings</td>",
        "<b>0.275</b> <span class=\"interval\">pre-training, epoch 2</span>",
        "<td>62.5 % accuracy with 25.0 % of the labels</td>",
        "<td>40 in 2 trainings</td>",
        "<td>accuracy: LSTM 50.0 %, MLP 37.5 %</td>",
        "<td>0.750 macro F1</td>",
    ] {
        assert!(first.contains(part), "{part} is missing: {first}");
    }
    // Scores of one name have a chart, and the curves of a part of a run say so.
    for part in ["Test macro F1, with its interval", "folds, MLP", "tuned, pre-training"] {
        assert!(page.contains(part), "{part} is missing");
    }
}

#[test]
fn a_comparison_needs_runs_and_replaces_nothing_but_a_page() {
    for count in [0, 1, 10] {
        let names = vec!["run"; count];
        let error = SideBySide::new(compared(&names, "step")).unwrap_err().to_string();
        assert!(error.contains(&format!("{count} runs cannot be compared")), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let both = SideBySide::new(compared(&["a", "b"], "step")).unwrap();
    let page = folder.path().join("page.html");
    both.write(&page).unwrap();
    both.write(&page).unwrap();
    let other = folder.path().join("thesis.html");
    std::fs::write(&other, "<p>years of work</p>").unwrap();
    assert!(matches!(both.write(&other).unwrap_err(), EvalError::NotOurs { .. }));
    assert!(std::fs::read_to_string(&other).unwrap().contains("years of work"));
}

#[test]
fn nothing_that_is_written_becomes_markup() {
    let evil = "</title><script>alert('\"&')</script>\u{0}| \n[x](y)";
    let mut report = small();
    report.title = evil.to_owned();
    report.run = evil.to_owned();
    report.device = evil.to_owned();
    report.configuration = format!("``` {evil}");
    report.warnings = vec![evil.to_owned()];
    report.channels = vec![evil.to_owned(), "b".to_owned()];
    report.facts = vec![Fact::new(evil, evil)];
    report.stages[0].name = evil.to_owned();
    report.stages[0].key = Some(evil.to_owned());
    report.stages[0].detail = evil.to_owned();
    report.data[0].title = evil.to_owned();
    report.data[0].columns[1] = evil.to_owned();
    report.data[0].rows[0][1] = evil.to_owned();
    report.reasons[0].reason = evil.to_owned();
    judged(&mut report, &[evil, "move"], 4.0);
    report.embedding = Some(EmbeddingView {
        projection: Projection { points: vec![[0.0, 1.0], [1.0, 0.0]], explained: [0.5, 0.1] },
        labels: vec![Some(0), None],
        classes: vec![evil.to_owned(), "move".to_owned()],
    });
    let page = check(&report);
    assert!(page.contains("&lt;script&gt;") && !page.contains('\u{0}'));
    let summary = report.markdown();
    assert!(!summary.split("````").next().unwrap().contains("<script"));
}

/// Characters of the longest word that a reader sees.
fn longest_word(page: &str) -> usize {
    let seen = page.split('<').skip(1).filter_map(|part| {
        let (tag, text) = part.split_once('>')?;
        (tag != "style" && tag != "title").then_some(text)
    });
    seen.flat_map(str::split_whitespace).map(|word| word.chars().count()).max().unwrap_or(0)
}

#[test]
fn names_of_any_length_stretch_nothing() {
    let long = "n".repeat(3000);
    let mut report = small();
    report.title = long.clone();
    report.run = long.clone();
    report.warnings = vec![format!("`{long}` of {long}")];
    report.channels = vec![long.clone(), "b".to_owned()];
    report.facts = vec![Fact::new("data", long.clone()), Fact::new(long.clone(), "1")];
    report.stages[0].detail = long.clone();
    report.data[0].title = long.clone();
    report.data[0].columns[1] = long.clone();
    report.data[0].rows[0] = vec![long.clone(), format!("series `{long}`")];
    report.data[0].rows.push(vec!["4 of them".to_owned(), format!("4 ({long})")]);
    judged(&mut report, &[long.as_str(), "move"], 4.0);
    report.embedding = Some(EmbeddingView {
        projection: Projection { points: vec![[0.0, 1.0], [1.0, 0.0]], explained: [0.5, 0.1] },
        labels: vec![Some(0), Some(1)],
        classes: vec![long.clone(), "move".to_owned()],
    });
    let page = check(&report);
    let longest = longest_word(&page);
    assert!(longest <= 100, "{longest}");
    assert!(page.contains(&format!("title=\"{long}\"")), "all of a name can be read");
}

#[test]
fn extremes_draw_without_a_number_that_is_none() {
    let none = Report::new("nothing", "", verdict(None, None));
    let page = check(&none);
    assert!(page.contains("There are no labels") && page.contains("Nothing was trained"));
    assert!(none.markdown().starts_with("**There are no labels"));
    // Nor are labels where something else is missing.
    let mut untested = none.clone();
    untested.unscored = "There is no test part".to_owned();
    let page = check(&untested);
    assert!(page.contains("There is no test part, so there are no scores."));
    assert!(!page.contains("No window has a label") && !page.contains("Scores need labelled"));
    // Trainings in folders of their own are not denied.
    let mut parts = small();
    parts.curves = Default::default();
    for stage in ["train", "finetune"] {
        parts.stages[0].name = stage.to_owned();
        let page = check(&parts);
        assert!(page.contains("below <code>parts</code>") && !page.contains("Nothing was trained"));
        assert!(!page.contains("No epoch was trained"));
    }

    let mut wild = small();
    wild.curves.steps = (1..=300_000).map(point).collect();
    wild.curves.steps[5].loss = f64::NAN;
    wild.curves.steps[6].gradient_norm = f64::INFINITY;
    wild.curves.epochs = vec![epoch(1)];
    wild.curves.epochs[0].validation_loss = Some(f64::NAN);
    wild.curves.clip_norm = Some(1.0);
    wild.seconds = f64::NAN;
    wild.masked_windows[0].reconstructed[12] = f32::NAN;
    wild.masked_windows[1] = MaskedWindow::default();
    wild.masked_windows[2].mask = vec![true; 20];
    wild.embedding = Some(EmbeddingView {
        projection: Projection { points: vec![[f64::NAN, 0.0], [1.0, 2.0]], explained: [0.0; 2] },
        labels: vec![Some(7), Some(0)],
        classes: vec!["one".to_owned()],
    });
    let page = check(&wild);
    assert!(page.len() < 400_000, "{} bytes", page.len());

    let mut single = small();
    single.channels = (0..12).map(|channel| format!("channel {channel}")).collect();
    single.masked_windows = vec![window(0, 12)];
    single.curves.steps = vec![point(1)];
    judged(&mut single, &["a", "b", "c", "d", "e", "f", "g", "h", "i"], 1.0);
    check(&single);
}

#[test]
fn three_files_are_written_and_a_folder_that_cannot_be_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let written = small().write(&folder.path().join("new")).unwrap();
    for path in [&written.html, &written.summary, &written.scores] {
        assert!(std::fs::metadata(path).unwrap().len() > 500, "{}", path.display());
    }
    assert_eq!(std::fs::read_dir(folder.path().join("new")).unwrap().count(), 3);
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = small().write(&file.join("below")).unwrap_err();
    assert!(matches!(&error, EvalError::Write { path, .. } if path.ends_with("below")), "{error}");
}

#[test]
fn a_large_matrix_has_the_width_of_the_page_and_both_axes_are_named() {
    let beside = |classes: &[&str]| {
        let mut report = small();
        judged(&mut report, classes, 4.0);
        report.embedding = Some(EmbeddingView {
            projection: Projection {
                points: vec![[0.0, 1.0], [1.0, 0.5]],
                ..Projection::default()
            },
            labels: vec![Some(0), Some(1)],
            classes: classes.iter().map(|name| (*name).to_owned()).collect(),
        });
        let page = check(&report);
        assert!(page.contains(">first component<") && page.contains(">second component<"));
        page.contains("<div><figure><figcaption>Confusion matrix")
    };
    assert!(beside(&["rest", "move"]));
    assert!(!beside(&["1", "2", "3", "4", "5", "6", "7", "8", "9"]));
}
