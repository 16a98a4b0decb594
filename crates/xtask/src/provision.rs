//! Prepares a machine: installs what the backends need and cargo cannot install.
//!
//! Each item is looked for, installed if possible, and otherwise reported with what to do by hand. A missing item does
//! not keep the others from being installed. A second run finds everything and does nothing.

mod apt;
mod cpp;
pub(crate) mod llvm;
pub(crate) mod spirv;
pub(crate) mod vulkan;
pub(crate) mod wheels;

use std::process::ExitCode;

use crate::Result;

/// The outcome for one item.
enum Outcome {
    /// It was already present; where.
    Present(String),
    /// It was installed; where.
    Installed(String),
    /// This machine does not need it; why.
    NotNeeded(String),
    /// It is missing; what a person has to do.
    Missing(String),
}

/// Looks for one item, and installs it if it can.
type Provide = fn() -> Result<Outcome>;

/// Provisions, and fails if something is still missing.
pub(crate) fn run() -> Result<ExitCode> {
    if provision() {
        return Ok(ExitCode::SUCCESS);
    }
    Err("something is still missing; the lines above say what to do".into())
}

/// Provisions, prints the outcome for each item, and returns whether everything is present.
pub(crate) fn provision() -> bool {
    let mut complete = true;
    let items = [
        ("C++ compiler", cpp::provide as Provide),
        ("LLVM", llvm::provide),
        ("Vulkan driver", vulkan::provide),
        ("SPIR-V validator", spirv::provide),
    ];
    for (name, provide) in items {
        let outcome = provide().unwrap_or_else(|error| Outcome::Missing(error.to_string()));
        complete &= !matches!(outcome, Outcome::Missing(_));
        println!("{name}: {}", outcome.line());
    }
    complete
}

impl Outcome {
    fn line(&self) -> String {
        match self {
            Self::Present(place) => format!("present ({place})"),
            Self::Installed(place) => format!("installed ({place})"),
            Self::NotNeeded(reason) => format!("nothing to do ({reason})"),
            Self::Missing(remedy) => format!("MISSING: {remedy}"),
        }
    }
}
