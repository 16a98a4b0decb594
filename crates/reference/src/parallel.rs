//! Loops on all cores.
//!
//! rayon compiles its own loops again for each type and each closure, and there are hundreds of both here. These hand rayon
//! a reference to the body, so that what divides the work among threads is compiled once.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

/// The parts that a list is divided into, if it has as many elements.
const PARTS: usize = 1024;

/// Calls `body` with each number below `count`. Unless fewer are left, a thread takes at least `least` of them at once.
pub fn each(count: usize, least: usize, body: &(dyn Fn(usize) + Sync)) {
    (0..count).into_par_iter().with_min_len(least.max(1)).for_each(body);
}

/// Calls `body` with each chunk of `len` elements and its number; the last chunk may be shorter. Unless fewer are left, a
/// thread takes at least `least` of them at once.
pub fn chunks<T: Send>(
    all: &mut [T],
    len: usize,
    least: usize,
    body: impl Fn(usize, &mut [T]) + Sync,
) {
    let all = Parts::of(all, len);
    // SAFETY: each part is asked for once.
    each(all.count(), least, &|i| body(i, unsafe { all.part(i) }));
}

/// The chunks of two lists of the same length, as [`chunks`] of one.
pub fn zipped<A: Send, B: Send>(
    a: &mut [A],
    b: &mut [B],
    len: usize,
    body: impl Fn(usize, (&mut [A], &mut [B])) + Sync,
) {
    assert_eq!(a.len(), b.len(), "lists of the same length");
    let (a, b) = (Parts::of(a, len), Parts::of(b, len));
    // SAFETY: each part is asked for once.
    each(a.count(), 1, &|i| body(i, unsafe { (a.part(i), b.part(i)) }));
}

/// As [`chunks`]. All of them are computed, and the error is that of the first that failed.
pub fn try_chunks<T: Send, E: Send>(
    all: &mut [T],
    len: usize,
    body: impl Fn(usize, &mut [T]) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let first = Mutex::new(None);
    chunks(all, len, 1, |i, chunk| {
        if let Err(error) = body(i, chunk) {
            let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
            if first.as_ref().is_none_or(|(at, _)| i < *at) {
                *first = Some((i, error));
            }
        }
    });
    let first = first.into_inner().unwrap_or_else(PoisonError::into_inner);
    first.map_or(Ok(()), |(_, error)| Err(error))
}

/// The list of what `of` returns for each number below `count`.
pub fn collect<T: Send>(count: usize, of: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let mut list = Vec::with_capacity(count);
    let len = count.div_ceil(PARTS).max(1);
    let places: &mut [MaybeUninit<T>] = &mut list.spare_capacity_mut()[..count];
    chunks(places, len, 1, |i, part| {
        for (j, place) in part.iter_mut().enumerate() {
            place.write(of(i * len + j));
        }
    });
    // SAFETY: every element of every chunk was written.
    unsafe { list.set_len(count) };
    list
}

/// The first number below `count` that `is` accepts.
pub fn find(count: usize, is: impl Fn(usize) -> bool + Sync) -> Option<usize> {
    let len = count.div_ceil(PARTS).max(1);
    let first = AtomicUsize::new(count);
    each(count.div_ceil(len), 1, &|i| {
        let part = i * len..(i * len + len).min(count);
        // What another thread has found ends the search in later parts.
        if part.start < first.load(Ordering::Relaxed)
            && let Some(found) = part.into_iter().find(|at| is(*at))
        {
            first.fetch_min(found, Ordering::Relaxed);
        }
    });
    Some(first.into_inner()).filter(|first| *first < count)
}

/// A list in parts of `len` elements, which several threads write.
struct Parts<'a, T> {
    start: *mut T,
    total: usize,
    len: usize,
    of: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: it is a slice; by the condition of `part` no two threads have the same element.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    fn of(all: &'a mut [T], len: usize) -> Self {
        assert!(len > 0 || all.is_empty(), "chunks have elements");
        Self {
            start: all.as_mut_ptr(),
            total: all.len(),
            len: len.max(1),
            of: std::marker::PhantomData,
        }
    }

    fn count(&self) -> usize {
        self.total.div_ceil(self.len)
    }

    /// # Safety
    /// Nobody else has this part.
    unsafe fn part(&self, i: usize) -> &'a mut [T] {
        assert!(i < self.count());
        let first = i * self.len;
        // SAFETY: the elements are inside the slice, and nobody else has them.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.add(first), self.len.min(self.total - first))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element is in one chunk, for lists shorter and longer than their parts.
    #[test]
    fn every_element_is_visited_once() {
        for count in [0, 1, 2, 63, 64, 65, 1023, 1024, 1025, 5000] {
            let list = collect(count, |i| i.to_string());
            assert_eq!(list, (0..count).map(|i| i.to_string()).collect::<Vec<_>>());
            for len in [1, 7, 64, 6000] {
                let (mut a, mut b) = (vec![0; count], vec![0; count]);
                chunks(&mut a, len, 3, |i, part| {
                    part.iter_mut().enumerate().for_each(|(j, x)| *x += i * len + j);
                });
                zipped(&mut a, &mut b, len, |_, (a, b)| {
                    a.iter().zip(b).for_each(|(a, b)| *b += *a + 1);
                });
                assert_eq!(b, (1..=count).collect::<Vec<_>>(), "{count} by {len}");
            }
        }
    }

    #[test]
    fn the_first_of_several_is_found() {
        for count in [0, 1, 100, 5000] {
            for wanted in [0, 1, 77, 99, 1500, 4999, 5000] {
                let found = find(count, |i| i >= wanted && (i - wanted).is_multiple_of(7));
                assert_eq!(found, Some(wanted).filter(|wanted| *wanted < count));
                let mut list = vec![0; count];
                let failed = try_chunks(&mut list, 1, |i, part| {
                    part[0] = 1;
                    if i >= wanted { Err(i) } else { Ok(()) }
                });
                assert_eq!(failed.err(), found);
                assert!(list.iter().all(|x| *x == 1));
            }
        }
    }
}
