//! How the loops over windows read elements: each source turns those of the input into items.

use super::element::{Narrow, Poolable};
use super::item::{Item, Whole, in_vectors};

/// Rows of whole pixels.
#[derive(Clone, Copy)]
pub(super) struct Reads {
    /// The place of the first element.
    pub(super) at: usize,
    /// The elements of a row.
    pub(super) len: usize,
    pub(super) rows: usize,
    /// From one row to the next, in the input and in what is made of it.
    pub(super) steps: [usize; 2],
}

impl Reads {
    /// One row.
    pub(super) fn row(at: usize, len: usize) -> Self {
        Self { at, len, rows: 1, steps: [0; 2] }
    }

    /// Calls a loop in vectors for each row, with the place of its first element, its elements and their items.
    #[inline(always)]
    fn each<T, I>(&self, x: &[T], to: &mut [I], row: impl Fn(usize, &[T], &mut [I])) {
        in_vectors(
            #[inline(always)]
            || {
                for i in 0..self.rows {
                    let at = self.at + i * self.steps[0];
                    row(at, &x[at..][..self.len], &mut to[i * self.steps[1]..][..self.len]);
                }
            },
        );
    }

    /// Calls a function for each element, with what is there.
    #[inline(always)]
    fn map<T: Copy, I: Copy>(&self, x: &[T], to: &mut [I], item: impl Fn(I, T) -> I) {
        self.each(
            x,
            to,
            #[inline(always)]
            |_, x, to| to.iter_mut().zip(x).for_each(|(to, x)| *to = item(*to, *x)),
        );
    }
}

/// An input.
pub(super) trait Source<I>: Sync {
    /// Writes the items of the elements.
    fn load(&self, reads: Reads, to: &mut [I]);

    /// Combines them with what is there.
    fn join(&self, reads: Reads, to: &mut [I]);

    /// Takes them out of what is there, if items [can leave](Item::CAN_LEAVE).
    fn leave(&self, _reads: Reads, _to: &mut [I]) {
        unreachable!("these items stay")
    }
}

/// Keys, for maxima, or for minima with the order reversed.
pub(super) struct Keys<'a, T, const MIN: bool>(pub(super) &'a [T]);

/// The same element of the reversed order if `MIN`.
#[inline(always)]
pub(super) fn turned<T: Poolable, const MIN: bool>(x: T) -> T {
    if MIN { x.mirrored() } else { x }
}

impl<T: Poolable, const MIN: bool> Source<T::Key> for Keys<'_, T, MIN> {
    fn load(&self, reads: Reads, to: &mut [T::Key]) {
        reads.map(
            self.0,
            to,
            #[inline(always)]
            |_, x| turned::<T, MIN>(x).key(),
        );
    }

    fn join(&self, reads: Reads, to: &mut [T::Key]) {
        reads.map(
            self.0,
            to,
            #[inline(always)]
            |to, x| to.join(turned::<T, MIN>(x).key()),
        );
    }
}

/// Keys with the position in the plane.
pub(super) struct Packed<'a, T, const MIN: bool> {
    pub(super) x: &'a [T],
    pub(super) lanes: usize,
    pub(super) plane: usize,
}

impl<T: Poolable, const MIN: bool> Packed<'_, T, MIN> {
    #[inline(always)]
    fn each(
        &self,
        reads: Reads,
        to: &mut [T::Packed],
        join: impl Fn(T::Packed, T::Packed) -> T::Packed,
    ) {
        let pack = |x: T, index| turned::<T, MIN>(x).pack(index);
        reads.each(
            self.x,
            to,
            #[inline(always)]
            |at, x, to| {
                let first = (at / self.lanes % self.plane) as u32;
                let plane = self.plane * self.lanes;
                debug_assert!(
                    first == 0 || x.len() <= plane,
                    "a row of several planes begins at one"
                );
                for (to, x) in to.chunks_mut(plane).zip(x.chunks(plane)) {
                    if self.lanes == 1 {
                        for ((to, x), index) in to.iter_mut().zip(x).zip(first..) {
                            *to = join(*to, pack(*x, index));
                        }
                        continue;
                    }
                    let pixels = to.chunks_exact_mut(self.lanes).zip(x.chunks_exact(self.lanes));
                    for ((to, x), index) in pixels.zip(first..) {
                        to.iter_mut().zip(x).for_each(|(to, x)| *to = join(*to, pack(*x, index)));
                    }
                }
            },
        );
    }
}

impl<T: Poolable, const MIN: bool> Source<T::Packed> for Packed<'_, T, MIN> {
    fn load(&self, reads: Reads, to: &mut [T::Packed]) {
        self.each(
            reads,
            to,
            #[inline(always)]
            |_, new| new,
        );
    }

    fn join(&self, reads: Reads, to: &mut [T::Packed]) {
        self.each(
            reads,
            to,
            #[inline(always)]
            |old, new| old.join(new),
        );
    }
}

/// What is summed.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Power {
    /// The numbers.
    None,
    /// Their magnitudes.
    One,
    /// Their squares.
    Two,
}

/// The terms of a sum.
pub(super) struct Terms<'a, T> {
    pub(super) x: &'a [T],
    pub(super) power: Power,
}

impl<T: Poolable> Terms<'_, T> {
    #[inline(always)]
    fn each(&self, reads: Reads, to: &mut [f64], join: impl Fn(f64, f64) -> f64) {
        reads.each(
            self.x,
            to,
            #[inline(always)]
            |_, x, to| match self.power {
                Power::None => T::widen(x, to, &join),
                Power::One => T::widen(x, to, |old, term| join(old, term.abs())),
                Power::Two => T::widen(x, to, |old, term| join(old, term * term)),
            },
        );
    }
}

impl<T: Poolable> Source<f64> for Terms<'_, T> {
    fn load(&self, reads: Reads, to: &mut [f64]) {
        self.each(
            reads,
            to,
            #[inline(always)]
            |_, term| term,
        );
    }

    fn join(&self, reads: Reads, to: &mut [f64]) {
        self.each(
            reads,
            to,
            #[inline(always)]
            |sum, term| sum + term,
        );
    }
}

/// Without a power, because norms are sums in `f64`.
impl<T: Narrow> Source<Whole> for Terms<'_, T> {
    fn load(&self, reads: Reads, to: &mut [Whole]) {
        reads.map(
            self.x,
            to,
            #[inline(always)]
            |_, x| Whole(x.into()),
        );
    }

    fn join(&self, reads: Reads, to: &mut [Whole]) {
        reads.map(
            self.x,
            to,
            #[inline(always)]
            |to, x| to.join(Whole(x.into())),
        );
    }

    fn leave(&self, reads: Reads, to: &mut [Whole]) {
        reads.map(
            self.x,
            to,
            #[inline(always)]
            |to, x| to.leave(Whole(x.into())),
        );
    }
}
