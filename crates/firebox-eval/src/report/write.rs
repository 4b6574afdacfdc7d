//! Puts a report on disk: `report.html`, `summary.md` and `scores.json`.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::Report;
use crate::EvalError;

/// Where a report lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenReport {
    /// One page without anything from a network.
    pub html: PathBuf,
    /// The same content as text.
    pub summary: PathBuf,
    /// All figures.
    pub scores: PathBuf,
}

impl Report {
    /// Writes the three files into `folder`, each whole or not at all.
    ///
    /// # Errors
    ///
    /// When the folder cannot be made or a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<WrittenReport, EvalError> {
        let error = |source| EvalError::Write { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(error)?;
        let written = WrittenReport {
            html: folder.join("report.html"),
            summary: folder.join("summary.md"),
            scores: folder.join("scores.json"),
        };
        replace(&written.html, &self.html())?;
        replace(&written.summary, &self.markdown())?;
        replace(&written.scores, &self.scores_json())?;
        Ok(written)
    }

    /// All figures, as `scores.json` holds them.
    pub fn scores_json(&self) -> String {
        let best = self.best_epoch();
        let scores = json!({
            "title": self.title,
            "run": self.run,
            "outcome": self.outcome,
            "seconds": self.seconds,
            "verdict": self.verdict,
            "evaluation": self.evaluation,
            "reconstruction": self.reconstruction,
            "results": self.figures,
            "training": {
                "steps": self.curves.taken(),
                "skipped_steps": self.curves.skipped.len(),
                "loss_scale": self.curves.loss_scales.last().map(|change| change.scale),
                "epochs": self.curves.epochs.len(),
                "last_train_loss": self.curves.epochs.last().map(|epoch| epoch.train_loss),
                "best_validation_loss": best.map(|(_, loss)| loss),
                "best_epoch": best.map(|(epoch, _)| epoch.epoch),
            },
            "machine": self.machine,
            "advice": self.advice,
            "stages": self.stages,
            "warnings": self.all_warnings(),
        });
        // Pretty printing of a `Value` has nothing that can fail.
        let mut text = format!("{scores:#}");
        text.push('\n');
        text
    }
}

/// Writes a sibling temporary, syncs it, and renames it over `path`.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), EvalError> {
    let error = |source| EvalError::Write { path: path.to_owned(), source };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|source| {
        // What is half written helps nobody; the error that counts is the first.
        let _ = fs::remove_file(&temporary);
        error(source)
    })
}
