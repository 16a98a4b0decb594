//! How the loops over windows read elements: each source turns those of the input into items.

use super::element::{Poolable, widen};
use super::item::{Item, in_vectors, join};

/// An input. `at` is the place of the first element, which begins a pixel; the slice has whole pixels.
pub(super) trait Source<I>: Sync {
    /// Writes the items of the elements from `at` on.
    fn load(&self, at: usize, to: &mut [I]);

    /// Combines them with what is there.
    fn join(&self, at: usize, to: &mut [I]);
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

/// The terms that are converted at once before they are added.
const CHUNK: usize = 256;

impl<T: Poolable> Source<f64> for Terms<'_, T> {
    fn load(&self, at: usize, to: &mut [f64]) {
        widen(&self.x[at..][..to.len()], to);
        if self.power != Power::None {
            raise(to, self.power);
        }
    }

    fn join(&self, at: usize, to: &mut [f64]) {
        let mut terms = [0.0; CHUNK];
        for (i, to) in to.chunks_mut(CHUNK).enumerate() {
            let terms = &mut terms[..to.len()];
            self.load(at + i * CHUNK, terms);
            join(to, terms);
        }
    }
}

fn raise(terms: &mut [f64], power: Power) {
    in_vectors(
        #[inline(always)]
        || match power {
            Power::None => {}
            Power::One => terms.iter_mut().for_each(|term| *term = term.abs()),
            Power::Two => terms.iter_mut().for_each(|term| *term *= *term),
        },
    );
}
