//! Linear layers whose input and weight lie anyhow: the bits of those that lie in order.

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Activation, CpuKernels, FeedForward, KeptWeights, feed_forward, feed_forward_add,
    linear_activated, linear_add, linear_in,
};

use crate::{Lay, bits, kernels, noise, on_threads};

/// Rows that lie in some way, of no graph.
fn rows(seed: u64, [rows, columns]: [usize; 2], lay: Lay) -> Tensor<2> {
    lay.tensor(&noise(seed, rows * columns), [1, rows, columns]).squeeze_dim::<2>(0)
}

fn layer(seed: u64, [input, output]: [usize; 2], lay: Lay, graph: bool) -> Linear {
    let bias = Tensor::<1>::from_data(noise(seed + 1, output).as_slice(), &Device::flex());
    let weight = rows(seed, [input, output], lay);
    let (weight, bias) = match graph {
        true => (Tensor::from_inner(weight), Tensor::from_inner(bias)),
        false => (weight, bias),
    };
    Linear { weight: Param::from_tensor(weight), bias: Some(Param::from_tensor(bias)) }
}

/// Results and all gradients of what is made of linear layers.
fn all(
    precision: Precision,
    sizes @ [count, input, output]: [usize; 3],
    [x, weight]: [Lay; 2],
) -> Vec<Vec<u32>> {
    let back = [output, input];
    let x = Tensor::from_inner(rows(1, [count, input], x)).require_grad();
    let layers =
        [(3, [input, output]), (5, back)].map(|(seed, size)| layer(seed, size, weight, true));
    let [first, second] = &layers;
    let d = |seed: u64, width: usize| Tensor::from_inner(rows(seed, [count, width], Lay::Plain));
    let stream = Some(Stream::new(7, "strides"));
    let network = FeedForward {
        precision,
        first,
        activation: Activation::Gelu,
        second,
        dropout: 0.2,
        streams: [stream; 2],
    };
    let results = [
        linear_in(precision, x.clone(), first),
        linear_activated(precision, x.clone(), first, Activation::Relu, 0.1, stream),
        linear_add(precision, d(9, output), x.clone(), first, 0.1, stream),
        feed_forward_add(x.clone(), x.clone(), &network),
    ];
    let mut found = vec![];
    for y in results {
        let [_, width] = y.dims();
        let grads = (y.clone() * d(11, width)).sum().backward();
        found.push(bits(y));
        let weights = layers.iter().filter_map(|layer| layer.weight.val().grad(&grads)).map(bits);
        found.extend(weights);
        found.push(bits(x.grad(&grads).expect("tracked")));
    }
    assert!(found.len() > 8, "{sizes:?}");
    found
}

#[test]
fn a_layer_reads_its_operands_where_they_lie() {
    for sizes in [[33, 40, 36], [1, 7, 4], [5, 1, 8], [130, 33, 68], [30, 150, 36], [50, 64, 1]] {
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            for kernels in kernels() {
                let of = |threads: usize, lays| {
                    on_threads(threads, || kernels.force(|| all(precision, sizes, lays)))
                };
                // Of Burn's own products bits may depend on strides and threads.
                if kernels == CpuKernels::Composed {
                    continue;
                }
                let plain = of(1, [Lay::Plain; 2]);
                for (at, lay) in Lay::ALL.into_iter().enumerate() {
                    for lays in [[lay, Lay::Plain], [Lay::Plain, lay], [lay; 2]] {
                        let same = of(1 + at % 3, lays) == plain;
                        assert!(same, "{kernels:?} {precision} {sizes:?} {lays:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_layer_without_gradients_does_so_too_with_weights_that_are_kept_or_not() {
    let [count, input, between, output] = [37, 50, 44, 33];
    for precision in [Precision::F32, Precision::Bf16] {
        for kernels in kernels().into_iter().filter(|one| *one != CpuKernels::Composed) {
            let of = |lay: Lay| {
                let x = rows(1, [count, input], lay);
                let first = layer(3, [input, between], lay, false);
                let second = layer(5, [between, output], lay, false);
                let run = || {
                    let y = linear_in(precision, x.clone(), &first);
                    let bent =
                        linear_activated(precision, x.clone(), &first, Activation::Gelu, 0.0, None);
                    let whole = feed_forward(precision, &x, &first, Activation::Gelu, &second);
                    [bits(y), bits(bent), whole.map(bits).expect("one operation")]
                };
                let kept = KeptWeights::new();
                let cold = kernels.force(run);
                for _ in 0..2 {
                    assert_eq!(kernels.force(|| kept.during(run)), cold, "{kernels:?} {lay:?}");
                }
                cold
            };
            let plain = of(Lay::Plain);
            for lay in Lay::ALL {
                assert_eq!(of(lay), plain, "{kernels:?} {precision} {lay:?}");
            }
        }
    }
}
