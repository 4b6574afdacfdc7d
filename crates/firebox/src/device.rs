//! Which device a run uses, by name, and what that device is. The only place that knows backends.

use burn::tensor::Device;
use firebox_pipeline::ChosenDevice;

/// Names of the backends, each also a feature of this binary, and whether they are compiled in.
const BACKENDS: [(&str, bool); 6] = [
    ("cuda", cfg!(feature = "cuda-plain")),
    ("rocm", cfg!(feature = "rocm-plain")),
    ("vulkan", cfg!(feature = "vulkan-plain")),
    ("metal", cfg!(feature = "metal-plain")),
    ("wgpu", cfg!(feature = "wgpu-plain")),
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
    #[error(
        "no `{0}` device was found{1}\n  check its driver, or choose another with --device cpu"
    )]
    Absent(String, String),
}

/// A device of the list, or a backend without one.
pub(crate) struct Listed {
    /// As `--device` and `run.device` take it, such as `cuda:1`; a backend's own name where it has no device.
    pub(crate) name: String,
    /// What kind of adapter it is, where its backend says so.
    pub(crate) kind: Option<&'static str>,
    /// The device, or why it is not there.
    pub(crate) found: Result<ChosenDevice, DeviceError>,
}

/// Every device of every backend that a build could have, the CPU last, or why there is none. What one backend or device
/// fails at hides no other.
pub(crate) fn all() -> Vec<Listed> {
    let of = |(name, compiled): &(&str, bool)| match *name {
        "cpu" => {
            let found = Ok(cpu("asked for".to_owned()));
            vec![Listed { name: (*name).to_owned(), kind: None, found }]
        }
        _ if *compiled => listed(name, devices_of(name), |index, device| {
            (kind_of(&device), opened(name, index, device, "asked for"))
        }),
        _ => vec![Listed { name: (*name).to_owned(), kind: None, found: Err(not_compiled(name)) }],
    };
    BACKENDS.iter().flat_map(of).collect()
}

/// The devices that a backend found, each opened by itself.
fn listed<D>(
    name: &str,
    devices: Result<Vec<D>, DeviceError>,
    open: impl Fn(usize, D) -> (Option<&'static str>, Result<ChosenDevice, DeviceError>),
) -> Vec<Listed> {
    let none = |error| vec![Listed { name: name.to_owned(), kind: None, found: Err(error) }];
    let devices = match devices {
        Ok(devices) if devices.is_empty() => {
            return none(DeviceError::Absent(name.to_owned(), String::new()));
        }
        Ok(devices) => devices.into_iter().enumerate(),
        Err(error) => return none(error),
    };
    let of = |(index, device)| {
        let (kind, found) = open(index, device);
        Listed { name: format!("{name}:{index}"), kind, found }
    };
    devices.map(of).collect()
}

/// Begins the threads that compute, and resolves `auto`, `cpu`, `cuda`, `cuda:1`, ….
pub(crate) fn choose(wanted: &str) -> anyhow::Result<ChosenDevice> {
    firebox_pipeline::begin_threads()?;
    Ok(chosen(wanted)?)
}

fn chosen(wanted: &str) -> Result<ChosenDevice, DeviceError> {
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
        return Err(not_compiled(name));
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

fn not_compiled(name: &str) -> DeviceError {
    let built: Vec<_> = BACKENDS.iter().filter(|(_, built)| *built).map(|(n, _)| *n).collect();
    DeviceError::NotCompiled(name.to_owned(), built.join(", "))
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

/// The device of a backend with this number.
fn gpu(name: &str, index: usize, reason: &str) -> Result<ChosenDevice, DeviceError> {
    let mut devices = devices_of(name)?;
    if index >= devices.len() {
        return Err(DeviceError::Absent(name.to_owned(), beyond(name, index, devices.len())));
    }
    opened(name, index, devices.swap_remove(index), reason)
}

/// What is said of a number that no device has.
fn beyond(name: &str, index: usize, count: usize) -> String {
    let there = match count {
        0 => String::new(),
        1 => format!(": there is {name}:0 alone"),
        count => format!(": there are {name}:0 to {name}:{}", count - 1),
    };
    format!(" at index {index}{there}")
}

/// Does what asks a driver. Without one, the runtimes may panic instead of returning an error.
pub(crate) fn guarded<T>(name: &str, ask: impl FnOnce() -> T) -> Result<T, DeviceError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask)).map_err(|panic| {
        let cause = panic.downcast_ref::<String>().map(String::as_str);
        let cause = cause.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no cause given");
        DeviceError::Absent(name.to_owned(), format!(": {cause}"))
    })
}

