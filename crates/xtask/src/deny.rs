//! Checks licences, bans and sources of all dependencies: `deny.toml`, applied to `cargo metadata`.
//!
//! The rules and their file are those of cargo-deny, which takes longer to build than the lints of this workspace take
//! to run; and the gate may not skip the rules on a machine without it.

use std::fs;

use serde_json::Value;
use toml::Table;

use crate::Result;
use crate::shell::{self, cargo};

/// The workspaces whose dependencies are checked.
const MANIFESTS: [&str; 3] = ["Cargo.toml", crate::burn::MANIFEST, "fuzz/Cargo.toml"];
/// The prefix of a registry as a source. A dependency names its registry unless it is cargo's default.
const REGISTRY: &str = "registry+";
/// The rules that are fixed: the check below follows these, and refuses other values.
const FIXED: &str = r#"
licenses.private = { ignore = false }
graph.all-features = true
[bans]
multiple-versions = "allow"
wildcards = "deny"
allow-wildcard-paths = true
[sources]
unknown-registry = "deny"
unknown-git = "deny"
"#;

/// Fails, and lists every dependency that breaks a rule.
pub(crate) fn check() -> Result<()> {
    let rules = Rules::parse(&fs::read_to_string(shell::root().join("deny.toml"))?)?;
    let mut broken = Vec::new();
    for manifest in MANIFESTS {
        let mut metadata = cargo(&["metadata", "--format-version=1", "--all-features"]);
        metadata.args(["--manifest-path", manifest]);
        metadata.args(rules.targets.iter().flat_map(|target| ["--filter-platform", target]));
        let metadata: Value = serde_json::from_str(&shell::read(&mut metadata)?)?;
        let packages = metadata["packages"].as_array().ok_or("`cargo metadata` has no packages")?;
        println!("{manifest}: {} packages", packages.len());
        broken.extend(packages.iter().flat_map(|package| rules.broken_by(package)));
    }
    match broken.is_empty() {
        true => Ok(()),
        false => Err(format!("by deny.toml, {}", broken.join("; ")).into()),
    }
}

/// The lists in `deny.toml`.
struct Rules {
    targets: Vec<String>,
    allow: Vec<String>,
    /// Each crate, and the licences that only it may have.
    exceptions: Vec<(String, Vec<String>)>,
    /// Each crate whose manifest names no licence, and the licence in its file.
    clarified: Vec<(String, String)>,
}

impl Rules {
    fn parse(text: &str) -> Result<Self> {
        let (mut table, fixed): (Table, Table) = (text.parse()?, FIXED.parse()?);
        let mut take = |section: &str, key: &str| {
            table.get_mut(section).and_then(toml::Value::as_table_mut)?.remove(key)
        };
        let targets = take("graph", "targets").map_or(Ok(Vec::new()), strings)?;
        let allow = take("licenses", "allow").map_or(Ok(Vec::new()), strings)?;
        let exceptions = entries(take("licenses", "exceptions"), |name, entry| {
            Some((name, strings(entry.get("allow")?.clone()).ok()?))
        })?;
        let clarified = entries(take("licenses", "clarify"), |name, entry| {
            Some((name, entry.get("expression")?.as_str()?.to_owned()))
        })?;
        if table != fixed {
            return Err(format!(
                "deny.toml has rules that this check does not follow: without its lists it is \
                 {table:?}, and has to be {fixed:?}"
            )
            .into());
        }
        Ok(Self { targets, allow, exceptions, clarified })
    }

    /// The rules that a package breaks, in words.
    fn broken_by(&self, package: &Value) -> Vec<String> {
        let name = package["name"].as_str().unwrap_or_default();
        let mut broken = Vec::new();
        let clarified = || self.clarified.iter().find(|(of, _)| of == name).map(|(_, is)| &**is);
        match package["license"].as_str().or_else(clarified) {
            None => broken.push(format!("{name} names no licence")),
            Some(license) => {
                let exceptions = self.exceptions.iter().filter(|(of, _)| of == name);
                let allow: Vec<_> =
                    exceptions.flat_map(|(_, own)| own).chain(&self.allow).collect();
                if !is_satisfied(license, |id| allow.iter().any(|allowed| *allowed == id)) {
                    broken.push(format!("{name} is under {license}, which is not allowed"));
                }
            }
        }
        match package["source"].as_str() {
            Some(source) if !source.starts_with(REGISTRY) => {
                broken.push(format!("{name} comes from {source}, not from a registry"));
            }
            _ => {}
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if dependency["req"] == "*" && dependency["path"].is_null() {
                broken.push(format!("{name} takes any version of {}", dependency["name"]));
            }
            if let Some(registry) = dependency["registry"].as_str() {
                let other = &dependency["name"];
                broken.push(format!("{name} takes {other} from {registry}, not cargo's default"));
            }
        }
        broken
    }
}

fn strings(value: toml::Value) -> Result<Vec<String>> {
    Ok(value.try_into()?)
}

