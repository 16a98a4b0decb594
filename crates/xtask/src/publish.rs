//! Checks that the crates can be published: packs them as `cargo publish` does, and looks into the packages.
//!
//! Nothing is uploaded or built: the packages have the sources that the other steps build.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::Result;
use crate::shell::{self, cargo};

/// The entries that a manifest needs. `repository` is one more as soon as there is a public one.
const ENTRIES: [&str; 6] =
    ["description", "license", "readme", "rust_version", "keywords", "categories"];
/// The files at the top of a package that are easily left out.
const FILES: [&str; 3] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];
/// The ways in which a source names another file.
const INCLUDES: [&str; 4] = ["include_str!(\"", "include_bytes!(\"", "include!(\"", "#[path = \""];

/// Fails, and lists every reason why a crate cannot be published.
pub(crate) fn check() -> Result<()> {
    let mut metadata = cargo(&["metadata", "--no-deps", "--format-version=1"]);
    let metadata: Value = serde_json::from_str(&shell::read(&mut metadata)?)?;
    let packages = metadata["packages"].as_array().ok_or("`cargo metadata` has no packages")?;
    // `publish = false` is an empty list of registries.
    let packages: Vec<_> = packages.iter().filter(|package| package["publish"].is_null()).collect();
    // With uncommitted changes too, as every other step. A dependency by its path has to name a version, and crates
    // that are published together are found in each other's packages. All others are in `Cargo.lock`.
    let mut pack = cargo(&["package", "--no-verify", "--allow-dirty", "--offline"]);
    pack.args(packages.iter().flat_map(|package| ["-p", text(package, "name")]));
    shell::run(&mut pack)?;
    let mut broken = Vec::new();
    for package in packages {
        let name = text(package, "name");
        let folder = Path::new(text(package, "manifest_path")).parent().ok_or("no folder")?;
        let list = shell::read(&mut cargo(&["package", "--list", "--allow-dirty", "-p", name]))?;
        let files: Vec<_> = list.lines().map(|line| line.replace('\\', "/")).collect();
        broken.extend(lacks(package, &files).map(|entry| format!("{name} lacks {entry}")));
        for license in FILES.iter().filter(|file| file.starts_with("LICENSE")) {
            if fs::read(folder.join(license)).ok() != fs::read(shell::root().join(license)).ok() {
                broken.push(format!("the {license} of {name} is not that of the repository"));
            }
        }
        for file in files.iter().filter(|file| file.starts_with("src/") && file.ends_with(".rs")) {
            let source = fs::read_to_string(folder.join(file))?;
            for path in outside(file, &source).filter(|_| !is_for_tests(folder, file)) {
                broken.push(format!("{file} of {name} includes {path}, which is not packaged"));
            }
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(broken.join("; ").into()) }
}

fn text<'a>(package: &'a Value, key: &str) -> &'a str {
    package[key].as_str().unwrap_or_default()
}

/// The entries and files that are not there. At most five keywords and five categories may be given.
fn lacks(package: &Value, files: &[String]) -> impl Iterator<Item = &'static str> {
    let has = |entry: &&str| match &package[*entry] {
        Value::Array(list) => (1..=5).contains(&list.len()),
        entry => entry.as_str().is_some_and(|text| !text.is_empty()),
    };
    let lost = move |name: &&str| files.iter().all(|file| file != name);
    ENTRIES.into_iter().filter(move |entry| !has(entry)).chain(FILES.into_iter().filter(lost))
}

/// The paths in a source that lead out of its crate, but for those in an item for tests.
fn outside<'a>(file: &str, source: &'a str) -> impl Iterator<Item = &'a str> {
    let starts = INCLUDES.into_iter().flat_map(|word| source.match_indices(word));
    starts.filter_map(move |(at, word)| {
        let item = source[..at].rsplit("\n\n").next()?;
        let path = source[at + word.len()..].split('"').next()?;
        let tests = ["#[cfg(test)]", "#[cfg(doctest)]"].iter().any(|tests| item.contains(tests));
        (path.matches("../").count() > file.matches('/').count() && !tests).then_some(path)
    })
}

/// Whether the module above this file's declares it for tests.
fn is_for_tests(folder: &Path, file: &str) -> bool {
    let path = folder.join(file).with_extension("");
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return false };
    let declared = format!("mod {};", name.to_string_lossy());
    let parents = ["mod.rs", "lib.rs", "main.rs"].map(|parent| above.join(parent));
    parents.into_iter().chain([above.with_extension("rs")]).any(|parent| {
        let parent = fs::read_to_string(parent).unwrap_or_default();
        let mut after =
            parent.split("#[cfg(test)]\n").skip(1).filter_map(|rest| rest.lines().next());
        after.any(|line| line.trim_start_matches("pub(crate) ") == declared)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_package_lacks_is_named() {
        let files = FILES.map(String::from);
        let mut package = json!({ "description": "d", "license": "MIT", "readme": "README.md" });
        package["keywords"] = json!(["a"]);
        package["categories"] = json!(["1", "2", "3", "4", "5", "6"]);
        assert!(lacks(&package, &files[..2]).eq(["rust_version", "categories", "LICENSE-MIT"]));
    }

    #[test]
    fn an_include_from_outside_is_found_unless_it_is_for_tests() {
        let source = "#[doc = include_str!(\"../../README.md\")]\n\n#[cfg(doctest)]\n#[doc = \
                      include_str!(\"../../OTHER.md\")]\n\nconst A: &str = include_str!(\"../a\");";
        assert_eq!(outside("src/lib.rs", source).collect::<Vec<_>>(), ["../../README.md"]);
        assert_eq!(outside("src/deeper/mod.rs", source).count(), 0);
        let kernels = shell::root().join("crates/kernels");
        assert!(is_for_tests(&kernels, "src/device/recorded.rs"));
        assert!(!is_for_tests(&kernels, "src/device/profiles.rs"));
    }
}
