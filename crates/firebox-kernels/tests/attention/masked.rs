//! Attention with masks: against float64, against lengths, and what it must not read.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use burn::tensor::{DType, Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{Attention, CpuKernels, attention, attention_masked, self_attention_masked};

use crate::case::{
    is_clear_outside, mask, masked, problem, run, run_packed, settings, tensor, values,
    with_nan_outside,
};
use crate::numbers::check;
use crate::reference::Problem;

#[test]
fn sequences_with_gaps() {
    let sizes = [[6, 20, 2, 16], [6, 70, 3, 9], [5, 1, 1, 4], [12, 7, 1, 33], [1, 150, 1, 16]];
    for (seed, sizes) in sizes.into_iter().enumerate() {
        for causal in [false, true] {
            check(&Problem { causal, ..masked(200 + seed as u64, sizes) }, 1e-5);
        }
    }
}

#[test]
fn masks_of_queries_and_keys_apart() {
    for (seed, sizes) in
        [[6, 19, 30, 3, 9], [6, 40, 11, 2, 16], [7, 12, 12, 1, 8]].into_iter().enumerate()
    {
        let seed = 210 + 2 * seed as u64;
        let [batch, queries, keys, ..] = sizes;
        let of_queries = Some(mask(seed, [batch, queries]));
        let of_keys = Some(mask(seed + 1, [batch, keys]));
        let both = Problem { query_mask: of_queries, key_mask: of_keys, ..problem(seed, sizes) };
        check(&both, 1e-5);
        check(&Problem { query_mask: None, ..both.clone() }, 1e-5);
        check(&Problem { key_mask: None, ..both }, 1e-5);
    }
}

#[test]
fn dropout_counts_valid_rows() {
    let stream = Some(Stream::new(5, "probabilities"));
    for causal in [false, true] {
        let dropped = Problem { dropout: 0.3, causal, stream, ..masked(220, [6, 40, 2, 16]) };
        check(&dropped, 1e-5);
    }
}

#[test]
fn masks_that_differ_and_leave_a_causal_rule_right() {
    let lengths = |lengths: [usize; 2], rows: usize| -> Vec<bool> {
        lengths.iter().flat_map(|length| (0..rows).map(move |row| row < *length)).collect()
    };
    let in_front = Problem {
        causal: true,
        query_mask: Some(lengths([9, 3], 9)),
        key_mask: Some(lengths([2, 12], 12)),
        ..problem(230, [2, 9, 12, 2, 8])
    };
    check(&in_front, 1e-5);
    // No query comes as far as the gap.
    let behind = Problem {
        causal: true,
        key_mask: Some(vec![true, true, true, false, true, true]),
        ..problem(231, [1, 3, 6, 1, 8])
    };
    check(&behind, 1e-5);
}

#[test]
fn valid_rows_in_front_are_lengths_to_the_bit() {
    let lengths = vec![20, 1, 0, 13];
    let in_front = lengths.iter().flat_map(|length| (0..20).map(move |row| row < *length));
    let in_front: Vec<bool> = in_front.collect();
    let by_length = Problem {
        query_lengths: Some(lengths.clone()),
        key_lengths: Some(lengths),
        ..problem(240, [4, 20, 20, 2, 16])
    };
    let by_mask = Problem {
        query_lengths: None,
        key_lengths: None,
        query_mask: Some(in_front.clone()),
        key_mask: Some(in_front),
        ..by_length.clone()
    };
    let all = Problem {
        query_mask: Some(vec![true; 80]),
        key_mask: Some(vec![true; 80]),
        ..problem(241, [4, 20, 20, 2, 16])
    };
    let none = Problem { query_mask: None, key_mask: None, ..all.clone() };
    for kernels in CpuKernels::available() {
        for (a, b) in [(&by_length, &by_mask), (&none, &all)] {
            let both = |problem: &Problem| {
                kernels
                    .force(|| (run(problem, Precision::F32), run_packed(problem, Precision::F32)))
            };
            assert_eq!(both(a), both(b), "{kernels:?}");
        }
    }
}

