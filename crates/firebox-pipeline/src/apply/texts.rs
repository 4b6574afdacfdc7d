//! A trained model of texts on tables of new ones.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::{Event, Listener, count};
use firebox_data::{TableColumn, TableWriter, read_plain_texts};
use firebox_export::{Model, SavedModel, TextInput};
use firebox_kernels::KeptWeights;
use firebox_models::TextScores;
use firebox_text::{
    TextError, TokenisedText, Tokenizer, best_span, span_probability, tokenise, unknown_tokens,
};
use rayon::prelude::*;

use super::run::Columns;
use super::{Applied, ApplyRequest, Wanted, named_once, strange};
use crate::device::ChosenDevice;
use crate::error::{PipelineError, at};

/// Texts that are tokenised, sorted by length, and written at once.
const GROUP: usize = 8192;
/// Texts that are left out and told by their place.
const NAMED: usize = 4;
/// Batches are as long as their longest text, rounded up to this: few shapes, little padding.
const STEP: usize = 16;
/// Files that a folder of texts may hold.
const TABLES: [&str; 9] =
    ["csv", "tsv", "parquet", "pq", "arrow", "feather", "ipc", "jsonl", "ndjson"];

/// Columns that tell a text.
pub(crate) const PLACE: [&str; 2] = ["file", "row"];
/// Columns of where labels hold.
const EVIDENCE: [&str; 4] = ["evidence_start", "evidence_end", "evidence", "evidence_probability"];

/// Column of which test texts belong together.
pub(crate) const UNIT: &str = "unit";
/// Columns of where evidence truly is, and of how well that was found, beside those of a prediction.
pub(crate) const TRUE_EVIDENCE: [&str; 4] =
    ["true_evidence_start", "true_evidence_end", "evidence_exact", "evidence_token_f1"];

/// The column of a label's probability.
pub(crate) fn probability_of(label: &str) -> String {
    format!("probability_{label}")
}

/// The column of whether a label truly holds.
pub(crate) fn true_of(label: &str) -> String {
    format!("true_{label}")
}

/// The column of whether a label holds by the words of the text.
pub(crate) fn words_of(label: &str) -> String {
    format!("words_{label}")
}

/// The first label of which a column would be called as another one of a prediction or of the table of test texts, with
/// that name.
pub(crate) fn clash(labels: &[String], evidence: bool) -> Option<(&String, String)> {
    let evidence: &[&str] = if evidence { EVIDENCE.as_slice() } else { &[] };
    let truth: &[&str] = if evidence.is_empty() { &[] } else { TRUE_EVIDENCE.as_slice() };
    let fixed = PLACE.iter().chain([&UNIT]).chain(evidence).chain(truth);
    let mut names: HashSet<String> = fixed.map(|name| (*name).to_owned()).collect();
    let columns = labels.iter().flat_map(|label| {
        let own = [label.clone(), probability_of(label), true_of(label), words_of(label)];
        own.map(|column| (label, column))
    });
    let mut columns = columns.filter(|(_, column)| !names.insert(column.clone()));
    columns.next()
}

/// Applies a model of texts to tables and writes a row for each text that has a token, in the order of the tables.
/// Training refuses texts that have none, so that no model has learnt what they mean: they are told, and have no row.
/// `own` are the files of the model.
pub(super) fn apply(
    mut saved: SavedModel,
    own: Vec<PathBuf>,
    request: &ApplyRequest,
    device: &ChosenDevice,
    stop: &Arc<AtomicBool>,
    listener: &dyn Listener,
) -> Result<Option<Applied>, PipelineError> {
    let (Some(input), Some(source)) = (saved.card.texts.clone(), &saved.tokenizer) else {
        return Err(refused("the model has no tokenizer: its folder was changed".to_owned()));
    };
    if request.stride.is_some() {
        return Err(refused(
            "a model of texts reads each text once, which has no stride\n  leave --stride out"
                .to_owned(),
        ));
    }
    let column = column(&input, &request.settings)?;
    let tokenizer = Tokenizer::from_text(source)?;
    let files = files(&request.inputs)?;
    named_once(&files)?;
    let output = request.target(&[own, files.clone()].concat())?;
    let model = request.build(&mut saved, device)?;
    let started = Instant::now();
    let mut table = TableWriter::create(&output)?;
    let work = Work { request, stop, listener, tokenizer, input, labels: &saved.card.classes };
    let done = device.run(|| work.all(&model, &files, &column, &device.device, &mut table))?;
    let Some(mut done) = done else { return Ok(None) };
    table.finish()?;
    (done.output, done.seconds) = (output, started.elapsed().as_secs_f64());
    Ok(Some(done))
}

