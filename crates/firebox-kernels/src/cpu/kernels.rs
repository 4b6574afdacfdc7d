//! Which vector instructions the kernels use: chosen at run time, or forced.

use std::cell::Cell;
use std::sync::OnceLock;

use super::amx;
use crate::scoped::while_set;

/// A variant of the CPU kernels. The fastest that the processor has is used, unless the environment
/// variable `FIREBOX_KERNELS` names one: `composed`, `portable`, `avx2`, `avx512`, `avx512-bf16` or `amx`.
///
/// In bf16, variants without an instruction for it compute in f32 what was rounded to bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuKernels {
    /// None: Burn's own operations, as on every other device.
    Composed,
    /// Plain Rust, which the compiler turns into SSE2 or NEON instructions.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512F.
    Avx512,
    /// AVX-512F, and AVX-512-BF16 for products in bf16; in f32 the same as [`Avx512`](Self::Avx512). Intel's
    /// processors have that instruction as well, but it multiplies no more numbers a second there than those of f32
    /// do, and products took 1.3 to 2 times as long with it: of the two, [`Avx512`](Self::Avx512) is chosen there.
    Avx512Bf16,
    /// The tiles of AMX for the products of recurrent and linear layers, pairs of matrices, convolutions and attention in
    /// bf16, and of all of these but convolutions and attention in f32, as the sum of three bf16 for each number, where
    /// Linux lets the process use them; everything else as the widest of the others. In f32 an infinite number is NaN
    /// where it is multiplied so, which is where there are samples and units enough.
    Amx,
}

/// A variant that was asked for and cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CpuKernelsError {
    /// A value of `FIREBOX_KERNELS` that names nothing.
    #[error(
        "FIREBOX_KERNELS is `{found}`; allowed are `composed`, `portable`, `avx2`, `avx512`, `avx512-bf16` and `amx`"
    )]
    Unknown {
        /// The value found.
        found: String,
    },
    /// A variant whose instructions this process cannot use here.
    #[error(
        "FIREBOX_KERNELS asks for `{}`, which this processor or its system cannot run; it has {}",
        asked.name(),
        available.iter().map(|own| format!("`{}`", own.name())).collect::<Vec<_>>().join(", ")
    )]
    Unavailable {
        /// The variant asked for.
        asked: CpuKernels,
        /// The variants that would run here.
        available: Vec<CpuKernels>,
    },
}

thread_local! {
    static FORCED: Cell<Option<CpuKernels>> = const { Cell::new(None) };
}

impl CpuKernels {
    /// The variants that this processor can run, the fastest last.
    pub fn available() -> Vec<Self> {
        let mut order = Self::VECTORS;
        if !has_fast_pairs() {
            let [.., plain, pairs] = &mut order;
            std::mem::swap(plain, pairs);
        }
        order.into_iter().chain([Self::Amx]).filter(|kernels| kernels.runs_here()).collect()
    }

    /// Whether operands in bf16 are multiplied in pairs, by an instruction; else they are rounded to bf16, and multiplied
    /// as f32.
    pub fn multiplies_pairs(self) -> bool {
        matches!(self, Self::Avx512Bf16 | Self::Amx)
    }

    /// Its value of `FIREBOX_KERNELS`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Composed => "composed",
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Amx => "amx",
        }
    }

    /// Those that differ in their vectors.
    const VECTORS: [Self; 5] =
        [Self::Composed, Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16];

    /// This variant, or, of one that multiplies f32 in pieces of bf16, the one whose vectors it computes with, which
    /// multiplies f32 itself.
    #[must_use]
    pub fn exact(self) -> Self {
        self.vectors()
    }

    /// The variant whose vectors this one computes with.
    pub(super) fn vectors(self) -> Self {
        match self {
            Self::Amx => {
                let mut others = Self::VECTORS.into_iter().rev();
                others.find(|kernels| kernels.runs_here()).unwrap_or(Self::Portable)
            }
            other => other,
        }
    }

    /// The variant that is used on this thread.
    ///
    /// # Errors
    /// If `FIREBOX_KERNELS` names no variant or one that this processor lacks.
    pub fn current() -> Result<Self, CpuKernelsError> {
        static CHOSEN: OnceLock<Result<CpuKernels, CpuKernelsError>> = OnceLock::new();
        match FORCED.get() {
            Some(kernels) => Ok(kernels),
            None => {
                CHOSEN.get_or_init(|| Self::choose(std::env::var("FIREBOX_KERNELS").ok())).clone()
            }
        }
    }

    /// Runs `f` with this variant in place of the chosen one: for tests and comparisons. Gradients
    /// of what was computed inside use it too.
    ///
    /// # Panics
    /// If this processor cannot run it.
    pub fn force<T>(self, f: impl FnOnce() -> T) -> T {
        assert!(self.runs_here(), "this processor cannot run {self:?} kernels");
        while_set(&FORCED, Some(self), f)
    }

    /// Takes it that this processor has AMX: for tests that do what its instructions would do.
    ///
    /// # Safety
    /// Whatever the processor does with those instructions, it is what they would do.
    #[doc(hidden)]
    pub unsafe fn assume_amx() {
        amx::assume();
    }

    /// The variant that is used on this thread, unless it is [`Composed`](Self::Composed).
    ///
    /// # Panics
    /// If `FIREBOX_KERNELS` cannot be followed: [`current`](Self::current) says so without a panic.
    pub(crate) fn fused() -> Option<Self> {
        match Self::current() {
            Ok(Self::Composed) => None,
            Ok(kernels) => Some(kernels),
            Err(error) => panic!("{error}"),
        }
    }

    fn choose(asked: Option<String>) -> Result<Self, CpuKernelsError> {
        let available = Self::available();
        let asked = match asked.as_deref() {
            None | Some("") => return Ok(available.last().copied().unwrap_or(Self::Portable)),
            // As it is written in settings and keys, too.
            Some("avx512bf16") => Self::Avx512Bf16,
            Some(name) => {
                let mut all = Self::VECTORS.into_iter().chain([Self::Amx]);
                let unknown = || CpuKernelsError::Unknown { found: name.to_owned() };
                all.find(|kernels| kernels.name() == name).ok_or_else(unknown)?
            }
        };
        match available.contains(&asked) {
            true => Ok(asked),
            false => Err(CpuKernelsError::Unavailable { asked, available }),
        }
    }

    fn runs_here(self) -> bool {
        match self {
            Self::Composed | Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512bf16")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 | Self::Avx512Bf16 => false,
            Self::Amx => amx::available(),
        }
    }
}