#[test]
fn what_a_mask_leaves_out_may_hold_anything_and_gives_zeros() {
    let cross = Problem {
        query_mask: Some(mask(250, [6, 19])),
        key_mask: Some(mask(251, [6, 30])),
        ..problem(250, [6, 19, 30, 2, 16])
    };
    let causal = Problem { causal: true, ..masked(252, [6, 20, 2, 16]) };
    for kernels in CpuKernels::available() {
        for precision in [Precision::F32, Precision::Bf16] {
            for clean in [&cross, &causal] {
                let dirty = with_nan_outside(clean);
                let (a, b) = kernels.force(|| (run(clean, precision), run(&dirty, precision)));
                assert!(is_clear_outside(clean, &b), "{kernels:?}, {precision:?}");
                assert_eq!(a, b, "{kernels:?}, {precision:?}");
            }
            let dirty = with_nan_outside(&causal);
            let packed = kernels.force(|| run_packed(&dirty, precision));
            assert!(is_clear_outside(&causal, &packed), "{kernels:?}, {precision:?}");
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let stream = Some(Stream::new(1, "dropout"));
    let problem = Problem { dropout: 0.2, stream, ..masked(260, [7, 300, 3, 16]) };
    for kernels in CpuKernels::available().into_iter().skip(1) {
        let results = [1, 2, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let run = || kernels.force(|| run_packed(&problem, Precision::F32));
            pool.expect("a pool").install(run)
        });
        assert!(results[0] == results[1] && results[0] == results[2], "{kernels:?}");
    }
}

#[test]
fn without_a_graph_it_is_the_same() {
    let problem = masked(270, [6, 20, 2, 16]);
    let mask = problem.key_mask.as_deref();
    let shape = [6, 20, 32];
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let parts = [0, 1, 2].map(|at| tensor(&problem.values[at], shape, &Device::flex()));
            let qkv = Tensor::cat(parts.to_vec(), 2);
            let settings = settings(&problem, Precision::F32);
            let out = values(self_attention_masked(qkv, mask, None, &settings));
            let [expected, ..] = run_packed(&problem, Precision::F32);
            // Burn's own products sum in another order where they keep a graph.
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
            let same = match kernels {
                CpuKernels::Composed => out.iter().zip(&expected).all(near),
                _ => out == expected,
            };
            assert!(same && out.len() == expected.len(), "{kernels:?}");
        });
    }
}

#[test]
fn nothing_gives_nothing() {
    let device = Device::flex();
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for shape in [[0, 5, 12], [2, 0, 12], [2, 5, 0]] {
                let x = Tensor::<3>::zeros(shape, &device);
                let mask = mask(280, [shape[0], shape[1]]);
                let out = self_attention_masked(x, Some(&mask), None, &Attention::new(2));
                assert_eq!(out.dims(), [shape[0], shape[1], shape[2] / 3]);
            }
            let q = Tensor::<3>::ones([1, 3, 8], &device);
            let none = Tensor::<3>::ones([1, 0, 8], &device);
            let mask = [false, true, true];
            let settings = Attention::new(2);
            let out =
                attention_masked(q, none.clone(), none, Some(&mask[..]), None, None, &settings);
            assert_eq!(values(out), vec![0.0; 24]);
        });
    }
}

