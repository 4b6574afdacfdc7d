//! The README of each crate is the front page of its documentation, whose example the doctests run:
//! one text, so that neither goes stale. This test writes them with `FIREBOX_TEST_WRITE=1`.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::path::{Path, PathBuf};

use firebox_tests::root;

/// Has a README of its own, longer than its front page.
const OWN: &str = "firebox-kernels";

/// The front page of a crate as Markdown that needs no rustdoc.
fn readme(name: &str, page: &str) -> String {
    let mut out = format!("# {name}\n\n");
    let mut in_example = false;
    for line in page.lines().take_while(|line| line.starts_with("//!")) {
        let line = line.strip_prefix("//! ").unwrap_or("");
        match (line.starts_with("```"), in_example) {
            (true, false) => {
                out += if line == "```" || line == "```no_run" { "```rust" } else { line }
            }
            (false, true) if line == "#" || line.starts_with("# ") => continue,
            (_, true) => out += line,
            (false, false) => out += &without_links(line),
        }
        in_example ^= line.starts_with("```");
        out.push('\n');
    }
    out + &format!(
        "\n```toml\n[dependencies] # beside a clone of Firebox\n{name} = {{ version = \"{}\", path = \"../firebox/crates/{name}\" }}\n```\n\nPart of Firebox, whose crates are of use alone. MIT or Apache-2.0, at your option.\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// Links to items, which only rustdoc can follow, become their names: [`Item`], [`Item`](path::Item).
fn without_links(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("[`") {
        let Some((name, after)) = after.split_once("`]") else { break };
        let target = after.strip_prefix('(').and_then(|after| after.split_once(')'));
        rest = target.map_or(after, |(_, after)| after);
        out += &format!("{before}`{name}`");
    }
    out + rest
}

/// Name, folder and front page of each crate that is a library.
fn crates() -> Vec<(String, PathBuf, String)> {
    let entries = std::fs::read_dir(root().join("crates")).unwrap().flatten();
    let mut all: Vec<_> = entries
        .filter_map(|entry| {
            let page = std::fs::read_to_string(entry.path().join("src/lib.rs")).ok()?;
            Some((entry.file_name().into_string().unwrap(), entry.path(), page))
        })
        .collect();
    all.sort();
    all
}

#[test]
fn each_crate_has_its_front_page_as_its_readme() {
    let crates = crates();
    assert!(crates.len() >= 12, "only {} crates were found", crates.len());
    if std::env::var_os("FIREBOX_TEST_WRITE").is_some() {
        for (name, folder, page) in crates.iter().filter(|(name, ..)| name != OWN) {
            std::fs::write(folder.join("README.md"), readme(name, page)).unwrap();
        }
    }
    for (name, folder, page) in &crates {
        let path = folder.join("README.md");
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            name == OWN || found == readme(name, page),
            "{} is not the front page of the crate; write it: FIREBOX_TEST_WRITE=1 cargo test --release --workspace --test readmes",
            shown(&path)
        );
        assert!(found.contains("```rust"), "{}: no example", shown(&path));
    }
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[test]
fn links_to_items_become_names() {
    for (line, expected) in [
        ("[`Store`] makes [`split()`] of", "`Store` makes `split()` of"),
        (
            "[`Shards`](firebox_cache::Shards) of [Burn](https://burn.dev)",
            "`Shards` of [Burn](https://burn.dev)",
        ),
        ("`a[0]` and [`open", "`a[0]` and [`open"),
    ] {
        assert_eq!(without_links(line), expected);
    }
    let page =
        "//! Title.\n//!\n//! ```\n//! # use a;\n//! # hidden\n//! let x = 1;\n//! ```\n\nmod a;\n";
    assert!(readme("c", page).starts_with("# c\n\nTitle.\n\n```rust\nlet x = 1;\n```\n\n```toml"));
}
