use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::Failure;

/// A spinner on a terminal; nothing in a pipe or with --quiet. It disappears when dropped.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Starts to show what is being done.
    pub(crate) fn new(quiet: bool, what: impl Into<String>) -> Self {
        // Indicatif draws on stderr, and only if that is a terminal.
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_message(what.into());
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// Shows how many of `len` pieces of work are done, and how long the rest may take.
    pub(crate) fn of(quiet: bool, pieces: usize) -> Self {
        let progress = Self::new(quiet, "");
        progress.0.set_length(pieces as u64);
        let template = "{spinner} {pos} of {len}, {elapsed}, {eta} to go: {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            progress.0.set_style(style);
        }
        progress
    }

    /// Counts one more finished piece.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }

    /// Shows what is being done now.
    pub(crate) fn now(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }

    /// Prints a line on stderr above the spinner, if it can be written there.
    pub(crate) fn note(&self, text: impl std::fmt::Display) {
        let _ = self.0.suspend(|| writeln!(io::stderr(), "{text}"));
    }

    /// Prints a line above the spinner.
    pub(crate) fn say(&self, text: impl std::fmt::Display) -> Result<(), Failure> {
        self.0.suspend(|| say(text))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Prints a line. If the reader is gone (for example `head`), output stops but the work continues,
/// because its exit status still matters.
pub(crate) fn say(text: impl std::fmt::Display) -> Result<(), Failure> {
    print_bytes(format!("{text}\n").as_bytes())
}

/// Writes bytes to standard output, on the same terms.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
