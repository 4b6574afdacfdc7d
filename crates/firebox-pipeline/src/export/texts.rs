//! How an exported model of texts is used, for its card: inputs and outputs with their shapes and meanings, how evidence
//! follows from them, and Python that runs as it stands, with two texts in place of yours.

use std::fmt::Write;

use firebox_export::{Architecture, ExportError, ModelCard, Part, Port, SavedModel, TOKENIZER};

use super::how::{FOLDER, tables};
use super::tokenizer_of;

const EVIDENCE: &str = "Evidence goes from a token of the text to itself or to a later one: to those of which `first` of the one \
    and `last` of the other have the largest sum. Every text has such tokens, also one without evidence. The softmax of `first` \
    over all tokens of the text, at the one, times that of `last`, at the other, says how sure the model is of them; it is \
    `evidence_probability` of `firebox predict`.";

/// Two texts as tokens, which a tokenizer is there for.
const ENCODED: &str = r#"texts = ["one text", "and another one"]  # put yours here, each with a token of its own
encoded = [tokenizer.encode(text) for text in texts]
"#;

/// The likeliest evidence of each text, from scores as NumPy has them.
const LIKELIEST: &str = r#"

def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


evidence = []  # what stands there, and how probable it is
for text, one, start, end in zip(texts, encoded, first, last):
    start, end = start[: len(one.ids)], end[: len(one.ids)]
    own = [place for place, special in enumerate(one.special_tokens_mask) if not special]
    begin, best = own[0], None
    for place in own:  # the likeliest of all that end here begins at the likeliest so far
        begin = place if start[place] > start[begin] else begin
        if best is None or start[begin] + end[place] > best:
            best, a, b = start[begin] + end[place], begin, place
    found = text[one.offsets[a][0] : one.offsets[b][1]].strip()  # some tokens count the blank before a word
    evidence.append((found, float(softmax(start)[a] * softmax(end)[b])))
"#;

/// Of a graph, whose card is that of the model, or of its encoder alone.
pub(super) fn of_graph(
    name: &str,
    model: &SavedModel,
    card: &ModelCard,
    part: Part,
) -> Result<String, ExportError> {
    let [inputs, outputs] = model.ports(part)?;
    let tokenizer = tokenizer_of(name);
    let (longest, thresholds) = card
        .texts
        .as_ref()
        .map_or((0, &[][..]), |texts| (texts.longest, texts.thresholds.as_slice()));
    let names: Vec<&str> = outputs.iter().map(|one| one.name.as_str()).collect();
    let mut text = format!(
        "`{name}` is an ONNX graph of standard operators. Texts become tokens by `{tokenizer}`."
    );
    if !thresholds.is_empty() {
        text += " A label holds from the threshold below on.";
    }
    text += &tables([&inputs, &outputs], meaning);
    let finds_evidence = names.contains(&"first");
    if finds_evidence {
        let _ = write!(text, "\n{EVIDENCE}\n");
    }
    let _ = write!(
        text,
        "\n```python\nimport numpy as np\nimport onnxruntime\nimport tokenizers\n\n\
         session = onnxruntime.InferenceSession(\"{name}\")\n\
         tokenizer = tokenizers.Tokenizer.from_file(\"{tokenizer}\")\n\
         tokenizer.no_padding()\ntokenizer.enable_truncation({longest})\n{ENCODED}\
         lengths = np.array([len(one.ids) for one in encoded], np.int64)\n\
         tokens = np.zeros((len(texts), lengths.max()), np.int64)\n\
         for row, one in zip(tokens, encoded):\n    row[: len(one.ids)] = one.ids\n\
         {} = session.run({names:?}, {{\"tokens\": tokens, \"lengths\": lengths}})\n",
        names.join(", ")
    );
    if !thresholds.is_empty() {
        let _ = writeln!(text, "holds = probabilities >= np.array({thresholds:?}, np.float32)");
    }
    if finds_evidence {
        text += LIKELIEST;
    }
    Ok(text + "```")
}

