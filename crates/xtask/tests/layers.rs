//! Checks that the kernels crate keeps its layers, by the paths in its sources, and that no backend but one decides what
//! the library compiles.
//!
//! ```text
//! device ← cube ← error ← problem ← common ← a kernel                 ← space_to_depth, arrangement, select, launch, mod
//! device ← cube ← packed, cast, copy, pad, random, strided, transpose ← arrangement, select, launch, mod
//! ```
//!
//! A kernel never names another kernel or the selection, so that it can be read, changed and removed without them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The operators, each a folder with the same parts.
const OPERATORS: [&str; 2] = ["pool", "conv"];
/// The parts of an operator that its kernels depend on, lowest first.
const BELOW: [&str; 2] = ["problem", "common"];
/// The parts that depend on the kernels.
const ABOVE: [&str; 2] = ["select", "launch"];
/// Folders whose subfolders are kernels; these share the other files.
const FAMILIES: [&str; 2] = ["implicit_gemm", "strips"];

/// A part of the crate, as the layers distinguish them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Device,
    Cube,
    /// Why a plan or a launch was refused.
    Error,
    /// A part that an operator's kernels depend on, by its index in [`BELOW`].
    Below(String, usize),
    /// The files that the kernels of a family share.
    Family(String, String),
    /// A kernel, by its path.
    Kernel(String, String),
    /// The selection, the launch, and the operator's own module.
    Above(String),
    /// A small kernel outside the operators.
    Small,
    /// The crate's root.
    Root,
}

impl Part {
    /// The part that a module path of the crate leads to.
    fn of(path: &[String]) -> Self {
        let word = |nth: usize| path.get(nth).map(String::as_str).unwrap_or_default();
        match word(0) {
            "device" => Self::Device,
            "cube" => Self::Cube,
            "error" => Self::Error,
            "packed" | "cast" | "copy" | "pad" | "random" | "strided" | "transpose" => Self::Small,
            operator if OPERATORS.contains(&operator) => {
                let own = word(1);
                let operator = operator.to_string();
                if let Some(nth) = BELOW.iter().position(|part| *part == own) {
                    Self::Below(operator, nth)
                } else if ABOVE.contains(&own) {
                    Self::Above(operator)
                } else if FAMILIES.contains(&own) && !is_folder(&[&operator, own, word(2)]) {
                    Self::Family(operator, own.into())
                } else if FAMILIES.contains(&own) {
                    Self::Kernel(operator, format!("{own}/{}", word(2)))
                } else if is_folder(&[&operator, own]) {
                    Self::Kernel(operator, own.into())
                } else {
                    Self::Above(operator)
                }
            }
            _ => Self::Root,
        }
    }

    /// Whether this part may name another.
    fn may_name(&self, other: &Self) -> bool {
        use Part::{Above, Below, Cube, Device, Error, Family, Kernel, Root, Small};
        match (self, other) {
            (own, other) if own == other => true,
            (Root, _) => true,
            (Device, _) => false,
            (Cube, other) => *other == Device,
            (_, Device | Cube) => true,
            (Error, _) => false,
            (_, Error) => true,
            (Below(own, above), Below(operator, nth)) => own == operator && nth <= above,
            (Family(own, _) | Kernel(own, _), Below(operator, _)) => own == operator,
            (Kernel(own, kernel), Family(operator, family)) => {
                own == operator && kernel.starts_with(&format!("{family}/"))
            }
            (Above(_), Small) => true,
            (Above(own), Below(operator, _) | Family(operator, _) | Kernel(operator, _)) => {
                own == operator
            }
            _ => false,
        }
    }
}

#[test]
fn parts_name_only_what_they_stand_on() {
    let mut wrong = BTreeSet::new();
    for file in sources(&root()) {
        let module = module_of(&file);
        let own = Part::of(&module);
        let text = fs::read_to_string(&file).unwrap();
        for path in paths(without_tests(&text), &module) {
            let other = Part::of(&path);
            if !own.may_name(&other) {
                wrong.insert(format!("{} names {}", module.join("::"), path.join("::")));
            }
        }
    }
    let list = wrong.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(
        wrong.is_empty(),
        "these lean on what is not below them; move what they share:\n{list}"
    );
}

#[test]
fn every_operator_has_its_parts() {
    for operator in OPERATORS {
        for part in BELOW.iter().chain(&ABOVE[..1]) {
            let file = root().join(operator).join(format!("{part}.rs"));
            assert!(file.is_file() || is_folder(&[operator, part]), "{operator} has no {part}");
        }
    }
}

