//! What is minimised: the losses of both heads on batches of tokens.

use std::sync::Arc;

use burn::tensor::{Int, Tensor};
use firebox_core::{Event, LabelledTexts, Stream};
use firebox_loader::{Batch, LoadError, Sample, Source, TrainSource};
use firebox_models::{Loss, TextEncoderConfig, TextHeadsConfig, TextLoss, TextModel, TextTargets};
use firebox_text::{TextLossConfig, TextParts, TokenisedText, read_encoder};
use firebox_train::{Objective, Streams};

use super::config::{TextConfig, table};
use super::corpus::{Corpus, Tokens};
use crate::bench::{Measured, Probe};
use crate::config::RunConfig;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::stages::Run;
use crate::{ModelConfig, PipelineConfig};

/// Weight of a label's ones, at most, where they are balanced.
const HEAVIEST: f32 = 20.0;
/// Batches are as long as their longest text, rounded up to this: few shapes, little padding.
const STEP: usize = 16;

/// Tokens of the texts of one part, as numbers that are whole.
#[derive(Clone)]
pub(super) struct TokenSource {
    texts: Arc<Vec<TokenisedText>>,
    rows: Vec<usize>,
    longest: usize,
}

impl TokenSource {
    pub(super) fn new(texts: &Arc<Vec<TokenisedText>>, rows: &[usize]) -> Self {
        let longest = rows.iter().map(|row| texts[*row].tokens.len()).max().unwrap_or(0);
        Self { texts: Arc::clone(texts), rows: rows.to_vec(), longest }
    }
}

impl Source for TokenSource {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn shape(&self) -> [usize; 2] {
        [self.longest, 1]
    }

