//! `windowpane report`: the pages and the tables of recorded runs.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::support::{Folder, run_with};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn report(arguments: &[&str]) -> crate::support::Ran {
    run_with(&[&["report"], arguments].concat(), &[])
}

/// After adding a run, generate its page and fill the README: the command is in benches/README.md.
#[test]
fn the_pages_of_recorded_runs_are_up_to_date() {
    let folder = Folder::new();
    let (results, readme) = (root().join("benches/results"), folder.name("README.md"));
    fs::copy(root().join("README.md"), &readme).expect("the README");
    let results = results.to_str().expect("UTF-8");
    report(&[results, "--into", &folder.name("pages"), "--fill", &readme]).succeeded();
    let made = fs::read_dir(folder.path("pages")).expect("pages");
    let made = made.map(|entry| entry.expect("a page").file_name());
    let mut pages: Vec<_> = made.map(|name| Path::new("docs/benchmarks").join(name)).collect();
    pages.sort();
    assert!(!pages.is_empty());
    pages.push("README.md".into());
    for page in pages {
        let name = page.file_name().expect("a page's name");
        let made = match page.starts_with("docs") {
            true => folder.path("pages").join(name),
            false => folder.path("README.md"),
        };
        assert!(
            fs::read(root().join(&page)).ok() == fs::read(made).ok(),
            "{} is not what the runs say; make it again: cargo run --release -- report \
             benches/results --into docs/benchmarks --fill README.md",
            page.display()
        );
    }
}

/// Writes a device's runs, a table of them, and a page with a place for the table.
fn written(folder: &Folder, table: &str) {
    let row = |whose: (&str, &str), ms: f64| {
        let mut row = json!({
            "name": "stem", "kind": "maxpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
            "device": "a GPU", "ms": ms, "ceiling_fraction": 0.5, "gbs": 1.0, "intensity": 1.0,
        });
        row[whose.0] = json!(whose.1);
        row
    };
    let ceiling = json!({"ceiling": "copy", "gbs": 2.0, "backend": "cuda", "device": "a GPU"});
    let ours = format!("{ceiling}\n{}\n", row(("backend", "cuda"), 0.5));
    fs::create_dir_all(folder.path("runs/gpu")).expect("a folder for the test");
    for (name, text) in [
        ("runs/gpu/2026-01-31.jsonl", &*ours),
        ("runs/gpu/2026-01-31.torch.jsonl", &row(("peer", "torch"), 1.0).to_string()),
        ("runs/gpu/stems.table", table),
        ("page.md", "# Here\n\n<!-- bench: gpu/stems -->\n<!-- bench: end -->\n\nthere\n"),
    ] {
        fs::write(folder.path(name), text).expect("a file for the test");
    }
}

const TABLE: &str = "\
pooling | ours    | PyTorch  | its time / ours
        | ms cuda | ms torch | ratio torch / cuda
stem    | stem/maxpool/fwd/f32/nhwc
> {device cuda}, {days}.
";

#[test]
fn tables_are_filled_into_marked_places() {
    let folder = Folder::new();
    written(&folder, TABLE);
    let (runs, page) = (folder.name("runs"), folder.name("page.md"));
    let filled = "\
# Here

<!-- bench: gpu/stems -->

| pooling |     ours | PyTorch | its time / ours |
|---------|----------|---------|-----------------|
| stem    | 0.500 ms | 1.00 ms |            2.00 |

a GPU, 2026-01-31.

<!-- bench: end -->

there
";
    for _ in 0..2 {
        assert_eq!(report(&[&runs, "--fill", &page]).succeeded().out, format!("{page}\n"));
        assert_eq!(fs::read_to_string(&page).expect("the page"), filled);
    }
    assert_eq!(folder.files(), ["page.md", "runs"]);
    report(&[&runs, "--fill", &page, "--format", "json"]).refused(2, "--format");
}

/// Errors in a table are reported before any page is written.
#[test]
fn what_a_page_cannot_show_is_refused() {
    let folder = Folder::new();
    let (runs, page, pages) = (folder.name("runs"), folder.name("page.md"), folder.name("pages"));
    let fill = |table: &str, place: &str| {
        written(&folder, table);
        let text = format!("<!-- bench: {place} -->\n<!-- bench: end -->\n");
        fs::write(&page, &text).expect("the page");
        let ran = report(&[&runs, "--into", &pages, "--fill", &page]);
        assert_eq!(fs::read_to_string(&page).expect("the page"), text);
        assert_eq!(folder.files(), ["page.md", "runs"]);
        ran
    };
    fill(TABLE, "stems").refused(1, "`stems`: names no table; write `DEVICE/TABLE`");
    fill(TABLE, "tpu/stems").refused(1, "`tpu/stems`: no folder of that name is among the runs");
    fill(TABLE, "gpu/leaves").refused(1, "leaves.table: cannot be read");
    fill(&TABLE.replace("torch", "cubek"), "gpu/stems").refused(1, "no run has a time of `cubek`");
    fill(&TABLE.replace("fwd", "bwd"), "gpu/stems").refused(1, "no run has the case");
    written(&folder, TABLE);
    fs::write(&page, "# Here\n").expect("the page");
    report(&[&runs, "--fill", &page]).refused(1, "page.md: has no place to fill");
}
