use std::io::{self, Write};
use std::process::ExitCode;

use crate::composable_kernel::single_dashes;

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// What clap has to say: a mistake, or the help that was asked for.
    #[error("{}", in_one_line(.0))]
    Clap(#[from] clap::Error),
    /// Arguments that are well formed, each for itself, but not together.
    #[error("{0}")]
    Arguments(String),
    /// The library refused or failed.
    #[error(transparent)]
    Work(#[from] windowpane::Error),
    /// The command itself failed.
    #[error("{0}")]
    Failed(String),
    /// The standard output is gone.
    #[error("cannot write to the standard output: {0}")]
    Output(#[from] io::Error),
    /// A panic, which no input should be able to cause.
    #[error("a bug, please report it: {0}")]
    Bug(String),
}

impl Failure {
    /// Says on stderr what is wrong, in one line, and gives the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        if let Self::Clap(error) = self
            && asks_for_help(error)
        {
            return print_help(error);
        }
        let line = one_line(&self.to_string());
        // Where stderr is gone too, the exit status says it all.
        let _ = writeln!(io::stderr(), "windowpane: {line}");
        match self {
            Self::Clap(_) | Self::Arguments(_) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

/// A message of several lines as one. Spaces in names of files are theirs; what a name tells a
/// terminal to do is not done.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines.collect::<Vec<_>>().join(" ");
    line.replace(|c: char| c.is_control(), "\u{fffd}")
}

fn asks_for_help(error: &clap::Error) -> bool {
    use clap::error::ErrorKind::{
        DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion,
    };
    matches!(error.kind(), DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand)
}

/// Prints help, on stderr and as a mistake where it was not asked for.
fn print_help(error: &clap::Error) -> ExitCode {
    use std::io::IsTerminal;
    let to_terminal =
        if error.use_stderr() { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
    let text =
        if to_terminal { error.render().ansi().to_string() } else { error.render().to_string() };
    // The space keeps the column in which the help texts start.
    let text = single_dashes(&text, " -");
    if error.use_stderr() {
        let _ = io::stderr().write_all(text.as_bytes());
        return ExitCode::from(2);
    }
    // A reader that has gone wants no more help.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Clap's message with its tips and without its usage, which `--help` has too.
fn in_one_line(error: &clap::Error) -> String {
    let text = single_dashes(&error.render().to_string(), "-");
    let parts: Vec<String> = text
        .split("\n\n")
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|part| {
            !(part.is_empty()
                || part.starts_with("Usage:")
                || part.starts_with("For more information"))
        })
        .collect();
    let text = parts.join("; ");
    format!("{}; see --help", text.strip_prefix("error: ").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_and_names_are_as_they_are() {
        assert_eq!(one_line("what\n  is wrong\n\n\twith it \n"), "what is wrong with it");
        assert_eq!(one_line("a  b.npy: no such file"), "a  b.npy: no such file");
        assert_eq!(one_line("\u{1b}[31ma\rb.npy"), "\u{fffd}[31ma\u{fffd}b.npy");
    }
}
