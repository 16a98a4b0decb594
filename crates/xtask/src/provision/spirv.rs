//! A validator of SPIR-V, with which a test checks what is compiled for Vulkan.

use super::{Outcome, apt};
use crate::{Result, shell};

/// The validator's program.
pub(crate) const VALIDATOR: &str = "spirv-val";

pub(super) fn provide() -> Result<Outcome> {
    if shell::has_program(VALIDATOR) {
        return Ok(Outcome::Present("in PATH".into()));
    }
    match apt::install(&["spirv-tools"]) {
        Ok(()) => Ok(Outcome::Installed("spirv-tools".into())),
        // The test runs without it.
        Err(error) => Ok(Outcome::NotNeeded(format!("to have SPIR-V validated, {error}"))),
    }
}
