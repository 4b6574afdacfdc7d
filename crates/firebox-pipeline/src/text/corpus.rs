//! The texts, their split, and their tokens, which are made once and stored.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use firebox_cache::{Hold, Store, TOKENS};
use firebox_core::{Event, Key, LabelledTexts, Listener, count};
use firebox_data::{EmptyTexts, check_encoding, content_hash, read_texts};
use firebox_text::{
    TextError, TextParts, TokenisedText, Tokenizer, as_compared, read_tokenizer, split_texts,
    tokenise,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::config::{TextConfig, table};
use super::sample::{as_csv, made};
use crate::PipelineConfig;
use crate::apply::clash;
use crate::error::{PipelineError, at};
use crate::keys::json;
use crate::stages::{Run, same_data};
use crate::test_table::FILE;

/// Of what is stored. A change of it needs a new number.
const VERSION: u32 = 2;
const DATA: &str = "tokens.json";
const MANIFEST: &str = "manifest.json";

/// Texts and their parts.
pub(super) struct Corpus {
    pub(super) texts: LabelledTexts,
    pub(super) parts: TextParts,
    /// Texts before those of a test table.
    pub(super) given: usize,
}

impl Corpus {
    /// Where one of the texts stands, for messages: its row and its table.
    pub(super) fn place(&self, text: &TextConfig, row: usize) -> String {
        place(text, &self.texts, self.given, row)
    }
}

/// Where one of some texts stands, of which so many are before those of a test table.
fn place(text: &TextConfig, texts: &LabelledTexts, given: usize, row: usize) -> String {
    let path = match &text.test {
        Some(test) if row >= given => test,
        _ => &text.path,
    };
    format!("row {} of {}", texts.rows[row], path.display())
}

/// The texts as tokens.
pub(super) struct Tokens {
    pub(super) tokenizer: Tokenizer,
    pub(super) texts: Arc<Vec<TokenisedText>>,
    /// Keeps them in the cache.
    _hold: Hold,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    /// The content of its `tokenizer.json`.
    tokenizer: String,
    texts: Vec<TokenisedText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    version: u32,
    key: Key,
    /// BLAKE3 of the data.
    blake3: String,
}

/// Keys of the texts, and of their tokens: of the content of all files, and of the settings.
pub(super) fn keys(config: &PipelineConfig) -> Result<(Key, Key), PipelineError> {
    let text = table(config)?;
    let mut texts = Key::builder("texts", VERSION)
        .field("path", hash(&text.path)?)
        // Left out where they are refused, so that texts from before there was a choice keep their key.
        .field("columns", json(&text.columns).replace(",\"empty\":\"error\"", ""))
        .field("split", json(&text.split));
    if let Some(test) = &text.test {
        texts = texts.field("test", hash(test)?);
    }
    if text.columns.group.is_some() {
        // A large group filled a small part once.
        texts = texts.field("groups", "nearest to the share");
        // One that was written in two ways was once two.
        texts = texts.field("written", "in any way");
    }
    if text.columns.empty == EmptyTexts::Drop {
        // Texts of invisible characters alone were once left in.
        texts = texts.field("empty", "invisible ones, too");
    }
    if text.is_sample() {
        // What the settings make, so that a change of the generator is a change of the texts.
        let settings = std::fs::read_to_string(&text.path).map_err(at(&text.path))?;
        let (made, _) = as_csv(&text.path, &settings)?;
        texts = texts.field("made", blake3::hash(made.as_bytes()).as_bytes());
    }
    let texts = texts.finish();
    let mut tokens = Key::builder(TOKENS, VERSION)
        .upstream("texts", texts)
        .field("longest", text.longest.to_le_bytes())
        .field("tokenizer", json(&text.tokenizer));
    if text.encoder.folder.is_none() && !text.is_sample() {
        // Longer ones once took a part in the vocabulary; no generated text has one, and which table has is not known here.
        tokens = tokens.field("words", "of at most 100 characters");
    }
    if let Some(folder) = &text.encoder.folder {
        tokens = tokens.field("encoder", hash_tokenizer(folder)?);
        if text.has_evidence() {
            // Blanks before a word were once part of its place.
            tokens = tokens.field("places", "without blanks");
        }
    }
    Ok((texts, tokens.finish()))
}

/// Key of all else in `[text]` that decides what is learnt.
pub(super) fn learning_key(config: &PipelineConfig, tokens: Key) -> Result<Key, PipelineError> {
    let text = table(config)?;
    let mut key = Key::builder("text-learning", VERSION)
        .upstream("tokens", tokens)
        .field("heads", json(&text.heads))
        .field("loss", json(&text.loss))
        .field("dropout", json(&text.encoder.dropout));
    if let Some(folder) = &text.encoder.folder {
        if is_distilbert(folder) {
            // Dropout was once drawn there.
            key = key.field("projection", "without dropout");
        }
        for file in encoder_files(folder)? {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            key = key.field(&name, hash(&file)?);
        }
    }
    Ok(key.finish())
}

/// Whether the encoder of a folder is a DistilBERT; what cannot be read is refused once it is.
fn is_distilbert(folder: &Path) -> bool {
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap_or_default();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    config["model_type"] == "distilbert"
}

/// The files of an encoder's folder that decide what it is.
fn encoder_files(folder: &Path) -> Result<Vec<PathBuf>, PipelineError> {
    // The tokenizer beside it was read before, so the folder is there.
    let entries = std::fs::read_dir(folder).map_err(at(folder))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == "config.json" || name.ends_with(".safetensors") || name.ends_with(".index.json")
    });
    files.sort();
    Ok(files)
}

