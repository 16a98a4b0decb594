//! Checks that the README and all manifests name one oldest version of Rust.

use std::fs;
use std::path::{Path, PathBuf};

use toml::Table;

#[test]
fn the_readme_and_every_manifest_name_one_version() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workspace = read(&root.join("Cargo.toml"));
    let version = workspace["workspace"]["package"]["rust-version"].as_str().unwrap();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let stated = format!("With Rust {version} or newer");
    assert!(readme.contains(&stated), "README.md does not say \"{stated}\"");
    let inherited: Table = "workspace = true".parse().unwrap();
    for manifest in manifests(&root) {
        let own = read(&manifest)["package"].get("rust-version").cloned();
        let agrees = own == Some(version.into()) || own == Some(inherited.clone().into());
        let manifest = manifest.strip_prefix(&root).unwrap().display();
        assert!(agrees, "{manifest} has the rust-version {own:?}; the workspace has {version}");
    }
}

/// The manifests of all crates, also of those that are workspaces of their own.
fn manifests(root: &Path) -> Vec<PathBuf> {
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let others = ["benches", "examples", "fuzz"].map(|folder| root.join(folder));
    let manifests = crates.chain(others).map(|folder| folder.join("Cargo.toml"));
    manifests.filter(|manifest| manifest.is_file()).collect()
}

fn read(manifest: &Path) -> Table {
    fs::read_to_string(manifest).unwrap().parse().unwrap()
}