/// The rule must refuse wrong dependencies; otherwise it would check nothing.
#[test]
fn wrong_arrows_are_refused() {
    let part = |path: &str| Part::of(&path.split("::").map(String::from).collect::<Vec<_>>());
    let kernel = Part::Kernel("pool".into(), "direct".into());
    for other in ["pool::select", "pool::launch", "pool::Plan", "conv::common::gather", "conv"] {
        assert!(!kernel.may_name(&part(other)), "{other}");
    }
    assert!(!kernel.may_name(&Part::Kernel("pool".into(), "van_herk".into())));
    assert!(!part("pool::common").may_name(&kernel));
    assert!(!part("pool::problem").may_name(&part("pool::common::window")));
    assert!(!part("device").may_name(&part("cube::axis")));
    for own in [&kernel, &part("conv::common"), &part("conv::problem"), &part("cube")] {
        assert!(!own.may_name(&part("transpose")), "{own:?}");
    }
    assert!(!part("transpose").may_name(&part("conv::problem")));
    assert!(part("conv::arrangement").may_name(&part("transpose")));
    for other in ["error", "pool::problem", "pool::common::window", "cube::axis", "device"] {
        assert!(kernel.may_name(&part(other)), "{other}");
    }
}

#[test]
fn paths_are_found_in_imports_and_in_code() {
    let module: Vec<String> = ["pool", "direct", "kernel"].map(String::from).into();
    let text = "use super::super::common::{window::{Form, Site}, lanes};\nuse crate::cube::axis;\n\
                // use super::nothing\npub(in crate::conv) struct It;\nlet x = crate::pool::select::choose();";
    let found: Vec<String> = paths(text, &module).iter().map(|path| path.join("::")).collect();
    let expected = [
        "pool::common::window::Form",
        "pool::common::window::Site",
        "pool::common::lanes",
        "cube::axis",
        "pool::select::choose",
    ];
    assert_eq!(found, expected);
}

/// What the library compiles depends on no backend but `wgpu`; for another one the gate would need a step of its own.
#[test]
fn the_library_asks_for_no_backend_but_wgpu() {
    let mut asked = BTreeSet::new();
    for path in sources(&root().join("../../windowpane/src")) {
        let text = fs::read_to_string(path).unwrap();
        let conditions = text.lines().filter(|line| line.trim_start().starts_with("#[cfg("));
        let conditions = conditions.filter(|line| !line.contains("test, "));
        for backend in ["wgpu", "webgpu", "vulkan", "metal", "cpu", "cuda", "hip"] {
            if conditions.clone().any(|line| line.contains(&format!("feature = \"{backend}\""))) {
                asked.insert(backend);
            }
        }
    }
    assert_eq!(asked, BTreeSet::from(["wgpu"]));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/src")
}

fn is_folder(path: &[&str]) -> bool {
    path.iter().all(|word| !word.is_empty()) && root().join(path.join("/")).is_dir()
}

/// All sources below a folder, except tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    let mut found = Vec::new();
    for path in entries {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found
}

/// The module path of a file.
fn module_of(file: &Path) -> Vec<String> {
    let path = file.strip_prefix(root()).unwrap().with_extension("");
    let mut words: Vec<String> = path.iter().map(|word| word.to_str().unwrap().into()).collect();
    if words.last().is_some_and(|word| word == "mod" || word == "lib") {
        words.pop();
    }
    words
}

/// A source up to its tests, which may name anything.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

/// All paths that begin with `crate` or `super`, from the crate's root.
fn paths(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let code: String = text.lines().map(code_of).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let is_begun = code[..at].ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c));
            // `pub(in path)` is a visibility, not a dependency.
            if !is_begun && !code[..at].ends_with("(in ") {
                found.push((at, tree(&mut &code[at..])));
            }
        }
    }
    found.sort();
    found.into_iter().flat_map(|(_, paths)| paths).map(|path| resolved(path, module)).collect()
}

/// A line without its comment.
fn code_of(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

/// The paths of a tree such as `a::{b, c::{d, e}}`.
fn tree(rest: &mut &str) -> Vec<Vec<String>> {
    let mut path: Vec<String> = Vec::new();
    loop {
        *rest = rest.trim_start();
        if let Some(inside) = rest.strip_prefix('{') {
            *rest = inside;
            let mut all = Vec::new();
            loop {
                *rest = rest.trim_start_matches([',', ' ', '\n']);
                match rest.strip_prefix('}') {
                    Some(after) => {
                        *rest = after;
                        break;
                    }
                    None if rest.is_empty() => break,
                    None => all.extend(tree(rest)),
                }
            }
            return all.into_iter().map(|end| [path.clone(), end].concat()).collect();
        }
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        if end == 0 {
            // A `*`, or another character that is not part of a path: skipped, so that a list of paths goes on.
            let skipped = rest.chars().next().map_or(0, char::len_utf8);
            *rest = &rest[skipped..];
            return vec![path];
        }
        path.push(rest[..end].into());
        *rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(after) => *rest = after,
            None => {
                // Skips `as` and its name, in a list.
                if let Some(after) = rest.strip_prefix(" as ") {
                    let end = after.find([',', '}', ';', '\n']).unwrap_or(after.len());
                    *rest = &after[end..];
                }
                return vec![path];
            }
        }
    }
}

/// Resolves a path, so that it starts at the crate's root.
fn resolved(path: Vec<String>, module: &[String]) -> Vec<String> {
    let supers = path.iter().take_while(|word| *word == "super").count();
    let end = path.into_iter().skip_while(|word| word == "super" || word == "crate");
    let base = if supers > 0 { &module[..module.len().saturating_sub(supers)] } else { &[] };
    base.iter().cloned().chain(end).collect()
}
