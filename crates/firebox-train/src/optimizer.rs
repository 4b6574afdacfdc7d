//! The optimizer of a run: which parameters it updates by which settings, and their moments.
//!
//! The arithmetic is [`firebox_kernels::update_parameters`]: PyTorch's, over all parameters in one
//! sweep, in the memory that weights and moments have. The moments of a parameter begin with its
//! first gradient, and its updates are counted from there, so one that is frozen for a while is
//! corrected by its own count.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use firebox_kernels::{
    Clip, DeviceStep, ParameterUpdate, StepState, update_on_device, update_parameters,
};
use firebox_models::{Layout, MapParameter, layouts, map_parameters};

use crate::config::TrainConfig;
use crate::gradients::Gradients;
use crate::groups::{GroupError, Settings, resolve};

/// The optimizer and its moments.
#[derive(Clone, Debug)]
pub struct OptimizerState {
    config: crate::config::Optimizer,
    layouts: Vec<Layout>,
    settings: Vec<Settings>,
    /// Which parameters wanted a gradient from the start.
    wanted: Vec<bool>,
    pub(crate) moments: Vec<Option<Moments>>,
    /// Updates so far.
    pub(crate) updates: u64,
}

/// What is remembered of one parameter, flattened, in the order of [`Optimizer::moments`].
///
/// [`Optimizer::moments`]: crate::Optimizer::moments
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    pub(crate) tensors: Vec<Tensor<1>>,
    /// Updates of the optimizer that passed this parameter by.
    pub(crate) missed: u64,
}

/// What a step is taken by, besides the gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateBy {
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// What is done to gradients that are too large.
    pub clip: Clip,
    /// Factor on the gradients that is taken away again: the loss scale; above 0.
    pub scale: f64,
    /// Squared L2 norm of the gradients with that factor. The step changes nothing if it is not
    /// finite.
    pub squared_norm: f64,
}

