//! Which precision a run gets, and why: what a device can compute in, what was asked for, and what
//! measurement says. A type that cannot run is an error with its alternatives, never another type.
//!
//! What the words mean, by device:
//!
//! | asked for | processor | GPU |
//! |---|---|---|
//! | `f32` | products and sums in f32 (on AMX linear layers take each factor as three bf16, which are its 24 bits) | products in f32; where the device has TF32, which Burn's autotuning would take and nothing tells it not to (burn#5696), by a kernel that is named |
//! | `bf16` | operands of products rounded to bf16, sums in f32 | the same; gates and outputs of LSTMs are stored in bf16 too |
//! | `f16` | operands and gradients rounded to f16, kept and multiplied as f32: for checks, not for speed | as bf16, in f16, with a loss scale |
//! | `tf32`, `matmul = "high"` | an error: no processor has it | products by a kernel that is named, on tensor cores in TF32; an error where the device has none |
//! | `matmul = "highest"` | f32 itself | products by a kernel that is named, in f32 |
//! | `matmul = "medium"` | what `bf16` is here, under another name | an error: `bf16` stores in bf16, too |
//!
//! Weights, optimizer states, reductions, norms, softmax and losses are f32 whatever the precision.
//! Evaluation runs in the precision of training: a model carries it.

mod auto;
mod classes;

use burn::tensor::DType;
use firebox_core::{MatmulPrecision, Precision, PrecisionRule};
use firebox_kernels::{CpuKernels, CpuKernelsError, F32Products};
use serde::Serialize;

use crate::device::ChosenDevice;

pub(crate) use auto::choose_cached;
pub use classes::{DeviceClass, device_class, device_classes};

/// How a device computes in a type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Support {
    /// With instructions or units for it; what they are.
    Native(String),
    /// Right, and without a gain; how.
    Emulated(String),
    /// Not at all; why.
    Missing(String),
}

impl Support {
    /// Whether a run can have it.
    pub fn is_there(&self) -> bool {
        !matches!(self, Self::Missing(_))
    }

    /// What makes it so.
    pub fn how(&self) -> &str {
        match self {
            Self::Native(how) | Self::Emulated(how) | Self::Missing(how) => how,
        }
    }
}

/// What a device can compute in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Abilities {
    /// Each precision, the most exact first.
    pub precisions: Vec<(Precision, Support)>,
    /// Whether this is a processor.
    pub processor: bool,
    /// Why products of f32 cannot be kept in f32; none if they can.
    #[serde(skip)]
    pub inexact: Option<String>,
}

impl Abilities {
    /// Asks the device.
    ///
    /// # Errors
    /// If `FIREBOX_KERNELS` asks for what this processor cannot run.
    pub fn of(device: &ChosenDevice) -> Result<Self, CpuKernelsError> {
        let processor = device.backend == "cpu";
        let precisions = if processor {
            of_processor(CpuKernels::current()?)
        } else {
            let tf32 = F32Products::Tf32.check(&device.device).map_err(|error| error.to_string());
            of_gpu(|dtype| device.device.supports_dtype(dtype), tf32)
        };
        let inexact = match processor {
            true => None,
            false => F32Products::Exact.check(&device.device).err().map(|error| error.to_string()),
        };
        Ok(Self { precisions, processor, inexact })
    }

    /// How the device computes in one.
    pub fn support(&self, precision: Precision) -> &Support {
        static NEVER: std::sync::OnceLock<Support> = std::sync::OnceLock::new();
        let found = self.precisions.iter().find(|(one, _)| *one == precision);
        found.map_or_else(
            || NEVER.get_or_init(|| Support::Missing("unknown here".to_owned())),
            |(_, support)| support,
        )
    }

    /// The precisions that a run can have, as a person would list them.
    fn alternatives(&self) -> String {
        let there = self.precisions.iter().filter(|(_, support)| support.is_there());
        there.map(|(precision, _)| format!("\"{precision}\"")).collect::<Vec<_>>().join(", ")
    }
}

fn of_processor(kernels: CpuKernels) -> Vec<(Precision, Support)> {
    let bf16 = match kernels {
        CpuKernels::Avx512Bf16 => Support::Native("AVX-512-BF16".to_owned()),
        CpuKernels::Amx => Support::Native("AMX".to_owned()),
        _ => Support::Emulated("operands are rounded to bf16 and multiplied as f32".to_owned()),
    };
    let f16 = "operands and gradients are rounded to f16, kept and multiplied as f32".to_owned();
    vec![
        (Precision::F32, Support::Native("every processor".to_owned())),
        (Precision::Tf32, Support::Missing("no processor has TF32".to_owned())),
        (Precision::Bf16, bf16),
        (Precision::F16, Support::Emulated(f16)),
    ]
}