fn refused(message: String) -> PipelineError {
    PipelineError::Setting(message)
}

/// Says of which text the model says what is no finite number.
fn no_number(file: &Path, row: i64) -> PipelineError {
    refused(format!(
        "what the model says of the text in row {row} of {} is no finite number\n  \
         of a model that computes in bf16 or f16, --precision f32 may help; otherwise use one of another training, \
         with a lower learning rate",
        file.display()
    ))
}

/// The column of texts: the model's own, or the one that was set.
fn column(input: &TextInput, settings: &[String]) -> Result<String, PipelineError> {
    let mut column = input.column.clone();
    for setting in settings {
        match setting.split_once('=') {
            Some((key, value)) if key.trim() == "text.columns.text" => {
                column = value.trim().trim_matches('"').to_owned();
            }
            _ => {
                return Err(refused(format!(
                    "--set {setting}: a trained model is applied as it is, so only the column of new texts can be set: text.columns.text"
                )));
            }
        }
    }
    Ok(column)
}

/// The tables, those of folders by name.
fn files(inputs: &[PathBuf]) -> Result<Vec<PathBuf>, PipelineError> {
    let mut files = vec![];
    for input in inputs {
        if !input.is_dir() {
            files.push(input.clone());
            continue;
        }
        let mut own = vec![];
        for entry in std::fs::read_dir(input).map_err(at(input))? {
            own.push(entry.map_err(at(input))?.path());
        }
        own.retain(|path| {
            let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
            path.is_file() && TABLES.contains(&extension.as_str())
        });
        if own.is_empty() {
            return Err(refused(format!("the folder {} has no table of texts", input.display())));
        }
        own.sort();
        files.extend(own);
    }
    Ok(files)
}

struct Work<'a> {
    request: &'a ApplyRequest,
    stop: &'a Arc<AtomicBool>,
    listener: &'a dyn Listener,
    tokenizer: Tokenizer,
    input: TextInput,
    labels: &'a [String],
}

/// What the model says of some texts, in their order.
struct Answers {
    /// `[text, width]`: vectors, or probabilities of the labels.
    numbers: Vec<f32>,
    /// The likeliest evidence, of a model that looks for it.
    spans: Option<Vec<Option<Likeliest>>>,
}

/// What a model names as evidence. It does so in each text: that a text has none is not learnt.
#[derive(Clone, Copy)]
pub(crate) struct Likeliest {
    /// First and last token.
    pub(crate) span: [usize; 2],
    probability: f32,
}

impl Likeliest {
    /// The best by the scores of each token as the first and as the last, within some.
    pub(crate) fn of(first: &[f32], last: &[f32], allowed: Range<usize>) -> Option<Self> {
        let span = best_span(first, last, allowed)?;
        Some(Self { span, probability: span_probability(first, last, span) })
    }
}

/// The first of some texts of which the model says what is no finite number: a logit, a number of its vector, or the
/// scores of its evidence.
pub(crate) fn first_odd(numbers: &[f32], spans: &[Option<Likeliest>]) -> Option<usize> {
    let width = (numbers.len() / spans.len().max(1)).max(1);
    numbers.chunks_exact(width).zip(spans).position(|(numbers, span)| {
        let probability = span.map_or(0.0, |likeliest| likeliest.probability);
        !numbers.iter().chain([&probability]).all(|number| number.is_finite())
    })
}

