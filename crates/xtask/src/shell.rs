//! Starts other programs and reports clearly if they cannot start or fail.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use crate::Result;

/// The root of the repository, wherever the chore was called from.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// A cargo command that starts in the root of the repository and does not change `Cargo.lock`: a missing entry is an
/// error, so that no untested version is picked.
pub(crate) fn cargo(args: &[&str]) -> Command {
    // Cargo passes its own path in `CARGO`, so the whole chore uses the same toolchain.
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg("--locked").args(args).current_dir(root());
    command
}

/// Cargo's target folder.
pub(crate) fn target_folder() -> PathBuf {
    let set = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    root().join(set.unwrap_or_else(|| "target".into()))
}

/// Prints a command, runs it with its output visible, and returns its exit status.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    println!("$ {}", line(command));
    command.status().map_err(|error| cannot_start(command, &error))
}

/// As [`status`], and a failure of the command is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    succeeded(command, status)
}

/// As [`run`], but returns the command's standard output.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    println!("$ {}", line(command));
    let Output { status, stdout, .. } =
        command.stderr(Stdio::inherit()).output().map_err(|error| cannot_start(command, &error))?;
    succeeded(command, status)?;
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// The standard output of a command, or `None` if it could not start or failed.
pub(crate) fn ask(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether the `PATH` holds a program of this name.
pub(crate) fn has_program(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let file = format!("{name}{}", env::consts::EXE_SUFFIX);
    env::split_paths(&path).any(|folder| folder.join(&file).is_file())
}

/// The command as a person would type it, with the variables that were set for it.
fn line(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        let value = value.map(OsStr::to_string_lossy).unwrap_or_default();
        words.push(format!("{}={value}", name.to_string_lossy()));
    }
    let program = Path::new(command.get_program());
    words.push(program.file_stem().unwrap_or_default().to_string_lossy().into_owned());
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}

fn succeeded(command: &Command, status: ExitStatus) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    Err(format!("`{}` failed ({status}); what it printed above says why", line(command)).into())
}

fn cannot_start(command: &Command, error: &std::io::Error) -> Box<dyn std::error::Error> {
    let program = command.get_program().to_string_lossy();
    format!("`{}` could not start ({error}); is `{program}` installed and in PATH?", line(command))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("Cargo.lock").is_file());
    }

    #[test]
    fn the_lock_file_is_never_changed() {
        assert_eq!(line(&cargo(&["test", "--workspace"])), "cargo --locked test --workspace");
    }

    #[test]
    fn a_line_reads_as_typed() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["test", "--workspace"]).env("MODE", "quick");
        assert_eq!(line(&command), "MODE=quick cargo test --workspace");
    }

    #[test]
    fn a_missing_program_is_an_error_that_names_it() {
        let error = run(&mut Command::new("no-such-program-here")).unwrap_err().to_string();
        assert!(error.contains("`no-such-program-here` could not start"), "{error}");
    }
}
