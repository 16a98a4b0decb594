//! The files that commands write, on Unix: their permissions, and the files and links that they replace.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::bench;
use crate::support::{Folder, run};

/// Runs with this umask.
fn masked(mask: &str, arguments: &[&str]) {
    let script = format!("umask {mask}; exec \"$@\"");
    let program = env!("CARGO_BIN_EXE_windowpane");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh", program]).args(arguments);
    let output = shell.output().expect("a shell");
    assert!(output.status.success(), "{output:?}");
}

#[track_caller]
fn has_mode(path: &Path, mode: u32) {
    let found = fs::metadata(path).expect("the file was written").permissions().mode() & 0o777;
    assert_eq!(format!("{found:o}"), format!("{mode:o}"), "{}", path.display());
}

/// Files are written to a temporary file and renamed; their permissions still follow the user's umask.
#[test]
fn files_are_as_the_users_mask_says() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 6, 1], &[0.5f32; 6]);
    let cases =
        bench::cases::write(&folder, &[bench::cases::case("x", "maxpool", "fwd", "f32", "nhwc")]);
    let row = json!({
        "name": "x", "kind": "maxpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
        "backend": "host", "device": "a processor", "ms": 1.0, "gbs": 1.0, "intensity": 1.0, "ceiling_fraction": 0.5,
    });
    let ceiling =
        json!({"ceiling": "copy", "gbs": 2.0, "backend": "host", "device": "a processor"});
    fs::create_dir(folder.path("runs")).expect("a folder for the test");
    fs::write(folder.path("runs/day.jsonl"), format!("{ceiling}\n{row}\n")).expect("a file");
    for (mask, mode) in [("022", 0o644), ("027", 0o640), ("002", 0o664), ("077", 0o600)] {
        let (y, at) = (folder.name(&format!("y{mask}.npy")), folder.name(&format!("at{mask}.npy")));
        masked(
            mask,
            &["pool", &x, "-o", &y, "--kernel", "2", "--indices", &at, "--backend", "host"],
        );
        let svg = folder.name(&format!("run{mask}.svg"));
        masked(mask, &["bench", "--cases", &cases, "--plot", &svg, "--backend", "host"]);
        let pages = folder.name(&format!("pages{mask}"));
        masked(mask, &["report", &folder.name("runs"), "--into", &pages]);
        let page = format!("{pages}/runs.md");
        for file in [&y, &at, &svg, &page, &format!("{pages}/runs-bars.svg")] {
            has_mode(Path::new(file), mode);
        }
    }
}

/// A file that replaces another one keeps the permissions that its owner has set.
#[test]
fn files_that_are_replaced_keep_their_permissions() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 4, 1], &[1.0f32, 2.0, 3.0, 4.0]);
    let y = folder.write("y.npy", &[1], &[0.0f32]);
    let mode = |mode| {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(folder.path("y.npy"), permissions).expect("the test's own file");
    };
    mode(0o606);
    let pool = ["pool", &x, "-o", &y, "--kernel", "2"];
    run(&pool).succeeded();
    has_mode(&folder.path("y.npy"), 0o606);
    folder.holds("y.npy", &[1, 2, 1], &[2.0f32, 4.0]);
    mode(0o444);
    run(&[&pool[..], &["--op", "avg"]].concat()).refused(1, "read-only");
    folder.holds("y.npy", &[1, 2, 1], &[2.0f32, 4.0]);
    assert_eq!(folder.files(), ["x.npy", "y.npy"]);
}

/// A symbolic link is followed, as by other programs, and stays a link.
#[test]
fn links_are_written_through() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 4, 1], &[1.0f32, 2.0, 3.0, 4.0]);
    folder.write("real.npy", &[1], &[0.0f32]);
    symlink("real.npy", folder.path("link.npy")).expect("a link for the test");
    let (real, link) = (folder.name("real.npy"), folder.name("link.npy"));
    run(&["pool", &x, "-o", &link, "--kernel", "2"]).succeeded();
    folder.holds("real.npy", &[1, 2, 1], &[2.0f32, 4.0]);
    assert!(fs::symlink_metadata(folder.path("link.npy")).expect("a link").is_symlink());
    let both = ["pool", &x, "-o", &link, "--indices", &real, "--kernel", "2"];
    run(&both).refused(2, "same file");
    assert_eq!(folder.files(), ["link.npy", "real.npy", "x.npy"]);
}

/// A link to a file that does not exist yet is followed too; the error for one that cannot be followed names its
/// target.
#[test]
fn links_to_nothing_are_written_through() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 4, 1], &[1.0f32, 2.0, 3.0, 4.0]);
    fs::create_dir(folder.path("far")).expect("a folder for the test");
    let link = |to: &str, name: &str| {
        symlink(to, folder.path(name)).expect("a link for the test");
        folder.name(name)
    };
    let (first, second) = (link("second.npy", "first.npy"), link("far/real.npy", "second.npy"));
    let pool = |y: &str| ["pool", &x, "-o", y, "--kernel", "2"].map(str::to_owned);
    let runs = |y: &str| run(&pool(y).each_ref().map(String::as_str));
    let both = [&pool(&first)[..], &["--indices".to_owned(), second.clone()]].concat();
    let both: Vec<&str> = both.iter().map(String::as_str).collect();
    run(&both).refused(2, "same file");
    runs(&first).succeeded();
    folder.holds("far/real.npy", &[1, 2, 1], &[2.0f32, 4.0]);
    for link in [first, second] {
        assert!(fs::symlink_metadata(link).expect("a link").is_symlink());
    }
    runs(&link("no/where.npy", "lost.npy")).refused(1, "no/where.npy: No such file");
    runs(&link("round.npy", "round.npy")).refused(1, "lead to each other");
    let files = ["far", "first.npy", "lost.npy", "round.npy", "second.npy", "x.npy"];
    assert_eq!(folder.files(), files);
}

/// A temporary file that was left by a killed process with the same process id does not matter.
#[test]
fn a_part_that_was_left_is_no_obstacle() {
    let folder = Folder::new();
    let x = folder.write("x.npy", &[1, 4, 1], &[1.0f32, 2.0, 3.0, 4.0]);
    let (y, parts) = (folder.name("y.npy"), folder.name(".y.npy."));
    let script = "touch \"$0$$.part\" && exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, &parts, env!("CARGO_BIN_EXE_windowpane")]);
    shell.args(["pool", &x, "-o", &y, "--kernel", "2", "--backend", "host"]);
    let output = shell.output().expect("a shell");
    assert!(output.status.success(), "{output:?}");
    folder.holds("y.npy", &[1, 2, 1], &[2.0f32, 4.0]);
    assert_eq!(folder.files(), ["x.npy", "y.npy"]);
}
