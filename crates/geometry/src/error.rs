use core::fmt;

use crate::{AXES, DType, Exponent, Extents};

/// The name of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisName {
    /// The first axis of a 3-D problem.
    Depth,
    /// The first axis of a 2-D problem.
    Height,
    /// The last axis of every problem.
    Width,
}

impl AxisName {
    /// The name of position `index` among the three axes.
    pub(crate) fn of(index: usize) -> Self {
        [Self::Depth, Self::Height, Self::Width][index]
    }

    /// The axis of the largest of three numbers, if none of `others` is larger.
    pub(crate) fn of_largest(three: [usize; AXES], others: &[usize]) -> Option<Self> {
        let largest = *three.iter().max()?;
        let is_cause = others.iter().all(|&other| other <= largest);
        three.iter().position(|&number| is_cause && number == largest).map(Self::of)
    }
}

impl fmt::Display for AxisName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Depth => "depth",
            Self::Height => "height",
            Self::Width => "width",
        })
    }
}

/// One of the numbers of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Quantity {
    Batch,
    Channels,
    Input,
    Kernel,
    Stride,
    Dilation,
    Padding,
    Rounding,
    EffectiveKernel,
    PaddedInput,
    Output,
    Outputs,
    Elements,
    Taps,
    Divisor,
    Groups,
    Filters,
    FilterChannels,
    FilterElements,
    Terms,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Batch => "batch",
            Self::Channels => "channel count",
            Self::Input => "input extent",
            Self::Kernel => "kernel extent",
            Self::Stride => "stride",
            Self::Dilation => "dilation",
            Self::Padding => "padding",
            Self::Rounding => "rounding",
            Self::EffectiveKernel => "effective kernel (dilation·(kernel−1)+1)",
            Self::PaddedInput => "padded input",
            Self::Output => "output extent",
            Self::Outputs => "number of outputs",
            Self::Elements => "number of elements",
            Self::Taps => "number of taps",
            Self::Divisor => "divisor",
            Self::Groups => "number of groups",
            Self::Filters => "number of filters",
            Self::FilterChannels => "channel count of the filters",
            Self::FilterElements => "number of filter elements",
            Self::Terms => "number of 8-bit products in a sum",
        })
    }
}

impl Quantity {
    /// Whether it is a product over all axes.
    fn is_product(self) -> bool {
        matches!(self, Self::Outputs | Self::Elements | Self::Taps | Self::FilterElements)
    }

    /// The options that it follows from, if it is not an option itself.
    fn causes(self) -> &'static str {
        match self {
            Self::EffectiveKernel => "the kernel or its dilation",
            Self::PaddedInput | Self::Outputs => "the input or its padding",
            Self::Elements => "the batch, the channels or an extent",
            Self::Taps => "the kernel",
            Self::FilterElements => "the filters, their channels or their number",
            Self::Terms => "the kernel or the channels of a group",
            _ => "it",
        }
    }
}

