//! The model's answers on test texts beside those of baselines, with intervals.
//!
//! Thresholds are chosen on validation texts, for the baselines alike; nothing is chosen by test texts.
//! A resample draws texts that belong together (one group, or equal texts) at once.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use burn::tensor::Tensor;
use firebox_core::{Event, Stream, count};
use firebox_eval::{
    Estimate, Features, Logistic, Outcome, Resampling, Stop, Verdict, share_text, signed,
};
use firebox_kernels::KeptWeights;
use firebox_loader::{HeldOutLoader, LoaderConfig};
use firebox_models::{TextModel, TextScores};
use firebox_text::{
    LabelScores, SpanScores, WordWeights, choose_thresholds, label_scores, span_score, span_scores,
};

use super::config::table;
use super::corpus::{Corpus, Tokens};
use super::learn::{TokenSource, tokens_of};
use crate::apply::{Likeliest, first_odd};
use crate::error::PipelineError;
use crate::score::Judge;
use crate::stages::Run;

/// Terms of the bag of words, at most.
const TERMS: usize = 1000;
/// Strengths of its penalty, of which validation texts choose one: of standardised features, and of features as they are.
const PENALTIES: [f64; 3] = [10.0, 100.0, 1000.0];
const UNSCALED: [f64; 3] = [0.02, 0.2, 2.0];
/// Test texts that belong to nobody else below which nothing is claimed.
const FEWEST: usize = 20;
/// Name of the model among the methods.
pub(super) const MODEL: &str = "encoder";
/// Name of the baseline by words.
pub(super) const WORDS: &str = "words (TF-IDF, logistic)";

/// A way of telling labels, with its scores on test texts.
pub(super) struct Method {
    pub(super) name: &'static str,
    pub(super) scores: LabelScores,
    pub(super) macro_f1: Estimate,
    pub(super) micro_f1: Estimate,
    /// The model's macro F1 minus this one's, on the same resamples.
    pub(super) difference: Option<Estimate>,
}

/// How well evidence was found.
pub(super) struct Evidence {
    pub(super) own: SpanScores,
    /// Texts with evidence, those that belong together counted once.
    pub(super) independent: usize,
    pub(super) exact: Estimate,
    pub(super) token_f1: Estimate,
    /// Token F1 of naming the whole text.
    pub(super) whole: Estimate,
    pub(super) difference: Estimate,
}

/// What was measured.
pub(super) struct Measured {
    /// The model first.
    pub(super) methods: Vec<Method>,
    pub(super) thresholds: Vec<f32>,
    pub(super) evidence: Option<Evidence>,
    pub(super) verdict: Verdict,
    pub(super) texts: usize,
    /// What the model says of each test text.
    pub(super) answers: Answers,
    /// The labels that each method tells, `[text, label]`, row by row.
    pub(super) predicted: Vec<(&'static str, Vec<bool>)>,
    /// How the model's evidence in each test text that has some agrees with it: exactly or not, and the F1 of its tokens.
    pub(super) found: Vec<Option<(bool, f64)>>,
}

impl Measured {
    pub(super) fn detail(&self) -> String {
        let model = &self.methods[0];
        let evidence = self.evidence.as_ref().map_or(String::new(), |evidence| {
            format!(", evidence token F1 {:.3}", evidence.token_f1.value)
        });
        let texts = count(self.texts as u64, "test text");
        format!("{texts}: macro F1 {:.3}{evidence}", model.macro_f1.value)
    }