fn of_gpu(supports: impl Fn(DType) -> bool, tf32: Result<(), String>) -> Vec<(Precision, Support)> {
    let half = |dtype: DType, name: &str| match supports(dtype) {
        true => Support::Native(format!("the device computes in {name}")),
        false => Support::Missing(format!("the device or its driver has no {name}")),
    };
    let tf32 = match tf32 {
        Ok(()) => Support::Native("its tensor cores multiply in TF32".to_owned()),
        Err(why) => Support::Missing(why),
    };
    vec![
        (Precision::F32, Support::Native("every GPU".to_owned())),
        (Precision::Tf32, tf32),
        (Precision::Bf16, half(DType::BF16, "bf16")),
        (Precision::F16, half(DType::F16, "f16")),
    ]
}

/// A precision with the reason for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// What models compute in.
    pub precision: Precision,
    /// Why, in one line.
    pub reason: String,
}

/// What follows from what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The answer.
    Settled(Policy),
    /// It takes a measurement of these, f32 first.
    Measure(Vec<Precision>),
}

/// What was asked for and cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A type that the device does not have.
    #[error(
        "`run.precision` is {asked}, and this device does not compute in it: {why}\n  set run.precision to one of {alternatives}, or to \"auto\""
    )]
    Missing {
        /// The type.
        asked: Precision,
        /// Why not.
        why: String,
        /// What can be set instead.
        alternatives: String,
    },
    /// An exactness of f32 products that the device cannot promise.
    #[error(
        "`run.matmul` is {asked}, and this device cannot promise it: {why}\n  leave `run.matmul` out, or {way_out}"
    )]
    Matmul {
        /// What was asked for.
        asked: MatmulPrecision,
        /// Why not.
        why: String,
        /// What else does it.
        way_out: &'static str,
    },
    /// Two settings that contradict each other.
    #[error(
        "`run.matmul` is {matmul} and `run.precision` is {rule}: `run.matmul` says how exact products of f32 are\n  leave one of them out"
    )]
    Both {
        /// The one.
        matmul: MatmulPrecision,
        /// The other.
        rule: PrecisionRule,
    },
}

/// What a run computes in, as far as that does not take a measurement.
///
/// # Errors
/// If the device cannot do what was asked for, or the settings contradict each other.
pub fn resolve(
    rule: PrecisionRule,
    matmul: Option<MatmulPrecision>,
    abilities: &Abilities,
) -> Result<Resolution, PolicyError> {
    if let Some(matmul) = matmul {
        return with_matmul(rule, matmul, abilities);
    }
    let PrecisionRule::Fixed(precision) = rule else {
        return Ok(Resolution::Measure(candidates(abilities)));
    };
    let reason = match abilities.support(precision) {
        Support::Missing(why) => {
            let (why, alternatives) = (why.clone(), abilities.alternatives());
            return Err(PolicyError::Missing { asked: precision, why, alternatives });
        }
        Support::Emulated(_) if precision == Precision::F16 => {
            "as written; on a processor operands and gradients are rounded to f16, kept and multiplied as f32, and it is slower than that".to_owned()
        }
        Support::Native(_) | Support::Emulated(_) => {
            "as written; weights, states and sums are f32 whatever it is".to_owned()
        }
    };
    Ok(Resolution::Settled(Policy { precision, reason }))
}

fn with_matmul(
    rule: PrecisionRule,
    matmul: MatmulPrecision,
    abilities: &Abilities,
) -> Result<Resolution, PolicyError> {
    use MatmulPrecision::{High, Highest, Medium};
    let settled = |precision, reason: &str| {
        Ok(Resolution::Settled(Policy { precision, reason: reason.to_owned() }))
    };
    let refuse = |why: &str, way_out| {
        Err(PolicyError::Matmul { asked: matmul, why: why.to_owned(), way_out })
    };
    match (rule, matmul) {
        (PrecisionRule::Fixed(Precision::Tf32), High)
        | (PrecisionRule::Fixed(Precision::F32), High) => {
            match abilities.support(Precision::Tf32) {
                Support::Missing(why) => refuse(why, "set run.precision = \"bf16\""),
                _ => settled(
                    Precision::Tf32,
                    "run.matmul = high is TF32: products on tensor cores with 10 bits of mantissa, sums in f32",
                ),
            }
        }
        (PrecisionRule::Fixed(Precision::F32), Highest) if abilities.processor => settled(
            Precision::F32,
            "as written; products of f32 are by vectors of f32, not in tiles of bf16",
        ),
        (PrecisionRule::Fixed(Precision::F32), Highest) => match &abilities.inexact {
            Some(why) => refuse(why, "take --device cpu"),
            None => settled(
                Precision::F32,
                "as written; products are by a kernel that multiplies in f32, whichever autotuning would prefer",
            ),
        },
        (PrecisionRule::Fixed(Precision::F32), Medium) if abilities.processor => settled(
            Precision::Bf16,
            "run.matmul = medium rounds the operands of f32 products to bf16, which is all that bf16 does on a processor",
        ),
        (PrecisionRule::Fixed(Precision::F32), Medium) => refuse(
            "bf16 stores the gates and outputs of LSTMs in bf16 here, and not products alone",
            "set run.precision = \"bf16\"",
        ),
        _ => Err(PolicyError::Both { matmul, rule }),
    }
}

