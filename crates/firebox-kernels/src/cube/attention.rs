//! Attention on a GPU: one launch forward, two back, and no scores in memory. See
//! [`attend`](super::attend) and [`attend_back`](super::attend_back) for the kernels of threads, and
//! [`strips`] for those of tensor cores.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::cubecl::dtype_to_storage_type;
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::{DType, Device};
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use super::attend::{SizesLaunch, attend};
use super::attend_back::{attend_back_keys, attend_back_queries};
use super::device::{self, hardware};
use super::list::TensorList;
use super::strips;
use super::tensors::{arguments, empty, hand_on};
use super::watch::{LaunchedWork, launching};
use crate::cpu::{AttentionSizes, AttentionWindow, Sight};
use crate::cuts::{AttentionCut, AttentionTask, GpuKernels};

/// One call of the operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionCall {
    pub(crate) sizes: AttentionSizes,
    pub(crate) sight: Sight,
    pub(crate) scale: f32,
    /// From which 16 bits on a probability is kept, and what it is multiplied by; `None`: all are.
    pub(crate) dropout: Option<(u16, f32)>,
    /// Whether tensor cores are used where they can be.
    pub(crate) cores: bool,
}

impl AttentionCall {
    /// What is cut.
    fn task(&self, dtype: DType, packed: bool) -> AttentionTask {
        let Self { sizes, sight, dropout, cores, .. } = *self;
        let (causal, windowed) = (sight.causal, sight.window.is_some());
        AttentionTask { sizes, dtype, packed, causal, windowed, dropped: dropout.is_some(), cores }
    }

    /// Whether the kernels can be had on a device.
    pub(crate) fn fits(&self, client: &Client, dtype: DType, packed: bool) -> bool {
        self.task(dtype, packed).fits(&hardware(client))
    }

    /// How a launch on these inputs, which the call [`fits`](Self::fits), is cut.
    fn cut(&self, inputs: &[CubeTensor]) -> AttentionCut {
        let task = self.task(inputs[0].dtype, inputs.len() == 1);
        match task.cut(&hardware(&inputs[0].client)) {
            Some(cut) => cut,
            None => unreachable!("attention that was cut before: {task:?}"),
        }
    }

    /// Cubes for so many rows of each head.
    fn cubes(&self, cut: AttentionCut, rows: usize) -> CubeCount {
        device::count(cut.count(rows, &self.sizes))
    }

    /// Numbers of a row that are read at once.
    fn vector(&self) -> usize {
        if self.sizes.size.is_multiple_of(4) { 4 } else { 1 }
    }

    fn numbers(&self) -> SizesLaunch {
        let (threshold, kept) = self.dropout.unwrap_or((0, 1.0));
        let window = self.sight.window.unwrap_or(AttentionWindow { reach: 0, global: 0 });
        SizesLaunch::new(
            self.sizes.queries as u32,
            self.sizes.keys as u32,
            self.sizes.heads as u32,
            self.scale,
            u32::from(threshold),
            kept,
            window.reach as u32,
            window.global as u32,
        )
    }

    /// What a launch does: so many operations for each score and number of it, and so many passes over
    /// queries and over keys.
    fn work(
        &self,
        name: &'static str,
        operations: usize,
        passes: [usize; 2],
        dtype: DType,
    ) -> LaunchedWork {
        let AttentionSizes { batch, queries, keys, heads, size } = self.sizes;
        let numbers = batch * heads * size * (passes[0] * queries + passes[1] * keys);
        let seen = self.sight.width(keys);
        LaunchedWork {
            name,
            shape: vec![batch, queries, keys, heads, size],
            operations: operations as f64 * (batch * heads * queries * size) as f64 * seen as f64,
            bytes: (numbers * dtype.size()) as f64,
            bf16: dtype == DType::BF16,
        }
    }
}