/// The devices of a backend in the order of their numbers: those of CUDA and ROCm as their drivers count; adapters of
/// the other backends by kind, discrete ones first.
#[cfg(feature = "gpu")]
fn devices_of(name: &str) -> Result<Vec<Device>, DeviceError> {
    // Its settings are in files, and every backend is asked.
    static KEPT: std::sync::Once = std::sync::Once::new();
    KEPT.call_once(|| {
        firebox_pipeline::keep_compiled_kernels();
    });
    #[cfg(any(feature = "vulkan-plain", feature = "metal-plain"))]
    use burn::tensor::DeviceType;
    guarded(name, || match name {
        #[cfg(feature = "cuda-plain")]
        "cuda" => Ok(like(&Device::cuda(0))),
        #[cfg(feature = "rocm-plain")]
        "rocm" => Ok(like(&Device::rocm(0))),
        #[cfg(feature = "vulkan-plain")]
        "vulkan" => Ok(Device::enumerate(DeviceType::Vulkan).into_vec()),
        #[cfg(feature = "metal-plain")]
        "metal" => Ok(Device::enumerate(DeviceType::Metal).into_vec()),
        #[cfg(feature = "wgpu-plain")]
        "wgpu" => Ok(adapters()),
        _ => Err(DeviceError::Unknown(name.to_owned())),
    })?
}

/// All devices of the runtime and kind of this one, which need not be there. `Device::enumerate` asks every runtime of
/// the build for those of one, and so fails where any of them does; where it is asked for one graphics API, it does not.
#[cfg(any(feature = "cuda-plain", feature = "rocm-plain", feature = "wgpu-plain"))]
fn like(device: &Device) -> Vec<Device> {
    use burn::backend::{CubeDevice, DispatchDevice};
    let DispatchDevice::Cube(cube) = device.as_dispatch() else { return vec![] };
    let ids = CubeDevice::enumerate(cube.to_id());
    ids.into_iter().map(|id| Device::new(CubeDevice::from_id(id))).collect()
}

/// The adapters on the graphics API that wgpu chooses by itself, kind by kind.
#[cfg(feature = "wgpu-plain")]
fn adapters() -> Vec<Device> {
    use burn::backend::{CubeDevice, WgpuDevice, WgpuDeviceKind};
    let kinds = [
        WgpuDeviceKind::DiscreteGpu(0),
        WgpuDeviceKind::IntegratedGpu(0),
        WgpuDeviceKind::VirtualGpu(0),
        WgpuDeviceKind::Cpu,
        WgpuDeviceKind::Other(0),
    ];
    let of = |kind| like(&Device::new(CubeDevice::Wgpu(WgpuDevice::new(kind))));
    kinds.into_iter().flat_map(of).collect()
}

#[cfg(not(feature = "gpu"))]
fn devices_of(name: &str) -> Result<Vec<Device>, DeviceError> {
    Err(not_compiled(name))
}

/// What kind of adapter a device of wgpu's is.
#[cfg(any(feature = "vulkan-plain", feature = "metal-plain", feature = "wgpu-plain"))]
fn kind_of(device: &Device) -> Option<&'static str> {
    use burn::backend::{CubeDevice, DispatchDevice, WgpuDeviceKind};
    let DispatchDevice::Cube(CubeDevice::Wgpu(adapter)) = device.as_dispatch() else { return None };
    Some(match adapter.kind {
        WgpuDeviceKind::DiscreteGpu(_) => "discrete",
        WgpuDeviceKind::IntegratedGpu(_) => "integrated",
        WgpuDeviceKind::VirtualGpu(_) => "virtual",
        WgpuDeviceKind::Cpu => "software on the processor",
        _ => return None,
    })
}

