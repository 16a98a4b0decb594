use core::iter::StepBy;
use core::ops::Range;

use crate::{AxisName, Error, LIMIT, Quantity, Rounding};

/// One axis of a problem, checked: every position below can be computed without overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    input: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    before: usize,
    after: usize,
    output: usize,
    edges: Edges,
}

/// What the options of an axis, whatever its extent, allow at the edges of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Edges {
    clipped: bool,
    may_be_empty: bool,
    /// The taps that are inside in every window.
    inside: (usize, usize),
}

/// The numbers of one axis as asked for, before any check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AxisRequest {
    pub(crate) name: AxisName,
    pub(crate) input: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    pub(crate) padding: AxisPadding,
    pub(crate) rounding: Rounding,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum AxisPadding {
    Explicit { before: usize, after: usize },
    SameUpper,
    SameLower,
}

impl Axis {
    /// An axis that a problem does not have: one coordinate, one tap, one output.
    pub(crate) const MISSING: Self = Self {
        input: 1,
        kernel: 1,
        stride: 1,
        dilation: 1,
        before: 0,
        after: 0,
        output: 1,
        edges: Edges { clipped: false, may_be_empty: false, inside: (0, 1) },
    };

    pub(crate) fn new(request: AxisRequest) -> Result<Self, Error> {
        let AxisRequest { name, input, kernel, stride, dilation, padding, rounding } = request;
        positive(name, Quantity::Input, input)?;
        positive(name, Quantity::Kernel, kernel)?;
        positive(name, Quantity::Stride, stride)?;
        positive(name, Quantity::Dilation, dilation)?;

        let effective = dilation.checked_mul(kernel - 1).and_then(|span| span.checked_add(1));
        let effective = bounded(name, Quantity::EffectiveKernel, effective)?;
        let (before, after) = match padding {
            AxisPadding::Explicit { before, after } => (before, after),
            AxisPadding::SameUpper => {
                let total = same_padding(input, stride, effective);
                (total / 2, total - total / 2)
            }
            AxisPadding::SameLower => {
                let total = same_padding(input, stride, effective);
                (total - total / 2, total / 2)
            }
        };
        bounded(name, Quantity::Padding, Some(before.max(after)))?;
        let padded = input.checked_add(before).and_then(|sum| sum.checked_add(after));
        let padded = bounded(name, Quantity::PaddedInput, padded)?;
        let span = padded.checked_sub(effective).ok_or(Error::KernelTooLong {
            axis: name,
            effective,
            padded,
        })?;
        let output = match rounding {
            Rounding::Floor => span / stride + 1,
            Rounding::Ceil => {
                let rounded = span.div_ceil(stride) + 1;
                // The last window goes if it would start in the padding after the input.
                if (rounded - 1) * stride >= input + before { rounded - 1 } else { rounded }
            }
        };
        // `Same` never pads as much as a kernel.
        let (most_before, most_after, may_be_empty) = match padding {
            AxisPadding::Explicit { before, after } => {
                let padded = before > 0 || after > 0;
                let past = before >= effective || after >= effective;
                (before, after, padded && (dilation > 1 || past))
            }
            AxisPadding::SameUpper => ((effective - 1) / 2, effective / 2, dilation > 1),
            AxisPadding::SameLower => (effective / 2, (effective - 1) / 2, dilation > 1),
        };
        let overhang = if rounding == Rounding::Ceil { stride - 1 } else { 0 };
        let inside = always_inside(kernel, dilation, most_before, most_after + overhang);
        let edges = Edges { clipped: inside != (0, kernel), may_be_empty, inside };
        Ok(Self { input, kernel, stride, dilation, before, after, output, edges })
    }

    /// The coordinates of the input, `L`.
    pub fn input(&self) -> usize {
        self.input
    }

    /// The taps of the window, `k`.
    pub fn kernel(&self) -> usize {
        self.kernel
    }

    /// The coordinates between two windows, `s`.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The coordinates between two taps, `d`.
    pub fn dilation(&self) -> usize {
        self.dilation
    }

    /// The padding before the first coordinate.
    pub fn before(&self) -> usize {
        self.before
    }

    /// The padding after the last coordinate.
    pub fn after(&self) -> usize {
        self.after
    }

    /// The windows that fit, `O`.
    pub fn output(&self) -> usize {
        self.output
    }

    /// The coordinate of the first tap of window `o`; negative in the padding.
    pub fn start(&self, o: usize) -> i64 {
        (o * self.stride) as i64 - self.before as i64
    }

