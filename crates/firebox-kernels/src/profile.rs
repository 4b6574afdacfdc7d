//! What a profiler is told of the CPU kernels: a span of [`tracing`] each, with the shape, the
//! operations and the bytes that it cannot do without. Where nobody records, a span costs a nanosecond,
//! and its figures are not computed.
//!
//! Kernels of GPUs are launched and not waited for, so they have no span: the device measures them
//! (`cube/watch.rs`).

/// Opens the span of a kernel until the end of the block: its name, its shape, additions and
/// multiplications, numbers of four bytes read and written, and whether products are of bf16.
macro_rules! kernel_span {
    ($name:literal, $shape:expr, $operations:expr, $numbers:expr, $bf16:expr) => {
        tracing::info_span!(
            target: "firebox::kernel",
            $name,
            shape = ?$shape,
            operations = $operations as f64,
            bytes = 4.0 * $numbers as f64,
            bf16 = $bf16
        )
        .entered()
    };
}
pub(crate) use kernel_span;