    /// What trackers compare runs by.
    pub(super) fn scores(&self) -> Vec<(&'static str, f64)> {
        let model = &self.methods[0];
        let mut scores = vec![
            ("test/macro_f1", model.macro_f1.value),
            ("test/micro_f1", model.micro_f1.value),
            ("test/exact_labels", model.scores.exact),
        ];
        if let Some(evidence) = &self.evidence {
            scores.push(("test/evidence_exact", evidence.exact.value));
            scores.push(("test/evidence_token_f1", evidence.token_f1.value));
        }
        scores
    }
}

/// What the model says of some texts.
pub(super) struct Answers {
    /// `[text, label]`, row by row.
    pub(super) probabilities: Vec<f32>,
    pub(super) spans: Vec<Option<Likeliest>>,
}

/// Scores models by the macro F1 of validation texts, if a search wants that: the best that thresholds
/// chosen on the same texts give.
pub(super) fn judge<'a>(
    run: &'a Run<'_>,
    corpus: &'a Corpus,
    tokens: &'a Tokens,
) -> Option<Judge<'a, TextModel>> {
    let (rows, labels) = (&corpus.parts.validation, corpus.texts.labels.len());
    let truth: Vec<bool> = rows.iter().flat_map(|row| corpus.texts.row(*row)).copied().collect();
    let of = move |model: &TextModel| -> Result<Vec<f64>, PipelineError> {
        let answers = answer(run, model, (corpus, tokens), rows)?;
        let thresholds = choose_thresholds(&truth, &answers.probabilities, labels);
        let predicted = over(&answers.probabilities, &thresholds);
        let scores = label_scores(&truth, &predicted, labels, 0..rows.len());
        // There is one score of texts.
        Ok(run.wanted.scores.iter().map(|_| scores.macro_f1).collect())
    };
    let wanted = run.wanted;
    (!wanted.scores.is_empty()).then(|| Judge { wanted, of: Box::new(of) })
}

/// Measures the model and its baselines.
pub(super) fn measure(
    run: &Run<'_>,
    corpus: &Corpus,
    tokens: &Tokens,
    model: &TextModel,
) -> Result<Measured, PipelineError> {
    let labels = corpus.texts.labels.len();
    let truth = |rows: &[usize]| -> Vec<bool> {
        rows.iter().flat_map(|row| corpus.texts.row(*row)).copied().collect()
    };
    let parts = &corpus.parts;
    let (validation, test) = (truth(&parts.validation), truth(&parts.test));
    let chosen = answer(run, model, (corpus, tokens), &parts.validation)?;
    let answers = answer(run, model, (corpus, tokens), &parts.test)?;
    let thresholds = choose_thresholds(&validation, &chosen.probabilities, labels);
    let mut predicted = vec![(MODEL, over(&answers.probabilities, &thresholds))];
    predicted.extend(baselines(run, corpus, labels, &validation)?);
    let resampling = Resampling {
        stream: Stream::new(run.config.evaluate.seed, "text-bootstrap"),
        resamples: run.config.evaluate.resamples,
        block: 1,
        units: vec![],
        whole_units: false,
        confidence: run.config.evaluate.confidence,
    };
    let units = &parts.test_units;
    let resampling = resampling.if_enough(units.len());
    let methods = methods(&resampling, units, &test, &predicted, labels);
    let scored = scored(corpus, tokens, &answers.spans);
    let evidence = evidence(&resampling, units, &scored);
    let found = scored.into_iter().map(|scores| scores.map(|[own, _]| own)).collect();
    let verdict = verdict(&methods, evidence.as_ref(), units.len(), &resampling);
    let texts = parts.test.len();
    Ok(Measured { methods, thresholds, evidence, verdict, texts, answers, predicted, found })
}

fn over(probabilities: &[f32], thresholds: &[f32]) -> Vec<bool> {
    let rows = probabilities.chunks_exact(thresholds.len().max(1));
    rows.flat_map(|row| row.iter().zip(thresholds).map(|(p, threshold)| p >= threshold)).collect()
}

/// Runs the model over texts, and refuses what is no finite number.
fn answer(
    run: &Run<'_>,
    model: &TextModel,
    (corpus, tokens): (&Corpus, &Tokens),
    rows: &[usize],
) -> Result<Answers, PipelineError> {
    let mut answers = Answers { probabilities: vec![], spans: vec![] };
    if rows.is_empty() {
        return Ok(answers);
    }
    let source = Arc::new(TokenSource::new(&tokens.texts, rows));
    let batch_size = run.config.evaluate.batch_size;
    let config = LoaderConfig { batch_size, ..run.loader() };
    let around = tokens.tokenizer.around();
    let weights = KeptWeights::new();
    for batch in HeldOutLoader::new(source, config, run.device.device.clone())?.batches() {
        if run.stop.load(Ordering::SeqCst) {
            return Err(PipelineError::Interrupted);
        }
        let batch = batch?;
        let TextScores { labels, span } =
            weights.during(|| model.forward(tokens_of(&batch), Some(&batch.lengths), None));
        let logits: Vec<f32> = labels.into_data().convert::<f32>().iter::<f32>().collect();
        let spans = likeliest(span, &batch.lengths, around);
        if let Some(place) = first_odd(&logits, &spans) {
            let row = rows[answers.spans.len() + place];
            return Err(no_number(&corpus.place(table(run.config)?, row)));
        }
        let probability = |logit: f32| 1.0 / (1.0 + (-logit).exp());
        answers.probabilities.extend(logits.into_iter().map(probability));
        answers.spans.extend(spans);
    }
    Ok(answers)
}