/// Whether the vectors of this processor multiply pairs of bf16 faster than as many numbers in f32, if they do: those
/// of AMD (from Zen 4 on) do, those of Intel (Sapphire and Emerald Rapids) do not.
fn has_fast_pairs() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let name = std::arch::x86_64::__cpuid(0);
        [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes).as_flattened() != b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// The vectors that code of a type is compiled for: each takes time to compile, and bytes. Where the variant has others,
/// AVX-512 without that instruction runs, if it may, and else [`Portable`](super::simd::Portable).
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "other processors have one kind of vectors")
)]
pub(super) trait CompiledFor {
    const AVX2: bool = true;
    const AVX512: bool = true;
    /// With the instruction for pairs of bf16.
    const AVX512_BF16: bool = true;
}

/// Defines `$name`, which runs `$generic::<S, ...>` with the variant's instructions switched on, of those that all types
/// are [compiled for](CompiledFor).
macro_rules! dispatch {
    ($(#[$doc:meta])* $vis:vis fn $name:ident$(<$($type_name:ident: $bound:ident),*>)?
        = $generic:ident($($argument:ident: $type:ty),*)
    ) => {
        $(#[$doc])*
        $vis fn $name$(<$($type_name: $bound),*>)?(
            kernels: $crate::cpu::CpuKernels,
            $($argument: $type),*
        ) {
            #[cfg(target_arch = "x86_64")]
            use $crate::cpu::simd::{Avx2, Avx512};
            use $crate::cpu::simd::Portable;

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bf16")]
            fn avx512_bf16$(<$($type_name: $bound),*>)?($($argument: $type),*) {
                // SAFETY: the features are on in this function.
                unsafe { $generic::<Avx512<true>$($(, $type_name)*)?>($($argument),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f")]
            fn avx512$(<$($type_name: $bound),*>)?($($argument: $type),*) {
                // SAFETY: the feature is on in this function.
                unsafe { $generic::<Avx512<false>$($(, $type_name)*)?>($($argument),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2$(<$($type_name: $bound),*>)?($($argument: $type),*) {
                // SAFETY: the features are on in this function.
                unsafe { $generic::<Avx2$($(, $type_name)*)?>($($argument),*) }
            }
            match kernels.vectors() {
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::CpuKernels::Avx512Bf16
                    if true $($(&& <$type_name as $crate::cpu::kernels::CompiledFor>::AVX512_BF16)*)? =>
                {
                    // SAFETY: a variant comes from detection, or from `force`, which checks it.
                    unsafe { avx512_bf16$(::<$($type_name),*>)?($($argument),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::CpuKernels::Avx512 | $crate::cpu::CpuKernels::Avx512Bf16
                    if true $($(&& <$type_name as $crate::cpu::kernels::CompiledFor>::AVX512)*)? =>
                {
                    // SAFETY: as above; a processor with the instruction for pairs has the others.
                    unsafe { avx512$(::<$($type_name),*>)?($($argument),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::CpuKernels::Avx2
                    if true $($(&& <$type_name as $crate::cpu::kernels::CompiledFor>::AVX2)*)? =>
                {
                    // SAFETY: as above.
                    unsafe { avx2$(::<$($type_name),*>)?($($argument),*) }
                }
                // SAFETY: needs no feature.
                _ => unsafe { $generic::<Portable$($(, $type_name)*)?>($($argument),*) },
            }
        }
    };
}
pub(super) use dispatch;

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_environment_chooses_or_is_told_what_is_allowed() {
        let choose = |text: &str| CpuKernels::choose(Some(text.to_owned()));
        assert_eq!(choose("portable"), Ok(CpuKernels::Portable));
        assert_eq!(CpuKernels::choose(None).ok(), CpuKernels::available().last().copied());
        for kernels in CpuKernels::available() {
            assert_eq!(choose(kernels.name()), Ok(kernels));
        }
        let (asked, available) = (CpuKernels::Amx, vec![CpuKernels::Avx2, CpuKernels::Avx512Bf16]);
        assert_eq!(
            CpuKernelsError::Unavailable { asked, available }.to_string(),
            "FIREBOX_KERNELS asks for `amx`, which this processor or its system cannot run; it has `avx2`, `avx512-bf16`"
        );
        assert_eq!(
            choose("sse9").expect_err("unknown").to_string(),
            "FIREBOX_KERNELS is `sse9`; allowed are `composed`, `portable`, `avx2`, `avx512`, `avx512-bf16` and `amx`"
        );
    }

    #[test]
    fn a_forced_variant_lasts_as_long_as_its_closure() {
        let before = CpuKernels::current();
        CpuKernels::Portable.force(|| assert_eq!(CpuKernels::current(), Ok(CpuKernels::Portable)));
        assert_eq!(CpuKernels::current(), before);
    }
}
