//! Attention in the kernels of a GPU: puts lengths and streams into the form that
//! [`cube`](crate::cube) takes.

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::Attention;
use crate::cpu::{AttentionLengths, AttentionSizes, ProbabilityMask};
use crate::cube::{AttentionCall, AttentionOps};
use crate::cuts::GpuKernels;
use crate::products::cast;
use crate::rounded::compute_type;

/// A call of the kernels, and the type that they compute in.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    call: AttentionCall,
    dtype: DType,
}

/// The call of the kernels for these inputs, queries, keys and values or all in one, which have
/// elements; `None` if they must be composed.
pub(super) fn call(
    inputs: &[Tensor<3>],
    sizes: &AttentionSizes,
    mask: Option<ProbabilityMask>,
    settings: &Attention,
) -> Option<Chosen> {
    let (device, given) = (inputs[0].device().without_autodiff(), inputs[0].dtype());
    let same = |x: &Tensor<3>| x.dtype() == given && x.device().without_autodiff() == device;
    let dtype = compute_type(given, settings.precision);
    let call = AttentionCall {
        sizes: *sizes,
        sight: settings.sight(sizes),
        scale: settings.scale(sizes.size) as f32,
        dropout: mask.map(|mask| (mask.threshold, mask.scale)),
        cores: GpuKernels::cores_allowed(),
    };
    let client = GpuKernels::takes(&device, dtype).ok()?;
    (sizes.keys > 0 && inputs.iter().all(same) && call.fits(&client, dtype, inputs.len() == 1))
        .then_some(Chosen { call, dtype })
}

/// Attention of inputs that have a [`call`].
pub(super) fn attention(
    inputs: Vec<Tensor<3>>,
    lengths: &AttentionLengths,
    mask: Option<ProbabilityMask>,
    Chosen { call, dtype }: Chosen,
) -> Tensor<3> {
    let given = inputs[0].dtype();
    let mut inputs: Vec<_> = inputs.into_iter().map(|input| cast(input, dtype)).collect();
    let device = inputs[0].device();
    let AttentionSizes { batch, queries, keys, heads, .. } = call.sizes;
    let mut both = of(&lengths.queries, batch, queries);
    both.extend(of(&lengths.keys, batch, keys));
    let lengths = whole(both, [2, batch], &device).into_dispatch();
    let stream = streams(mask, batch * heads, &device).into_dispatch();
    let out = match (inputs.pop(), inputs.pop(), inputs.pop()) {
        (Some(v), Some(k), Some(q)) => <Dispatch as AttentionOps>::firebox_attention(
            q.into_dispatch(),
            k.into_dispatch(),
            v.into_dispatch(),
            lengths,
            stream,
            call,
        ),
        (Some(qkv), ..) => <Dispatch as AttentionOps>::firebox_self_attention(
            qkv.into_dispatch(),
            lengths,
            stream,
            call,
        ),
        (None, ..) => unreachable!("attention of no tensor"),
    };
    cast(Tensor::from_dispatch(out), given)
}

/// The length of each sample, at most all rows.
fn of(lengths: &Option<Vec<usize>>, batch: usize, rows: usize) -> Vec<i32> {
    match lengths {
        Some(lengths) => lengths.iter().map(|length| (*length).min(rows) as i32).collect(),
        None => vec![rows as i32; batch],
    }
}

/// The key of each head's stream, in the bits of whole numbers.
fn streams(mask: Option<ProbabilityMask>, heads: usize, device: &Device) -> Tensor<2, Int> {
    match mask {
        Some(mask) => {
            let keys = (0..heads as u64).flat_map(|head| mask.stream.substream(head).key());
            whole(keys.map(u32::cast_signed).collect(), [heads, 2], device)
        }
        None => whole(vec![0, 0], [1, 2], device),
    }
}

fn whole(values: Vec<i32>, shape: [usize; 2], device: &Device) -> Tensor<2, Int> {
    // As one row: some devices pad the rows of what is copied to them.
    let row = TensorData::new(values, [shape[0] * shape[1]]);
    Tensor::<1, Int>::from_data(row, (device, DType::I32)).reshape(shape)
}
