use crate::{AXES, Axis, Error, Grid, LIMIT, Layout, Quantity, Shape, Strides, Window};

/// A pooling problem: a window applied to every channel of every sample of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pooling {
    input: Shape,
    output: Shape,
    grid: Grid,
    layout: Layout,
}

impl Pooling {
    /// Applies a window to an input and checks every number.
    pub fn new(input: Shape, window: &Window, layout: Layout) -> Result<Self, Error> {
        let grid = window.over(input.space())?;
        let output = input.with_space(grid.output())?;
        Ok(Self { input, output, grid, layout })
    }

    /// The shape of the input.
    pub fn input(&self) -> Shape {
        self.input
    }

    /// The shape of the output.
    pub fn output(&self) -> Shape {
        self.output
    }

    /// The positions of the window.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// The layout of input and output.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Refuses a problem in which an index of this base might not fit in a signed 32-bit integer.
    pub fn check_indices(&self, base: IndexBase) -> Result<(), Error> {
        let positions = match base {
            IndexBase::Plane => self.input.plane(),
            IndexBase::Tensor | IndexBase::Memory => self.input.elements(),
        };
        // The largest index is one less than the number of positions.
        if positions > LIMIT + 1 {
            return Err(Error::TooLarge {
                axis: None,
                what: Quantity::Elements,
                asked: Some(positions),
                limit: LIMIT + 1,
            });
        }
        Ok(())
    }

    /// The strides of an index of this base: the index of element (`n`, `c`, `position`) is its
    /// [`Strides::offset`].
    pub fn index_strides(&self, base: IndexBase) -> Strides {
        match base {
            IndexBase::Plane => {
                Strides { batch: 0, channel: 0, ..self.input.strides(Layout::ChannelsFirst) }
            }
            IndexBase::Tensor => self.input.strides(Layout::ChannelsFirst),
            IndexBase::Memory => self.input.strides(self.layout),
        }
    }
}

/// The extremum that a pooling takes of each window. The minimum mirrors the maximum in everything: order, ties, the sign of
/// zero and empty windows; NaN wins both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Extremum {
    /// The largest number.
    #[default]
    Max,
    /// The smallest number.
    Min,
}

/// The quantity that the index of an extremum counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IndexBase {
    /// The position in the plane of that sample and channel, for any layout (PyTorch, Caffe).
    #[default]
    Plane,
    /// The row-major position in the logical `N, C, D, H, W` tensor (ONNX).
    Tensor,
    /// The element offset in the buffer in its memory layout (Composable Kernel).
    Memory,
}

/// The divisor of an average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Divisor {
    /// The number of taps inside the input or its padding; overhang never counts.
    #[default]
    Padded,
    /// The number of taps inside the input.
    Valid,
    /// A fixed number, at least 1.
    Fixed(u32),
    /// A fixed number, at least 1, by which sums of integers are divided towards zero, as by SciPy's `uniform_filter`.
    /// For other numbers it is [`Fixed`](Self::Fixed).
    Truncated(u32),
}

impl Divisor {
    /// Refuses a fixed divisor of 0.
    pub fn check(self) -> Result<(), Error> {
        match self {
            Self::Fixed(0) | Self::Truncated(0) => {
                Err(Error::Zero { axis: None, what: Quantity::Divisor })
            }
            _ => Ok(()),
        }
    }

    /// The number that every window's sum is divided by, if it is given.
    pub fn fixed(self) -> Option<u32> {
        match self {
            Self::Fixed(n) | Self::Truncated(n) => Some(n),
            Self::Padded | Self::Valid => None,
        }
    }

    /// Whether quotients of integers are cut off; otherwise they are rounded to the nearest integer.
    pub fn truncates(self) -> bool {
        matches!(self, Self::Truncated(_))
    }

    /// The divisor of the window at output position `o`; 0 for an empty window under
    /// [`Valid`](Self::Valid), whose sum is 0 too and whose average is defined as 0.
    pub fn of(self, grid: &Grid, o: [usize; AXES]) -> usize {
        let windows = grid.axes().iter().zip(o);
        windows.fold(self.factor(), |product, (axis, o)| product * self.along(axis, o))
    }

