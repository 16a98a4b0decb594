//! Waiting for what a device tells, also where its listener has gone.
//!
//! CubeCL hears of a graphics interface's finished work by a thread a stream, which asks wgpu until it is
//! told. That thread can end before its time: where its wait of a second runs out, and another thread clears
//! the queue before this one looks, wgpu-core 30.0.1 finds the queue empty and the work not done, and
//! asserts that this cannot be (mended in wgpu's #9958, which is in no release yet). Long launches on a
//! loaded machine bring it about, and whoever waits for that thread then waits for ever.
//!
//! Any stream's thread hears for all of them. So whoever has waited for long lets another stream wait too,
//! until one of them is told; and where such a stream says that the device is done, and nothing comes all
//! the same, the wait is an error.

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

use crate::{Backend, Device};

/// How long the stream's own listener is waited for alone, and how long where it is known to have gone;
/// each one after it is waited for twice as long as the one before.
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_WITH_THE_DEAF: Duration = Duration::from_millis(20);

/// What is told so soon after another was asked was there to be heard before.
const AT_ONCE: Duration = Duration::from_millis(200);

/// How many others may say that the device is done before what has not come is given up.
const WITNESSES: usize = 3;

/// The device is done, and what it should have told has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unheard;

impl fmt::Display for Unheard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the device is done but its runtime does not say what became of the work; start the \
             program anew",
        )
    }
}

/// A wait of another listener; it ends when the device has done all that it was given before.
type Witness = Pin<Box<dyn Future<Output = ()>>>;

/// Whether a device is heard of through wgpu.
fn can_go_deaf(device: &Device) -> bool {
    matches!(device.backend(), Backend::Wgpu | Backend::Vulkan | Backend::Metal)
}

/// Does work that waits by itself, on a stream whose listener nobody has used before.
pub(crate) fn with_fresh_ears<T: Send>(device: &Device, work: impl FnOnce() -> T + Send) -> T {
    if !can_go_deaf(device) {
        return work();
    }
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Waits for what a device tells.
pub(crate) fn listen<T>(
    device: &Device,
    client: &Client,
    told: impl Future<Output = T>,
) -> Result<T, Unheard> {
    if !can_go_deaf(device) {
        return Ok(cubecl::future::block_on(told));
    }
    let deaf = device.deafness();
    let patience = if deaf.load(Relaxed) { PATIENCE_WITH_THE_DEAF } else { PATIENCE };
    let heard = wait(told, patience, || {
        // A thread of its own has a stream of its own.
        let other = client.clone();
        match std::thread::spawn(move || other.sync()).join() {
            Ok(done) => Box::pin(async move {
                // What went wrong is told by what is waited for.
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

/// What was told.
#[derive(Debug, PartialEq, Eq)]
struct Heard<T> {
    told: T,
    /// How long after a witness was last asked; nothing where none was.
    after_witness: Option<Duration>,
}

/// Waits for what is told, with another witness whenever patience runs out.
fn wait<T>(
    told: impl Future<Output = T>,
    mut patience: Duration,
    mut witness: impl FnMut() -> Witness,
) -> Result<Heard<T>, Unheard> {
    let mut told = pin!(told);
    let mut waiting: Vec<Witness> = Vec::new();
    let mut done = 0;
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut asked: Option<Instant> = None;
    let mut until = Instant::now() + patience;
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
        if now < until {
            std::thread::park_timeout(until - now);
            continue;
        }
        if done >= WITNESSES {
            return Err(Unheard);
        }
        asked = Some(now);
        waiting.push(witness());
        patience *= 2;
        until = Instant::now() + patience;
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

    /// What is told at once, or by another thread, needs no witness.
    #[test]
    fn nobody_else_is_asked_without_need() {
        let never = || -> Witness { unreachable!("there was no need") };
        let alone = |told| Ok(Heard { told, after_witness: None });
        assert_eq!(wait(ready(Ok(3)), SHORT, never), alone(Ok(3)));
        let (sender, told) = cubecl::future::channel::bounded(1);
        let thread = std::thread::spawn(move || sender.try_send(4));
        assert_eq!(wait(told.recv(), Duration::from_secs(3600), never), alone(Ok(4)));
        thread.join().unwrap().unwrap();
    }

    /// A witness brings about what nobody listened for, without being done itself.
    #[test]
    fn a_witness_hears_for_all() {
        let asked = Cell::new(0);
        let told = poll_fn(|_| if asked.get() < 2 { Poll::Pending } else { Poll::Ready(5) });
        let heard = wait(told, SHORT, || {
            asked.set(asked.get() + 1);
            Box::pin(pending())
        });
        let heard = heard.unwrap();
        assert_eq!((heard.told, asked.get()), (5, 2));
        assert!(heard.after_witness.is_some());
    }

    /// Where witnesses say that the device is done, a wait for nothing ends.
    #[test]
    fn what_never_comes_is_given_up() {
        let mut asked = 0;
        let heard = wait(pending::<()>(), SHORT, || {
            asked += 1;
            Box::pin(ready(()))
        });
        assert_eq!((heard, asked), (Err(Unheard), WITNESSES));
    }
}
