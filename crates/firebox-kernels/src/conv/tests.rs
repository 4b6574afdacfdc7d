//! The convolution against float64, in every variant, and at the edges of its sizes.

use burn::module::Module;

use super::*;

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut draws = Stream::new(seed, "conv").draws();
    (0..count).map(|_| draws.normal() as f32).collect()
}

/// To the nearest bf16, ties to even.
fn bf16(x: f32) -> f64 {
    let bits = x.to_bits();
    f64::from(f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000))
}

fn f16(x: f32) -> f64 {
    half::f16::from_f32(x).to_f64()
}

/// `[y, dx, dweight, dbias]` of the loss `Σ dy · y`.
type Results = [Vec<f64>; 4];

struct Case {
    conv: Conv,
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    dy: Vec<f32>,
}

impl Case {
    fn new(conv: Conv, bias: bool) -> Self {
        let Conv { batch, time, input, output, kernel, .. } = conv;
        Self {
            conv,
            x: noise(1, batch * time * input),
            weight: noise(2, output * input * kernel),
            bias: bias.then(|| noise(3, output)),
            dy: noise(4, batch * conv.steps() * output),
        }
    }

    /// The sums of the definition in float64, operands rounded by `round`.
    fn reference(&self, round: fn(f32) -> f64) -> Results {
        let Self { conv, .. } = self;
        let Conv { batch, time, input, output, kernel, stride, dilation, .. } = *conv;
        let (x, weight, dy) = (
            self.x.iter().map(|x| round(*x)).collect::<Vec<_>>(),
            self.weight.iter().map(|x| round(*x)).collect::<Vec<_>>(),
            self.dy.iter().map(|x| round(*x)).collect::<Vec<_>>(),
        );
        let (mut y, mut dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
        let (mut dw, mut db) = (vec![0.0; weight.len()], vec![0.0; output]);
        for b in 0..batch {
            for t in 0..conv.steps() {
                for o in 0..output {
                    let at = (b * conv.steps() + t) * output + o;
                    y[at] = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[o]));
                    db[o] += f64::from(self.dy[at]);
                    for j in 0..kernel {
                        let place = (t * stride + j * dilation) as isize - conv.padding[0] as isize;
                        if !(0..time as isize).contains(&place) {
                            continue;
                        }
                        for c in 0..input {
                            let from = (b * time + place as usize) * input + c;
                            let w = (o * input + c) * kernel + j;
                            y[at] += x[from] * weight[w];
                            dx[from] += dy[at] * weight[w];
                            dw[w] += dy[at] * x[from];
                        }
                    }
                }
            }
        }
        [y, dx, dw, db]
    }

    fn layer(&self, device: &Device) -> Conv1d {
        let Conv { input, output, kernel, stride, padding, dilation, .. } = self.conv;
        let weight = TensorData::new(self.weight.clone(), [output, input, kernel]);
        let bias = self.bias.clone().map(|bias| TensorData::new(bias, [output]));
        Conv1d {
            weight: Param::from_tensor(Tensor::from_data(weight, device)),
            bias: bias.map(|bias| Param::from_tensor(Tensor::from_data(bias, device))),
            stride,
            kernel_size: kernel,
            dilation,
            groups: 1,
            padding: PaddingConfig1d::Explicit(padding[0], padding[1]),
        }
    }

    fn run(&self, precision: Precision, noise: Option<GaussianNoise>) -> Results {
        let Conv { batch, time, input, output, .. } = self.conv;
        let device = Device::flex().autodiff();
        let layer = self.layer(&device);
        let x = TensorData::new(self.x.clone(), [batch, time, input]);
        let x = Tensor::<3>::from_data(x, &device).require_grad();
        let dy = TensorData::new(self.dy.clone(), [batch, self.conv.steps(), output]);
        let y = conv1d(x.clone(), &layer, precision, noise);
        let grads = (y.clone() * Tensor::from_data(dy, &device)).sum().backward();
        let plain = conv1d(x.clone().inner(), &layer.clone().valid(), precision, noise);
        let bits = |y| values(y).iter().map(|y| y.to_bits()).collect::<Vec<_>>();
        assert!(bits(y.clone()) == bits(plain), "without a graph it is the same");
        let d_bias = layer.bias.as_ref().and_then(|bias| bias.val().grad(&grads));
        [
            values(y),
            values(x.grad(&grads).expect("tracked")),
            values(layer.weight.val().grad(&grads).expect("tracked")),
            d_bias.map_or(vec![], values),
        ]
    }

    #[track_caller]
    fn check(&self) {
        self.check_by(CpuKernels::available());
    }

    #[track_caller]
    fn check_by(&self, variants: impl IntoIterator<Item = CpuKernels>) {
        for kernels in variants {
            for (precision, round) in [
                (Precision::F32, f64::from as fn(f32) -> f64),
                (Precision::Bf16, bf16),
                (Precision::F16, f16),
            ] {
                // Burn rounds the gradient that passes through a cast as well.
                let bound = match (kernels, precision) {
                    (CpuKernels::Composed, Precision::Bf16) => 1e-2,
                    // In f16 it is rounded behind the products, and in the reference before them.
                    (_, Precision::F16) => 1e-3,
                    _ => 1e-5,
                };
                let results = kernels.force(|| self.run(precision, None));
                let mut expected = self.reference(round);
                if self.bias.is_none() {
                    expected[3].clear();
                }
                for ((name, ours), exact) in
                    ["y", "dx", "dweight", "dbias"].into_iter().zip(&results).zip(&expected)
                {
                    let error = relative_error(ours, exact);
                    let what = (kernels, precision, self.conv);
                    assert!(error < bound, "{name} is off by {error:.2e}: {what:?}");
                }
            }
        }
    }
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

