//! Packed weights that are kept from one call to the next, as long as nobody trains.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;

use crate::cpu::{Panels, Products};
use crate::strides::matrix;

type Primitive = FloatTensor<Flex>;

/// Packed weights of linear layers, for passes over many batches with the same weights and without gradients, which
/// would pack them anew at every call. That is a sixth to a quarter of the time of a model of BERT's size at few rows.
/// Results do not change by a bit.
///
/// It holds a packed copy of every weight that it meets (as large as the weight, half of it in bf16 where the processor [multiplies pairs](crate::CpuKernels::multiplies_pairs), half
/// as large again where f32 is [multiplied in tiles](crate::CpuKernels::Amx); two, where batches of fewer than 16 rows
/// need another one), and keeps the weight itself from being changed in its place: take one for a pass, and let it go
/// before the next step that trains. Weights that a call makes for itself stay in it, too. In f16, and on other
/// devices than Burn's CPU backend, it does nothing.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use firebox_core::Stream;
/// # use firebox_kernels::{KeptWeights, init_linear, linear};
/// # let device = Device::flex();
/// # let layer = init_linear(Stream::new(1, "weights"), 64, 32, &device);
/// # let batches = vec![Tensor::<2>::ones([256, 64], &device); 3];
/// let kept = KeptWeights::new();
/// for batch in batches {
///     let answers = kept.during(|| linear(batch, &layer));
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeptWeights {
    entries: Arc<Mutex<Vec<Entry>>>,
}

struct Entry {
    /// What was packed: as long as it is held, nobody writes to it, and nothing else has its address.
    weight: Primitive,
    panels: Arc<Panels>,
}

thread_local! {
    /// Those that calls on this thread use: the last one.
    static USED: RefCell<Vec<KeptWeights>> = const { RefCell::new(vec![]) };
}

impl KeptWeights {
    /// Without any yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `work`, whose linear layers on this thread use them and add to them.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Used;
        impl Drop for Used {
            fn drop(&mut self) {
                let last = USED.with_borrow_mut(Vec::pop);
                drop(last);
            }
        }
        USED.with_borrow_mut(|used| used.push(self.clone()));
        let _used = Used;
        work()
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}", self.weight.layout())
    }
}

/// Whether weights are kept on this thread.
pub(crate) fn keeps() -> bool {
    USED.with_borrow(|used| !used.is_empty())
}

/// A weight of `[input, output]` that is [`readable`](crate::strides::readable), packed for products with so many rows.
pub(crate) fn packed(products: Products, rows: usize, weight: &Primitive) -> Arc<Panels> {
    let pack = || products.panels(rows, matrix(weight));
    // What was copied into order has an address of its own each time.
    let used = USED.with_borrow(|used| used.last().cloned()).filter(|_| !weight.is_unique());
    let Some(KeptWeights { entries }) = used else { return Arc::new(pack()) };
    let address = |weight: &Primitive| weight.storage::<f32>().as_ptr();
    let same = |entry: &&Entry| {
        address(&entry.weight) == address(weight)
            && entry.weight.layout() == weight.layout()
            && entry.panels.fit(products, rows)
    };
    let locked = || entries.lock().unwrap_or_else(PoisonError::into_inner);
    let found = locked().iter().find(same).map(|entry| Arc::clone(&entry.panels));
    found.unwrap_or_else(|| {
        let panels = Arc::new(pack().kept());
        locked().push(Entry { weight: weight.clone(), panels: Arc::clone(&panels) });
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

    fn entries(kept: &KeptWeights) -> usize {
        kept.entries.lock().map_or(0, |entries| entries.len())
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
            let run_kept = |rows, [first, second]: [&Linear; 2]| {
                kept.during(|| run(precision, &x(rows), [first, second]))
            };
            for _ in 0..2 {
                for (rows, cold) in [1, 40, 200].into_iter().zip(&cold) {
                    assert_eq!(&run_kept(rows, [&first, &second]), cold, "{rows} rows");
                }
                // Two weights, and those of few rows may be packed otherwise.
                assert!((2..=4).contains(&entries(&kept)), "{}", entries(&kept));
            }
            // Another weight is another one, in the same place of the model or in the same memory.
            let before = run_kept(40, [&first, &second]);
            let had = entries(&kept);
            first.weight = Param::from_tensor(first.weight.val() * 2.0);
            let after = run_kept(40, [&first, &second]);
            assert!(after[0] != before[0] && after[1] != before[1]);
            assert_eq!(entries(&kept), had + 1);
            // Neither what others keep nor what nobody keeps is added.
            let other = KeptWeights::new();
            let fresh = init_linear(stream.substream(3), 70, 50, &device);
            kept.during(|| other.during(|| run(precision, &x(40), [&fresh, &second])));
            assert_eq!(run(precision, &x(40), [&first, &second]), after);
            assert_eq!((entries(&kept), keeps()), (had + 1, false));
            // It serves any thread.
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(run_kept(40, [&first, &second]), after));
            });
            assert_eq!(entries(&kept), had + 1);
        }
    }

    #[test]
    fn kept_weights_are_not_left_to_the_pool() {
        let device = Device::flex();
        let layer = init_linear(Stream::new(4, "kept"), 600, 700, &device);
        let x = uniform(Stream::new(5, "kept"), [64, 600], -1.0, 1.0, &device);
        let kept = KeptWeights::new();
        let found = kept.during(|| bits(linear_in(Precision::F32, x.clone(), &layer)));
        let [entry] = &kept
            .entries
            .lock()
            .map(|mut entries| std::mem::take(&mut *entries))
            .unwrap_or_default()[..]
        else {
            panic!("one weight")
        };
        assert!(entry.panels.is_own());
        assert_eq!(bits(linear_in(Precision::F32, x, &layer)), found);
    }

    #[test]
    fn a_transposed_weight_is_kept_and_one_that_was_copied_into_order_is_not() {
        let device = Device::flex();
        let mut layer = init_linear(Stream::new(2, "kept"), 40, 60, &device);
        layer.bias = None;
        let weight = layer.weight.val().reshape([60, 40]);
        let x = uniform(Stream::new(3, "kept"), [64, 40], -1.0, 1.0, &device);
        for (weight, count) in [(weight.clone().transpose(), 1), (weight.transpose().flip([1]), 0)]
        {
            layer.weight = Param::from_tensor(weight.clone());
            let cold = bits(linear_in(Precision::F32, x.clone(), &layer));
            let kept = KeptWeights::new();
            for _ in 0..3 {
                let found = kept.during(|| bits(linear_in(Precision::F32, x.clone(), &layer)));
                assert_eq!(found, cold);
            }
            assert_eq!(entries(&kept), count);
            // The same memory in another order, or a part of it, is another weight.
            layer.weight = Param::from_tensor(weight.narrow(1, 3, 50));
            let narrow = kept.during(|| bits(linear_in(Precision::F32, x.clone(), &layer)));
            let part = cold.chunks(60).flat_map(|row| &row[3..53]).copied();
            assert_eq!(narrow, part.collect::<Vec<_>>());
        }
    }
}
