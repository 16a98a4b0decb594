//! Runs every example as a user does, and reads what it says.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Examples that print nothing, complain, or fail are broken; so are files that are no example.
#[test]
fn every_example_runs() {
    let folder = tempfile::tempdir().expect("a folder for what they write");
    let sources =
        std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).expect("the folder of the examples");
    let mut names: Vec<String> = sources
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "rs"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        let needs_cubecl = ["shared_client", "several_devices"].contains(&&*name);
        if needs_cubecl && cfg!(not(feature = "cubecl")) {
            continue;
        }
        let mut command = Command::new(program(&name));
        // As in a program that is run by itself on a machine without a desktop.
        command.current_dir(&folder).env_remove("XDG_RUNTIME_DIR").env_remove("NODEVICE_SELECT");
        let output = command.output().unwrap_or_else(|error| {
            panic!("{name}: {error}; build all with `cargo test -p windowpane-examples`")
        });
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{name}: {}\n{out}\n{err}", output.status);
        assert!(!out.trim().is_empty(), "{name} prints nothing");
        assert!(err.is_empty(), "{name} complains:\n{err}");
    }
    let picture = std::fs::read(folder.path().join("picture.png")).expect("the picture");
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000);
}

/// The program of an example, which cargo builds beside the tests.
fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the test has a path");
    let profile = own.parent().and_then(Path::parent).expect("it is in a folder of a profile");
    profile.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}