    fn length(&self, index: usize) -> usize {
        self.texts[self.rows[index]].tokens.len()
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let tokens = &self.texts[self.rows[index]].tokens;
        // Vocabularies are far below 2²⁴, up to which f32 holds every whole number.
        for (out, token) in out.iter_mut().zip(tokens) {
            *out = *token as f32;
        }
        Ok(Sample { length: tokens.len() as u32, label: None })
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

/// Tokens of the training part, which alone may be trained on.
pub(super) struct TrainingTokens(TokenSource);

impl TrainingTokens {
    pub(super) fn new(texts: &Arc<Vec<TokenisedText>>, parts: &TextParts) -> Self {
        Self(TokenSource::new(texts, &parts.train))
    }
}

impl Source for TrainingTokens {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn shape(&self) -> [usize; 2] {
        self.0.shape()
    }

    fn length(&self, index: usize) -> usize {
        self.0.length(index)
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        self.0.read(index, out)
    }

    fn classes(&self) -> &[String] {
        self.0.classes()
    }
}

impl TrainSource for TrainingTokens {}

/// The tokens of a batch, without padding that none of its texts needs.
pub(super) fn tokens_of(batch: &Batch) -> Tensor<2, Int> {
    let [samples, time, _] = batch.inputs.dims();
    let longest = batch.lengths.iter().copied().max().unwrap_or(0);
    let longest = longest.next_multiple_of(STEP).min(time);
    batch.inputs.clone().narrow(1, 0, longest).reshape([samples, longest]).int()
}

/// What the texts of a part should be scored as.
struct Targets {
    /// `[text, label]`, row by row.
    truth: Vec<f32>,
    spans: Vec<Option<[usize; 2]>>,
}

impl Targets {
    fn new(texts: &LabelledTexts, tokens: &[TokenisedText], rows: &[usize]) -> Self {
        let truth = rows.iter().flat_map(|row| texts.row(*row));
        Self {
            truth: truth.map(|truth| f32::from(u8::from(*truth))).collect(),
            spans: rows.iter().map(|row| tokens[*row].span).collect(),
        }
    }
}

/// Both losses, on training and on validation texts.
pub(super) struct Learning {
    train: Targets,
    validation: Targets,
    labels: usize,
    loss: TextLossConfig,
    positive: Option<Vec<f32>>,
}

impl Learning {
    pub(super) fn new(corpus: &Corpus, tokens: &[TokenisedText], loss: TextLossConfig) -> Self {
        let Corpus { texts, parts, .. } = corpus;
        let train = Targets::new(texts, tokens, &parts.train);
        let labels = texts.labels.len();
        let weight = |label: usize| {
            let ones: f32 = train.truth.iter().skip(label).step_by(labels).sum();
            let zeros = parts.train.len() as f32 - ones;
            (zeros / ones.max(1.0)).clamp(1.0 / HEAVIEST, HEAVIEST)
        };
        let positive = loss.balance.then(|| (0..labels).map(weight).collect());
        let validation = Targets::new(texts, tokens, &parts.validation);
        Self { train, validation, labels, loss, positive }
    }
}

impl Objective<TextModel> for Learning {
    fn loss(&self, model: &TextModel, batch: &Batch, streams: Streams) -> Loss {
        // Validation has no dropout, and its indices are those of the validation texts.
        let part = if streams.dropout.is_some() { &self.train } else { &self.validation };
        let rows = batch.indices.iter();
        let labels: Vec<f32> = rows
            .clone()
            .flat_map(|row| &part.truth[row * self.labels..][..self.labels])
            .copied()
            .collect();
        let spans: Vec<Option<[usize; 2]>> = rows.map(|row| part.spans[*row]).collect();
        let settings = TextLoss {
            criteria_weight: self.loss.criteria,
            span_weight: self.loss.span,
            positive_weights: self.positive.as_deref(),
        };
        let targets = TextTargets { labels: &labels, spans: &spans };
        let lengths = Some(batch.lengths.as_slice());
        match model.loss(tokens_of(batch), lengths, targets, settings, streams.dropout) {
            Ok(loss) => loss,
            Err(error) => unreachable!("each text has its targets, within its tokens: {error}"),
        }
    }
}

/// The heads that the settings ask for. There is one for evidence where texts have some.
fn heads(text: &TextConfig, labels: usize, evidence: bool) -> TextHeadsConfig {
    let span = evidence && text.loss.span > 0.0;
    TextHeadsConfig { labels, pooling: text.heads.pooling, dropout: text.heads.dropout, span }
}

impl Run<'_> {
    /// The model before training, and a line on where it comes from.
    pub(super) fn text_model(
        &self,
        corpus: &Corpus,
        tokens: &Tokens,
    ) -> Result<(TextModel, String), PipelineError> {
        let text = table(self.config)?;
        let (device, seed) = (&self.device.device, self.config.run.seed);
        let (encoder, from) = match &text.encoder.folder {
            Some(folder) => {
                let loaded = read_encoder(folder, device)?;
                let from = format!(
                    "{:?} from {}: all {} weights matched, {} of its own heads left out",
                    loaded.family,
                    folder.display(),
                    loaded.report.matched,
                    loaded.report.left_out.len()
                );
                let encoder = match text.encoder.dropout {
                    Some(dropout) => loaded.encoder.with_dropout(dropout),
                    None => loaded.encoder,
                };
                (encoder, from)
            }
            None => {
                let config =
                    scratch(self.config).encoder(tokens.tokenizer.vocabulary(), text.longest);
                let encoder = config.init(Stream::new(seed, "weights"), device)?;
                (encoder, "an encoder of BERT's form, from scratch".to_owned())
            }
        };
        let found = encoder.config();
        tokens.tokenizer.check(found.vocabulary)?;
        check_positions(text, found)?;
        let evidence = corpus.parts.train.iter().any(|text| tokens.texts[*text].span.is_some());
        if !evidence && corpus.texts.spans.iter().any(Option::is_some) {
            let message = "no training text has evidence within the tokens that are read: where evidence is, is not learnt".to_owned();
            self.listener.on(&Event::Warning { message });
        }
        let heads = heads(text, corpus.texts.labels.len(), evidence);
        let model = heads.init(encoder, Stream::new(seed, "heads"), device)?;
        let RunConfig { precision, recompute, .. } = self.config.run;
        Ok((model.in_precision(precision).recomputed(recompute), from))
    }
}

/// Refuses texts that may be longer than the encoder can read.
pub(super) fn check_positions(
    text: &TextConfig,
    encoder: &TextEncoderConfig,
) -> Result<(), PipelineError> {
    let (longest, positions) = (text.longest, encoder.positions);
    if longest > positions {
        return Err(PipelineError::Setting(format!(
            "`text.longest` is {longest}, and the encoder has {positions} positions\n  set text.longest = {positions} or less"
        )));
    }
    Ok(())
}

/// The encoder to train from scratch.
fn scratch(config: &PipelineConfig) -> firebox_text::BertFromScratch {
    match &config.model {
        ModelConfig::Bert(model) => model.clone(),
        _ => firebox_text::BertFromScratch::default(),
    }
}

/// Steps on texts of the longest kind, whose labels all fail and whose evidence is their first token.
pub(super) fn probe(
    config: &PipelineConfig,
    probe: Probe<'_>,
    device: &ChosenDevice,
) -> Result<Measured, PipelineError> {
    let text = table(config)?;
    let vocabulary = match &text.encoder.folder {
        Some(folder) => firebox_text::read_config(folder)?.1.vocabulary,
        None => text.tokenizer.vocabulary,
    };
    let model = of_form(config, vocabulary, &device.device)?;
    let model = model.in_precision(probe.precision).recomputed(config.run.recompute);
    let objective = Anything { labels: model.config().labels, loss: text.loss };
    probe.run_tokens(model, &objective, [text.longest, vocabulary], device)
}

/// Both losses, whatever the texts say.
struct Anything {
    labels: usize,
    loss: TextLossConfig,
}

impl Objective<TextModel> for Anything {
    fn loss(&self, model: &TextModel, batch: &Batch, streams: Streams) -> Loss {
        let labels = vec![0.0; batch.len() * self.labels];
        let spans = vec![model.config().span.then_some([0, 0]); batch.len()];
        let settings = TextLoss {
            criteria_weight: self.loss.criteria,
            span_weight: self.loss.span,
            positive_weights: None,
        };
        let targets = TextTargets { labels: &labels, spans: &spans };
        let lengths = Some(batch.lengths.as_slice());
        match model.loss(tokens_of(batch), lengths, targets, settings, streams.dropout) {
            Ok(loss) => loss,
            Err(error) => unreachable!("each text has its targets, within its tokens: {error}"),
        }
    }
}

/// A model with the names of the parameters that the run's will have; its values mean nothing.
pub(super) fn named(
    config: &PipelineConfig,
    device: &burn::tensor::Device,
) -> Result<TextModel, PipelineError> {
    of_form(config, 64, device)
}

/// A model as the run's will be but for its values, the number of its labels, and the vocabulary of an
/// encoder from scratch.
fn of_form(
    config: &PipelineConfig,
    vocabulary: usize,
    device: &burn::tensor::Device,
) -> Result<TextModel, PipelineError> {
    let text = table(config)?;
    let stream = Stream::new(0, "names");
    let encoder = match &text.encoder.folder {
        Some(folder) => firebox_text::read_config(folder)?.1,
        None => scratch(config).encoder(vocabulary, text.longest),
    };
    let evidence = text.is_sample() || text.columns.span.is_some();
    Ok(heads(text, 1, evidence).init(encoder.init(stream, device)?, stream, device)?)
}
