use std::io::{self, Write};
use std::process::ExitCode;

use crate::composable_kernel::single_dashes;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A message of clap: a wrong argument, or the requested help.
    #[error("{}", in_one_line(.0))]
    Clap(#[from] clap::Error),
    /// Arguments that are valid on their own but contradict each other.
    #[error("{0}")]
    Arguments(String),
    /// An error of the library.
    #[error(transparent)]
    Work(#[from] windowpane::Error),
    /// An error of the command itself.
    #[error("{0}")]
    Failed(String),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    /// A panic, which no input should be able to cause.
    #[error("a bug, please report it: {0}")]
    Bug(String),
}

impl Failure {
    /// Prints the error on stderr, in one line, and returns the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        if let Self::Clap(error) = self
            && asks_for_help(error)
        {
            return print_help(error);
        }
        let line = one_line(&self.to_string());
        // If stderr cannot be written either, the exit status has to be enough.
        let _ = writeln!(io::stderr(), "windowpane: {line}");
        match self {
            Self::Clap(_) | Self::Arguments(_) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

/// Joins a message of several lines into one. Spaces in file names stay; control characters, which
/// could change a terminal's state, are replaced.
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

/// Prints help: on stdout if requested, otherwise on stderr with the status of a wrong argument.
fn print_help(error: &clap::Error) -> ExitCode {
    use std::io::IsTerminal;
    let to_terminal =
        if error.use_stderr() { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
    let text =
        if to_terminal { error.render().ansi().to_string() } else { error.render().to_string() };
    // The space keeps the help texts in their column.
    let text = single_dashes(&text, " -");
    if error.use_stderr() {
        let _ = io::stderr().write_all(text.as_bytes());
        return ExitCode::from(2);
    }
    // If nobody reads stdout any more, there is nothing to report.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Clap's message with its tips, without the usage text, which `--help` prints too.
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
