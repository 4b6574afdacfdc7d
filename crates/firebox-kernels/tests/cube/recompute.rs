//! Segments that are computed again for their gradients: the bits of the ordinary pass, with the kernels of
//! a GPU and with what is composed of Burn's operations; with Burn's fusion, which joins operations across the
//! ends of a segment, but for rounding.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{DType, Device, Gradients, Tensor};
use firebox_core::Stream;
use firebox_kernels::{
    Attention, CpuKernels, GpuKernels, LaunchWatch, Lstm, LstmConfig, dropout, gelu, init_linear,
    layer_norm, linear, recomputed, recomputes_on, self_attention,
};

use super::alone;
use super::support::case::{float, noise};

const LENGTHS: [usize; 3] = [6, 3, 6];

#[derive(Module, Debug)]
struct Block {
    lower: Linear,
    lstm: Lstm,
    norm: LayerNorm,
    upper: Linear,
}

fn block(device: &Device) -> Block {
    let stream = |index| Stream::new(3, "weights").substream(index);
    Block {
        lower: init_linear(stream(0), 6, 24, device),
        lstm: LstmConfig { bidirectional: true, ..LstmConfig::new(8, 5) }.init(stream(1), device),
        norm: LayerNormConfig::new(10).init(device),
        upper: init_linear(stream(2), 10, 6, device),
    }
}

fn forward(block: &Block, x: Tensor<3>) -> Tensor<3> {
    let [batch, time, width] = x.dims();
    let stream = |index| Some(Stream::new(9, "dropout").substream(index));
    let qkv = linear(x.clone().reshape([batch * time, width]), &block.lower);
    let attention = Attention { dropout: 0.1, ..Attention::new(2) };
    let qkv = qkv.reshape([batch, time, 24]);
    let attended = self_attention(qkv, Some(&LENGTHS), stream(0), &attention);
    let (hidden, _) = block.lstm.forward(attended, Some(&LENGTHS), None, None);
    let beta = block.norm.beta.as_ref().map(|beta| beta.val());
    let hidden = layer_norm(hidden, block.norm.gamma.val(), beta, 1e-5);
    let rows = linear(gelu(hidden).reshape([batch * time, 10]), &block.upper);
    dropout(rows, 0.2, stream(1)).reshape([batch, time, width]) + x
}

/// Parameters in another type.
struct Cast(DType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.cast(self.0))
    }
}

/// Gradients as bits, in the order of the parameters.
struct Read<'a>(&'a mut Gradients, Vec<Option<Vec<u32>>>);

impl ModuleVisitor for Read<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.1.push(param.val().grad_remove(self.0).map(bits));
    }
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    tensor.cast(DType::F32).into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// Result and all gradients of the block twice in a row, as it is or computed again.
fn run(model: &Block, dtype: DType, again: bool, tracked: bool) -> Vec<Option<Vec<u32>>> {
    let device = model.lower.weight.val().device().without_autodiff().autodiff();
    let x = float::<3>(&noise(Stream::new(4, "x"), 3 * 6 * 6, 1.0), [3, 6, 6], &device);
    let x = x.cast(dtype).detach();
    let x = if tracked { x.require_grad() } else { x };
    let once = |x: Tensor<3>| match again {
        true => recomputed(model, x, forward),
        false => forward(model, x),
    };
    // The same segment twice: gradients of one parameter from two places add up.
    let y = once(once(x.clone()) * 0.5);
    let mut gradients = (y.clone() * y.clone()).mean().backward();
    let mut all = vec![Some(bits(y)), x.grad_remove(&mut gradients).map(bits)];
    let mut read = Read(&mut gradients, vec![]);
    model.visit(&mut read);
    all.append(&mut read.1);
    all
}

/// Whether two runs are the same: to the bit, or with fusion to some units of their type beside the largest.
fn same(plain: &[Option<Vec<u32>>], again: &[Option<Vec<u32>>], dtype: DType) -> bool {
    if !cfg!(feature = "fusion") {
        return plain == again;
    }
    let unit = match dtype {
        DType::F32 => 2f32.powi(-20),
        DType::F16 => 2f32.powi(-7),
        _ => 2f32.powi(-5),
    };
    let close = |plain: &Option<Vec<u32>>, again: &Option<Vec<u32>>| match (plain, again) {
        (Some(plain), Some(again)) => {
            let number = |bits: &u32| f32::from_bits(*bits);
            let largest = plain.iter().map(number).fold(0.0, |a, b| b.abs().max(a));
            let close = |(a, b)| (number(a) - number(b)).abs() <= unit * largest;
            plain.len() == again.len() && plain.iter().zip(again).all(close)
        }
        (None, None) => true,
        _ => false,
    };
    plain.len() == again.len() && plain.iter().zip(again).all(|(a, b)| close(a, b))
}

#[test]
fn results_and_gradients_are_those_of_the_ordinary_pass() {
    alone(|device| {
        assert!(recomputes_on(&device) && recomputes_on(&device.clone().autodiff()));
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            if GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_err() {
                continue;
            }
            let model = block(&device).map(&mut Cast(dtype)).train();
            for tracked in [true, false] {
                let plain = run(&model, dtype, false, tracked);
                let missing = plain.iter().filter(|one| one.is_none()).count();
                assert_eq!(missing, usize::from(!tracked), "{dtype:?}");
                let again = run(&model, dtype, true, tracked);
                assert!(same(&plain, &again, dtype), "{dtype:?}, {tracked}");
            }
            let composed = |again| CpuKernels::Composed.force(|| run(&model, dtype, again, true));
            assert!(same(&composed(false), &composed(true), dtype), "{dtype:?}, composed");
        }
    });
}

#[test]
fn a_segment_runs_again_for_its_gradient() {
    alone(|device| {
        let model = block(&device).train();
        let dropped = |again| {
            run(&model, DType::F32, again, true);
            let watch = LaunchWatch::start();
            run(&model, DType::F32, again, true);
            let launched = watch.end();
            launched
                .iter()
                .filter_map(|one| one.work.as_ref())
                .filter(|w| w.name == "dropout")
                .count()
        };
        // Two segments, each with one mask forward and one back; once more to be computed again.
        assert_eq!([dropped(false), dropped(true)], [4, 6]);
    });
}

#[test]
fn what_a_segment_would_have_kept_is_given_back() {
    alone(|device| {
        let model = block(&device).train();
        let in_use = || {
            // Something is read, so that all that was asked for has run.
            bits(Tensor::<1>::ones([1], &device));
            device.memory_pool_usage().expect("CubeCL counts").bytes_in_use as i64
        };
        let taken = |again: bool| {
            let device = device.clone().autodiff();
            let x = float::<3>(&noise(Stream::new(4, "x"), 3 * 6 * 6, 1.0), [3, 6, 6], &device);
            let before = in_use();
            let mut y = x;
            for _ in 0..8 {
                y = match again {
                    true => recomputed(&model, y, forward),
                    false => forward(&model, y),
                };
            }
            let loss = y.mean();
            bits(loss.clone());
            let kept = in_use() - before;
            drop(loss.backward());
            kept
        };
        let [_, kept, again] = [false, false, true].map(taken);
        assert!(again > 0 && 2 * again < kept, "{again} of {kept} bytes");
    });
}