thread_local! {
    /// Where this thread panicked last.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

#[test]
fn what_is_hidden_stays_hidden_in_half_precision() {
    let of = |numbers: [f32; 2], dtype| {
        let numbers = Tensor::<1>::from_floats(numbers, &Device::flex());
        numbers.reshape([1, 2, 1]).cast(dtype)
    };
    // Scores near the end of f16, and beyond it.
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for large in [1.0, 100.0, 247.0, 300.0] {
            let settings = Attention { causal: true, scale: Some(1.0), ..Attention::new(1) };
            let (q, k, v) =
                (of([large, 0.0], dtype), of([-large, -large], dtype), of([1.0, 2.0], dtype));
            let out = attention(q.clone(), k.clone(), v.clone(), None, None, None, &settings);
            let [first, second] = values(out)[..] else { panic!("two numbers") };
            // The first sees itself alone.
            let infinite = dtype == DType::F16 && large > 256.0;
            assert!(
                first == 1.0 || (infinite && (first == 0.0 || first.is_nan())),
                "{first} {large}"
            );
            assert!((second - 1.5).abs() < 1e-2, "{second} {large} {dtype:?}");
            let settings = Attention { causal: false, ..settings };
            let out = attention(q, k, v, None, Some(&[1]), None, &settings);
            let first = values(out)[0];
            assert!(
                first == 1.0 || (infinite && (first == 0.0 || first.is_nan())),
                "{first} {large}"
            );
        }
    }
}

/// In which file a call panics, as the message has it.
fn place_of(call: impl FnOnce()) -> Option<String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PLACE.set(panic.location().map(|place| place.file().to_owned()));
            before(panic);
        }));
    });
    PLACE.set(None);
    catch_unwind(AssertUnwindSafe(call)).expect_err("it is refused");
    PLACE.take()
}

#[test]
fn a_refusal_names_the_line_of_the_caller() {
    let zeros = |shape: [usize; 3]| Tensor::<3>::zeros(shape, &Device::flex());
    let settings = Attention { causal: true, ..Attention::new(2) };
    let cross =
        |keys: usize, values: usize, query_mask: Option<&[bool]>, key_mask: Option<&[bool]>| {
            let (q, k, v) = (zeros([2, 3, 8]), zeros([2, keys, 8]), zeros([2, values, 8]));
            attention_masked(q, k, v, query_mask, key_mask, None, &settings);
        };
    let unequal = [true, true, false, false, true, true];
    let here = Some(file!().to_owned());
    assert_eq!(place_of(|| cross(5, 4, None, None)), here);
    assert_eq!(place_of(|| cross(3, 3, Some(&[true; 5][..]), None)), here);
    assert_eq!(place_of(|| cross(3, 3, None, Some(&unequal[..]))), here);
    for (width, entries) in [(24, 5), (25, 6), (21, 6)] {
        let (x, mask) = (zeros([2, 3, width]), vec![true; entries]);
        let place = place_of(|| {
            self_attention_masked(x, Some(&mask[..]), None, &settings);
        });
        assert_eq!(place, here, "{width} {entries}");
    }
}

#[test]
#[should_panic(
    expected = "2 with 3 rows a sample and a sequence mask of 5 entries: one is needed for \
                           each row, 6"
)]
fn a_mask_must_have_an_entry_for_each_step() {
    let x = Tensor::<3>::zeros([2, 3, 24], &Device::flex());
    self_attention_masked(x, Some(&[true; 5][..]), None, &Attention::new(2));
}

#[test]
#[should_panic(expected = "5 rows a sample and a key mask of 6 entries")]
fn a_mask_of_keys_must_be_as_long_as_they() {
    let zeros = |rows| Tensor::<3>::zeros([2, rows, 8], &Device::flex());
    let mask = Some(&[true; 6][..]);
    attention_masked(zeros(3), zeros(5), zeros(5), mask, mask, None, &Attention::new(2));
}

#[test]
#[should_panic(expected = "keys [2, 5, 8] and values [2, 4, 8]")]
fn keys_and_values_must_fit() {
    let zeros = |rows| Tensor::<3>::zeros([2, rows, 8], &Device::flex());
    attention_masked(zeros(3), zeros(5), zeros(4), None, None, None, &Attention::new(2));
}

#[test]
#[should_panic(expected = "query 0 of sample 1 has 0 valid keys up to it and would see 1")]
fn a_causal_rule_needs_equal_masks() {
    let x = || Tensor::<3>::zeros([2, 3, 8], &Device::flex());
    let mask = [true, true, false, false, true, true];
    let settings = Attention { causal: true, ..Attention::new(2) };
    attention_masked(x(), x(), x(), None, Some(&mask[..]), None, &settings);
}
