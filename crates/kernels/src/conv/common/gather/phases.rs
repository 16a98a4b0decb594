//! The phases of a data gradient in closed form, so that one launch can compute all of them.
//!
//! Tap `t` of window `o` reads coordinate `x` if `x + before = o·stride + t·dilation`. On an axis whose stride and
//! dilation have the greatest common divisor `g`, let `jump = stride/g` and `lift = −before mod stride`. Each phase is
//! known by its first tap `t < jump`, and by `r < g`, which is 0 if the phase has taps at all:
//!
//! ```text
//! number of the phase       i = r·jump + t
//! first coordinate          (t·dilation + r + lift) mod stride
//! window over it, at t      ⌈before/stride⌉ − back,         back = (t·dilation + r + lift) div stride
//! number of taps            ⌈(kernel − t)/jump⌉             none if t ≥ kernel or r > 0
//! ```
//!
//! On each axis the number of taps never rises in this order, so that the longest sums mostly come first.

use cubecl::prelude::*;
use cubecl::std::{FastDivmod, FastDivmodExpand};
use windowpane_geometry::{AXES, Axis, Convolution, LIMIT};

use super::{Gather, GatherArgs, Point, Sweep, SweepArgs, WeightSteps, gcd};
use crate::conv::common::MOST_PHASES;
use crate::conv::problem::Pass;
use crate::cube::numbers;

/// The phases of a data gradient.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phases {
    axes: [PhasedAxis; AXES],
}

/// The phases of one axis.
#[derive(Clone, Copy, Debug)]
struct PhasedAxis {
    stride: usize,
    jump: usize,
    dilation: usize,
    lift: usize,
    kernel: usize,
    input: usize,
}

/// A phase of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AxisPhase {
    pub(crate) taps: usize,
    /// How far the first tap's window is before that of phase 0.
    pub(crate) back: usize,
    pub(crate) first_tap: usize,
    pub(crate) first_coordinate: usize,
}

impl Phases {
    /// None if all coordinates use the same taps.
    pub(crate) fn new(conv: &Convolution) -> Option<Self> {
        let phases = Self { axes: conv.grid().axes().each_ref().map(PhasedAxis::new) };
        (phases.count() > 1).then_some(phases)
    }

    pub(crate) fn count(&self) -> usize {
        self.axes.iter().map(|axis| axis.stride).fold(1, usize::saturating_mul)
    }

    /// Whether there are few enough of them for one launch, and a kernel's numbers hold what they are computed from.
    pub(crate) fn fits(&self) -> bool {
        let most = |axis: &PhasedAxis| axis.jump.saturating_mul(axis.dilation);
        self.count() <= MOST_PHASES && self.axes.iter().all(|axis| most(axis) < LIMIT / 2)
    }

    /// The phases of an axis.
    pub(crate) fn along(&self, axis: usize) -> impl Iterator<Item = AxisPhase> + use<> {
        let axis = self.axes[axis];
        (0..axis.stride).map(move |nth| axis.phase(nth))
    }

    /// The numbers of taps of phase `nth`.
    pub(crate) fn taps(&self, nth: usize) -> [usize; AXES] {
        let [depth, height, width] = &self.axes;
        let (rest, w) = (nth / width.stride, nth % width.stride);
        let (d, h) = (rest / height.stride, rest % height.stride);
        [depth.phase(d).taps, height.phase(h).taps, width.phase(w).taps]
    }

    /// The product of phase 0, with as many rows as the largest phase has. The others differ from it as `AxisPhase` says.
    pub(crate) fn gather(&self, conv: &Convolution) -> Gather {
        let axes = conv.grid().axes();
        let sweep = |i: usize| Sweep {
            rows: axes[i].input().div_ceil(axes[i].stride()),
            start: axes[i].before().div_ceil(axes[i].stride()) as i64,
            step: 1,
            tap_step: -((axes[i].dilation() * self.axes[i].jump / axes[i].stride()) as i64),
            extent: axes[i].output(),
            taps: self.axes[i].phase(0).taps,
            tap_first: 0,
            tap_jump: self.axes[i].jump,
            out_first: 0,
            out_step: axes[i].stride(),
        };
        Gather { axes: [sweep(0), sweep(1), sweep(2)], pass: Pass::Data }
    }

    /// The kernel arguments, for weights with the layout `steps`.
    pub(crate) fn args(&self, conv: &Convolution, steps: &WeightSteps) -> PhasesArgsLaunch {
        let out = conv.input().strides(conv.layout()).space;
        let axis = |i: usize| self.axes[i].args(steps.kernel[i], out[i]);
        PhasesArgsLaunch::new(axis(0), axis(1), axis(2))
    }
}

impl PhasedAxis {
    fn new(axis: &Axis) -> Self {
        let (stride, dilation) = (axis.stride(), axis.dilation());
        Self {
            stride,
            jump: stride / gcd(stride, dilation),
            dilation,
            lift: axis.before().next_multiple_of(stride) - axis.before(),
            kernel: axis.kernel(),
            input: axis.input(),
        }
    }

