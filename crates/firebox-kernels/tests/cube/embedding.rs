//! Rows of a table and the gradient of the table against their definition.

use burn::module::Param;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use firebox_core::Stream;
use firebox_kernels::{CpuKernels, GpuKernels, LaunchWatch, embedding};

use super::alone;
use super::support::case::{float, noise, values};
use super::support::relative_error;

struct Case {
    table: [usize; 2],
    places: [usize; 2],
    padding: Option<usize>,
}

impl Case {
    fn numbers(&self, seed: u64, count: usize) -> Vec<f64> {
        let numbers = noise(Stream::new(seed, "embedding"), count, 1.0);
        // What halves hold, too.
        numbers.iter().map(|v| (v * 16.0).round() / 16.0).collect()
    }

    /// Few of the rows, so that many occur often.
    fn indices(&self) -> Vec<i64> {
        let mut draws = Stream::new(9, "embedding").draws();
        let used = (self.table[0] / 2).max(1) as u64;
        let count = self.places[0] * self.places[1];
        (0..count).map(|_| draws.below(used) as i64 * 2 % self.table[0] as i64).collect()
    }

    fn run(&self, device: &Device, dtype: DType) -> [Vec<f64>; 2] {
        let ([rows, width], [batch, time]) = (self.table, self.places);
        let table = float::<2>(&self.numbers(1, rows * width), self.table, device).cast(dtype);
        let mut layer: Embedding = EmbeddingConfig::new(rows, width).init(device);
        layer.weight = Param::from_tensor(table.detach().require_grad());
        let indices = TensorData::new(self.indices(), self.places);
        let indices = Tensor::<2, Int>::from_data(indices, device);
        let y = embedding(&layer, indices, self.padding);
        assert_eq!((y.dims(), y.dtype()), ([batch, time, width], dtype));
        let d = float::<3>(&self.numbers(2, batch * time * width), y.dims(), device).cast(dtype);
        let grads = (y.clone() * d).sum().backward();
        let gradient = layer.weight.val().grad(&grads).expect("a gradient");
        [values(y.cast(DType::F32)), values(gradient.cast(DType::F32))]
    }

    fn reference(&self) -> [Vec<f64>; 2] {
        let ([rows, width], [batch, time]) = (self.table, self.places);
        let (table, d) = (self.numbers(1, rows * width), self.numbers(2, batch * time * width));
        let mut gradient = vec![0.0; rows * width];
        let mut y = vec![];
        for (place, row) in self.indices().into_iter().enumerate() {
            let row = row as usize;
            y.extend_from_slice(&table[row * width..][..width]);
            if self.padding != Some(row) {
                let to = &mut gradient[row * width..][..width];
                to.iter_mut().zip(&d[place * width..]).for_each(|(to, d)| *to += d);
            }
        }
        [y, gradient]
    }
}

fn cases() -> Vec<Case> {
    let case = |table, places, padding| Case { table, places, padding };
    vec![
        case([1, 1], [1, 1], None),
        case([5, 7], [3, 4], Some(2)),
        case([40, 64], [9, 31], Some(0)),
        case([300, 300], [2, 128], None),
        case([50, 768], [3, 200], Some(4)),
        case([3, 33], [40, 25], None),
    ]
}

#[test]
fn rows_and_gradients_are_those_of_the_definition() {
    alone(|device| {
        let device = device.autodiff();
        for case in cases() {
            let (found, expected) = (case.run(&device, DType::F32), case.reference());
            assert_eq!(found[0], expected[0]);
            let error = relative_error(&found[1], &expected[1]);
            assert!(error < 1e-6, "{:?}: {error:.2e}", case.table);
            assert_eq!(case.run(&device, DType::F32), found, "the same bits again");
        }
    });
}

#[test]
fn it_is_burns_own_with_a_gradient_of_one_launch() {
    alone(|device| {
        let device = device.autodiff();
        let case = &cases()[2];
        let watch = LaunchWatch::start();
        let ours = case.run(&device, DType::F32);
        let launched = watch.end();
        let names: Vec<&str> =
            launched.iter().filter_map(|one| one.work.as_ref()).map(|work| work.name).collect();
        assert_eq!(names, ["embedding, gradient"]);
        let theirs = CpuKernels::Composed.force(|| case.run(&device, DType::F32));
        assert_eq!(ours[0], theirs[0]);
        assert!(relative_error(&ours[1], &theirs[1]) < 1e-6);
    });
}

#[test]
fn halves_are_summed_in_f32() {
    alone(|device| {
        let mut ran = 0;
        for (dtype, bound) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
            if GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_err() {
                continue;
            }
            ran += 1;
            for case in cases() {
                let found = case.run(&device.clone().autodiff(), dtype);
                let expected = case.reference();
                for (found, expected) in found.iter().zip(&expected) {
                    assert!(relative_error(found, expected) < bound, "{dtype:?}");
                }
            }
        }
        if ran == 0 {
            println!("skipped: this device stores neither F16 nor BF16");
        }
    });
}
