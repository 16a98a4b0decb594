//! Waits for a device's answers, even if the thread that listens for them has ended.
//!
//! With wgpu, CubeCL has one listening thread per stream, which polls until the work is done. That thread can
//! end early: if its wait of one second times out and another thread empties the queue before it looks,
//! wgpu-core 30.0.1 finds the queue empty and the work unfinished and fails an assertion (fixed in wgpu's
//! #9958, not yet released). This happens with long launches on a loaded machine. Waiting for that thread
//! would then never end.
//!
//! The thread of any stream receives the answers of all streams. So after a long wait another stream, a
//! witness, waits too, until one of them receives the answer. If witnesses report that the device is done and
//! the answer is still missing, the wait ends with an error.
//!
//! Every wait ends after a limit, whatever the device does: see [`watchdog`](crate::watchdog).

use core::fmt;
use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Wake;
use std::thread::Thread;
use std::time::{Duration, Instant};

use cubecl::client::Client;
use cubecl_environment::stream::StreamId;

use crate::watchdog::NoAnswer;
use crate::{Backend, Device};

/// The time to wait for the stream's own listener before the first witness starts, and the same if the listener is
/// known to have ended. The time doubles with each further witness.
const DELAY: Duration = Duration::from_secs(2);
const DELAY_WITHOUT_LISTENER: Duration = Duration::from_millis(20);

/// An answer this soon after a witness was started was already available before.
const AT_ONCE: Duration = Duration::from_millis(200);

/// How many witnesses may report that the device is done before a missing answer becomes an error.
const WITNESSES: usize = 3;

/// Why a wait ended without an answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The device is done, but the expected answer is missing.
    Unheard,
    /// The limit was reached.
    Late(Duration),
    /// No thread could be started for the wait.
    NoThread(std::io::Error),
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unheard => f.write_str(
                "the device is done but its runtime does not report the result of the work; restart \
                 the program",
            ),
            Self::Late(limit) => write!(f, "it did not answer for {} s", limit.as_secs_f64()),
            Self::NoThread(error) => {
                write!(f, "no thread could be started to wait for it ({error}); end other threads")
            }
        }
    }
}

impl From<NoAnswer> for Unanswered {
    fn from(reason: NoAnswer) -> Self {
        match reason {
            NoAnswer::Late(limit) => Self::Late(limit),
            NoAnswer::NoThread(error) => Self::NoThread(error),
        }
    }
}

/// A wait on another stream; it ends when the device has finished all earlier work.
type Witness = Pin<Box<dyn Future<Output = ()>>>;

/// Whether the device is reached through wgpu, which answers by futures that do not block.
pub(crate) fn is_asynchronous(device: &Device) -> bool {
    matches!(device.backend(), Backend::Wgpu | Backend::Vulkan | Backend::Metal)
}

/// Runs blocking work on a stream with an unused listener.
pub(crate) fn with_fresh_ears<T: Send>(device: &Device, work: impl FnOnce() -> T + Send) -> T {
    if !is_asynchronous(device) {
        return work();
    }
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Waits for an answer of the device, at most for `limit`.
pub(crate) fn listen<A: Future<Output: Send + 'static>>(
    device: &Device,
    client: &Client,
    limit: Option<Duration>,
    ask: impl FnOnce(Client) -> A + Send + 'static,
) -> Result<A::Output, Unanswered> {
    if !is_asynchronous(device) {
        // A helper asks on this thread's stream, which has the work that is waited for.
        let (client, stream) = (client.clone(), StreamId::current());
        let ask = move || stream.executes(|| cubecl::future::block_on(ask(client)));
        return Ok(device.watchdog().within(limit, ask)?);
    }
    let deaf = device.deafness();
    let delay = if deaf.load(Relaxed) { DELAY_WITHOUT_LISTENER } else { DELAY };
    let heard = wait(ask(client.clone()), limit, delay, || {
        // A new thread has its own stream.
        let other = client.clone();
        match std::thread::spawn(move || other.sync()).join() {
            Ok(done) => Box::pin(async move {
                // An error is reported by the awaited answer itself.
                let _ = done.await;
            }),
            Err(_) => Box::pin(core::future::pending()),
        }
    })?;
    match heard.after_witness {
        None => deaf.store(false, Relaxed),
        Some(after) if after < AT_ONCE => deaf.store(true, Relaxed),
        Some(_) => {}
    }
    Ok(heard.told)
}