/// Texts of a file that have tokens.
#[derive(Default)]
struct Group<'a> {
    /// The row of each in its table, counted from 1.
    rows: Vec<i64>,
    texts: Vec<&'a str>,
    tokens: Vec<TokenisedText>,
}

/// Texts that are told by where they stand, such as those of which nothing has a token.
#[derive(Default)]
struct Places {
    texts: u64,
    /// Where the first of them stand.
    first: Vec<String>,
}

impl Places {
    fn add(&mut self, file: &Path, row: usize) {
        self.texts += 1;
        if self.first.len() < NAMED {
            self.first.push(format!("row {row} of {}", file.display()));
        }
    }

    /// `row 3 of a.csv, row 7 of a.csv and 2 more`.
    fn named(&self) -> String {
        let more = match self.texts - self.first.len() as u64 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        self.first.join(", ") + &more
    }

    /// What is to be said of texts that have no token beside so many that are written, if there are any.
    fn told_as_empty(&self, written: u64) -> Result<Option<String>, PipelineError> {
        let all = count(written + self.texts, "text");
        if written == 0 {
            return Err(refused(format!(
                "each of {all} is empty, or nothing of it has a token: there is nothing to write\n  \
                 name the column of the texts if it is another one, with --set text.columns.text=COLUMN"
            )));
        }
        let (be, of, row) = match self.texts {
            0 => return Ok(None),
            1 => ("is", "it", "it has no row"),
            _ => ("are", "them", "they have no rows"),
        };
        Ok(Some(format!(
            "{} of {all} {be} empty, or nothing of {of} has a token, and {row} in the result: {}",
            self.texts,
            self.named()
        )))
    }
}

/// The tokens of texts of a file, of which so many lie before them, by a tokenizer and at most so many of each. Those
/// that have none are noted as empty.
fn tokenised<'a>(
    (tokenizer, longest): (&Tokenizer, usize),
    (file, first): (&Path, usize),
    texts: &'a [String],
    empty: &mut Places,
) -> Result<Group<'a>, PipelineError> {
    let one = |(row, text): (usize, &String)| match tokenise(tokenizer, text, None, longest) {
        Ok(tokens) => Ok(Some(tokens)),
        Err(TextError::Nothing { .. }) => Ok(None),
        Err(error) => {
            Err(refused(format!("row {} of {}: {error}", first + row + 1, file.display())))
        }
    };
    let made = texts.par_iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    let mut group = Group::default();
    for (place, (text, tokens)) in texts.iter().zip(made).enumerate() {
        let row = first + place + 1;
        match tokens {
            None => empty.add(file, row),
            Some(tokens) => {
                group.rows.push(row as i64);
                group.texts.push(text);
                group.tokens.push(tokens);
            }
        }
    }
    Ok(group)
}

