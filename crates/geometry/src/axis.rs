use core::iter::StepBy;
use core::ops::Range;

use crate::{AxisName, Error, LIMIT, Quantity, Rounding};

/// One axis of a problem, checked: every position below can be computed without overflow.
///
/// An axis defined by the number `O` of its windows is *adaptive*: window `o` covers
/// `⌊o·L/O⌋ .. ⌈(o+1)·L/O⌉`. If `O` divides `L`, these are ordinary windows of `L/O` taps side by side.
/// Otherwise the axis is *uneven*: its windows differ in length and step, and [`kernel`](Self::kernel)
/// is the length of the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    input: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    before: usize,
    after: usize,
    output: usize,
    fit: Fit,
    edges: Edges,
}

/// Whether an axis was defined by the size of its windows or by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fit {
    Sized,
    Even,
    Uneven,
}

/// The cases that the options of an axis allow at the edges of the input, for any extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Edges {
    clipped: bool,
    may_be_empty: bool,
    /// The taps that are inside the input in every window.
    inside: (usize, usize),
}

/// The options of one axis, before any check.
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
    /// A missing axis: one coordinate, one tap, one output.
    pub(crate) const MISSING: Self = Self {
        input: 1,
        kernel: 1,
        stride: 1,
        dilation: 1,
        before: 0,
        after: 0,
        output: 1,
        fit: Fit::Sized,
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
                // The last window is dropped if it would start in the padding after the input.
                if (rounded - 1) * stride >= input + before { rounded - 1 } else { rounded }
            }
        };
        // `Same` always pads less than the kernel.
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
        let fit = Fit::Sized;
        Ok(Self { input, kernel, stride, dilation, before, after, output, fit, edges })
    }

    /// The extent of an input over which a window has `positions`; the input of the request is not read.
    pub(crate) fn transposed(
        request: AxisRequest,
        positions: usize,
        extra: usize,
    ) -> Result<usize, Error> {
        let AxisRequest { name, kernel, stride, dilation, padding, .. } = request;
        positive(name, Quantity::Input, positions)?;
        positive(name, Quantity::Kernel, kernel)?;
        positive(name, Quantity::Stride, stride)?;
        positive(name, Quantity::Dilation, dilation)?;
        let (padding, below) = match padding {
            AxisPadding::Explicit { before, after } => (Some((before, after)), stride),
            AxisPadding::SameUpper | AxisPadding::SameLower => (None, 1),
        };
        if extra >= below {
            return Err(Error::OutputPadding { axis: name, asked: extra, below });
        }
        let Some((before, after)) = padding else {
            return bounded(name, Quantity::Output, positions.checked_mul(stride));
        };
        let padding = bounded(name, Quantity::Padding, before.checked_add(after))?;
        let span = dilation.checked_mul(kernel - 1).and_then(|span| span.checked_add(1 + extra));
        let steps = (positions - 1).checked_mul(stride);
        let covered = steps.zip(span).and_then(|(steps, span)| steps.checked_add(span));
        let covered = bounded(name, Quantity::PaddedInput, covered)?;
        match covered.checked_sub(padding) {
            Some(extent) if extent > 0 => Ok(extent),
            _ => Err(Error::NoOutput { axis: name, padding, covered }),
        }
    }

    /// An axis with `O` windows that divide the input as evenly as possible.
    pub(crate) fn adaptive(name: AxisName, input: usize, output: usize) -> Result<Self, Error> {
        positive(name, Quantity::Input, input)?;
        positive(name, Quantity::Output, output)?;
        let (whole, rest) = (input / output, input % output);
        // Window `o` has `whole` taps, one more, and another one where a multiple of `O` lies
        // strictly between `o·rest` and `(o+1)·rest`; some window has that unless `rest` divides `O`.
        let (kernel, stride, fit) = match rest {
            0 => (whole, whole, Fit::Even),
            rest if output.is_multiple_of(rest) => (whole + 1, 1, Fit::Uneven),
            _ => (whole + 2, 1, Fit::Uneven),
        };
        // The shortest window has `whole` taps.
        let inside = (0, if rest == 0 { kernel } else { whole });
        let edges = Edges { clipped: fit == Fit::Uneven, may_be_empty: false, inside };
        Ok(Self { input, kernel, stride, dilation: 1, before: 0, after: 0, output, fit, edges })
    }

    /// Whether the axis was defined by the number of windows. Size and step then follow from the input,
    /// so a kernel should not be compiled for them.
    pub fn is_adaptive(&self) -> bool {
        self.fit != Fit::Sized
    }

    /// Whether the windows differ in length or step.
    #[inline]
    pub fn is_uneven(&self) -> bool {
        self.fit == Fit::Uneven
    }

    /// The coordinates of the input, `L`.
    pub fn input(&self) -> usize {
        self.input
    }

    /// The taps of the window, `k`; on an uneven axis those of the longest window.
    pub fn kernel(&self) -> usize {
        self.kernel
    }

    /// The step between two windows, `s`; 1 on an uneven axis, whose steps differ.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The step between two taps, `d`.
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
    #[inline]
    pub fn start(&self, o: usize) -> i64 {
        if self.is_uneven() {
            return self.share(o) as i64;
        }
        (o * self.stride) as i64 - self.before as i64
    }

    /// The coordinate that tap `t` of window `o` reads; outside `0..L` for padding and overhang.
    pub fn coordinate(&self, o: usize, t: usize) -> i64 {
        self.start(o) + (t * self.dilation) as i64
    }

    /// `⌊o·L/O⌋`. Both factors are bounded, so nothing overflows.
    fn share(&self, o: usize) -> usize {
        (o as u64 * self.input as u64 / self.output as u64) as usize
    }

    /// The taps of window `o` that are inside the input; empty for an empty window. On an uneven axis:
    /// the taps that this window has, out of those of the longest.
    #[inline]
    pub fn inside(&self, o: usize) -> Range<usize> {
        if self.is_uneven() {
            return 0..self.padded_taps(o);
        }
        let first = self.taps_below(o, 0);
        first..self.taps_below(o, self.input as i64).max(first)
    }

    /// The windows whose tap `t` is inside the input. On an uneven axis they need not be contiguous: the
    /// returned range contains all of them, and [`inside`](Self::inside) says which ones they are.
    pub fn windows_inside(&self, t: usize) -> Range<usize> {
        if self.is_uneven() {
            return 0..if t < self.kernel { self.output } else { 0 };
        }
        let shift = t * self.dilation;
        let first = self.before.saturating_sub(shift).div_ceil(self.stride).min(self.output);
        let last = (self.before + self.input).saturating_sub(shift).div_ceil(self.stride);
        first..last.min(self.output).max(first)
    }

    /// The number of taps of window `o` inside the input or its padding, without overhang.
    #[inline]
    pub fn padded_taps(&self, o: usize) -> usize {
        if self.is_uneven() {
            let end = (o as u64 + 1) * self.input as u64;
            return end.div_ceil(self.output as u64) as usize - self.share(o);
        }
        self.taps_below(o, (self.input + self.after) as i64)
    }

    /// The number of taps of window `o` that read coordinates below `x`.
    #[inline]
    fn taps_below(&self, o: usize, x: i64) -> usize {
        let room = (x - self.start(o)).max(0) as usize;
        // Loops over windows ask for each row; a division would take most of the time of a short one.
        let taps = if self.dilation == 1 { room } else { room.div_ceil(self.dilation) };
        taps.min(self.kernel)
    }

    /// A range that contains every window that reads coordinate `x`; [`tap_of`](Self::tap_of) says which
    /// ones do.
    pub fn windows_over(&self, x: usize) -> Range<usize> {
        if self.is_uneven() {
            // `⌊o·L/O⌋ ≤ x < ⌈(o+1)·L/O⌉` is `x·O/L − 1 < o < (x+1)·O/L`.
            let (x, output, input) = (x as u64, self.output as u64, self.input as u64);
            return (x * output / input) as usize..((x + 1) * output).div_ceil(input) as usize;
        }
        let reach = (self.kernel - 1) * self.dilation;
        let x = x + self.before;
        let first = x.saturating_sub(reach).div_ceil(self.stride);
        let last = (x / self.stride + 1).min(self.output);
        first.min(last)..last
    }

    /// The tap with which window `o` reads coordinate `x`, if any.
    pub fn tap_of(&self, o: usize, x: usize) -> Option<usize> {
        if self.is_uneven() {
            return x.checked_sub(self.share(o)).filter(|tap| *tap < self.padded_taps(o));
        }
        let offset = (x + self.before).checked_sub(o * self.stride)?;
        let tap = offset / self.dilation;
        (offset % self.dilation == 0 && tap < self.kernel).then_some(tap)
    }

    /// Whether a window may lack some of the `k` taps, because they are outside the input or because the
    /// axis is uneven. Unless the axis is adaptive, the answer depends only on the options and not on the
    /// extent, so a kernel may be compiled for it.
    pub fn clipped(&self) -> bool {
        self.edges.clipped
    }

    /// The taps that are inside the input in every window, derived from the options only; `0..0` if there
    /// are none.
    pub fn always_inside(&self) -> Range<usize> {
        self.edges.inside.0..self.edges.inside.1
    }

    /// Whether a window may have no tap inside the input, derived from the options only.
    pub fn may_be_empty(&self) -> bool {
        self.edges.may_be_empty
    }

    /// The windows in groups: those of one group read every `d`-th coordinate of one sequence, and the
    /// sequences of different groups are disjoint.
    pub fn classes(&self) -> impl Iterator<Item = StepBy<Range<usize>>> + use<> {
        let apart = self.dilation / gcd(self.stride, self.dilation);
        let output = self.output;
        (0..apart.min(output)).map(move |first| (first..output).step_by(apart))
    }

    /// Whether more than one window reads some coordinate of the input or its padding.
    pub fn overlaps(&self) -> bool {
        if self.is_uneven() {
            // The first window ends with a coordinate that the second begins with.
            return true;
        }
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

/// The taps that are inside in every window, given the largest padding and overhang.
fn always_inside(kernel: usize, dilation: usize, before: usize, after: usize) -> (usize, usize) {
    let first = before.div_ceil(dilation).min(kernel);
    let end = kernel - after.div_ceil(dilation).min(kernel);
    if first < end { (first, end) } else { (0, 0) }
}

/// The total padding that gives `O = ⌈L/s⌉`. The numbers are bounded, so nothing overflows.
fn same_padding(input: usize, stride: usize, effective: usize) -> usize {
    let last_start = (input.div_ceil(stride) - 1) * stride;
    (last_start + effective).saturating_sub(input)
}
