//! Long work without the interpreter's lock, which Ctrl-C ends.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use windowpane::Error;

/// How often Python is asked whether the user has pressed Ctrl-C.
const ASK: Duration = Duration::from_millis(50);

/// Does work on a thread of its own while Python goes on. After Ctrl-C the work ends by itself, and nobody waits for it.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> windowpane::Result<T> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = channel();
    thread::Builder::new()
        .name("windowpane".into())
        .spawn(move || {
            // Nobody listens after Ctrl-C.
            let _ = sender.send(work());
        })
        .map_err(|error| PyRuntimeError::new_err(format!("no thread can be started: {error}")))?;
    // The lock keeps the receiver in one thread, which `detach` cannot know.
    let receiver = std::sync::Mutex::new(receiver);
    loop {
        let told = py.detach(|| {
            let receiver = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            receiver.recv_timeout(ASK)
        });
        match told {
            Ok(done) => return done.map_err(exception),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the work ended without a result"));
            }
        }
    }
}

/// The exception that Python users expect of an error.
pub(crate) fn exception(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Device { .. } | Error::NoDevice { .. } | Error::BackendNotBuilt { .. } => {
            PyRuntimeError::new_err(text)
        }
        _ => PyValueError::new_err(text),
    }
}