/// The entries of a list, each of which is about one crate.
fn entries<T>(
    list: Option<toml::Value>,
    read: impl Fn(String, &Table) -> Option<T>,
) -> Result<Vec<T>> {
    let list = list.as_ref().and_then(toml::Value::as_array).into_iter().flatten();
    list.map(|entry| {
        let table = entry.as_table();
        let name = table.and_then(|table| table.get("crate")?.as_str());
        let read = table.zip(name).and_then(|(table, name)| read(name.into(), table));
        read.ok_or_else(|| format!("deny.toml has an entry that cannot be read: {entry:?}").into())
    })
    .collect()
}

/// Whether a licence expression leaves a choice in which every licence is allowed: `AND` binds
/// tighter than `OR`, and `/` is an old way to write `OR`.
fn is_satisfied(expression: &str, allowed: impl Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words: Vec<_> = spaced.split_whitespace().rev().collect();
    any_of(&mut words, &allowed) == Some(true) && words.is_empty()
}

/// Reads alternatives. The words are a stack, with the next one at the end; `None` means that they are no expression.
fn any_of(words: &mut Vec<&str>, allowed: &impl Fn(&str) -> bool) -> Option<bool> {
    let mut any = all_of(words, allowed)?;
    while words.pop_if(|word| *word == "OR").is_some() {
        any |= all_of(words, allowed)?;
    }
    Some(any)
}

fn all_of(words: &mut Vec<&str>, allowed: &impl Fn(&str) -> bool) -> Option<bool> {
    let mut all = true;
    loop {
        all &= match words.pop()? {
            "(" => any_of(words, allowed).filter(|_| words.pop() == Some(")"))?,
            id if words.pop_if(|word| *word == "WITH").is_some() => {
                allowed(&format!("{id} WITH {}", words.pop()?))
            }
            id => allowed(id),
        };
        if words.pop_if(|word| *word == "AND").is_none() {
            return Some(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_means_them() {
        let allowed = |id: &str| ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].contains(&id);
        for yes in
            ["MIT", "GPL-3.0 OR MIT", "MIT/GPL-3.0", "(GPL-3.0 OR MIT) AND ISC", "MIT AND ISC"]
        {
            assert!(is_satisfied(yes, allowed), "{yes}");
        }
        assert!(is_satisfied("Apache-2.0 WITH LLVM-exception AND ISC OR GPL-3.0", allowed));
        for no in [
            "GPL-3.0",
            "GPL-3.0 AND MIT",
            "(MIT OR ISC) AND GPL-3.0",
            "Apache-2.0",
            "",
            "(MIT",
            "MIT ISC",
        ] {
            assert!(!is_satisfied(no, allowed), "{no}");
        }
    }

    fn rules(lists: &str) -> Result<Rules> {
        Rules::parse(&format!("{lists}\n{FIXED}"))
    }

    #[test]
    fn each_rule_names_the_package_that_breaks_it() {
        let rules = rules(
            r#"licenses.allow = ["MIT"]
            licenses.exceptions = [{ crate = "odd", allow = ["MPL-2.0"] }]
            licenses.clarify = [{ crate = "silent", expression = "MIT" }]"#,
        )
        .unwrap();
        let package = |name: &str, license: Value, source: Value, req: &str| {
            let dependencies = json!([{ "name": "other", "req": req }]);
            json!({ "name": name, "license": license, "source": source, "dependencies": dependencies })
        };
        let good = [("good", json!("MIT")), ("odd", json!("MPL-2.0")), ("silent", Value::Null)];
        for (name, license) in good {
            let found = rules.broken_by(&package(name, license, json!(REGISTRY), "^1"));
            assert!(found.is_empty(), "{found:?}");
        }
        let bad = package("bad", json!("MPL-2.0"), json!("git+https://example.org"), "*");
        let found = rules.broken_by(&bad).join("\n");
        assert_eq!(found.lines().count(), 3, "{found}");
        for words in ["under MPL-2.0", "from git+https", "any version of \"other\""] {
            assert!(found.contains(words), "{found}");
        }
        let mut far = package("far", json!("MIT"), Value::Null, "^1");
        far["dependencies"][0]["registry"] = json!("https://example.org");
        assert!(rules.broken_by(&far).join("\n").contains("from https://example.org"));
        let found = rules.broken_by(&package("mute", Value::Null, Value::Null, "^1"));
        assert_eq!(found, ["mute names no licence"]);
    }

    #[test]
    fn a_rule_that_is_not_followed_is_an_error() {
        let error = |lists: &str| rules(lists).map(|_| ()).unwrap_err().to_string();
        assert!(error("bans.deny = [\"openssl\"]").contains("duplicate key"));
        assert!(error("advisories.yanked = \"deny\"").contains("does not follow"));
        assert!(error("licenses.exceptions = [{ allow = [] }]").contains("cannot be read"));
    }

    #[test]
    fn the_rules_of_this_repository_are_followed() {
        let text = fs::read_to_string(shell::root().join("deny.toml")).unwrap();
        let rules = Rules::parse(&text).unwrap();
        assert!(rules.targets.len() >= 5 && rules.allow.contains(&"MIT".into()));
    }
}
