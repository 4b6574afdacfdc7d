//! How an exported file or folder is used, for its card: every input with its shape and meaning, and Python that runs as it
//! stands, with zeros in place of data.

use std::fmt::Write;

use firebox_core::{Calendar, ForecastScaler};
use firebox_export::{ExportError, ModelCard, Part, Port, SavedModel, Task};
use serde_json::Value;

use super::{shown, texts};

const SCALED: &str = "Outputs and static features are scaled: `firebox_models.py` of `firebox export --format torch` has \
    `statics`, which makes the one, and `restore`, which brings the other to the units of the data.";
const WINDOWS: &str =
    "Windows are cut and normalised before they are given to the model, as stated below.";

/// Of a graph.
pub(super) fn of_graph(name: &str, model: &SavedModel, part: Part) -> Result<String, ExportError> {
    let card = &shown(&model.card, Some(part));
    if card.texts.is_some() {
        return texts::of_graph(name, model, card, part);
    }
    let [inputs, outputs] = model.ports(part)?;
    let mut text = format!("`{name}` is an ONNX graph of standard operators. {}", lead(card));
    text += &tables([&inputs, &outputs], |port| meaning(port, card));
    let statics = card.forecast.as_ref().filter(|_| inputs.iter().any(|one| one.name == "statics"));
    if let Some(forecast) = statics {
        text += "\n`statics` are, in this order, of the last step of the window:\n\n";
        for (place, one) in static_features(card, forecast).iter().enumerate() {
            let _ = writeln!(text, "{}. {one}", place + 1);
        }
    }
    let names: Vec<&str> = outputs.iter().map(|one| one.name.as_str()).collect();
    let zeros: String = inputs.iter().map(|one| zeros(one, card.window.length)).collect();
    let _ = write!(
        text,
        "\n```python\nimport numpy as np\nimport onnxruntime\n\nsession = onnxruntime.InferenceSession(\"{name}\")\n\
         inputs = {{  # two windows of zeros: put yours here\n{zeros}}}\n\
         {} = session.run({names:?}, inputs)\n```",
        names.join(", ") + if names.len() == 1 { "," } else { "" }
    );
    Ok(text)
}

/// What holds for all files of a model of windows.
fn lead(card: &ModelCard) -> String {
    let mut lead = WINDOWS.to_owned();
    if card.forecast.is_some() {
        lead = format!("{lead} {SCALED}");
    }
    if !card.classes.is_empty() {
        lead += " Logits and probabilities are in the order of the classes below.";
    }
    lead
}

fn meaning(port: &Port, card: &ModelCard) -> String {
    match port.name.as_str() {
        // Of none, the LSTM and GRU of onnxruntime end the process.
        "input" => "normalised windows of the channels that the model sees, in the order below; a batch has one at least"
            .to_owned(),
        "lengths" => {
            let least = match card.architecture.fewest_steps() {
                1 => String::new(),
                fewest => format!(", {fewest} at least"),
            };
            format!("the valid steps of each window{least}; what stands after them is ignored")
        }
        "mask" => {
            "true: the step is hidden from the model, to be restored; false: it is shown".to_owned()
        }
        "forecast" => "the outputs in the order below, scaled".to_owned(),
        _ => port.meaning.clone(),
    }
}

/// Tables of inputs and outputs.
pub(super) fn tables([inputs, outputs]: [&[Port]; 2], meaning: impl Fn(&Port) -> String) -> String {
    let row = |port: &Port| {
        format!(
            "| `{}` | {} | [{}] | {} |\n",
            port.name,
            port.kind,
            port.axes.join(", "),
            meaning(port)
        )
    };
    let mut text = String::new();
    for (what, ports) in [("input", inputs), ("output", outputs)] {
        let before = if what == "input" { "\n\n" } else { "\n" };
        let _ = write!(text, "{before}| {what} | type | shape | meaning |\n|---|---|---|---|\n");
        text.extend(ports.iter().map(row));
    }
    text
}