/// The likeliest evidence of each text of a batch, among its own tokens.
fn likeliest(
    span: Option<[Tensor<2>; 2]>,
    lengths: &[usize],
    [before, after]: [usize; 2],
) -> Vec<Option<Likeliest>> {
    let Some(span) = span else { return vec![None; lengths.len()] };
    let [first, last] = span.map(|scores| {
        let [_, time] = scores.dims();
        let scores: Vec<f32> = scores.into_data().convert::<f32>().iter::<f32>().collect();
        (scores, time)
    });
    let of = |(row, length): (usize, &usize)| {
        let of = |(scores, time): &(Vec<f32>, usize)| scores[row * time..][..*time].to_vec();
        Likeliest::of(&of(&first), &of(&last), before..length - after)
    };
    lengths.iter().enumerate().map(of).collect()
}

/// Says of which text the model says what is no finite number.
fn no_number(place: &str) -> PipelineError {
    PipelineError::Setting(format!(
        "what the model says of the text in {place} is no finite number\n  \
         lower the optimizer's `learning_rate`; of a model that computes in bf16 or f16, run.precision = \"f32\" \
         may help"
    ))
}

/// Labels told without the model: by each label's majority, all of them, and by words.
fn baselines(
    run: &Run<'_>,
    corpus: &Corpus,
    labels: usize,
    validation: &[bool],
) -> Result<Vec<(&'static str, Vec<bool>)>, PipelineError> {
    let (texts, parts) = (&corpus.texts, &corpus.parts);
    let ones = |label: usize| parts.train.iter().filter(|row| texts.row(**row)[label]).count();
    let majority: Vec<bool> = (0..labels).map(|l| 2 * ones(l) > parts.train.len()).collect();
    let constant = |row: &[bool]| parts.test.iter().flat_map(|_| row.to_vec()).collect();
    let mut found =
        vec![("majority", constant(&majority)), ("every label", constant(&vec![true; labels]))];
    let own =
        |rows: &[usize]| rows.iter().map(|row| texts.texts[*row].as_str()).collect::<Vec<_>>();
    let weights = WordWeights::fit(own(&parts.train).into_iter(), TERMS);
    if weights.width() == 0 {
        let message =
            "no training text has a word of letters or digits: there is no baseline by words";
        run.listener.on(&Event::Warning { message: message.to_owned() });
        return Ok(found);
    }
    let rows = |part: &[usize]| weights.rows(own(part).into_iter());
    let (train, held, test) = (rows(&parts.train), rows(&parts.validation), rows(&parts.test));
    let (mut by_words, mut chosen) =
        (vec![0.0f32; parts.test.len() * labels], vec![0.0f32; parts.validation.len() * labels]);
    for label in 0..labels {
        if run.stop.load(Ordering::SeqCst) {
            return Err(PipelineError::Interrupted);
        }
        let of =
            |part: &[usize]| part.iter().map(|row| u32::from(texts.row(*row)[label])).collect();
        let features =
            Features { rows: train.clone(), width: weights.width(), labels: of(&parts.train) };
        let check =
            Features { rows: held.clone(), width: weights.width(), labels: of(&parts.validation) };
        let stop = Stop { iterations: 200, gradient: 1e-5 };
        let fits = PENALTIES.map(|l2| Logistic::fit(&features, 2, l2, stop));
        let unscaled = UNSCALED.map(|l2| Logistic::fit_unscaled(&features, 2, l2, stop));
        let [first, others @ ..] = fits;
        let best = others.into_iter().chain(unscaled).fold(first, |best, next| {
            if next.log_loss(&check) < best.log_loss(&check) { next } else { best }
        });
        for (rows, out) in [(&held, &mut chosen), (&test, &mut by_words)] {
            let probabilities = best.probabilities(rows);
            for (row, probability) in probabilities.chunks_exact(2).enumerate() {
                out[row * labels + label] = probability[1] as f32;
            }
        }
    }
    let thresholds = choose_thresholds(validation, &chosen, labels);
    found.push((WORDS, over(&by_words, &thresholds)));
    Ok(found)
}

