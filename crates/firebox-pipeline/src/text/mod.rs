//! The pipeline `text`: ingest → tokenise → train → evaluate → report.
//!
//! Reference system R5: an encoder of texts, read from a Hugging Face folder or trained from scratch,
//! with a head for labels that do not exclude each other and one for the place of their evidence.

mod config;
mod corpus;
mod learn;
mod measure;
mod page;
mod rows;
mod sample;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use firebox_core::{Event, Key, count};
use firebox_eval::TestScore;
use firebox_export::{Architecture, Task, TextInput};
use firebox_models::{TextModel, read_parameters};
use firebox_text::{check_tokenizer_config, unknown_tokens};
use firebox_train::{Data, Summary};
use serde_json::Value;

use crate::PipelineConfig;
use crate::bench::{Measured, Probe};
use crate::chain::{Chain, Made, Making, Work, check_names};
use crate::config::ModelConfig;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::kept::{Kept, Shown, named};
use crate::keys::Keys;
use crate::score::{Judge, Score};
use crate::stages::{Run, summary_of, trained_before};
use crate::test_table::FILE;
use crate::unread::not_evaluated_by;
use corpus::{Corpus, Tokens};
use learn::{Learning, TokenSource, TrainingTokens};

pub(crate) use config::SAMPLE;
pub use config::TextConfig;
pub(crate) use sample::as_csv;

/// Learning of labels and evidence from texts, measured on texts that were held out.
pub(crate) struct Text;

impl Chain for Text {
    fn check(&self, config: &PipelineConfig) -> Result<(), PipelineError> {
        config::check(config)
    }

    fn check_model(
        &self,
        config: &PipelineConfig,
        device: &ChosenDevice,
    ) -> Result<(), PipelineError> {
        let text = config::table(config)?;
        corpus::check_tables(text)?;
        if let Some(folder) = &text.encoder.folder {
            learn::check_positions(text, &firebox_text::read_config(folder)?.1)?;
            check_tokenizer_config(folder)?;
        }
        check_names(&config.train, || learn::named(config, &device.device))
    }

    fn data_key(&self, config: &PipelineConfig) -> Result<Key, PipelineError> {
        Ok(corpus::keys(config)?.0)
    }

    fn keys(&self, config: &PipelineConfig, device: &ChosenDevice) -> Result<Keys, PipelineError> {
        let (texts, tokens) = corpus::keys(config)?;
        Ok(Keys { series: texts, windows: tokens, ..keys_on(config, device, tokens)? })
    }

