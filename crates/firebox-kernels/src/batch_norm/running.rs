//! A value that a module changes in its forward pass: saved with the parameters, never trained.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::{
    Content, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor, Param,
    ParamId,
};
use burn::tensor::{Device, Tensor};

/// A statistic of past batches, which the forward pass of its module moves.
///
/// To visitors and mappers it is a float parameter that wants no gradient. It is never part of a
/// graph. Clones share the value, as the clones of a model that is being trained must; what comes out
/// of [`Module::map`], [`Module::train`] or [`Module::valid`] has a value of its own, so that
/// a checkpoint that is read into a copy of a model leaves the model alone. burn-core's
/// `RunningState` differs there, and is one update behind when it is visited.
#[derive(Clone, Debug)]
pub struct RunningStatistic {
    id: ParamId,
    value: Arc<Mutex<Tensor<1>>>,
}

impl RunningStatistic {
    pub(super) fn new(value: Tensor<1>) -> Self {
        Self::with_id(ParamId::new(), value)
    }

    fn with_id(id: ParamId, value: Tensor<1>) -> Self {
        let value = if value.is_autodiff() { value.inner() } else { value };
        Self { id, value: Arc::new(Mutex::new(value)) }
    }

    /// The value, `[channel]`, outside of any graph.
    pub fn value(&self) -> Tensor<1> {
        self.lock().clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(Tensor<1>) -> Tensor<1>) {
        let mut value = self.lock();
        *value = change(value.clone());
    }

    /// Changes this one and another one together, in that order everywhere: what others change meanwhile is
    /// neither read in between nor lost.
    #[cfg(feature = "cube")]
    pub(super) fn change_with<T>(
        &self,
        other: &Self,
        change: impl FnOnce(Tensor<1>, Tensor<1>) -> ((Tensor<1>, Tensor<1>), T),
    ) -> T {
        let (mut one, mut other) = (self.lock(), other.lock());
        let ((changed, changed_other), result) = change(one.clone(), other.clone());
        (*one, *other) = (changed, changed_other);
        result
    }

    fn lock(&self) -> MutexGuard<'_, Tensor<1>> {
        // A panic in between has left the old value.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parameter(&self) -> Param<Tensor<1>> {
        Param::initialized(self.id, self.value())
    }
}

impl Module for RunningStatistic {
    fn collect_devices(&self, mut devices: Vec<Device>) -> Vec<Device> {
        let device = self.value().device();
        if !devices.contains(&device) {
            devices.push(device);
        }
        devices
    }

    fn fork(self, device: &Device) -> Self {
        self.to_device(device)
    }

    fn to_device(self, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        Self::with_id(self.id, self.value().to_device(&device))
    }

    fn train(self) -> Self {
        Self::with_id(self.id, self.value())
    }

    fn valid(&self) -> Self {
        Self::with_id(self.id, self.value())
    }

    fn materialize(self) -> Self {
        self
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        visitor.visit_float(&self.parameter());
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let mapped = mapper.map_float(self.parameter());
        Self::with_id(self.id, mapped.val())
    }
}

impl std::fmt::Display for RunningStatistic {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "RunningStatistic {{shape: {:?}}}", self.value().dims())
    }
}

impl ModuleDisplayDefault for RunningStatistic {
    fn content(&self, content: Content) -> Option<Content> {
        content.add_formatted(&self.to_string()).optional()
    }
}

impl ModuleDisplay for RunningStatistic {}
