//! What the loops over windows combine, and the loops over slices of it, which the compiler turns into vectors.

use pulp::Arch;

/// A number that stands for an element, or for several that were combined.
pub(crate) trait Item: Copy + Default + PartialEq + Send + Sync + 'static {
    /// What an empty window gives; combined with another item it gives the other one.
    const EMPTY: Self;

    /// Whether an item combined with itself is the same.
    const IS_IDEMPOTENT: bool;

    /// Whether [`leave`](Self::leave) undoes [`join`](Self::join).
    const CAN_LEAVE: bool = false;

    /// Combines two items; their order only matters for rounding.
    fn join(self, other: Self) -> Self;

    /// What was combined, without the other item.
    fn leave(self, _other: Self) -> Self {
        unreachable!("{} cannot be undone", core::any::type_name::<Self>())
    }
}

macro_rules! maxima {
    ($($type:ty),*) => {$(
        impl Item for $type {
            const EMPTY: Self = <$type>::MIN;
            const IS_IDEMPOTENT: bool = true;

            #[inline(always)]
            fn join(self, other: Self) -> Self {
                self.max(other)
            }
        }
    )*};
}

maxima!(i128, i64, i32, i16, u16, i8, u8);

/// Sums.
impl Item for f64 {
    const EMPTY: Self = 0.0;
    const IS_IDEMPOTENT: bool = false;

    #[inline(always)]
    fn join(self, other: Self) -> Self {
        self + other
    }
}

/// Sums of integers of up to 16 bits, if they fit.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) struct Whole(pub(crate) i32);

impl Item for Whole {
    const EMPTY: Self = Self(0);
    const IS_IDEMPOTENT: bool = false;
    const CAN_LEAVE: bool = true;

    // A sum may wrap while it has one term too many.
    #[inline(always)]
    fn join(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }

    #[inline(always)]
    fn leave(self, other: Self) -> Self {
        Self(self.0.wrapping_sub(other.0))
    }
}

/// Runs a loop with the processor's widest vectors.
#[inline(always)]
pub(super) fn in_vectors(work: impl FnOnce()) {
    Arch::new().dispatch(work);
}

/// `to[i] = to[i] ⋅ from[i]`, as far as both go.
pub(super) fn join<I: Item>(to: &mut [I], from: &[I]) {
    in_vectors(
        #[inline(always)]
        || to.iter_mut().zip(from).for_each(|(to, from)| *to = to.join(*from)),
    );
}

/// `to[i] = a[i] ⋅ b[i] ⋅ c[i]`, as far as all go.
pub(super) fn join_three<I: Item>(to: &mut [I], a: &[I], b: &[I], c: &[I]) {
    in_vectors(
        #[inline(always)]
        || three(to, a, b, c),
    );
}

#[inline(always)]
fn three<I: Item>(to: &mut [I], a: &[I], b: &[I], c: &[I]) {
    let parts = a.iter().zip(b).zip(c);
    to.iter_mut().zip(parts).for_each(|(to, ((a, b), c))| *to = a.join(*b).join(*c));
}

/// `to[i] = from[i] ⋅ from[i + by]`, as far as there are both.
pub(super) fn join_shifted<I: Item>(to: &mut [I], from: &[I], by: usize) {
    join_both(to, from, &from[by..]);
}

/// `to[i] = a[i] ⋅ b[i]`, as far as all go.
pub(super) fn join_both<I: Item>(to: &mut [I], a: &[I], b: &[I]) {
    in_vectors(
        #[inline(always)]
        || to.iter_mut().zip(a).zip(b).for_each(|((to, a), b)| *to = a.join(*b)),
    );
}

/// Every `step`-th pixel of `lanes` items of each row; `to` and `from` have rows of these items.
pub(super) fn take<I: Item>(to: &mut [I], from: &[I], rows: [usize; 2], step: usize, lanes: usize) {
    let rows = to.chunks_exact_mut(rows[0]).zip(from.chunks(rows[1]));
    in_vectors(
        #[inline(always)]
        || {
            for (to, from) in rows {
                match (lanes, step) {
                    (1, 2) => {
                        let last = to.len() - 1;
                        for (to, pair) in to[..last].iter_mut().zip(from.chunks_exact(2)) {
                            *to = pair[0];
                        }
                        to[last] = from[2 * last];
                    }
                    (1, _) => {
                        let pairs = to.iter_mut().zip(from.iter().step_by(step));
                        pairs.for_each(|(to, from)| *to = *from);
                    }
                    _ => {
                        let pixels = to.chunks_exact_mut(lanes).zip(from.chunks(step * lanes));
                        pixels.for_each(|(to, from)| to.copy_from_slice(&from[..lanes]));
                    }
                }
            }
        },
    );
}

/// Each window by itself: pixels of `lanes` items, with a stride, a kernel and a dilation in pixels.
pub(super) fn join_windows<I: Item>(
    to: &mut [I],
    from: &[I],
    lanes: usize,
    [stride, kernel, dilation]: [usize; 3],
) {
    in_vectors(
        #[inline(always)]
        || {
            for (o, to) in to.chunks_exact_mut(lanes).enumerate() {
                let from = &from[o * stride * lanes..];
                let tap = |i: usize| &from[i * dilation * lanes..][..lanes];
                match kernel {
                    1 => to.copy_from_slice(tap(0)),
                    2 => {
                        let pairs = tap(0).iter().zip(tap(1));
                        to.iter_mut().zip(pairs).for_each(|(to, (a, b))| *to = a.join(*b));
                    }
                    _ => three(to, tap(0), tap(1), tap(2)),
                }
                for i in 3..kernel {
                    to.iter_mut().zip(tap(i)).for_each(|(to, from)| *to = to.join(*from));
                }
            }
        },
    );
}

/// Adds the pixels of `from` to every `stride`-th pixel of `to`.
pub(super) fn add_windows(to: &mut [f64], from: &[f64], lanes: usize, stride: usize) {
    if stride == 1 {
        return join(to, from);
    }
    in_vectors(
        #[inline(always)]
        || {
            if lanes == 1 {
                let pairs = to.iter_mut().step_by(stride).zip(from);
                return pairs.for_each(|(to, from)| *to += *from);
            }
            let pixels = to.chunks_mut(stride * lanes).zip(from.chunks_exact(lanes));
            pixels
                .for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to += *from));
        },
    );
}

/// All items of a run combined, in an order that only depends on their number.
#[inline(always)]
pub(super) fn reduce<I: Item>(run: &[I]) -> I {
    match run.len() {
        0..16 => run.iter().fold(I::EMPTY, |all, item| all.join(*item)),
        16..64 => in_parts::<I, 8>(run),
        _ => in_parts::<I, 32>(run),
    }
}

#[inline(always)]
fn in_parts<I: Item, const WIDTH: usize>(run: &[I]) -> I {
    let mut parts = [I::EMPTY; WIDTH];
    let (chunks, rest) = run.as_chunks::<WIDTH>();
    for chunk in chunks {
        parts.iter_mut().zip(chunk).for_each(|(part, item)| *part = part.join(*item));
    }
    parts.iter_mut().zip(rest).for_each(|(part, item)| *part = part.join(*item));
    let mut width = WIDTH;
    while width > 1 {
        width /= 2;
        let (low, high) = parts.split_at_mut(width);
        low.iter_mut().zip(high).for_each(|(low, high)| *low = low.join(*high));
    }
    parts[0]
}