    /// The factor of a divisor that no axis changes: the given number, or else 1.
    #[inline]
    pub fn factor(self) -> usize {
        self.fixed().map_or(1, |n| n as usize)
    }

    /// The factor of a divisor that an axis has: the taps of its window `o` that count, or 1 if the divisor is given.
    #[inline]
    pub fn along(self, axis: &Axis, o: usize) -> usize {
        match self {
            Self::Padded => axis.padded_taps(o),
            Self::Valid => axis.inside(o).len(),
            Self::Fixed(_) | Self::Truncated(_) => 1,
        }
    }
}

/// The exponent `p` of a norm, `(Σ|x|^p)^(1/p)`.
///
/// ```
/// use windowpane_geometry::Exponent;
///
/// assert_eq!(Exponent::new(2).get(), 2.0);
/// assert!(Exponent::new(0.5).check().is_err());
/// ```
// Stored as bits, so that it can be compared and hashed like every other option.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Exponent(u64);

impl Exponent {
    /// An exponent; [`check`](Self::check) refuses invalid ones.
    pub fn new(p: impl Into<f64>) -> Self {
        Self(p.into().to_bits())
    }

    /// The number.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }

    /// Refuses anything but a finite number of at least 1.
    pub fn check(self) -> Result<(), Error> {
        let p = self.get();
        if p.is_finite() && p >= 1.0 { Ok(()) } else { Err(Error::Exponent { asked: self }) }
    }
}

impl core::fmt::Debug for Exponent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Exponent({})", self.get())
    }
}

/// Which of the numbers of a window a rank filter takes, counted from the smallest.
///
/// ```
/// use windowpane_geometry::Rank;
///
/// assert_eq!([Rank::MEDIAN.of(9), Rank::MEDIAN.of(4)], [4, 2]);
/// assert_eq!([Rank::Nth(3).of(9), Rank::Nth(3).of(2)], [3, 1]);
/// assert!(Rank::Fraction { part: 3, whole: 2 }.check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rank {
    /// The number that this many others precede: 0 is the smallest. The largest, if a window has fewer numbers.
    Nth(u32),
    /// Of `n` numbers, the one that `⌊n · part / whole⌋` others precede; the largest for `part = whole`.
    Fraction {
        /// The numerator, at most `whole`.
        part: u32,
        /// The denominator, at least 1.
        whole: u32,
    },
}

impl Rank {
    /// The middle number; the larger one of the two in the middle.
    pub const MEDIAN: Self = Self::Fraction { part: 1, whole: 2 };

    /// Refuses a fraction that is not from 0 to 1.
    pub fn check(self) -> Result<(), Error> {
        match self {
            Self::Fraction { part, whole } if whole == 0 || part > whole => {
                Err(Error::NoSuchRank { part, whole })
            }
            _ => Ok(()),
        }
    }

    /// How many of `n` numbers precede the one that is taken; `n` is at least 1. The rank must pass
    /// [`check`](Self::check).
    pub fn of(self, n: usize) -> usize {
        let precede = match self {
            Self::Nth(k) => k as usize,
            Self::Fraction { part, whole } => {
                (n as u128 * u128::from(part) / u128::from(whole)) as usize
            }
        };
        precede.min(n - 1)
    }
}

impl From<u32> for Rank {
    fn from(k: u32) -> Self {
        Self::Nth(k)
    }
}

impl core::fmt::Display for Rank {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Nth(k) => write!(f, "{k}"),
            Self::Fraction { part, whole } => write!(f, "{part}/{whole}"),
        }
    }
}

impl core::str::FromStr for Rank {
    type Err = UnknownRank;

    fn from_str(text: &str) -> Result<Self, UnknownRank> {
        let number = |text: &str| text.trim().parse().map_err(|_| UnknownRank);
        let rank = match text.split_once('/') {
            Some((part, whole)) => Self::Fraction { part: number(part)?, whole: number(whole)? },
            None => Self::Nth(number(text)?),
        };
        rank.check().map_err(|_| UnknownRank)?;
        Ok(rank)
    }
}

/// The error for a text that is not a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownRank;

impl core::fmt::Display for UnknownRank {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(
            "a rank is a whole number from 0, the smallest, or a fraction from 0 to 1 such as 1/2",
        )
    }
}

impl core::error::Error for UnknownRank {}
