//! Another cargo, started as the user started the one that runs this program.
//!
//! The tests of the whole program have this file, too: see `tests/src/lib.rs`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How the names begin of what cargo sets for a program that it runs, beside `CARGO` itself. All others are the user's, who
/// keeps them, but for one that names another machine to build for: programs are looked for where those for this one lie.
const OWN: [&str; 6] = [
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_CRATE_NAME",
    "CARGO_BIN_NAME",
    "CARGO_BIN_EXE_",
    "CARGO_PRIMARY_PACKAGE",
];

/// Where programs look for libraries, before which cargo puts its own folders.
const LIBRARIES: &str = "LD_LIBRARY_PATH";

/// The cargo that runs this, as a user starts it, with this target folder. What it has set for this program (the name
/// of its package, its folder, where libraries are) would make build scripts that look at it, and all that depends on
/// them, run anew.
pub(crate) fn cargo(target: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_own) {
            command.env_remove(&name);
        }
    }
    if let Some(paths) = std::env::var_os(LIBRARIES) {
        match of_the_user(&paths, target, Path::new(&program)) {
            Some(paths) => command.env(LIBRARIES, paths),
            None => command.env_remove(LIBRARIES),
        };
    }
    command.env("CARGO_TARGET_DIR", target);
    command
}

fn is_own(name: &str) -> bool {
    matches!(name, "CARGO" | "CARGO_BUILD_TARGET")
        || OWN.iter().any(|begin| name.starts_with(begin))
}

/// What is left of a list of folders without those of the target folder and of the toolchain that has this cargo.
fn of_the_user(paths: &OsStr, target: &Path, cargo: &Path) -> Option<OsString> {
    let libraries = cargo.parent().and_then(Path::parent).map(|toolchain| toolchain.join("lib"));
    let is_toolchain = |path: &Path| {
        libraries.as_ref().is_some_and(|own| path == own || path.starts_with(own.join("rustlib")))
    };
    let is_users = |path: &PathBuf| !path.starts_with(target) && !is_toolchain(path);
    let left: Vec<PathBuf> = std::env::split_paths(paths).filter(is_users).collect();
    if left.is_empty() { None } else { std::env::join_paths(left).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_sets_for_a_program_is_told_from_what_a_user_sets() {
        for own in ["CARGO", "CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_BIN_EXE_firebox"] {
            assert!(is_own(own), "{own}");
        }
        assert!(is_own("CARGO_BUILD_TARGET") && !is_own("CARGO_BUILD_TARGET_DIR"));
        for users in ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_BUILD_JOBS", "CARGO_HTTP_PROXY"] {
            assert!(!is_own(users), "{users}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn folders_of_libraries_that_a_user_names_stay_in_their_order() {
        let left = |paths: &str| {
            of_the_user(paths.as_ref(), Path::new("/t"), Path::new("/rust/bin/cargo"))
        };
        let own = "/t/release/deps:/t/release:/rust/lib/rustlib/x86_64/lib:/rust/lib";
        assert_eq!(left(own), None);
        assert_eq!(
            left(&format!("{own}:/cuda/lib64:/rust/lib64")),
            Some("/cuda/lib64:/rust/lib64".into())
        );
        // A cargo that is found on the way has a toolchain that nobody knows.
        let found = of_the_user("/lib:/t".as_ref(), Path::new("/t"), Path::new("cargo"));
        assert_eq!(found, Some("/lib".into()));
    }
}
