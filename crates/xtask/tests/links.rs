//! Checks the links of all pages: the files and headings that they name must exist.

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = Vec::new();
    collect(&root, &mut pages);
    assert!(pages.contains(&root.join("README.md")), "{pages:?}");
    let mut broken = String::new();
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        for link in links(&prose(&text)) {
            if !leads_somewhere(page, &link) {
                let page = page.strip_prefix(&root).unwrap().display();
                broken += &format!("\n{page}: {link}");
            }
        }
    }
    assert!(broken.is_empty(), "these links lead nowhere, fix them or the tree:{broken}");
}

/// All Markdown pages, except build outputs and hidden folders.
fn collect(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            collect(&path, pages);
        } else if name.ends_with(".md") {
            pages.push(path);
        }
    }
}

/// The text without its blocks of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The targets of the links that lead into this repository.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let own = targets.map(|(target, _)| target).filter(|target| !target.contains("://"));
    own.map(str::to_owned).collect()
}

fn leads_somewhere(page: &Path, link: &str) -> bool {
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.to_path_buf(),
        path => page.parent().unwrap().join(path),
    };
    match heading {
        "" => target.exists(),
        _ => fs::read_to_string(target).is_ok_and(|text| {
            let headings = text.lines().filter(|line| line.starts_with('#'));
            headings.map(slug).any(|found| found == heading)
        }),
    }
}

/// The anchor of a heading in links: lower-case letters, digits, hyphens and underscores.
fn slug(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_are_found_and_held_to_the_tree() {
    let text = "[a](b.md) ![c](d/e.svg) [g](https://h) ```[i](j)``` [k](#l)";
    assert_eq!(links(&prose(text)), ["b.md", "d/e.svg", "#l"]);
    assert_eq!(slug("## What's `new`, and what is-not"), "whats-new-and-what-is-not");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/README.md");
    assert!(leads_somewhere(&page, "#recorded-runs") && leads_somewhere(&page, "../docs"));
    assert!(!leads_somewhere(&page, "#no-such-heading") && !leads_somewhere(&page, "../no.md"));
}
