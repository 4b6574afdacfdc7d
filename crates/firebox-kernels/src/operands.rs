//! What every operation asks of its operands before it looks at their numbers, that they have one float type and one
//! device, and how messages name an operand: with its shape and its type.
//!
//! Shapes are not compared here: what fits is for an operation to know, and to say in its own words.

use std::fmt;

use burn::tensor::{DType, Device, Int, Tensor};

/// An operand of an operation, as messages name it.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    name: &'a str,
    tensor: &'a dyn Described,
}

/// What a message says of a tensor, whatever its number of axes.
pub(crate) trait Described {
    fn dtype(&self) -> DType;
    fn device(&self) -> Device;
    fn write_dims(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result;
}

impl<const D: usize> Described for Tensor<D> {
    fn dtype(&self) -> DType {
        <Tensor<D>>::dtype(self)
    }

    fn device(&self) -> Device {
        <Tensor<D>>::device(self)
    }

    fn write_dims(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.dims())
    }
}

impl<const D: usize> Described for Tensor<D, Int> {
    fn dtype(&self) -> DType {
        <Tensor<D, Int>>::dtype(self)
    }

    fn device(&self) -> Device {
        <Tensor<D, Int>>::device(self)
    }

    fn write_dims(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.dims())
    }
}

/// The name of an operand with its tensor.
pub(crate) fn operand<'a>(name: &'a str, tensor: &'a dyn Described) -> Operand<'a> {
    Operand { name, tensor }
}

struct Dims<'a>(&'a dyn Described);

impl fmt::Display for Dims<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write_dims(formatter)
    }
}

/// As in `weight [4, 3] in F32`.
impl fmt::Display for Operand<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} in {:?}", self.name, self.dims(), self.tensor.dtype())
    }
}

impl Operand<'_> {
    /// Its shape, as in `[4, 3]`.
    pub(crate) fn dims(&self) -> impl fmt::Display {
        Dims(self.tensor)
    }

    /// With the device that it is on.
    pub(crate) fn with_device(&self) -> String {
        format!("{self} on {:?}", self.tensor.device().without_autodiff())
    }
}

/// Refuses operands of different float types or on different devices. A tensor in a graph and one in none go together,
/// as they do in Burn, and a quantised one goes with any type: Burn's products take it so.
///
/// It costs a look at each type and device and nothing else where all are alike.
///
/// # Panics
/// With the operation, and with name, shape and type of each operand; with the devices, if these differ.
#[track_caller]
pub(crate) fn alike<'a, I>(operation: impl fmt::Display, operands: I)
where
    I: IntoIterator<Item = Operand<'a>>,
    I::IntoIter: Clone,
{
    let operands = operands.into_iter();
    let (types, devices) = (of_one_type(operands.clone()), on_one_device(operands.clone()));
    if !(types && devices) {
        refuse(&operation, operands.collect(), types, devices);
    }
}

/// [`alike`] for operands whose types differ on purpose.
///
/// # Panics
/// As [`alike`].
#[track_caller]
pub(crate) fn together<'a, I>(operation: impl fmt::Display, operands: I)
where
    I: IntoIterator<Item = Operand<'a>>,
    I::IntoIter: Clone,
{
    let operands = operands.into_iter();
    if !on_one_device(operands.clone()) {
        refuse(&operation, operands.collect(), true, false);
    }
}

/// Whether all have one type, quantised ones aside.
pub(crate) fn of_one_type<'a>(operands: impl Iterator<Item = Operand<'a>>) -> bool {
    let types = operands.map(|operand| operand.tensor.dtype());
    let mut types = types.filter(|dtype| !matches!(dtype, DType::QFloat(_)));
    types.next().is_none_or(|first| types.all(|other| other == first))
}

/// Whether all are on one device, in a graph or not.
pub(crate) fn on_one_device<'a>(operands: impl Iterator<Item = Operand<'a>>) -> bool {
    // Devices are equal whether they keep a graph or not.
    let mut devices = operands.map(|operand| operand.tensor.device());
    devices.next().is_none_or(|first| devices.all(|other| other == first))
}

const CAST: &str = "nothing is converted unasked, so cast what differs first, as in \
     `x.cast(DType::F32)`; on a processor the kernels of this crate compute in F32, and any other \
     type, if all have it, is left to Burn's operations";

const MOVE: &str =
    "nothing is moved unasked, so move what is elsewhere first, as in `x.to_device(&device)`";

#[cold]
#[track_caller]
fn refuse(
    operation: &dyn fmt::Display,
    operands: Vec<Operand<'_>>,
    types: bool,
    devices: bool,
) -> ! {
    let name = |operand: &Operand<'_>| match devices {
        true => operand.to_string(),
        false => operand.with_device(),
    };
    let given = operands.iter().map(name).collect::<Vec<_>>().join(", ");
    match (types, devices) {
        (false, true) => {
            panic!("{operation} takes operands of one float type, but was given {given}: {CAST}")
        }
        (false, false) => panic!(
            "{operation} takes operands of one float type on one device, but was given {given}: \
             {CAST}; {MOVE}"
        ),
        (true, _) => {
            panic!("{operation} takes operands on one device, but was given {given}: {MOVE}")
        }
    }
}

/// All with shapes and types, as in `x [2, 4] in F32, weight [4, 3] in F32`.
pub(crate) fn listed<'a>(operands: impl IntoIterator<Item = Operand<'a>>) -> String {
    operands.into_iter().map(|operand| operand.to_string()).collect::<Vec<_>>().join(", ")
}

/// What messages about shapes say of types, as in `x in F32, weight in F32`.
pub(crate) fn types<'a>(operands: impl IntoIterator<Item = Operand<'a>>) -> String {
    let of = |operand: Operand<'_>| format!("{} in {:?}", operand.name, operand.tensor.dtype());
    operands.into_iter().map(of).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeros(dtype: DType) -> Tensor<2> {
        Tensor::zeros([2, 3], (&Device::flex(), dtype))
    }

    #[test]
    fn a_graph_is_no_difference() {
        let (plain, graph) = (zeros(DType::F32), Tensor::from_inner(zeros(DType::F32)));
        alike("a sum", [operand("x", &plain), operand("y", &graph)]);
        alike("a sum", [operand("x", &graph), operand("y", &plain)]);
    }

    #[test]
    #[should_panic(
        expected = "a sum takes operands of one float type, but was given x [2, 3] in F32, y [2, 3] in \
                    BF16: nothing is converted unasked, so cast what differs first"
    )]
    fn types_that_differ_are_named() {
        let (x, y) = (zeros(DType::F32), zeros(DType::BF16));
        alike("a sum", [operand("x", &x), operand("y", &y)]);
    }

    #[test]
    #[should_panic(
        expected = "a sum takes operands on one device, but was given x [2, 3] in F32 on Device<"
    )]
    fn devices_are_named_without_their_graph() {
        let x = Tensor::from_inner(zeros(DType::F32));
        assert!(!operand("x", &x).with_device().contains("Autodiff"));
        refuse(&"a sum", vec![operand("x", &x)], true, false);
    }
}
