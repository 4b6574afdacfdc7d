//! Modules taken over from burn-nn compute what burn-nn's do.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{BiGruConfig, BiLstmConfig};
use burn::tensor::{DType, Device, Distribution, Tensor};
use firebox_kernels::{Gru, Lstm};

use crate::support::case::values;
use crate::support::relative_error;

fn input(device: &Device) -> Tensor<3> {
    Tensor::random([5, 9, 3], Distribution::Normal(0.0, 1.0), device)
}

#[track_caller]
fn same(ours: Tensor<3>, theirs: Tensor<3>) {
    assert_eq!(ours.dims(), theirs.dims());
    let error = relative_error(&values(ours), &values(theirs));
    assert!(error < 1e-5, "off by {error:.2e}");
}

#[test]
fn lstm_layers() {
    let device = Device::flex();
    for bias in [true, false] {
        let layers = [
            burn::nn::LstmConfig::new(3, 7, bias).init(&device),
            burn::nn::LstmConfig::new(7, 7, bias).init(&device),
        ];
        let x = input(&device);
        let ours = Lstm::from_burn(&layers).expect("taken over");
        let (below, _) = layers[0].forward(x.clone(), None);
        let (theirs, last) = layers[1].forward(below, None);
        let (output, state) = ours.forward(x, None, None, None);
        same(output, theirs);
        same(state.cell.narrow(0, 1, 1), last.cell.unsqueeze_dim(0));
    }
}

#[test]
fn lstm_layers_in_both_directions() {
    let device = Device::flex();
    let layers =
        [BiLstmConfig::new(3, 6, true).init(&device), BiLstmConfig::new(12, 6, true).init(&device)];
    let x = input(&device);
    let ours = Lstm::from_burn_bidirectional(&layers).expect("taken over");
    let (below, _) = layers[0].forward(x.clone(), None);
    let (theirs, _) = layers[1].forward(below, None);
    same(ours.forward(x, None, None, None).0, theirs);
}

#[test]
fn gru_layers() {
    let device = Device::flex();
    let layer = burn::nn::GruConfig::new(3, 7, true).init(&device);
    let x = input(&device);
    let ours = Gru::from_burn(std::slice::from_ref(&layer)).expect("taken over");
    let theirs = layer.forward(x.clone(), None);
    same(ours.forward(x.clone(), None, None, None).0, theirs);

    let layer = BiGruConfig::new(3, 7, false).init(&device);
    let ours = Gru::from_burn_bidirectional(std::slice::from_ref(&layer)).expect("taken over");
    let (theirs, _) = layer.forward(x.clone(), None);
    same(ours.forward(x, None, None, None).0, theirs);
}

#[test]
fn on_a_device_with_gradients_the_parameters_can_be_trained() {
    let device = Device::flex().autodiff();
    let layer = BiLstmConfig::new(3, 6, true).init(&device);
    let ours = Lstm::from_burn_bidirectional(std::slice::from_ref(&layer)).expect("taken over");
    let x = input(&device);
    let (theirs, _) = layer.forward(x.clone(), None);
    let (output, _) = ours.forward(x, None, None, None);
    let grads = output.clone().sum().backward();
    same(output, theirs);
    struct Count<'a>(&'a burn::tensor::Gradients, usize);
    impl burn::module::ModuleVisitor for Count<'_> {
        fn visit_float<const D: usize>(&mut self, param: &burn::module::Param<Tensor<D>>) {
            self.1 += usize::from(param.val().grad(self.0).is_some());
        }
    }
    let mut count = Count(&grads, 0);
    burn::module::Module::visit(&ours, &mut count);
    assert_eq!(count.1, 8);
}

struct Cast(DType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.cast(self.0))
    }
}

#[test]
fn layers_of_another_type_and_without_bias_are_of_one_type() {
    let device = Device::flex();
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let layer = burn::nn::LstmConfig::new(3, 7, false).init(&device);
        let ours = Lstm::from_burn(&[layer.clone().map(&mut Cast(dtype))]).expect("taken over");
        let x = input(&device);
        let (output, _) = ours.forward(x.clone().cast(dtype), None, None, None);
        assert_eq!(output.dtype(), dtype);
        // burn-nn's begins with a state of another type than its own.
        let (theirs, _) = layer.forward(x, None);
        let error = relative_error(&values(output), &values(theirs));
        assert!(error < 2e-2, "{dtype:?} is off by {error:.2e}");

        let layer = BiGruConfig::new(3, 7, false).init(&device).map(&mut Cast(dtype));
        let ours = Gru::from_burn_bidirectional(&[layer]).expect("taken over");
        let output = ours.forward(input(&device).cast(dtype), None, None, None).0;
        assert_eq!(output.dtype(), dtype);
    }
}

#[test]
fn what_was_frozen_stays_frozen() {
    let device = Device::flex().autodiff();
    for bias in [true, false] {
        let layer = burn::nn::LstmConfig::new(3, 7, bias).init(&device);
        let learns = |ours: &Lstm| {
            struct Learns(Vec<bool>);
            impl burn::module::ModuleVisitor for Learns {
                fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                    self.0.push(param.val().is_require_grad());
                }
            }
            let mut learns = Learns(vec![]);
            ours.visit(&mut learns);
            learns.0
        };
        let taken = |layer| Lstm::from_burn(&[layer]).expect("taken over");
        assert_eq!(learns(&taken(layer.clone())), [true; 4]);
        assert_eq!(learns(&taken(layer.no_grad())), [false; 4]);
    }
}

#[test]
fn what_would_change_the_formula_is_refused() {
    let device = Device::flex();
    let message = |lstm: burn::nn::LstmConfig| {
        Lstm::from_burn(&[lstm.init(&device)]).expect_err("refused").to_string()
    };
    let config = || burn::nn::LstmConfig::new(3, 7, true);
    let tail = "which this module does not compute; keep burn-nn's for it";
    assert_eq!(message(config().with_clip(Some(1.0))), format!("layer 0 has `clip`, {tail}"));
    assert_eq!(message(config().with_reverse(true)), format!("layer 0 has `reverse`, {tail}"));
    let coupled = message(config().with_input_forget(true));
    assert_eq!(coupled, format!("layer 0 has `input_forget`, {tail}"));
    let gru = burn::nn::GruConfig::new(3, 7, true).with_reset_after(false).init(&device);
    let refused = Gru::from_burn(&[gru]).expect_err("refused").to_string();
    assert_eq!(refused, format!("layer 0 has `reset_after = false`, {tail}"));
    let layers = [config().init(&device), config().init(&device)];
    assert_eq!(
        Lstm::from_burn(&layers).expect_err("refused").to_string(),
        "layer 1 reads 3 channels into 7 units, but on top of the layers before it must read 7 into 7"
    );
    assert_eq!(
        Lstm::from_burn(&[]).expect_err("refused").to_string(),
        "no layer was given; at least 1 is needed"
    );
}
