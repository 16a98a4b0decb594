//! Files that must not stay behind if the user interrupts the program.
//!
//! On Unix a thread waits for the signals that end a program, removes the files, and lets the signal
//! end the program as it would have. Elsewhere the files stay.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

static PARTS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn parts() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a file to be removed if the program is interrupted.
pub(crate) fn remove_if_interrupted(part: &Path) {
    #[cfg(unix)]
    signals::watch();
    parts().insert(part.into());
}

/// Unregisters a file.
pub(crate) fn forget(part: &Path) {
    parts().remove(part);
}

#[cfg(unix)]
mod signals {
    use std::mem::MaybeUninit;
    use std::sync::Once;
    use std::{fs, ptr, thread};

    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    pub(super) fn watch() {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            let ending =
                [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal));
            // If signals cannot be watched, they end the program at once and the files stay.
            let Ok(mut signals) = Signals::new(ending) else { return };
            thread::spawn(move || {
                for signal in signals.forever() {
                    // The lock is kept, so that no new file is started while the program ends.
                    let parts = super::parts();
                    parts.iter().for_each(|part| drop(fs::remove_file(part)));
                    let _ = emulate_default_handler(signal);
                }
            });
        });
    }

    /// Whether the program was started with this signal ignored, as `nohup` does.
    fn is_ignored(signal: i32) -> bool {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: no action is set; the current one is written to `action`, for which all zeros are valid.
        unsafe {
            libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
                && action.assume_init().sa_sigaction == libc::SIG_IGN
        }
    }
}
