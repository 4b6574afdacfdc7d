//! An optimizer step over all parameters of a model in a few launches, and running sums and means: see
//! [`sweep`](super::sweep) for the kernels. Weights and moments change in the memory that they have, unless somebody else holds
//! them as well; then they are copied first.

use burn::backend::cubecl::dtype_to_storage_type;
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::DType;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use super::device::{self, without_cores};
use super::list::TensorList;
pub(crate) use super::sweep::Combination;
use super::sweep::{
    COLUMNS, DESCENT_COLUMNS, ListsLaunch, adamw, combine, descend, descend_with_momentum,
    descent_numbers, rescale, squares, step_numbers,
};
use super::tensors::{arguments, empty, sum};
use super::watch::{LaunchedWork, launching};
use crate::cuts::{Sweep, Team, tensors_at_once};
use crate::optimizer::{ScaleRule, UpdateRule};

/// What a step needs besides what the device holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepSettings {
    pub(crate) rule: UpdateRule,
    /// Largest norm of all gradients together.
    pub(crate) norm: f32,
    /// Largest magnitude of a gradient.
    pub(crate) limit: f32,
    /// Updates before which the first learning rate counts.
    pub(crate) known: u64,
}

/// What a step leaves beside the tensors that it changes.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct StepNumbers<B: Backend> {
    /// Numbers of each parameter, `[parameters, COLUMNS]`, or `DESCENT_COLUMNS` for gradient descent.
    pub(crate) numbers: FloatTensor<B>,
    /// Updates that were applied, with this one, `[1]`.
    pub(crate) updates: FloatTensor<B>,
}

/// A loss scale and the steps since it last changed, both `[1]`.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct ScaleState<B: Backend> {
    pub(crate) scale: FloatTensor<B>,
    pub(crate) good_steps: FloatTensor<B>,
}

/// Optimizer steps on a GPU. All tensors are f32 but where it says otherwise, and in no graph.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(crate) trait OptimizerOps: Backend {
    /// The squared L2 norm of all gradients together, `[1]`; each is `[elements]`.
    #[fusion(meta = |_gradients| TensorSpec::new([1].into(), DType::F32))]
    fn firebox_squared_norm(#[extension_type] gradients: TensorList<Self>) -> FloatTensor<Self>;

    /// The numbers of a step. Learning rates, one for each number of updates, and losses are lists; loss scale, squared
    /// norm and updates are `[1]`; constants are rate, weight decay and missed updates of each parameter,
    /// `[parameters, 3]`.
    #[allow(clippy::too_many_arguments, reason = "the macro takes tensors as arguments")]
    #[fusion(meta = |_rates, _scale, _norm, _losses, updates, constants, settings| {
        numbers(updates, constants, settings)
    })]
    fn firebox_step_numbers(
        learning_rates: FloatTensor<Self>,
        loss_scale: FloatTensor<Self>,
        squared_norm: FloatTensor<Self>,
        losses: FloatTensor<Self>,
        updates: FloatTensor<Self>,
        constants: FloatTensor<Self>,
        settings: StepSettings,
    ) -> StepNumbers<Self>;

    /// The loss scale and its good steps after gradients of this squared norm; each is `[1]`.
    #[fusion(meta = |scale, good_steps, _squared_norm, _rule| scaled(scale, good_steps))]
    fn firebox_rescale(
        scale: FloatTensor<Self>,
        good_steps: FloatTensor<Self>,
        squared_norm: FloatTensor<Self>,
        rule: ScaleRule,
    ) -> ScaleState<Self>;

    /// The step: of `changed`, which has the weights of each parameter followed by its moments, as many as
    /// the rule keeps, the new values. Numbers are those of [`StepNumbers`].
    #[fusion(meta = |_gradients, changed, _numbers, _rule| changed.clone())]
    fn firebox_update(
        #[extension_type] gradients: TensorList<Self>,
        #[extension_type] changed: TensorList<Self>,
        numbers: FloatTensor<Self>,
        rule: UpdateRule,
    ) -> TensorList<Self>;

    /// The new values of `to` by as many tensors of the same sizes, all of one float type, and a factor, `[1]`
    /// in f32.
    #[fusion(meta = |_from, to, _factor, _combination| to.clone())]
    fn firebox_combine(
        #[extension_type] from: TensorList<Self>,
        #[extension_type] to: TensorList<Self>,
        factor: FloatTensor<Self>,
        combination: Combination,
    ) -> TensorList<Self>;
}