#[track_caller]
fn relative_error(actual: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let error: f64 = actual.iter().zip(expected).map(|(a, e)| (a - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| e * e).sum();
    (error / norm.max(1e-300)).sqrt()
}

fn sizes([batch, time, input, output, kernel]: [usize; 5]) -> Conv {
    let padding = [kernel / 2; 2];
    Conv { batch, time, input, output, kernel, stride: 1, padding, dilation: 1 }
}

#[test]
fn agrees_with_float64() {
    for (index, shape) in [
        [1, 1, 1, 1, 1],
        [1, 1, 1, 1, 3],
        [2, 7, 3, 5, 3],
        [3, 2, 4, 16, 5],
        [1, 40, 17, 33, 3],
        [2, 130, 6, 64, 3],
        [5, 3, 64, 24, 1],
        [1, 121, 70, 100, 2],
        [2, 251, 66, 18, 3],
        [30, 1, 5, 7, 3],
        [1, 9, 300, 80, 4],
    ]
    .into_iter()
    .enumerate()
    {
        Case::new(sizes(shape), index % 2 == 0).check();
    }
}

#[test]
fn strides_paddings_and_dilations_agree_with_float64() {
    let conv = sizes([2, 23, 5, 20, 3]);
    for (stride, padding, dilation) in [
        (2, [0, 0], 1),
        (3, [1, 1], 1),
        (1, [0, 4], 2),
        (2, [5, 0], 3),
        (5, [7, 7], 1),
        (1, [2, 2], 1),
        (30, [0, 0], 1),
        (1, [40, 1], 11),
    ] {
        Case::new(Conv { stride, padding, dilation, ..conv }, true).check();
    }
    // A kernel as long as the input, and one that only its padding can hold.
    Case::new(Conv { padding: [0, 0], ..sizes([3, 6, 4, 5, 6]) }, true).check();
    Case::new(Conv { padding: [5, 4], ..sizes([3, 2, 4, 5, 9]) }, true).check();
}

#[test]
fn a_stride_longer_than_the_input_takes_no_room() {
    for (time, kernel, stride) in [(10, 1, 1_000_000_000), (40, 40, 1 << 24), (33, 3, 1 << 30)] {
        let conv = Conv { stride, padding: [0, 0], ..sizes([3, time, 20, 33, kernel]) };
        assert_eq!(conv.steps(), 1);
        Case::new(conv, true).check_by(CpuKernels::available().into_iter().skip(1));
    }
    // Two steps, of which each reads one row.
    let conv = Conv { stride: 499, padding: [0, 0], ..sizes([2, 500, 6, 9, 1]) };
    Case::new(conv, true).check();
}

/// Eight samples make a group, and the ninth one of its own, of which tiles would read more behind it than it has.
#[test]
fn a_sample_has_the_same_bits_in_a_group_and_alone() {
    let conv = Conv { stride: 120, padding: [0, 0], ..sizes([9, 241, 64, 17, 1]) };
    let case = Case::new(conv, true);
    let [input, output] = [241 * 64, conv.steps() * 17];
    let first = Case {
        conv: Conv { batch: 1, ..conv },
        x: case.x[..input].to_vec(),
        weight: case.weight.clone(),
        bias: case.bias.clone(),
        dy: case.dy[..output].to_vec(),
    };
    let equal = [&case.x[..8 * input], &case.x[..input]].concat();
    let case = Case { x: equal, ..case };
    for kernels in CpuKernels::available().into_iter().skip(1) {
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let [[grouped, ..], [alone, ..]] =
                kernels.force(|| [&case, &first].map(|case| case.run(precision, None)));
            for place in [0, 8] {
                let grouped = &grouped[place * output..(place + 1) * output];
                assert!(grouped == alone, "{kernels:?} {precision} {place}");
            }
        }
    }
}

