//! The implicit matrix product: which element of which tensor is at which place of the matrices.
//!
//! ```text
//! out[m, n] = Σ { a[m, k] · b[k, n] : k }
//!
//! forward   m = (sample, window)      k = (tap, channel)    n = filter
//! data      m = (sample, coordinate)  k = (tap, filter)     n = channel
//! ```
//!
//! On each axis, a row at position `q` reads the following coordinate at its `j`-th tap:
//!
//! ```text
//! x(q, j) = start + q·step + j·tap_step             on an axis of `extent` coordinates
//! ```
//!
//! In the forward pass this is the window's own formula. A data gradient reads the windows over a coordinate, and
//! with a stride each coordinate is read by only some of the taps. Coordinates that are `stride` apart form a
//! *phase*. All coordinates of a phase use the same taps, every `stride/g`-th one, and the windows of neighbouring
//! taps are `dilation/g` apart, where `g` is the greatest common divisor of stride and dilation. So each phase is
//! a product like the forward one, and no tap is visited in vain.

use windowpane_geometry::{AXES, Axis, Convolution};

use crate::conv::problem::Pass;
use crate::cube::numbers;

mod phases;
mod point;

pub(crate) use phases::{Phase, Phases, PhasesArgs, has_result, only_phase, phase};
pub(crate) use point::{
    GatherArgs, GatherArgsLaunch, Point, Position, Read, further, load_if, moved, reach, read,
    read_at, reads_inside, result, row_point, row_position, row_result, tap_point, term_point,
    with_offset,
};
use point::{SweepArgs, SweepArgsLaunch};

/// One axis of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    pub(crate) rows: usize,
    pub(crate) start: i64,
    pub(crate) step: usize,
    pub(crate) tap_step: i64,
    pub(crate) extent: usize,
    pub(crate) taps: usize,
    /// The first tap of the filter that is used, and the step to the next one.
    pub(crate) tap_first: usize,
    pub(crate) tap_jump: usize,
    /// The first row's position among the results, and the step to the next one.
    pub(crate) out_first: usize,
    pub(crate) out_step: usize,
}

impl Sweep {
    /// The windows of an axis; each reads the input at its taps.
    pub(crate) fn forward(axis: &Axis) -> Self {
        Self {
            rows: axis.output(),
            start: axis.start(0),
            step: axis.stride(),
            tap_step: axis.dilation() as i64,
            extent: axis.input(),
            taps: axis.kernel(),
            tap_first: 0,
            tap_jump: 1,
            out_first: 0,
            out_step: 1,
        }
    }

    /// Every `stride`-th coordinate of an axis, starting at `phase`; each reads the windows over it.
    pub(crate) fn data(axis: &Axis, phase: usize) -> Self {
        let (s, d) = (axis.stride(), axis.dilation());
        let common = gcd(s, d);
        let distance = phase + axis.before();
        // The window that reads the coordinate at tap t is (distance − t·d)/s, where s divides that.
        let first = (0..axis.kernel().min(s / common))
            .find(|t| (distance as i64 - (t * d) as i64).rem_euclid(s as i64) == 0);
        let (tap_first, taps) = match first {
            Some(first) => (first, (axis.kernel() - first).div_ceil(s / common)),
            None => (0, 0),
        };
        Self {
            rows: (axis.input() - phase).div_ceil(s),
            start: (distance as i64 - (tap_first * d) as i64).div_euclid(s as i64),
            step: 1,
            tap_step: -((d / common) as i64),
            extent: axis.output(),
            taps,
            tap_first,
            tap_jump: s / common,
            out_first: phase,
            out_step: s,
        }
    }

    /// Whether any row reads outside the axis.
    #[cfg(test)]
    fn clipped(&self) -> bool {
        let last = self.start + (self.rows.saturating_sub(1) * self.step) as i64;
        let reach = self.taps.saturating_sub(1) as i64 * self.tap_step;
        let (low, high) = (self.start + reach.min(0), last + reach.max(0));
        low < 0 || high >= self.extent as i64
    }

