//! What a model was not trained on: channels and static features of new data that lie far from those of the training,
//! channels that stand still, and texts of words that it does not know. Only warnings, since what is far away may be what one looks for.

use firebox_core::{
    Event, Listener, Normalisation, Normaliser, SeriesSet, Window, WindowList, count,
};
use firebox_export::ModelCard;

use crate::values::{exact, rounded};

/// Scales from the centre beyond which hardly any value of the training lies.
const FAR: f64 = 10.0;

/// Standard deviations from the centre that a single value is told of from: one that is so far out among the training data
/// would have made them larger, unless the data were a million (Chebyshev's inequality). Quartiles it would not have moved,
/// and honest data have values as many of their ranges away. A choice.
const ABSURD: f64 = 1000.0;

/// Share of unknown tokens that texts of the language and script of the training hardly have.
const UNKNOWN: f64 = 0.1;

/// Whether a count is beyond what is likely: by three standard deviations of a rare count, and one for a single
/// outlier.
fn beyond(found: u64, likely: f64) -> bool {
    found as f64 > likely + 3.0 * likely.sqrt() + 1.0
}

/// What is to be said of how many of `all` tokens of new texts the model's vocabulary does not know, beside their share
/// in the training.
pub(super) fn unknown([unknown, all]: [u64; 2], training: Option<f64>) -> Option<String> {
    let share = (2.0 * training.unwrap_or_default()).max(UNKNOWN);
    if !beyond(unknown, share * all as f64) {
        return None;
    }
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let before = training.map_or(String::new(), |share| {
        format!(", and {} of those of the training texts", percent(share))
    });
    Some(format!(
        "{} of the tokens of the new texts are unknown to the model's vocabulary{before}: what the model says of such texts is a guess\n  \
         are they of the language and the script that it was trained on?",
        percent(unknown as f64 / all as f64)
    ))
}

/// Whether of a text with so many unknown tokens among all of its own hardly anything is known: half of them or more are not.
pub(super) fn is_stranger([unknown, all]: [u64; 2]) -> bool {
    2 * unknown >= all
}

/// What is to be said of how many of `all` new texts are [strangers](is_stranger), where their tokens are few among all: of
/// the training texts no more than twice the share of unknown tokens is such (Markov's inequality). `named` says where the
/// first of them stand.
pub(super) fn strangers(
    [found, all]: [u64; 2],
    training: Option<f64>,
    named: impl FnOnce() -> String,
) -> Option<String> {
    let likely = (2.0 * training.unwrap_or_default()).min(1.0) * all as f64;
    beyond(found, likely).then(|| {
        format!(
            "of {found} of {}, half of the tokens or more are unknown to the model's vocabulary, and what the model says of them is a guess: {}\n  \
             are they of the language and the script that it was trained on?",
            count(all, "text"),
            named()
        )
    })
}

/// What the scale of a channel is, where the training has fitted it.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    /// The standard deviation.
    Deviation,
    /// What it would be of normal values whose quartiles are as far apart.
    Quartiles,
}

impl Scale {
    /// Share of the training values that may lie beyond [`FAR`] scales of the centre: of any values 1/[`FAR`]² are so many
    /// standard deviations from their mean (Chebyshev's inequality), and half lie beyond their quartiles, at most.
    fn share(self) -> f64 {
        match self {
            Self::Deviation => 1.0 / (FAR * FAR),
            Self::Quartiles => 0.5,
        }
    }
}

/// What was seen of one channel.
#[derive(Clone, Default)]
struct Seen {
    steps: u64,
    far: u64,
    absurd: u64,
    /// The farthest value: how many scales from the centre, the value, its series and step.
    farthest: (f64, f64, String, usize),
    /// The least and the greatest value.
    ends: Option<(f64, f64)>,
}

impl Seen {
    /// Adds the value of a step.
    fn add(&mut self, value: f64, [center, scale]: [f64; 2], series: &str, step: usize) {
        if !value.is_finite() {
            return;
        }
        self.steps += 1;
        let (low, high) = self.ends.unwrap_or((value, value));
        self.ends = Some((low.min(value), high.max(value)));
        let away = (value - center).abs() / scale;
        self.far += u64::from(away > FAR);
        self.absurd += u64::from(away > ABSURD);
        if away > self.farthest.0.max(FAR) {
            self.farthest = (away, value, series.to_owned(), step);
        }
    }
}

