//! Checks that ARCHITECTURE.md agrees with the tree and with the manifests of the crates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// The names of backends, as a feature of CubeCL or as the end of a crate's name.
const RUNTIMES: [&str; 8] = ["wgpu", "webgpu", "vulkan", "metal", "cpu", "cuda", "hip", "rocm"];

#[test]
fn every_path_exists_and_is_what_it_is_called() {
    let mut missing = Page::read().paths;
    missing.retain(|path| {
        let place = root().join(path);
        !(if path.ends_with('/') { place.is_dir() } else { place.is_file() })
    });
    assert!(missing.is_empty(), "ARCHITECTURE.md lists {missing:?}: not there, fix page or tree");
}

#[test]
fn every_crate_is_listed() {
    let page = Page::read();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.join("Cargo.toml").is_file() {
            continue;
        }
        let name = folder.file_name().unwrap().to_str().unwrap();
        let path = format!("crates/{name}/");
        assert!(page.paths.contains(&path), "ARCHITECTURE.md does not list {path}; add it");
        assert!(
            page.arrows_of(name).is_some(),
            "ARCHITECTURE.md has no arrows for {name}; add them"
        );
    }
}

#[test]
fn the_arrows_are_the_dependencies() {
    let mut wrong = String::new();
    for (name, stated) in &Page::read().arrows {
        let actual = Manifest::read(name).of_the_house(DEPENDENCIES);
        if *stated != actual {
            let others = actual.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            wrong += &format!("\n{name} → {others}");
        }
    }
    assert!(wrong.is_empty(), "by the manifests, ARCHITECTURE.md should say{wrong}");
}

#[test]
fn crates_depend_on_those_above_them() {
    let page = Page::read();
    let mut below = BTreeSet::new();
    for (name, stated) in &page.arrows {
        for other in stated {
            assert!(
                below.contains(other),
                "{name} depends on {other}, which is not above it in the list"
            );
        }
        below.insert(name.clone());
    }
}

#[test]
fn geometry_depends_on_nothing() {
    let names = Manifest::read("geometry").names(DEPENDENCIES);
    assert!(names.is_empty(), "geometry has no dependencies, but its manifest names {names:?}");
}

#[test]
fn testing_is_only_a_dev_dependency() {
    for (name, _) in Page::read().arrows {
        let found = Manifest::read(&name).of_the_house(DEPENDENCIES).contains("testing");
        assert!(!found, "{name} depends on testing; make it a dev-dependency");
    }
}

#[test]
fn kernels_name_no_runtime() {
    let kernels = Manifest::read("kernels");
    for name in kernels.names(DEPENDENCIES) {
        let runtime = name.strip_prefix("cubecl-").is_some_and(|end| RUNTIMES.contains(&end));
        assert!(
            !runtime,
            "kernels depends on {name}; runtimes are chosen by windowpane's features"
        );
    }
    for word in
        kernels.strings("features").into_iter().chain(workspace_cubecl().strings("features"))
    {
        let end = word.rsplit(['/', '-']).next().unwrap_or_default();
        assert!(!RUNTIMES.contains(&end), "kernels takes CubeCL with `{word}`, which is a runtime");
    }
    let default = workspace_cubecl().table.get("default-features").and_then(Value::as_bool);
    assert_eq!(default, Some(false), "the workspace takes CubeCL without its default features");
}

