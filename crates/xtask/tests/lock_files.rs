//! Checks that the workspaces of the repository take the same versions of the same crates, so that they share builds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use toml::Table;

#[test]
fn burns_workspace_takes_the_versions_of_the_other_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let [main, burn] = ["Cargo.lock", "crates/burn/Cargo.lock"].map(|file| read(&root.join(file)));
    let of_both =
        burn.iter().filter_map(|(name, versions)| Some((name, versions, main.get(name)?)));
    let mut count = 0;
    for (name, versions, others) in of_both {
        count += 1;
        assert!(
            !versions.is_disjoint(others),
            "{name} is {versions:?} in crates/burn/Cargo.lock and {others:?} in Cargo.lock; \
             `cargo update --manifest-path crates/burn/Cargo.toml {name} --precise VERSION` makes them one"
        );
    }
    assert!(count > 100, "only {count} crates are in both");
}

/// The versions of each crate.
fn read(file: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let lock: Table = fs::read_to_string(file).unwrap().parse().unwrap();
    let mut versions = BTreeMap::<_, BTreeSet<_>>::new();
    for package in lock["package"].as_array().unwrap() {
        let [name, version] = ["name", "version"].map(|key| package[key].as_str().unwrap().into());
        versions.entry(name).or_default().insert(version);
    }
    versions
}
