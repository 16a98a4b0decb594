//! Lints and tests windowpane-burn, which is a workspace of its own.
//!
//! Burn brings 340 crates. `cargo clippy` and `cargo doc` would each compile all of them once more without code, so
//! Clippy's compiler is used for the build that the tests need anyway.

use std::path::PathBuf;
use std::process::Command;

use crate::shell::{self, cargo};
use crate::{Result, shell::target_folder};

/// The manifest of the crate, from the root.
pub(crate) const MANIFEST: &str = "crates/burn/Cargo.toml";

/// Builds the crate with lints, runs its tests, and then its example.
pub(crate) fn test() -> Result<()> {
    shell::run(&mut command(&["test"])?)?;
    let output = shell::read(&mut command(&["run", "--example", "training"])?)?;
    print!("{output}");
    let replaced = output.lines().find(|line| line.starts_with("max_pool2d_with_indices "));
    let count = replaced.and_then(|line| line.split_whitespace().nth(1));
    match count.and_then(|count| count.parse::<u64>().ok()) {
        Some(1..) => Ok(()),
        _ => Err("the example of windowpane-burn replaced no max pooling; its table says what ran"
            .into()),
    }
}

/// A cargo command for the crate, with Clippy's compiler.
fn command(args: &[&str]) -> Result<Command> {
    let mut command = cargo(args);
    command.args(["--manifest-path", MANIFEST]);
    // As `cargo clippy -- -D warnings` sets them, but for a whole build.
    command.env("RUSTC_WORKSPACE_WRAPPER", clippy()?);
    command.env("CLIPPY_ARGS", "-Dwarnings__CLIPPY_HACKERY__");
    // Little of it is compiled as in the other workspace.
    command.env("CARGO_TARGET_DIR", target_folder().join("burn"));
    Ok(command)
}

/// Clippy's compiler, in the toolchain that is used.
fn clippy() -> Result<PathBuf> {
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
