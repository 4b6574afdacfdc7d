//! Packed weights that are kept from one call to the next, as long as nobody trains.

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;

use crate::cpu::{Panels, Products};

type Primitive = FloatTensor<Flex>;

/// As long as it lives, weights of linear layers stay packed on this thread: for passes over many batches with
/// the same weights and without gradients, which would pack them anew at every call. That is a sixth to a quarter
/// of the time of a model of BERT's size at few rows. All of them are given up with the last one that lives.
///
/// It holds a packed copy of every weight that it meets (as large as the weight in f32, half of it in bf16, half
/// as large again where f32 is [multiplied in tiles](crate::CpuKernels::Amx)) and keeps the weight itself from
/// being changed in its place: take none around steps that train. Results do not change by a bit. On other devices
/// than Burn's CPU backend it does nothing.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use firebox_core::Stream;
/// # use firebox_kernels::{KeptWeights, init_linear, linear};
/// # let device = Device::flex();
/// # let layer = init_linear(Stream::new(1, "weights"), 64, 32, &device);
/// # let batches = vec![Tensor::<2>::ones([256, 64], &device); 3];
/// let _kept = KeptWeights::new();
/// for batch in batches {
///     let answers = linear(batch, &layer);
/// }
/// ```
#[derive(Debug)]
#[must_use = "weights are kept as long as it lives"]
pub struct KeptWeights {
    /// It belongs to the thread.
    thread: PhantomData<*const ()>,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::new(Kept::default());
}

#[derive(Default)]
struct Kept {
    /// How many [`KeptWeights`] live.
    scopes: usize,
    /// By the address of their numbers.
    weights: HashMap<usize, Vec<Entry>>,
}

struct Entry {
    /// What was packed: as long as it is held, nobody writes to it, and nothing else has its address.
    #[expect(dead_code, reason = "it is held, not read")]
    weight: Primitive,
    sizes: [usize; 2],
    panels: Arc<Panels>,
}

impl KeptWeights {
    /// Begins to keep them.
    pub fn new() -> Self {
        KEPT.with_borrow_mut(|kept| kept.scopes += 1);
        Self { thread: PhantomData }
    }
}

impl Default for KeptWeights {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for KeptWeights {
    fn drop(&mut self) {
        let unused = KEPT.with_borrow_mut(|kept| {
            kept.scopes -= 1;
            if kept.scopes == 0 { std::mem::take(&mut kept.weights) } else { HashMap::new() }
        });
        drop(unused);
    }
}

/// Whether weights are kept on this thread.
pub(crate) fn keeps() -> bool {
    KEPT.with_borrow(|kept| kept.scopes > 0)
}

/// A weight of `[input, output]`, which lies in order, packed for products with so many rows.
pub(crate) fn packed(
    products: Products,
    rows: usize,
    weight: &Primitive,
    sizes: [usize; 2],
) -> Arc<Panels> {
    let pack = || Arc::new(products.panels(rows, weight.storage::<f32>(), sizes));
    // What was copied into order has an address of its own each time.
    if !keeps() || weight.is_unique() {
        return pack();
    }
    let address = weight.storage::<f32>().as_ptr() as usize;
    let found = KEPT.with_borrow(|kept| {
        let mut entries = kept.weights.get(&address)?.iter();
        let fits = |entry: &&Entry| entry.sizes == sizes && entry.panels.fit(products, rows);
        Some(Arc::clone(&entries.find(fits)?.panels))
    });
    found.unwrap_or_else(|| {
        let panels = pack();
        let entry = Entry { weight: weight.clone(), sizes, panels: Arc::clone(&panels) };
        KEPT.with_borrow_mut(|kept| kept.weights.entry(address).or_default().push(entry));
        panels
    })
}

#[cfg(test)]
mod tests {
    use burn::module::Param;
    use burn::nn::Linear;
    use burn::tensor::{Device, Tensor};
    use firebox_core::{Precision, Stream};

    use super::*;
    use crate::{Activation, feed_forward, init_linear, linear_in, uniform};

    fn entries() -> usize {
        KEPT.with_borrow(|kept| kept.weights.values().map(Vec::len).sum())
    }

    fn bits(y: Tensor<2>) -> Vec<u32> {
        y.into_data().iter::<f32>().map(f32::to_bits).collect()
    }

    fn run(precision: Precision, x: &Tensor<2>, [first, second]: [&Linear; 2]) -> [Vec<u32>; 2] {
        let whole = feed_forward(precision, x, first, Activation::Gelu, second);
        [bits(linear_in(precision, x.clone(), first)), whole.map(bits).unwrap_or_default()]
    }

    #[test]
    fn kept_weights_change_no_bit_and_are_never_stale() {
        let device = Device::flex();
        let stream = Stream::new(1, "kept");
        let mut first = init_linear(stream.substream(0), 70, 50, &device);
        let second = init_linear(stream.substream(1), 50, 33, &device);
        let x = |rows| uniform(stream.substream(2), [rows, 70], -1.0, 1.0, &device);
        for precision in [Precision::F32, Precision::Bf16] {
            let cold: Vec<_> =
                [1, 40, 200].map(x).iter().map(|x| run(precision, x, [&first, &second])).collect();
            let kept = KeptWeights::new();
            for _ in 0..2 {
                let inner = KeptWeights::new();
                for (rows, cold) in [1, 40, 200].into_iter().zip(&cold) {
                    assert_eq!(&run(precision, &x(rows), [&first, &second]), cold, "{rows} rows");
                }
                drop(inner);
                // Two weights, and those of few rows may be packed otherwise.
                assert!((2..=4).contains(&entries()), "{}", entries());
            }
            // Another weight is another one, in the same place of the model or in the same memory.
            let before = run(precision, &x(40), [&first, &second]);
            first.weight = Param::from_tensor(first.weight.val() * 2.0);
            let after = run(precision, &x(40), [&first, &second]);
            assert!(after[0] != before[0] && after[1] != before[1]);
            drop(kept);
            assert_eq!(entries(), 0);
            assert_eq!(run(precision, &x(40), [&first, &second]), after);
            assert_eq!(entries(), 0, "nothing is kept without being asked");
        }
    }

    #[test]
    fn a_weight_that_was_copied_into_order_is_not_kept() {
        let device = Device::flex();
        let mut layer = init_linear(Stream::new(2, "kept"), 40, 60, &device);
        let turned = layer.weight.val().swap_dims(0, 1).reshape([40, 60]).swap_dims(0, 1);
        layer.weight = Param::from_tensor(turned);
        layer.bias = None;
        let x = uniform(Stream::new(3, "kept"), [64, 60], -1.0, 1.0, &device);
        let cold = bits(linear_in(Precision::F32, x.clone(), &layer));
        let _kept = KeptWeights::new();
        for _ in 0..3 {
            assert_eq!(bits(linear_in(Precision::F32, x.clone(), &layer)), cold);
        }
        assert_eq!(entries(), 0);
    }
}