/// A static feature of a forecast, which a window has one value of: that of its last step.
struct Static {
    name: String,
    /// Its place among the channels of the data.
    channel: usize,
    /// Centre and scale of the training windows.
    map: [f64; 2],
    seen: Seen,
}

/// What was seen of all new data.
pub(super) struct Strange<'a> {
    normaliser: &'a Normaliser,
    seen: Vec<Seen>,
    statics: Vec<Static>,
}

impl<'a> Strange<'a> {
    pub(super) fn new(normaliser: &'a Normaliser) -> Self {
        let seen = vec![Seen::default(); normaliser.channels().len()];
        Self { normaliser, seen, statics: vec![] }
    }

    /// What a model of this card sees, whose forecasts may have static features.
    pub(super) fn of(card: &'a ModelCard) -> Self {
        let strange = Self::new(&card.normaliser);
        let scaler = card.forecast.as_ref().filter(|scaler| scaler.fits(card.channels.len()));
        let scales = scaler.into_iter().flat_map(|scaler| scaler.static_scales());
        let statics = scales.map(|(channel, map)| Static {
            name: card.channels[channel].name.clone(),
            channel,
            map,
            seen: Seen::default(),
        });
        // Of what windows show by a learnt scale, all steps are looked at.
        let shown = |name: &str| card.normaliser.channels().iter().any(|own| own.name == name);
        let learnt = strange.scale().is_some();
        let statics = statics.filter(|one| !(learnt && shown(&one.name))).collect();
        Self { statics, ..strange }
    }

    /// What the scale of a channel is. `None` where it is each window's own, or there is none.
    fn scale(&self) -> Option<Scale> {
        match self.normaliser.kind() {
            Normalisation::Standard => Some(Scale::Deviation),
            Normalisation::Robust => Some(Scale::Quartiles),
            Normalisation::None | Normalisation::WindowStandard | Normalisation::WindowRelative => {
                None
            }
        }
    }

    /// Looks at the steps of a set that has the normaliser's channels.
    pub(super) fn look(&mut self, set: &SeriesSet, names: &[String]) {
        let channels = self.seen.len();
        let learnt = self.scale().is_some();
        for (at, series) in set.series().iter().enumerate() {
            // A learnt scale is that of any window.
            let window = Window { series: at as u32, start: 0, length: 0, label: None };
            let map = |channel| match learnt {
                true => self.normaliser.center_and_scale(set, &window, channel),
                false => [0.0, f64::INFINITY],
            };
            let maps: Vec<[f64; 2]> = (0..channels).map(map).collect();
            for segment in series.segments.iter().cloned() {
                let mut step = segment.start;
                let values = segment.start * channels..segment.end * channels;
                series.values.rows(values, channels, |rows| {
                    for row in rows.chunks_exact(channels.max(1)) {
                        for ((seen, value), map) in self.seen.iter_mut().zip(row).zip(&maps) {
                            seen.add(*value, *map, &names[at], step);
                        }
                        step += 1;
                    }
                });
            }
        }
    }

    /// Looks at the static features of windows of a set that has the channels of the card.
    pub(super) fn look_at_statics(
        &mut self,
        set: &SeriesSet,
        windows: &WindowList,
        names: &[String],
    ) {
        let channels = set.channels().len();
        for Static { channel, map, seen, .. } in &mut self.statics {
            for window in windows {
                let (at, last) = (window.series as usize, window.steps().end - 1);
                let value = set.series()[at].values.at(last * channels + *channel);
                seen.add(value, *map, &names[at], last);
            }
        }
    }

    /// Says what was strange, a warning for each channel and each static feature.
    pub(super) fn warn(&self, windows: u64, listener: &dyn Listener) {
        for (channel, seen) in self.normaliser.channels().iter().zip(&self.seen) {
            let what = format!("channel `{}`", channel.name);
            if let Some(message) = self.scale().and_then(|scale| far(seen, scale, &what)) {
                listener.on(&Event::Warning { message });
            }
            // A single window may well stand still.
            if let Some((low, high)) = seen.ends
                && low == high
                && windows > 1
            {
                let message = format!(
                    "channel `{}` is {low} at all {} steps of the new data: unless it stood still in training, too, what the model says of them is a guess",
                    channel.name, seen.steps
                );
                listener.on(&Event::Warning { message });
            }
        }
        for one in &self.statics {
            let what = format!("static feature `{}`", one.name);
            if let Some(message) = far(&one.seen, Scale::Deviation, &what) {
                listener.on(&Event::Warning { message });
            }
        }
    }
}