/// A received answer.
#[derive(Debug, PartialEq, Eq)]
struct Heard<T> {
    told: T,
    /// The time since the last witness was started; `None` if there was none.
    after_witness: Option<Duration>,
}

/// Waits for an answer, at most for `limit`, and starts another witness whenever its delay ends.
fn wait<T>(
    told: impl Future<Output = T>,
    limit: Option<Duration>,
    mut delay: Duration,
    mut witness: impl FnMut() -> Witness,
) -> Result<Heard<T>, Unanswered> {
    let mut told = pin!(told);
    let mut waiting: Vec<Witness> = Vec::new();
    let mut done = 0;
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut asked: Option<Instant> = None;
    let start = Instant::now();
    let mut until = start + delay;
    loop {
        if let Poll::Ready(told) = told.as_mut().poll(&mut context) {
            return Ok(Heard { told, after_witness: asked.map(|asked| asked.elapsed()) });
        }
        waiting.retain_mut(|witness| {
            let pending = witness.as_mut().poll(&mut context).is_pending();
            done += usize::from(!pending);
            pending
        });
        let now = Instant::now();
        let left = limit.map(|limit| (limit, limit.saturating_sub(now - start)));
        if let Some((limit, Duration::ZERO)) = left {
            return Err(Unanswered::Late(limit));
        }
        if now < until {
            let pause = until - now;
            std::thread::park_timeout(left.map_or(pause, |(_, left)| pause.min(left)));
            continue;
        }
        if done >= WITNESSES {
            return Err(Unanswered::Unheard);
        }
        asked = Some(now);
        waiting.push(witness());
        delay *= 2;
        until = Instant::now() + delay;
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, poll_fn, ready};

    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    /// An answer that comes at once, or from another thread, needs no witness.
    #[test]
    fn nobody_else_is_asked_without_need() {
        let never = || -> Witness { unreachable!("there was no need") };
        let alone = |told| Heard { told, after_witness: None };
        assert_eq!(wait(ready(Ok(3)), None, SHORT, never).unwrap(), alone(Ok(3)));
        let (sender, told) = cubecl::future::channel::bounded(1);
        let thread = std::thread::spawn(move || sender.try_send(4));
        let hour = Duration::from_secs(3600);
        assert_eq!(wait(told.recv(), Some(hour), hour, never).unwrap(), alone(Ok(4)));
        thread.join().unwrap().unwrap();
    }

    /// A witness can bring an answer that nobody listened for, without finishing itself.
    #[test]
    fn a_witness_hears_for_all() {
        let asked = Cell::new(0);
        let told = poll_fn(|_| if asked.get() < 2 { Poll::Pending } else { Poll::Ready(5) });
        let heard = wait(told, None, SHORT, || {
            asked.set(asked.get() + 1);
            Box::pin(pending())
        });
        let heard = heard.unwrap();
        assert_eq!((heard.told, asked.get()), (5, 2));
        assert!(heard.after_witness.is_some());
    }

    /// A wait ends if witnesses report that the device is done and no answer comes.
    #[test]
    fn what_never_comes_is_given_up() {
        let mut asked = 0;
        let heard = wait(pending::<()>(), None, SHORT, || {
            asked += 1;
            Box::pin(ready(()))
        });
        assert!(matches!(heard, Err(Unanswered::Unheard)), "{heard:?}");
        assert_eq!(asked, WITNESSES);
    }

    /// A wait ends at its limit, with and without witnesses.
    #[test]
    fn a_limit_ends_every_wait() {
        for delay in [SHORT, Duration::from_secs(3600)] {
            let heard = wait(pending::<()>(), Some(20 * SHORT), delay, || Box::pin(pending()));
            assert!(
                matches!(heard, Err(Unanswered::Late(limit)) if limit == 20 * SHORT),
                "{heard:?}"
            );
        }
    }
}
