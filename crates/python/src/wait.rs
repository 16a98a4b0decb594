//! Long work without the interpreter's lock; Ctrl-C ends the wait for it.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use windowpane::Error;

/// How often Python is asked whether the user has pressed Ctrl-C.
const ASK: Duration = Duration::from_millis(50);

type Job = Box<dyn FnOnce() + Send>;

/// The threads that wait for work. A device keeps memory for each thread that uses it, so threads are kept too: as many
/// as there were calls at the same time.
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

/// The process that uses this module: after a fork its threads are gone.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Runs work on another thread while Python goes on. After Ctrl-C nothing waits for the work, which still completes.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> PyResult<T> + Send + 'static,
) -> PyResult<T> {
    refuse_forks()?;
    let (sender, receiver) = channel();
    submit(Box::new(move || {
        // After Ctrl-C nothing receives the result.
        let _ = sender.send(guarded(work));
    }))?;
    // A lock, because `detach` requires that what it uses may be shared.
    let receiver = Mutex::new(receiver);
    loop {
        match py.detach(|| locked(&receiver).recv_timeout(ASK)) {
            Ok(done) => return done,
            Err(RecvTimeoutError::Timeout) if UNINTERRUPTED.get() => {}
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the work ended without a result"));
            }
        }
    }
}

/// Runs short work on this thread while Python goes on.
pub(crate) fn at_once<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> PyResult<T> + Send,
) -> PyResult<T> {
    refuse_forks()?;
    py.detach(|| guarded(work))
}

thread_local! {
    /// Whether this thread's waits go on after Ctrl-C.
    static UNINTERRUPTED: Cell<bool> = const { Cell::new(false) };
}

/// Does something whose waits go on after Ctrl-C, because the work uses memory that is someone else's when this returns.
pub(crate) fn uninterrupted<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let before = UNINTERRUPTED.replace(true);
    let done = guarded(work);
    UNINTERRUPTED.set(before);
    done
}

/// Refuses to work in a process that has lost the threads of its parent.
pub(crate) fn refuse_forks() -> PyResult<()> {
    let known = PROCESS.compare_exchange(0, process::id(), Ordering::AcqRel, Ordering::Acquire);
    if known.is_err_and(|known| known != process::id()) {
        return Err(PyRuntimeError::new_err(
            "windowpane cannot be used in a process that was forked from one that has used it; start processes with \
             the method `spawn`",
        ));
    }
    Ok(())
}

/// Does work whose panics become exceptions.
pub(crate) fn guarded<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(broken(&*panic)))
}

/// Gives a job to a thread that waits for one, or to a new thread.
fn submit(job: Job) -> PyResult<()> {
    let idle = locked(&IDLE).pop();
    let worker = match idle {
        Some(worker) => worker,
        None => {
            let (worker, jobs) = channel::<Job>();
            let own = worker.clone();
            let run = move || {
                for job in jobs {
                    job();
                    locked(&IDLE).push(own.clone());
                }
            };
            let started = thread::Builder::new().name("windowpane".into()).spawn(run);
            started.map_err(|error| {
                PyRuntimeError::new_err(format!("no thread can be started: {error}"))
            })?;
            worker
        }
    };
    let lost = |_| PyRuntimeError::new_err("a thread of windowpane has ended; start Python again");
    worker.send(job).map_err(lost)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The exception for a panic, which is a bug in windowpane.
fn broken(panic: &(dyn Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    PyRuntimeError::new_err(format!("this is a fault of windowpane, please report it: {text}"))
}

/// The exception that Python users expect for an error.
pub(crate) fn exception(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Device { .. } | Error::NoDevice { .. } | Error::BackendNotBuilt { .. } => {
            PyRuntimeError::new_err(text)
        }
        _ => PyValueError::new_err(text),
    }
}