/// A line of Python with zeros for an input, and two full windows.
fn zeros(port: &Port, steps: usize) -> String {
    let Port { name, kind, axes, .. } = port;
    if name == "lengths" {
        return format!("    \"lengths\": np.full(2, {steps}, np.int64),\n");
    }
    let size = |axis: &String| match axis.as_str() {
        "batch" => "2".to_owned(),
        "time" => steps.to_string(),
        fixed => fixed.to_owned(),
    };
    let sizes: Vec<String> = axes.iter().map(size).collect();
    // numpy has no plain `bool` in all its versions.
    let kind = if *kind == "bool" { "bool".to_owned() } else { format!("np.{kind}") };
    format!("    \"{name}\": np.zeros(({}), {kind}),\n", sizes.join(", "))
}

/// What each static feature is.
fn static_features(card: &ModelCard, forecast: &ForecastScaler) -> Vec<String> {
    let rule = forecast.rule();
    let scales = serde_json::to_value(forecast).unwrap_or_default();
    let of_channel = |(place, channel): (usize, &usize)| {
        let name = card.channel_name(*channel);
        let scale: &Value = &scales["statics"][place];
        format!("(`{name}` − {}) / {}", scale["center"], scale["scale"])
    };
    let mut features: Vec<String> = rule.statics.iter().enumerate().map(of_channel).collect();
    for cycle in &rule.calendar {
        let phase = match cycle {
            Calendar::Hour => "hours since midnight UTC, with their fraction, / 24",
            Calendar::Weekday => "whole days since 1970-01-01 UTC modulo 7, / 7",
            Calendar::YearDay => "whole days since 1970-01-01 UTC / 365.2425, modulo 1",
        };
        features.extend(["sine", "cosine"].map(|of| format!("{of} of 2π · ({phase})")));
    }
    features
}

/// Of a file of weights.
pub(super) fn of_weights(name: &str, card: &ModelCard) -> String {
    let load = format!(
        "```python\nfrom safetensors.torch import load_file\nmodel.load_state_dict(load_file(\"{name}\"))\n```"
    );
    match &card.texts {
        Some(_) => texts::of_weights(name, &load),
        None => format!(
            "`{name}` holds the weights under PyTorch's names. {}\n\n{load}\n\n\
             `firebox_models.py` of `firebox export --format torch` has the class of `model`.",
            lead(card)
        ),
    }
}

/// Of a folder for Python.
pub(super) fn of_folder(card: &ModelCard) -> String {
    match (&card.texts, card.task) {
        (Some(_), _) => texts::of_folder(card),
        (None, Task::Forecasting) => of_folder_of_forecasts(card),
        (None, _) => of_folder_of_windows(card),
    }
}

pub(super) const FOLDER: &str = "`model.safetensors` holds the weights under PyTorch's names, `firebox_models.py` the module that takes them";

/// Windows of zeros, and the model.
fn begin(card: &ModelCard, channels: usize, which: &str) -> String {
    format!(
        "{FOLDER}, `model.json` all that is stated below. Windows are cut and normalised before they are given to the model.\n\n\
         ```python\nimport numpy as np\nimport torch\nimport firebox_models\n\nmodel, card = firebox_models.load(\".\")\n\
         # two windows of zeros: put yours here, each [time, channel] with {which}\n\
         raw = [np.zeros(({}, {channels}))] * 2\n",
        card.window.length
    )
}

fn of_folder_of_windows(card: &ModelCard) -> String {
    let channels = card.normaliser.channels().len();
    let mut text = begin(card, channels, "the channels in the order below");
    text += "windows = [firebox_models.normalise(window, card) for window in raw]\nwith torch.no_grad():\n";
    let made = match card.architecture.is_encoder() {
        true => "vectors = model.embed",
        false => "logits = model",
    };
    let _ = writeln!(text, "    {made}(*firebox_models.batch(windows))");
    if card.architecture.is_encoder() && card.architecture.has_head() {
        text += match card.task {
            Task::Classification => "    logits = model(*firebox_models.batch(windows))\n",
            Task::Pretraining | Task::Forecasting | Task::Labelling => {
                "    mask = torch.zeros(2, len(windows[0]), dtype=torch.bool)  # true: hidden, to be restored\n    \
                 restored = model(*firebox_models.batch(windows), mask)\n"
            }
        };
    }
    text + "```"
}