/// Refuses tables that cannot be read, as a plan says, too: they are read in later stages. That one is not there is
/// said with its key.
pub(super) fn check_tables(text: &TextConfig) -> Result<(), PipelineError> {
    let tables = [Some(&text.path), text.test.as_ref()].into_iter().flatten();
    for table in tables.filter(|table| table.is_file()) {
        check_encoding(table)?;
    }
    Ok(())
}

fn hash(path: &Path) -> Result<String, PipelineError> {
    if !path.is_file() {
        return Err(PipelineError::Setting(format!(
            "there is no file {}: see `text.path`, `text.test` and `text.encoder.folder`",
            path.display()
        )));
    }
    Ok(content_hash(path)?.to_hex().to_string())
}

/// The hash of the tokenizer of an encoder's folder, which may be in another form there.
fn hash_tokenizer(folder: &Path) -> Result<String, PipelineError> {
    let path = folder.join("tokenizer.json");
    if folder.is_dir() && !path.is_file() {
        return Err(TextError::NoTokenizer { path: folder.to_owned() }.into());
    }
    hash(&path)
}

/// Reads the texts, those of a test table after the others, and how many there are before these.
fn read(
    text: &TextConfig,
    listener: &dyn Listener,
) -> Result<(LabelledTexts, usize), PipelineError> {
    if text.is_sample() {
        let settings = std::fs::read_to_string(&text.path).map_err(at(&text.path))?;
        let made = made(&text.path, &settings)?;
        let given = made.len();
        return Ok((made, given));
    }
    let read = |path: &PathBuf| -> Result<LabelledTexts, PipelineError> {
        let texts = read_texts(path, &text.columns)?;
        if let Some(message) = left_out(path, &texts) {
            listener.on(&Event::Warning { message });
        }
        Ok(texts)
    };
    let mut texts = read(&text.path)?;
    let given = texts.len();
    if let Some(path) = &text.test {
        let test = read(path)?;
        append(&mut texts, test, &text.path, path)?;
    }
    Ok((texts, given))
}

/// What to say of rows of a table that were left out.
fn left_out(path: &Path, texts: &LabelledTexts) -> Option<String> {
    let (first, left) = (texts.empty.first()?, texts.empty.len());
    let are = if left == 1 { "has no text and is" } else { "have no text and are" };
    Some(format!(
        "{} of {} in {} {are} left out, the first of them row {first}",
        count(left as u64, "row"),
        left + texts.len(),
        path.display()
    ))
}

/// Refuses labels whose columns would be called as others of what `firebox predict` or the run's table of test texts has.
fn check_names(labels: &[String], evidence: bool) -> Result<(), PipelineError> {
    let Some((label, column)) = clash(labels, evidence) else { return Ok(()) };
    Err(PipelineError::Setting(format!(
        "there is a label `{label}`, and `firebox predict` or the run's {FILE} would have two columns called `{column}`: they \
         have `file`, `row`, `unit`, each label, and `probability_`, `true_` and `words_` before each label{}\n  \
         call the label otherwise in the tables, and in `text.columns.labels` if it is named there",
        if evidence {
            ", `evidence`, `evidence_start`, `evidence_end`, `evidence_probability`, `evidence_exact`, `evidence_token_f1`, \
             `true_evidence_start` and `true_evidence_end`"
        } else {
            ""
        }
    )))
}

