//! Memory that several threads write, each its own part.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

use windowpane_reference::parallel;

/// A slice that tasks write at the same time, each at other elements.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    of: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a slice, whose users promise not to touch each other's elements.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T: Copy> Shared<'a, T> {
    pub(crate) fn new(all: &'a mut [MaybeUninit<T>]) -> Self {
        Self { start: all.as_mut_ptr().cast(), len: all.len(), of: PhantomData }
    }

    /// A slice that has been written.
    pub(crate) fn of(all: &'a mut [T]) -> Self {
        Self { start: all.as_mut_ptr(), len: all.len(), of: PhantomData }
    }

    /// The number of elements.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The address of an element, for a matrix of `last + 1` elements from there on.
    pub(crate) fn pointer(self, at: usize, last: usize) -> *mut T {
        assert!(at + last < self.len, "{at} + {last} of {}", self.len);
        // SAFETY: it is inside the slice.
        unsafe { self.start.add(at) }
    }

    /// The number of the element at an address.
    pub(crate) fn offset(self, address: *mut T) -> usize {
        (address as usize - self.start as usize) / size_of::<T>()
    }

    /// Writes one element.
    ///
    /// # Safety
    /// Nobody else uses the element meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn write(self, at: usize, value: T) {
        assert!(at < self.len);
        // SAFETY: it is inside the slice, and nobody else uses it.
        unsafe { self.start.add(at).write(value) }
    }

    /// Some elements.
    ///
    /// # Safety
    /// They have been written, or are only written, and nobody else uses them meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn slice(self, at: usize, len: usize) -> &'a mut [T] {
        assert!(at + len <= self.len, "{at} + {len} of {}", self.len);
        // SAFETY: they are inside the slice, and nobody else uses them.
        unsafe { core::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

/// A list of `len` elements, all of which `write` writes.
///
/// # Safety
/// `write` writes every element.
pub(crate) unsafe fn written<T: Copy>(len: usize, write: impl FnOnce(Shared<'_, T>)) -> Vec<T> {
    let mut list = Vec::with_capacity(len);
    let memory = &mut list.spare_capacity_mut()[..len];
    in_large_pages(memory);
    write(Shared::new(memory));
    // SAFETY: the caller guarantees that every element was written.
    unsafe { list.set_len(len) };
    list
}

/// Asks for large pages, as the first write to a small one may take longer than a pooling.
fn in_large_pages<T>(memory: &mut [MaybeUninit<T>]) {
    /// The bytes from which that is worth a call.
    #[cfg(target_os = "linux")]
    const LEAST: usize = 1 << 22;
    #[cfg(target_os = "linux")]
    if size_of_val(memory) >= LEAST {
        // Advice is about whole pages; 64 KiB are some of any size.
        let range = memory.as_mut_ptr_range();
        let start = (range.start as usize).next_multiple_of(1 << 16);
        // SAFETY: advice about memory of our own does not change it; what is not possible is not done.
        unsafe { libc::madvise(start as *mut _, range.end as usize - start, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

/// Runs tasks on all cores, or on this thread if `is_small`. Each gets the scratch memory of its thread, `len`
/// elements that hold anything.
pub(crate) fn run<S: Copy + Default + Send>(
    tasks: usize,
    len: usize,
    is_small: bool,
    task: impl Fn(usize, &mut [S]) + Sync,
) {
    if is_small || tasks < 2 {
        let mut scratch = vec![S::default(); len];
        return (0..tasks).for_each(|i| task(i, &mut scratch));
    }
    with_scratch(tasks, 1, |i, scratch: &mut Vec<S>| {
        scratch.resize(len, S::default());
        task(i, scratch);
    });
}

/// Runs tasks on all cores, of which a thread takes at least `least` at once. Each gets the scratch memory of its thread.
pub(crate) fn with_scratch<S: Default + Send>(
    tasks: usize,
    least: usize,
    task: impl Fn(usize, &mut S) + Sync,
) {
    let threads = rayon::current_num_threads();
    let scratches: Vec<Mutex<S>> = (0..threads).map(|_| Mutex::default()).collect();
    parallel::each(tasks, least, &|i| {
        // A task does not wait for other tasks, so its thread runs no other meanwhile.
        let own = &scratches[rayon::current_thread_index().unwrap_or(0) % threads];
        task(i, &mut own.lock().unwrap_or_else(PoisonError::into_inner));
    });
}
