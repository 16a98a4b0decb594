//! The command line of windowpane: pooling and convolution on files, Composable Kernel's example,
//! benchmarks, plans and devices.
//!
//! `windowpane --help` lists the commands, and `windowpane COMMAND --help` ends with an example of
//! each. Exit 0 on success, 1 when the work failed, 2 when the arguments are wrong; what is wrong
//! is one line on stderr.

mod args;
mod backward;
mod bench;
mod composable_kernel;
mod conv;
mod conv_args;
mod conv_backward;
mod conv_plan;
mod devices;
mod element;
mod failure;
mod memory;
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
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the backends of this build, their devices and how fast each one copies.
    Devices(devices::Devices),
    /// Pool a .npy file.
    Pool(pool::Pool),
    /// The gradient of a pooling, from .npy files.
    PoolBackward(backward::PoolBackward),
    /// Put the maxima of a .npy file back to where they were.
    Unpool(unpool::Unpool),
    /// Run, check and time one 2-D pooling, with the flags of Composable Kernel's example.
    #[command(name = "pool2d")]
    Pool2d(composable_kernel::Pool2d),
    /// Run, check and time one 3-D pooling, with the flags of Composable Kernel's example.
    #[command(name = "pool3d")]
    Pool3d(composable_kernel::Pool3d),
    /// Time many cases, several backends side by side.
    Bench(bench::Bench),
    /// Hold many cases to the reference, on several backends.
    Verify(bench::Verify),
    /// Join recorded runs, ours and peers', into tables and pictures.
    Report(bench::Report),
    /// Convolve a .npy file with filters from another.
    Conv(conv::Conv),
    /// The gradients of a convolution, from .npy files.
    ConvBackward(conv_backward::ConvBackward),
    /// Show the kernel that would be chosen, its tiling and its symbols; launches nothing.
    Plan(plan::Plan),
}

/// The last panic, for the one line that is told of it.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

fn main() -> ExitCode {
    // A backend whose driver does not start panics, is caught, and is told as an error; the
    // standard hook would have printed the panic already.
    panic::set_hook(Box::new(|info| {
        if let Ok(mut last) = PANIC.lock() {
            *last = Some(info.to_string());
        }
    }));
    quiet_wayland();
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

/// Keeps the system's window library, which is asked for displays while GPUs are looked for, from
/// complaining on stderr where there is no desktop.
fn quiet_wayland() {
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread is running yet that could read the environment.
        unsafe { std::env::set_var("XDG_RUNTIME_DIR", std::env::temp_dir()) };
    }
}

fn run(arguments: Vec<OsString>) -> Result<(), Failure> {
    let arguments = negative::joined(composable_kernel::double_dashes(arguments));
    match Cli::try_parse_from(arguments)?.command {
        Command::Devices(devices) => devices.run(),
        Command::Pool(pool) => pool.run(),
        Command::PoolBackward(pool) => pool.run(),
        Command::Unpool(unpool) => unpool.run(),
        Command::Pool2d(pool) => pool.run(),
        Command::Pool3d(pool) => pool.run(),
        Command::Bench(bench) => bench.run(),
        Command::Verify(verify) => verify.run(),
        Command::Report(report) => report.run(),
        Command::Conv(conv) => conv.run(),
        Command::ConvBackward(conv) => conv.run(),
        Command::Plan(plan) => plan.run(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Every flag has a help text, and every command an example, no line of which is longer than a
    /// terminal is wide.
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