fn meaning(port: &Port) -> String {
    match port.name.as_str() {
        "tokens" => "numbers of the tokens of each text, and anything after them".to_owned(),
        "lengths" => {
            "the tokens of each text, those around it among them; what stands after them is ignored"
                .to_owned()
        }
        "logits" => "a score for each label, in the order below".to_owned(),
        "probabilities" => "the logistic function of the logits: that the label holds".to_owned(),
        _ => port.meaning.clone(),
    }
}

/// Of a file of weights.
pub(super) fn of_weights(name: &str, load: &str) -> String {
    format!(
        "`{name}` holds the weights under PyTorch's names. Texts become tokens by `{}`. The probability of a label is the \
         logistic function of its logit; it holds from the threshold below on.\n\n{load}\n\n\
         The folder of `firebox export --format torch` has the class of `model`.",
        tokenizer_of(name)
    )
}

/// Of a folder for Python.
pub(super) fn of_folder(card: &ModelCard) -> String {
    let finds_evidence =
        matches!(&card.architecture, Architecture::Text { config, .. } if config.span);
    let mut text = format!(
        "{FOLDER}, `{TOKENIZER}` how texts become tokens, `model.json` all that is stated below.\n\n\
         `tokens` are numbers of tokens, int64 [batch, time], and `lengths` says how many of them are each text's, int64 [batch]; \
         what stands after them is ignored.\n\n\
         | call | type | shape | meaning |\n|---|---|---|---|\n\
         | `model(tokens, lengths)` | float32 | [batch, label] | a logit for each label, in the order below; the logistic function of \
         it is the probability that the label holds, which it does from its threshold on |\n\
         | `model.embed(tokens, lengths)` | float32 | [batch, width] | a vector for each text |\n"
    );
    if finds_evidence {
        let _ = write!(
            text,
            "| `model.evidence(tokens, lengths)` | float32 | twice [batch, time] | `first` and `last`: scores of each token as the \
             first and as the last of the evidence |\n\n{EVIDENCE}\n"
        );
    }
    let numpy = if finds_evidence { "import numpy as np\n" } else { "" };
    let _ = write!(
        text,
        "\n```python\n{numpy}import tokenizers\nimport torch\nimport firebox_models\n\n\
         model, card = firebox_models.load(\".\")\n\
         tokenizer = tokenizers.Tokenizer.from_file(\"{TOKENIZER}\")\n\
         tokenizer.no_padding()\ntokenizer.enable_truncation(card[\"texts\"][\"longest\"])\n{ENCODED}\
         lengths = torch.tensor([len(one.ids) for one in encoded])\n\
         tokens = [torch.tensor(one.ids) for one in encoded]\n\
         tokens = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)\n\
         with torch.no_grad():\n    probabilities = model(tokens, lengths).sigmoid()\n    \
         vectors = model.embed(tokens, lengths)\n"
    );
    if finds_evidence {
        text +=
            "    first, last = (scores.numpy() for scores in model.evidence(tokens, lengths))\n";
    }
    text += "holds = probabilities >= torch.tensor(card[\"texts\"][\"thresholds\"])\n";
    if finds_evidence {
        text += LIKELIEST;
    }
    text + "```"
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use firebox_tests::python;

    use super::super::how::tests::runs;
    use super::super::{how, shown, torch};
    use super::*;
    use crate::apply::tests::texts::labeller;

    fn page(made: &SavedModel, part: Part) -> String {
        shown(&made.card, Some(part)).markdown(&how::of_graph("m.onnx", made, part).unwrap())
    }

    #[test]
    fn every_input_and_output_is_named_with_its_shape_and_meaning() {
        let head = page(&labeller(true), Part::Head);
        for row in [
            "| `tokens` | int64 | [batch, time] | numbers of the tokens of each text, and anything after them |",
            "| `lengths` | int64 | [batch] | the tokens of each text,",
            "| `logits` | float32 | [batch, 2] | a score for each label, in the order below |",
            "| `probabilities` | float32 | [batch, 2] |",
            "| `first` | float32 | [batch, time] | a score of each token as the first of the evidence |",
            "| Labels, in the order of the logits | `late`, `lost` |",
            "Every text has such tokens, also one without evidence.",
            "| Texts | up to 12 tokens |",
            "found = text[one.offsets[a][0] : one.offsets[b][1]].strip()",
        ] {
            assert!(head.contains(row), "{row}: {head}");
        }
        let without = page(&labeller(false), Part::Head);
        assert!(!without.contains("vidence"), "{without}");
        // What it does not find it was not trained for.
        let purpose = "| Trained for | telling which labels a text has";
        assert!(without.contains(&format!("{purpose} |")), "{without}");
        assert!(head.contains(&format!("{purpose}, and where it says so |")), "{head}");
        let encoder = page(&labeller(true), Part::Encoder);
        assert!(encoder.contains("| `embedding` | float32 | [batch, 8] |"), "{encoder}");
        for of_head in ["logit", "hreshold", "from which on", "`late`", "vidence"] {
            assert!(!encoder.contains(of_head), "{of_head}: {encoder}");
        }
        let folder = of_folder(&labeller(true).card);
        assert!(folder.contains("| `model.evidence(tokens, lengths)` |"), "{folder}");
        assert!(!of_folder(&labeller(false).card).contains("vidence"));
    }

    #[test]
    fn the_likeliest_evidence_is_found_without_all_pairs() {
        let Some(python) = python("numpy") else { return };
        // 598 tokens between two that are around them, with many sums alike; 178,701 pairs of 64 bytes are 11 MB.
        let before = r#"
import tracemalloc
from types import SimpleNamespace

import numpy as np

count = 600
mask = [1] + [0] * (count - 2) + [1]
one = SimpleNamespace(ids=range(count), special_tokens_mask=mask, offsets=[(p, p + 1) for p in range(count)])
texts, encoded = ["x" * count], [one]
first, last = np.random.default_rng(1).integers(0, 50, (2, 1, count)).astype(np.float32)
tracemalloc.start()
"#;
        let after = r"
peak = tracemalloc.get_traced_memory()[1]
tracemalloc.stop()
assert peak < 1_000_000, peak
pairs = [(x, y) for y in own for x in own if x <= y]
assert (a, b) == max(pairs, key=lambda pair: start[pair[0]] + end[pair[1]]), (a, b)
assert len(evidence) == 1 and evidence[0][0] == 'x' * (b - a + 1)
";
        let script = format!("{before}{LIKELIEST}{after}");
        let output = Command::new(python).args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn the_code_of_a_graph_s_card_runs() {
        let Some(python) = python("numpy, onnxruntime, tokenizers") else { return };
        let folder = tempfile::tempdir().unwrap();
        let told = "assert holds.shape == (2, 2) and all(0 < share <= 1 and said for said, share in evidence)";
        for (span, part, then) in [
            (true, Part::Head, told),
            (false, Part::Head, "assert holds.shape == (2, 2)"),
            (true, Part::Encoder, "assert embedding.shape == (2, 8)"),
        ] {
            let made = labeller(span);
            std::fs::write(folder.path().join("m.onnx"), made.onnx(part).unwrap()).unwrap();
            let tokenizer = folder.path().join(tokenizer_of("m.onnx"));
            std::fs::write(tokenizer, made.tokenizer.as_ref().unwrap()).unwrap();
            runs(&python, folder.path(), &page(&made, part), then);
        }
    }

    #[test]
    fn the_code_of_a_folder_s_card_runs() {
        let Some(python) = python("numpy, safetensors, tokenizers, torch") else { return };
        let folder = tempfile::tempdir().unwrap();
        for (span, then) in [
            (true, "assert vectors.shape == (2, 8) and len(evidence) == 2"),
            (false, "assert holds.shape == (2, 2)"),
        ] {
            let output = folder.path().join("model");
            torch(&labeller(span), &[], &output, true).unwrap();
            let card = std::fs::read_to_string(output.join("README.md")).unwrap();
            runs(&python, &output, &card, then);
            std::fs::remove_file(output.join("card.py")).unwrap();
        }
    }
}
