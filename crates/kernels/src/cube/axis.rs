//! The arithmetic of one axis in a kernel, the same as that of `windowpane_geometry::Axis`.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::Axis;

use crate::cube::numbers;

/// The numbers of an axis. They are run-time values, so they may change without compiling a new kernel.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct AxisArgs {
    pub(crate) input: i32,
    pub(crate) kernel: i32,
    pub(crate) stride: i32,
    pub(crate) dilation: i32,
    pub(crate) before: i32,
    pub(crate) after: i32,
    pub(crate) output: FastDivmod<u32>,
    /// For uneven axes: where windows begin and end.
    pub(crate) split: ComptimeOption<EvenSplit>,
}

/// The parameters of an axis that change a kernel's code: its options, never its extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AxisForm {
    /// The number of taps, if the loop over them is unrolled.
    pub(crate) taps: Option<u32>,
    /// Whether taps may be outside the input.
    pub(crate) clipped: bool,
    /// Whether windows may have no tap inside the input.
    pub(crate) may_be_empty: bool,
    /// Whether taps are more than one coordinate apart.
    pub(crate) dilated: bool,
    /// The range of taps that are never outside, if the loop over them is unrolled.
    pub(crate) always_inside: (u32, u32),
    /// Whether windows differ in length or step. This is never so for windows given by their size. For windows given by
    /// their number it depends on the extent; it is the only parameter that does, and leads to two kernels.
    pub(crate) uneven: bool,
}

impl AxisForm {
    pub(crate) fn new(axis: &Axis, unrolled: bool) -> Self {
        let always = if unrolled { axis.always_inside() } else { 0..0 };
        Self {
            taps: unrolled.then_some(axis.kernel() as u32),
            clipped: axis.clipped(),
            may_be_empty: axis.may_be_empty(),
            dilated: axis.dilation() > 1,
            always_inside: (always.start as u32, always.end as u32),
            uneven: axis.is_uneven(),
        }
    }

    /// The form of an axis whose taps are always inside.
    pub(crate) fn unclipped(self) -> Self {
        Self { clipped: false, may_be_empty: false, ..self }
    }

    /// Whether tap `t` of an unrolled loop may be outside the input.
    pub(crate) fn may_be_outside(&self, t: u32) -> bool {
        self.clipped && !(self.always_inside.0..self.always_inside.1).contains(&t)
    }
}

/// The launch arguments of an axis. Its numbers fit in 32 bits, because `Axis` keeps them below its limit.
pub(crate) fn axis_args(axis: &Axis) -> AxisArgsLaunch {
    numbers! { AxisArgsLaunch {
        input: axis.input(), kernel: axis.kernel(), stride: axis.stride(),
        dilation: axis.dilation(), before: axis.before(), after: axis.after(),
        output: axis.output(), split: split(axis, axis.input(), axis.output()),
    } }
}

/// The numbers for computing `⌊i·N/D⌋`, which divides `N` among `D`.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct EvenSplit {
    /// `N / D` and the remainder.
    whole: u32,
    rest: u32,
    by: FastDivmod<u32>,
    parts: u32,
    /// Not 0 if `i·rest` may be too large to divide by `by`.
    wide: u32,
}

/// The numbers of an uneven axis, with `i` at most `parts`, and both numbers at least 1; none of other axes, so that their
/// kernels have fewer arguments.
pub(crate) fn split(axis: &Axis, total: usize, parts: usize) -> ComptimeOptionArgs<EvenSplit> {
    if !axis.is_uneven() {
        return ComptimeOptionArgs::None;
    }
    let rest = total % parts;
    // `FastDivmod` is exact for dividends of 31 bits.
    let wide = parts as u64 * rest as u64 >= 1 << 31;
    ComptimeOptionArgs::Some(numbers! { EvenSplitLaunch {
        whole: total / parts, rest, by: parts, parts, wide: u32::from(wide),
    } })
}

/// `⌊i·N/D⌋`.
#[cube]
pub(crate) fn split_below(split: &EvenSplit, i: u32) -> u32 {
    let (quotient, _) = part(split, i);
    i * split.whole + quotient
}

/// `⌈i·N/D⌉`.
#[cube]
pub(crate) fn split_above(split: &EvenSplit, i: u32) -> u32 {
    let (quotient, remainder) = part(split, i);
    i * split.whole + quotient + u32::cast_from(remainder != 0)
}