    /// Phase `nth`, by the same arithmetic as in a kernel.
    fn phase(&self, nth: usize) -> AxisPhase {
        let (rest, first_tap) = (nth / self.jump, nth % self.jump);
        let lifted = first_tap * self.dilation + rest + self.lift;
        let taps = (self.kernel + self.jump - 1 - first_tap) / self.jump;
        AxisPhase {
            taps: if rest == 0 { taps } else { 0 },
            back: lifted / self.stride,
            first_tap,
            first_coordinate: lifted % self.stride,
        }
    }

    fn args(&self, b_step: usize, out_step: usize) -> PhasedAxisArgsLaunch {
        let rows = self.input.div_ceil(self.stride);
        numbers! { PhasedAxisArgsLaunch {
            stride: self.stride, jump: self.jump, dilation: self.dilation, lift: self.lift,
            reach: self.kernel + self.jump - 1, one_fewer: (self.phase(0).taps - 1).max(1), rows,
            large: self.input + self.stride - rows * self.stride, b_step, out_step,
        } }
    }
}

/// The phases of one axis, as run-time values.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PhasedAxisArgs {
    stride: FastDivmod<u32>,
    jump: FastDivmod<u32>,
    dilation: u32,
    lift: u32,
    /// The taps of the kernel, and one less than a jump more.
    reach: u32,
    /// Phases with taps have as many as phase 0, or one fewer.
    one_fewer: FastDivmod<u32>,
    /// The rows of the largest phase, and the number of phases with so many; the others have one fewer.
    rows: u32,
    large: u32,
    /// The memory steps between neighbouring taps and coordinates.
    b_step: u32,
    out_step: u32,
}

/// The phases of a data gradient, as run-time values.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct PhasesArgs {
    depth: PhasedAxisArgs,
    height: PhasedAxisArgs,
    width: PhasedAxisArgs,
}

/// A phase inside a kernel.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Phase {
    /// Its product. It has as many rows as the largest phase has; those past its own end have no results.
    pub(crate) gather: GatherArgs,
    pub(crate) depth: AxisOfPhase,
    pub(crate) height: AxisOfPhase,
    pub(crate) width: AxisOfPhase,
}

/// An axis of a phase inside a kernel.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct AxisOfPhase {
    /// How far the first tap's window is before that of phase 0.
    pub(crate) back: i32,
    /// The number of rows that have results.
    pub(crate) rows: u32,
}

/// Phase `nth`, where `gather` is the product of phase 0.
#[cube]
pub(crate) fn phase(gather: &GatherArgs, phases: &PhasesArgs, nth: u32) -> Phase {
    let (rest, w) = phases.width.stride.div_mod(nth);
    let (d, h) = if comptime!(gather.form.rank > 1) {
        phases.height.stride.div_mod(rest)
    } else {
        (rest, 0u32)
    };
    let (width, width_sweep) = axis_of_phase(&gather.width, &phases.width, w);
    let (height, height_sweep) = if comptime!(gather.form.rank > 1) {
        axis_of_phase(&gather.height, &phases.height, h)
    } else {
        (only(), gather.height)
    };
    let (depth, depth_sweep) = if comptime!(gather.form.rank > 2) {
        axis_of_phase(&gather.depth, &phases.depth, d)
    } else {
        (only(), gather.depth)
    };
    let gather = GatherArgs {
        depth: depth_sweep,
        height: height_sweep,
        width: width_sweep,
        rows: gather.rows,
        columns: gather.columns,
        inner: gather.inner,
        inner_count: gather.inner_count,
        a_batch: gather.a_batch,
        a_inner: gather.a_inner,
        a_group: gather.a_group,
        b_inner: gather.b_inner,
        b_group: gather.b_group,
        out_batch: gather.out_batch,
        out_column: gather.out_column,
        out_group: gather.out_group,
        form: comptime!(gather.form),
    };
    Phase { gather, depth, height, width }
}

/// The only phase of a launch that does not have several.
#[cube]
#[allow(clippy::clone_on_copy, reason = "CubeCL cannot dereference a struct")]
pub(crate) fn only_phase(gather: &GatherArgs) -> Phase {
    Phase { gather: gather.clone(), depth: only(), height: only(), width: only() }
}

/// An axis with one phase, whose rows all have results.
#[cube]
fn only() -> AxisOfPhase {
    AxisOfPhase { back: 0i32.runtime(), rows: u32::MAX.runtime() }
}

