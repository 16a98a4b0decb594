//! The random numbers of modules.

use core::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use burn::module::{Flag, Param};
use burn::tensor::Device;

/// The seed of a module, and from it one for each call in training.
#[derive(Clone)]
pub(super) struct Seed {
    module: u32,
    /// How many calls in training there were, clones included.
    calls: Arc<AtomicU32>,
}

impl Seed {
    /// The given seed; without one, the next of 0, 1, 2, … in this process.
    pub(super) fn new(given: Option<u32>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let module = given.unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        Self { module, calls: Arc::default() }
    }

    /// Another seed for every call in training, with the conditions of Burn's `Dropout`; `None` otherwise.
    pub(super) fn next(&self, training: &Param<Flag>, device: &Device) -> Option<u32> {
        let trains = training.is_enabled() && device.is_autodiff();
        trains.then(|| self.of_call(self.calls.fetch_add(1, Ordering::Relaxed)))
    }

    /// The seed of the first call.
    pub(super) fn first(&self) -> u32 {
        self.of_call(0)
    }

    fn of_call(&self, call: u32) -> u32 {
        // Multiples of this number are far apart, so modules with neighbouring seeds do not soon draw the same numbers.
        self.module.wrapping_mul(0x9e37_79b9).wrapping_add(call)
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.module.fmt(f)
    }
}
