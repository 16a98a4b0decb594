//! The binary `windowpane`; the library beside it is the program.

use std::process::ExitCode;

fn main() -> ExitCode {
    windowpane_cli::main()
}
