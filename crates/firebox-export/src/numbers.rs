//! The numbers of a card for people: how values become what a model reads, and outputs become values, by formula and
//! number. What they are to programs is said by the card itself.

use std::fmt::Write;

use firebox_core::{Channel, ForecastScaler, Normalisation, Normaliser, Predicted, Role};
use serde_json::Value;

/// Rows of a table at most: of more, a reader is told where they are.
const MOST: usize = 200;

/// How windows are normalised, as a section of Markdown.
pub(crate) fn normalisation(normaliser: &Normaliser) -> String {
    let kind = normaliser.kind();
    let mut text = format!("\n## Normalisation\n\n{}\n", formula(kind, normaliser.channels()));
    let numbers = match kind {
        Normalisation::None => return text,
        Normalisation::Standard | Normalisation::Robust => &["center", "scale"][..],
        Normalisation::WindowStandard | Normalisation::WindowRelative => &["scale"][..],
    };
    let names = normaliser.channels().iter().map(|channel| channel.name.clone());
    let fitted = serde_json::to_value(normaliser).unwrap_or_default();
    table(&mut text, "channel", names, numbers, &fitted["fitted"]);
    text += &in_metadata("normaliser");
    text
}

/// How the outputs of a forecaster are brought to the units of their targets; `names` are those of the outputs, `targets`
/// those of the channels.
pub(crate) fn outputs(forecast: &ForecastScaler, names: &[String], targets: &[String]) -> String {
    let numbers = serde_json::to_value(forecast).unwrap_or_default();
    let restored = match forecast.rule().predicted {
        Predicted::Value => "`center + scale · output`".to_owned(),
        Predicted::Change => {
            "`last + center + scale · output`, where `last` is the target at the last step of the window".to_owned()
        }
        Predicted::RelativeChange => {
            let spread = |(name, spread): (&String, &Value)| format!("`{name}`: {spread}");
            let spreads = numbers["spreads"].as_array().into_iter().flatten();
            let spreads: Vec<String> = targets.iter().zip(spreads).map(spread).collect();
            format!(
                "`last + spread · (center + scale · output)`, where `last` is the target at the last step of the window and `spread` its (population) standard deviation within the window, or, where that is 0, {}",
                spreads.join(", ")
            )
        }
    };
    let mut text =
        format!("\n## Outputs\n\nIn the units of its target, an output is {restored}.\n");
    table(&mut text, "output", names.iter().cloned(), &["center", "scale"], &numbers["outputs"]);
    text += &in_metadata("forecast");
    text
}

/// Where programs find the same.
fn in_metadata(name: &str) -> String {
    format!(
        "\nAs JSON they are in the metadata `firebox.{name}` of an ONNX or safetensors file, and under `{name}` in `model.json` where that lies beside it.\n"
    )
}

/// A row for each name with some of its numbers.
fn table(
    text: &mut String,
    what: &str,
    names: impl ExactSizeIterator<Item = String>,
    numbers: &[&str],
    of: &Value,
) {
    if names.len() > MOST {
        let _ = write!(text, "\nThe numbers of {} are too many for a table.\n", names.len());
        return;
    }
    let _ = write!(
        text,
        "\n| {what} | {} |\n|---{}|\n",
        numbers.join(" | "),
        "|---".repeat(numbers.len())
    );
    for (place, name) in names.enumerate() {
        let own: Vec<String> = numbers.iter().map(|number| of[place][number].to_string()).collect();
        let _ = writeln!(text, "| `{}` | {} |", cell(&name), own.join(" | "));
    }
}

