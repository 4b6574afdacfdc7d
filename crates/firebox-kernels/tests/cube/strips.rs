//! Attention on tensor cores, beside float64 and beside the kernels whose threads have a row each. Which
//! devices have them, and how to run this without a GPU, is said in `tensor_cores.rs`.

use burn::tensor::{DType, Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, GpuKernels, attention, self_attention};

use super::alone;
use super::case::{NAMES, problem, relative_error, settings, tensor, values};
use super::reference::Problem;

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// The half-precision types in which attention on this device multiplies on tensor cores; says which it
/// has not.
fn types(device: &Device, size: usize) -> Vec<DType> {
    let takes = |dtype: &DType| {
        let taken = GpuKernels::attends_on_tensor_cores(device, *dtype, size);
        if !taken {
            println!("skipped: no tensor cores take heads of {size} in {dtype:?} on this device");
        }
        taken
    };
    HALVES.into_iter().filter(takes).collect()
}

/// The problem with numbers that this type holds exactly.
pub fn rounded(problem: &Problem, dtype: DType, device: &Device) -> Problem {
    let mut rounded = problem.clone();
    for numbers in &mut rounded.values {
        let shape = [1, 1, numbers.len()];
        let there = tensor(numbers, shape, device).cast(dtype).cast(DType::F32);
        *numbers = values(there).into_iter().map(f64::from).collect();
    }
    rounded
}

/// The result and the gradients of q, k and v, of three tensors or of all in one.
pub fn run(problem: &Problem, dtype: DType, packed: bool, device: &Device) -> [Vec<f32>; 4] {
    let device = device.clone().autodiff();
    let width = problem.width();
    let half = |index: usize| {
        let shape = [problem.batch, problem.rows()[index], width];
        tensor(&problem.values[index], shape, &device).cast(dtype).detach()
    };
    let plain = |tensor: Tensor<3>| values(tensor.cast(DType::F32));
    let settings = settings(problem, Precision::F32);
    let (queries, keys) = (problem.query_lengths.as_deref(), problem.key_lengths.as_deref());
    if packed {
        let qkv = Tensor::cat([0, 1, 2].map(half).to_vec(), 2).require_grad();
        let out = self_attention(qkv.clone(), keys, problem.stream, &settings);
        let grads = (out.clone() * half(3)).sum().backward();
        let d = qkv.grad(&grads).expect("a gradient");
        let part = |index: usize| plain(d.clone().narrow(2, index * width, width));
        return [plain(out), part(0), part(1), part(2)];
    }
    let [q, k, v] = [0, 1, 2].map(|index| half(index).require_grad());
    let out = attention(q.clone(), k.clone(), v.clone(), queries, keys, problem.stream, &settings);
    assert_eq!(out.dtype(), dtype);
    let grads = (out.clone() * half(3)).sum().backward();
    let [dq, dk, dv] = [q, k, v].map(|x| plain(x.grad(&grads).expect("a gradient")));
    [plain(out), dq, dk, dv]
}

/// Close to float64, as three tensors and, with the same bits, as one.
#[track_caller]
fn check(device: &Device, problem: &Problem) {
    for dtype in types(device, problem.size) {
        let problem = rounded(problem, dtype, device);
        let exact = problem.solve();
        let ours = run(&problem, dtype, false, device);
        let plain = GpuKernels::Resident.force(|| run(&problem, dtype, false, device));
        let composed = CpuKernels::Composed.force(|| run(&problem, dtype, false, device));
        let Problem { batch, queries, keys, heads, size, .. } = problem;
        let what = format!("{dtype:?}, {batch} × {queries} × {keys}, {heads} heads of {size}");
        let unit = if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
        for index in 0..4 {
            let of = |run: &[Vec<f32>; 4]| relative_error(&run[index], &exact[index]);
            let (error, plain, composed) = (of(&ours), of(&plain), of(&composed));
            let name = NAMES[index];
            println!(
                "{what}: {name} {error:.1e}, a row a thread {plain:.1e}, composed {composed:.1e}"
            );
            // What rounding the probabilities, the gradients of scores and the result alone may be off
            // by; composed operations round more, but not everywhere.
            let bound = (1.5 * composed).max(2.0 * unit);
            assert!(error <= bound, "{what}: {name} is off by {error:.2e}, more than {bound:.2e}");
        }
        if problem.packs() {
            assert_eq!(run(&problem, dtype, true, device), ours, "{what}: other bits packed");
        }
        assert_eq!(run(&problem, dtype, false, device), ours, "{what}: other bits again");
    }
}

#[test]
fn strips_of_sizes_that_models_have_and_odd_ones() {
    alone(|device| {
        let sizes = [
            [3, 105, 105, 2, 16],
            [1, 130, 70, 1, 64],
            [1, 9, 40, 1, 128],
            [1, 1, 1, 1, 1],
            [2, 1, 7, 1, 3],
            [1, 2, 1, 3, 5],
            [3, 17, 9, 2, 17],
            [1, 63, 65, 1, 33],
            [1, 33, 31, 2, 100],
        ];
        for (seed, sizes) in sizes.into_iter().enumerate() {
            check(&device, &problem(210 + seed as u64, sizes));
        }
    });
}

