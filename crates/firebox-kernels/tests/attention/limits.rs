//! What is not a number in range: NaN, padding, denormals, nothing at all; and threads.

use burn::tensor::{Device, Gradients, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Attention, CpuKernels, attention, attention_masked, self_attention, self_attention_masked,
};

use crate::case::{noise, problem, relative_error, run, run_packed, tensor, values};
use crate::reference::Problem;

#[test]
fn padding_may_hold_anything_and_gives_zeros() {
    let lengths = Some(vec![4, 0, 20]);
    let clean = Problem {
        query_lengths: lengths.clone(),
        key_lengths: lengths.clone(),
        ..problem(1, [3, 20, 20, 2, 16])
    };
    let mut dirty = clean.clone();
    let width = dirty.width();
    for values in &mut dirty.values {
        values[4 * width..40 * width].fill(f64::NAN);
    }
    for kernels in CpuKernels::available() {
        for precision in [Precision::F32, Precision::Bf16] {
            let (a, b) = kernels.force(|| (run_packed(&clean, precision), run(&dirty, precision)));
            for (a, b) in a.iter().zip(&b) {
                assert!(b[4 * width..40 * width].iter().all(|v| *v == 0.0), "{kernels:?}");
                assert!(b.iter().all(|v| v.is_finite()), "{kernels:?}");
                assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{kernels:?}");
            }
        }
    }
}

#[test]
fn nan_spoils_the_queries_that_see_it() {
    let mut spoilt = problem(2, [2, 40, 40, 2, 16]);
    let width = spoilt.width();
    // Key 7 in head 1 of sample 0, value 30 in head 0 of sample 1.
    spoilt.values[1][7 * width + 16] = f64::NAN;
    spoilt.values[2][70 * width + 3] = f64::NAN;
    for kernels in CpuKernels::available() {
        for precision in [Precision::F32, Precision::Bf16] {
            let [out, ..] = kernels.force(|| run(&spoilt, precision));
            for (index, value) in out.iter().enumerate() {
                let (sample, column) = (index / (40 * width), index % width);
                let nan = if sample == 0 { column >= 16 } else { column == 3 };
                assert_eq!(value.is_nan(), nan, "{kernels:?}, {precision:?}: {sample} {column}");
            }
        }
    }
    let causal = Problem { causal: true, ..spoilt };
    for kernels in CpuKernels::available() {
        let [out, ..] = kernels.force(|| run(&causal, Precision::F32));
        for (index, value) in out.iter().enumerate().take(40 * width) {
            // A query before the key does not see it.
            let nan = index / width >= 7 && index % width >= 16;
            assert_eq!(value.is_nan(), nan, "{kernels:?}: {index}");
        }
    }
    // An infinite score is no weight.
    let mut infinite = problem(3, [1, 20, 20, 1, 4]);
    infinite.values[0][0] = f64::INFINITY;
    for kernels in CpuKernels::available() {
        let [out, ..] = kernels.force(|| run(&infinite, Precision::F32));
        assert!(out[..4].iter().all(|v| v.is_nan()) && out[4..].iter().all(|v| v.is_finite()));
    }
}

#[test]
fn denormals_do_not_disturb() {
    let mut small = problem(4, [1, 33, 33, 2, 16]);
    for values in &mut small.values[..3] {
        values.iter_mut().for_each(|v| *v = f64::from((*v * 1e-39) as f32));
    }
    let exact = small.solve();
    for kernels in CpuKernels::available() {
        let [out, _, _, dv] = kernels.force(|| run(&small, Precision::F32));
        assert!(relative_error(&dv, &exact[3]) < 1e-5, "{kernels:?}");
        // A step of denormal numbers is 1.4e-45.
        let mut off = out.iter().zip(&exact[0]).map(|(a, e)| (f64::from(*a) - e).abs());
        assert!(off.all(|off| off < 4e-44), "{kernels:?}");
    }
}

#[test]
fn nothing_gives_nothing() {
    let device = Device::flex();
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for shape in [[0, 5, 12], [2, 0, 12], [2, 5, 0]] {
                let x = Tensor::<3>::zeros(shape, &device);
                let out = self_attention(x, None, None, &Attention::new(2));
                assert_eq!(out.dims(), [shape[0], shape[1], shape[2] / 3]);
            }
            let q = Tensor::<3>::ones([2, 3, 8], &device);
            let none = Tensor::<3>::ones([2, 0, 8], &device);
            let out = attention(q, none.clone(), none, None, None, None, &Attention::new(2));
            assert_eq!(values(out), vec![0.0; 48]);
        });
    }
}