    /// The coordinate that tap `t` of window `o` reads; outside `0..L` for padding and overhang.
    pub fn coordinate(&self, o: usize, t: usize) -> i64 {
        self.start(o) + (t * self.dilation) as i64
    }

    /// The taps of window `o` that are inside the input; empty for an empty window.
    pub fn inside(&self, o: usize) -> Range<usize> {
        let first = self.taps_below(o, 0);
        first..self.taps_below(o, self.input as i64).max(first)
    }

    /// The windows whose tap `t` is inside the input.
    pub fn windows_inside(&self, t: usize) -> Range<usize> {
        let shift = t * self.dilation;
        let first = self.before.saturating_sub(shift).div_ceil(self.stride).min(self.output);
        let last = (self.before + self.input).saturating_sub(shift).div_ceil(self.stride);
        first..last.min(self.output).max(first)
    }

    /// How many taps of window `o` are inside the input or in its padding: all but the overhang.
    pub fn padded_taps(&self, o: usize) -> usize {
        self.taps_below(o, (self.input + self.after) as i64)
    }

    /// How many taps of window `o` read below coordinate `x`.
    fn taps_below(&self, o: usize, x: i64) -> usize {
        let room = (x - self.start(o)).max(0) as usize;
        room.div_ceil(self.dilation).min(self.kernel)
    }

    /// The windows that might read coordinate `x`: every window that does is among them, and
    /// [`tap_of`](Self::tap_of) tells which do.
    pub fn windows_over(&self, x: usize) -> Range<usize> {
        let reach = (self.kernel - 1) * self.dilation;
        let x = x + self.before;
        let first = x.saturating_sub(reach).div_ceil(self.stride);
        let last = (x / self.stride + 1).min(self.output);
        first.min(last)..last
    }

    /// The tap by which window `o` reads coordinate `x`, if it does.
    pub fn tap_of(&self, o: usize, x: usize) -> Option<usize> {
        let offset = (x + self.before).checked_sub(o * self.stride)?;
        let tap = offset / self.dilation;
        (offset % self.dilation == 0 && tap < self.kernel).then_some(tap)
    }

    /// Whether a tap may be outside the input, judged by the options alone: the answer does not
    /// change with the extent, so that a kernel may be compiled for it.
    pub fn clipped(&self) -> bool {
        self.edges.clipped
    }

    /// The taps that are inside the input in every window, judged by the options alone.
    pub fn always_inside(&self) -> Range<usize> {
        self.edges.inside.0..self.edges.inside.1
    }

    /// Whether a window may have no tap inside the input, judged by the options alone.
    pub fn may_be_empty(&self) -> bool {
        self.edges.may_be_empty
    }

    /// The windows, grouped so that those of a group read from one sequence of every `d`-th
    /// coordinate, and those of different groups from sequences with nothing in common.
    pub fn classes(&self) -> impl Iterator<Item = StepBy<Range<usize>>> + use<> {
        let apart = self.dilation / gcd(self.stride, self.dilation);
        let output = self.output;
        (0..apart.min(output)).map(move |first| (first..output).step_by(apart))
    }

    /// Whether some coordinate, of the input or its padding, is read by more than one window.
    pub fn overlaps(&self) -> bool {
        // Windows `o` and `o + d/g` are the nearest that may share a tap, `s/g` taps apart; with a
        // dilation, nearer ones interleave.
        let common = gcd(self.stride, self.dilation);
        self.stride / common < self.kernel && self.dilation / common < self.output
    }
}

fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn positive(axis: AxisName, what: Quantity, value: usize) -> Result<(), Error> {
    if value == 0 {
        return Err(Error::Zero { axis: Some(axis), what });
    }
    bounded(axis, what, Some(value)).map(drop)
}

fn bounded(axis: AxisName, what: Quantity, value: Option<usize>) -> Result<usize, Error> {
    match value {
        Some(value) if value <= LIMIT => Ok(value),
        asked => Err(Error::TooLarge { axis: Some(axis), what, asked, limit: LIMIT }),
    }
}

/// The taps that are inside wherever at most so much is padded, or overhangs.
fn always_inside(kernel: usize, dilation: usize, before: usize, after: usize) -> (usize, usize) {
    let first = before.div_ceil(dilation).min(kernel);
    let end = kernel - after.div_ceil(dilation).min(kernel);
    (first, end.max(first))
}

/// The total padding that makes `O = ⌈L/s⌉`. The numbers are bounded, so that nothing overflows.
fn same_padding(input: usize, stride: usize, effective: usize) -> usize {
    let last_start = (input.div_ceil(stride) - 1) * stride;
    (last_start + effective).saturating_sub(input)
}
