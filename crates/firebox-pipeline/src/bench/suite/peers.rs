//! The peer: PyTorch, through a script that times the same workloads and prints the same keys.

use std::path::{Path, PathBuf};
use std::process::Command;

use firebox_core::Precision;

use super::cases::{Case, peer_steps, peer_warmup};
use super::process::text;
use crate::error::PipelineError;

/// The forms that PyTorch is timed in: as installed, and with glibc's allocator tuned. On a GPU memory
/// is not glibc's.
const FORMS: [(&str, &[&str]); 2] = [("installed", &[]), ("tuned", &["--tuned"])];

/// A Python that has PyTorch, and the script.
pub(super) struct Torch {
    python: PathBuf,
    script: PathBuf,
    on_gpu: bool,
}

/// Where the peer is, or is to be made.
#[derive(Clone, Debug, Default)]
pub struct TorchConfig {
    /// A Python that has PyTorch. Without one, `python3` is tried, and then an environment is made.
    pub python: Option<PathBuf>,
    /// The script, `torch_steps.py`.
    pub script: PathBuf,
    /// Folder of the environment that is made where no Python has PyTorch.
    pub environment: PathBuf,
}

impl Torch {
    /// Finds the peer for a device, or makes an environment for it.
    pub(super) fn find(
        config: &TorchConfig,
        device: &str,
        say: &dyn Fn(&str),
    ) -> Result<Self, PipelineError> {
        let TorchConfig { script, environment, .. } = config;
        let backend = device.split(':').next().unwrap_or_default();
        let on_gpu = backend != "cpu";
        if !script.is_file() {
            return Err(PipelineError::Setting(format!(
                "the peer's script {} is not there\n  name it with --torch-steps FILE: a program that prints the keys of `firebox bench --json`",
                script.display()
            )));
        }
        let made = environment.join("bin").join("python");
        let python = match &config.python {
            Some(python) if has_torch(python) => python.clone(),
            Some(python) => {
                return Err(PipelineError::Setting(format!(
                    "{} has no PyTorch\n  name another with --python, or leave it out: then an environment is made",
                    python.display()
                )));
            }
            None => {
                match [PathBuf::from("python3"), made.clone()].into_iter().find(|p| has_torch(p)) {
                    Some(python) => python,
                    None => {
                        make(environment, on_gpu, say)?;
                        made
                    }
                }
            }
        };
        // Others are not PyTorch's to choose from.
        if on_gpu && shown_by(backend).is_empty() {
            say(&elsewhere(device, first_gpu(&python).as_deref())?);
        }
        Ok(Self { python, script: script.clone(), on_gpu })
    }

    /// The forms that it is timed in.
    pub(super) fn forms(&self) -> &'static [(&'static str, &'static [&'static str])] {
        if self.on_gpu { &FORMS[..1] } else { &FORMS }
    }

    /// How a form is started for a case.
    pub(super) fn command(&self, case: &Case, form: &[&str], device: &str) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(&self.script).args(arguments(case)).args(form);
        // Its devices have no index, and no other name than these two: it takes the first GPU that it is shown.
        if device.starts_with("cpu") {
            let threads = case.threads_or_all().to_string();
            command.args(["--device", "cpu", "--threads", &threads]);
            // What it would take from its environment is not what our side has.
            command.env_remove("OMP_NUM_THREADS").env_remove("MKL_NUM_THREADS");
        } else {
            command.args(["--device", "cuda"]);
            command.envs(shown(device, |name| std::env::var(name).ok()));
        }
        command
    }

    /// How a form is typed for a case, without the folders of this machine.
    pub(super) fn typed(&self, case: &Case, form: &[&str], device: &str) -> String {
        let name = |path: &Path| path.file_name().map(PathBuf::from).unwrap_or_default();
        let (python, script) = (name(&self.python), name(&self.script));
        text(&Self { python, script, on_gpu: self.on_gpu }.command(case, form, device))
    }
}

/// Variables by which the runtime of a backend is told which GPUs it shows, the one that it heeds first; none of a backend
/// that PyTorch does not have.
fn shown_by(backend: &str) -> &'static [&'static str] {
    match backend {
        "cuda" => &["CUDA_VISIBLE_DEVICES"],
        "rocm" => &["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"],
        _ => &[],
    }
}