impl GpuKernels {
    /// Whether attention with heads of `size` numbers multiplies on tensor cores; otherwise each row has a
    /// thread, or, where [`NoGpuKernels`](crate::NoGpuKernels) says why, it is composed of Burn's own
    /// operations.
    pub fn attends_on_tensor_cores(device: &Device, dtype: DType, size: usize) -> bool {
        let sizes = AttentionSizes { batch: 1, queries: 1, keys: 1, heads: 1, size };
        let cores = Self::cores_allowed();
        let sight = Sight { causal: false, window: None };
        let call = AttentionCall { sizes, sight, scale: 1.0, dropout: None, cores };
        Self::takes(device, dtype)
            .is_ok_and(|client| call.task(dtype, false).on_cores(&hardware(&client)))
    }
}

/// The result, and what the backward pass needs besides the inputs.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct Attended<B: Backend> {
    /// `[batch, queries, heads · size]`
    pub(crate) out: FloatTensor<B>,
    /// Largest score and sum of the exponentials of each query in f32, `[2, batch · heads, queries]`.
    pub(crate) moments: FloatTensor<B>,
}

/// Attention of queries, keys and values, `[batch, rows, heads · size]`, or of all in one, `[batch, time, 3
/// · heads · size]`.
///
/// # Shapes
/// - lengths: `[2, batch]` in i32, of queries and of keys
/// - stream: the key of each head's stream, `[batch · heads, 2]` in i32, or a stand-in where nothing is
///   dropped
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait AttentionOps: Backend {
    /// The differentiable operation.
    #[fusion(default)]
    fn firebox_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        stream: IntTensor<Self>,
        call: AttentionCall,
    ) -> FloatTensor<Self> {
        Self::firebox_attend(TensorList(vec![q, k, v]), lengths, stream, call).out
    }

    /// The differentiable operation on one tensor.
    #[fusion(default)]
    fn firebox_self_attention(
        qkv: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        stream: IntTensor<Self>,
        call: AttentionCall,
    ) -> FloatTensor<Self> {
        Self::firebox_attend(TensorList(vec![qkv]), lengths, stream, call).out
    }

    /// The forward pass.
    #[fusion(meta = |inputs, _lengths, _stream, call| attended(inputs, call))]
    fn firebox_attend(
        #[extension_type] inputs: TensorList<Self>,
        lengths: IntTensor<Self>,
        stream: IntTensor<Self>,
        call: AttentionCall,
    ) -> Attended<Self>;

    /// The gradients of the inputs.
    #[allow(clippy::too_many_arguments, reason = "the macro takes tensors as arguments")]
    #[fusion(meta = |inputs, _d, _out, _moments, _lengths, _stream, _call| inputs.clone())]
    fn firebox_attend_back(
        #[extension_type] inputs: TensorList<Self>,
        d: FloatTensor<Self>,
        out: FloatTensor<Self>,
        moments: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        stream: IntTensor<Self>,
        call: AttentionCall,
    ) -> TensorList<Self>;
}

#[cfg(feature = "fusion")]
fn attended(inputs: &[TensorSpec], call: &AttentionCall) -> AttendedMetadata {
    let AttentionSizes { batch, queries, heads, size, .. } = call.sizes;
    AttendedMetadata {
        out: TensorSpec::new([batch, queries, heads * size].into(), inputs[0].dtype),
        moments: TensorSpec::new([2, batch * heads, queries].into(), DType::F32),
    }
}

