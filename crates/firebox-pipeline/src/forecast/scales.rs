//! Warnings of settings by which nothing can be forecast as it is asked for: levels that no window shows, and changes in units
//! of windows that are nearly constant. Nothing is refused: what they cost is in the scores.

use firebox_core::{
    Event, ForecastRule, ForecastScaler, Normalisation, Predicted, SeriesSet, TrainWindows, quoted,
};

use super::sequences::MOST_NAMED;
use crate::config::of_each_window;
use crate::stages::Run;

impl Run<'_> {
    /// Warns of targets whose values are to be put out while windows, each normalised by itself, do not show them.
    pub(super) fn warn_of_unseen_levels(&self, scaler: &ForecastScaler, set: &SeriesSet) {
        if let Some(message) = unseen_levels(self.config.window.normalise, scaler.rule(), set) {
            self.listener.on(&Event::Warning { message });
        }
    }

    /// Warns of targets whose relative changes have a scale that is made by windows in which they hardly change.
    pub(super) fn warn_of_nearly_constant(
        &self,
        scaler: &ForecastScaler,
        set: &SeriesSet,
        train: &TrainWindows,
    ) {
        for (channel, windows) in scaler.nearly_constant(set, train) {
            let message = nearly_constant(&set.channels()[channel].name, windows, train.len());
            self.listener.on(&Event::Warning { message });
        }
    }
}

fn unseen_levels(normalise: Normalisation, rule: &ForecastRule, set: &SeriesSet) -> Option<String> {
    let normalise = of_each_window(normalise)?;
    // A static feature has the level of the last step.
    let unseen = rule.targets.iter().filter(|target| !rule.statics.contains(target));
    let names: Vec<&str> = unseen.map(|target| set.channels()[*target].name.as_str()).collect();
    (rule.predicted == Predicted::Value && !names.is_empty()).then(|| {
        format!(
            "windows show nothing of the level of {} (window.normalise = \"{normalise}\"), and its values are to be forecast (forecast.predict = \"value\"): neither the model nor the linear model can know them\n  \
             set window.normalise = \"standard\", or forecast.predict = \"change\" where levels drift",
            quoted(&names, MOST_NAMED)
        )
    })
}

fn nearly_constant(channel: &str, windows: usize, all: usize) -> String {
    format!(
        "`{channel}` is nearly constant in {windows} of {all} training windows, and what follows is so many times larger than their standard deviation that it makes most of the scale of all (forecast.predict = \"relative-change\")\n  \
         set forecast.predict = \"change\""
    )
}

#[cfg(test)]
mod tests {
    use firebox_core::{Channel, Role, Series};

    use super::*;

    #[test]
    fn levels_that_no_window_shows_are_told_with_the_way_out() {
        let channels = ["load", "size"].map(|name| Channel::new(name, Role::Other)).to_vec();
        let series = Series::regular("a", 0, 1, vec![1.0; 20], 2);
        let set = SeriesSet::new(channels, vec![], vec![series]).unwrap();
        let said = |normalise, predicted, statics: &[usize]| {
            let (targets, statics) = (vec![0, 1], statics.to_vec());
            let rule = ForecastRule { targets, statics, predicted, ..ForecastRule::default() };
            unseen_levels(normalise, &rule, &set)
        };
        let relative = said(Normalisation::WindowRelative, Predicted::Value, &[1]).unwrap();
        let start =
            "windows show nothing of the level of `load` (window.normalise = \"window-relative\")";
        assert!(relative.starts_with(start), "{relative}");
        assert!(relative.contains("\n  set window.normalise = \"standard\", or"), "{relative}");
        let standard = said(Normalisation::WindowStandard, Predicted::Value, &[]).unwrap();
        assert!(standard.contains("level of `load`, `size` (window.normalise"), "{standard}");
        let (none, both): (&[usize], &[usize]) = (&[], &[0, 1]);
        for (normalise, predicted, statics) in [
            (Normalisation::Standard, Predicted::Value, none),
            (Normalisation::WindowRelative, Predicted::Change, none),
            (Normalisation::WindowStandard, Predicted::RelativeChange, none),
            (Normalisation::WindowRelative, Predicted::Value, both),
        ] {
            assert_eq!(said(normalise, predicted, statics), None, "{normalise:?} {predicted:?}");
        }
    }
}
