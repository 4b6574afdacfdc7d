//! Parity of the Transformer and of BERT with PyTorch's own encoder layers: outputs, loss and every
//! gradient, with dropout in all its places, on golden files that `golden_transformer.py` wrote in
//! float64.

use burn::module::Module;
use burn::tensor::activation::{log_sigmoid, log_softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_models::{
    Activation, Bert, BertConfig, Encoder, Positions, Transformer, TransformerConfig,
    read_parameters, write_parameters,
};

use crate::support::{Golden, check, check_gradients, values};

fn lengths(golden: &Golden) -> Vec<usize> {
    golden.integers("lengths").iter().map(|length| *length as usize).collect()
}

fn dropout() -> Option<Stream> {
    Some(Stream::new(7, "dropout").substream(3))
}

fn transformer(golden: &Golden, activation: Activation, norm_first: bool) -> Transformer {
    let config = TransformerConfig {
        width: 16,
        heads: 2,
        layers: 2,
        feedforward: 24,
        activation,
        norm_first,
        head_hidden: 10,
        positions: Positions::Learned,
        ..TransformerConfig::default()
    };
    let model = config.init(Stream::new(1, "other"), 3, 11, 4, &Device::default());
    let mut model = model.expect("a model");
    write_parameters(&mut model, golden.all("param.")).expect("PyTorch's names and shapes");
    model
}

fn inputs(golden: &Golden) -> Tensor<3> {
    let inputs = golden.floats("inputs");
    let data = TensorData::new(inputs.values, inputs.shape);
    Tensor::from_data(data, &Device::default())
}

fn check_transformer(name: &str, activation: Activation, norm_first: bool) {
    let golden = Golden::read(name);
    let model = transformer(&golden, activation, norm_first).train();
    let (inputs, lengths) = (inputs(&golden), lengths(&golden));

    let logits = model.logits(inputs.clone(), Some(&lengths), dropout());
    check("logits", &values(logits.clone()), &golden.floats("logits").values);
    let labels = golden.integers("labels");
    let samples = labels.len();
    let labels =
        Tensor::<2, Int>::from_data(TensorData::new(labels, [samples, 1]), &Device::default());
    let logs = log_softmax(logits, 1);
    let loss =
        (logs.clone().gather(1, labels).sum() * 0.9 + logs.sum() * (0.1 / 4.0)) / -(samples as f64);
    check("loss", &values(loss.clone()), &golden.floats("loss").values);
    check_gradients(&model, &loss.backward(), &golden);

    let model = model.valid();
    let evaluated = values(model.logits(inputs.clone(), Some(&lengths), None));
    check("logits in evaluation", &evaluated, &golden.floats("evaluated").values);
    let encoded = values(model.encode(inputs, Some(&lengths), None));
    check("encoding", &encoded, &golden.floats("encoded").values);
}

#[test]
fn the_transformer_agrees_with_pytorch() {
    check_transformer("transformer", Activation::Gelu, true);
}

#[test]
fn the_transformer_with_norms_last_agrees_with_pytorch() {
    check_transformer("transformer-post-norm", Activation::Relu, false);
}

fn bert(golden: &Golden) -> Bert {
    let config = BertConfig {
        vocabulary: 40,
        positions: 10,
        width: 24,
        heads: 3,
        layers: 2,
        feedforward: 32,
        dropout: 0.1,
        labels: 5,
    };
    let mut model = config.init(Stream::new(1, "other"), &Device::default()).expect("a model");
    write_parameters(&mut model, golden.all("param.")).expect("PyTorch's names and shapes");
    model
}

#[test]
fn bert_agrees_with_pytorch() {
    let golden = Golden::read("bert");
    let model = bert(&golden).train();
    let lengths = lengths(&golden);
    let device = Device::default();
    let tokens = golden.floats("inputs");
    let tokens: Vec<i64> = tokens.values.iter().map(|token| *token as i64).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [5, 9]), &device);

    let logits = model.logits(tokens.clone(), Some(&lengths), dropout());
    check("logits", &values(logits.clone()), &golden.floats("logits").values);
    let labels = golden.integers("labels");
    let truth = Tensor::<1, Int>::from_data(TensorData::new(labels, [5]), &device);
    let truth = truth.one_hot::<2>(5).float();
    let loss = (log_sigmoid(logits.clone()) - logits.clone() + logits * truth).sum() / -25.0;
    check("loss", &values(loss.clone()), &golden.floats("loss").values);
    check_gradients(&model, &loss.backward(), &golden);

    let model = model.valid();
    let evaluated = values(model.logits(tokens.clone(), Some(&lengths), None));
    check("logits in evaluation", &evaluated, &golden.floats("evaluated").values);
    let encoded = model.encode(tokens, Some(&lengths), None);
    let expected = golden.floats("encoded");
    for (sample, length) in lengths.iter().enumerate() {
        let encoded = values(encoded.clone().narrow(0, sample, 1).narrow(1, 0, *length));
        let expected = &expected.values[sample * 9 * 24..][..length * 24];
        check("encoding", &encoded, expected);
    }
}