impl Work<'_> {
    /// Every table. `None` if it was stopped.
    fn all(
        &self,
        model: &Model,
        files: &[PathBuf],
        column: &str,
        device: &Device,
        table: &mut TableWriter,
    ) -> Result<Option<Applied>, PipelineError> {
        let mut applied = Applied {
            output: PathBuf::new(),
            windows: 0,
            series: 0,
            files: files.len(),
            width: self.labels.len(),
            what: format!("predictions of {}", count(self.labels.len() as u64, "label")),
            seconds: 0.0,
        };
        let (mut cut, mut unknown) = (0, [0, 0]);
        let (mut empty, mut strangers) = (Places::default(), Places::default());
        let how = (&self.tokenizer, self.input.longest);
        for file in files {
            let texts = read_plain_texts(file, column)?;
            let before = applied.windows + empty.texts;
            for (group, texts) in texts.chunks(GROUP).enumerate() {
                let Group { rows, texts: read, tokens } =
                    tokenised(how, (file, group * GROUP), texts, &mut empty)?;
                if rows.is_empty() {
                    continue;
                }
                cut += tokens.iter().filter(|text| text.cut > 0).count();
                for (row, text) in rows.iter().zip(&tokens) {
                    let [found, all] = unknown_tokens(&self.tokenizer, [text]);
                    unknown = [unknown[0] + found, unknown[1] + all];
                    if all > 0 && strange::is_stranger([found, all]) {
                        strangers.add(file, *row as usize);
                    }
                }
                let progress = |done: usize| {
                    self.listener.on(&Event::Progress {
                        stage: "apply".to_owned(),
                        done: applied.windows + empty.texts + done as u64,
                        total: before + texts.len() as u64,
                        unit: "texts".to_owned(),
                    });
                };
                let place = (file.as_path(), rows.as_slice());
                let answers = self.answers(model, place, &tokens, device, progress)?;
                let Some(answers) = answers else { return Ok(None) };
                if matches!(self.request.wanted, Wanted::Embedding { .. }) {
                    applied.width = answers.numbers.len() / tokens.len().max(1);
                    applied.what = format!("vectors of {}", applied.width);
                }
                applied.windows += rows.len() as u64;
                table.write(self.columns(file, rows, &read, &tokens, answers))?;
            }
        }
        if let Some(message) = empty.told_as_empty(applied.windows)? {
            self.listener.on(&Event::Warning { message });
        }
        if cut > 0 {
            let message = format!(
                "{cut} of {} {} more than the {} tokens that the model reads: what comes after them was not seen",
                count(applied.windows, "text"),
                if applied.windows == 1 { "has" } else { "have" },
                self.input.longest
            );
            self.listener.on(&Event::Warning { message });
        }
        let training = self.input.unknown;
        let of_texts = || {
            let texts = [strangers.texts, applied.windows];
            strange::strangers(texts, training, || strangers.named())
        };
        if let Some(message) = strange::unknown(unknown, training).or_else(of_texts) {
            self.listener.on(&Event::Warning { message });
        }
        Ok(Some(applied))
    }

    /// What the model says of texts of these rows of a file, batch by batch of texts of like length. `None` if it was
    /// stopped.
    fn answers(
        &self,
        model: &Model,
        (file, places): (&Path, &[i64]),
        texts: &[TokenisedText],
        device: &Device,
        progress: impl Fn(usize),
    ) -> Result<Option<Answers>, PipelineError> {
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|text| texts[*text].tokens.len());
        let mut rows: Vec<Vec<f32>> = vec![vec![]; texts.len()];
        let mut spans: Vec<Option<Likeliest>> = vec![None; texts.len()];
        let (mut done, mut found) = (0, false);
        let weights = KeptWeights::new();
        for batch in order.chunks(self.request.batch) {
            if self.stop.load(Ordering::SeqCst) {
                return Ok(None);
            }
            let lengths: Vec<usize> = batch.iter().map(|text| texts[*text].tokens.len()).collect();
            let tokens = padded(batch, texts, self.input.longest, device);
            let numbers = weights.during(|| match self.request.wanted {
                Wanted::Embedding { .. } => model.embed_texts(tokens, &lengths).map(read),
                Wanted::Prediction => model.scores(tokens, &lengths).map(|scores| {
                    let TextScores { labels, span } = scores;
                    if let Some(span) = span {
                        found = true;
                        self.place(batch, &lengths, span, &mut spans);
                    }
                    read(labels)
                }),
            });
            let numbers = numbers.unwrap_or_default();
            let own: Vec<Option<Likeliest>> = batch.iter().map(|text| spans[*text]).collect();
            if let Some(place) = first_odd(&numbers, &own) {
                return Err(no_number(file, places[batch[place]]));
            }
            let width = (numbers.len() / batch.len().max(1)).max(1);
            for (text, numbers) in batch.iter().zip(numbers.chunks_exact(width)) {
                rows[*text] = self.told(numbers);
            }
            done += batch.len();
            progress(done);
        }
        Ok(Some(Answers { numbers: rows.concat(), spans: found.then_some(spans) }))
    }

    /// What is written of the numbers of a text: its vector as it is, or the probabilities of its labels.
    fn told(&self, numbers: &[f32]) -> Vec<f32> {
        match self.request.wanted {
            Wanted::Embedding { .. } => numbers.to_vec(),
            Wanted::Prediction => {
                numbers.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()
            }
        }
    }

    /// The likeliest evidence of each text of a batch, among its own tokens.
    fn place(
        &self,
        batch: &[usize],
        lengths: &[usize],
        span: [Tensor<2>; 2],
        spans: &mut [Option<Likeliest>],
    ) {
        let [_, time] = span[0].dims();
        let [first, last] = span.map(read);
        let [before, after] = self.tokenizer.around();
        for (row, (text, length)) in batch.iter().zip(lengths).enumerate() {
            let of = |scores: &[f32]| scores[row * time..][..*length].to_vec();
            spans[*text] = Likeliest::of(&of(&first), &of(&last), before..length - after);
        }
    }

    /// File and row of each text, and what the model says of it.
    fn columns(
        &self,
        file: &Path,
        rows: Vec<i64>,
        texts: &[&str],
        tokens: &[TokenisedText],
        answers: Answers,
    ) -> Columns {
        let name = file.display().to_string();
        let mut columns = vec![
            (PLACE[0].to_owned(), TableColumn::Text(vec![name; texts.len()])),
            (PLACE[1].to_owned(), TableColumn::Whole(rows)),
        ];
        let Answers { numbers, spans } = answers;
        let width = (numbers.len() / texts.len().max(1)).max(1);
        let numbers_of = |place: usize| numbers.iter().skip(place).step_by(width).copied();
        match self.request.wanted {
            Wanted::Embedding { wide: false } => {
                let vectors = TableColumn::Vectors { values: numbers, width };
                columns.push(("embedding".to_owned(), vectors));
            }
            Wanted::Embedding { wide: true } => columns.extend((0..width).map(|place| {
                let column = TableColumn::Number(numbers_of(place).collect());
                (format!("embedding_{place}"), column)
            })),
            Wanted::Prediction => {
                let labelled = self.labels.iter().zip(&self.input.thresholds).enumerate();
                for (place, (label, threshold)) in labelled.clone() {
                    let holds = numbers_of(place).map(|p| i64::from(p >= *threshold));
                    columns.push((label.clone(), TableColumn::Whole(holds.collect())));
                }
                for (place, (label, _)) in labelled {
                    let column = TableColumn::Number(numbers_of(place).collect());
                    columns.push((probability_of(label), column));
                }
                let tokens: Vec<&TokenisedText> = tokens.iter().collect();
                columns
                    .extend(spans.into_iter().flat_map(|spans| evidence(texts, &tokens, &spans)));
            }
        }
        columns
    }
}

