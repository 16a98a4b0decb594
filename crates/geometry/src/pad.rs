use core::fmt;
use core::str::FromStr;

use crate::{AXES, Axis, Error, Grid, Layout, Padding, Shape, Window};

/// What a convolution, or a [`Padded`] tensor, has outside its input.
///
/// ```text
/// zeros      0 0 0 | a b c d | 0 0 0
/// reflect    d c b | a b c d | c b a
/// symmetric  c b a | a b c d | d c b
/// replicate  a a a | a b c d | d d d
/// circular   b c d | a b c d | a b c
/// ```
///
/// Each works for any padding; more than the input repeats the pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PaddingMode {
    /// Zeros.
    #[default]
    Zeros,
    /// The mirror image about the first and last coordinate, which are not repeated: `mirror` in SciPy.
    Reflect,
    /// The mirror image about the edges, so that the first and last coordinate are repeated: `reflect` in SciPy.
    Symmetric,
    /// The nearest coordinate: `edge` in NumPy, `nearest` in SciPy.
    Replicate,
    /// The other end of the input: `wrap` in NumPy and SciPy.
    Circular,
}

impl PaddingMode {
    /// Every mode.
    pub const ALL: [Self; 5] =
        [Self::Zeros, Self::Reflect, Self::Symmetric, Self::Replicate, Self::Circular];

    /// The coordinate of an input of `extent` coordinates, at least 1, that coordinate `x` has the value of; `None` if
    /// that is 0.
    ///
    /// ```
    /// use windowpane_geometry::PaddingMode;
    ///
    /// assert_eq!(PaddingMode::Reflect.source(-2, 4), Some(2));
    /// assert_eq!(PaddingMode::Circular.source(-2, 4), Some(2));
    /// assert_eq!(PaddingMode::Replicate.source(-2, 4), Some(0));
    /// assert_eq!(PaddingMode::Zeros.source(-2, 4), None);
    /// ```
    pub fn source(self, x: i64, extent: usize) -> Option<usize> {
        let last = extent as i64 - 1;
        let source = match self {
            _ if (0..=last).contains(&x) => x,
            Self::Zeros => return None,
            Self::Replicate => x.clamp(0, last),
            Self::Circular => x.rem_euclid(extent as i64),
            Self::Reflect if last == 0 => 0,
            Self::Reflect => match x.rem_euclid(2 * last) {
                place if place > last => 2 * last - place,
                place => place,
            },
            Self::Symmetric => match x.rem_euclid(2 * extent as i64) {
                place if place > last => 2 * last + 1 - place,
                place => place,
            },
        };
        Some(source as usize)
    }

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zeros => "zeros",
            Self::Reflect => "reflect",
            Self::Symmetric => "symmetric",
            Self::Replicate => "replicate",
            Self::Circular => "circular",
        }
    }
}

impl fmt::Display for PaddingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for an unknown padding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPaddingMode;

impl fmt::Display for UnknownPaddingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "unknown padding mode; use one of zeros, reflect, symmetric, replicate, circular",
        )
    }
}

impl core::error::Error for UnknownPaddingMode {}

impl FromStr for PaddingMode {
    type Err = UnknownPaddingMode;

    fn from_str(name: &str) -> Result<Self, UnknownPaddingMode> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or(UnknownPaddingMode)
    }
}

/// A tensor and its padding, in memory: every coordinate of the output is one of the input or of its padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Padded {
    input: Shape,
    output: Shape,
    /// A window of one tap, whose padding is that of the tensor.
    grid: Grid,
    mode: PaddingMode,
    layout: Layout,
}

impl Padded {
    /// Pads an input and checks every number. [`Same`](crate::Same) is no padding, because a window of one tap needs
    /// none.
    pub fn new(
        input: Shape,
        padding: Padding,
        mode: PaddingMode,
        layout: Layout,
    ) -> Result<Self, Error> {
        let grid = Window::new(1).padding(padding).over(input.space())?;
        Ok(Self { input, output: input.with_space(grid.output())?, grid, mode, layout })
    }

    /// The shape of the input.
    pub fn input(&self) -> Shape {
        self.input
    }

    /// The shape of the input with its padding.
    pub fn output(&self) -> Shape {
        self.output
    }

