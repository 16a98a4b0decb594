//! `bench --against`, pictures, and `report`.

use std::fs;

use serde_json::{Value, json};

use super::cases::{case, rows, write};
use crate::support::{Folder, Ran, run, run_with};

/// A run as tables and as a picture, and compared with a stored run.
#[test]
fn runs_are_tables_pictures_and_what_later_ones_are_held_against() {
    let folder = Folder::new();
    let file = write(&folder, &[case("stem", "avgpool", "fwd", "f32", "nhwc")]);
    let bench = |flags: &[&str]| run(&[&["bench", "--cases", &file], flags].concat());
    let table = bench(&["--format", "table"]).succeeded().out;
    assert!(table.contains("of peak") && table.contains("stem avgpool fwd"), "{table}");
    let markdown = bench(&["--format", "markdown"]).succeeded().out;
    assert!(markdown.contains("| case") && markdown.contains("|---"), "{markdown}");

    let (svg, png) = (folder.name("run.svg"), folder.name("run.png"));
    let ran = bench(&["--plot", &svg]).succeeded();
    assert!(fs::read_to_string(&svg).expect("a picture").contains("stem"));
    let row = rows(&ran).pop().expect("a row");
    let keep = |name: &str, ms: f64| {
        let mut old = row.clone();
        (old["ms"], old["ms_fastest"], old["spread"]) = (json!(ms), json!(ms), json!(0.0));
        fs::write(folder.path(name), format!("{old}\n")).expect("a file for the test");
        folder.name(name)
    };
    let (slow, fast) = (keep("slow.jsonl", 1e6), keep("fast.jsonl", 1e-9));
    let ran = bench(&["--against", &slow]).succeeded();
    assert_eq!(rows(&ran).last().expect("a line")["verdict"], json!("faster"));
    let ran = bench(&["--against", &fast, "--threshold", "10"]);
    ran.refused(1, "1 of 1 cases are slower");
    let lines = rows(&ran);
    let [.., agreement, moved] = &lines[..] else { panic!("no lines: {}", ran.out) };
    assert_eq!(moved["moved"], json!("stem/avgpool/fwd/f32/nhwc"));
    assert_eq!((&agreement["agree"], &agreement["of"]), (&json!(0), &json!(1)));
    // A run with `--against` can itself be compared with.
    let kept = folder.name("kept.jsonl");
    fs::write(&kept, &ran.out).expect("a file for the test");
    bench(&["--against", &kept, "--threshold", "1e6"]).succeeded();

    let report = |arguments: &[&str]| run_with(&[&["report"], arguments].concat(), &[]);
    let failed = folder.name("failed.jsonl");
    let mut line = row.clone();
    line.as_object_mut().expect("an object").remove("ms");
    line["error"] = json!("no time");
    fs::write(&failed, format!("{line}\n")).expect("a file for the test");
    report(&[&failed, "--plot", &png]).refused(1, "nothing to draw");
    let peer = folder.name("peer.jsonl");
    let mut line = row.clone();
    line["peer"] = json!("torch");
    line.as_object_mut().expect("an object").remove("backend");
    fs::write(&peer, format!("{line}\n")).expect("a file for the test");
    let ours = folder.name("ours.jsonl");
    fs::write(&ours, bench(&[]).succeeded().out).expect("a file for the test");
    let joined = report(&[&ours, &peer, "--format", "table", "--plot", &png]).succeeded().out;
    assert!(joined.contains("torch, ms") && joined.contains("peer / ours"), "{joined}");
    assert!(joined.contains("geometric mean of 1 cases"), "{joined}");
    assert!(fs::read(&png).expect("a picture").starts_with(b"\x89PNG"));
    // A page and its pictures for the folder of the runs.
    let runs = folder.path("results").join("a-device");
    fs::create_dir_all(&runs).expect("a folder for the test");
    fs::copy(&ours, runs.join("day.jsonl")).expect("a file for the test");
    report(&[&folder.name("results"), "--into", &folder.name("pages")]).succeeded();
    let page = fs::read_to_string(folder.path("pages").join("a-device.md")).expect("a page");
    assert!(page.contains("a-device-roofline.svg") && page.contains("| case"), "{page}");
    assert!(folder.path("pages").join("a-device-bars.svg").is_file());
}

/// Cases that were added, removed or broken are printed; a broken case is a failure.
#[test]
fn cases_that_one_run_alone_has_are_told() {
    let folder = Folder::new();
    let named = |name: &str| case(name, "avgpool", "fwd", "f32", "nhwc");
    let file = write(&folder, &[named("went"), named("stayed"), named("breaks")]);
    let bench = |flags: &[&str]| run(&[&["bench", "--cases", &file], flags].concat());
    let old = folder.name("old.jsonl");
    fs::write(&old, bench(&[]).succeeded().out).expect("a file for the test");

    // No two times differ by this much.
    let against = ["--against", &old, "--threshold", "1e6"];
    write(&folder, &[named("stayed"), named("came")]);
    let moved = |ran: &Ran| {
        let moved = rows(ran).into_iter().filter(|line| line.get("verdict").is_some());
        let told = |line: Value| {
            let name = line["moved"].as_str().expect("a case").split('/').next().map(String::from);
            let times = (line["before_ms"].is_number(), line["after_ms"].is_number());
            (name.unwrap_or_default(), line["verdict"].clone(), times)
        };
        moved.map(told).collect::<Vec<_>>()
    };
    let row = |name: &str, verdict: &str, before, after| {
        (name.to_owned(), json!(verdict), (before, after))
    };
    let (came, went) = (row("came", "new", false, true), row("went", "gone", true, false));
    let breaks = row("breaks", "gone", true, false);
    assert_eq!(moved(&bench(&against).succeeded()), [came, went.clone(), breaks]);
    // Cases that the filter excludes do not count as removed.
    let ran = bench(&[&against[..], &["--filter", "stayed"]].concat()).succeeded();
    assert_eq!(moved(&ran), []);
    assert_eq!(rows(&ran).last().expect("a line")["excluded"], json!(2));
    let ran = bench(&[&against[..], &["--format", "table"]].concat()).succeeded();
    for word in ["came/avgpool", "new", "went/avgpool", "gone", "1 of 1 cases agree"] {
        assert!(ran.out.contains(word), "`{word}` is not in {}", ran.out);
    }

    let mut broken = named("breaks");
    broken["k"] = json!([99, 3]);
    write(&folder, &[named("stayed"), broken]);
    let ran = bench(&against);
    ran.refused(1, "1 of 2 cases did not run");
    assert_eq!(moved(&ran), [row("breaks", "broken", true, false), went]);
}

/// If no case ran, the error is about the cases, not about the picture, and no picture is written.
#[test]
fn failures_are_told_before_pictures() {
    let folder = Folder::new();
    let mut broken = case("x", "avgpool", "fwd", "f32", "nhwc");
    broken["k"] = json!([99, 3]);
    let file = write(&folder, &[broken]);
    let svg = folder.name("run.svg");
    run(&["bench", "--cases", &file, "--plot", &svg]).refused(1, "1 of 1 cases did not run");
    assert_eq!(folder.files(), ["cases.jsonl"]);
}