/// A text as it may stand within a row of a table.
pub(crate) fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// What becomes of a value `x`.
fn formula(kind: Normalisation, channels: &[Channel]) -> String {
    const STANDS_IN: &str = "Where that is 0, or no more than what rounding leaves, the scale below stands in: the mean of those of the training windows.";
    match kind {
        Normalisation::None => "Values are given to the model as they are.".to_owned(),
        Normalisation::Standard => {
            "`(x − center) / scale` of each channel, by its mean and its (population) standard deviation over the steps that were trained on; the scale of a channel that never changes there is 1.".to_owned()
        }
        Normalisation::Robust => {
            "`(x − center) / scale` of each channel, by its median and its interquartile range / 1.349 over the steps that were trained on; where the range is 0, the scale is 1.".to_owned()
        }
        Normalisation::WindowStandard => format!(
            "`(x − center) / scale` of each channel within each window: `center` is its mean, `scale` its (population) standard deviation over the steps of the window. {STANDS_IN}"
        ),
        Normalisation::WindowRelative => {
            let prices = channels.iter().filter(|channel| channel.role.is_price());
            let prices: Vec<String> = prices.map(|price| format!("`{}`", price.name)).collect();
            let close = channels.iter().find(|channel| channel.role == Role::Close);
            let shared = close.filter(|_| prices.len() > 1).map_or(String::new(), |close| {
                format!(" {} have the `center` and the `scale` of `{}`.", prices.join(", "), close.name)
            });
            format!(
                "`(x − center) / scale` of each channel within each window: `center` is its first value, `scale` the (population) standard deviation of its changes from step to step times the square root of their number.{shared} {STANDS_IN}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normaliser(kind: &str) -> Normaliser {
        let channel = |name: &str, role: &str| serde_json::json!({ "name": name, "role": role });
        serde_json::from_value(serde_json::json!({
            "kind": kind,
            "channels": [channel("a|b", "open"), channel("last", "close"), channel("rpm", "other")],
            "fitted": [
                { "center": 0.1, "scale": 3.0 }, { "center": -2.5, "scale": 1e-9 },
                { "center": 1e20, "scale": 0.25 }
            ]
        }))
        .unwrap()
    }

    #[test]
    fn a_card_has_the_formula_and_the_numbers_of_each_kind() {
        let check = |kind: &str, expected: &[&str]| {
            let text = normalisation(&normaliser(kind));
            for part in expected {
                assert!(text.contains(part), "{part}: {text}");
            }
            text
        };
        let rows = "| channel | center | scale |\n|---|---|---|\n| `a\\|b` | 0.1 | 3.0 |\n| `last` | -2.5 | 1e-9 |\n| `rpm` | 1e+20 | 0.25 |\n";
        let metadata = "`firebox.normaliser`";
        check("standard", &[rows, "standard deviation over the steps", metadata]);
        check("robust", &[rows, "interquartile range / 1.349", metadata]);
        let scales = "| channel | scale |\n|---|---|\n| `a\\|b` | 3.0 |\n";
        check("window-standard", &[scales, "over the steps of the window", "stands in", metadata]);
        let shared = "`a|b`, `last` have the `center` and the `scale` of `last`.";
        check("window-relative", &[scales, "times the square root", shared, metadata]);
        let none = check("none", &["as they are"]);
        assert!(!none.contains("| channel |"), "{none}");
    }

    #[test]
    fn outputs_are_restored_by_formula_and_number() {
        let scaler = |predicted: &str| -> ForecastScaler {
            let scale = |center: f64| serde_json::json!({ "center": center, "scale": 0.5 });
            serde_json::from_value(serde_json::json!({
                "rule": {
                    "targets": [1], "horizons": [1, 6], "statics": [], "calendar": [],
                    "predicted": predicted
                },
                "outputs": [scale(2.0), scale(4.0)], "statics": [], "spreads": [0.125]
            }))
            .unwrap()
        };
        let names = ["load+1", "load+6"].map(str::to_owned);
        let text = |predicted| outputs(&scaler(predicted), &names, &["load".to_owned()]);
        let rows = "| output | center | scale |\n|---|---|---|\n| `load+1` | 2.0 | 0.5 |\n| `load+6` | 4.0 | 0.5 |\n";
        for (predicted, formula) in [
            ("value", "an output is `center + scale · output`."),
            ("change", "an output is `last + center + scale · output`"),
            ("relative-change", "where that is 0, `load`: 0.125."),
        ] {
            let text = text(predicted);
            assert!(text.contains(rows) && text.contains(formula), "{text}");
            assert!(text.contains("`firebox.forecast`"), "{text}");
        }
    }
}
