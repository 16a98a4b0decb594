//! Help and versions.

use crate::support::run_with;

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