#[test]
fn steps_side_by_side_times_the_weights_are_the_convolution() {
    let conv = sizes([2, 23, 5, 20, 3]);
    let cases = [(1, [1, 1], 1), (2, [0, 0], 1), (3, [1, 0], 1), (1, [0, 4], 2), (2, [5, 3], 3)];
    for (stride, padding, dilation) in cases {
        let case = Case::new(Conv { stride, padding, dilation, ..conv }, true);
        let Conv { batch, time, input, output, .. } = case.conv;
        let device = Device::flex().autodiff();
        let layer = case.layer(&device);
        let x = TensorData::new(case.x.clone(), [batch, time, input]);
        let x = Tensor::<3>::from_data(x, &device).require_grad();
        let dy = TensorData::new(case.dy.clone(), [batch, case.conv.steps(), output]);
        let bias = layer.bias.as_ref().map(|bias| bias.val());
        let weight = layer.weight.val();
        let (a, b, c) = (x.clone(), weight.clone(), bias.clone());
        let y = by_product(case.conv, a, b, c, 1, Precision::F32);
        let grads = (y.clone() * Tensor::from_data(dy, &device)).sum().backward();
        let found = [
            values(y),
            values(x.grad(&grads).expect("tracked")),
            values(weight.grad(&grads).expect("tracked")),
            values(bias.and_then(|bias| bias.grad(&grads)).expect("tracked")),
        ];
        for (found, expected) in found.iter().zip(case.reference(f64::from)) {
            let error = relative_error(found, &expected);
            assert!(error < 1e-5, "{stride} {padding:?} {dilation}: {error:.1e}");
        }
    }
}

/// Beside Burn's own convolution.
#[test]
fn groups_of_channels_are_products_of_their_own() {
    for (groups, stride, padding, dilation) in
        [(2, 1, [1, 1], 1), (3, 2, [0, 4], 2), (6, 1, [2, 0], 1)]
    {
        let conv = Conv { stride, padding, dilation, ..sizes([3, 17, 6, 12, 3]) };
        let device = Device::flex().autodiff();
        let run = |product: bool| {
            let tensor = |seed, shape: [usize; 3]| {
                let values = noise(seed, shape.iter().product());
                Tensor::<3>::from_data(TensorData::new(values, shape), &device).require_grad()
            };
            let (x, weight) = (tensor(1, [3, 17, 6]), tensor(2, [12, 6 / groups, 3]));
            let bias = Tensor::<1>::from_data(TensorData::new(noise(3, 12), [12]), &device);
            let bias = bias.require_grad();
            let (a, b, c) = (x.clone(), weight.clone(), Some(bias.clone()));
            let y = match product {
                true => by_product(conv, a, b, c, groups, Precision::F32),
                false => composed(conv, a, b, c, groups, Precision::F32, None),
            };
            let dy = tensor(4, y.dims());
            let grads = (y.clone() * dy).sum().backward();
            let of = |found: Option<Tensor<3>>| values(found.expect("tracked"));
            let d_bias = values(bias.grad(&grads).expect("tracked"));
            [values(y), of(x.grad(&grads)), of(weight.grad(&grads)), d_bias]
        };
        for (found, expected) in run(true).iter().zip(run(false)) {
            let error = relative_error(found, &expected);
            assert!(error < 1e-5, "{groups} groups: {error:.1e}");
        }
    }
}