impl AttentionOps for CubeBackend {
    fn firebox_attend(
        inputs: TensorList<Self>,
        lengths: IntTensor<Self>,
        stream: IntTensor<Self>,
        call: AttentionCall,
    ) -> Attended<Self> {
        let inputs: Vec<CubeTensor> = inputs.0.into_iter().map(into_contiguous).collect();
        let [lengths, stream] = [lengths, stream].map(into_contiguous);
        let AttentionSizes { batch, queries, heads, size, .. } = call.sizes;
        let (client, dtype) = (inputs[0].client.clone(), inputs[0].dtype);
        let cut = call.cut(&inputs);
        let out = empty(&inputs[0], [batch, queries, heads * size], dtype);
        let moments = empty(&inputs[0], [2, batch * heads, queries], DType::F32);
        let launch = || {
            let (count, dim) = (call.cubes(cut, queries), device::dim(cut.dim()));
            let (lengths, stream) = (lengths.into_buffer_arg(), stream.into_buffer_arg());
            let (out, moments) = (out.clone().into_buffer_arg(), moments.clone().into_buffer_arg());
            let (numbers, batch, storage) =
                (call.numbers(), batch as u32, dtype_to_storage_type(dtype));
            // SAFETY: the kernels compare queries and keys with the sizes that the buffers have by the
            // shapes above, which `attention` and `self_attention` have checked, as they have that there
            // is a length of at most that for each sample.
            unsafe {
                match cut {
                    AttentionCut::Threads(plan) => attend::launch_unchecked(
                        &client,
                        count,
                        dim,
                        arguments(&inputs),
                        lengths,
                        stream,
                        out,
                        moments,
                        numbers,
                        batch,
                        plan,
                        storage,
                    ),
                    AttentionCut::Strips(strips) => strips::forward::attend::launch_unchecked(
                        &client,
                        count,
                        dim,
                        call.vector(),
                        arguments(&inputs),
                        lengths,
                        stream,
                        out,
                        moments,
                        numbers,
                        batch,
                        strips,
                        storage,
                    ),
                }
            }
        };
        launching(|| call.work("attention", 4, [2, 2], dtype), launch);
        Attended { out, moments }
    }

    fn firebox_attend_back(
        inputs: TensorList<Self>,
        d: FloatTensor<Self>,
        out: FloatTensor<Self>,
        moments: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        stream: IntTensor<Self>,
        call: AttentionCall,
    ) -> TensorList<Self> {
        let inputs: Vec<CubeTensor> = inputs.0.into_iter().map(into_contiguous).collect();
        let [d, out, moments] = [d, out, moments].map(into_contiguous);
        let [lengths, stream] = [lengths, stream].map(into_contiguous);
        let AttentionSizes { batch, queries, keys, heads, .. } = call.sizes;
        let (client, dtype) = (inputs[0].client.clone(), inputs[0].dtype);
        let cut = call.cut(&inputs);
        let gradients: Vec<CubeTensor> =
            inputs.iter().map(|input| empty(input, input.shape(), dtype)).collect();
        let deltas = empty(&d, [batch * heads, queries], DType::F32);
        let (dim, storage, batch) =
            (device::dim(cut.dim()), dtype_to_storage_type(dtype), batch as u32);
        let read = [&lengths, &stream, &d, &moments, &deltas].map(Clone::clone);
        let launch = || {
            let count = call.cubes(cut, queries);
            let [lengths, stream, d, moments, deltas] =
                read.clone().map(CubeTensor::into_buffer_arg);
            let (out, gradient) = (out.into_buffer_arg(), gradients[0].clone().into_buffer_arg());
            // SAFETY: as for the forward kernels; both backward kernels write parts of the gradients of
            // their own.
            unsafe {
                match cut {
                    AttentionCut::Threads(plan) => attend_back_queries::launch_unchecked(
                        &client,
                        count,
                        dim,
                        arguments(&inputs),
                        lengths,
                        stream,
                        out,
                        d,
                        moments,
                        deltas,
                        gradient,
                        call.numbers(),
                        batch,
                        plan,
                        storage,
                    ),
                    AttentionCut::Strips(strips) => {
                        strips::backward::attend_back_queries::launch_unchecked(
                            &client,
                            count,
                            dim,
                            call.vector(),
                            arguments(&inputs),
                            lengths,
                            stream,
                            out,
                            d,
                            moments,
                            deltas,
                            gradient,
                            call.numbers(),
                            batch,
                            strips,
                            storage,
                        );
                    }
                }
            }
        };
        launching(|| call.work("attention, gradients of queries", 6, [4, 2], dtype), launch);
        let launch = || {
            let count = call.cubes(cut, keys);
            let [lengths, stream, d, moments, deltas] =
                read.clone().map(CubeTensor::into_buffer_arg);
            let gradients = &gradients[usize::from(!cut.packed())..];
            // SAFETY: as above.
            unsafe {
                match cut {
                    AttentionCut::Threads(plan) => attend_back_keys::launch_unchecked(
                        &client,
                        count,
                        dim,
                        arguments(&inputs),
                        lengths,
                        stream,
                        d,
                        moments,
                        deltas,
                        arguments(gradients),
                        call.numbers(),
                        batch,
                        plan,
                        storage,
                    ),
                    AttentionCut::Strips(strips) => {
                        strips::backward::attend_back_keys::launch_unchecked(
                            &client,
                            count,
                            dim,
                            call.vector(),
                            arguments(&inputs),
                            lengths,
                            stream,
                            d,
                            moments,
                            deltas,
                            arguments(gradients),
                            call.numbers(),
                            batch,
                            strips,
                            storage,
                        )
                    }
                }
            }
        };
        launching(|| call.work("attention, gradients of keys", 8, [2, 4], dtype), launch);
        TensorList(gradients)
    }
}