/// The sections of a manifest whose crates end up in a program.
const DEPENDENCIES: &[&str] = &["dependencies", "build-dependencies"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The content of the page: the blocks of its two chapters.
struct Page {
    /// Paths from the root; those of folders end with a slash.
    paths: Vec<String>,
    /// Each crate by its folder's name, bottom first, with its dependencies.
    arrows: Vec<(String, BTreeSet<String>)>,
}

impl Page {
    fn read() -> Self {
        let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
        let blocks: Vec<&str> = text.split("```").skip(1).step_by(2).collect();
        let [rooms, arrows] = blocks[..] else {
            panic!("ARCHITECTURE.md has {} fenced blocks; the test reads two", blocks.len());
        };
        Self { paths: paths(rooms), arrows: arrows.lines().filter_map(arrow).collect() }
    }

    fn arrows_of(&self, name: &str) -> Option<&BTreeSet<String>> {
        self.arrows.iter().find(|(crate_, _)| crate_ == name).map(|(_, stated)| stated)
    }
}

/// Reads a tree in which two more spaces mean one folder deeper, and the first word is the name.
fn paths(block: &str) -> Vec<String> {
    let mut open: Vec<&str> = Vec::new();
    let mut paths = Vec::new();
    for line in block.lines().skip(1) {
        let Some(name) = line.split_whitespace().next() else { continue };
        open.truncate((line.len() - line.trim_start().len()) / 2);
        paths.push(open.concat() + name);
        open.push(name);
    }
    paths
}

fn arrow(line: &str) -> Option<(String, BTreeSet<String>)> {
    let (name, others) = line.split_once('→')?;
    let others = others.split(',').map(str::trim).filter(|other| !other.is_empty());
    Some((name.trim().into(), others.map(String::from).collect()))
}

/// A crate's manifest, or one table of one.
struct Manifest {
    table: Table,
}

impl Manifest {
    /// Reads the manifest of a crate by its folder's name.
    fn read(name: &str) -> Self {
        let file = ["crates", ""].map(|folder| root().join(folder).join(name).join("Cargo.toml"));
        let file = file.iter().find(|file| file.is_file());
        let file = file.unwrap_or_else(|| panic!("there is no crate in a folder called {name}"));
        Self::parse(file)
    }

    fn parse(file: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap();
        let table = text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Self { table }
    }

    /// The names in these sections, those for one platform included.
    fn names(&self, sections: &[&str]) -> BTreeSet<String> {
        let platforms = self.table.get("target").and_then(Value::as_table);
        let platforms = platforms.into_iter().flat_map(Table::values).filter_map(Value::as_table);
        platforms
            .chain([&self.table])
            .flat_map(|table| sections.iter().filter_map(|&section| table.get(section)?.as_table()))
            .flat_map(|section| section.keys().cloned())
            .collect()
    }

    /// Those of the names that are crates of this workspace, as their folders.
    fn of_the_house(&self, sections: &[&str]) -> BTreeSet<String> {
        let folders = folders();
        self.names(sections).iter().filter_map(|name| folders.get(name).cloned()).collect()
    }

    /// All strings anywhere under the keys of this name, and the keys under them.
    fn strings(&self, key: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut open: Vec<(bool, &Value)> = self.table.iter().map(|(k, v)| (k == key, v)).collect();
        while let Some((inside, value)) = open.pop() {
            match value {
                Value::String(text) if inside => drop(found.insert(text.clone())),
                Value::Array(values) => open.extend(values.iter().map(|value| (inside, value))),
                Value::Table(table) => {
                    if inside {
                        found.extend(table.keys().cloned());
                    }
                    open.extend(table.iter().map(|(k, value)| (inside || k == key, value)));
                }
                _ => {}
            }
        }
        found
    }
}

/// The workspace's entry for CubeCL, which all its crates share.
fn workspace_cubecl() -> Manifest {
    let workspace = Manifest::parse(&root().join("Cargo.toml")).table;
    let cubecl = &workspace["workspace"]["dependencies"]["cubecl"];
    Manifest { table: cubecl.as_table().expect("CubeCL's entry is a table").clone() }
}

/// The folder of every crate of the workspace, by the name of its package.
fn folders() -> BTreeMap<String, String> {
    let inside = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    inside
        .chain([root().join("benches"), root().join("examples")])
        .filter(|folder| folder.join("Cargo.toml").is_file())
        .map(|folder| {
            let manifest = Manifest::parse(&folder.join("Cargo.toml")).table;
            let package =
                manifest["package"]["name"].as_str().expect("a package has a name").into();
            (package, folder.file_name().unwrap().to_str().unwrap().into())
        })
        .collect()
}
