//! Times products on a GPU by each kernel that could make them, beside Burn's tuned one where it is asked for, and prints
//! one line of JSON each:
//!
//! ```text
//! cargo run --release -p firebox-kernels --example gpu_product_step \
//!     --features cube,fusion,autotune,burn/cuda -- TYPE [tuned] BATCHxROWSxCOLUMNSxINNER[:nt|:tn] ...
//! ```
//!
//! The type is `f32`, `f16` or `bf16`. `nt` has the right operand lie turned, `tn` the left one, as the gradients of a
//! layer have them. All are compiled first; where the variable `LOCK` names a file, the times are taken while this process
//! alone holds it, so that several can compile beside each other. `KERNEL` is the number of one kernel to take alone.
//! `error` is that beside a product of the same numbers in f32 by single threads, relative, in the Frobenius norm.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use burn::tensor::{DType, Device, Distribution, Tensor};
use firebox_core::Precision;
use firebox_kernels::{F32Products, product, product_kernels, with_product_kernel};

const LAUNCHES: usize = 20;
const ROUNDS: usize = 5;

struct Case {
    name: String,
    left: Tensor<3>,
    right: Tensor<3>,
    flop: f64,
}

fn case(text: &str, dtype: DType, device: &Device) -> Case {
    let (sizes, layout) = text.split_once(':').unwrap_or((text, "nn"));
    let sizes: Vec<usize> = sizes.split('x').map(|size| size.parse().expect("a size")).collect();
    let [batch, rows, columns, inner] = sizes.try_into().expect("four sizes");
    let draw = |shape: [usize; 3]| {
        Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), device).cast(dtype)
    };
    let left = match layout {
        "tn" => draw([batch, inner, rows]).swap_dims(1, 2),
        _ => draw([batch, rows, inner]),
    };
    let right = match layout {
        "nt" => draw([batch, columns, inner]).swap_dims(1, 2),
        _ => draw([batch, inner, columns]),
    };
    let flop = 2.0 * (batch * rows) as f64 * (columns * inner) as f64;
    Case { name: text.to_owned(), left, right, flop }
}

impl Case {
    fn run(&self, kernel: Option<usize>) -> Tensor<3> {
        let (left, right) = (self.left.clone(), self.right.clone());
        match kernel {
            Some(kernel) => with_product_kernel(kernel, || product(Precision::F32, left, right)),
            None => left.matmul(right),
        }
    }

    /// The error beside f32, and whether it ran at all.
    fn error(&self, kernel: Option<usize>, expected: &Tensor<3>) -> Option<f64> {
        let device = self.left.device();
        catch_unwind(AssertUnwindSafe(|| {
            let found = self.run(kernel).cast(DType::F32);
            let square = |x: Tensor<3>| f64::from(x.square().mean().into_scalar::<f32>());
            let error = square(found - expected.clone()) / square(expected.clone());
            device.sync().unwrap();
            error.sqrt()
        }))
        .ok()
    }

    /// Microseconds of a launch, the least of some rounds.
    fn time(&self, kernel: Option<usize>) -> f64 {
        let device = self.left.device();
        let round = |_| {
            device.sync().unwrap();
            let start = Instant::now();
            for _ in 0..LAUNCHES {
                drop(self.run(kernel));
            }
            device.sync().unwrap();
            start.elapsed().as_secs_f64() * 1e6 / LAUNCHES as f64
        };
        (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
    }
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let dtype = match arguments.remove(0).as_str() {
        "f32" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        other => panic!("{other} is no type: f32, f16, bf16"),
    };
    let tuned = arguments.first().is_some_and(|word| word == "tuned");
    let device = Device::default();
    let names = product_kernels();
    let alone = std::env::var("KERNEL").ok().map(|name| name.parse::<usize>().expect("a number"));
    let wanted = |kernel: &usize| alone.is_none_or(|alone| alone == *kernel);
    let mut kernels: Vec<_> = (0..names.len()).filter(wanted).map(Some).collect();
    kernels.extend(tuned.then_some(None));
    let mut ready = vec![];
    for text in arguments.iter().skip(usize::from(tuned)) {
        let case = case(text, dtype, &device);
        let [left, right] = [&case.left, &case.right].map(|x| x.clone().cast(DType::F32));
        let expected = F32Products::Exact.during(|| product(Precision::F32, left, right));
        let errors =
            kernels.iter().map(|kernel| case.error(*kernel, &expected)).collect::<Vec<_>>();
        ready.push((case, errors));
    }
    let lock = std::env::var_os("LOCK")
        .filter(|path| !path.is_empty())
        .map(|path| std::fs::File::create(path).unwrap());
    if let Some(lock) = &lock {
        lock.lock().unwrap();
    }
    for (case, errors) in ready {
        for (kernel, error) in kernels.iter().zip(errors) {
            let name = kernel.map_or("tuned", |index| &names[index]);
            let Some(error) = error else {
                println!(r#"{{"case":"{}","kernel":"{name}","refused":true}}"#, case.name);
                continue;
            };
            let time = case.time(*kernel);
            println!(
                r#"{{"case":"{}","kernel":"{name}","us":{time:.2},"tflops":{:.1},"error":{error:.2e}}}"#,
                case.name,
                case.flop / time / 1e6
            );
        }
    }
}