/// The evidence, as characters from its first to the one after its last, as it stands in the text, and how probable it is.
pub(crate) fn evidence(
    texts: &[&str],
    tokens: &[&TokenisedText],
    spans: &[Option<Likeliest>],
) -> Columns {
    let (mut from, mut to, mut said) = (vec![], vec![], vec![]);
    let probabilities = spans.iter().map(|span| span.map_or(0.0, |found| found.probability));
    let probabilities = probabilities.collect();
    for ((text, tokens), span) in texts.iter().zip(tokens).zip(spans) {
        let bytes = span.map_or([0, 0], |Likeliest { span: [first, last], .. }| {
            [tokens.places[first][0], tokens.places[last][1]]
        });
        let counted = bytes.map(|byte| text.get(..byte).map_or(0, |part| part.chars().count()));
        from.push(counted[0] as i64);
        to.push(counted[1] as i64);
        said.push(text.get(bytes[0]..bytes[1]).unwrap_or_default().to_owned());
    }
    vec![
        (EVIDENCE[0].to_owned(), TableColumn::Whole(from)),
        (EVIDENCE[1].to_owned(), TableColumn::Whole(to)),
        (EVIDENCE[2].to_owned(), TableColumn::Text(said)),
        (EVIDENCE[3].to_owned(), TableColumn::Number(probabilities)),
    ]
}