/// Adds test texts, whose labels may stand in another order.
fn append(
    texts: &mut LabelledTexts,
    test: LabelledTexts,
    path: &Path,
    test_path: &Path,
) -> Result<(), PipelineError> {
    let lacks = |a: &LabelledTexts, b: &LabelledTexts| -> Vec<String> {
        let missing = a.labels.iter().filter(|label| !b.labels.contains(label));
        missing.map(|label| format!("`{label}`")).collect()
    };
    for (ours, theirs, one, other) in
        [(&*texts, &test, path, test_path), (&test, &*texts, test_path, path)]
    {
        let missing = lacks(ours, theirs);
        if !missing.is_empty() {
            return Err(PipelineError::Setting(format!(
                "{} has the labels {}, which {} lacks: training and test texts must have the same\n  \
                 name the columns of both in `text.columns.labels`",
                one.display(),
                missing.join(", "),
                other.display()
            )));
        }
    }
    let place = |label: &String| test.labels.iter().position(|other| other == label);
    let places: Vec<usize> = texts.labels.iter().filter_map(place).collect();
    for row in 0..test.len() {
        let truth = test.row(row);
        texts.truth.extend(places.iter().map(|place| truth[*place]));
    }
    texts.texts.extend(test.texts);
    texts.spans.extend(test.spans);
    texts.groups.extend(test.groups);
    texts.rows.extend(test.rows);
    Ok(())
}

/// What to say of equal texts whose labels differ, if there are any: how many there are, with an example. Texts are equal
/// as in the split: but for case and space.
fn contradictions(text: &TextConfig, texts: &LabelledTexts, given: usize) -> Option<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let (mut number, mut example) = (0_u64, None);
    for (row, own) in texts.texts.iter().enumerate() {
        let first = *seen.entry(as_compared(own)).or_insert(row);
        let mut pairs = texts.row(first).iter().zip(texts.row(row));
        let Some(label) = pairs.position(|(a, b)| a != b) else { continue };
        number += 1;
        example.get_or_insert((label, [first, row]));
    }
    let (label, rows) = example?;
    let [one, other] = rows.map(|row| {
        let truth = u8::from(texts.row(row)[label]);
        format!("{truth} in {}", place(text, texts, given, row))
    });
    let found = match number {
        1 => "1 text equals an earlier one but for case and space, and has other labels".to_owned(),
        _ => format!(
            "{number} texts equal an earlier one but for case and space, and have other labels"
        ),
    };
    let label = &texts.labels[label];
    Some(format!(
        "{found}: `{label}` is {one}, and {other}; correct the labels, or leave all but one of such texts out"
    ))
}

/// Bytes of a text from which on it is told: all of it is split before what is too long of it is left out, which takes some
/// hundred times as much memory.
const LONG_TEXT: usize = 1 << 20;

/// What to say of texts that take much memory whatever `text.longest` is, such as a whole book in one row by a quote that is
/// not closed, if there are any.
fn long_texts(text: &TextConfig, texts: &LabelledTexts, given: usize) -> Option<String> {
    let bytes = |row: &usize| texts.texts[*row].len();
    let long: Vec<usize> = (0..texts.len()).filter(|row| bytes(row) > LONG_TEXT).collect();
    let longest = *long.iter().max_by_key(|row| bytes(row))?;
    let have = if long.len() == 1 { "has" } else { "have" };
    Some(format!(
        "{} {have} more than {LONG_TEXT} bytes, the longest {} in {}: at most {} tokens of a text are read, and to find them \
         takes memory and time by all of it; shorten such texts in the table",
        count(long.len() as u64, "text"),
        bytes(&longest),
        place(text, texts, given, longest),
        text.longest
    ))
}

/// Words that a text has at least beside its numbers for texts that differ in these alone to be told as alike.
const FEWEST_WORDS: usize = 5;

/// Share of the test texts from which on those that are alike are worth a word.
const ALIKE: f64 = 0.01;

