//! How files of cases and the flags of `bench` and `report` are refused.

use std::fs;

use super::cases::{case, write};
use crate::support::{Folder, run_with};

/// What is wrong with all of it ends it before anything is measured.
#[test]
fn bad_files_and_flags_are_refused() {
    let folder = Folder::new();
    let file = write(&folder, &[case("x", "maxpool", "fwd", "f32", "nhwc")]);
    let keep = |name: &str, text: &str| {
        fs::write(folder.path(name), text).expect("a file for the test");
        folder.name(name)
    };
    let empty = keep("empty.jsonl", "\n\n");
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
        (&["bench", "--cases", &file, "--threshold=-1"], 2, "0.05"),
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