/// What the gradient is computed from.
#[derive(Clone, Debug)]
struct Tape<B: Backend> {
    inputs: Vec<FloatTensor<B>>,
    out: FloatTensor<B>,
    moments: FloatTensor<B>,
    lengths: IntTensor<B>,
    stream: IntTensor<B>,
    call: AttentionCall,
}

#[derive(Debug)]
struct Heads;

impl<B: AttentionOps, const N: usize> Backward<B, N> for Heads {
    type State = Tape<B>;

    fn backward(self, ops: Ops<Tape<B>, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, N>(ops, grads, |d, tape| {
            let Tape { inputs, out, moments, lengths, stream, call } = tape;
            let inputs = TensorList(inputs);
            B::firebox_attend_back(inputs, d, out, moments, lengths, stream, call).0
        });
    }
}

fn tracked<B: AttentionOps, C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    lengths: IntTensor<B>,
    stream: IntTensor<B>,
    call: AttentionCall,
) -> FloatTensor<Autodiff<B, C>> {
    let mut guards = vec![];
    let inputs: Vec<FloatTensor<B>> = inputs
        .into_iter()
        .map(|tensor| {
            let (primitive, guard) = tensor.into_parts();
            guards.push(guard);
            primitive
        })
        .collect();
    let Ok(guards) = guards.try_into() else { unreachable!("one guard for each tensor") };
    let list = TensorList(inputs.clone());
    let Attended { out, moments } = B::firebox_attend(list, lengths.clone(), stream.clone(), call);
    let prepared =
        <Heads as Backward<B, N>>::prepare::<C>(Heads, guards).compute_bound().stateful();
    match prepared {
        OpsKind::Tracked(prep) => {
            prep.finish(Tape { inputs, out: out.clone(), moments, lengths, stream, call }, out)
        }
        OpsKind::UnTracked(prep) => prep.finish(out),
    }
}

impl<B: AttentionOps, C: CheckpointStrategy> AttentionOps for Autodiff<B, C> {
    fn firebox_attention(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        stream: IntTensor<Self>,
        call: AttentionCall,
    ) -> FloatTensor<Self> {
        tracked::<B, C, 3>([q, k, v], lengths, stream, call)
    }

    fn firebox_self_attention(
        qkv: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        stream: IntTensor<Self>,
        call: AttentionCall,
    ) -> FloatTensor<Self> {
        tracked::<B, C, 1>([qkv], lengths, stream, call)
    }

    fn firebox_attend(
        _: TensorList<Self>,
        _: IntTensor<Self>,
        _: IntTensor<Self>,
        _: AttentionCall,
    ) -> Attended<Self> {
        unreachable!("the passes are called below the graph, by `firebox_attention`")
    }

    fn firebox_attend_back(
        _: TensorList<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: IntTensor<Self>,
        _: AttentionCall,
    ) -> TensorList<Self> {
        unreachable!("the gradient of a gradient is not defined here")
    }
}