/// The texts of a resample, from the units that it drew.
fn drawn<'a>(
    units: &'a [Vec<usize>],
    indices: &'a [u32],
) -> impl Iterator<Item = usize> + Clone + 'a {
    indices.iter().flat_map(|unit| &units[*unit as usize]).copied()
}

fn methods(
    resampling: &Resampling,
    units: &[Vec<usize>],
    truth: &[bool],
    predictions: &[(&'static str, Vec<bool>)],
    labels: usize,
) -> Vec<Method> {
    let texts: Range<usize> = 0..truth.len() / labels.max(1);
    let scores: Vec<LabelScores> = predictions
        .iter()
        .map(|(_, predicted)| label_scores(truth, predicted, labels, texts.clone()))
        .collect();
    let resampled: Vec<Vec<[f64; 2]>> = resampling.map(units.len(), |indices, _| {
        let score = |((_, predicted), all): (&(&str, Vec<bool>), &LabelScores)| {
            let scores = label_scores(truth, predicted, labels, drawn(units, indices));
            [scores.macro_f1_of_drawn(all), scores.micro_f1_of_drawn(all)]
        };
        predictions.iter().zip(&scores).map(score).collect()
    });
    let honest =
        |estimate: Estimate| estimate.unless_all_agree(units.len() as f64, resampling.confidence);
    let estimate = |value: f64, of: &dyn Fn(&[[f64; 2]]) -> f64| {
        let values: Vec<f64> = resampled.iter().map(|scores| of(scores)).collect();
        Estimate::from_resamples(value, &values, resampling.confidence)
    };
    let own = scores[0].macro_f1;
    let values: Vec<f64> = scores.iter().map(|scores| scores.macro_f1).collect();
    let of = |place: usize| estimate(values[place], &|all| all[place][0]);
    let difference = |place: usize| {
        let raw = estimate(own - values[place], &|all| all[0][0] - all[place][0]);
        let agree = [0, place].map(|place| of(place).low == 1.0);
        raw.unless_either_agrees(agree, units.len() as f64, resampling.confidence)
    };
    let methods = predictions.iter().zip(scores).enumerate();
    methods
        .map(|(place, ((name, _), scores))| Method {
            name,
            macro_f1: honest(of(place)),
            micro_f1: honest(estimate(scores.micro_f1, &|all| all[place][1])),
            difference: (place > 0).then(|| difference(place)),
            scores,
        })
        .collect()
}

/// Scores of the evidence of each test text that has some, of the model's and of the whole text. Evidence that was cut off
/// was not found. Of a model that looks for none there are none.
fn scored(
    corpus: &Corpus,
    tokens: &Tokens,
    predicted: &[Option<Likeliest>],
) -> Vec<Option<[(bool, f64); 2]>> {
    if predicted.iter().all(Option::is_none) {
        return vec![];
    }
    let [before, after] = tokens.tokenizer.around();
    let of = |(place, row): (usize, &usize)| {
        let text = &tokens.texts[*row];
        corpus.texts.spans[*row]?;
        let Some(truth) = text.span else { return Some([(false, 0.0); 2]) };
        let whole = Some([before, text.tokens.len() - after - 1]);
        let own = predicted[place].map(|likeliest| likeliest.span);
        Some([span_score(truth, own), span_score(truth, whole)])
    };
    corpus.parts.test.iter().enumerate().map(of).collect()
}

/// Scores of the evidence, of texts that have some.
fn evidence(
    resampling: &Resampling,
    units: &[Vec<usize>],
    scored: &[Option<[(bool, f64); 2]>],
) -> Option<Evidence> {
    let means = |texts: &mut dyn Iterator<Item = usize>| {
        let found: Vec<[(bool, f64); 2]> = texts.filter_map(|text| scored[text]).collect();
        [0, 1].map(|side| span_scores(found.iter().map(|scores| scores[side])))
    };
    let [own, whole] = means(&mut (0..scored.len()));
    if own.texts == 0 {
        return None;
    }
    // That no evidence was drawn says nothing of it.
    let resampled = resampling.map(units.len(), |indices, _| {
        let found = means(&mut drawn(units, indices));
        if found[0].texts == 0 { [own, whole] } else { found }
    });
    let estimate = |value: f64, of: &dyn Fn(&[SpanScores; 2]) -> f64| {
        let values: Vec<f64> = resampled.iter().map(of).collect();
        Estimate::from_resamples(value, &values, resampling.confidence)
    };
    let has_evidence = |unit: &&Vec<usize>| unit.iter().any(|text| scored[*text].is_some());
    let independent = units.iter().filter(has_evidence).count();
    let honest =
        |estimate: Estimate| estimate.unless_all_agree(independent as f64, resampling.confidence);
    let token_f1 = estimate(own.token_f1, &|scores| scores[0].token_f1);
    let of_whole = estimate(whole.token_f1, &|scores| scores[1].token_f1);
    let difference =
        estimate(own.token_f1 - whole.token_f1, &|scores| scores[0].token_f1 - scores[1].token_f1);
    let agree = [token_f1, of_whole].map(|one| one.low == 1.0);
    Some(Evidence {
        own,
        independent,
        exact: honest(estimate(own.exact, &|scores| scores[0].exact)),
        token_f1: honest(token_f1),
        whole: honest(of_whole),
        difference: difference.unless_either_agrees(
            agree,
            independent as f64,
            resampling.confidence,
        ),
    })
}

fn thousandths(value: f64) -> String {
    format!("{value:.3}")
}

/// A win is a win over every baseline, each by an interval above zero, so that testing several takes
/// no correction.
fn verdict(
    methods: &[Method],
    evidence: Option<&Evidence>,
    units: usize,
    resampling: &Resampling,
) -> Verdict {
    let share = share_text(resampling.confidence);
    let own = methods[0].macro_f1;
    let interval =
        own.ends(thousandths).map_or(String::new(), |ends| format!(" ({share} % interval {ends})"));
    let reach =
        format!("the encoder tells the labels with a test macro F1 of {:.3}{interval}", own.value);
    let found = evidence.map_or(String::new(), |evidence| {
        let Evidence { token_f1, whole, independent, .. } = evidence;
        let few = match independent {
            few if *few < FEWEST => format!(", of only {}", count(*few as u64, "independent text")),
            _ => String::new(),
        };
        format!(
            "; in texts that have evidence it finds it with a token F1 of {:.3} (naming the whole text: {:.3}{few})",
            token_f1.value, whole.value
        )
    });
    let (best, difference) = methods
        .iter()
        .filter_map(|method| Some((method, method.difference?)))
        .max_by(|a, b| a.0.macro_f1.value.total_cmp(&b.0.macro_f1.value))
        .unwrap_or((&methods[0], own));
    let beside = format!(
        "the best baseline, {}, reaches {:.3}, a difference of {}",
        best.name,
        best.macro_f1.value,
        difference.with_interval(|value| signed(value, 3))
    );
    let all = methods.iter().filter_map(|method| method.difference);
    let (outcome, said) = if units < FEWEST {
        let are = if units == 1 { "is" } else { "are" };
        let texts = count(units as u64, "test text");
        let why = format!("only {texts} {are} independent, too few for a claim");
        (Outcome::TooFewWindows, why)
    } else if all.clone().all(|difference| difference.is_above_zero()) {
        (Outcome::Beats, "on these texts, in this one training, it beats every baseline".to_owned())
    } else {
        (Outcome::DoesNotBeat, "it does not beat every baseline".to_owned())
    };
    let mut sentence = format!("{said}: {reach}; {beside}{found}.");
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    Verdict { outcome, sentence }
}