    fn args(&self, a_step: usize, b_step: usize, out_step: usize) -> SweepArgsLaunch {
        numbers! { SweepArgsLaunch {
            rows: self.rows, start: self.start, step: self.step, tap_step: self.tap_step,
            extent: self.extent, taps: self.taps, taps_count: self.taps, a_step,
            b_first: self.tap_first * b_step, b_step: self.tap_jump * b_step,
            out_first: self.out_first * out_step, out_step: self.out_step * out_step,
        } }
    }
}

/// The im2col view of one matrix product: which element each row and term reads. It describes a convolution, or one
/// phase of its data gradient.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gather {
    pub(crate) axes: [Sweep; AXES],
    pass: Pass,
}

/// The memory layout of the weights: the steps to the next term of a tap, column, group and tap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightSteps {
    pub(crate) inner: usize,
    pub(crate) column: usize,
    pub(crate) group: usize,
    pub(crate) kernel: [usize; AXES],
}

impl Gather {
    /// The products that a pass consists of: one for the forward pass, one per phase for the data gradient.
    pub(crate) fn all(conv: &Convolution, pass: Pass) -> impl Iterator<Item = Self> + use<> {
        let axes = *conv.grid().axes();
        let phases = phases(conv, pass);
        let [_, height, width] = phases;
        (0..phases.iter().product()).map(move |i| {
            let phase = [i / width / height, i / width % height, i % width];
            let sweep = |i: usize| match pass {
                Pass::Data => Sweep::data(&axes[i], phase[i]),
                _ => Sweep::forward(&axes[i]),
            };
            Self { axes: [sweep(0), sweep(1), sweep(2)], pass }
        })
    }

    /// The product with the most rows and the most terms, and the phases if it is one of several.
    pub(crate) fn largest(conv: &Convolution, pass: Pass) -> (Self, Option<Phases>) {
        let phases = Phases::new(conv).filter(|_| pass == Pass::Data);
        let axes = conv.grid().axes();
        let gather = match (phases, pass) {
            (Some(phases), _) => phases.gather(conv),
            (None, Pass::Data) => {
                Self { axes: axes.each_ref().map(|axis| Sweep::data(axis, 0)), pass }
            }
            _ => Self { axes: axes.each_ref().map(Sweep::forward), pass },
        };
        (gather, phases)
    }

    /// The number of rows of the product.
    pub(crate) fn rows(&self, conv: &Convolution) -> usize {
        conv.input().batch() * self.axes.iter().map(|axis| axis.rows).product::<usize>()
    }

    /// The number of terms of each sum.
    pub(crate) fn terms(&self, conv: &Convolution) -> usize {
        self.axes.iter().map(|axis| axis.taps).product::<usize>() * inner(conv, self.pass)
    }

    /// The kernel arguments, for weights with the layout `steps`.
    pub(crate) fn args(&self, conv: &Convolution, steps: &WeightSteps) -> GatherArgsLaunch {
        let (input, output) = (conv.input(), conv.output());
        let (a, out) = match self.pass {
            Pass::Data => (output.strides(conv.layout()), input.strides(conv.layout())),
            _ => (input.strides(conv.layout()), output.strides(conv.layout())),
        };
        let (inner, columns) = (inner(conv, self.pass), columns(conv, self.pass));
        let axis = |i: usize| self.axes[i].args(a.space[i], steps.kernel[i], out.space[i]);
        numbers! { GatherArgsLaunch {
            depth: axis(0), height: axis(1), width: axis(2), rows: self.rows(conv), columns, inner,
            inner_count: inner, a_batch: a.batch, a_inner: a.channel, a_group: a.channel * inner,
            b_inner: steps.inner, b_group: steps.group, out_batch: out.batch,
            out_column: out.channel, out_group: out.channel * columns,
            form: GatherForm::new(conv, self.pass),
        } }
    }
}

