//! Bounds on waiting: a device that does not answer within its limit is given up.
//!
//! ```text
//! caller                                  helper
//! ask ──────────── question ────────────► waits for the device
//! waits until the limit ◄── answer ────── done
//! at the limit: marks the device as lost; the helper is left behind
//! ```
//!
//! The waits of CUDA, ROCm and `cpu` cannot be interrupted, so they run on a helper thread. Each thread that waits has a
//! helper of its own, which stays for later waits: a slow answer to one thread never delays another. wgpu's answers are
//! futures, which [`listen`](crate::listen) polls until the limit without a helper.
//!
//! A wait for an idle device cannot be long, so it needs no helper, and small reads in a row cost no switch of threads. A
//! device is idle if every thread that launched work on it has waited since: for its own stream, so for all of its work.
//!
//! What a helper left behind holds stays allocated until the program ends.
//!
//! A read that must not block its caller runs on a reader: a thread for each thread that asks and each device, which waits
//! as any other thread does, with the same limit. Reads that one thread asks for come one after the other, as its work
//! does. The asking thread counts as not having waited, because it may launch more before the answer comes.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::Backend;

/// The environment variable with the longest wait in seconds, or `none`.
const VARIABLE: &str = "WINDOWPANE_WAIT_LIMIT";

/// The longest wait for a GPU, which is far more than any queue of work takes.
const LIMIT: Duration = Duration::from_secs(120);

/// The same where the CPU does the work, which may take a hundred times as long.
const LIMIT_ON_THE_CPU: Duration = Duration::from_secs(3600);

/// A wait that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenUp {
    /// What was waited for.
    work: String,
    limit: Duration,
}

/// How long to wait for a device, and whether it was given up. All [`Device`](crate::Device)s of one backend and index
/// share it.
#[derive(Debug)]
pub(crate) struct Watchdog {
    id: usize,
    /// The number of threads with work on the device that they have not waited for.
    busy: AtomicUsize,
    /// Whether other code may launch work, which is not noted.
    shared: AtomicBool,
    /// The limit that the program has set.
    limit: Mutex<Option<Option<Duration>>>,
    lost: OnceLock<GivenUp>,
}

impl Default for Watchdog {
    fn default() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Self {
            id: NEXT.fetch_add(1, SeqCst),
            busy: AtomicUsize::new(0),
            shared: AtomicBool::new(false),
            limit: Mutex::default(),
            lost: OnceLock::new(),
        }
    }
}

