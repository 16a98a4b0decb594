//! `windowpane completions` and `windowpane man`: what a shell and `man` know about the program.

use std::io;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Cli;
use crate::failure::Failure;
use crate::progress::print_bytes;

const EXAMPLE: &str = "\
Example: completions for this bash, and for every later one
  source <(windowpane completions bash)
  windowpane completions bash > ~/.local/share/bash-completion/completions/windowpane";

const MAN_EXAMPLE: &str = "\
Example: the page of `windowpane pool`
  windowpane man pages && man ./pages/windowpane-pool.1";

/// The arguments of `completions`.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "windowpane", &mut script);
        print_bytes(&script)
    }
}

/// The arguments of `man`.
#[derive(Args)]
#[command(after_help = MAN_EXAMPLE)]
pub(crate) struct Man {
    /// The folder to write to; it is made if it does not exist
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl Man {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let written = std::fs::create_dir_all(&self.folder)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), &self.folder));
        written.map_err(|error: io::Error| {
            let folder = self.folder.display();
            Failure::Failed(format!("{folder}: manual pages cannot be written: {error}"))
        })
    }
}