/// The number of phases on each axis.
pub(crate) fn phases(conv: &Convolution, pass: Pass) -> [usize; AXES] {
    match pass {
        Pass::Data => conv.grid().axes().each_ref().map(|axis| axis.stride().min(axis.input())),
        _ => [1; AXES],
    }
}

/// The number of terms per tap: the channels, or in a data gradient the filters, that are summed over.
pub(crate) fn inner(conv: &Convolution, pass: Pass) -> usize {
    match pass {
        Pass::Data => conv.filter().count() / conv.groups(),
        _ => conv.filter().channels(),
    }
}

/// The number of columns of a group.
pub(crate) fn columns(conv: &Convolution, pass: Pass) -> usize {
    match pass {
        Pass::Data => conv.filter().channels(),
        _ => conv.filter().count() / conv.groups(),
    }
}

/// The memory layout of the original weights.
pub(crate) fn weight_steps(conv: &Convolution, pass: Pass) -> WeightSteps {
    let steps = conv.filter().strides(conv.filter_layout());
    let (inner, column) = match pass {
        Pass::Data => (steps.count, steps.channel),
        _ => (steps.channel, steps.count),
    };
    let group = steps.count * (conv.filter().count() / conv.groups());
    WeightSteps { inner, column, group, kernel: steps.kernel }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The compile-time options of a product. They do not depend on its extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GatherForm {
    /// The number of axes of the problem.
    rank: usize,
    /// Whether reads may be outside the tensor.
    clipped: bool,
    /// Whether the filters have only one tap.
    pointwise: bool,
}

impl GatherForm {
    pub(crate) fn new(conv: &Convolution, pass: Pass) -> Self {
        let axes = conv.grid().axes();
        let pointwise = conv.filter().taps() == 1;
        let padded = axes.iter().any(|axis| axis.before() + axis.after() > 0);
        let clipped = match pass {
            // Taps near the border refer to windows that do not exist.
            Pass::Data => !pointwise || padded,
            _ => axes.iter().any(|axis| axis.clipped()),
        };
        Self { rank: conv.grid().rank(), clipped, pointwise }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windowpane_geometry::{Extents, Window};

    pub(super) fn axis(
        input: usize,
        kernel: usize,
        stride: usize,
        dilation: usize,
        before: usize,
    ) -> Axis {
        let window = Window::new([kernel]).stride([stride]).dilation([dilation]);
        let window = window.padding([(before, kernel * dilation)]);
        *window.over(Extents::from([input])).unwrap().axis(0)
    }

    /// Each coordinate finds every window over it exactly once, with the right tap, and no other window.
    #[test]
    fn phases_find_the_windows_over_each_coordinate() {
        for (kernel, stride, dilation) in
            [(1, 1, 1), (3, 1, 1), (3, 2, 1), (4, 2, 3), (3, 4, 2), (5, 3, 2), (2, 6, 4), (7, 4, 6)]
        {
            for (input, before) in [(1, 0), (7, 0), (12, 1), (9, 5), (13, 20)] {
                let axis = axis(input, kernel, stride, dilation, before);
                let mut found = vec![vec![]; input];
                for phase in 0..stride.min(input) {
                    let sweep = Sweep::data(&axis, phase);
                    for q in 0..sweep.rows {
                        for j in 0..sweep.taps {
                            let o =
                                sweep.start + (q * sweep.step) as i64 + j as i64 * sweep.tap_step;
                            let inside = 0 <= o && o < sweep.extent as i64;
                            assert!(inside || sweep.clipped(), "{axis:?} {sweep:?}");
                            if inside {
                                let tap = sweep.tap_first + j * sweep.tap_jump;
                                found[sweep.out_first + q * sweep.out_step].push((o as usize, tap));
                            }
                        }
                    }
                }
                for (x, found) in found.iter_mut().enumerate() {
                    found.sort_unstable();
                    let windows = axis.windows_over(x);
                    let expected: Vec<_> =
                        windows.filter_map(|o| Some((o, axis.tap_of(o, x)?))).collect();
                    assert_eq!(*found, expected, "coordinate {x} of {axis:?}");
                }
            }
        }
    }
}
