//! Errors for case files and for the flags of `bench` and `report`.

use std::fs;

use super::cases::{case, write};
use crate::support::{Folder, run_with};

/// An error that concerns the whole run ends it before anything is measured.
#[test]
fn bad_files_and_flags_are_refused() {
    let folder = Folder::new();
    let file = write(&folder, &[case("x", "maxpool", "fwd", "f32", "nhwc")]);
    let keep = |name: &str, text: &str| {
        fs::write(folder.path(name), text).expect("a file for the test");
        folder.name(name)
    };
    let empty = keep("empty.jsonl", "\n\n");
    fs::write(folder.path("utf16.jsonl"), b"\xff\xfe{\0}\0").expect("a file for the test");
    let utf16 = folder.name("utf16.jsonl");
    let ceiling = keep("ceiling.jsonl", "{\"ceiling\": \"copy\", \"gbs\": 1.5}\n");
    let text = keep("text.jsonl", "{\"name\": \"x\"}\n");
    let (missing, nothing) = (folder.name("missing.jsonl"), folder.name("nothing"));
    fs::create_dir(&nothing).expect("a folder for the test");
    let table: &[(&[&str], i32, &str)] = &[
        (&["bench"], 2, "--cases"),
        (&["bench", "--cases", &missing], 1, "missing.jsonl"),
        (&["bench", "--cases", &empty], 1, "no cases"),
        (&["bench", "--cases", &text], 1, "line 1"),
        (&["bench", "--cases", &file, "--format", "xml"], 2, "json"),
        (&["bench", "--cases", &file, "--plot", "run.gif"], 2, ".svg or .png"),
        (&["bench", "--cases", &file, "--threshold", "-1"], 2, "0.05"),
        (&["bench", "--cases", &file, "--device", "-1"], 2, "`-1` is not a whole number"),
        (&["verify", "--cases", &file, "--taps", "-1"], 2, "`-1` is not a whole number"),
        (&["bench", "--cases", &utf16], 1, "no text in UTF-8"),
        (&["bench", "--cases", &file, "--against", &empty], 1, "no lines of a run"),
        (&["bench", "--cases", &file, "--against", &ceiling], 1, "no rows of cases"),
        (&["report", &empty], 1, "no lines of a run"),
        (&["bench", "--cases", &file, "--against", &missing], 1, "missing.jsonl"),
        (&["bench", "--cases", &file, "--against", &text], 1, "line 1"),
        (&["report", &missing], 1, "missing.jsonl"),
        (&["report", &nothing], 1, "no .jsonl files"),
        (&["bench", "--cases", &file, "--backend", "host,abacus"], 2, "one of cuda"),
        (&["bench", "--cases", &file, "--backend", "host,host"], 2, "host twice"),
        (&["bench", "--cases", &file, "--backend", "host", "--device", "7"], 1, "device 7"),
    ];
    for (arguments, code, saying) in table {
        let ran = run_with(arguments, &[]);
        ran.refused(*code, saying);
        assert_eq!(ran.out, "", "{arguments:?}");
    }
}

/// Case files with the byte order mark and the line endings of other systems are accepted.
#[test]
fn marks_and_ends_of_lines_are_no_matter() {
    let folder = Folder::new();
    let cases = ["a", "b"].map(|name| case(name, "maxpool", "fwd", "f32", "nhwc").to_string());
    let file = folder.name("windows.jsonl");
    let text = format!("\u{feff}{}\r\n\r\n  \r\n{}\r\n", cases[0], cases[1]);
    fs::write(&file, text).expect("a file for the test");
    let ran = run_with(&["verify", "--cases", &file], &["--backend", "host"]).succeeded();
    assert_eq!(ran.out.lines().count(), 2, "{ran:?}");
}
