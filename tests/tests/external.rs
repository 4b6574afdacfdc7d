//! A project outside the workspace uses the kernels, the cache and the loader, each on its own.

#![allow(clippy::unwrap_used, reason = "a test may")]

use firebox_tests::{cargo, root, target};

#[test]
fn single_crates_serve_a_project_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    // The versions of this workspace, so that nothing new is downloaded.
    let project = folder.path().join("project");
    std::fs::create_dir_all(project.join("src")).unwrap();
    let from = root().join("tests/external");
    let manifest = std::fs::read_to_string(from.join("Cargo.toml")).unwrap();
    let crates = root().join("crates").display().to_string();
    std::fs::write(project.join("Cargo.toml"), manifest.replace("../../crates", &crates)).unwrap();
    std::fs::copy(from.join("src/main.rs"), project.join("src/main.rs")).unwrap();
    std::fs::copy(root().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    let output = cargo()
        .args(["run", "--quiet"])
        .current_dir(&project)
        .env("CARGO_TARGET_DIR", target().join("external"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    for part in ["kernels:", "cache:", "loader:"] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
}