/// What to say of test texts that a training text equals but for its numbers and signs, such as one of a ticket under another
/// number: what was learnt of the one says everything of the other.
fn alike(texts: &LabelledTexts, parts: &TextParts) -> Option<String> {
    let bare = |text: usize| {
        let letters = |c: char| if c.is_alphabetic() { c } else { ' ' };
        let bare = as_compared(&texts.texts[text].chars().map(letters).collect::<String>());
        (bare.split(' ').count() >= FEWEST_WORDS).then_some(bare)
    };
    let mut trained: HashMap<String, usize> = HashMap::new();
    for text in &parts.train {
        if let Some(bare) = bare(*text) {
            trained.entry(bare).or_insert(*text);
        }
    }
    let found = parts.test.iter().filter_map(|test| Some([*trained.get(&bare(*test)?)?, *test]));
    let found: Vec<[usize; 2]> = found.collect();
    let [train, test] = *found.first()?;
    if (found.len() as f64) < ALIKE * parts.test.len() as f64 {
        return None;
    }
    let short = |text: usize| texts.texts[text].chars().take(60).collect::<String>();
    Some(format!(
        "{} of {} equal a training text but for numbers and signs, such as `{}` and `{}`: what is measured of them may be too good\n  name what such texts have in common in a column, and that in `text.columns.group`",
        count(found.len() as u64, "test text"),
        parts.test.len(),
        short(train),
        short(test)
    ))
}