#[test]
fn strips_with_lengths_and_causal() {
    alone(|device| {
        let padded = Problem {
            query_lengths: Some(vec![40, 1, 0, 13, 70]),
            key_lengths: Some(vec![40, 1, 0, 13, 70]),
            ..problem(240, [5, 40, 40, 2, 16])
        };
        check(&device, &padded);
        check(&device, &Problem { causal: true, ..padded });
        let apart = Problem {
            query_lengths: Some(vec![5, 0, 39]),
            key_lengths: Some(vec![90, 4, 0]),
            ..problem(241, [3, 39, 90, 3, 9])
        };
        check(&device, &apart);
        for (seed, sizes) in
            [[2, 105, 105, 1, 16], [1, 20, 50, 1, 32], [1, 150, 30, 1, 8], [1, 1, 1, 1, 16]]
                .into_iter()
                .enumerate()
        {
            check(&device, &Problem { causal: true, ..problem(250 + seed as u64, sizes) });
        }
    });
}

#[test]
fn strips_drop_what_the_stream_says() {
    alone(|device| {
        let stream = Some(Stream::new(5, "probabilities"));
        for (seed, (dropout, causal, size)) in
            [(0.2, false, 16), (0.5, true, 8), (0.97, false, 24), (1.0, true, 16)]
                .into_iter()
                .enumerate()
        {
            let problem = problem(280 + seed as u64, [2, 70, 70, 2, size]);
            check(&device, &Problem { dropout, causal, stream, ..problem });
        }
        for scale in [0.03, -0.5, 0.0] {
            check(&device, &Problem { scale: Some(scale), ..problem(290, [1, 21, 48, 2, 16]) });
        }
    });
}

#[test]
fn scores_that_grow_from_block_to_block() {
    alone(|device| {
        // The first numbers of query and key make scores that are some ten further with every block of 32
        // (or 16) keys: up for two thirds of the queries, down for the others. Then the largest is found
        // anew in every block. A score that is far from all others leaves one key with everything.
        let growing = |seed, slope: f64| {
            let mut growing = problem(seed, [1, 140, 140, 1, 40]);
            for row in 0..140 {
                growing.values[1][row * 40] = (slope * row as f64 - 60.0).clamp(-60.0, 60.0);
                growing.values[0][row * 40] = if row % 3 == 0 { -2.0 } else { 2.0 };
            }
            growing
        };
        check(&device, &growing(300, 0.9));
        check(&device, &growing(301, 30.0));
        let stream = Some(Stream::new(6, "probabilities"));
        let masked = Problem {
            causal: true,
            dropout: 0.2,
            stream,
            query_lengths: Some(vec![131]),
            key_lengths: Some(vec![131]),
            ..growing(302, 0.9)
        };
        check(&device, &masked);
    });
}

#[test]
fn strips_do_not_read_padding_and_nan_spoils_who_sees_it() {
    alone(|device| {
        for dtype in types(&device, 16) {
            let lengths = Some(vec![4, 0, 20]);
            let clean = Problem {
                query_lengths: lengths.clone(),
                key_lengths: lengths,
                ..problem(310, [3, 20, 20, 2, 16])
            };
            let mut dirty = clean.clone();
            let width = dirty.width();
            for values in &mut dirty.values {
                values[4 * width..40 * width].fill(f64::NAN);
            }
            let ours = run(&clean, dtype, false, &device);
            assert_eq!(run(&dirty, dtype, false, &device), ours);
            assert!(ours.iter().all(|part| part[4 * width..40 * width].iter().all(|v| *v == 0.0)));
            let mut spoilt = problem(311, [2, 40, 40, 2, 16]);
            // Key 7 in head 1 of sample 0, value 30 in head 0 of sample 1.
            spoilt.values[1][7 * width + 16] = f64::NAN;
            spoilt.values[2][70 * width + 3] = f64::NAN;
            let [out, ..] = run(&spoilt, dtype, false, &device);
            for (index, value) in out.iter().enumerate() {
                let (sample, column) = (index / (40 * width), index % width);
                let nan = if sample == 0 { column >= 16 } else { column == 3 };
                assert_eq!(value.is_nan(), nan, "{sample} {column}");
            }
            let [out, ..] = run(&Problem { causal: true, ..spoilt }, dtype, false, &device);
            for (index, value) in out.iter().enumerate().take(40 * width) {
                // A query before the key does not see it.
                assert_eq!(value.is_nan(), index / width >= 7 && index % width >= 16, "{index}");
            }
        }
    });
}

#[test]
fn random_strips() {
    alone(|device| {
        let mut draws = Stream::new(7, "strips").draws();
        for seed in 0..6 {
            let mut below = |most: usize| 1 + (draws.uniform() * most as f32) as usize % most;
            let sizes = [below(3), below(90), below(90), below(3), below(70)];
            let lengths = |rows: usize, below: &mut dyn FnMut(usize) -> usize| {
                (seed % 2 == 0).then(|| (0..sizes[0]).map(|_| below(rows + 1) - 1).collect())
            };
            let random = Problem {
                query_lengths: lengths(sizes[1], &mut below),
                key_lengths: lengths(sizes[2], &mut below),
                causal: seed % 3 == 0,
                dropout: if seed % 4 < 2 { 0.3 } else { 0.0 },
                stream: Some(Stream::new(seed, "probabilities")),
                ..problem(400 + seed, sizes)
            };
            check(&device, &random);
        }
    });
}