#[cfg(feature = "fusion")]
fn numbers(
    updates: &TensorSpec,
    constants: &TensorSpec,
    settings: &StepSettings,
) -> StepNumbersMetadata {
    let [parameters, _] = constants.shape.dims();
    let numbers = TensorSpec::new([parameters, columns(&settings.rule)].into(), DType::F32);
    StepNumbersMetadata { numbers, updates: updates.clone() }
}

#[cfg(feature = "fusion")]
fn scaled(scale: &TensorSpec, good_steps: &TensorSpec) -> ScaleStateMetadata {
    ScaleStateMetadata { scale: scale.clone(), good_steps: good_steps.clone() }
}

/// Numbers of a parameter in a step by this rule.
fn columns(rule: &UpdateRule) -> usize {
    match rule {
        UpdateRule::AdamW { .. } => COLUMNS,
        UpdateRule::Sgd { .. } => DESCENT_COLUMNS,
    }
}

/// Buffers of the launch that makes a step's numbers: as many as WebGPU has at least.
const STEP_BUFFERS: usize = 8;

/// Whether a device can bind the buffers of a parameter at once, and those of a step's numbers.
pub(crate) fn has_room(client: &Client) -> bool {
    let hardware = without_cores(client);
    hardware.bindings >= STEP_BUFFERS && tensors_at_once(&hardware, 4) > 0
}

/// The same numbers, whole, in order and held by nobody else.
fn own(tensor: CubeTensor) -> CubeTensor {
    let whole = into_contiguous(tensor);
    if whole.can_mut() { whole } else { whole.copy() }
}

fn count(tensors: &[CubeTensor]) -> usize {
    tensors.iter().map(|tensor| tensor.shape().num_elements()).sum()
}

/// What a launch does, with so many operations and bytes for each number.
fn work(name: &'static str, numbers: usize, operations: usize, bytes: usize) -> LaunchedWork {
    let (operations, bytes) = ((numbers * operations) as f64, (numbers * bytes) as f64);
    LaunchedWork { name, shape: vec![numbers], operations, bytes, bf16: false }
}

impl OptimizerOps for CubeBackend {
    fn firebox_squared_norm(gradients: TensorList<Self>) -> FloatTensor<Self> {
        let gradients: Vec<CubeTensor> = gradients.0.into_iter().map(into_contiguous).collect();
        let like = gradients[0].clone();
        let client = like.client.clone();
        let hardware = without_cores(&client);
        let team = Team::whole(&hardware);
        let groups: Vec<(&[CubeTensor], Sweep)> = gradients
            .chunks(tensors_at_once(&hardware, 1))
            .map(|group| {
                let sizes = group.iter().map(|gradient| gradient.shape().num_elements());
                (group, Sweep::new(&hardware, team, sizes))
            })
            .collect();
        let cubes: u32 = groups.iter().map(|(_, sweep)| sweep.cubes()).sum();
        let sums = empty(&like, [cubes as usize], DType::F32);
        let mut from = 0;
        for (group, sweep) in &groups {
            // SAFETY: a cube compares every index with the size of the tensor that it reads, and
            // writes one number in a place of its own among those counted above.
            let launch = || unsafe {
                squares::launch_unchecked(
                    &client,
                    device::count([sweep.cubes() as usize, 1]),
                    device::dim(team.dim()),
                    arguments(group),
                    sweep.sizes.iter().copied().collect(),
                    sweep.ends.iter().copied().collect(),
                    sums.clone().into_buffer_arg(),
                    from,
                    team.threads(),
                );
            };
            launching(|| work("norm of the gradients", count(group), 2, 4), launch);
            from += sweep.cubes();
        }
        sum(&sums)
    }