/// Tokens of a batch, `[batch, time]`.
fn padded(
    batch: &[usize],
    texts: &[TokenisedText],
    longest: usize,
    device: &Device,
) -> Tensor<2, Int> {
    let time = batch.iter().map(|text| texts[*text].tokens.len()).max().unwrap_or(0);
    // Not beyond the positions of the model, which has at least `longest`.
    let time = time.next_multiple_of(STEP).min(longest.max(time));
    let mut values = vec![0i64; batch.len() * time];
    for (out, text) in values.chunks_exact_mut(time).zip(batch) {
        let tokens = texts[*text].tokens.iter();
        out.iter_mut().zip(tokens).for_each(|(out, token)| *out = i64::from(*token));
    }
    Tensor::from_data(TensorData::new(values, [batch.len(), time]), device)
}

fn read(values: Tensor<2>) -> Vec<f32> {
    values.into_data().convert::<f32>().iter::<f32>().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use firebox_text::WordPieceTraining;

    #[test]
    fn the_first_text_is_found_of_which_a_number_is_not_finite() {
        let spans = [0.5, 0.25, f32::NAN];
        let spans = spans.map(|probability| Some(Likeliest { span: [1, 1], probability }));
        let check = |numbers: &[f32], expected: Option<usize>| {
            assert_eq!(first_odd(numbers, &vec![None; numbers.len() / 2]), expected, "{numbers:?}");
        };
        check(&[0.0, 1.0, 2.0, 3.0], None);
        check(&[0.0, 1.0, 2.0, f32::INFINITY], Some(1));
        check(&[0.0, f32::NAN, 2.0, 3.0], Some(0));
        check(&[], None);
        assert_eq!(first_odd(&[0.0, 1.0], &spans[..2]), None);
        assert_eq!(first_odd(&[0.0, 1.0, 2.0], &spans), Some(2));
        // What the scores of tokens that are no numbers are.
        let odd = Likeliest::of(&[0.0, f32::NAN, 1.0], &[0.0, 0.0, 1.0], 0..3);
        assert_eq!(first_odd(&[0.0], &[odd]), Some(0));
    }

    #[test]
    fn texts_without_a_token_are_left_out_and_the_others_keep_their_rows() {
        let training = WordPieceTraining { least: 1, ..WordPieceTraining::default() };
        let tokenizer = training.train(["late or lost", "late", "lost"]).unwrap();
        let texts = ["late", "", "  \t", "lost", "\u{200b}"].map(str::to_owned);
        let mut empty = Places::default();
        let file = Path::new("a.csv");
        let group = tokenised((&tokenizer, 9), (file, 10), &texts, &mut empty).unwrap();
        assert_eq!((group.rows, group.texts), (vec![11, 14], vec!["late", "lost"]));
        assert_eq!(group.tokens.len(), 2);
        assert_eq!(
            empty.told_as_empty(2).unwrap().unwrap(),
            "3 of 5 texts are empty, or nothing of them has a token, and they have no rows in the result: row 12 of a.csv, row 13 of a.csv, row 15 of a.csv"
        );
        tokenised((&tokenizer, 9), (file, 15), &texts[..3], &mut empty).unwrap();
        let said = empty.told_as_empty(3).unwrap().unwrap();
        assert!(said.ends_with("row 15 of a.csv, row 17 of a.csv and 1 more"), "{said}");
        let said = empty.told_as_empty(0).unwrap_err().to_string();
        assert!(
            said.starts_with("each of 5 texts is empty, or nothing of it has a token"),
            "{said}"
        );
        assert_eq!(Places::default().told_as_empty(3).unwrap(), None);
    }
}