/// What the peer has to find in its environment so that the first GPU that it is shown is this device. None where it is so
/// anyway, or where its numbers say nothing to PyTorch.
fn shown(
    device: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<(&'static str, String)> {
    let (backend, index) = device.split_once(':')?;
    let index: usize = index.parse().ok().filter(|index| *index > 0)?;
    let names = shown_by(backend);
    // Within the user's own list, Firebox has counted.
    let list = names.iter().find_map(|name| variable(name));
    let entry = list.as_deref().and_then(|list| list.split(',').nth(index));
    let entry = entry.map_or_else(|| index.to_string(), |entry| entry.trim().to_owned());
    Some((*names.first()?, entry))
}

/// The name of the first GPU that a PyTorch has, if any.
fn first_gpu(python: &Path) -> Option<String> {
    let ask = "import torch; print(torch.cuda.get_device_name(0))";
    let output = Command::new(python).args(["-c", ask]).output().ok()?;
    let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !name.is_empty()).then_some(name)
}

/// What is said where PyTorch has no such device as ours: on which GPU it runs instead.
fn elsewhere(device: &str, gpu: Option<&str>) -> Result<String, PipelineError> {
    match gpu {
        Some(gpu) => Ok(format!(
            "PyTorch has no device `{device}`: it is timed on its first GPU, {gpu}, whichever one Firebox is timed on"
        )),
        None => Err(PipelineError::Setting(format!(
            "PyTorch has no device `{device}`, and found no GPU of CUDA or ROCm to be timed on instead\n  leave out --peers, or name another device with --device"
        ))),
    }
}

fn arguments(case: &Case) -> Vec<String> {
    let config = &case.config;
    let precision = match config.precision {
        Precision::F32 => "fp32".to_owned(),
        Precision::F16 => "fp16".to_owned(),
        other => other.to_string(),
    };
    let batch = config.batch.unwrap_or(config.workload.default_batch());
    let mut arguments: Vec<String> = [
        ("--workload", config.workload.name().to_owned()),
        ("--precision", precision),
        ("--batch", batch.to_string()),
        ("--steps", peer_steps(config.steps).to_string()),
        ("--warmup", peer_warmup(config.warmup).to_string()),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.to_owned(), value])
    .collect();
    if config.evaluate {
        arguments.push("--eval".to_owned());
    }
    arguments
}

fn has_torch(python: &Path) -> bool {
    let import = Command::new(python).args(["-c", "import torch"]).output();
    import.is_ok_and(|output| output.status.success())
}

