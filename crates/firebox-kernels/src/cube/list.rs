//! A list of tensors as one argument or one result of an operation. Burn's macros know single tensors
//! and structs of them; an optimizer step takes as many as a model has.

use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    ExtensionType,
};

/// Float tensors of one device.
#[derive(Clone, Debug)]
pub(crate) struct TensorList<B: Backend>(pub(crate) Vec<FloatTensor<B>>);

impl<B: Backend> ExtensionType<B> for TensorList<B> {
    type Target = TensorList<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let wrap = |tensor| {
            let kind = map_kind(BackendTensor::Float(tensor));
            DispatchTensor { kind, autodiff }
        };
        TensorList(self.0.into_iter().map(wrap).collect())
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        Self(target.0.into_iter().map(|tensor| unwrap_kind(tensor).float()).collect())
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn autodiff_context(target: &Self::Target) -> DispatchAutodiffContext {
        let none = DispatchAutodiffContext::Disabled;
        target.0.iter().fold(none, |context, tensor| context.merge(tensor.autodiff))
    }
}

/// What Burn's macro derives for a struct, for each tensor of the list.
#[cfg(feature = "fusion")]
mod fused {
    use burn::backend::Backend;
    use burn::backend::fusion::custom::{
        ExtensionMetadata, Float, FusionValueAdapter, HandleContainer, OutputTensor, TensorId,
        TensorIr, TensorSpec,
    };
    use burn::backend::fusion::{
        ExecutionError, Fusion, FusionBackend, FusionRuntime, FusionTensor,
    };

    use super::TensorList;

    type Handles<B> =
        HandleContainer<<<B as FusionBackend>::FusionRuntime as FusionRuntime>::FusionHandle>;

    impl<B: Backend> ExtensionMetadata for TensorList<B> {
        type Metadata = Vec<TensorSpec>;
        type Input = Vec<TensorIr>;
        type Output = Vec<OutputTensor>;
    }

    impl<B: FusionBackend> FusionValueAdapter<B> for TensorList<B> {
        type Metadata = Vec<TensorSpec>;
        type Input = Vec<TensorIr>;
        type Output = Vec<OutputTensor>;
        type Inner = Self;
        type Fused = TensorList<Fusion<B>>;

        fn to_metadata(value: &Self::Fused) -> Self::Metadata {
            value.0.iter().map(<Float as FusionValueAdapter<B>>::to_metadata).collect()
        }

        fn visit_fused_tensors(
            value: &Self::Fused,
            visit: &mut impl FnMut(&FusionTensor<B::FusionRuntime>),
        ) {
            value.0.iter().for_each(visit);
        }

        fn tensor_count(meta: &Self::Metadata) -> usize {
            meta.len()
        }

        fn append_input_ir(value: Self::Fused, inputs: &mut Vec<TensorIr>) -> Self::Input {
            let append = |one| <Float as FusionValueAdapter<B>>::append_input_ir(one, inputs);
            value.0.into_iter().map(append).collect()
        }

        fn resolve_inputs(input: &Self::Input, handles: &mut Handles<B>) -> Self {
            let resolve = |one| <Float as FusionValueAdapter<B>>::resolve_inputs(one, handles);
            Self(input.iter().map(resolve).collect())
        }

        fn append_output_ir(
            meta: &Self::Metadata,
            out: &mut Vec<TensorIr>,
            create: &mut impl FnMut() -> TensorId,
        ) -> Self::Output {
            let append = |one| <Float as FusionValueAdapter<B>>::append_output_ir(one, out, create);
            meta.iter().map(append).collect()
        }

        fn validate_outputs(
            value: &Self,
            output: &Self::Output,
            device: Option<&B::Device>,
        ) -> Result<(), ExecutionError> {
            let mut pairs = value.0.iter().zip(output);
            pairs.try_for_each(|(value, output)| {
                <Float as FusionValueAdapter<B>>::validate_outputs(value, output, device)
            })
        }

        fn register_output_handles(value: Self, output: &Self::Output, handles: &mut Handles<B>) {
            for (value, output) in value.0.into_iter().zip(output) {
                <Float as FusionValueAdapter<B>>::register_output_handles(value, output, handles);
            }
        }

        fn build_fused_output(
            meta: &Self::Metadata,
            tensors: &mut std::vec::IntoIter<FusionTensor<B::FusionRuntime>>,
        ) -> Self::Fused {
            let build = |one| <Float as FusionValueAdapter<B>>::build_fused_output(one, tensors);
            TensorList(meta.iter().map(build).collect())
        }
    }
}