/// The gradients of the reference itself, by central differences.
#[test]
fn the_reference_has_the_gradients_of_its_result() {
    let conv = Conv { stride: 2, padding: [1, 2], dilation: 2, ..sizes([2, 6, 2, 3, 3]) };
    let case = Case::new(conv, true);
    let [_, dx, dw, db] = case.reference(f64::from);
    let loss = |case: &Case| -> f64 {
        let [y, ..] = case.reference(f64::from);
        y.iter().zip(&case.dy).map(|(y, d)| y * f64::from(*d)).sum()
    };
    let step = 1.0 / 64.0;
    let slope = |change: &dyn Fn(&mut Case, f32)| {
        let [mut up, mut down] = [Case::new(conv, true), Case::new(conv, true)];
        change(&mut up, step);
        change(&mut down, -step);
        (loss(&up) - loss(&down)) / (2.0 * f64::from(step))
    };
    for (at, d) in dx.iter().enumerate() {
        assert!((slope(&|case, h| case.x[at] += h) - d).abs() < 1e-4);
    }
    for (at, d) in dw.iter().enumerate() {
        assert!((slope(&|case, h| case.weight[at] += h) - d).abs() < 1e-4);
    }
    for (at, d) in db.iter().enumerate() {
        let change = |case: &mut Case, h: f32| {
            case.bias.iter_mut().for_each(|bias| bias[at] += h);
        };
        assert!((slope(&change) - d).abs() < 1e-4);
    }
}

#[test]
fn noise_is_as_if_it_had_been_added_before() {
    let case = Case::new(sizes([3, 50, 37, 20, 3]), true);
    let noise = GaussianNoise { deviation: 0.5, stream: Stream::new(1, "noise") };
    let shape = [3, 50, 37];
    let x = Tensor::<3>::from_data(TensorData::new(case.x.clone(), shape), &Device::flex());
    let noisy: Vec<f32> = noise.add_to(x).into_data().iter::<f32>().collect();
    let before = Case { x: noisy, ..Case::new(case.conv, true) };
    for kernels in CpuKernels::available() {
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let (within, apart) =
                kernels.force(|| (case.run(precision, Some(noise)), before.run(precision, None)));
            assert!(within == apart, "{kernels:?} {precision}");
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let case = Case::new(sizes([7, 300, 40, 48, 3]), true);
    let noise = GaussianNoise { deviation: 0.5, stream: Stream::new(1, "noise") };
    for precision in [Precision::F32, Precision::Bf16] {
        let results = [1, 2, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("a pool").install(|| case.run(precision, Some(noise)))
        });
        assert!(results[0] == results[1] && results[0] == results[2]);
    }
}

#[test]
fn nan_spoils_the_windows_that_hold_it_and_nothing_else() {
    // An odd number of steps: the last has no partner where bf16 comes in pairs.
    let mut case = Case::new(sizes([2, 11, 3, 4, 3]), true);
    case.x[10 * 3 + 1] = f32::NAN; // sample 0, last step, channel 1
    for kernels in CpuKernels::available().into_iter().skip(1) {
        for precision in [Precision::F32, Precision::Bf16] {
            let [y, dx, dw, _] = kernels.force(|| case.run(precision, None));
            for (at, y) in y.iter().enumerate() {
                let (sample, step) = (at / (11 * 4), at / 4 % 11);
                assert_eq!(y.is_nan(), sample == 0 && step >= 9, "{at}");
            }
            assert!(dx.iter().all(|d| d.is_finite()));
            for (at, d) in dw.iter().enumerate() {
                let (channel, tap) = (at / 3 % 3, at % 3);
                // The last step is under tap 1 of the last window and under tap 2 of the one before.
                assert_eq!(d.is_nan(), channel == 1 && tap >= 1, "{precision} {kernels:?} {at}");
            }
        }
    }
}

