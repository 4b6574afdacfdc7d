//! LSTM and GRU on tensor cores. Without a GPU, Mesa's software driver has them in f16 (lavapipe's
//! `VK_KHR_cooperative_matrix`, tiles of 8 by 8; seen with Mesa 26.1.6, not there in 22.3.6), through SPIR-V:
//!
//! ```text
//! cargo test -p firebox-kernels --features cube,burn/vulkan --test cube tensor_cores
//! cargo test -p firebox-kernels --features cube,autotune,burn/vulkan --test cube the_tile
//! ```
//!
//! Where the system's Mesa is older, the program runs in a newer one's root: `debootstrap trixie FOLDER`, in
//! it `mesa-vulkan-drivers` of trixie-backports, the program copied there, and `chroot FOLDER /PROGRAM`. Mesa
//! takes up to a minute for a tile with weights in registers.
//!
//! `tests/cuda/compile.sh` shows what a CUDA device would get, and `tests/cuda/recurrent.sh` computes it beside float64.

use burn::tensor::{DType, Device};
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, GpuKernels, GruConfig, NoGpuKernels};

use super::alone;
use super::recurrent::{config, gru, in_type};
use super::support::case::Case;
use super::support::reference;
use super::support::relative_error;

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// The half-precision types in which the device has tensor cores that take such a layer; says which it
/// has not.
fn types(device: &Device, directions: usize, batch: usize, hidden: usize) -> Vec<DType> {
    let takes = |dtype: &DType| {
        let taken = GpuKernels::TensorCores
            .force(|| GpuKernels::of_layer(device, *dtype, directions, batch, hidden));
        if taken.is_err() {
            println!("skipped: no tensor cores take {hidden} units in {dtype:?} on this device");
        }
        taken.is_ok()
    };
    HALVES.into_iter().filter(takes).collect()
}

/// The tiles of the forward pass, each with that of the backward pass which runs with it.
fn tiles(device: &Device, dtype: DType, case: &Case) -> Vec<[String; 2]> {
    let (directions, batch) = (case.config.directions(), case.sizes.batch);
    let [forward, backward] =
        GpuKernels::TensorCores.tiles(device, dtype, directions, batch, case.config.hidden);
    let at = |tiles: &[String], index| tiles.get(index).or(tiles.last()).expect("a tile").clone();
    let count = forward.len().max(backward.len());
    (0..count).map(|index| [at(&forward, index), at(&backward, index)]).collect()
}

/// What [`in_type`] gives, of the reference.
fn expected(case: &Case) -> Vec<Vec<f64>> {
    let (outputs, grads) = reference::run(&case.sizes, &case.inputs, Some(&case.d));
    let mut expected = vec![outputs.output, outputs.h_n, outputs.c_n, grads.input];
    for direction in grads.directions {
        expected.extend([direction.weight_ih, direction.weight_hh]);
        expected.extend([direction.bias_ih, direction.bias_hh]);
    }
    expected
}

/// Every tile of the case: close to the reference, and all with the same bits.
#[track_caller]
fn check(device: &Device, case: &Case, places: &mut Vec<String>) {
    let device = device.clone().autodiff();
    for dtype in types(&device, case.config.directions(), case.sizes.batch, case.config.hidden) {
        let expected = expected(case);
        let composed = CpuKernels::Composed.force(|| in_type(dtype, case, &device));
        let tiles = tiles(&device, dtype, case);
        let mut first: Option<Vec<(String, Vec<f64>)>> = None;
        for (index, tile) in tiles.iter().enumerate() {
            let tile = tile.join(" and back ");
            let actual =
                GpuKernels::TensorCores.force_tile(index, || in_type(dtype, case, &device));
            assert_eq!(actual.len(), expected.len());
            let mut most: f64 = 0.0;
            for (((part, actual), (_, composed)), expected) in
                actual.iter().zip(&composed).zip(&expected)
            {
                let (error, theirs) =
                    (relative_error(actual, expected), relative_error(composed, expected));
                // What rounds inputs, weights and gates alone may be off by, too, where a sum is short.
                let unit = if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
                let bound = (1.5 * theirs).max(3.0 * unit);
                most = most.max(error / bound);
                assert!(
                    error <= bound,
                    "{dtype:?}, {tile}: {part} is off by {error:.2e}, composed {theirs:.2e}: {:?}",
                    case.sizes
                );
            }
            println!("{dtype:?}, {tile}: {most:.2} of the error allowed");
            match &first {
                Some(first) => assert_eq!(&actual, first, "{dtype:?}, {tile}: other bits"),
                None => first = Some(actual),
            }
        }
        places.extend(tiles.into_iter().flatten());
    }
}

