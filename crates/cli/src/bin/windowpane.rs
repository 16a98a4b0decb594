//! The binary `windowpane`; the library in this crate contains the program.

use std::process::ExitCode;

fn main() -> ExitCode {
    windowpane_cli::main()
}
