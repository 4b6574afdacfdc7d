//! How Burn walks through an [`Lstm`]: written by hand so that the parameters carry PyTorch's names
//! in records, optimizers and reports.

use burn::module::{
    Content, DisplaySettings, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper,
    ModuleVisitor,
};
use burn::tensor::Device;

use super::{Direction, Lstm};

const CONTAINER: &str = "Struct:Lstm";

/// `weight_ih_l0`, `weight_ih_l0_reverse`, …
fn torch_name(parameter: &str, index: usize, directions: usize) -> String {
    let reverse = if index % directions == 1 { "_reverse" } else { "" };
    format!("{parameter}_l{}{reverse}", index / directions)
}

impl Lstm {
    /// The same module with every direction changed by `change`.
    fn each(self, change: impl Fn(Direction) -> Direction) -> Self {
        Self { config: self.config, parameters: self.parameters.into_iter().map(change).collect() }
    }
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

impl Module for Lstm {
    fn collect_devices(&self, mut devices: Vec<Device>) -> Vec<Device> {
        for Direction { weight_ih, weight_hh, bias_ih, bias_hh } in &self.parameters {
            devices = weight_ih.collect_devices(devices);
            devices = weight_hh.collect_devices(devices);
            devices = bias_ih.collect_devices(devices);
            devices = bias_hh.collect_devices(devices);
        }
        devices
    }

    fn fork(self, device: &Device) -> Self {
        self.each(|direction| each_parameter!(direction, p => p.fork(device)))
    }

    fn to_device(self, device: &Device) -> Self {
        self.each(|direction| each_parameter!(direction, p => p.to_device(device)))
    }

    fn train(self) -> Self {
        self.each(|direction| each_parameter!(direction, p => p.train()))
    }

    fn valid(&self) -> Self {
        self.clone().each(|direction| each_parameter!(direction, p => p.valid()))
    }

    fn materialize(self) -> Self {
        self.each(|direction| each_parameter!(direction, p => p.materialize()))
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        let directions = self.config.directions();
        for (index, direction) in self.parameters.iter().enumerate() {
            let Direction { weight_ih, weight_hh, bias_ih, bias_hh } = direction;
            macro_rules! visit {
                ($($parameter:ident),*) => {$(
                    let name = torch_name(stringify!($parameter), index, directions);
                    visitor.enter_module(&name, CONTAINER);
                    $parameter.visit(visitor);
                    visitor.exit_module(&name, CONTAINER);
                )*};
            }
            visit!(weight_ih, weight_hh, bias_ih, bias_hh);
        }
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let directions = self.config.directions();
        let parameters = self
            .parameters
            .into_iter()
            .enumerate()
            .map(|(index, direction)| {
                let Direction { weight_ih, weight_hh, bias_ih, bias_hh } = direction;
                macro_rules! map {
                    ($($parameter:ident),*) => {Direction {$(
                        $parameter: {
                            let name = torch_name(stringify!($parameter), index, directions);
                            mapper.enter_module(&name, CONTAINER);
                            let mapped = Module::map($parameter, mapper);
                            mapper.exit_module(&name, CONTAINER);
                            mapped
                        },
                    )*}};
                }
                map!(weight_ih, weight_hh, bias_ih, bias_hh)
            })
            .collect();
        Self { config: self.config, parameters }
    }
}

impl ModuleDisplayDefault for Lstm {
    fn content(&self, content: Content) -> Option<Content> {
        content
            .set_top_level_type("Lstm")
            .add("input", &self.config.input)
            .add("hidden", &self.config.hidden)
            .add("layers", &self.config.layers)
            .add("bidirectional", &self.config.bidirectional)
            .add("dropout", &self.config.dropout)
            .optional()
    }

    fn num_params(&self) -> usize {
        Module::num_params(self)
    }
}

impl ModuleDisplay for Lstm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }
}

impl std::fmt::Display for Lstm {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.format(DisplaySettings::default()))
    }
}
