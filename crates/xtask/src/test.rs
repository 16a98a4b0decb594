//! `cargo xtask test`: tests everything that this machine can run, and prints which backends these are.

use std::process::{Command, ExitCode};

use crate::machine::{Choice, Machine};
use crate::{Result, provision, shell};

/// The environment variable with the devices that the device tests may not skip.
pub(crate) const REQUIRE: &str = "WINDOWPANE_REQUIRE";

/// The environment variable with a seed, with which the device tests repeat the cases of an earlier run.
const SEED: &str = "WINDOWPANE_SEED";

/// The gate always draws the same cases, so that its result for a commit does not change. `cargo xtask test` draws
/// others in each run.
const SEED_OF_GATE: u64 = 1;

/// The environment variable with the number of random cases of each property.
const CASES: &str = "WINDOWPANE_CASES";

/// Half of the usual number, so that the gate takes less than an hour on two slow cores.
const CASES_OF_GATE: u32 = 16;

/// The variable that makes Mesa's software driver compile shaders without optimising them: tests run most shaders once.
const QUICK_SHADERS: (&str, &str) = ("GALLIVM_PERF", "nopt");

/// The variable with the program that validates SPIR-V.
const VALIDATOR: &str = "WINDOWPANE_SPIRV_VAL";

/// The variable with the number of tests that run at a time. Tests wait for devices a third of their time, so it is twice
/// the number of cores if the caller does not say.
const THREADS: &str = "RUST_TEST_THREADS";

/// The options of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Devices that may not be missing, as `host,cpu,wgpu`
    #[arg(long, value_name = "LIST")]
    require: Option<String>,
    /// Draw the random cases of the device tests by this seed, which a failure prints
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Passed on to `cargo test`, as `--release`
    #[arg(value_name = "CARGO ARGS", allow_hyphen_values = true)]
    cargo: Vec<String>,
    /// Passed on to the tests themselves, as `-- --nocapture`
    #[arg(value_name = "TEST ARGS", last = true)]
    harness: Vec<String>,
}

/// Provisions, then tests the workspace; returns cargo's own exit code.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if !provision::provision() {
        println!("going on with what is there");
    }
    let choice = Machine::look().backends();
    println!("{}", choice.line());
    let status = shell::status(&mut command(&choice, options))?;
    // A process that was ended by a signal has no exit code; this is a failure too.
    let code = status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1));
    Ok(ExitCode::from(code))
}

/// The gate's command: it tests the workspace, with these devices required. It fails only after every test binary has
/// run, so that a failure does not hide others.
pub(crate) fn required(devices: &str) -> Command {
    let choice = Machine::look().backends();
    println!("{}", choice.line());
    let cargo = vec!["--no-fail-fast".into()];
    let options = Options {
        require: Some(devices.into()),
        seed: Some(SEED_OF_GATE),
        cargo,
        harness: Vec::new(),
    };
    let mut command = command(&choice, &options);
    command.env(CASES, CASES_OF_GATE.to_string());
    command
}

fn command(choice: &Choice, options: &Options) -> Command {
    let features = choice.features.join(",");
    let mut command = shell::cargo(&["test", "--workspace", "--features", &features]);
    command.args(&options.cargo).env(QUICK_SHADERS.0, QUICK_SHADERS.1);
    if std::env::var_os(THREADS).is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        command.env(THREADS, (2 * cores).to_string());
    }
    if std::env::var_os(VALIDATOR).is_none() && shell::has_program(provision::spirv::VALIDATOR) {
        command.env(VALIDATOR, provision::spirv::VALIDATOR);
    }
    if !options.harness.is_empty() {
        command.arg("--").args(&options.harness);
    }
    if let Some(devices) = &options.require {
        command.env(REQUIRE, devices);
    }
    if let Some(seed) = options.seed {
        command.env(SEED, seed.to_string());
    }
    command
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn typed(words: &str) -> Command {
        let line = Line::try_parse_from(words.split(' ')).unwrap();
        let machine = Machine { os: "linux", ..Machine::default() };
        command(&machine.backends(), &line.options)
    }

    fn args(command: &Command) -> Vec<&str> {
        command.get_args().filter_map(|arg| arg.to_str()).skip(5).collect()
    }

    #[test]
    fn arguments_go_to_cargo_and_to_the_tests() {
        let command = typed("test --release --test devices -- --nocapture pool");
        assert_eq!(args(&command), ["--release", "--test", "devices", "--", "--nocapture", "pool"]);
    }

    #[test]
    fn arguments_may_be_for_the_tests_alone() {
        assert_eq!(args(&typed("test -- --nocapture")), ["--", "--nocapture"]);
    }

    #[test]
    fn required_devices_are_a_variable() {
        let command = typed("test --require host,cpu --release");
        assert_eq!(args(&command), ["--release"]);
        let set =
            command.get_envs().any(|var| var == (REQUIRE.as_ref(), Some("host,cpu".as_ref())));
        assert!(set);
    }

    #[test]
    fn a_seed_is_a_variable() {
        let command = typed("test --seed 42 --release");
        assert_eq!(args(&command), ["--release"]);
        assert!(command.get_envs().any(|var| var == (SEED.as_ref(), Some("42".as_ref()))));
        assert!(typed("test").get_envs().all(|(name, _)| name != SEED));
    }
}
