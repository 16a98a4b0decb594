//! The project's chores: `cargo xtask provision`, `cargo xtask test`, `cargo xtask ci`,
//! `cargo xtask conformance`, `cargo xtask fuzz`, `cargo xtask wheel`, `cargo xtask record`.
//!
//! They replace steps that a person would otherwise have to remember. They are not part of the product and do not
//! depend on it, so `xtask` compiles in seconds, also on a machine that cannot build the rest yet.

mod burn;
mod ci;
mod conformance;
mod deny;
mod disk;
mod fuzz;
mod lint;
mod machine;
mod provision;
mod publish;
mod record;
mod shell;
mod test;
mod wheel;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The result of a chore. An error is one sentence that says what went wrong and how to fix it.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's chores", version)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install what the backends need and this machine lacks; a second run does nothing
    Provision,
    /// Test everything this machine can run, after provisioning what is missing
    Test(test::Options),
    /// Run the whole gate: formatting, lints, documentation, every backend, all tests
    Ci,
    /// Run ONNX's own tests of our operators on every device of this machine
    Conformance(conformance::Options),
    /// Search for inputs that break the readers, the geometry or the operators
    Fuzz(fuzz::Options),
    /// Build the Python package, and test it in a new environment
    Wheel(wheel::Options),
    /// Measure ours and the peers on this machine, keep the runs, and make their pages
    Record(Box<record::Options>),
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Provision => provision::run(),
        Chore::Test(options) => test::run(&options),
        Chore::Ci => ci::run(),
        Chore::Conformance(options) => conformance::run(&options),
        Chore::Fuzz(options) => fuzz::run(&options),
        Chore::Wheel(options) => wheel::run(&options),
        Chore::Record(options) => record::run(&options),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
