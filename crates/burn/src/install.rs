//! Registers the fuser with Burn.

use std::sync::{Mutex, PoisonError};

use burn_cubecl::fusion::{CubeFuser, OptimizationProvider, RegistryError, register};

use crate::fuser::{Fused, WindowFuser};

/// The error of an [`install`] after Burn has started to queue operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "windowpane was to be installed in Burn, but Burn has already run a tensor operation; call \
     `windowpane_burn::install()` at the start of `main`"
)]
pub struct TooLate;

/// Lets windowpane compute the poolings and convolutions of this process's Burn programs.
///
/// Call it before the first operation on a tensor; later calls change nothing. On a machine without a desktop it also keeps
/// the window library from printing an error each time that devices are listed.
pub fn install() -> Result<(), TooLate> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    // The flag is written in one step, so a poisoned one is still right.
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        #[cfg(target_os = "linux")]
        windowpane::without_a_desktop();
        match register(Provider) {
            // Registered under our name, by another copy of this crate for example: it does the same.
            Ok(()) | Err(RegistryError::DuplicateOptimization { .. }) => *installed = true,
            Err(RegistryError::ServiceRunning) => return Err(TooLate),
        }
    }
    Ok(())
}

struct Provider;

impl OptimizationProvider for Provider {
    type Operation = Fused;

    fn fuser(&self, device: &burn_cubecl::CubeDevice) -> CubeFuser {
        CubeFuser::new(WindowFuser::new(device.clone()))
    }
}