#[cfg(not(any(feature = "vulkan-plain", feature = "metal-plain", feature = "wgpu-plain")))]
fn kind_of(_: &Device) -> Option<&'static str> {
    None
}

#[cfg(feature = "gpu")]
fn opened(
    name: &str,
    index: usize,
    device: Device,
    reason: &str,
) -> Result<ChosenDevice, DeviceError> {
    let own = format!("{name}:{index}");
    let (identity, abilities) = guarded(&own, || (device.identity(), abilities(&device)))?;
    // The name as its driver has it, by whose words the class is found; then what kernels are compiled for, which tells
    // parts of one name apart.
    let part = identity.map_or_else(
        || "unnamed".to_owned(),
        |identity| format!("{}; {}", identity.name, identity.fingerprint),
    );
    Ok(ChosenDevice {
        device,
        backend: name.to_owned(),
        description: format!("{own} {part}; {abilities}"),
        reason: reason.to_owned(),
    })
}

#[cfg(not(feature = "gpu"))]
fn opened(name: &str, _: usize, _: Device, _: &str) -> Result<ChosenDevice, DeviceError> {
    Err(not_compiled(name))
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
        if !cfg!(feature = "cuda-plain") {
            assert!(message("cuda").contains("--features cuda"));
        }
        assert_eq!(choose("cpu").unwrap().backend, "cpu");
    }

    fn absent(cause: &str) -> DeviceError {
        DeviceError::Absent("cuda".to_owned(), cause.to_owned())
    }

    #[test]
    fn every_device_is_listed_by_the_name_that_it_is_chosen_by_and_none_hides_another() {
        let texts = |all: Vec<Listed>| -> Vec<(String, String)> {
            let text = |found: Result<ChosenDevice, DeviceError>| match found {
                Ok(device) => device.description,
                Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
            };
            all.into_iter().map(|one| (one.name, text(one.found))).collect()
        };
        let open = |index: usize, what: &str| match what {
            "broken" => (None, guarded(&format!("cuda:{index}"), || panic!("it fell off the bus"))),
            what => {
                let description = format!("cuda:{index} {what}");
                (Some("discrete"), Ok(ChosenDevice { description, ..cpu(String::new()) }))
            }
        };
        let found = texts(listed("cuda", Ok(vec!["H200", "broken", "H100"]), open));
        let expected = [
            ("cuda:0", "cuda:0 H200"),
            ("cuda:1", "no `cuda:1` device was found: it fell off the bus"),
            ("cuda:2", "cuda:2 H100"),
        ];
        assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        for (devices, said) in [
            (Ok(vec![]), "no `cuda` device was found"),
            (Err(absent(": no driver")), "no `cuda` device was found: no driver"),
        ] {
            assert_eq!(
                texts(listed("cuda", devices, open)),
                [("cuda".to_owned(), said.to_owned())]
            );
        }
    }

    #[test]
    fn what_is_listed_can_be_chosen() {
        let all = all();
        for (name, compiled) in BACKENDS {
            let own = |one: &&Listed| one.name.split(':').next() == Some(name);
            let there: Vec<&Listed> = all.iter().filter(own).collect();
            assert!(!there.is_empty(), "{name}");
            let missing = |one: &&Listed| matches!(&one.found, Err(DeviceError::NotCompiled(..)));
            assert_eq!(there.iter().all(missing), !compiled, "{name}");
        }
        for Listed { name, found, .. } in &all {
            if let Ok(device) = found {
                assert_eq!(choose(name).unwrap().description, device.description);
            }
        }
        assert!(all.last().is_some_and(|one| one.name == "cpu" && one.found.is_ok()));
    }

    #[test]
    fn a_number_that_no_device_has_is_refused_with_those_that_are_there() {
        let said = |count| absent(&beyond("cuda", 3, count)).to_string();
        assert!(said(0).starts_with("no `cuda` device was found at index 3\n"));
        assert!(
            said(1).starts_with("no `cuda` device was found at index 3: there is cuda:0 alone")
        );
        assert!(said(3).contains("at index 3: there are cuda:0 to cuda:2\n"));
    }
}
