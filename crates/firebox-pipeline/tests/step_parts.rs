//! Steps that are taken apart. In a process of its own: the spans of everything that trains in it are recorded.

#![allow(clippy::unwrap_used, reason = "a test may")]

use burn::tensor::Device;
use firebox_pipeline::{BenchConfig, ChosenDevice, Workload, bench};

#[test]
fn a_step_that_is_taken_apart_has_the_bits_of_one_that_is_not() {
    let device = |backend: &str| ChosenDevice {
        device: Device::flex(),
        backend: backend.to_owned(),
        description: format!("{backend}: test"),
        reason: String::new(),
    };
    let config = BenchConfig {
        batch: Some(4),
        length: Some(16),
        hidden: Some(16),
        steps: 6,
        warmup: 2,
        ..BenchConfig::new(Workload::LstmMae)
    };
    let alone = bench(&config, &device("cpu")).unwrap();
    let config = BenchConfig { parts: true, ..config };
    let apart = bench(&config, &device("cpu")).unwrap();
    assert!(alone.parts.is_none() && alone.last_loss == apart.last_loss);
    let parts = apart.parts.unwrap();
    // The last one has no end.
    assert_eq!(parts.steps, 5);
    let own = [parts.forward_ms, parts.backward_ms, parts.optimizer_ms, parts.read_back_ms];
    assert!(own.iter().all(|time| *time > 0.0), "{parts:?}");
    let rest = parts.whole_ms - own.iter().sum::<f64>() - parts.waiting_ms;
    assert!(rest > 0.0 && parts.added.mean > 0.0 && parts.added.mean < 1.0, "{parts:?}");
    assert!(parts.update.mean <= parts.added.mean, "{parts:?}");
    let refused = |config: &BenchConfig, backend: &str| {
        let error = bench(config, &device(backend)).unwrap_err();
        assert!(error.is_bad_input(), "{error}");
        error.to_string()
    };
    let said = refused(&config, "cuda");
    assert!(said.contains("--parts is of a processor"), "{said}");
    let said = refused(&BenchConfig { steps: 2, ..config }, "cpu");
    assert!(said.contains("--parts needs --steps of 3 or more"), "{said}");
}
