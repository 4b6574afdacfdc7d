//! Fused sequence operations for Burn: LSTM and more, forward and backward.
//!
//! [`Lstm`] is a stack of LSTM layers in one or both directions, with the parameters of PyTorch's
//! `nn.LSTM` under the same names and in the same layout. It takes sequences of different lengths
//! in one batch: a padded step changes no state, no output and no gradient. [`Gru`] is the same with
//! another cell. Both compute their products in bf16 if asked ([`Lstm::in_precision`]) and take over
//! weights of burn-nn's modules. [`layer_norm`], [`linear()`] and [`relu_dropout`] are Burn's
//! operations without its waste on a CPU. [`dropout()`] and the initialisers draw from a [`Stream`](firebox_core::Stream), so that a run can be resumed exactly
//! and gives the same numbers on every device.
//!
//! [`self_attention`] and [`attention()`] are scaled dot-product attention with lengths, a causal mask
//! and dropout of the probabilities, of which no more than a tile exists at any time;
//! [`self_attention_masked`] and [`attention_masked`] take masks in place of lengths, for padding on the
//! left and gaps. Within an [`AttentionWindow`] a query sees its neighbours and the first keys alone, and no
//! others are computed. [`disentangled_attention`] is DeBERTa's, with terms for distances, of whose scores there is no more
//! than one head's on each core. [`gelu()`], [`gelu_dropout`] and [`dropout_add`] (a residual sum) are what else stands
//! between the linear layers of a Transformer, each as one pass. [`linear_activated`], [`linear_add`] and
//! [`feed_forward_add`] are these layers with what follows them, which is computed while a part of a product lies in the
//! cache, the last two forward and back.
//!
//! [`batched_product`] multiplies matrices in pairs, in f32 or of operands in bf16, transposed ones and parts of others where
//! they lie: many small pairs each on one thread, few large ones each on all.
//!
//! [`conv1d`] takes sequences with their channels side by side, makes no matrix of windows, and draws
//! [`GaussianNoise`] on its input while it reads it. [`BatchNorm`] goes through memory once for what
//! it computes and what follows it, rectifier, maximum of neighbouring steps, dropout
//! ([`NormEpilogue`]), and keeps running statistics that are saved with the parameters and never
//! trained. [`max_pool1d`] is the maximum for itself.
//!
//! [`add_row_noise`] is the noise of data augmentation, each sample's from a stream of its own.
//!
//! Where no gradient is wanted, [`encoder_layer`], [`feed_forward`] and [`dense_layers`] are whole layers as one operation:
//! a core takes some samples or rows through all of it, and nothing but the result goes through memory.
//!
//! What surrounds the layers of a training step is here, too: losses with their gradients in one pass
//! ([`cross_entropy`], [`binary_cross_entropy`], [`squared_error`], [`masked_squared_error`],
//! [`huber`]), an [`embedding()`] whose
//! gradient costs what was used of it, and optimizer steps over all parameters at once
//! ([`squared_norm`], [`update_parameters`]).
//!
//! On Burn's CPU backend (`flex`) in f32 each layer is one operation with a hand-derived gradient,
//! vectorised for AVX-512 or AVX2 where the processor has them, and spread over the threads of
//! rayon's pool; results do not depend on the number of threads. GPUs have kernels of their own,
//! below. On every other device and type, and on the CPU under gradient checkpointing, the same
//! formula is composed of Burn's own operations. [`CpuKernels`] says which variant runs; the
//! environment variable `FIREBOX_KERNELS` (`composed`, `portable`, `avx2`, `avx512`, `avx512-bf16` or
//! `amx`) forces one, `composed` on every device.
//!
//! Results and gradients are ordinary vectors: what a step reuses of the memory of the step before comes from the
//! program's allocator, which in `firebox` is that of the crate `mimalloc` with its `mi_option_purge_delay` at -1, so
//! that freed memory stays with the process. A program of your own should set the same as its `#[global_allocator]`: with
//! the system's, page faults were a quarter of a training step.
//!
//! # On GPUs
//!
//! With the feature `cube`, beside a backend feature of `burn` (`cuda`, `rocm`, `metal`, `vulkan`,
//! `wgpu`), each layer of an [`Lstm`] or [`Gru`] is two launches of a CubeCL kernel, one forward and
//! one backward, for all steps, gates and directions; large matmuls before and after do the rest.
//! `GpuKernels::of_layer` says which variant a layer gets, or why it gets none and is composed:
//!
//! | variant | where | recurrent weights |
//! |---|---|---|
//! | `TensorCores` | f16 and bf16, where the device multiplies such tiles and sums them in f32 | in registers (up to 128 units) or shared memory for the whole sequence; read at each step where they do not fit. On NVIDIA's devices as many as fit in each of the three |
//! | `Resident` | what fits into the shared memory that the device reports: in f32 up to some 50 units at 48 KiB and 115 at 227 KiB, in half precision 70 and 160 | in shared memory for the whole sequence |
//! | `Streamed` | other layers; small devices, with as few samples a tile as fit | read at each step, shared by a tile's samples |
//! | composed | types other than f32, f16 and bf16; more units than fit even so (at 16 KiB some 680) | – |
//!
//! With the feature `autotune` the tile of samples, the number of threads and, on tensor cores, the place
//! of the weights are those that took the least time at the first use of such a layer; what is tried gives
//! the same bits in all of them. On tensor cores, hidden states and the gradients of gates are rounded to
//! the tensors' type where they are multiplied, as the large matmuls do.
//!
//! Sums and states are f32 in every type, and so are the cell states that are kept for the gradient;
//! the gates are kept in the type of the tensors, or in that of [`Lstm::in_precision`], in which the
//! projected input and the outputs are stored as well. [`dropout()`] is a kernel of its own, which
//! draws its mask again for the gradient. Under gradient checkpointing the kernels run, too.
//!
//! Beside the recurrent layers, these have kernels, all of which sum in f32:
//!
//! | operation | launches | where |
//! |---|---|---|
//! | [`squared_norm`], AdamW and SGD ([`update_parameters`]; [`update_on_device`] with all that changes in the device's memory) | one for each 32 parameters, or as many as the device binds buffers for, and one or two | f32, in the memory of weights and moments |
//! | [`add_scaled`], [`approach`], [`approach_on_device`] | one for each 32 tensors, or as many as the device binds buffers for | all tensors of one type, in their memory |
//! | [`layer_norm`] | one forward, two back | rows that fit into shared memory twice: in 16 KiB some 1,900 numbers |
//! | [`BatchNorm`] with its rectifier | two for the statistics of a batch and the running ones, one for the rest, three back | all channels |
//! | [`embedding()`] | Burn's gather forward, one back beside the zeros, each used row added up in the order of its places | all types |
//! | [`max_pool1d`] | one each way, without kept indices | all windows |
//! | [`GaussianNoise`], [`add_row_noise`] | one, with every number drawn where it is added | any type; for rows f32, in no graph |
//! | [`cross_entropy`] | one with the gradient, one for the sum | all logits |
//! | [`squared_error`], [`huber`], [`binary_cross_entropy`] | one with the gradient, and one for the sum of more than some 2,000 numbers | all predictions of fewer than 2^31 numbers |
//! | [`gelu()`], [`gelu_dropout`], [`relu_dropout`] | one each way, with the mask drawn in it; kept are the input of GELU and the result of the rectifier, which there are anyway | all types |
//! | [`dropout_add`] | one each way: back it is that of dropout | all types; without a mask it is Burn's sum |
//! | [`attention()`], [`self_attention`], with lengths or masks | one forward, two back, and with gaps in a mask Burn's gather for each tensor, both ways; no scores in memory | heads of up to 128 numbers, in the type of the tensors or in bf16 or f16; in these on tensor cores where there are any, but not within a window |
//!
//! Everything else is composed of Burn's operations, which its fusion joins where it can. Where
//! Burn's fusion is in the build, switch on the feature `fusion` as well. Without the feature `autotune`
//! the sizes of tiles are computed, not tuned by measurement. With the feature `cube` but without any of
//! those backends this crate does not build: there is no runtime to compile for.
//!
//! Products of f16 and bf16 are made by a kernel of this crate where the device has tensor cores for the type, in a tile that
//! follows from the sizes, or, with the feature `autotune`, in the faster of two or by the kernel of cubek that would suit:
//! Burn's tuning would compile some twenty for each shape. Those of f32 are f32 ([`F32Products`]),
//! and, where that is not left to Burn, made by a kernel of this crate if operands lie in fours, in a tile that changes no bit.
//! With the feature `persistence` and `keep_compiled_kernels`, what was compiled and tuned is kept from one process to the
//! next.
//!
//! The kernels are tested without a GPU, on a Vulkan driver in software (`tests/cube` has the
//! command), and most of the tests passed on an NVIDIA H200. Which variant runs and how its launches are cut is tested in
//! builds without GPUs, too. `examples/gpu_lstm_step.rs`, `gpu_attention_step.rs` and `gpu_product_step.rs` time the kernels.
//!
//! # Memory
//!
//! [`recomputed`] makes a segment of a model keep its input alone and compute itself again for its
//! gradient, with the same bits where its documentation says so; [`recomputed_beside`] is for segments that share another input.
//! On a processor, buffers that a step gave back are kept for the next one;
//! [`release_buffers`] gives them up, and [`buffer_bytes`] counts them.
//!
//! # Operands that do not go together
//!
//! Nothing is converted or moved unasked. The float operands of an operation have one type and lie on one device, in a
//! graph or not; where they do not, it panics before anything runs, with the operation, the shape, type and device of
//! each operand, and the way out. So it does where shapes do not fit. Losses, which measure any type in f32, and what
//! reads another module's weights say so in an error. Of types, these ask less:
//!
//! - [`BatchNorm`]: the kernels of a GPU take parameters and running statistics of another type than the input, those
//!   of a processor running statistics of any in evaluation.
//! - [`feed_forward`], [`dense_layers`] and [`encoder_layer`] are `None` where types or devices differ, as wherever
//!   they do not run.
//! - [`conv1d`] compares neither types nor devices where its result is empty.
//! - A quantised operand goes with any float type.
//!
//! Nothing here reads files, knows a model or chooses a device.
//!
//! # Example: in the place of `burn::nn::BiLstm`
//!
//! ```
//! use burn::tensor::{Device, Distribution, Tensor};
//! use firebox_core::Stream;
//! use firebox_kernels::LstmConfig;
//!
//! let device = Device::default();
//! // Before: `BiLstmConfig::new(4, 32, true).init(&device)`
//! let lstm = LstmConfig { bidirectional: true, ..LstmConfig::new(4, 32) }
//!     .init(Stream::new(1337, "encoder"), &device);
//!
//! let bars = Tensor::<3>::random([8, 20, 4], Distribution::Default, &device);
//! // Before: `lstm.forward(bars, None)`. New are the lengths of the sequences (`None`: all 20 steps)
//! // and the stream of the dropout between layers (`None`: evaluation).
//! let (output, state) = lstm.forward(bars, Some(&[20, 20, 20, 20, 7, 1, 0, 20]), None, None);
//! assert_eq!(output.dims(), [8, 20, 64]); // both directions side by side
//! assert_eq!(state.hidden.dims(), [2, 8, 32]); // last valid step of each direction
//! ```

