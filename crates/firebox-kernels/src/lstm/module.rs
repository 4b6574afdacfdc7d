//! How Burn walks through an LSTM or a GRU: written by hand so that the parameters carry PyTorch's
//! names in records, optimizers and reports.

use burn::module::{Module, ModuleMapper, ModuleVisitor};
use burn::tensor::Device;

use super::Direction;

/// `weight_ih_l0`, `weight_ih_l0_reverse`, …
fn torch_name(parameter: &str, index: usize, directions: usize) -> String {
    let reverse = if index % directions == 1 { "_reverse" } else { "" };
    format!("{parameter}_l{}{reverse}", index / directions)
}

/// Applies a method of [`Module`] to the four parameters of a direction.
macro_rules! each_parameter {
    ($direction:expr, $parameter:ident => $value:expr) => {{
        let Direction { weight_ih, weight_hh, bias_ih, bias_hh } = $direction;
        Direction {
            weight_ih: {
                let $parameter = weight_ih;
                $value
            },
            weight_hh: {
                let $parameter = weight_hh;
                $value
            },
            bias_ih: {
                let $parameter = bias_ih;
                $value
            },
            bias_hh: {
                let $parameter = bias_hh;
                $value
            },
        }
    }};
}

impl Direction {
    pub(crate) fn collect_devices(&self, mut devices: Vec<Device>) -> Vec<Device> {
        devices = self.weight_ih.collect_devices(devices);
        devices = self.weight_hh.collect_devices(devices);
        devices = self.bias_ih.collect_devices(devices);
        self.bias_hh.collect_devices(devices)
    }

    pub(crate) fn fork(self, device: &Device) -> Self {
        each_parameter!(self, parameter => parameter.fork(device))
    }

    pub(crate) fn moved_to(self, device: &Device) -> Self {
        each_parameter!(self, parameter => parameter.to_device(device))
    }

    pub(crate) fn train(self) -> Self {
        each_parameter!(self, parameter => parameter.train())
    }

    pub(crate) fn valid(&self) -> Self {
        each_parameter!(self.clone(), parameter => parameter.valid())
    }

    pub(crate) fn materialize(self) -> Self {
        each_parameter!(self, parameter => parameter.materialize())
    }

    /// Visits the parameters of the direction with this index among all of them.
    pub(crate) fn visit<V: ModuleVisitor>(
        &self,
        container: &str,
        index: usize,
        directions: usize,
        visitor: &mut V,
    ) {
        macro_rules! visit {
            ($($parameter:ident),*) => {$(
                let name = torch_name(stringify!($parameter), index, directions);
                visitor.enter_module(&name, container);
                self.$parameter.visit(visitor);
                visitor.exit_module(&name, container);
            )*};
        }
        visit!(weight_ih, weight_hh, bias_ih, bias_hh);
    }

    /// Maps the parameters, as [`visit`](Self::visit) visits them.
    pub(crate) fn map<M: ModuleMapper>(
        self,
        container: &str,
        index: usize,
        directions: usize,
        mapper: &mut M,
    ) -> Self {
        let Self { weight_ih, weight_hh, bias_ih, bias_hh } = self;
        macro_rules! map {
            ($($parameter:ident),*) => {Self {$(
                $parameter: {
                    let name = torch_name(stringify!($parameter), index, directions);
                    mapper.enter_module(&name, container);
                    let mapped = Module::map($parameter, mapper);
                    mapper.exit_module(&name, container);
                    mapped
                },
            )*}};
        }
        map!(weight_ih, weight_hh, bias_ih, bias_hh)
    }
}

/// Makes a Burn module of a type with the fields `config` and `parameters`.
macro_rules! recurrent_module {
    ($Type:ident) => {
        impl $Type {
            /// The same module with every direction changed by `change`.
            fn each(
                self,
                change: impl Fn($crate::lstm::Direction) -> $crate::lstm::Direction,
            ) -> Self {
                let parameters = self.parameters.into_iter().map(change).collect();
                Self { parameters, ..self }
            }
        }

        impl burn::module::Module for $Type {
            fn collect_devices(
                &self,
                devices: Vec<burn::tensor::Device>,
            ) -> Vec<burn::tensor::Device> {
                self.parameters.iter().fold(devices, |all, part| part.collect_devices(all))
            }

            fn fork(self, device: &burn::tensor::Device) -> Self {
                self.each(|direction| direction.fork(device))
            }

            fn to_device(self, device: &burn::tensor::Device) -> Self {
                self.each(|direction| direction.moved_to(device))
            }

            fn train(self) -> Self {
                self.each(|direction| direction.train())
            }

            fn valid(&self) -> Self {
                self.clone().each(|direction| direction.valid())
            }

            fn materialize(self) -> Self {
                self.each(|direction| direction.materialize())
            }

            fn visit<V: burn::module::ModuleVisitor>(&self, visitor: &mut V) {
                let directions = self.config.directions();
                for (index, direction) in self.parameters.iter().enumerate() {
                    let container = concat!("Struct:", stringify!($Type));
                    direction.visit(container, index, directions, visitor);
                }
            }

            fn map<M: burn::module::ModuleMapper>(self, mapper: &mut M) -> Self {
                let directions = self.config.directions();
                let parameters = self.parameters.into_iter().enumerate();
                let parameters = parameters
                    .map(|(index, direction)| {
                        let container = concat!("Struct:", stringify!($Type));
                        direction.map(container, index, directions, mapper)
                    })
                    .collect();
                Self { parameters, ..self }
            }
        }

        impl burn::module::ModuleDisplayDefault for $Type {
            fn content(&self, content: burn::module::Content) -> Option<burn::module::Content> {
                content
                    .set_top_level_type(stringify!($Type))
                    .add("input", &self.config.input)
                    .add("hidden", &self.config.hidden)
                    .add("layers", &self.config.layers)
                    .add("bidirectional", &self.config.bidirectional)
                    .add("dropout", &self.config.dropout)
                    .optional()
            }

            fn num_params(&self) -> usize {
                burn::module::Module::num_params(self)
            }
        }

        impl burn::module::ModuleDisplay for $Type {
            fn custom_settings(&self) -> Option<burn::module::DisplaySettings> {
                burn::module::DisplaySettings::new().with_new_line_after_attribute(false).optional()
            }
        }

        impl std::fmt::Display for $Type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                use burn::module::ModuleDisplay;
                write!(formatter, "{}", self.format(burn::module::DisplaySettings::default()))
            }
        }
    };
}
pub(crate) use recurrent_module;
