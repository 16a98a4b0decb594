//! Reads that do not block the caller.
//!
//! ```text
//! caller                            reader
//! to_vec_async ───── question ────► to_vec, on the stream of the caller
//! polls the future ◄── answer ───── done
//! ```
//!
//! The reader does what a blocking read does, so limits and errors are the same: see [`watchdog`](crate::watchdog).

use core::future::Future;
#[cfg(feature = "kernels")]
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[cfg(feature = "kernels")]
use cubecl::future::channel::{Receiver, bounded};
#[cfg(feature = "kernels")]
use cubecl_environment::stream::StreamId;

use crate::{Element, Result, Tensor};

/// An answer that is there, or that a reader will send.
enum Answer<R> {
    There(Result<R>),
    /// The panic of a runtime is the caller's.
    #[cfg(feature = "kernels")]
    Coming(Receiver<std::thread::Result<Result<R>>>),
}

impl Tensor {
    /// Reads the elements without blocking the thread: [`to_vec`](Self::to_vec) as a future, for any executor.
    ///
    /// The call starts the read, and another thread waits for it, so the future need not be polled at once and may be
    /// awaited on any thread. Errors of the work that made the elements are returned as by `to_vec`, and the wait has the
    /// same [limit](crate::Device::set_wait_limit). Operators that are called before the answer comes do not change it,
    /// but [replays](crate::Recording::replay) may. Dropping the future does not stop the read. On `host` the answer is
    /// there at once.
    ///
    /// ```
    /// # use std::pin::pin;
    /// # use std::sync::Arc;
    /// # use std::task::{Context, Poll, Wake};
    /// # use std::thread::{Thread, current, park};
    /// use windowpane::{Device, MaxPool, Tensor};
    ///
    /// # struct Unpark(Thread);
    /// # impl Wake for Unpark {
    /// #     fn wake(self: Arc<Self>) {
    /// #         self.0.unpark();
    /// #     }
    /// # }
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let (mut future, waker) = (pin!(future), Arc::new(Unpark(current())).into());
    /// #     loop {
    /// #         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
    /// #             Poll::Ready(output) => return output,
    /// #             Poll::Pending => park(),
    /// #         }
    /// #     }
    /// # }
    /// async fn largest(device: &Device) -> windowpane::Result<Vec<f32>> {
    ///     let x = Tensor::from_slice(device, &[1.0f32, 3.0, 2.0, 0.5], [1, 4, 1])?;
    ///     MaxPool::new(2).forward(&x)?.to_vec_async().await
    /// }
    ///
    /// let y = block_on(largest(&Device::best()))?; // or with the executor of the program
    /// assert_eq!(y, [3.0, 2.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn to_vec_async<T: Element>(&self) -> impl Future<Output = Result<Vec<T>>> + Send + use<T> {
        aside(self, Self::to_vec)
    }

    /// Reads the elements as bytes in memory order without blocking the thread: see
    /// [`to_vec_async`](Self::to_vec_async).
    pub fn to_bytes_async(&self) -> impl Future<Output = Result<Vec<u8>>> + Send + use<> {
        aside(self, Self::to_bytes)
    }

    /// Waits for the elements without blocking the thread and without reading them: see
    /// [`to_vec_async`](Self::to_vec_async).
    pub fn wait_async(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        aside(self, Self::wait)
    }
}

/// Starts a read on the reader of this thread.
fn aside<R: Send + 'static>(
    tensor: &Tensor,
    read: fn(&Tensor) -> Result<R>,
) -> impl Future<Output = Result<R>> + Send + use<R> {
    let answer = ask(tensor, read);
    async move {
        match answer {
            Answer::There(answer) => answer,
            #[cfg(feature = "kernels")]
            Answer::Coming(answer) => match answer.recv().await {
                Ok(Ok(answer)) => answer,
                Ok(Err(panic)) => resume_unwind(panic),
                Err(_) => unreachable!("a reader always replies"),
            },
        }
    }
}

fn ask<R: Send + 'static>(tensor: &Tensor, read: fn(&Tensor) -> Result<R>) -> Answer<R> {
    #[cfg(feature = "kernels")]
    if tensor.host_buffer().is_none() {
        let (reply, answer) = bounded(1);
        let (own, stream) = (tensor.clone(), StreamId::current());
        let wait = move || {
            let answer = catch_unwind(AssertUnwindSafe(|| {
                // This thread's work is the caller's, so the device is not idle, and the wait needs its limit.
                own.device().watchdog().launches();
                stream.executes(|| read(&own))
            }));
            // The caller may overwrite the memory once it has the answer.
            drop(own);
            // Nobody hears the answer if the future was dropped.
            let _ = reply.try_send(answer);
        };
        return match tensor.device().watchdog().aside(wait) {
            Ok(()) => Answer::Coming(answer),
            Err(reason) => Answer::There(Err(tensor.device().unanswered("reading", reason.into()))),
        };
    }
    Answer::There(read(tensor))
}
