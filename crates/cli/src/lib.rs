//! The command line of windowpane: pooling and convolution on files, Composable Kernel's example,
//! benchmarks, plans and devices.
//!
//! `windowpane --help` lists the commands, and `windowpane COMMAND --help` ends with an example.
//! Exit status: 0 on success, 1 when the work failed, 2 when the arguments are wrong. An error is
//! one line on stderr.
//!
//! This is a library only so that fuzzing can reach the code that parses a user's text; programs use the crate
//! `windowpane`.

mod args;
mod array;
mod backward;
mod bench;
mod calibrate;
mod composable_kernel;
mod conv;
mod conv_args;
mod conv_backward;
mod conv_plan;
mod conv_transpose;
mod devices;
mod element;
mod failure;
mod fractional;
mod interrupt;
mod layouts;
mod logs;
mod manual;
mod memory;
mod morphology;
mod negative;
mod output;
mod plan;
mod pool;
mod progress;
mod table;
mod tuned;
mod unpool;

use std::ffi::OsString;
use std::panic;
use std::process::ExitCode;
use std::sync::Mutex;

use clap::{Parser, Subcommand};

use failure::Failure;

/// Pooling and convolution for every GPU, from one source.
#[derive(Parser)]
#[command(name = "windowpane", version)]
struct Cli {
    /// Print logs on stderr: each pooling and convolution, its kernel, and the time that the call took on the CPU
    #[arg(short, long)]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the backends of this build, their devices, and the measured speed of each.
    Devices(devices::Devices),
    /// Pool an array in a file.
    Pool(pool::Pool),
    /// Compute the gradient of a pooling, from files.
    PoolBackward(backward::PoolBackward),
    /// Apply fractional max pooling to an array in a file.
    PoolFractional(fractional::PoolFractional),
    /// Compute the gradient of a fractional max pooling, from files.
    PoolFractionalBackward(fractional::PoolFractionalBackward),
    /// Write the maxima in a file back to the positions they came from.
    Unpool(unpool::Unpool),
    /// Erode or dilate an array in a file, or combine both.
    Morphology(morphology::Morphology),
    /// Run, check and time one 2-D pooling, with the flags of Composable Kernel's example.
    #[command(name = "pool2d")]
    Pool2d(composable_kernel::Pool2d),
    /// Run, check and time one 3-D pooling, with the flags of Composable Kernel's example.
    #[command(name = "pool3d")]
    Pool3d(composable_kernel::Pool3d),
    /// Time many cases, several backends side by side.
    Bench(bench::Bench),
    /// Compare many cases with the reference, on several backends.
    Verify(bench::Verify),
    /// Join recorded runs, ours and other libraries', into tables and pictures.
    Report(bench::Report),
    /// Convolve an array in a file with filters from another.
    Conv(conv::Conv),
    /// Compute the gradients of a convolution, from files.
    ConvBackward(conv_backward::ConvBackward),
    /// Apply a transposed convolution, which enlarges an array, with filters from another file.
    ConvTranspose(conv_transpose::ConvTranspose),
    /// Show which kernel would run, its tile sizes and its symbol table, without running it.
    Plan(plan::Plan),
    /// Measure the speeds of a device, by which kernels are chosen.
    Calibrate(calibrate::Calibrate),
    /// Print the completions of a shell.
    Completions(manual::Completions),
    /// Write the manual pages.
    Man(manual::Man),
}

/// The last panic, reported as one line.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// The program: runs what the command line asks for.
pub fn main() -> ExitCode {
    // A backend panics if its driver does not start. The panic is caught and reported as an error;
    // the standard hook would already have printed it.
    panic::set_hook(Box::new(|info| {
        if let Ok(mut last) = PANIC.lock() {
            *last = Some(info.to_string());
        }
    }));
    let result = panic::catch_unwind(|| run(std::env::args_os().collect()));
    let failure = match result {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(failure)) => failure,
        Err(_) => {
            let last = PANIC.lock().ok().and_then(|mut last| last.take()).unwrap_or_default();
            Failure::Bug(last)
        }
    };
    failure.report()
}

/// Parses a command line without running it; the error is the line that the program would print.
pub fn parse_arguments(arguments: Vec<OsString>) -> Result<(), String> {
    parse(arguments).map(drop).map_err(|failure| failure.to_string())
}

/// Reads lines of cases and plans each on `host`, in full and as the part that `verify` would compute, without
/// running it.
pub fn plan_cases(text: &str) -> Result<(), String> {
    bench::plan_cases(text).map_err(|failure| failure.to_string())
}

fn parse(arguments: Vec<OsString>) -> Result<Cli, Failure> {
    let arguments = negative::joined(composable_kernel::double_dashes(arguments));
    Ok(Cli::try_parse_from(arguments)?)
}

fn run(arguments: Vec<OsString>) -> Result<(), Failure> {
    let cli = parse(arguments)?;
    if cli.verbose {
        logs::print();
    }
    match cli.command {
        Command::Devices(devices) => devices.run(),
        Command::Pool(pool) => pool.run(),
        Command::PoolBackward(pool) => pool.run(),
        Command::PoolFractional(pool) => pool.run(),
        Command::PoolFractionalBackward(pool) => pool.run(),
        Command::Unpool(unpool) => unpool.run(),
        Command::Morphology(morphology) => morphology.run(),
        Command::Pool2d(pool) => pool.run(),
        Command::Pool3d(pool) => pool.run(),
        Command::Bench(bench) => bench.run(),
        Command::Verify(verify) => verify.run(),
        Command::Report(report) => report.run(),
        Command::Conv(conv) => conv.run(),
        Command::ConvBackward(conv) => conv.run(),
        Command::Plan(plan) => plan.run(),
        Command::ConvTranspose(conv) => conv.run(),
        Command::Calibrate(calibrate) => calibrate.run(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Every flag has a help text and every command an example, with lines that fit a terminal.
    #[test]
    fn help_is_whole() {
        fn check(command: &clap::Command) {
            for argument in command.get_arguments() {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty(), "{} {}", command.get_name(), argument.get_id());
            }
            let leaf = command.get_subcommands().next().is_none();
            let example = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(!leaf || example.contains("windowpane "), "{}", command.get_name());
            for line in example.lines() {
                assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        let cli = Cli::command();
        cli.clone().debug_assert();
        check(&cli);
    }
}
