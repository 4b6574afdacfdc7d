//! Disentangled attention in tiles, beside vectors.

use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, DisentangledAttention, DistanceRows, disentangled_attention};

use crate::emulated;
use crate::support::case::{float, noise, values};
use crate::support::relative_error;
use crate::vectors;

#[test]
fn disentangled_attention_of_many_sizes() {
    emulated::emulate();
    let device = Device::flex().autodiff();
    // Batch, time, heads, size; the farthest distance that has a row of its own.
    for (seed, ([batch, time, heads, size], farthest)) in [
        ([2, 105, 2, 16], 20),
        ([3, 64, 1, 64], 64),
        ([1, 1, 2, 3], 5),
        ([2, 33, 1, 40], 3),
        ([2, 70, 1, 8], 100),
        ([1, 17, 3, 33], 9),
    ]
    .into_iter()
    .enumerate()
    {
        let (stream, width) = (Stream::new(seed as u64, "disentangled"), heads * size);
        let rows = 2 * farthest as usize + 1;
        let distances = DistanceRows::new(time, |distance| {
            (distance.clamp(-farthest, farthest) + farthest) as usize
        });
        let shapes = [batch * time * 3 * width, rows * 2 * width, batch * time * width];
        let inputs: Vec<_> =
            (0..3).map(|part| noise(stream.substream(part as u64), shapes[part], 1.0)).collect();
        let settings = DisentangledAttention {
            dropout: 0.2,
            precision: Precision::Bf16,
            ..DisentangledAttention::new(heads)
        };
        let short = seed % 2 * (time / 4);
        let lengths: Vec<_> = (0..batch).map(|sample| time - short - sample * time / 4).collect();
        let run_on = |kernels: CpuKernels, inputs: &[Vec<f64>]| {
            kernels.force(|| {
                let content =
                    |part: usize, width| float(&inputs[part], [batch, time, width], &device);
                let qkv: Tensor<3> = content(0, 3 * width).require_grad();
                let positions: Tensor<2> =
                    float(&inputs[1], [rows, 2 * width], &device).require_grad();
                let (a, b, lengths) = (qkv.clone(), positions.clone(), Some(&lengths[..]));
                let out =
                    disentangled_attention(a, b, &distances, lengths, Some(stream), &settings);
                let grads = (out.clone() * content(2, width)).sum().backward();
                let (of_qkv, of_rows) = (qkv.grad(&grads), positions.grad(&grads));
                [values(out), values(of_qkv.expect("tracked")), values(of_rows.expect("tracked"))]
            })
        };
        // What is left in memory is not multiplied, not even with zeros.
        let nothing: Vec<_> = inputs.iter().map(|part| vec![f64::NAN; part.len()]).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
        let tiles = pool.install(|| {
            run_on(CpuKernels::Amx, &nothing);
            run_on(CpuKernels::Amx, &inputs)
        });
        let by_vectors = run_on(vectors(), &inputs);
        for (part, (tiles, vectors)) in tiles.iter().zip(&by_vectors).enumerate() {
            // Of one key alone scores have no slope: two sums of the same products in two orders.
            if time == 1 && part == 2 {
                assert!(tiles.iter().chain(vectors).all(|d| d.abs() < 1e-5), "one key");
                continue;
            }
            let error = relative_error(tiles, vectors);
            // Probabilities and slopes that differ by the order of sums may be rounded to another number of bf16.
            assert!(error < 4e-3, "{batch} × {time}, {heads} of {size}, part {part}: {error:e}");
        }
        assert!(tiles == run_on(CpuKernels::Amx, &inputs), "threads");
    }
}