/// Makes an environment with PyTorch in it: for a processor from PyTorch's own index, whose packages
/// are a tenth of PyPI's, else from PyPI.
fn make(folder: &Path, on_gpu: bool, say: &dyn Fn(&str)) -> Result<(), PipelineError> {
    let failed = |what: &str, said: &str| {
        PipelineError::Setting(format!(
            "{what}: {said}\n  install PyTorch yourself, and name its Python with --python"
        ))
    };
    let run = |program: &Path, arguments: &[&str]| -> Result<(), String> {
        let output = Command::new(program).args(arguments).output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                let errors = String::from_utf8_lossy(&output.stderr).into_owned();
                Err(errors
                    .lines()
                    .rev()
                    .find(|line| !line.trim().is_empty())
                    .unwrap_or("")
                    .to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    };
    say(&format!("no Python has PyTorch: making an environment for it in {}", folder.display()));
    let at = folder.to_string_lossy();
    run(Path::new("python3"), &["-m", "venv", &at])
        .map_err(|said| failed("no environment could be made with python3 -m venv", &said))?;
    let python = folder.join("bin").join("python");
    let install = ["-m", "pip", "install", "--quiet", "torch", "numpy"];
    let index = ["--index-url", "https://download.pytorch.org/whl/cpu"];
    if !on_gpu {
        say("installing torch from PyTorch's index for processors");
        if run(&python, &[&install[..], &index[..]].concat()).is_ok() {
            return Ok(());
        }
    }
    say("installing torch from PyPI, which takes some minutes");
    run(&python, &install).map_err(|said| failed("PyTorch could not be installed", &said))
}

#[cfg(test)]
mod tests {
    use super::super::super::config::{BenchConfig, Workload};
    use super::super::cases::{SuitePart, case};
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_the_way_out() {
        let silent = |_: &str| ();
        let found = |config: TorchConfig| match Torch::find(&config, "cpu", &silent) {
            Ok(_) => panic!("there is no such peer"),
            Err(error) => {
                assert!(error.is_bad_input());
                error.to_string()
            }
        };
        let script = found(TorchConfig { script: "nowhere.py".into(), ..TorchConfig::default() });
        assert!(script.contains("nowhere.py is not there") && script.contains("--torch-steps"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let (python, script) = (Some("no-such-python".into()), file.path().to_path_buf());
        let python = found(TorchConfig { python, script, environment: "unused".into() });
        assert!(python.contains("no-such-python has no PyTorch") && python.contains("--python"));
    }

    #[test]
    fn a_peer_is_typed_without_the_folders_of_this_machine() {
        let config = BenchConfig { evaluate: true, ..BenchConfig::new(Workload::Mlp) };
        let case = case(SuitePart::Matrix, "mlp", config);
        let (python, script) = ("/home/a/bin/python3".into(), "../peers/torch_steps.py".into());
        let torch = Torch { python, script, on_gpu: false };
        let mut expected = "python3 torch_steps.py --workload mlp --precision fp32 --batch 512 --steps 3 --warmup 3 --eval --tuned --device ".to_owned();
        assert_eq!(torch.typed(&case, &["--tuned"], "cuda:0"), format!("{expected}cuda"));
        let all = rayon::current_num_threads();
        expected += &format!("cpu --threads {all}");
        assert_eq!(torch.typed(&case, &["--tuned"], "cpu"), expected);
    }

    #[test]
    fn a_peer_runs_on_the_card_that_is_meant() {
        let entry = |device: &str, set: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = set.iter().find(|(own, _)| *own == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            shown(device, variable).map(|(name, value)| format!("{name}={value}"))
        };
        let own = |value| [("CUDA_VISIBLE_DEVICES", value)];
        for (device, set, expected) in [
            ("cuda:1", &[][..], Some("CUDA_VISIBLE_DEVICES=1")),
            ("cuda:1", &own("3, 5")[..], Some("CUDA_VISIBLE_DEVICES=5")),
            ("cuda:1", &own("GPU-aa11,GPU-ab22")[..], Some("CUDA_VISIBLE_DEVICES=GPU-ab22")),
            ("rocm:2", &[][..], Some("HIP_VISIBLE_DEVICES=2")),
            ("rocm:1", &own("4,6")[..], Some("HIP_VISIBLE_DEVICES=6")),
            // The first one that it is shown it takes anyway.
            ("cuda", &own("3,5")[..], None),
            ("cuda:0", &own("3,5")[..], None),
            // Vulkan counts in another way.
            ("vulkan:1", &[][..], None),
        ] {
            assert_eq!(entry(device, set).as_deref(), expected, "{device} {set:?}");
        }
        let case = case(SuitePart::Matrix, "mlp", BenchConfig::new(Workload::Mlp));
        let torch = Torch { python: "python3".into(), script: "t.py".into(), on_gpu: true };
        let typed = torch.typed(&case, &[], "cuda:1");
        assert!(typed.starts_with("CUDA_VISIBLE_DEVICES="), "{typed}");
        assert!(typed.ends_with(" --device cuda"), "{typed}");
    }

    #[test]
    fn a_peer_without_such_a_device_is_said_to_run_elsewhere_or_nowhere() {
        let said = elsewhere("vulkan:0", Some("NVIDIA T4")).unwrap();
        assert!(said.contains("no device `vulkan:0`") && said.contains("NVIDIA T4"), "{said}");
        let error = elsewhere("metal", None).unwrap_err();
        assert!(error.is_bad_input() && error.to_string().contains("leave out --peers"), "{error}");
        assert_eq!(first_gpu(Path::new("no-such-python")), None);
    }

    #[test]
    fn a_peer_has_the_threads_of_our_side_whatever_its_environment_says() {
        let config = BenchConfig::new(Workload::Mlp);
        let case = Case { threads: Some(3), ..case(SuitePart::Scaling, "mlp", config) };
        let torch = Torch { python: "python3".into(), script: "t.py".into(), on_gpu: false };
        let command = torch.command(&case, &[], "cpu");
        let unset: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).collect();
        assert_eq!(unset.len(), 2, "{unset:?}");
        assert!(text(&command).ends_with("--device cpu --threads 3"), "{command:?}");
    }
}