#[test]
fn every_tile_is_as_exact_as_the_composed_layer_and_gives_the_same_bits() {
    alone(|device| {
        let mut places = vec![];
        let lengths: Vec<_> = (0..19).map(|i| i * 7 % 10).collect();
        check(&device, &Case::new(config(3, 8, 1, true), &lengths, 9, 1), &mut places);
        check(&device, &Case::new(config(5, 17, 1, false), &lengths, 9, 2), &mut places);
        check(&device, &Case::new(config(1, 1, 1, true), &[1], 1, 4), &mut places);
        // Two directions of many samples: more than one tile of samples in a cube.
        let lengths: Vec<_> = (0..300).map(|i| i % 5).collect();
        check(&device, &Case::new(config(3, 20, 1, true), &lengths, 4, 5), &mut places);
        for place in ["registers", "shared memory"] {
            let found = places.iter().any(|tile| tile.ends_with(place));
            assert!(found || places.is_empty(), "no tile has its weights in {place}: {places:?}");
        }
    });
}

#[test]
fn many_units_are_read_from_global_memory_by_planes_of_several_columns() {
    alone(|device| {
        // So many weights that no nearer place is left; more units a thread than are read ahead; columns
        // that planes cannot share evenly.
        let mut places = vec![];
        check(&device, &Case::new(config(1, 136, 1, false), &[3, 2], 3, 6), &mut places);
        if !places.iter().any(|tile| tile.contains("global memory")) {
            println!("skipped: this device has nearer room for the weights of 136 units");
        }
    });
}

#[test]
fn weights_are_in_registers_in_shared_and_in_global_memory_at_once() {
    alone(|device| {
        let case = Case::new(config(2, 264, 1, true), &[5, 3, 0, 4, 5, 1, 2, 5, 4], 5, 7);
        let mixed = |dtype| {
            let tiles = tiles(&device, dtype, &case);
            tiles.concat().iter().any(|tile| tile.contains(" of "))
        };
        if !HALVES.into_iter().any(mixed) {
            return println!("skipped: this device has them in one place");
        }
        check(&device, &case, &mut vec![]);
        // Planes that cannot share tiles of rows evenly, and more samples than one tile has.
        let lengths: Vec<_> = (0..70).map(|i| i % 4).collect();
        check(&device, &Case::new(config(2, 200, 1, false), &lengths, 3, 8), &mut vec![]);
    });
}

#[test]
fn random_cases() {
    alone(|device| {
        let mut draws = Stream::new(41, "tensor cores").draws();
        for seed in 0..6 {
            let mut below = |bound| draws.below(bound) as usize;
            // Few widths, because every one is compiled for.
            let hidden = [7, 16, 21][below(3)];
            let config = config(1 + below(20), hidden, 1 + below(2), below(2) == 1);
            let (time, batch) = (1 + below(12), 1 + below(40));
            let lengths: Vec<_> = (0..batch).map(|_| below(time as u64 + 1)).collect();
            check(&device, &Case::new(config, &lengths, time, 200 + seed), &mut vec![]);
        }
    });
}

#[test]
fn hundreds_of_steps() {
    alone(|device| {
        let case = Case::new(config(2, 9, 1, true), &[300, 123], 300, 42);
        check(&device, &case, &mut vec![]);
    });
}

#[test]
fn a_gru_agrees_with_the_kernels_without_tensor_cores() {
    alone(|device| {
        if types(&device, 2, 20, 9).first() != Some(&DType::F16) {
            return;
        }
        let mut config = GruConfig::new(3, 9);
        (config.bidirectional, config.layers) = (true, 2);
        let lengths: Vec<_> = (0..20).map(|i| i * 3 % 8).collect();
        let exact = gru(&device, &config, &lengths, 7, Precision::F32);
        let run = |kernels: GpuKernels| {
            kernels.force(|| gru(&device, &config, &lengths, 7, Precision::F16))
        };
        let (plain, cores) = (run(GpuKernels::Streamed), run(GpuKernels::TensorCores));
        for (index, ((cores, plain), exact)) in cores.iter().zip(&plain).zip(&exact).enumerate() {
            let (error, theirs) = (relative_error(cores, exact), relative_error(plain, exact));
            assert!(error <= (2.0 * theirs).max(1.5e-3), "part {index}: {error:.1e}, {theirs:.1e}");
            assert!(error > 0.0, "part {index} was not computed in f16");
        }
    });
}