impl Run<'_> {
    /// Reads and divides the texts.
    pub(super) fn corpus(&self) -> Result<Corpus, PipelineError> {
        let text = table(self.config)?;
        // Reading a table takes no time beside what follows, and nothing of it is stored.
        self.stage("ingest", Some(self.keys.series), &mut 0, || {
            let (texts, given) = read(text, self.listener)?;
            // Nothing of what was read is kept under the key of what was there before.
            let (key, _) = keys(self.config)?;
            same_data(self.keys.series, key)?;
            check_names(&texts.labels, text.has_evidence())?;
            let parts = split_texts(&texts, given, &text.split)?;
            self.check_truth(&texts, &parts)?;
            if let Some(message) = long_texts(text, &texts, given) {
                self.listener.on(&Event::Warning { message });
            }
            if let Some(message) = contradictions(text, &texts, given) {
                self.listener.on(&Event::Warning { message });
            }
            if let Some(message) = alike(&texts, &parts) {
                self.listener.on(&Event::Warning { message });
            }
            let detail = format!(
                "{} with {}: {} training, {} validation, {} test; {} equal to another, {} left out",
                count(texts.len() as u64, "text"),
                count(texts.labels.len() as u64, "label"),
                parts.train.len(),
                parts.validation.len(),
                parts.test.len(),
                parts.duplicates,
                parts.left_out
            );
            Ok((Corpus { texts, parts, given }, false, detail))
        })
    }

    /// Refuses labels that never hold, or always do; warns of single ones.
    fn check_truth(&self, texts: &LabelledTexts, parts: &TextParts) -> Result<(), PipelineError> {
        let holds = |part: &[usize], label: usize| {
            part.iter().filter(|text| texts.row(**text)[label]).count()
        };
        let mut learnable = 0;
        for (label, name) in texts.labels.iter().enumerate() {
            let ones = holds(&parts.train, label);
            let told = ones > 0 && ones < parts.train.len();
            learnable += usize::from(told);
            let message = if !told {
                let what = if ones == 0 { "no" } else { "every" };
                format!(
                    "the label `{name}` holds in {what} training text: nothing can be learnt of it"
                )
            } else if holds(&parts.test, label) == 0 {
                format!(
                    "the label `{name}` holds in no test text: its F1 is 0 whatever is predicted"
                )
            } else {
                continue;
            };
            self.listener.on(&Event::Warning { message });
        }
        if learnable == 0 {
            return Err(PipelineError::Setting(
                "no label holds in some training texts and not in others: there is nothing to learn\n  \
                 give more texts, or name other columns in `text.columns.labels`"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Turns the texts into tokens, or reads those that are stored.
    pub(super) fn tokens(
        &self,
        corpus: &Corpus,
        remade: &mut usize,
    ) -> Result<Tokens, PipelineError> {
        let text = table(self.config)?;
        let key = self.keys.windows;
        let tokens = self.stage("tokenise", Some(key), remade, || {
            let hold = Store::open(&self.config.run.cache)?.hold(TOKENS, key)?;
            let folder = self.config.run.cache.join(TOKENS).join(key.to_string());
            let texts = corpus.texts.len();
            let (stored, reused) = match stored(&folder, key, texts) {
                Some(stored) => (stored, true),
                // Of trials that begin at the same time, one makes them for all.
                None => Store::open(&self.config.run.cache)?.alone(
                    (TOKENS, key),
                    self.stop,
                    || self.listener.on(&waiting(&folder)),
                    || match stored(&folder, key, texts) {
                        Some(stored) => Ok((stored, true)),
                        None => {
                            let made = make(text, corpus, self.stop)?;
                            same_data(key, keys(self.config)?.1)?;
                            store(&folder, key, &made)?;
                            Ok::<_, PipelineError>((made, false))
                        }
                    },
                )??,
            };
            let tokenizer = Tokenizer::from_text(&stored.tokenizer)?;
            let cut = stored.texts.iter().filter(|text| text.cut > 0).count();
            let detail = format!(
                "{} of {}; {cut} of {} cut off at {}",
                count(stored.texts.iter().map(|t| t.tokens.len() as u64).sum(), "token"),
                count(tokenizer.vocabulary() as u64, "kind"),
                count(stored.texts.len() as u64, "text"),
                text.longest
            );
            Ok((Tokens { tokenizer, texts: Arc::new(stored.texts), _hold: hold }, reused, detail))
        })?;
        let evidence = tokens.texts.iter().filter(|text| text.span_cut).count();
        if evidence > 0 {
            let message = format!(
                "the evidence of {} lies beyond the {} tokens that are read: it is not learnt from, and \
                 counts as not found; a larger `text.longest` keeps it",
                count(evidence as u64, "text"),
                text.longest
            );
            self.listener.on(&Event::Warning { message });
        }
        Ok(tokens)
    }
}

fn waiting(folder: &Path) -> Event {
    Event::Warning {
        message: format!("waiting for another run that is making {}", folder.display()),
    }
}

/// The vocabulary and the tokens of all texts, unless `stop` becomes true.
fn make(text: &TextConfig, corpus: &Corpus, stop: &AtomicBool) -> Result<Stored, PipelineError> {
    let LabelledTexts { texts, spans, .. } = &corpus.texts;
    let tokenizer = match &text.encoder.folder {
        Some(folder) => read_tokenizer(folder)?,
        // From training texts alone: a vocabulary is fitted, too.
        None => {
            let train = corpus.parts.train.iter().map(|place| texts[*place].as_str());
            text.tokenizer.train_until(stop, train)?
        }
    };
    let one = |(row, (own, span)): (usize, (&String, &Option<[usize; 2]>))| {
        if stop.load(Ordering::Relaxed) {
            return Err(PipelineError::Interrupted);
        }
        tokenise(&tokenizer, own, *span, text.longest).map_err(|error| {
            let place = corpus.place(text, row);
            PipelineError::Setting(format!("{place}: {error}\n  {}", way_out(&error)))
        })
    };
    let made: Result<Vec<TokenisedText>, PipelineError> =
        texts.par_iter().zip(spans).enumerate().map(one).collect();
    Ok(Stored { tokenizer: tokenizer.to_json().to_owned(), texts: made? })
}

/// What to do about a text that cannot be learnt from.
fn way_out(error: &TextError) -> &'static str {
    match error {
        // Of invisible characters alone it would have been empty.
        TextError::Nothing { .. } => {
            "leave it out of the table, or use a tokenizer that knows its characters; text.columns.empty = \"drop\" \
             leaves out texts of blanks and invisible characters alone"
        }
        _ => "correct it, or leave it out of the table",
    }
}

/// What is stored under a key, if it is whole, of so many texts.
fn stored(folder: &Path, key: Key, texts: usize) -> Option<Stored> {
    let manifest: Manifest =
        serde_json::from_slice(&std::fs::read(folder.join(MANIFEST)).ok()?).ok()?;
    let data = std::fs::read(folder.join(DATA)).ok()?;
    let whole = manifest.version == VERSION
        && manifest.key == key
        && manifest.blake3 == blake3::hash(&data).to_hex().as_str();
    let stored: Stored = whole.then(|| serde_json::from_slice(&data).ok()).flatten()?;
    (stored.texts.len() == texts).then_some(stored)
}

/// Stores tokens in a folder that appears whole or not at all.
fn store(folder: &Path, key: Key, made: &Stored) -> Result<(), PipelineError> {
    let bucket = folder.parent().unwrap_or(folder);
    std::fs::create_dir_all(bucket).map_err(at(bucket))?;
    let unfinished = tempfile::tempdir_in(bucket).map_err(at(bucket))?;
    let data = json(made).into_bytes();
    let blake3 = blake3::hash(&data).to_hex().to_string();
    let manifest = json(&Manifest { version: VERSION, key, blake3 }).into_bytes();
    for (name, content) in [(DATA, &data), (MANIFEST, &manifest)] {
        let path = unfinished.path().join(name);
        let write = || -> std::io::Result<()> {
            let mut file = std::fs::File::create(&path)?;
            file.write_all(content)?;
            file.sync_all()
        };
        write().map_err(at(&path))?;
    }
    if folder.exists() {
        // What lies there is not whole, or another run was faster.
        std::fs::remove_dir_all(folder).map_err(at(folder))?;
    }
    std::fs::rename(unfinished.keep(), folder).map_err(at(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[(&str, bool)]) -> LabelledTexts {
        LabelledTexts {
            texts: list.iter().map(|(text, _)| (*text).to_owned()).collect(),
            labels: vec!["late".to_owned(), "lost".to_owned()],
            truth: list.iter().flat_map(|(_, lost)| [true, *lost]).collect(),
            spans: vec![None; list.len()],
            groups: vec![None; list.len()],
            rows: (1..=list.len()).collect(),
            empty: vec![],
        }
    }

    #[test]
    fn equal_texts_with_other_labels_are_told_with_an_example() {
        let text = TextConfig {
            path: "a.csv".into(),
            test: Some("test.csv".into()),
            ..TextConfig::default()
        };
        let same = texts(&[("A text", true), ("another", false), ("a  TEXT", true)]);
        assert_eq!(contradictions(&text, &same, 3), None);
        let said = |list: &[(&str, bool)], given: usize| {
            let mut texts = texts(list);
            texts.rows[given..].iter_mut().for_each(|row| *row -= given);
            contradictions(&text, &texts, given).unwrap()
        };
        let list = [("A text", true), ("another", false), ("a  TEXT", false)];
        assert_eq!(
            said(&list, 2),
            "1 text equals an earlier one but for case and space, and has other labels: `lost` is 1 in row 1 of a.csv, and 0 in row 1 of test.csv; correct the labels, or leave all but one of such texts out"
        );
        let list = [("another", false), ("x", true), ("x", false), ("x", true), ("x", false)];
        let said = said(&list, 5);
        assert!(said.starts_with("2 texts equal an earlier one"), "{said}");
        assert!(said.contains("`lost` is 1 in row 2 of a.csv, and 0 in row 3 of a.csv"), "{said}");
    }

    #[test]
    fn long_texts_are_told_with_the_place_of_the_longest() {
        let text = TextConfig {
            path: "a.csv".into(),
            test: Some("test.csv".into()),
            longest: 16,
            ..TextConfig::default()
        };
        let [most, more] = [1_048_576, 1_048_577].map(|bytes| "a".repeat(bytes));
        assert_eq!(long_texts(&text, &texts(&[("short", true), (most.as_str(), false)]), 2), None);
        let one = long_texts(&text, &texts(&[("short", true), (more.as_str(), false)]), 2).unwrap();
        let expected = "1 text has more than 1048576 bytes, the longest 1048577 in row 2 of a.csv: at most 16 tokens";
        assert!(one.starts_with(expected), "{one}");
        let longer = "é".repeat(600_000);
        let mut two = texts(&[(more.as_str(), true), (longer.as_str(), false)]);
        two.rows[1] = 1;
        let two = long_texts(&text, &two, 1).unwrap();
        let expected = "2 texts have more than 1048576 bytes, the longest 1200000 in row 1 of test.csv: at most";
        assert!(two.starts_with(expected), "{two}");
    }

    #[test]
    fn a_text_that_has_no_token_is_told_with_its_place() {
        let text = TextConfig {
            path: "a.csv".into(),
            test: Some("test.csv".into()),
            ..TextConfig::default()
        };
        let mut texts = texts(&[("a letter", true), ("another", false), ("\u{200b}", true)]);
        texts.rows = vec![1, 3, 4];
        let parts = TextParts { train: vec![0, 1], ..TextParts::default() };
        let mut corpus = Corpus { texts, parts, given: 2 };
        let said = |corpus: &Corpus| {
            let made = make(&text, corpus, &AtomicBool::new(false));
            made.map(|_| ()).unwrap_err().to_string()
        };
        let nothing = said(&corpus);
        let expected =
            "row 4 of test.csv: nothing of the text \"\\u{200b}\" has a token\n  leave it";
        assert!(nothing.starts_with(expected), "{nothing}");
        assert!(nothing.contains("text.columns.empty"), "{nothing}");
        corpus.texts.texts[1] = "\u{200b} fine".to_owned();
        corpus.texts.texts[2] = "fine".to_owned();
        corpus.texts.spans[1] = Some([0, 3]);
        let evidence = said(&corpus);
        let expected = "row 3 of a.csv: the evidence of the text \"\\u{200b} fine\" has no token\n  correct it";
        assert!(evidence.starts_with(expected), "{evidence}");
    }

    #[test]
    fn test_texts_that_differ_from_training_texts_in_numbers_alone_are_told() {
        let parts = |train: &[usize], test: &[usize]| TextParts {
            train: train.to_vec(),
            test: test.to_vec(),
            ..TextParts::default()
        };
        let list = [
            ("The printer on floor two is broken again, ticket #1234", true),
            ("the printer on floor two is broken again (ticket 98)", false),
            ("ticket 12", true),
            ("ticket 13", false),
            ("the coffee machine on floor two is broken again", false),
        ];
        let own = texts(&list);
        let said = alike(&own, &parts(&[0, 2, 4], &[1, 3])).unwrap();
        let expected = "1 test text of 2 equal a training text but for numbers and signs, such as `The printer on floor two is broken again, ticket #1234` and `the printer on";
        assert!(said.starts_with(expected) && said.contains("text.columns.group"), "{said}");
        // Within the training part, and of few words.
        assert_eq!(alike(&own, &parts(&[0, 1, 2], &[3, 4])), None);
        assert_eq!(alike(&own, &parts(&[], &[0, 1])), None);
    }

    #[test]
    fn a_table_that_is_not_utf8_is_refused_before_anything_is_made_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, b"text,late\nsp\xe4t,1\n").unwrap();
        let config = PipelineConfig {
            text: Some(TextConfig { path: path.clone(), ..TextConfig::default() }),
            ..PipelineConfig::default()
        };
        let check = || check_tables(table(&config).unwrap());
        let said = check().unwrap_err().to_string();
        assert!(said.contains("a.csv, line 2: character 3 is not UTF-8"), "{said}");
        std::fs::write(&path, "text,late\nspät,1\n").unwrap();
        check().unwrap();
        keys(&config).unwrap();
    }

    #[test]
    fn labels_that_a_prediction_could_not_be_written_with_are_refused() {
        let said = |labels: &[&str], evidence| {
            let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
            check_names(&labels, evidence).map_err(|error| error.to_string())
        };
        for (labels, evidence, clash) in [
            (
                &["late", "row"][..],
                false,
                "a label `row`, and `firebox predict` or the run's test.parquet would have two columns called `row`",
            ),
            (&["file"], false, "called `file`"),
            (
                &["evidence"],
                true,
                "`evidence_exact`, `evidence_token_f1`, `true_evidence_start` and",
            ),
            (&["evidence_exact"], true, "called `evidence_exact`"),
            (&["unit"], false, "called `unit`"),
            (&["words_a", "a"], false, "a label `a`"),
            (&["evidence_probability"], true, "a label `evidence_probability`"),
            (&["a", "probability_a"], false, "a label `probability_a`"),
            (
                &["probability_a", "a"],
                false,
                "a label `a`, and `firebox predict` or the run's test.parquet would have two columns called `probability_a`",
            ),
        ] {
            let refused = said(labels, evidence).unwrap_err();
            assert!(
                refused.contains(clash) && refused.contains("call the label otherwise"),
                "{refused}"
            );
        }
        assert_eq!(said(&["late", "evidence", "probability"], false), Ok(()));
        assert_eq!(said(&["late", "rows"], true), Ok(()));
    }
}
