//! How the loops over windows read elements: each source turns those of the input into items.

use super::element::{Narrow, Poolable};
use super::item::{Item, Whole, in_vectors};

/// An input. `at` is the place of the first element, which begins a pixel; the slice has whole pixels.
pub(super) trait Source<I>: Sync {
    /// Writes the items of the elements from `at` on.
    fn load(&self, at: usize, to: &mut [I]);

    /// Combines them with what is there.
    fn join(&self, at: usize, to: &mut [I]);

    /// Takes them out of what is there, if items [can leave](Item::CAN_LEAVE).
    fn leave(&self, _at: usize, _to: &mut [I]) {
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
    fn load(&self, at: usize, to: &mut [T::Key]) {
        let x = &self.0[at..][..to.len()];
        in_vectors(
            #[inline(always)]
            || to.iter_mut().zip(x).for_each(|(to, x)| *to = turned::<T, MIN>(*x).key()),
        );
    }

    fn join(&self, at: usize, to: &mut [T::Key]) {
        let x = &self.0[at..][..to.len()];
        in_vectors(
            #[inline(always)]
            || {
                let pairs = to.iter_mut().zip(x);
                pairs.for_each(|(to, x)| *to = to.join(turned::<T, MIN>(*x).key()));
            },
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
        at: usize,
        to: &mut [T::Packed],
        join: impl Fn(T::Packed, T::Packed) -> T::Packed,
    ) {
        let x = &self.x[at..][..to.len()];
        let first = (at / self.lanes % self.plane) as u32;
        let pack = |x: T, index| turned::<T, MIN>(x).pack(index);
        if self.lanes == 1 {
            for ((to, x), index) in to.iter_mut().zip(x).zip(first..) {
                *to = join(*to, pack(*x, index));
            }
            return;
        }
        let pixels = to.chunks_exact_mut(self.lanes).zip(x.chunks_exact(self.lanes));
        for ((to, x), index) in pixels.zip(first..) {
            to.iter_mut().zip(x).for_each(|(to, x)| *to = join(*to, pack(*x, index)));
        }
    }
}

impl<T: Poolable, const MIN: bool> Source<T::Packed> for Packed<'_, T, MIN> {
    fn load(&self, at: usize, to: &mut [T::Packed]) {
        in_vectors(
            #[inline(always)]
            || self.each(at, to, |_, new| new),
        );
    }

    fn join(&self, at: usize, to: &mut [T::Packed]) {
        in_vectors(
            #[inline(always)]
            || self.each(at, to, |old, new| old.join(new)),
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
    fn each(&self, at: usize, to: &mut [f64], join: impl Fn(f64, f64) -> f64) {
        let x = &self.x[at..][..to.len()];
        in_vectors(
            #[inline(always)]
            || match self.power {
                Power::None => T::widen(x, to, join),
                Power::One => T::widen(x, to, |old, term| join(old, term.abs())),
                Power::Two => T::widen(x, to, |old, term| join(old, term * term)),
            },
        );
    }
}

impl<T: Poolable> Source<f64> for Terms<'_, T> {
    fn load(&self, at: usize, to: &mut [f64]) {
        self.each(at, to, |_, term| term);
    }

    fn join(&self, at: usize, to: &mut [f64]) {
        self.each(at, to, |sum, term| sum + term);
    }
}

/// Without a power, because norms are sums in `f64`.
impl<T: Narrow> Source<Whole> for Terms<'_, T> {
    fn load(&self, at: usize, to: &mut [Whole]) {
        let x = &self.x[at..][..to.len()];
        in_vectors(
            #[inline(always)]
            || to.iter_mut().zip(x).for_each(|(to, x)| *to = Whole((*x).into())),
        );
    }

    fn join(&self, at: usize, to: &mut [Whole]) {
        let x = &self.x[at..][..to.len()];
        in_vectors(
            #[inline(always)]
            || to.iter_mut().zip(x).for_each(|(to, x)| *to = to.join(Whole((*x).into()))),
        );
    }

    fn leave(&self, at: usize, to: &mut [Whole]) {
        let x = &self.x[at..][..to.len()];
        in_vectors(
            #[inline(always)]
            || to.iter_mut().zip(x).for_each(|(to, x)| *to = to.leave(Whole((*x).into()))),
        );
    }
}