#[test]
fn of_nothing_all_that_goes_in_has_zeros_for_its_gradient() {
    let device = Device::flex().autodiff();
    let settings = Attention::new(2);
    let zeros = |x: &Tensor<3>, all: &Gradients| {
        let d = x.grad(all).expect("tracked");
        d.dims() == x.dims() && values(d).iter().all(|d| *d == 0.0)
    };
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for shape in [[0, 5, 12], [2, 0, 12], [2, 5, 0]] {
                let x = Tensor::<3>::zeros(shape, &device).require_grad();
                let mask = vec![true; shape[0] * shape[1]];
                for out in [
                    self_attention(x.clone(), None, None, &settings),
                    self_attention_masked(x.clone(), Some(&mask), None, &settings),
                ] {
                    assert_eq!(out.dims(), [shape[0], shape[1], shape[2] / 3]);
                    let all = out.sum().backward();
                    assert!(zeros(&x, &all), "{kernels:?} {shape:?}");
                }
            }
            // No sample, no query, no number; no key, where what queries hold must not matter.
            for [batch, queries, keys, width] in
                [[0, 3, 4, 8], [2, 0, 4, 8], [2, 3, 4, 0], [2, 3, 0, 8], [2, 0, 0, 8]]
            {
                let leaf = |rows, value: f64| {
                    Tensor::<3>::full([batch, rows, width], value, &device).require_grad()
                };
                let other = if keys == 0 { f64::NAN } else { 1.0 };
                let (q, k, v) = (leaf(queries, other), leaf(keys, 1.0), leaf(keys, 1.0));
                let masks = [vec![true; batch * queries], vec![true; batch * keys]];
                let (a, b, c) = (q.clone(), k.clone(), v.clone());
                let plain = attention(a, b, c, None, None, None, &settings);
                let (a, b, c) = (q.clone(), k.clone(), v.clone());
                let [of_queries, of_keys] = masks.each_ref().map(|mask| Some(&mask[..]));
                let masked = attention_masked(a, b, c, of_queries, of_keys, None, &settings);
                for out in [plain, masked] {
                    assert_eq!(out.dims(), [batch, queries, width]);
                    assert!(values(out.clone()).iter().all(|y| *y == 0.0), "{kernels:?}");
                    let all = out.sum().backward();
                    let fits = [&q, &k, &v].map(|x| zeros(x, &all));
                    assert_eq!(fits, [true; 3], "{kernels:?} {batch} {queries} {keys} {width}");
                }
            }
        });
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let problem = Problem {
        dropout: 0.2,
        stream: Some(Stream::new(1, "dropout")),
        ..problem(5, [7, 70, 70, 3, 16])
    };
    for kernels in CpuKernels::available().into_iter().skip(1) {
        for precision in [Precision::F32, Precision::Bf16] {
            let results = [1, 2, 3].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                pool.expect("a pool").install(|| kernels.force(|| run_packed(&problem, precision)))
            });
            assert!(results[0] == results[1] && results[0] == results[2], "{kernels:?}");
        }
    }
}

#[test]
fn strided_operands_are_read_where_they_are() {
    let device = Device::flex();
    let whole = tensor(&noise(Stream::new(6, "x"), 5 * 11 * 60, 1.0), [5, 11, 60], &device);
    let view = whole.clone().swap_dims(0, 1).narrow(1, 1, 3).narrow(2, 20, 16);
    let dense = Tensor::<3>::from_data(view.clone().into_data(), &device);
    let turned = whole.narrow(2, 0, 11).swap_dims(1, 2).narrow(0, 0, 3).narrow(2, 0, 8);
    let dense_turned = Tensor::<3>::from_data(turned.clone().into_data(), &device);
    let settings = Attention::new(2);
    let run = |x: Tensor<3>| {
        values(attention(x.clone(), x.clone(), x, None, Some(&[3; 11][..]), None, &settings))
    };
    assert_eq!(run(view), run(dense));
    let run =
        |x: Tensor<3>| values(attention(x.clone(), x.clone(), x, None, None, None, &settings));
    assert_eq!(run(turned), run(dense_turned));
}

#[test]
#[should_panic(expected = "keys [2, 5, 8] and values [2, 4, 8]")]
fn keys_and_values_must_fit() {
    let zeros = |rows| Tensor::<3>::zeros([2, rows, 8], &Device::flex());
    attention(zeros(3), zeros(5), zeros(4), None, None, None, &Attention::new(2));
}

#[test]
#[should_panic(expected = "5 heads of a width of 8")]
fn heads_must_fit() {
    let x = Tensor::<3>::zeros([2, 3, 24], &Device::flex());
    self_attention(x, None, None, &Attention::new(5));
}

#[test]
#[should_panic(expected = "batch of 2 with 1 sequence lengths")]
fn lengths_must_fit() {
    let x = Tensor::<3>::zeros([2, 3, 24], &Device::flex());
    self_attention(x, Some(&[3]), None, &Attention::new(2));
}

#[test]
#[should_panic(expected = "dropout probability NaN")]
fn dropout_must_be_a_probability() {
    let x = Tensor::<3>::zeros([2, 3, 24], &Device::flex());
    let settings = Attention { dropout: f64::NAN, ..Attention::new(2) };
    self_attention(x, None, None, &settings);
}