#[test]
fn padding_changes_nothing_and_a_sample_without_a_step_has_scores() {
    for precision in [Precision::F32, Precision::Bf16] {
        let golden = Golden::read("transformer");
        let model = transformer(&golden, Activation::Gelu, true).in_precision(precision);
        let (inputs, mut lengths) = (inputs(&golden), lengths(&golden));
        lengths[2] = 0;
        let tail = Tensor::full([5, 2, 3], 1e3, &Device::default());
        let long = Tensor::cat(vec![inputs.clone(), tail], 1);
        let short = values(model.logits(inputs, Some(&lengths), None));
        let long = values(model.logits(long, Some(&lengths), None));
        for (short, long) in short.iter().zip(&long) {
            assert!((short - long).abs() < 1e-5, "{precision}: {short} {long}");
            assert!(short.is_finite());
        }
    }
}

#[test]
fn precision_reaches_every_product() {
    let golden = Golden::read("transformer");
    let model = transformer(&golden, Activation::Gelu, true);
    let (inputs, lengths) = (inputs(&golden), lengths(&golden));
    let logits = |model: &Transformer| values(model.logits(inputs.clone(), Some(&lengths), None));
    let (wide, narrow) = (logits(&model), logits(&model.in_precision(Precision::Bf16)));
    let square = |sum: f64, (a, b): (&f32, &f32)| sum + f64::from(a - b).powi(2);
    let error = wide.iter().zip(&narrow).fold(0.0, square).sqrt();
    let norm = wide.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    assert!((1e-4..3e-2).contains(&(error / norm)), "{}", error / norm);
}

#[test]
fn settings_out_of_range_are_named() {
    let device = Device::default();
    let check = |config: TransformerConfig, expected: &str| {
        let error = config.init(Stream::new(1, "weights"), 4, 8, 3, &device).expect_err("refused");
        assert!(error.to_string().contains(expected), "{error}");
    };
    let default = TransformerConfig::default;
    check(TransformerConfig { heads: 5, ..default() }, "`width` is 128 with 5 heads");
    check(TransformerConfig { layers: 0, ..default() }, "`layers` is 0");
    check(TransformerConfig { dropout: 1.0, ..default() }, "`dropout` is 1");
    check(TransformerConfig { head_hidden: 0, ..default() }, "`head_hidden` is 0");
    let none = default().init(Stream::new(1, "weights"), 4, 8, 0, &device);
    assert!(none.expect_err("refused").to_string().contains("`classes` is 0"));
    let none = BertConfig { vocabulary: 0, ..BertConfig::default() };
    let none = none.init(Stream::new(1, "weights"), &device);
    assert!(none.expect_err("refused").to_string().contains("`vocabulary` is 0"));
}

#[test]
#[should_panic(expected = "windows of 12 steps for a model with 11 positions")]
fn too_many_steps_are_refused() {
    let model = transformer(&Golden::read("transformer"), Activation::Gelu, true);
    model.logits(Tensor::zeros([1, 12, 3], &Device::default()), None, None);
}

#[test]
fn sizes_are_those_of_the_reference_systems() {
    let device = Device::default();
    let model = TransformerConfig::default().init(Stream::new(1, "w"), 4, 105, 3, &device);
    // As `sum(p.numel() for p in Transformer().parameters())` says of the peer's model.
    assert_eq!(model.expect("a model").num_params(), 617_603);
}

#[test]
fn sinusoidal_positions_are_those_of_the_paper_and_are_not_learned() {
    let config =
        TransformerConfig { width: 4, heads: 2, layers: 1, ..TransformerConfig::default() };
    let model = config.init(Stream::new(1, "w"), 2, 3, 3, &Device::default()).expect("a model");
    let position = read_parameters(&model).into_iter().find(|p| p.name == "position");
    // numpy: [[f(t / 10000 ** (2 * i / 4)) for i in range(2) for f in (sin, cos)] for t in range(3)]
    let expected = [
        0.0,
        1.0,
        0.0,
        1.0,
        0.841_471,
        0.540_302_3,
        0.009_999_833,
        0.999_95,
        0.909_297_4,
        -0.416_146_84,
        0.019_998_666,
        0.999_8,
    ];
    check("positions", &position.expect("positions").values, &expected);
    let model = model.train();
    let input = Tensor::<3>::ones([2, 3, 2], &Device::default());
    let loss = model.logits(input, None, None).powi_scalar(2).sum();
    let learned = crate::support::gradients(&model, &loss.backward());
    assert!(learned.len() > 10 && learned.iter().all(|(name, _)| name != "position"));
}
