//! Lints and tests windowpane-burn, which is a workspace of its own and brings 340 crates with Burn.
//!
//! This is also the gate's only build of the library with kernels and without its feature `wgpu`.

use std::process::Command;

use crate::Result;
use crate::lint::lint;
use crate::shell::{self, cargo, target_folder};

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

/// A cargo command for the crate, with lints.
fn command(args: &[&str]) -> Result<Command> {
    let mut command = cargo(args);
    command.args(["--manifest-path", MANIFEST]);
    // One folder, as the builds of many dependencies serve both workspaces.
    command.env("CARGO_TARGET_DIR", target_folder());
    lint(command)
}