thread_local! {
    /// The devices, by their `id`, on which this thread has launched work that it has not waited for.
    static LAUNCHED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Watchdog {
    /// Notes that this thread is about to launch work.
    pub(crate) fn launches(&self) {
        // A thread that ends has no list any more; its work counts as never waited for.
        let noted = LAUNCHED.try_with(|launched| {
            let mut launched = launched.borrow_mut();
            let known = launched.contains(&self.id);
            if !known {
                launched.push(self.id);
            }
            known
        });
        if noted != Ok(true) {
            self.busy.fetch_add(1, SeqCst);
        }
    }

    /// Notes that all of this thread's work is done. An answer that is an error may come before that.
    pub(crate) fn has_waited(&self) {
        let was_busy = LAUNCHED.try_with(|launched| {
            let mut launched = launched.borrow_mut();
            let at = launched.iter().position(|id| *id == self.id);
            at.map(|at| launched.swap_remove(at)).is_some()
        });
        if was_busy == Ok(true) {
            self.busy.fetch_sub(1, SeqCst);
        }
    }

    /// Notes that other code launches work from now on.
    pub(crate) fn is_shared(&self) {
        self.shared.store(true, SeqCst);
    }

    /// Runs a wait for this thread's work that may never return, and waits for it at most for `limit`.
    pub(crate) fn within<T: Send + 'static>(
        &self,
        limit: Option<Duration>,
        wait: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let idle = self.busy.load(SeqCst) == 0 && !self.shared.load(SeqCst);
        within(limit.filter(|_| !idle), wait)
    }

    /// Runs a wait for this thread's work on its reader, after those before it, and returns at once.
    pub(crate) fn aside(&self, wait: impl FnOnce() + Send + 'static) -> Result<(), NoAnswer> {
        let ask = |readers: &RefCell<Vec<(usize, Sender<Question>)>>| -> Result<_, NoAnswer> {
            let mut readers = readers.borrow_mut();
            if let Some((_, reader)) = readers.iter().find(|(id, _)| *id == self.id) {
                return Ok(reader.clone());
            }
            let reader = helper()?;
            readers.push((self.id, reader.clone()));
            Ok(reader)
        };
        // A thread that ends has no readers any more.
        let reader = READERS.try_with(ask).unwrap_or_else(|_| helper())?;
        // A panic must not end the reader; the wait itself passes it on.
        let question: Question = Box::new(|| drop(catch_unwind(AssertUnwindSafe(wait))));
        match reader.send(question) {
            Ok(()) => Ok(()),
            Err(_) => unreachable!("a reader ends only after its last sender, and catches panics"),
        }
    }

    /// That of a device.
    pub(crate) fn of(backend: Backend, index: usize) -> Arc<Self> {
        type Known = Vec<((Backend, usize), Arc<Watchdog>)>;
        static KNOWN: Mutex<Known> = Mutex::new(Vec::new());
        let mut known = unpoisoned(&KNOWN);
        if let Some((_, watchdog)) = known.iter().find(|(device, _)| *device == (backend, index)) {
            return watchdog.clone();
        }
        let watchdog = Arc::<Self>::default();
        known.push(((backend, index), watchdog.clone()));
        watchdog
    }

    /// Why the device was given up, if it was.
    pub(crate) fn lost(&self) -> Option<&GivenUp> {
        self.lost.get()
    }

    /// Gives the device up, unless it was before; returns the first reason.
    pub(crate) fn give_up(&self, work: &str, limit: Duration) -> &GivenUp {
        self.lost.get_or_init(|| GivenUp { work: work.into(), limit })
    }

    /// Sets the longest wait.
    pub(crate) fn set(&self, limit: Option<Duration>) {
        *unpoisoned(&self.limit) = Some(limit);
    }

    /// The longest wait: the one that was set, else the variable's, else the one for such a device.
    pub(crate) fn limit(&self, on_the_cpu: bool) -> Result<Option<Duration>, String> {
        static ASKED: OnceLock<Option<Result<Option<Duration>, String>>> = OnceLock::new();
        if let Some(limit) = *unpoisoned(&self.limit) {
            return Ok(limit);
        }
        let asked = ASKED
            .get_or_init(|| std::env::var_os(VARIABLE).map(|text| parse(&text.to_string_lossy())));
        let default = if on_the_cpu { LIMIT_ON_THE_CPU } else { LIMIT };
        asked.clone().unwrap_or(Ok(Some(default)))
    }
}

impl core::fmt::Display for GivenUp {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { work, limit } = self;
        write!(
            f,
            "it did not answer for {} s at {work} and was given up; restart the program, and if the work may take \
             longer, raise {VARIABLE} or call `Device::set_wait_limit`",
            limit.as_secs_f64()
        )
    }
}

/// A number of seconds, or `none`.
fn parse(text: &str) -> Result<Option<Duration>, String> {
    if text == "none" {
        return Ok(None);
    }
    let limit = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match limit {
        Some(limit) if !limit.is_zero() => Ok(Some(limit)),
        _ => Err(format!("{VARIABLE} is `{text}`; set it to seconds above 0, or to `none`")),
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each is changed in one step, so a poisoned one is still consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The limit was reached.
    Late(Duration),
    /// The operating system starts no further thread.
    NoThread(std::io::Error),
}

type Question = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The helper of this thread, while it is idle.
    static HELPER: Cell<Option<Sender<Question>>> = const { Cell::new(None) };
}

thread_local! {
    /// The readers of this thread, with the `id` of their device.
    static READERS: RefCell<Vec<(usize, Sender<Question>)>> = const { RefCell::new(Vec::new()) };
}