    fn probe(
        &self,
        config: &PipelineConfig,
        probe: Probe<'_>,
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError> {
        learn::probe(config, probe, device)
    }

    fn training_windows(&self, run: &Run<'_>) -> Result<Option<usize>, PipelineError> {
        Ok(Some(run.corpus()?.parts.train.len()))
    }

    fn recomputes(&self, _: &PipelineConfig) -> bool {
        true
    }

    fn stages(&self, keys: &Keys) -> Vec<(&'static str, Option<Key>)> {
        vec![
            ("ingest", Some(keys.series)),
            ("tokenise", Some(keys.windows)),
            ("train", Some(keys.training)),
            ("evaluate", Some(keys.evaluation)),
            ("report", None),
        ]
    }

    fn make(&self, run: &Run<'_>, work: &mut Work<'_>) -> Result<Making, PipelineError> {
        let corpus = run.corpus()?;
        let tokens = run.tokens(&corpus, &mut work.remade)?;
        let source = TrainingTokens::new(&tokens.texts, &corpus.parts);
        work.reasons.push(run.placed(&source)?.reason());
        work.resolved()?;
        let learnt = match run.learn(&corpus, &tokens, work.path, None, &mut work.remade)? {
            Training::Complete(learnt) => *learnt,
            Training::Interrupted { step } => return Ok(Making::Interrupted { step }),
        };
        let mut evaluated = 0;
        let measured = run.stage("evaluate", Some(run.keys.evaluation), &mut evaluated, || {
            let measured = measure::measure(run, &corpus, &tokens, &learnt.model)?;
            let text = config::table(run.config)?;
            rows::write(&work.path.join(FILE), text, &corpus, &tokens, &measured)?;
            let detail = measured.detail();
            Ok((measured, false, detail))
        });
        let measured = match measured {
            Ok(measured) => measured,
            // Whatever the evaluation says that it was stopped by, it was stopped.
            Err(_) if run.stop.load(Ordering::SeqCst) => {
                return Ok(Making::Interrupted { step: learnt.step });
            }
            Err(error) => return Err(error),
        };
        for (name, value) in measured.scores() {
            run.listener.on(&Event::Scored { name: name.to_owned(), value });
        }
        work.remade += evaluated;
        let text = config::table(run.config)?;
        let train = corpus.parts.train.iter().map(|place| &tokens.texts[*place]);
        let [unknown, all] = unknown_tokens(&tokens.tokenizer, train);
        let input = TextInput {
            column: if text.is_sample() { "text".to_owned() } else { text.columns.text.clone() },
            longest: text.longest,
            thresholds: measured.thresholds.clone(),
            unknown: Some(unknown as f64 / all.max(1) as f64),
            tokenizer: String::new(),
        };
        let kept = Kept {
            task: Task::Labelling,
            architecture: Architecture::Text {
                config: learnt.model.config().clone(),
                encoder: learnt.model.encoder_config().clone(),
            },
            parameters: read_parameters(&learnt.model),
            classes: &corpus.texts.labels,
            trained: &learnt.summary,
            scores: named(&measured.scores()),
            scores_of: String::new(),
            shown: Shown::texts(input, tokens.tokenizer.to_json().to_owned()),
        };
        run.keep_model(work, kept)?;
        let report = page::report(run, work.prepared.name(), &corpus, &tokens, &measured, &learnt);
        let Learnt { summary, outcome, .. } = learnt;
        Ok(Making::Complete(Box::new(Made { report, trained: summary, outcome })))
    }

    fn train_only(
        &self,
        run: &Run<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Summary>, PipelineError> {
        let corpus = run.corpus()?;
        if corpus.parts.validation.is_empty() {
            return Err(PipelineError::NoValidation);
        }
        let tokens = run.tokens(&corpus, &mut work.remade)?;
        let judge = measure::judge(run, &corpus, &tokens);
        let judge = judge.as_ref();
        let complete = match run.learn(&corpus, &tokens, work.path, judge, &mut work.remade)? {
            Training::Complete(learnt) => run.score(work, judge, &learnt.model)?,
            Training::Interrupted { .. } => false,
        };
        Ok(if complete { summary_of(work.path, run.keys) } else { None })
    }

    fn scores(&self) -> &'static [Score] {
        &[Score::F1]
    }

    fn main_scores(&self, figures: &Value) -> Vec<TestScore> {
        let own =
            serde_json::from_value(figures["labels"][measure::MODEL]["macro_f1"].clone()).ok();
        own.map(|estimate| TestScore::number("macro F1", estimate)).into_iter().collect()
    }

    fn unread(&self, config: &PipelineConfig) -> Vec<String> {
        let mut unread = ["window", "labels", "augment"].map(str::to_owned).to_vec();
        // Its default is an encoder of windows.
        if !matches!(config.model, ModelConfig::Bert(_)) {
            unread.push("model".to_owned());
        }
        unread.extend(not_evaluated_by(&config::EVALUATES_BY));
        unread
    }
}

/// The keys of learning from these tokens, by what the files of the encoder hold now.
fn keys_on(
    config: &PipelineConfig,
    device: &ChosenDevice,
    tokens: Key,
) -> Result<Keys, PipelineError> {
    let learning = corpus::learning_key(config, tokens)?;
    Ok(Keys::new(config, learning, &device.arithmetic_of(config)?))
}

/// How the training ended.
enum Training {
    Complete(Box<Learnt>),
    Interrupted { step: u64 },
}

/// The model after training.
struct Learnt {
    model: TextModel,
    /// Where it came from.
    from: String,
    parameters: u64,
    summary: String,
    outcome: String,
    step: u64,
}

impl Run<'_> {
    /// Refuses an encoder whose files are not those which the run is named after.
    fn same_encoder(&self) -> Result<(), PipelineError> {
        let Some(folder) = &config::table(self.config)?.encoder.folder else { return Ok(()) };
        let now = keys_on(self.config, self.device, self.keys.windows)?;
        match now.training == self.keys.training {
            true => Ok(()),
            false => Err(PipelineError::OtherWeights { path: folder.clone() }),
        }
    }