fn of_folder_of_forecasts(card: &ModelCard) -> String {
    let which = "all channels of the data, targets among them, in the order below";
    let mut text = begin(card, card.channels.len(), which);
    text += "seen = [firebox_models.of_channels(window, card) for window in raw]  # those that the model sees\n\
        windows = [firebox_models.normalise(window, card) for window in seen]\n";
    let mut arguments = "*firebox_models.batch(windows)".to_owned();
    if card.forecast.as_ref().is_some_and(|one| one.rule().static_features() > 0) {
        text += "# the time of the last step of each, in microseconds since 1970-01-01 UTC\n\
            times = [0, 0]\n\
            statics = [firebox_models.statics(window, time, card) for window, time in zip(raw, times)]\n";
        arguments += ", torch.tensor(np.array(statics))";
    }
    let _ = write!(
        text,
        "with torch.no_grad():\n    outputs = model({arguments}).numpy()\n\
         # each [horizon, target], in the units of the data\n\
         forecasts = [firebox_models.restore(output, window, card) for output, window in zip(outputs, raw)]\n```"
    );
    text
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;
    use std::process::Command;

    use firebox_export::Architecture;
    use firebox_models::{
        AnyEncoderConfig, BiLstmMaeConfig, CnnBiLstmConfig, MaskedConfig, StackedLstmConfig,
        TransformerConfig,
    };
    use firebox_tests::python;

    use super::super::torch;
    use super::*;
    use crate::apply::tests::model;

    fn forecaster(statics: bool) -> SavedModel {
        let config = StackedLstmConfig { hidden_1: 5, hidden_2: 4, ..Default::default() };
        let (places, calendar) =
            if statics { (vec![3, 1], vec!["hour", "weekday"]) } else { (vec![], vec![]) };
        let of = 2 * calendar.len() + places.len();
        let architecture =
            Architecture::StackedLstm { config, channels: 4, statics: of, outputs: 2 };
        let mut forecaster = model(architecture, &[]);
        let scale = serde_json::json!({ "center": 1.5, "scale": 0.25 });
        let scaler = serde_json::json!({
            "rule": {
                "targets": [3], "horizons": [1, 4], "statics": places, "calendar": calendar,
                "predicted": "relative-change"
            },
            "outputs": [scale, scale], "statics": vec![scale.clone(); places.len()], "spreads": [0.5]
        });
        forecaster.card.forecast = Some(serde_json::from_value(scaler).unwrap());
        forecaster.card.task = Task::Forecasting;
        forecaster
    }

    fn encoder() -> SavedModel {
        let config = BiLstmMaeConfig { hidden: 5, decoder_hidden: 4, ..Default::default() };
        model(Architecture::BilstmMae { config, channels: 4 }, &[])
    }

    fn transformer() -> SavedModel {
        let config = TransformerConfig { width: 8, heads: 2, layers: 1, ..Default::default() };
        model(
            Architecture::Transformer { config, channels: 4, time: 12, classes: 2 },
            &["Größe", "b"],
        )
    }

    #[test]
    fn every_input_of_a_graph_is_named_with_its_shape_and_meaning() {
        let encoder = encoder();
        let [plain, head] =
            [Part::Encoder, Part::Head].map(|part| of_graph("m.onnx", &encoder, part).unwrap());
        assert!(!plain.contains("mask"), "{plain}");
        let mask = "| `mask` | bool | [batch, time] | true: the step is hidden from the model, to be restored; false: it is shown |";
        assert!(
            head.contains(mask) && head.contains("\"mask\": np.zeros((2, 12), bool)"),
            "{head}"
        );
        assert!(head.contains("| `reconstruction` | float32 | [batch, time, 4] |"), "{head}");
        assert!(
            head.contains("reconstruction, = session.run([\"reconstruction\"], inputs)"),
            "{head}"
        );
        let forecast = of_graph("m.onnx", &forecaster(true), Part::Head).unwrap();
        assert!(forecast.contains("| `statics` | float32 | [batch, 6] |"), "{forecast}");
        let card = forecaster(true).card.markdown("");
        for part in [
            "| channel | scale |",
            "`last + spread · (center + scale · output)`",
            "| `close+4` | 1.5 | 0.25 |",
        ] {
            assert!(card.contains(part), "{part}: {card}");
        }
        for line in [
            "1. (`close` − 1.5) / 0.25\n2. (`high` − 1.5) / 0.25\n3. sine of 2π · (hours since midnight UTC",
            "6. cosine of 2π · (whole days since 1970-01-01 UTC modulo 7, / 7)\n",
        ] {
            assert!(forecast.contains(line), "{forecast}");
        }
        let none = of_graph("m.onnx", &forecaster(false), Part::Head).unwrap();
        assert!(!none.contains("`statics` |") && !none.contains("\"statics\""), "{none}");
        let said = transformer().card.markdown("");
        let steps = "| Steps that the model takes | 12 at most: it has a position for each |";
        assert!(
            said.contains(steps) && !encoder.card.markdown("").contains("that the model takes")
        );
        for row in [
            "in the order below; a batch has one at least |",
            "| the valid steps of each window; what stands after them is ignored |",
            "| every step restored; padding means nothing |",
        ] {
            assert!(head.contains(row), "{row}: {head}");
        }
    }

    #[test]
    fn a_model_that_halves_windows_says_which_steps_it_leaves_nothing_of() {
        // One convolution halves the steps once.
        let said = classifier().card.markdown("");
        let steps =
            "| Steps that the model takes | 2 at least: of fewer its convolutions leave nothing,";
        assert!(said.contains(steps), "{said}");
        let said = of_graph("m.onnx", &classifier(), Part::Head).unwrap();
        let lengths = "| the valid steps of each window, 2 at least; what stands after them";
        assert!(said.contains(lengths), "{said}");
        // Two make one step of four.
        let encoder = AnyEncoderConfig::CnnBilstm(halving(vec![4, 3]));
        let config = MaskedConfig { encoder, ..Default::default() };
        let masked = model(Architecture::Masked { config, channels: 4, time: 12 }, &[]);
        let said = of_graph("m.onnx", &masked, Part::Head).unwrap();
        let restored = "| every step restored but the last `length mod 4` of each window: these and padding mean nothing |";
        assert!(said.contains(restored) && said.contains("window, 4 at least;"), "{said}");
        assert!(masked.card.markdown("").contains("takes | 4 at least: "));
    }

    #[test]
    fn a_folder_is_used_by_what_its_model_has() {
        let said = of_folder(&encoder().card);
        assert!(said.contains("vectors = model.embed(*firebox_models.batch(windows))"), "{said}");
        assert!(said.contains("restored = model(*firebox_models.batch(windows), mask)"), "{said}");
        let said = of_folder(&transformer().card);
        assert!(said.contains("logits = model(*firebox_models.batch(windows))"), "{said}");
        let said = of_folder(&forecaster(true).card);
        for name in ["of_channels", "normalise", "statics", "restore"] {
            assert!(said.contains(&format!("firebox_models.{name}(")), "{said}");
        }
        assert!(!of_folder(&forecaster(false).card).contains("statics"));
        let which = "each [time, channel] with all channels of the data, targets among them, in the order below\nraw = [np.zeros((12, 4))]";
        assert!(said.contains(which), "{said}");
    }

    #[test]
    fn the_card_of_a_forecaster_tells_channels_of_the_data_from_those_that_it_sees_and_forecasts() {
        let mut card = forecaster(false).card;
        let seen = serde_json::json!({
            "kind": "none", "channels": [{ "name": "open", "role": "open" }],
            "fitted": [{ "center": 0.0, "scale": 1.0 }]
        });
        card.normaliser = serde_json::from_value(seen).unwrap();
        let page = card.markdown("");
        for row in [
            "| Channels of the data, in order | `open`, `high`, `low`, `close` |",
            "| Channels that the model sees, in order | `open` |",
            "| Channels that it forecasts | `close` |",
        ] {
            assert!(page.contains(row), "{page}");
        }
        assert!(!page.contains("| Channels, in order |"), "{page}");
        assert!(encoder().card.markdown("").contains("| Channels, in order | `open`, `high`"));
    }

    /// Runs the code of a card as it stands, with a line of the test's own behind it, where texts are ASCII if nothing else
    /// is said of them: on Windows they are of a code page.
    pub(in crate::export) fn runs(python: &Path, folder: &Path, card: &str, then: &str) {
        let code = card.split_once("```python\n").unwrap().1.split_once("\n```").unwrap().0;
        let script = folder.join("card.py");
        std::fs::write(&script, format!("{code}\n{then}\n")).unwrap();
        let output = Command::new(python)
            .arg(&script)
            .current_dir(folder)
            .envs([("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{code}");
    }

    fn halving(convolutions: Vec<usize>) -> CnnBiLstmConfig {
        CnnBiLstmConfig { convolutions, hidden: 3, head: 5, ..Default::default() }
    }

    fn classifier() -> SavedModel {
        let config = halving(vec![4]);
        model(Architecture::CnnBilstm { config, channels: 4, classes: 2 }, &["a", "b"])
    }

    #[test]
    fn the_card_of_an_encoder_alone_has_nothing_of_a_head() {
        let page = |made: &SavedModel, part| {
            shown(&made.card, Some(part)).markdown(&of_graph("m.onnx", made, part).unwrap())
        };
        let mut classifier = classifier();
        classifier.card.scores = [("test/accuracy".to_owned(), 0.5)].into();
        let alone = page(&classifier, Part::Encoder);
        assert!(!alone.contains("ogits") && !alone.contains("Classes"), "{alone}");
        assert!(
            alone.contains("Of the model with its head, which is not in this file."),
            "{alone}"
        );
        let whole = page(&classifier, Part::Head);
        assert!(whole.contains("| Classes, in the order of the logits | `a`, `b` |"), "{whole}");
        assert!(!whole.contains("not in this file"), "{whole}");
        let alone = page(&forecaster(true), Part::Encoder);
        assert!(!alone.contains("Outputs") && !alone.contains("forecasts |"), "{alone}");
    }

    #[test]
    fn the_code_of_a_graph_s_card_runs() {
        let Some(python) = python("numpy, onnxruntime") else { return };
        let folder = tempfile::tempdir().unwrap();
        let (head, encoder_part) = (Part::Head, Part::Encoder);
        for (made, part, then) in [
            (encoder(), head, "assert reconstruction.shape == (2, 12, 4)"),
            (encoder(), encoder_part, "assert embedding.shape[0] == 2"),
            (forecaster(true), head, "assert forecast.shape == (2, 2)"),
            (forecaster(false), head, "assert forecast.shape == (2, 2)"),
            (transformer(), head, "assert probabilities.shape == (2, 2)"),
            (classifier(), head, "assert logits.shape == (2, 2)"),
        ] {
            std::fs::write(folder.path().join("m.onnx"), made.onnx(part).unwrap()).unwrap();
            let card = made.card.markdown(&of_graph("m.onnx", &made, part).unwrap());
            runs(&python, folder.path(), &card, then);
        }
    }

    #[test]
    fn the_code_of_a_folder_s_card_runs() {
        let Some(python) = python("numpy, safetensors, torch") else { return };
        let folder = tempfile::tempdir().unwrap();
        for (made, then) in [
            (encoder(), "assert len(vectors) == 2 and restored.shape == (2, 12, 4)"),
            (forecaster(true), "assert forecasts[0].shape == (2, 1)"),
            (forecaster(false), "assert forecasts[0].shape == (2, 1)"),
            (
                transformer(),
                "assert logits.shape == (2, 2) and card[\"classes\"] == [\"Größe\", \"b\"]",
            ),
            (classifier(), "assert logits.shape == (2, 2)"),
        ] {
            let output = folder.path().join("model");
            torch(&made, &[], &output, true).unwrap();
            let card = std::fs::read_to_string(output.join("README.md")).unwrap();
            runs(&python, &output, &card, then);
            std::fs::remove_file(output.join("card.py")).unwrap();
        }
    }
}