    fn firebox_step_numbers(
        learning_rates: FloatTensor<Self>,
        loss_scale: FloatTensor<Self>,
        squared_norm: FloatTensor<Self>,
        losses: FloatTensor<Self>,
        updates: FloatTensor<Self>,
        constants: FloatTensor<Self>,
        settings: StepSettings,
    ) -> StepNumbers<Self> {
        let StepSettings { rule, norm, limit, known } = settings;
        let [learning_rates, loss_scale, squared_norm, losses, constants] =
            [learning_rates, loss_scale, squared_norm, losses, constants].map(into_contiguous);
        let lengths = [&learning_rates, &losses].map(|list| list.shape().num_elements() as u32);
        let lists = ListsLaunch::new(lengths[0], known as f32, lengths[1]);
        let updates = own(updates);
        let [parameters, _] = constants.shape().dims();
        let width = columns(&rule);
        let numbers = empty(&constants, [parameters, width], DType::F32);
        let client = constants.client.clone();
        let hardware = without_cores(&client);
        let team = Team::whole(&hardware);
        // Of 0 the logarithm would be infinite, which some devices do not take as an argument.
        let logarithm = |beta: f64| beta.ln().max(-1e30) as f32;
        // SAFETY: three buffers of one number are read at 0, rates and losses up to how many there are; rows are compared
        // with the number of parameters, from which the others were allocated.
        let launch = || unsafe {
            let (count, dim) = (device::count([1, 1]), device::dim(team.dim()));
            let state = [&learning_rates, &loss_scale, &squared_norm, &losses, &updates];
            let [rates, scale, squares, losses, counted] =
                state.map(|tensor| tensor.clone().into_buffer_arg());
            let [constants, numbers] =
                [&constants, &numbers].map(|tensor| tensor.clone().into_buffer_arg());
            match rule {
                UpdateRule::AdamW { betas: [beta1, beta2], eps } => step_numbers::launch_unchecked(
                    &client,
                    count,
                    dim,
                    rates,
                    scale,
                    squares,
                    losses,
                    counted,
                    constants,
                    numbers,
                    lists,
                    parameters as u32,
                    logarithm(beta1),
                    logarithm(beta2),
                    (1.0 - beta1) as f32,
                    beta2 as f32,
                    (1.0 - beta2) as f32,
                    eps as f32,
                    norm,
                    limit,
                ),
                UpdateRule::Sgd { momentum, dampening, .. } => descent_numbers::launch_unchecked(
                    &client,
                    count,
                    dim,
                    rates,
                    scale,
                    squares,
                    losses,
                    counted,
                    constants,
                    numbers,
                    lists,
                    parameters as u32,
                    momentum as f32,
                    (1.0 - dampening) as f32,
                    norm,
                    limit,
                ),
            }
        };
        launching(|| work("numbers of the step", parameters, 40, 4 * (3 + width)), launch);
        StepNumbers { numbers, updates }
    }

    fn firebox_rescale(
        scale: FloatTensor<Self>,
        good_steps: FloatTensor<Self>,
        squared_norm: FloatTensor<Self>,
        rule: ScaleRule,
    ) -> ScaleState<Self> {
        let [scale, good_steps] = [scale, good_steps].map(own);
        let squared_norm = into_contiguous(squared_norm);
        let ScaleRule { growth, backoff, interval, floor } = rule;
        // SAFETY: three buffers of one number, of which nobody else holds the two that are written, are read at 0.
        let launch = || unsafe {
            rescale::launch_unchecked(
                &scale.client,
                device::count([1, 1]),
                device::dim([1, 1]),
                scale.clone().into_buffer_arg(),
                good_steps.clone().into_buffer_arg(),
                squared_norm.into_buffer_arg(),
                growth,
                backoff,
                interval as f32,
                floor,
            );
        };
        launching(|| work("loss scale", 1, 5, 20), launch);
        ScaleState { scale, good_steps }
    }