/// Starts a thread that answers questions until nobody can ask it.
fn helper() -> Result<Sender<Question>, NoAnswer> {
    let (sender, questions) = channel::<Question>();
    let thread = std::thread::Builder::new().name("windowpane-wait".into());
    let started = thread.spawn(move || questions.into_iter().for_each(|answer| answer()));
    started.map(|_| sender).map_err(NoAnswer::NoThread)
}

/// Runs something that may never return on this thread's helper, and waits for it at most for `limit`.
fn within<T: Send + 'static>(
    limit: Option<Duration>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    let Some(limit) = limit else { return Ok(work()) };
    let (reply, answer) = sync_channel(1);
    let question: Question = Box::new(move || {
        // The panic of a runtime is the caller's. Nobody hears an answer that is late.
        let _ = reply.send(catch_unwind(AssertUnwindSafe(work)));
    });
    // A thread that ends has no helper any more.
    let idle = HELPER.try_with(Cell::take).ok().flatten();
    let asked = match idle.map_or_else(helper, Ok)? {
        helper if helper.send(question).is_ok() => helper,
        _ => unreachable!("a helper ends only after its last sender, and catches panics"),
    };
    let answered = answer.recv_timeout(limit);
    if let Err(RecvTimeoutError::Timeout) = answered {
        return Err(NoAnswer::Late(limit));
    }
    let _ = HELPER.try_with(|idle| idle.set(Some(asked)));
    match answered {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => unreachable!("a helper always replies"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::listen::is_asynchronous;
    use crate::{DType, Device, Error, MaxPool, Result, Tensor};

    #[test]
    fn limits_are_seconds_or_none() {
        assert_eq!(parse("none"), Ok(None));
        assert_eq!(parse("90"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(parse("0.25"), Ok(Some(Duration::from_millis(250))));
        for wrong in ["", "0", "-1", "NaN", "inf", "1e99", "soon"] {
            let error = parse(wrong).expect_err(wrong);
            assert!(error.contains(&format!("`{wrong}`; set it to seconds")), "{error}");
        }
    }

    #[test]
    fn answers_come_from_one_helper_until_one_is_late() {
        let hour = Some(Duration::from_secs(3600));
        let thread = || std::thread::current().id();
        let first = within(hour, thread).unwrap();
        assert_ne!(first, thread());
        assert_eq!(within(hour, thread).unwrap(), first);
        assert_eq!(within(None, thread).unwrap(), thread());
        let panicked = catch_unwind(|| within(hour, || panic!("as runtimes do"))).map(|_| ());
        assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "as runtimes do");
        assert_eq!(within(hour, thread).unwrap(), first);

        let (end, never) = channel::<()>();
        let start = Instant::now();
        let late = within(Some(Duration::from_millis(20)), move || never.recv().is_err());
        assert!(matches!(late, Err(NoAnswer::Late(limit)) if limit.as_millis() == 20), "{late:?}");
        assert!(start.elapsed() < Duration::from_secs(60));
        assert_ne!(within(hour, thread).unwrap(), first);
        drop(end);
    }

    /// A read that waits elsewhere does not hold up its caller, comes after the caller's earlier reads, and not after those
    /// of another device.
    #[test]
    fn readers_do_not_block() {
        let [one, other] = [Watchdog::default(), Watchdog::default()];
        let (end, never) = channel::<()>();
        let (reply, answers) = channel();
        let tell = |number: u32| {
            let reply = reply.clone();
            move || reply.send((number, std::thread::current().id())).unwrap()
        };
        one.aside(move || assert!(never.recv().is_err())).unwrap();
        one.aside(tell(1)).unwrap();
        one.aside(|| panic!("as runtimes do")).unwrap();
        one.aside(tell(2)).unwrap();
        other.aside(tell(3)).unwrap();
        let third = answers.recv().unwrap();
        assert_eq!(third.0, 3);
        assert!(answers.try_recv().is_err());
        drop(end);
        let [first, second] = [answers.recv().unwrap(), answers.recv().unwrap()];
        assert_eq!((first.0, second), (1, (2, first.1)));
        assert_ne!(first.1, third.1);
    }

    /// A wait runs on the calling thread if every thread has waited for its work, and else on a helper.
    #[test]
    fn idle_devices_need_no_helper() {
        let (watchdog, hour) = (Watchdog::default(), Some(Duration::from_secs(3600)));
        let here = |watchdog: &Watchdog| {
            let thread = || std::thread::current().id();
            watchdog.within(hour, thread).unwrap() == thread()
        };
        assert!(here(&watchdog));
        watchdog.launches();
        watchdog.launches();
        assert!(!here(&watchdog));
        assert!(!here(&watchdog));
        watchdog.has_waited();
        watchdog.has_waited();
        assert!(here(&watchdog));
        // The other thread has not waited for its work.
        std::thread::scope(|scope| scope.spawn(|| watchdog.launches()).join()).unwrap();
        watchdog.launches();
        watchdog.has_waited();
        assert!(!here(&watchdog));
        let other = Watchdog::default();
        assert!(here(&other));
        other.is_shared();
        assert!(!here(&other));
    }

    /// A device whose wait never ends is given up after the limit, and every later call with it fails at once.
    #[test]
    fn a_device_that_hangs_is_given_up() {
        for device in Device::all().into_iter().filter(|device| device.own_client().is_some()) {
            let dims = [1, 4, 4, 1];
            // The other tests use the device itself.
            let hung = device.with_own_watchdog();
            let limit = Duration::from_millis(50);
            let mut x = Tensor::random(&hung, DType::F32, dims, 1).unwrap();
            let pool = MaxPool::new([2, 2]);
            let plan = pool.plan(&hung, DType::F32, &dims).unwrap();
            x.wait().unwrap();
            hung.set_wait_limit(Some(limit));
            assert_eq!(hung.wait_limit().unwrap(), Some(limit));
            let y = pool.forward(&x).unwrap();

            // An answer that never comes: CUDA's wait blocks its thread, wgpu's is never ready.
            let blocks = !is_asynchronous(&device);
            let start = Instant::now();
            let late: Result<()> =
                hung.hear(device.own_client().unwrap(), "a test", move |_| async move {
                    if blocks {
                        std::thread::sleep(Duration::from_secs(3600));
                    }
                    core::future::pending().await
                });
            let error = late.unwrap_err();
            assert!(start.elapsed() < Duration::from_secs(60), "{device}");
            let text = error.to_string();
            assert!(
                text.contains(&format!("{device} is lost: it did not answer for 0.05 s at a test")),
                "{text}"
            );
            assert!(text.contains("restart the program"), "{text}");

            let start = Instant::now();
            let lost = |result: Result<()>| {
                let error = result.expect_err("the device is lost");
                assert!(matches!(error, Error::DeviceLost { .. }), "{device}: {error}");
            };
            lost(hung.wait());
            lost(y.wait());
            lost(x.to_vec::<f32>().map(drop));
            lost(cubecl::future::block_on(x.to_vec_async::<f32>()).map(drop));
            lost(Tensor::from_slice(&hung, &[1.0f32], [1]).map(drop));
            lost(Tensor::random(&hung, DType::F32, dims, 1).map(drop));
            lost(x.randomize(2));
            let source = x.clone();
            lost(x.copy_from(&source));
            lost(pool.forward(&x).map(drop));
            lost(pool.forward_with_plan(&plan, &x).map(drop));
            lost(plan.run(&[&x], &mut Vec::new()));
            lost(hung.time(|| Ok(())).map(drop));
            lost(hung.record(|| Ok(())).map(drop));
            assert!(start.elapsed() < Duration::from_secs(10), "{device}: {:?}", start.elapsed());
            // The runtime itself goes on.
            Tensor::random(&device, DType::F32, dims, 1).unwrap().wait().unwrap();
        }
    }
}