    /// Trains, or reads back what was trained.
    fn learn(
        &self,
        corpus: &Corpus,
        tokens: &Tokens,
        path: &Path,
        judge: Option<&Judge<'_, TextModel>>,
        remade: &mut usize,
    ) -> Result<Training, PipelineError> {
        let trained_before = trained_before(path);
        let (trained, from) = self.stage("train", Some(self.keys.training), remade, || {
            let (model, from) = self.text_model(corpus, tokens)?;
            self.same_encoder()?;
            let texts = &tokens.texts;
            let source = Arc::new(TrainingTokens::new(texts, &corpus.parts));
            let loader = self.placed_loader(source, Some(self.keys.windows), self.loader())?;
            let validation = match corpus.parts.validation.as_slice() {
                [] => None,
                rows => {
                    let source = Arc::new(TokenSource::new(texts, rows));
                    let key = Some(self.keys.windows);
                    Some(self.validation_loader(source, &loader, key, self.loader())?)
                }
            };
            let data = Data { train: &loader, validation: validation.as_ref() };
            let learning = Learning::new(corpus, texts, config::table(self.config)?.loss);
            let (trained, said) = self.train_own(path, model, &learning, data, judge)?;
            let detail = format!("{from}; {said}");
            Ok(((trained, from), trained_before, detail))
        })?;
        let firebox_train::Trained { model, summary } = trained;
        if summary.outcome == firebox_train::Outcome::Interrupted {
            return Ok(Training::Interrupted { step: summary.steps });
        }
        Ok(Training::Complete(Box::new(Learnt {
            model,
            from,
            parameters: summary.parameters,
            step: summary.steps,
            outcome: summary.outcome.to_string(),
            summary: format!(
                "trained on {}: {} in {}, {}",
                count(corpus.parts.train.len() as u64, "text"),
                count(summary.steps, "step"),
                count(summary.epochs, "epoch"),
                summary.outcome
            ),
        })))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use firebox_core::{Requests, Silent};

    use super::*;
    use crate::score::WantedScores;
    use crate::shared::Shared;

    /// Two dozen letters with a label, and the golden encoder with a tokenizer of as many tokens as it has vectors.
    fn letters_and_encoder(at: &impl Fn(&str) -> PathBuf) {
        let golden = PathBuf::from("../firebox-text/tests/golden");
        fs::create_dir(at("encoder")).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(golden.join("bert").join(file), at("encoder").join(file)).unwrap();
        }
        let text = fs::read(golden.join("tokenizers/wordpiece.json")).unwrap();
        let mut tokenizer: Value = serde_json::from_slice(&text).unwrap();
        let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        vocabulary.retain(|_, id| id.as_u64().unwrap() < 60);
        fs::write(at("encoder/tokenizer.json"), tokenizer.to_string()).unwrap();
        let row = |number: usize| format!("letter {number} says something,{}\n", number % 2);
        let rows: String = (0..60).map(row).collect();
        fs::write(at("letters.csv"), format!("text,late\n{rows}")).unwrap();
    }

    #[test]
    fn texts_tokenizers_and_encoders_that_change_after_the_key_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        letters_and_encoder(&at);
        let mut config: PipelineConfig =
            toml::from_str("pipeline = \"text\"\n[text]\nlongest = 12\n").unwrap();
        config.run.cache = at("cache");
        let own = config.text.as_mut().unwrap();
        own.path = at("letters.csv");
        own.encoder.folder = Some(at("encoder"));
        let (device, stop) = (ChosenDevice::named("cpu"), Arc::default());
        let keys = Text.keys(&config, &device).unwrap();
        let run = Run {
            config: &config,
            device: &device,
            keys: &keys,
            listener: &Silent,
            stop: &stop,
            requests: &Requests::new(),
            shared: &Shared::default(),
            wanted: &WantedScores::NONE,
        };
        // A line more, and what was there again; what reads it is not disturbed by either.
        let changed = |name: &str, more: &str, check: &dyn Fn()| {
            let before = fs::read(at(name)).unwrap();
            fs::write(at(name), [&before, more.as_bytes()].concat()).unwrap();
            check();
            fs::write(at(name), before).unwrap();
        };
        changed("letters.csv", "one more letter,1\n", &|| {
            assert!(matches!(run.corpus(), Err(PipelineError::OtherData)));
        });
        let corpus = run.corpus().unwrap();
        let stored = at("cache").join(firebox_cache::TOKENS).join(keys.windows.to_string());
        changed("encoder/tokenizer.json", "\n", &|| {
            assert!(matches!(run.tokens(&corpus, &mut 0), Err(PipelineError::OtherData)));
            assert!(!stored.join("manifest.json").exists(), "stored under the key of the former");
        });
        let tokens = run.tokens(&corpus, &mut 0).unwrap();
        assert!(stored.join("manifest.json").is_file());
        let learn = || run.learn(&corpus, &tokens, &at("run"), None, &mut 0).err();
        changed("encoder/config.json", "\n", &|| {
            let error = learn().unwrap();
            assert!(matches!(error, PipelineError::OtherWeights { .. }), "{error}");
        });
        run.same_encoder().unwrap();
    }
}