    fn firebox_update(
        gradients: TensorList<Self>,
        changed: TensorList<Self>,
        numbers: FloatTensor<Self>,
        rule: UpdateRule,
    ) -> TensorList<Self> {
        let numbers = into_contiguous(numbers);
        let gradients: Vec<CubeTensor> = gradients.0.into_iter().map(into_contiguous).collect();
        let changed: Vec<CubeTensor> = changed.0.into_iter().map(own).collect();
        let client = numbers.client.clone();
        let hardware = without_cores(&client);
        let team = Team::whole(&hardware);
        let each = 1 + rule.moments();
        let at_once = tensors_at_once(&hardware, 1 + each);
        let groups = gradients.chunks(at_once).zip(changed.chunks(each * at_once));
        for (index, (gradients, changed)) in groups.enumerate() {
            let sizes = gradients.iter().map(|gradient| gradient.shape().num_elements());
            let sweep = Sweep::new(&hardware, team, sizes);
            let every = |which: usize| {
                let of = changed.iter().skip(which).step_by(each);
                of.map(|tensor| tensor.clone().into_buffer_arg()).collect()
            };
            // SAFETY: a cube compares every index with the size of its tensor, which gradient, weights
            // and moments share (`update_parameters` has checked them); no two cubes write the same
            // number, and nobody else holds what is written. `numbers` has a row for each parameter.
            let launch = || unsafe {
                let count = device::count([sweep.cubes() as usize, 1]);
                let (dim, from) = (device::dim(team.dim()), (index * at_once) as u32);
                let (sizes, ends) = (sweep.sizes.iter().copied(), sweep.ends.iter().copied());
                let numbers = numbers.clone().into_buffer_arg();
                match rule {
                    UpdateRule::AdamW { .. } => adamw::launch_unchecked(
                        &client,
                        count,
                        dim,
                        arguments(gradients),
                        every(0),
                        every(1),
                        every(2),
                        sizes.collect(),
                        ends.collect(),
                        numbers,
                        from,
                    ),
                    UpdateRule::Sgd { .. } if each == 1 => descend::launch_unchecked(
                        &client,
                        count,
                        dim,
                        arguments(gradients),
                        every(0),
                        sizes.collect(),
                        ends.collect(),
                        numbers,
                        from,
                    ),
                    UpdateRule::Sgd { nesterov, .. } => descend_with_momentum::launch_unchecked(
                        &client,
                        count,
                        dim,
                        arguments(gradients),
                        every(0),
                        every(1),
                        sizes.collect(),
                        ends.collect(),
                        numbers,
                        from,
                        nesterov,
                    ),
                }
            };
            let operations = if matches!(rule, UpdateRule::AdamW { .. }) { 15 } else { 6 };
            // Weight and moments are read and written, the gradient is read.
            let bytes = 4 * (1 + 2 * each);
            launching(|| work("optimizer step", self::count(gradients), operations, bytes), launch);
        }
        TensorList(changed)
    }

    fn firebox_combine(
        from: TensorList<Self>,
        to: TensorList<Self>,
        factor: FloatTensor<Self>,
        combination: Combination,
    ) -> TensorList<Self> {
        let factor = into_contiguous(factor);
        let from: Vec<CubeTensor> = from.0.into_iter().map(into_contiguous).collect();
        let to: Vec<CubeTensor> = to.0.into_iter().map(own).collect();
        let client = factor.client.clone();
        let hardware = without_cores(&client);
        let team = Team::whole(&hardware);
        let at_once = tensors_at_once(&hardware, 2);
        let name = if combination == Combination::Sum { "scaled sum" } else { "moving average" };
        for (from, to) in from.chunks(at_once).zip(to.chunks(at_once)) {
            let sizes = to.iter().map(|tensor| tensor.shape().num_elements());
            let sweep = Sweep::new(&hardware, team, sizes);
            let dtype = to[0].dtype;
            // SAFETY: a cube compares every index with the size of its tensor, which that of the other list
            // has, too (`check_pairs` has compared them); no two cubes write the same number, and nobody else
            // holds what is written.
            let launch = || unsafe {
                combine::launch_unchecked(
                    &client,
                    device::count([sweep.cubes() as usize, 1]),
                    device::dim(team.dim()),
                    arguments(from),
                    arguments(to),
                    sweep.sizes.iter().copied().collect(),
                    sweep.ends.iter().copied().collect(),
                    factor.clone().into_buffer_arg(),
                    combination,
                    dtype_to_storage_type(dtype),
                );
            };
            // Read and written, and read.
            launching(|| work(name, count(to), 2, 3 * dtype.size()), launch);
        }
        TensorList(to)
    }
}
