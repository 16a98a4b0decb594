//! Where the lanes of an output vector find their taps in the vectors of an input row.

use cubecl::prelude::*;
use windowpane_geometry::{AXES, Pooling};

/// The positions of an output vector's taps in input vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reach {
    /// The lanes of an input vector and of an output vector.
    pub(crate) input: usize,
    pub(crate) output: usize,
    pub(crate) taps: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    before: usize,
}

impl Reach {
    /// For vectors along the width, with `input` and `output` lanes.
    pub(crate) fn new(pooling: &Pooling, input: usize, output: usize) -> Self {
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

    /// For vectors that do not lie along the width: a tap is one vector.
    pub(crate) const ONE: Self =
        Self { input: 1, output: 1, taps: 1, stride: 1, dilation: 1, before: 0 };

    /// The number of input vectors from one output vector to the next.
    pub(crate) fn steps(self) -> usize {
        self.output * self.stride / self.input
    }

    /// The number of vectors read in front of the first lane's own position.
    pub(crate) fn ahead(self) -> usize {
        self.before.div_ceil(self.input)
    }

    /// The element of those read in which lane `i` finds tap `t`.
    fn element(self, i: usize, t: usize) -> usize {
        self.ahead() * self.input + i * self.stride + t * self.dilation - self.before
    }

    /// The number of vectors that are read.
    pub(crate) fn vectors(self) -> usize {
        self.element(self.output - 1, self.taps - 1) / self.input + 1
    }

    /// How many of them the next output vector reads too.
    pub(crate) fn kept(self) -> usize {
        self.vectors().saturating_sub(self.steps())
    }

    /// Whether some lane has a tap in vector `v`.
    pub(crate) fn touches(self, v: usize) -> bool {
        (0..self.taps).any(|t| (0..self.output).any(|i| self.element(i, t) / self.input == v))
    }
}

/// Tap `t` of every lane. Each input vector has `each` entries in `vectors`, of which entry `own` is used.
#[cube]
pub(crate) fn lanes_of<A: Float, N: Size, M: Size>(
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
