//! The arrows between the crates, as ARCHITECTURE.md states them.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};
use firebox_tests::root;

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
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".to_owned()])
        .exec()
        .unwrap();
    let stated = stated();
    assert!(stated.len() >= 11, "the table of ARCHITECTURE.md was not found: {stated:?}");
    let members: BTreeSet<&str> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
    for package in &metadata.packages {
        let name = package.name.as_str();
        if ["firebox-tests", "firebox-benches"].contains(&name) {
            continue;
        }
        let allowed = stated.get(name);
        let allowed = allowed.unwrap_or_else(|| panic!("{name} is not in ARCHITECTURE.md"));
        for dependency in &package.dependencies {
            let used = dependency.name.as_str();
            if dependency.kind == DependencyKind::Normal && members.contains(used) {
                assert!(allowed.contains(used), "{name} uses {used}, which ARCHITECTURE.md forbids");
            }
            assert!(
                used != "polars" || name == "firebox-data",
                "{name} names polars; only firebox-data may"
            );
        }
        if name == "xtask" {
            assert!(package.dependencies.is_empty(), "xtask has a dependency");
        }
        let backends = ["cpu", "cuda", "rocm", "vulkan", "metal", "wgpu"];
        if let Some(feature) = backends.iter().find(|backend| package.features.contains_key(**backend)) {
            assert_eq!(name, "firebox", "{name} has the backend feature `{feature}`");
        }
    }
}

#[test]
fn crates_are_ready_to_publish() {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".to_owned()])
        .exec()
        .unwrap();
    for package in metadata.packages.iter().filter(|p| p.publish.is_none()) {
        let name = &package.name;
        assert!(package.description.as_ref().is_some_and(|d| d.len() > 30), "{name}: description");
        assert_eq!(package.license.as_deref(), Some("MIT OR Apache-2.0"), "{name}: licence");
        assert!(package.rust_version.is_some(), "{name}: minimum Rust version");
        assert!(!package.keywords.is_empty() && !package.categories.is_empty(), "{name}: keywords");
        let page = package.manifest_path.parent().unwrap().join("src/lib.rs");
        if let Ok(page) = std::fs::read_to_string(page) {
            assert!(page.starts_with("//! "), "{name}: lib.rs has no front page");
            assert!(page.contains("//! ```"), "{name}: the front page has no example");
        }
    }
}
