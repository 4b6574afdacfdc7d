//! The study as a page of text: `summary.md` beside the best pipeline.

use std::path::{Path, PathBuf};

use firebox_search::{Study, Trial, TrialState};

use crate::error::{PipelineError, at};

/// Writes the page and returns its path.
pub(super) fn write(
    folder: &Path,
    study: &Study,
    trials: &[Trial],
) -> Result<PathBuf, PipelineError> {
    let path = folder.join("summary.md");
    std::fs::write(&path, summary(study.name(), trials)).map_err(at(&path))?;
    Ok(path)
}

fn summary(name: &str, trials: &[Trial]) -> String {
    let of = |state: TrialState| trials.iter().filter(move |trial| trial.state == state);
    let mean = |seconds: Vec<f64>| {
        (!seconds.is_empty()).then(|| seconds.iter().sum::<f64>() / seconds.len() as f64)
    };
    let complete = mean(of(TrialState::Complete).filter_map(seconds).collect());
    let pruned: Vec<f64> = of(TrialState::Pruned).filter_map(seconds).collect();
    let mut text = format!("# Study {name}\n\n");
    for (state, what) in [
        (TrialState::Complete, "complete"),
        (TrialState::Pruned, "given up early"),
        (TrialState::Fail, "failed"),
        (TrialState::Running, "running"),
        (TrialState::Waiting, "waiting"),
    ] {
        let count = of(state).count();
        if count > 0 {
            text.push_str(&format!("- {what}: {count}\n"));
        }
    }
    if let Some(complete) = complete.filter(|_| !pruned.is_empty()) {
        let saved: f64 = pruned.iter().map(|seconds| (complete - seconds).max(0.0)).sum();
        text.push_str(&format!(
            "- pruning saved about {saved:.0} s: what its trials would have taken, had they lasted the mean {complete:.1} s of the complete ones\n"
        ));
    }
    text.push_str(
        "\n| trial | state | validation loss | seconds | values |\n|---|---|---|---|---|\n",
    );
    let mut sorted: Vec<&Trial> = trials.iter().collect();
    let value = |trial: &Trial| trial.values.as_ref().and_then(|values| values.first().copied());
    let rank = |trial: &Trial| match trial.state {
        TrialState::Complete => value(trial).unwrap_or(f64::INFINITY),
        _ => f64::INFINITY,
    };
    sorted.sort_by(|a, b| rank(a).total_cmp(&rank(b)).then(a.number.cmp(&b.number)));
    for trial in sorted {
        let shown = match (trial.state, value(trial)) {
            (TrialState::Fail, _) => reason(trial),
            (_, Some(value)) => format!("{value:.6}"),
            _ => String::new(),
        };
        let seconds = seconds(trial).map_or(String::new(), |seconds| format!("{seconds:.1}"));
        let state = format!("{:?}", trial.state).to_lowercase();
        let values = super::parameters_text(trial).replace('|', "\\|");
        let number = trial.number;
        text.push_str(&format!("| {number} | {state} | {shown} | {seconds} | {values} |\n"));
    }
    text
}

fn seconds(trial: &Trial) -> Option<f64> {
    Some(trial.ended? - trial.started?)
}

fn reason(trial: &Trial) -> String {
    let said = trial.user_attributes.get("fail_reason").and_then(|reason| reason.as_str());
    said.unwrap_or_default().replace('\n', " ").replace('|', "\\|")
}
