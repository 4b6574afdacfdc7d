//! Which device a run uses, by name, and what that device is. The only place that knows backends.

use burn::tensor::Device;
use firebox_pipeline::ChosenDevice;

/// Names of the backends, each also a feature of this binary, and whether they are compiled in.
const BACKENDS: [(&str, bool); 6] = [
    ("cuda", cfg!(feature = "cuda")),
    ("rocm", cfg!(feature = "rocm")),
    ("vulkan", cfg!(feature = "vulkan")),
    ("metal", cfg!(feature = "metal")),
    ("wgpu", cfg!(feature = "wgpu")),
    ("cpu", true),
];

/// A device that cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error(
        "`{0}` is not a device: use auto, cpu, or one of cuda, rocm, vulkan, metal, wgpu, with an index as in cuda:1"
    )]
    Unknown(String),
    #[error(
        "the device `{0}` is not compiled in (this build has {1})\n  build it with: cargo xtask pipeline ... --backend {0}\n  or:            cargo build --release -p firebox --features {0}"
    )]
    NotCompiled(String, String),
    #[cfg(feature = "gpu")]
    #[error(
        "no `{0}` device was found{1}\n  check its driver, or choose another with --device cpu"
    )]
    Absent(String, String),
}

/// Every device that a build could have, the CPU last, or why it is not there.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, Result<ChosenDevice, DeviceError>)> {
    BACKENDS.iter().map(|(name, _)| (*name, choose(name)))
}

/// Resolves `auto`, `cpu`, `cuda`, `cuda:1`, ….
pub(crate) fn choose(wanted: &str) -> Result<ChosenDevice, DeviceError> {
    if wanted == "auto" {
        return automatic();
    }
    let (name, index) = match wanted.split_once(':') {
        Some((name, index)) => {
            (name, index.parse().map_err(|_| DeviceError::Unknown(wanted.to_owned()))?)
        }
        None => (wanted, 0),
    };
    let Some((name, compiled)) = BACKENDS.iter().find(|(known, _)| *known == name) else {
        return Err(DeviceError::Unknown(wanted.to_owned()));
    };
    if !compiled {
        let built: Vec<_> = BACKENDS.iter().filter(|(_, built)| *built).map(|(n, _)| *n).collect();
        return Err(DeviceError::NotCompiled((*name).to_owned(), built.join(", ")));
    }
    if *name == "cpu" {
        return if index == 0 {
            Ok(cpu("asked for".to_owned()))
        } else {
            Err(DeviceError::Unknown(wanted.to_owned()))
        };
    }
    gpu(name, index, "asked for")
}

/// The first GPU backend compiled in whose device is there; else the CPU, saying why.
fn automatic() -> Result<ChosenDevice, DeviceError> {
    let mut missing = Vec::new();
    for (name, _) in BACKENDS.iter().filter(|(name, compiled)| *compiled && *name != "cpu") {
        match gpu(name, 0, "auto: the first GPU found") {
            Ok(device) => return Ok(device),
            Err(error) => {
                missing.push(error.to_string().lines().next().unwrap_or_default().to_owned())
            }
        }
    }
    let reason = if missing.is_empty() {
        "auto: this build has no GPU backend".to_owned()
    } else {
        format!("auto: {}", missing.join("; "))
    };
    Ok(cpu(reason))
}

fn cpu(reason: String) -> ChosenDevice {
    ChosenDevice {
        device: Device::flex(),
        backend: "cpu".to_owned(),
        description: firebox_pipeline::describe_cpu(),
        reason,
    }
}

#[cfg(feature = "gpu")]
fn gpu(name: &str, index: usize, reason: &str) -> Result<ChosenDevice, DeviceError> {
    use burn::tensor::DeviceType;
    let kind = match name {
        #[cfg(feature = "cuda")]
        "cuda" => DeviceType::Cuda,
        #[cfg(feature = "rocm")]
        "rocm" => DeviceType::Rocm,
        #[cfg(feature = "vulkan")]
        "vulkan" => DeviceType::Vulkan,
        #[cfg(feature = "metal")]
        "metal" => DeviceType::Metal,
        #[cfg(feature = "wgpu")]
        "wgpu" => DeviceType::Wgpu,
        _ => return Err(DeviceError::Unknown(name.to_owned())),
    };
    // Without a driver the runtimes panic instead of returning an empty list.
    let found = std::panic::catch_unwind(|| {
        let device = Device::enumerate(kind).into_iter().nth(index)?;
        let identity = device.identity();
        Some((device, identity))
    });
    let (device, identity) = match found {
        Ok(Some(found)) => found,
        Ok(None) => return Err(DeviceError::Absent(name.to_owned(), format!(" at index {index}"))),
        Err(panic) => {
            let cause = panic.downcast_ref::<String>().map(String::as_str);
            let cause = cause.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no cause given");
            return Err(DeviceError::Absent(name.to_owned(), format!(": {cause}")));
        }
    };
    let abilities = abilities(&device);
    // The name as its driver has it, by whose words the class is found; then what kernels are compiled for, which tells
    // parts of one name apart.
    let part = identity.map_or_else(
        || "unnamed".to_owned(),
        |identity| format!("{}; {}", identity.name, identity.fingerprint),
    );
    Ok(ChosenDevice {
        device,
        backend: name.to_owned(),
        description: format!("{name}:{index} {part}; {abilities}"),
        reason: reason.to_owned(),
    })
}

#[cfg(not(feature = "gpu"))]
fn gpu(name: &str, _: usize, _: &str) -> Result<ChosenDevice, DeviceError> {
    Err(DeviceError::NotCompiled(name.to_owned(), "cpu".to_owned()))
}

#[cfg(feature = "gpu")]
fn abilities(device: &Device) -> String {
    use burn::tensor::DType;
    let types = [("f16", DType::F16), ("bf16", DType::BF16), ("i8", DType::I8)];
    let supported: Vec<_> =
        types.iter().filter(|(_, dtype)| device.supports_dtype(*dtype)).map(|(n, _)| *n).collect();
    format!("f32 {}", supported.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_never_replaced_silently() {
        let message =
            |wanted: &str| choose(wanted).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message("gpu").contains("`gpu` is not a device"));
        assert!(message("cuda:x").contains("not a device"));
        assert!(message("cpu:1").contains("not a device"));
        if !cfg!(feature = "cuda") {
            assert!(message("cuda").contains("--features cuda"));
        }
        assert_eq!(choose("cpu").unwrap().backend, "cpu");
    }
}