#[cube]
fn axis_of_phase(sweep: &SweepArgs, axis: &PhasedAxisArgs, nth: u32) -> (AxisOfPhase, SweepArgs) {
    let (rest, tap) = axis.jump.div_mod(nth);
    let (back, coordinate) = axis.stride.div_mod(tap * axis.dilation + rest + axis.lift);
    let taps = select(rest == 0, axis.jump.div(axis.reach - tap), 0u32);
    let own = SweepArgs {
        rows: sweep.rows,
        start: sweep.start - back as i32,
        step: sweep.step,
        tap_step: sweep.tap_step,
        extent: sweep.extent,
        taps: either(taps == sweep.taps_count, &sweep.taps, &axis.one_fewer),
        taps_count: taps,
        a_step: sweep.a_step,
        b_first: tap * axis.b_step,
        b_step: sweep.b_step,
        out_first: coordinate * axis.out_step,
        out_step: sweep.out_step,
    };
    let rows = select(coordinate < axis.large, axis.rows, axis.rows - 1);
    (AxisOfPhase { back: back as i32, rows }, own)
}

/// One of two divisors.
#[cube]
fn either(first: bool, one: &FastDivmod<u32>, other: &FastDivmod<u32>) -> FastDivmod<u32> {
    intrinsic!(|scope| match (one, other) {
        (
            FastDivmodExpand::Fast { divisor, multiplier, shift_right },
            FastDivmodExpand::Fast {
                divisor: other_divisor,
                multiplier: other_multiplier,
                shift_right: other_shift,
            },
        ) => FastDivmodExpand::Fast {
            divisor: select::expand::<u32>(scope, first, *divisor, *other_divisor),
            multiplier: select::expand::<u32>(scope, first, *multiplier, *other_multiplier),
            shift_right: select::expand::<u32>(scope, first, *shift_right, *other_shift),
        },
        // A device has one of the two.
        (
            FastDivmodExpand::Fast { divisor, .. } | FastDivmodExpand::Fallback { divisor },
            FastDivmodExpand::Fast { divisor: other, .. }
            | FastDivmodExpand::Fallback { divisor: other },
        ) => FastDivmodExpand::Fallback {
            divisor: select::expand::<u32>(scope, first, *divisor, *other),
        },
    })
}

/// Whether a row that has been found at `point` has a result in a phase.
#[cube]
pub(crate) fn has_result(phase: &Phase, point: &Point) -> bool {
    is_row(point.width, &phase.gather.width, &phase.width)
        && is_row(point.height, &phase.gather.height, &phase.height)
        && is_row(point.depth, &phase.gather.depth, &phase.depth)
}

/// Whether the row that reads from coordinate `x` on has a result. Rows of a data gradient are one window apart.
#[cube]
fn is_row(x: i32, sweep: &SweepArgs, axis: &AxisOfPhase) -> bool {
    ((x - sweep.start) as u32) < axis.rows
}

#[cfg(test)]
mod tests {
    use super::super::tests::axis;
    use super::*;

    /// Strides far beyond the input are refused without counting their phases.
    #[test]
    fn huge_strides_do_not_fit() {
        for (stride, dilation, fits) in [
            (2, 1, true),
            (256, 1, true),
            (257, 1, false),
            (1 << 30, 1, false),
            (9, 1 << 29, false),
        ] {
            let phased = PhasedAxis::new(&axis(5, 1, stride, dilation, 0));
            let one = PhasedAxis::new(&axis(1, 1, 1, 1, 0));
            assert_eq!(Phases { axes: [one, one, phased] }.fits(), fits, "{stride} {dilation}");
        }
        let huge = PhasedAxis::new(&axis(5, 1, 1 << 30, 1, 0));
        assert!(!Phases { axes: [huge; AXES] }.fits());
    }

    /// The closed form gives each phase that has coordinates once, as the search for its first tap finds it, and in the
    /// order of falling numbers of taps.
    #[test]
    fn closed_form_is_what_a_search_finds() {
        for (stride, dilation, kernel) in
            (1..=5).flat_map(|s| (1..=6).flat_map(move |d| (1..=9).map(move |k| (s, d, k))))
        {
            for (input, before) in [(1, 0), (2, 1), (7, 0), (12, 1), (9, 5), (13, 20), (31, 3)] {
                let axis = axis(input, kernel, stride, dilation, before);
                let phased = PhasedAxis::new(&axis);
                let start = before.div_ceil(stride) as i64;
                let mut seen = vec![false; stride];
                let mut most = usize::MAX;
                for phase in (0..stride).map(|nth| phased.phase(nth)) {
                    let p = phase.first_coordinate;
                    assert!(!core::mem::replace(&mut seen[p], true) && phase.taps <= most);
                    most = phase.taps;
                    let rows = input.div_ceil(stride);
                    let large = input + stride - rows * stride;
                    let rows = if p < large { rows } else { rows - 1 };
                    if p >= input {
                        assert_eq!(rows, 0);
                        continue;
                    }
                    let sweep = Sweep::data(&axis, p);
                    assert_eq!((rows, phase.taps), (sweep.rows, sweep.taps), "{axis:?} {p}");
                    if phase.taps > 0 {
                        assert_eq!(start - phase.back as i64, sweep.start, "{axis:?} {p}");
                        assert_eq!(phase.first_tap, sweep.tap_first, "{axis:?} {p}");
                        assert_eq!(phased.jump, sweep.tap_jump);
                    }
                }
            }
        }
    }
}
