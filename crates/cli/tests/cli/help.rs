//! Help and versions.

use crate::support::{Folder, run_with};

#[test]
fn versions_and_help_are_no_failures() {
    assert!(run_with(&["--version"], &[]).succeeded().out.starts_with("windowpane "));
    let unpool = ["unpool", "--help"];
    for command in [&["--help"][..], &["devices", "--help"], &["pool", "--help"], &unpool] {
        assert!(run_with(command, &[]).succeeded().out.contains("Usage:"));
    }
    let ran = run_with(&[], &[]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("Usage:"), "{ran:?}");
}

/// `-v` is the program's own flag before a command, and Composable Kernel's after `pool2d`.
#[test]
fn logs_go_to_stderr_if_asked_for() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 4, 1], &[1.0f32, 2.0, 3.0, 4.0]);
    let y = folder.name("y.npy");
    let pool = ["pool", &x, "-o", &y, "--kernel", "2", "--backend", "host"];
    let quiet = run_with(&pool, &[]).succeeded();
    let ran = run_with(&[&["-v"], &pool[..]].concat(), &[]);
    assert_eq!((ran.code, &ran.out), (Some(0), &quiet.out), "{ran:?}");
    for part in ["DEBUG", "pool{operator=", "device=host:0", "algorithm=", "time.busy="] {
        assert!(ran.err.contains(part), "`{part}` is not in {}", ran.err);
    }
    folder.holds("y.npy", &[1, 2, 1], &[2.0f32, 4.0]);
    let example = ["pool2d", "-N", "1", "-v", "1", "--backend", "host"];
    assert!(run_with(&example, &[]).succeeded().out.contains("valid:y"));
    let ran = run_with(&[&["-v"], &example[..]].concat(), &[]);
    assert!(ran.out.contains("valid:y") && ran.err.contains("pool{operator="), "{ran:?}");
}