/// Why a window cannot be applied to an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A number that must be at least one is zero.
    Zero {
        /// The axis, if the number belongs to one.
        axis: Option<AxisName>,
        /// The number.
        what: Quantity,
    },
    /// The dilated kernel is longer than the padded axis.
    KernelTooLong {
        /// The axis.
        axis: AxisName,
        /// `d·(k−1)+1`.
        effective: usize,
        /// `L + before + after`.
        padded: usize,
    },
    /// An adaptive window was given an option that follows from the input.
    Adaptive {
        /// The option.
        what: Quantity,
    },
    /// A convolution was given an adaptive window.
    AdaptiveConvolution,
    /// A convolution was given ceil rounding.
    RoundedUp,
    /// The exponent of a norm is not a finite number of at least 1.
    Exponent {
        /// The requested exponent.
        asked: Exponent,
    },
    /// The rank of a rank filter is a fraction that is not from 0 to 1.
    NoSuchRank {
        /// The numerator.
        part: u32,
        /// The denominator.
        whole: u32,
    },
    /// A footprint does not say of each tap of its window whether it counts.
    Footprint {
        /// The extents of the window.
        extents: Extents,
        /// The number of taps of which it says so.
        found: usize,
    },
    /// No tap of a footprint counts.
    EmptyFootprint,
    /// A window's origin is outside the window.
    Origin {
        /// The axis.
        axis: AxisName,
        /// The origin, counted from the middle.
        asked: isize,
        /// The extent of the window.
        kernel: usize,
    },
    /// A fractional pooling has more windows than there are places for them.
    TooManyWindows {
        /// The axis.
        axis: AxisName,
        /// The extent of a window.
        kernel: usize,
        /// The number of windows.
        output: usize,
        /// The extent of the input.
        input: usize,
    },
    /// A number, or a product or sum of numbers, is too large.
    TooLarge {
        /// The axis, if the number belongs to one; for a product the longest, if that is its largest factor.
        axis: Option<AxisName>,
        /// The number.
        what: Quantity,
        /// The requested value, if it can be represented.
        asked: Option<usize>,
        /// The largest accepted value.
        limit: usize,
    },
    /// Two things that are used together have different numbers of axes.
    Rank {
        /// The number of axes expected.
        expected: usize,
        /// The number of axes found.
        found: usize,
    },
    /// The number of axes is not 1, 2 or 3.
    RankUnsupported {
        /// The number of axes found.
        found: usize,
    },
    /// The number of groups does not divide the channels or the filters.
    Groups {
        /// The quantity that they do not divide.
        what: Quantity,
        /// Their number.
        count: usize,
        /// The number of groups.
        groups: usize,
    },
    /// The filters' channels are not those of one group.
    FilterChannels {
        /// The channels of the filters.
        found: usize,
        /// The channels of one group, `channels / groups`.
        expected: usize,
        /// The channels of the input.
        channels: usize,
        /// The number of groups.
        groups: usize,
    },
    /// The output padding of a transposed convolution is too large.
    OutputPadding {
        /// The axis.
        axis: AxisName,
        /// The output padding asked for.
        asked: usize,
        /// The number that it must be less than: the stride, or 1 if the padding fixes the output.
        below: usize,
    },
    /// The padding of a transposed convolution leaves no output.
    NoOutput {
        /// The axis.
        axis: AxisName,
        /// `before + after`.
        padding: usize,
        /// The coordinates that its windows cover.
        covered: usize,
    },
    /// A quantized convolution cannot have an output of this type.
    QuantizedOutput {
        /// The requested type.
        output: DType,
    },
    /// The activation of an output in `i8` depends on the unit of its numbers.
    QuantizedActivation,
    /// The filters' kernel differs from the window's.
    FilterKernel {
        /// The axis.
        axis: AxisName,
        /// The window's extent.
        window: usize,
        /// The filters' extent.
        filter: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Zero { axis, what } => {
                write!(f, "the {what}")?;
                on(f, axis)?;
                f.write_str(" is 0; it must be at least 1")
            }
            Self::KernelTooLong { axis, effective, padded } => write!(
                f,
                "the kernel spans {effective} on the {axis} axis but the padded input has only \
                 {padded}; shrink the kernel or its dilation, or add padding"
            ),
            Self::Adaptive { what } => write!(
                f,
                "a {what} was set on an adaptive window, which derives it from the input; leave it out"
            ),
            Self::AdaptiveConvolution => f.write_str(
                "a convolution was given an adaptive window but needs a kernel; use a window with the \
                 kernel size of the filters",
            ),
            Self::RoundedUp => f.write_str(
                "a convolution was given ceil rounding, which only pooling supports; round down, or add \
                 padding at the end",
            ),
            Self::Exponent { asked } => write!(
                f,
                "the exponent of a norm is {}; it must be a finite number, at least 1",
                asked.get()
            ),
            Self::NoSuchRank { part, whole } => {
                write!(f, "the rank {part}/{whole} is not a fraction from 0 to 1; choose one that is")
            }
            Self::Footprint { extents, found } => write!(
                f,
                "the footprint has {found} taps but its window is {extents}; give one for each element of \
                 the window, in row-major order"
            ),
            Self::EmptyFootprint => {
                f.write_str("no tap of the footprint counts; at least one must be true")
            }
            Self::Origin { axis, asked, kernel } => write!(
                f,
                "the origin on the {axis} axis is {asked}, outside a window of {kernel}; 0 is its middle, \
                 and allowed are {} to {}",
                -((kernel / 2) as isize),
                (kernel - 1 - kernel / 2) as isize
            ),
            Self::TooManyWindows { axis, kernel, output, input } => write!(
                f,
                "{output} windows of {kernel} on the {axis} axis need an input of at least {}, and it has \
                 {input}; ask for fewer or smaller windows",
                output.saturating_add(kernel).saturating_sub(1)
            ),
            Self::TooLarge { axis, what, asked, limit } => {
                let (own, longest) = if what.is_product() { (None, axis) } else { (axis, None) };
                write!(f, "the {what}")?;
                on(f, own)?;
                match asked {
                    Some(asked) => write!(f, " is {asked}, ")?,
                    None => f.write_str(" is ")?,
                }
                let causes = what.causes();
                write!(f, "more than the largest allowed, {limit}; make {causes} smaller")?;
                match longest {
                    Some(axis) => write!(f, "; the longest axis is the {axis}"),
                    None => Ok(()),
                }
            }
            Self::Rank { expected, found } => write!(
                f,
                "the window has {expected} axes but {found} were found; give every option one number \
                 per axis and the input two more dimensions"
            ),
            Self::RankUnsupported { found } => {
                write!(f, "{found} axes were given; a window has 1, 2 or 3")
            }
            Self::Groups { what, count, groups } => write!(
                f,
                "the {what} is {count}, which {groups} groups do not divide; choose a divisor of \
                 {count}"
            ),
            Self::FilterChannels { found, expected, channels, groups } => write!(
                f,
                "the filters have {found} channels but {channels} channels with groups = {groups} need \
                 {expected}; change the filters or the number of groups"
            ),
            Self::OutputPadding { axis, asked, below } => write!(
                f,
                "the output padding on the {axis} axis is {asked}; it must be less than {below}, {}",
                match below {
                    1 => "because the stride or the padding leaves no choice",
                    _ => "the stride",
                }
            ),
            Self::NoOutput { axis, padding, covered } => write!(
                f,
                "the windows of a transposed convolution cover {covered} on the {axis} axis and the \
                 padding of {padding} leaves nothing of it; pad less"
            ),
            Self::QuantizedOutput { output } => write!(
                f,
                "a quantized convolution has no output of {output}; ask for f32, f16, bf16 or i8"
            ),
            Self::QuantizedActivation => f.write_str(
                "an output in i8 was requested with an activation that depends on the unit of its \
                 numbers; use none, relu or leaky, or an output in f32",
            ),
            Self::FilterKernel { axis, window, filter } => write!(
                f,
                "the window has a kernel extent of {window} on the {axis} axis but the filters \
                 have {filter}; make them equal"
            ),
        }
    }
}

fn on(f: &mut fmt::Formatter<'_>, axis: Option<AxisName>) -> fmt::Result {
    match axis {
        Some(axis) => write!(f, " on the {axis} axis"),
        None => Ok(()),
    }
}

impl core::error::Error for Error {}