#[test]
fn nothing_goes_in_or_comes_out() {
    let device = Device::flex().autodiff();
    let empty = Case::new(sizes([0, 5, 3, 2, 3]), true);
    let short = Case::new(Conv { padding: [0, 0], ..sizes([2, 4, 3, 2, 5]) }, true);
    for (case, shape, out) in [(empty, [0, 5, 3], [0, 5, 2]), (short, [2, 4, 3], [2, 0, 2])] {
        for kernels in CpuKernels::available() {
            for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
                kernels.force(|| {
                    let (x, layer) = (Tensor::<3>::zeros(shape, &device), case.layer(&device));
                    let x = x.require_grad();
                    let y = conv1d(x.clone(), &layer, precision, None);
                    assert_eq!(y.dims(), out);
                    let grads = y.sum().backward();
                    let dx = x.grad(&grads).expect("tracked");
                    assert_eq!(dx.dims(), shape);
                    let dw = values(layer.weight.val().grad(&grads).expect("tracked"));
                    let bias = layer.bias.as_ref().expect("a bias").val();
                    let db = values(bias.grad(&grads).expect("tracked"));
                    let zeros = [values(dx), dw, db].concat();
                    assert!(zeros.iter().all(|d| *d == 0.0), "{kernels:?} {precision}");
                });
            }
        }
    }
}

/// Burn's own module, its `Same` and `Valid` padding, its groups and its order of axes.
#[test]
fn takes_the_place_of_burns_module() {
    let device = Device::flex();
    for (padding, stride, groups) in [
        (PaddingConfig1d::Valid, 2, 1),
        (PaddingConfig1d::Same, 1, 1),
        (PaddingConfig1d::Explicit(2, 1), 1, 1),
        (PaddingConfig1d::Valid, 1, 2),
    ] {
        let mut layer = init_conv1d(Stream::new(1, "weights"), 6 / groups, 4, 4, &device);
        (layer.padding, layer.stride, layer.groups) = (padding, stride, groups);
        let x = Tensor::<3>::from_data(TensorData::new(noise(1, 2 * 6 * 13), [2, 6, 13]), &device);
        let theirs = values(layer.forward(x.clone()));
        let ours = values(conv1d_channels_first(x, &layer, Precision::F32));
        assert!(relative_error(&ours, &theirs) < 1e-6, "{:?}", layer.padding);
    }
}

#[test]
#[should_panic(
    expected = "a convolution of [2, 5, 3] ([batch, time, channel]) with a weight of [8, 4, 3]"
)]
fn channels_must_fit() {
    let device = Device::flex();
    let layer = init_conv1d(Stream::new(1, "weights"), 4, 8, 3, &device);
    conv1d(Tensor::zeros([2, 5, 3], &device), &layer, Precision::F32, None);
}

#[test]
#[should_panic(
    expected = "a convolution with a weight of [8, 4, 3] ([output channel, channel / groups, kernel]) and a bias of [7]"
)]
fn a_bias_must_fit() {
    let device = Device::flex();
    let mut layer = init_conv1d(Stream::new(1, "weights"), 4, 8, 3, &device);
    layer.bias = Some(Param::from_tensor(Tensor::zeros([7], &device)));
    conv1d(Tensor::zeros([2, 5, 4], &device), &layer, Precision::F32, None);
}

#[test]
fn what_reaches_beyond_all_memory_is_refused() {
    let device = Device::flex();
    let layer = || init_conv1d(Stream::new(1, "weights"), 4, 4, 4, &device);
    let same = PaddingConfig1d::Same;
    // Some of their products wrap around to small numbers.
    let cases = [
        Conv1d { dilation: 1_537_228_672_809_129_301, padding: same.clone(), ..layer() },
        Conv1d { dilation: 1 << 62, padding: same.clone(), ..layer() },
        Conv1d { stride: 1 << 59, padding: same, ..layer() },
        Conv1d { padding: PaddingConfig1d::Explicit(usize::MAX, 1), ..layer() },
    ];
    for layer in cases {
        let run = || conv1d(Tensor::<3>::ones([1, 96, 4], &device), &layer, Precision::F32, None);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
        let said = panic.downcast_ref::<String>().unwrap();
        assert!(said.contains("reaches over more numbers than any memory has"), "{said}");
    }
}

#[test]
fn a_result_without_a_step_has_the_type_of_the_input() {
    let device = Device::flex();
    let layer = init_conv1d(Stream::new(1, "weights"), 4, 8, 5, &device);
    let layer = Conv1d { padding: PaddingConfig1d::Valid, ..layer };
    let x = Tensor::<3>::zeros([2, 3, 4], (&device, DType::F16));
    let y = conv1d(x, &layer, Precision::F16, None);
    assert_eq!((y.dims(), y.dtype()), ([2, 0, 8], DType::F16));
}