/// What `auto` measures: f32 first, then what might be faster. f16 in software never is.
fn candidates(abilities: &Abilities) -> Vec<Precision> {
    let may_gain = |(precision, support): &&(Precision, Support)| match support {
        Support::Native(_) => true,
        Support::Emulated(_) => *precision == Precision::Bf16,
        Support::Missing(_) => false,
    };
    abilities.precisions.iter().filter(may_gain).map(|(precision, _)| *precision).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processor(kernels: CpuKernels) -> Abilities {
        Abilities { precisions: of_processor(kernels), processor: true, inexact: None }
    }

    fn gpu(bf16: bool) -> Abilities {
        let supports = |dtype| dtype != DType::BF16 || bf16;
        // A card with bf16 is one with TF32.
        let tf32 = if bf16 { Ok(()) } else { Err("it has no TF32".to_owned()) };
        Abilities { precisions: of_gpu(supports, tf32), processor: false, inexact: None }
    }

    fn message(
        rule: PrecisionRule,
        matmul: Option<MatmulPrecision>,
        abilities: &Abilities,
    ) -> String {
        resolve(rule, matmul, abilities).unwrap_err().to_string()
    }

    #[test]
    fn what_a_device_lacks_is_an_error_with_alternatives() {
        let fixed = PrecisionRule::Fixed;
        let cpu = processor(CpuKernels::Avx2);
        let said = message(fixed(Precision::Tf32), None, &cpu);
        assert!(said.contains("no processor has TF32"), "{said}");
        assert!(said.contains("one of \"f32\", \"bf16\", \"f16\", or to \"auto\""), "{said}");
        let said = message(fixed(Precision::Bf16), None, &gpu(false));
        assert!(said.contains("has no bf16\n  set run.precision to one of \"f32\", \"f16\""));
        let said = message(fixed(Precision::Tf32), None, &gpu(false));
        assert!(said.contains("it has no TF32\n  set run.precision"), "{said}");
        let there = resolve(fixed(Precision::Tf32), None, &gpu(true));
        assert!(matches!(
            there,
            Ok(Resolution::Settled(Policy { precision: Precision::Tf32, .. }))
        ));
    }

    #[test]
    fn the_exactness_of_products_is_promised_or_refused() {
        let f32 = PrecisionRule::Fixed(Precision::F32);
        let (cpu, old, gpu) = (processor(CpuKernels::Avx512Bf16), gpu(false), gpu(true));
        let settled = |matmul, abilities| match resolve(f32, Some(matmul), abilities) {
            Ok(Resolution::Settled(policy)) => policy.precision,
            other => panic!("{other:?}"),
        };
        assert_eq!(settled(MatmulPrecision::Highest, &cpu), Precision::F32);
        assert_eq!(settled(MatmulPrecision::Medium, &cpu), Precision::Bf16);
        assert_eq!(settled(MatmulPrecision::Highest, &gpu), Precision::F32);
        assert_eq!(settled(MatmulPrecision::High, &gpu), Precision::Tf32);
        let composed = Abilities { inexact: Some("it takes none".to_owned()), ..gpu.clone() };
        for (matmul, abilities, expected) in [
            (MatmulPrecision::High, &cpu, "no processor has TF32"),
            (MatmulPrecision::High, &old, "it has no TF32"),
            (
                MatmulPrecision::Highest,
                &composed,
                "it takes none\n  leave `run.matmul` out, or take --device cpu",
            ),
            (MatmulPrecision::Medium, &gpu, "set run.precision = \"bf16\""),
        ] {
            let said = message(f32, Some(matmul), abilities);
            assert!(said.contains(expected), "{said}");
        }
        for rule in [PrecisionRule::Auto, PrecisionRule::Fixed(Precision::Bf16)] {
            let said = message(rule, Some(MatmulPrecision::Highest), &cpu);
            assert!(said.contains("leave one of them out"), "{said}");
        }
    }

    #[test]
    fn auto_measures_what_may_be_faster() {
        let of = |abilities: &Abilities| match resolve(PrecisionRule::Auto, None, abilities) {
            Ok(Resolution::Measure(candidates)) => candidates,
            other => panic!("{other:?}"),
        };
        let (f32, bf16, f16) = (Precision::F32, Precision::Bf16, Precision::F16);
        assert_eq!(of(&processor(CpuKernels::Avx512Bf16)), [f32, bf16]);
        assert_eq!(of(&processor(CpuKernels::Avx2)), [f32, bf16]);
        assert_eq!(of(&gpu(true)), [f32, Precision::Tf32, bf16, f16]);
        assert_eq!(of(&gpu(false)), [f32, f16]);
    }
}
