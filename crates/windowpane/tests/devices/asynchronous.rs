//! Reads that do not block the caller, on every device.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};

use windowpane::{Backend, Conv, DType, Device, Error, MaxPool, MaxUnpool, Tensor};

use crate::pool::devices;

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The output of a future, which is polled on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, waker) = (pin!(future), Arc::new(Unpark(thread::current())).into());
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Reads in flight bring what blocking reads bring, awaited in any order, on any thread.
#[test]
fn answers_are_those_of_blocking_reads() {
    for device in devices() {
        let w = Tensor::random(&device, DType::F32, [8, 3, 3, 8], 1).unwrap();
        let images = (2..6).map(|seed| Tensor::random(&device, DType::F32, [1, 24, 24, 8], seed));
        let results = images.map(|x| Conv::new([3, 3]).forward(&x.unwrap(), &w, None).unwrap());
        let results: Vec<Tensor> = results.collect();
        let reads: Vec<_> = results.iter().map(Tensor::to_vec_async::<f32>).collect();
        let bytes = results[0].to_bytes_async();
        let done = results[1].wait_async();
        let elsewhere = thread::spawn(|| reads.into_iter().rev().map(block_on).collect::<Vec<_>>());
        block_on(done).unwrap();
        assert!(block_on(bytes).unwrap() == results[0].to_bytes().unwrap(), "{device}");
        for (read, result) in elsewhere.join().unwrap().into_iter().rev().zip(&results) {
            assert!(read.unwrap() == result.to_vec::<f32>().unwrap(), "{device}");
        }
    }
}

/// A read brings the elements as they were when it was asked for, and a read that nobody awaits does no harm.
#[test]
fn elements_are_kept_for_a_read() {
    for device in devices() {
        let mut x = Tensor::random(&device, DType::F32, [1 << 16], 1).unwrap();
        let before = x.to_vec::<f32>().unwrap();
        for seed in 2..6 {
            let read = x.to_vec_async::<f32>();
            drop(x.to_vec_async::<f32>());
            x.randomize(seed).unwrap();
            assert!(block_on(read).unwrap() == before, "{device}");
            x = Tensor::from_slice(&device, &before, [1 << 16]).unwrap();
        }
        let read = x.to_vec_async::<f32>();
        drop(x);
        assert!(block_on(read).unwrap() == before, "{device}");
        let empty = Tensor::random(&device, DType::F32, [0, 4], 1).unwrap();
        assert!(block_on(empty.to_vec_async::<f32>()).unwrap().is_empty(), "{device}");
    }
}

/// The errors are those of blocking reads: another type, and an index that an unpooling found out of range.
#[test]
fn errors_are_those_of_blocking_reads() {
    for device in devices() {
        let x = Tensor::from_slice(&device, &[1.0f32, 2.0], [1, 2, 1]).unwrap();
        let wrong = block_on(x.to_vec_async::<i32>());
        assert!(matches!(wrong, Err(Error::DTypeMismatch { .. })), "{device}: {wrong:?}");
        let indices = Tensor::from_slice(&device, &[0i32, 9], [1, 2, 1]).unwrap();
        match MaxUnpool::new([4]).forward(&x, &indices) {
            // The error of `host` comes with the call.
            Err(error) => assert!(matches!(error, Error::Index(_)), "{device}: {error}"),
            Ok(y) => {
                let y = MaxPool::new([2]).forward(&y).unwrap();
                for error in [
                    block_on(y.to_vec_async::<f32>()).err(),
                    block_on(y.to_bytes_async()).err(),
                    block_on(y.wait_async()).err(),
                ] {
                    assert!(matches!(error, Some(Error::Index(_))), "{device}: {error:?}");
                }
                assert_ne!(device.backend(), Backend::Host);
            }
        }
    }
}

/// Futures may be sent to other threads, as executors do.
#[test]
fn futures_are_sent() {
    fn is_sent<T: Send + 'static>(_: T) {}
    let x = Tensor::from_slice(&Device::host(), &[1.0f32], [1]).unwrap();
    is_sent(x.to_vec_async::<f32>());
    is_sent(x.to_bytes_async());
    is_sent(x.wait_async());
}
