//! A C++ compiler: LLVM's libraries link its standard library, and it builds the runtime of the fuzzers.

use super::{Outcome, apt};
use crate::Result;
use crate::machine::has_cpp;

pub(super) fn provide() -> Result<Outcome> {
    if !cfg!(target_os = "linux") {
        return Ok(Outcome::NotNeeded("the system's own, which Rust links with".into()));
    }
    if has_cpp() {
        return Ok(Outcome::Present("in PATH".into()));
    }
    apt::install(&["g++"])?;
    Ok(Outcome::Installed("g++".into()))
}