/// Quotient and remainder of `i·rest` by `parts`.
#[cube]
fn part(split: &EvenSplit, i: u32) -> (u32, u32) {
    let mut quotient = 0u32;
    let mut remainder = 0u32;
    if split.wide == 0 {
        let (q, r) = split.by.div_mod(i * split.rest);
        quotient = q;
        remainder = r;
    } else {
        // Bit by bit. The remainder is always less than `parts`, so twice the remainder still fits.
        for bit in 0u32..31u32 {
            quotient *= 2u32;
            remainder *= 2u32;
            if remainder >= split.parts {
                remainder -= split.parts;
                quotient += 1u32;
            }
            remainder += ((i >> (30u32 - bit)) & 1u32) * split.rest;
            if remainder >= split.parts {
                remainder -= split.parts;
                quotient += 1u32;
            }
        }
    }
    (quotient, remainder)
}

/// The taps of one window on one axis.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Taps {
    /// The coordinate of tap 0.
    pub(crate) start: i32,
    /// The first tap inside the input.
    pub(crate) first: i32,
    /// One more than the last tap inside the input.
    pub(crate) end: i32,
}

/// The window at output `o`.
#[cube]
pub(crate) fn taps_of(axis: &AxisArgs, o: u32, #[comptime] form: AxisForm) -> Taps {
    let start = if comptime!(form.uneven) {
        split_below(axis.split.as_ref().unwrap(), o) as i32
    } else {
        i32::cast_from(o) * axis.stride - axis.before
    };
    if comptime!(form.uneven) {
        let end = split_above(axis.split.as_ref().unwrap(), o + 1u32) as i32;
        Taps { start, first: 0i32, end: end - start }
    } else if comptime!(form.clipped) {
        let first = taps_below(axis, start, 0i32, form);
        let end = taps_below(axis, start, axis.input, form);
        Taps { start, first, end }
    } else {
        Taps { start, first: 0i32, end: axis.kernel }
    }
}

/// The number of taps of the window that are inside the input or in its padding.
#[cube]
pub(crate) fn padded_taps(axis: &AxisArgs, taps: &Taps, #[comptime] form: AxisForm) -> i32 {
    if comptime!(form.uneven) {
        taps.end
    } else if comptime!(form.clipped) {
        taps_below(axis, taps.start, axis.input + axis.after, form)
    } else {
        axis.kernel
    }
}

/// Whether every tap of the window is inside the input.
#[cube]
pub(crate) fn has_all_taps(axis: &AxisArgs, taps: &Taps, #[comptime] form: AxisForm) -> bool {
    if comptime!(form.clipped) {
        taps.first == 0 && taps.end == axis.kernel
    } else {
        true.runtime()
    }
}

/// The number of taps of the window that read below coordinate `x`.
#[cube]
fn taps_below(axis: &AxisArgs, start: i32, x: i32, #[comptime] form: AxisForm) -> i32 {
    let room = max(x - start, 0i32);
    let taps = if comptime!(form.dilated) {
        // Not `(room + dilation − 1) / dilation`, which may overflow.
        room / axis.dilation + i32::cast_from(room % axis.dilation != 0)
    } else {
        room
    };
    min(taps, axis.kernel)
}

/// The coordinate that tap `t` reads. An unrolled tap outside the input is moved to the nearest one inside, so this is
/// a coordinate of the input, unless the window is empty.
#[cube]
pub(crate) fn coordinate(axis: &AxisArgs, taps: &Taps, t: i32, #[comptime] form: AxisForm) -> i32 {
    let t = if comptime!(form.clipped && form.taps.is_some()) {
        min(max(t, taps.first), taps.end - 1)
    } else {
        t
    };
    let x = if comptime!(form.dilated) { taps.start + t * axis.dilation } else { taps.start + t };
    // A value that an empty window reads is never used, but its coordinate must be valid.
    if comptime!(form.may_be_empty && form.taps.is_some()) {
        min(max(x, 0i32), axis.input - 1)
    } else {
        x
    }
}

/// Whether tap `t` of an unrolled loop is inside the input.
#[cube]
pub(crate) fn is_inside(taps: &Taps, t: i32, #[comptime] form: AxisForm) -> bool {
    if comptime!(form.clipped) { t >= taps.first && t < taps.end } else { true.runtime() }
}
