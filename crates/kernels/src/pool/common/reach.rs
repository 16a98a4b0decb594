//! Where the lanes of an output vector find their taps along the width, in the vectors of a row.

use cubecl::prelude::*;
use windowpane_geometry::{AXES, Pooling};

/// How the taps of an output vector lie in input vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::pool) struct Reach {
    /// The lanes of an input vector and of an output vector.
    pub(in crate::pool) input: usize,
    pub(in crate::pool) output: usize,
    pub(in crate::pool) taps: usize,
    pub(in crate::pool) stride: usize,
    pub(in crate::pool) dilation: usize,
    before: usize,
}

impl Reach {
    /// Of vectors that lie along the width, of so many lanes each.
    pub(in crate::pool) fn new(pooling: &Pooling, input: usize, output: usize) -> Self {
        let width = &pooling.grid().axes()[AXES - 1];
        Self {
            input,
            output,
            taps: width.kernel(),
            stride: width.stride(),
            dilation: width.dilation(),
            before: width.before(),
        }
    }

    /// Of vectors that do not: a tap of theirs is a vector.
    pub(in crate::pool) const ONE: Self =
        Self { input: 1, output: 1, taps: 1, stride: 1, dilation: 1, before: 0 };

    /// The input vectors from one output vector to the next.
    pub(in crate::pool) fn steps(self) -> usize {
        self.output * self.stride / self.input
    }

    /// The vectors before the first lane's own position at which what is read begins.
    pub(in crate::pool) fn ahead(self) -> usize {
        self.before.div_ceil(self.input)
    }

    /// Where in what is read lane `i` finds tap `t`.
    fn element(self, i: usize, t: usize) -> usize {
        self.ahead() * self.input + i * self.stride + t * self.dilation - self.before
    }

    /// The vectors that are read.
    pub(in crate::pool) fn vectors(self) -> usize {
        self.element(self.output - 1, self.taps - 1) / self.input + 1
    }

    /// How many of them are the next output vector's too.
    pub(in crate::pool) fn kept(self) -> usize {
        self.vectors().saturating_sub(self.steps())
    }

    /// Whether some lane has a tap in vector `v`.
    pub(in crate::pool) fn touches(self, v: usize) -> bool {
        (0..self.taps).any(|t| (0..self.output).any(|i| self.element(i, t) / self.input == v))
    }
}

/// What the lanes find at tap `t`, where vector `v` is the `own`-th of `each` that stand for it.
#[cube]
pub(in crate::pool) fn lanes_of<A: Float, N: Size, M: Size>(
    vectors: &Sequence<Vector<A, M>>,
    #[comptime] t: usize,
    #[comptime] each: usize,
    #[comptime] own: usize,
    #[comptime] reach: Reach,
) -> Vector<A, N> {
    let mut tap = Vector::<A, N>::new(A::from_int(0));
    #[unroll]
    for lane in 0..N::value() {
        let element = comptime!(reach.element(lane, t));
        let vector = *vectors.index(comptime!(element / reach.input * each + own));
        tap.insert(lane, vector.extract(comptime!(element % reach.input)));
    }
    tap
}
