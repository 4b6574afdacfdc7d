//! The arrows between the crates, as ARCHITECTURE.md states them.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use firebox_tests::{cargo, root};
use serde_json::Value;

/// The members of the workspace, as `cargo metadata` describes them.
fn packages() -> Vec<Value> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Crate → the crates of this workspace that it may use.
fn stated() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = text.split("## The crates").nth(1).unwrap();
    let rows = table.lines().map(str::trim).skip_while(|line| !line.starts_with("|---")).skip(1);
    rows.take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let mut uses: BTreeSet<String> = cells[1]
                .split(", ")
                .filter(|name| name.starts_with("firebox-") && !name.contains(' '))
                .map(str::to_owned)
                .collect();
            if !["xtask", "firebox-core"].contains(&cells[0]) {
                uses.insert("firebox-core".to_owned());
            }
            (cells[0].to_owned(), uses)
        })
        .collect()
}

#[test]
fn crates_use_only_what_the_architecture_states() {
    let (packages, stated) = (packages(), stated());
    assert!(stated.len() >= 11, "the table of ARCHITECTURE.md was not found: {stated:?}");
    let members: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    for package in &packages {
        let name = package["name"].as_str().unwrap();
        if ["firebox-tests", "firebox-benches"].contains(&name) {
            continue;
        }
        let allowed = stated.get(name);
        let allowed = allowed.unwrap_or_else(|| panic!("{name} is not in ARCHITECTURE.md"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let used = dependency["name"].as_str().unwrap();
            // `kind` is null for what the crate itself uses, and names tests and build scripts.
            if dependency["kind"].is_null() && members.contains(used) {
                assert!(
                    allowed.contains(used),
                    "{name} uses {used}, which ARCHITECTURE.md forbids"
                );
            }
            assert!(
                !used.starts_with("polars") || name == "firebox-data",
                "{name} names polars; only firebox-data may"
            );
            assert!(name != "xtask", "xtask depends on {used}; it may depend on nothing");
        }
        for backend in ["cpu", "cuda", "rocm", "vulkan", "metal", "wgpu"] {
            let has = package["features"].get(backend).is_some();
            assert!(!has || name == "firebox", "{name} has the backend feature `{backend}`");
        }
    }
}

#[test]
fn crates_are_ready_to_publish() {
    for package in packages().iter().filter(|package| package["publish"].is_null()) {
        let name = &package["name"];
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        assert!(text("description").len() > 30, "{name}: description");
        assert_eq!(text("license"), "MIT OR Apache-2.0", "{name}: licence");
        assert!(!text("rust_version").is_empty(), "{name}: minimum Rust version");
        for key in ["keywords", "categories"] {
            assert!(package[key].as_array().is_some_and(|list| !list.is_empty()), "{name}: {key}");
        }
        let manifest = text("manifest_path");
        let page = Path::new(&manifest).with_file_name("src").join("lib.rs");
        if let Ok(page) = std::fs::read_to_string(page) {
            assert!(page.starts_with("//! "), "{name}: lib.rs has no front page");
            assert!(page.contains("//! ```"), "{name}: the front page has no example");
        }
    }
}