    /// Depth, height and width: their inputs, outputs and padding.
    pub fn axes(&self) -> &[Axis; AXES] {
        self.grid.axes()
    }

    /// What the padding holds.
    pub fn mode(&self) -> PaddingMode {
        self.mode
    }

    /// The layout of both.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The position of the input that a position of the output has the value of; `None` if that is 0.
    pub fn source(&self, output: [usize; AXES]) -> Option<[usize; AXES]> {
        let mut source = [0; AXES];
        for ((source, axis), o) in source.iter_mut().zip(self.axes()).zip(output) {
            *source = self.mode.source(axis.start(o), axis.input())?;
        }
        Some(source)
    }

    /// The most positions of the output on each axis that have the value of one coordinate of the input.
    pub fn most_copies(&self) -> [usize; AXES] {
        self.axes().each_ref().map(|axis| {
            let (input, output) = (axis.input(), axis.output());
            match self.mode {
                PaddingMode::Zeros => 1,
                PaddingMode::Replicate if input == 1 => output,
                PaddingMode::Replicate => axis.before().max(axis.after()) + 1,
                PaddingMode::Circular => output.div_ceil(input),
                PaddingMode::Reflect if input == 1 => output,
                PaddingMode::Reflect => 2 * output.div_ceil(2 * (input - 1)),
                PaddingMode::Symmetric => 2 * output.div_ceil(2 * input),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;
    use crate::Extents;

    /// Each mode as the picture in its documentation.
    #[test]
    fn modes_are_their_pictures() {
        let line = |mode: PaddingMode, extent: usize, padding: i64| -> Vec<i64> {
            let coordinates = -padding..extent as i64 + padding;
            coordinates.map(|x| mode.source(x, extent).map_or(-1, |x| x as i64)).collect()
        };
        let of = |mode| line(mode, 4, 3);
        assert_eq!(of(PaddingMode::Zeros), [-1, -1, -1, 0, 1, 2, 3, -1, -1, -1]);
        assert_eq!(of(PaddingMode::Reflect), [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]);
        assert_eq!(of(PaddingMode::Symmetric), [2, 1, 0, 0, 1, 2, 3, 3, 2, 1]);
        assert_eq!(of(PaddingMode::Replicate), [0, 0, 0, 0, 1, 2, 3, 3, 3, 3]);
        assert_eq!(of(PaddingMode::Circular), [1, 2, 3, 0, 1, 2, 3, 0, 1, 2]);
        // More padding than input, and an input of one coordinate.
        assert_eq!(line(PaddingMode::Reflect, 2, 4), [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(line(PaddingMode::Symmetric, 2, 4), [0, 1, 1, 0, 0, 1, 1, 0, 0, 1]);
        assert_eq!(line(PaddingMode::Circular, 2, 3), [1, 0, 1, 0, 1, 0, 1, 0]);
        assert_eq!(line(PaddingMode::Reflect, 1, 2), [0; 5]);
        assert_eq!(line(PaddingMode::Symmetric, 1, 2), [0; 5]);
        assert_eq!(line(PaddingMode::Circular, 1, 2), [0; 5]);
    }

    #[test]
    fn names_are_read_again() {
        for mode in PaddingMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("Reflect".parse::<PaddingMode>().is_err());
    }

    /// The bound on the copies of a coordinate is reached where it is claimed to be, and never exceeded.
    #[test]
    fn no_coordinate_has_more_copies() {
        for mode in PaddingMode::ALL {
            for (extent, before, after) in
                (1..6).flat_map(|l| (0..9).flat_map(move |b| (0..9).map(move |a| (l, b, a))))
            {
                let input = Shape::new(1, 1, Extents::from([extent])).unwrap();
                let padding = Padding::from([(before, after)]);
                let padded = Padded::new(input, padding, mode, Layout::ChannelsLast).unwrap();
                let mut copies = std::vec![0; extent];
                for o in 0..padded.output().plane() {
                    let source = padded.source([0, 0, o]);
                    source.into_iter().for_each(|[_, _, x]| copies[x] += 1);
                }
                let [_, _, bound] = padded.most_copies();
                let most = *copies.iter().max().unwrap();
                assert!(most <= bound && bound <= 2 * most + 1, "{mode} {extent} {before} {after}");
            }
        }
    }
}