impl OptimizerState {
    /// The optimizer of `config` for the parameters of `model`, with moments of zero.
    ///
    /// # Errors
    /// If a group or a layer of the configuration names no parameter, or groups leave nothing to train.
    pub fn new<M: Module>(model: &M, config: &TrainConfig) -> Result<Self, GroupError> {
        struct Visitor(Vec<bool>);
        impl ModuleVisitor for Visitor {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.push(param.base().is_require_grad());
            }
        }
        let mut visitor = Visitor(vec![]);
        model.visit(&mut visitor);
        let (layouts, wanted) = (layouts(model), visitor.0);
        let settings = resolve(config, &layouts)?;
        let moments = vec![None; layouts.len()];
        let config = config.optimizer.clone();
        Ok(Self { config, layouts, settings, wanted, moments, updates: 0 })
    }

    /// Layouts of the parameters, in the order of the moments.
    pub(crate) fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// Names of the moments that are kept.
    pub(crate) fn moment_names(&self) -> &'static [&'static str] {
        self.config.moments()
    }

    /// Whether a parameter is trained in this epoch, from 0. One that wanted no gradient from the
    /// start, such as a running mean, never is.
    pub(crate) fn trains(&self, parameter: usize, epoch: u64) -> bool {
        self.wanted[parameter] && self.settings[parameter].trains_in(epoch)
    }

    /// Whether some parameter is frozen in some epoch.
    pub(crate) fn freezes(&self) -> bool {
        self.settings.iter().any(|settings| !settings.trains_in(0))
    }

    /// Updates every parameter that has a gradient, in its own memory where nobody else holds it.
    /// Returns whether it did: not if a gradient is not finite.
    pub fn step<M: Module>(&mut self, model: &mut M, gradients: &Gradients, by: UpdateBy) -> bool {
        let state = StepState {
            learning_rate: by.learning_rate,
            loss_scale: by.scale,
            squared_norm: by.squared_norm,
            updates: self.updates,
        };
        if state.found_infinite() {
            return false;
        }
        let rule = self.config.rule();
        self.update(model, gradients, |updates| {
            ((), update_parameters(&rule, by.clip, &state, updates))
        });
        for (index, moments) in self.moments.iter_mut().enumerate() {
            if let (Some(moments), None) = (moments, gradients.get(index)) {
                moments.missed += 1;
            }
        }
        self.updates += 1;
        true
    }

    /// Whether every parameter with moments has a gradient, and no other: then a step changes nothing that
    /// the host counts but the updates.
    pub(crate) fn is_steady(&self, gradients: &Gradients) -> bool {
        let mut moments = self.moments.iter().enumerate();
        let some = self.moments.iter().any(Option::is_some);
        some && moments.all(|(index, own)| own.is_some() == gradients.get(index).is_some())
    }

    /// [`step`](Self::step) by a state on the device, of gradients that [are steady](Self::is_steady). The
    /// update is counted there; here it is counted by whoever reads whether it was applied.
    pub(crate) fn step_on_device<M: Module>(
        &mut self,
        model: &mut M,
        gradients: &Gradients,
        clip: Clip,
        state: DeviceStep,
    ) -> DeviceStep {
        let rule = self.config.rule();
        self.update(model, gradients, |updates| update_on_device(&rule, clip, state, updates))
    }

    /// Updates the parameters that have a gradient.
    fn update<M: Module, T>(
        &mut self,
        model: &mut M,
        gradients: &Gradients,
        update: impl FnOnce(Vec<ParameterUpdate>) -> (T, Vec<ParameterUpdate>),
    ) -> T {
        let mut taken = Take { optimizer: self, gradients, updates: vec![] };
        // The clone and the old model share all tensors until both are gone: then what was taken
        // is held here alone.
        *model = map_parameters(model.clone(), &mut taken);
        let (result, updates) = update(taken.updates);
        let mut put = Put { optimizer: self, gradients, updates: updates.into_iter() };
        *model = map_parameters(model.clone(), &mut put);
        result
    }

    fn take(
        &mut self,
        index: usize,
        parameter: Tensor<1>,
        gradient: &Tensor<1>,
    ) -> ParameterUpdate {
        let Moments { tensors, missed } = self.moments[index].take().unwrap_or_else(|| {
            let zeros = || gradient.zeros_like();
            let tensors = self.config.moments().iter().map(|_| zeros()).collect();
            Moments { tensors, missed: self.updates }
        });
        let Settings { rate, weight_decay, .. } = self.settings[index];
        let gradient = gradient.clone();
        ParameterUpdate { parameter, gradient, moments: tensors, missed, rate, weight_decay }
    }
}

/// Takes the tensors that will change out of a model.
struct Take<'a> {
    optimizer: &'a mut OptimizerState,
    gradients: &'a Gradients,
    updates: Vec<ParameterUpdate>,
}

impl MapParameter for Take<'_> {
    fn map<const D: usize>(&mut self, index: usize, value: Tensor<D>) -> Tensor<D> {
        let Some(gradient) = self.gradients.get(index) else { return value };
        let nothing = Tensor::empty([0; D], &value.device());
        let flat = value.reshape(gradient.dims());
        self.updates.push(self.optimizer.take(index, flat, gradient));
        nothing
    }
}

/// Puts them back.
struct Put<'a> {
    optimizer: &'a mut OptimizerState,
    gradients: &'a Gradients,
    updates: std::vec::IntoIter<ParameterUpdate>,
}

impl MapParameter for Put<'_> {
    fn map<const D: usize>(&mut self, index: usize, value: Tensor<D>) -> Tensor<D> {
        if self.gradients.get(index).is_none() {
            return value;
        }
        let Some(ParameterUpdate { parameter, moments, missed, .. }) = self.updates.next() else {
            return value;
        };
        self.optimizer.moments[index] = Some(Moments { tensors: moments, missed });
        let shape = self.optimizer.layouts[index].shape.clone();
        parameter.reshape(burn::tensor::Shape::from(shape))
    }
}
