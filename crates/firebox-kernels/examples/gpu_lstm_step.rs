//! Times the forward and backward pass of a stack of LSTM layers on a GPU, the variants of its
//! kernels beside Burn's own operations, and prints one line of JSON each:
//!
//! ```text
//! cargo run --release -p firebox-kernels --example gpu_lstm_step \
//!     --features cube,fusion,autotune,burn/cuda -- [batch] [steps] [type] [channels] [fused|all] [units]
//! ```
//!
//! Two bidirectional layers of 128 units (or as many as are asked for) on windows of 105 steps, dropout 0.2 between them, the
//! gradient of all parameters and of the input: the same as `lstm_step`, which times the CPU. The
//! type is `f32`, `f16` or `bf16`, of parameters and input alike. The device is Burn's default one;
//! `BURN_DEVICE` chooses another. `fused` leaves Burn's own operations out. The clock stops when the device has finished.
//!
//! `floor_ms` is not measured: a step's arithmetic (3 · 2 · samples · steps · weights) at
//! `FLOOR_TFLOPS`, the device's rate in this type, if that variable is set.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::time::Instant;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Tensor};
use firebox_core::Stream;
use firebox_kernels::{CpuKernels, GpuKernels, Lstm, LstmConfig, NoGpuKernels, uniform};

const TIME: usize = 105;
const WARM_UP: usize = 5;

/// Parameters in another type.
struct Cast(DType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.cast(self.0).detach().require_grad())
    }
}

struct Times {
    median: f64,
    least: f64,
    forward: f64,
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn time(lstm: &Lstm, input: &Tensor<3>, weights: &Tensor<3>, steps: usize) -> Times {
    let device = input.device();
    let (mut forward, mut whole) = (vec![], vec![]);
    for step in 0..steps + WARM_UP {
        device.sync().unwrap();
        let start = Instant::now();
        let x = input.clone().detach().require_grad();
        let dropout = Stream::new(1337, "dropout").substream(step as u64);
        let (output, _) = lstm.forward(x.clone(), None, None, Some(dropout));
        device.sync().unwrap();
        let middle = start.elapsed();
        // One product with a tensor stands for whatever comes after the encoder.
        let grads = (output * weights.clone()).sum().backward();
        let gradient = x.grad(&grads).expect("the input has a gradient");
        assert_eq!(gradient.dims(), input.dims());
        device.sync().unwrap();
        if step >= WARM_UP {
            forward.push(middle.as_secs_f64() * 1e3);
            whole.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    let least = whole.iter().copied().fold(f64::INFINITY, f64::min);
    Times { median: median(whole), least, forward: median(forward) }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default: &str| {
        arguments.get(index).map_or(default.to_owned(), String::clone)
    };
    let number = |index, default| argument(index, default).parse::<usize>().expect("a number");
    let (batch, steps, channels) = (number(0, "512"), number(1, "15"), number(3, "4"));
    let hidden = number(5, "128");
    let precision = argument(2, "f32");
    let dtype = match precision.as_str() {
        "f32" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        found => panic!("the type is `{found}`; allowed are `f32`, `f16` and `bf16`"),
    };
    let operations = 3 * 2 * batch * TIME * 2 * 4 * hidden * (channels + 2 * hidden + 2 * hidden);
    let floor = std::env::var("FLOOR_TFLOPS").map_or("null".to_owned(), |rate| {
        format!("{:.3}", operations as f64 / rate.parse::<f64>().expect("a number") / 1e9)
    });

    let device = Device::default().autodiff();
    let config = LstmConfig {
        layers: 2,
        bidirectional: true,
        dropout: 0.2,
        ..LstmConfig::new(channels, hidden)
    };
    let lstm = config.init(Stream::new(1337, "lstm"), &device).map(&mut Cast(dtype));
    let shape = [batch, TIME, channels];
    let input = uniform::<3>(Stream::new(1337, "input"), shape, -1.0, 1.0, &device).cast(dtype);
    let shape = [batch, TIME, 2 * hidden];
    let weights = uniform::<3>(Stream::new(7, "loss"), shape, -1e-3, 1e-3, &device).cast(dtype);

    let line = |kernels: &str, times: Times| {
        println!(
            r#"{{"workload": "bilstm-2x{hidden}", "device": "{device:?}", "precision": "{precision}", "batch": {batch}, "fusion": {}, "kernels": "{kernels}", "median_ms": {:.3}, "least_ms": {:.3}, "forward_ms": {:.3}, "floor_ms": {floor}}}"#,
            cfg!(feature = "fusion"),
            times.median,
            times.least,
            times.forward,
        );
    };
    let chosen = || GpuKernels::of_layer(&device, dtype, 2, batch, hidden);
    println!(r#"{{"chosen": "{:?}"}}"#, chosen());
    for kernels in GpuKernels::ALL {
        kernels.force(|| match chosen() {
            Ok(kernels) => line(&format!("{kernels:?}"), time(&lstm, &input, &weights, steps)),
            Err(error) => println!(r#"{{"kernels": "{kernels:?}", "why_not": "{error}"}}"#),
        });
    }
    if argument(4, "all") == "fused" {
        return;
    }
    CpuKernels::Composed.force(|| {
        assert_eq!(chosen(), Err(NoGpuKernels::Asked));
        line("Composed", time(&lstm, &input, &weights, steps));
    });
}