#[test]
fn nan_reaches_its_own_sample_and_no_other() {
    alone(|device| {
        let clean = Case::new(config(3, 8, 1, true), &[5; 11], 5, 14);
        let mut case = Case::new(config(3, 8, 1, true), &[5; 11], 5, 14);
        case.inputs.input[5 * 3 + 7] = f64::NAN; // sample 1, step 2
        for dtype in types(&device, 2, 11, 8) {
            let device = device.clone().autodiff();
            let run = |case| {
                GpuKernels::TensorCores.force(|| in_type(dtype, case, &device)).swap_remove(0).1
            };
            let (actual, expected) = (run(&case), run(&clean));
            let rows = |sample: usize| sample * 5 * 16..(sample + 1) * 5 * 16;
            for sample in (0..11).filter(|sample| *sample != 1) {
                assert_eq!(actual[rows(sample)], expected[rows(sample)], "sample {sample}");
            }
            for t in 0..5 {
                let (forward, reverse) = actual[rows(1)][t * 16..][..16].split_at(8);
                assert_eq!(forward.iter().all(|v| v.is_nan()), t >= 2, "forward, step {t}");
                assert_eq!(reverse.iter().all(|v| v.is_nan()), t <= 2, "reverse, step {t}");
            }
        }
    });
}

#[test]
fn a_layer_in_half_precision_gets_tensor_cores_and_one_in_f32_does_not() {
    alone(|device| {
        for dtype in types(&device, 2, 8, 16) {
            let chosen = GpuKernels::of_layer(&device, dtype, 2, 8, 16);
            assert_eq!(chosen, Ok(GpuKernels::TensorCores));
        }
        let tiles = GpuKernels::TensorCores.tiles(&device, DType::F32, 2, 8, 16);
        assert!(tiles.concat().is_empty(), "f32 would be rounded: {tiles:?}");
        let chosen = GpuKernels::of_layer(&device, DType::F32, 2, 8, 16);
        if let Err(error @ NoGpuKernels::Buffers { .. }) = chosen {
            println!("skipped: {error}");
            return;
        }
        assert_ne!(chosen, Ok(GpuKernels::TensorCores));
        GpuKernels::TensorCores.force(|| {
            let refused = GpuKernels::of_layer(&device, DType::F32, 2, 8, 16).expect_err("in f32");
            assert!(refused.to_string().contains("TensorCores"), "{refused}");
        });
    });
}

#[test]
fn the_tile_that_time_chooses_changes_no_bit() {
    alone(|device| {
        let device = device.autodiff();
        let lengths: Vec<_> = (0..75).map(|i| 1 + i % 4).collect();
        let case = Case::new(config(3, 9, 1, true), &lengths, 4, 43);
        for (kernels, dtype) in [
            (GpuKernels::Streamed, DType::F32),
            (GpuKernels::Resident, DType::F32),
            (GpuKernels::TensorCores, DType::F16),
        ] {
            let [forward, backward] = kernels.tiles(&device, dtype, 2, 75, 9);
            let count = forward.len().max(backward.len());
            if count == 0 {
                println!("skipped: {kernels:?} in {dtype:?} on this device");
                continue;
            }
            let first = kernels.force_tile(0, || in_type(dtype, &case, &device));
            for tile in 1..count {
                let other = kernels.force_tile(tile, || in_type(dtype, &case, &device));
                assert_eq!(other, first, "{kernels:?}, tile {tile}");
            }
            println!("{kernels:?}: the same bits in {count} tiles");
            if cfg!(feature = "autotune") {
                let chosen = kernels.force(|| in_type(dtype, &case, &device));
                assert_eq!(chosen, first, "{kernels:?}, chosen by time");
            } else {
                println!("skipped: this build chooses no tile by time");
            }
        }
    });
}