mod activated;
mod attention;
mod batch_norm;
mod batched;
mod conv;
mod cpu;
#[cfg(feature = "cube")]
mod cube;
#[cfg(any(feature = "cube", test))]
#[cfg_attr(
    not(feature = "cube"),
    allow(dead_code, unused_imports, reason = "the kernels alone use all of it")
)]
mod cuts;
mod device;
mod dropout;
mod embedding;
mod gelu;
mod gru;
mod import;
mod indicator;
mod inference;
mod init;
mod linear;
mod loss;
mod lstm;
mod max_pool;
mod noise;
mod norm;
mod operands;
mod optimizer;
mod packed;
mod products;
mod profile;
mod recompute;
mod residual;
mod rounded;
mod row_noise;
mod scoped;
mod strides;

pub use activated::linear_activated;
pub use attention::{
    Attention, DisentangledAttention, DistanceRows, attention, attention_masked,
    disentangled_attention, self_attention, self_attention_masked,
};
pub use batch_norm::{
    BatchNorm, BatchNormConfig, NormEpilogue, RunningStatistic, with_batch_statistics,
};
pub use batched::batched_product;
pub use conv::{conv1d, conv1d_channels_first, init_conv1d};
pub use cpu::{
    Activation, AttentionWindow, CpuCeilings, CpuKernels, CpuKernelsError, buffer_bytes,
    release_buffers,
};
#[cfg(all(feature = "cube", feature = "persistence"))]
pub use cube::keep_compiled_kernels;
#[cfg(feature = "cube")]
pub use cube::{GpuProperties, LaunchWatch, Launched, LaunchedRun, LaunchedWork};
#[cfg(any(feature = "cube", test))]
pub use cuts::{GpuKernels, NoGpuKernels};
pub use dropout::{dropout, relu_dropout};
pub use embedding::embedding;
pub use gelu::{dropout_add, gelu, gelu_dropout};
pub use gru::{Gru, GruConfig};
pub use import::ImportError;
pub use indicator::indicator;
pub use inference::{
    DenseLayer, EncoderParameters, EncoderSettings, dense_layers, encoder_layer, feed_forward,
};
pub use init::{init_linear, normal, uniform};
pub use linear::{linear, linear_in};
pub use loss::{
    BinaryCrossEntropy, CrossEntropy, LossError, MeanLoss, binary_cross_entropy, cross_entropy,
    huber, masked_squared_error, squared_error,
};
pub use lstm::{Lstm, LstmConfig, LstmConfigError, LstmState};
pub use max_pool::max_pool1d;
pub use noise::GaussianNoise;
pub use norm::layer_norm;
pub use optimizer::{
    Clip, DeviceConstants, DeviceStep, ParameterUpdate, ScaleRule, SquaredNorm, StepState,
    UpdateRule, add_scaled, approach, approach_on_device, rescale_on_device, squared_norm,
    update_on_device, update_parameters,
};
pub use packed::KeptWeights;
pub use products::{F32Products, NoF32Products, product};
#[doc(hidden)]
#[cfg(feature = "cube")]
pub use products::{product_kernels, with_product_kernel};
pub use recompute::{recomputed, recomputed_beside, recomputes_on};
pub use residual::{FeedForward, feed_forward_add, linear_add};
pub use rounded::rounded;
pub use row_noise::add_row_noise;