/// What is said of values far from those of the training: of most, or of single ones.
fn far(seen: &Seen, scale: Scale, what: &str) -> Option<String> {
    let (away, value, series, step) = &seen.farthest;
    let (value, away) = (exact(*value), rounded(*away));
    if beyond(seen.far, scale.share() * seen.steps as f64) {
        return Some(format!(
            "{what} is not what the model was trained on: {} of {} values lie more than {FAR} scales of the training data from its centre, such as {value} ({away} scales; series {series}, step {step}): what the model says of them is a guess\n  \
             check the units and the order of the channels, or train on data like this",
            seen.far, seen.steps
        ));
    }
    let lie = if seen.absurd == 1 { "lies" } else { "lie" };
    (scale == Scale::Deviation && seen.absurd > 0).then(|| format!(
        "{what}: {} of {} values {lie} more than {ABSURD} scales of the training data from its centre, such as {value} ({away} scales; series {series}, step {step}): what the model says of windows with such a value is a guess\n  \
         correct it, or read it as a missing value (`data.csv.missing` of CSV files; NaN in others) with `data.checks.not_finite`",
        seen.absurd, seen.steps
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use firebox_core::{Channel, Role, Series};

    use super::*;

    /// What is said of a channel around 5 with a scale of 2, and a second one as it was.
    fn said(kind: &str, values: &[f64]) -> Vec<String> {
        let channels = ["load", "other"].map(|name| Channel::new(name, Role::Other)).to_vec();
        let map = serde_json::json!({ "center": 5.0, "scale": 2.0 });
        let normaliser: Normaliser = serde_json::from_value(serde_json::json!({
            "kind": kind, "channels": channels, "fitted": [map, map]
        }))
        .unwrap();
        let both = values.iter().enumerate().flat_map(|(at, value)| [*value, (at % 7) as f64]);
        let series = Series::regular("a", 0, 1, both.collect(), 2);
        let set = SeriesSet::new(channels, vec![], vec![series]).unwrap();
        let mut strange = Strange::new(&normaliser);
        strange.look(&set, &["a".to_owned()]);
        let heard = Mutex::new(vec![]);
        strange.warn(2, &|event: &Event| {
            if let Event::Warning { message } = event {
                heard.lock().unwrap().push(message.clone());
            }
        });
        heard.into_inner().unwrap()
    }

    #[test]
    fn values_far_from_the_training_are_named() {
        let usual: Vec<f64> = (0..300).map(|at| 5.0 + f64::from(at % 11) - 5.0).collect();
        assert_eq!(said("standard", &usual), [""; 0]);
        let mut few = usual.clone();
        few[7] = 1000.0;
        assert_eq!(said("standard", &few), [""; 0], "one outlier of 300");
        for (value, told) in [(1e20, "1e20 (5e19 scales"), (4013.7327, "4013.7327 (2004 scales")] {
            few[7] = value;
            let found = said("standard", &few);
            assert_eq!(found.len(), 1, "{found:?}");
            let expected = format!(
                "channel `load`: 1 of 300 values lies more than 1000 scales of the training data from its centre, such as {told}; series a, step 7)"
            );
            assert!(found[0].starts_with(&expected), "{}", found[0]);
            // Quartiles may lie as close together in the training data with it.
            assert_eq!(said("robust", &few), [""; 0]);
            assert_eq!(said("window-standard", &few), [""; 0]);
        }
        let thousandfold: Vec<f64> = usual.iter().map(|value| 1000.0 * value).collect();
        let found = said("standard", &thousandfold);
        assert_eq!(found.len(), 1);
        for part in ["`load`", "272 of 300", "such as 10000 (4998 scales; series a, step 10)"] {
            assert!(found[0].contains(part), "{}", found[0]);
        }
        assert_eq!(said("robust", &thousandfold).len(), 1);
        // A scale of the window's own sees no difference.
        assert_eq!(said("window-standard", &thousandfold), [""; 0]);
    }

    #[test]
    fn texts_of_unknown_words_are_told_and_single_ones_are_not() {
        assert_eq!(unknown([0, 0], None), None);
        assert_eq!(unknown([1, 2], Some(0.0)), None, "a sign beside a word");
        assert_eq!(unknown([50, 1000], Some(0.01)), None);
        assert_eq!(unknown([450, 1000], Some(0.3)), None, "training was not much better");
        let said = unknown([12, 15], Some(0.002)).unwrap();
        assert!(said.starts_with("80 % of the tokens of the new texts are unknown"), "{said}");
        assert!(said.contains("vocabulary, and 0 % of those of the training texts: "), "{said}");
        assert!(unknown([900, 1000], None).unwrap().contains("vocabulary: what the model says"));
    }

    #[test]
    fn single_texts_of_unknown_words_are_told_by_their_places() {
        assert_eq!([[0, 3], [1, 3], [1, 2], [4, 4]].map(is_stranger), [false, false, true, true]);
        let said = |texts, training| strangers(texts, training, || "row 401 of a.csv".to_owned());
        assert_eq!(said([0, 400], None), None);
        assert_eq!(said([1, 400], Some(0.0)), None, "a single one of many");
        // Of the training's texts as many are likely: 8, with a deviation of 2.8.
        assert_eq!(said([17, 400], Some(0.01)), None);
        assert_eq!(said([3, 4], Some(0.9)), None);
        let found = said([41, 441], Some(0.01)).unwrap();
        let expected = "of 41 of 441 texts, half of the tokens or more are unknown to the model's vocabulary, and what the model says of them is a guess: row 401 of a.csv\n";
        assert!(found.starts_with(expected), "{found}");
        assert!(said([2, 6], Some(0.002)).is_some());
    }

    /// What is said of windows of two series whose static features, 3 ± 2 in training, are these.
    fn said_of_statics(kind: &str, sizes: [f64; 2]) -> Vec<String> {
        let channels = ["load", "size"].map(|name| Channel::new(name, Role::Other)).to_vec();
        let map = serde_json::json!({ "center": 3.0, "scale": 2.0 });
        let normaliser: Normaliser = serde_json::from_value(serde_json::json!({
            "kind": kind, "channels": channels, "fitted": [map, map]
        }))
        .unwrap();
        let series = sizes.iter().enumerate().map(|(at, size)| {
            let values = (0..20).flat_map(|step| [f64::from(step % 5), *size]).collect();
            Series::regular(format!("s{at}"), 0, 1, values, 2)
        });
        let set = SeriesSet::new(channels.clone(), vec![], series.collect()).unwrap();
        let window = |at: u32| Window { series: at / 8, start: at % 8, length: 10, label: None };
        let windows: WindowList = (0..16).map(window).collect();
        let scaler = serde_json::from_value(serde_json::json!({
            "rule": { "targets": [0], "horizons": [1], "statics": [1], "calendar": [], "predicted": "value" },
            "outputs": [map], "statics": [map], "spreads": [1.0]
        }));
        let card = crate::apply::tests::card_of(channels, normaliser, scaler.unwrap());
        let mut strange = Strange::of(&card);
        let names = ["s0".to_owned(), "s1".to_owned()];
        strange.look(&set, &names);
        strange.look_at_statics(&set, &windows, &names);
        let heard = Mutex::new(vec![]);
        strange.warn(16, &|event: &Event| {
            if let Event::Warning { message } = event
                && message.contains("not what the model was trained on")
            {
                heard.lock().unwrap().push(message.clone());
            }
        });
        heard.into_inner().unwrap()
    }

    #[test]
    fn static_features_far_from_the_training_are_named_once() {
        for kind in ["window-standard", "window-relative", "none"] {
            assert_eq!(said_of_statics(kind, [1.0, 7.0]), [""; 0]);
            let found = said_of_statics(kind, [1.0, 3003.0]);
            assert_eq!(found.len(), 1, "{found:?}");
            let expected =
                "static feature `size` is not what the model was trained on: 8 of 16 values";
            assert!(found[0].starts_with(expected), "{}", found[0]);
            assert!(
                found[0].contains("such as 3003 (1500 scales; series s1, step 9)"),
                "{}",
                found[0]
            );
        }
        let found = said_of_statics("standard", [1.0, 3003.0]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("channel `size` is not"), "{}", found[0]);
    }

    #[test]
    fn a_channel_that_stands_still_is_named() {
        let found = said("window-standard", &[4.5; 60]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("channel `load` is 4.5 at all 60 steps"), "{}", found[0]);
    }
}
