//! Lints of a build that is needed anyway.
//!
//! `cargo clippy` compiles all dependencies once more without code. Here Clippy's compiler makes the build that the
//! tests run from, so that the lints cost only their own time.

use std::path::PathBuf;
use std::process::Command;

use crate::Result;
use crate::shell;

/// Has Clippy's compiler run for the members of the workspace, with warnings as errors.
pub(crate) fn lint(mut command: Command) -> Result<Command> {
    command.env("RUSTC_WORKSPACE_WRAPPER", compiler()?);
    // As `cargo clippy -- -D warnings` sets them.
    command.env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");
    Ok(command)
}

/// Clippy's compiler, in the toolchain that is used.
fn compiler() -> Result<PathBuf> {
    let sysroot = shell::ask("rustc", &["--print", "sysroot"])
        .ok_or("`rustc --print sysroot` says nothing; is Rust installed?")?;
    let driver = format!("clippy-driver{}", std::env::consts::EXE_SUFFIX);
    let driver = PathBuf::from(sysroot.trim()).join("bin").join(driver);
    match driver.is_file() {
        true => Ok(driver),
        false => {
            Err(format!("there is no {}; `rustup component add clippy`", driver.display()).into())
        }
    }
}
