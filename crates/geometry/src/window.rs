use crate::axis::{AxisPadding, AxisRequest};
use crate::{AXES, Axis, AxisName, Error, Extents, Quantity};

/// Whether a partial last window is dropped or kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// A window that does not fit is dropped.
    #[default]
    Floor,
    /// A window that starts in the input or in the padding before it is kept, as in PyTorch and ONNX; one
    /// that would start in the padding after it is dropped.
    Ceil,
}

/// Padding that keeps `⌈L/s⌉` outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Same {
    /// If the total is odd, the extra one is at the end.
    Upper,
    /// If the total is odd, the extra one is at the beginning.
    Lower,
}

/// How an input is padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// No padding.
    Valid,
    /// The padding that keeps `⌈L/s⌉` outputs.
    Same(Same),
    /// The given padding on each axis, before and after.
    Explicit {
        /// Before the first coordinate.
        before: Extents,
        /// After the last coordinate.
        after: Extents,
    },
}

impl Padding {
    /// The padding with which windows of stride 1 have one result for each element: that of an element begins
    /// `kernel/2 + origin` before it. There is one origin for each axis.
    ///
    /// ```
    /// use windowpane_geometry::{Extents, Padding};
    ///
    /// let kernel = Extents::from([3, 4]);
    /// assert_eq!(Padding::around(kernel, &[0, 0])?, [(1, 1), (2, 1)].into());
    /// assert_eq!(Padding::around(kernel, &[1, -2])?, [(2, 0), (0, 3)].into());
    /// assert!(Padding::around(kernel, &[2, 0]).is_err());
    /// # Ok::<(), windowpane_geometry::Error>(())
    /// ```
    pub fn around(kernel: Extents, origin: &[isize]) -> Result<Self, Error> {
        kernel.check_nonzero(Quantity::Kernel)?;
        let rank = kernel.rank();
        if origin.len() != rank {
            return Err(Error::Rank { expected: rank, found: origin.len() });
        }
        let (mut before, mut after) = ([0; AXES], [0; AXES]);
        for (i, &asked) in (AXES - rank..).zip(origin) {
            let kernel = kernel.three(1)[i];
            let reach = (kernel / 2).checked_add_signed(asked).filter(|reach| *reach < kernel);
            let axis = AxisName::of(i);
            before[i] = reach.ok_or(Error::Origin { axis, asked, kernel })?;
            after[i] = kernel - 1 - before[i];
        }
        let extents = |sides| Extents::from_three(rank, sides);
        Ok(Self::Explicit { before: extents(before), after: extents(after) })
    }
}

impl From<Same> for Padding {
    fn from(same: Same) -> Self {
        Self::Same(same)
    }
}

impl From<Extents> for Padding {
    fn from(both: Extents) -> Self {
        Self::Explicit { before: both, after: both }
    }
}

impl From<usize> for Padding {
    fn from(both: usize) -> Self {
        Extents::from(both).into()
    }
}

impl<const N: usize> From<[usize; N]> for Padding
where
    Extents: From<[usize; N]>,
{
    fn from(both: [usize; N]) -> Self {
        Extents::from(both).into()
    }
}

impl<const N: usize> From<[(usize, usize); N]> for Padding
where
    Extents: From<[usize; N]>,
{
    fn from(sides: [(usize, usize); N]) -> Self {
        Self::Explicit { before: sides.map(|s| s.0).into(), after: sides.map(|s| s.1).into() }
    }
}

/// How the windows of a problem are defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Size {
    /// By the size of a window.
    Kernel(Extents),
    /// By the number of windows.
    Outputs(Extents),
}

/// The window options of a user, before they are applied to an input.
///
/// The defaults are stride 1, no dilation, no padding and rounding down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    size: Size,
    stride: Extents,
    dilation: Extents,
    padding: Padding,
    rounding: Rounding,
}

impl Window {
    /// A window with the given number of taps: one number per axis, which is then the rank of the problem, or one
    /// number for every axis.
    pub fn new(kernel: impl Into<Extents>) -> Self {
        Self::sized(Size::Kernel(kernel.into()))
    }

    /// A given number of windows on each axis, for any input: window `o` of `O` covers
    /// `⌊o·L/O⌋ .. ⌈(o+1)·L/O⌉` of `L` coordinates.
    ///
    /// Stride, dilation, padding and rounding follow from that; setting one of them is an error.
    ///
    /// ```
    /// use windowpane_geometry::{Extents, Window};
    ///
    /// let grid = Window::adaptive([7, 2]).over(Extents::from([112, 5]))?;
    /// assert_eq!(grid.output(), Extents::from([7, 2]));
    /// assert_eq!((grid.axis(0).start(1), grid.axis(0).inside(1)), (16, 0..16));
    /// assert_eq!((grid.axis(1).start(1), grid.axis(1).inside(1)), (2, 0..3)); // shares coordinate 2
    /// # Ok::<(), windowpane_geometry::Error>(())
    /// ```
    pub fn adaptive(output: impl Into<Extents>) -> Self {
        Self::sized(Size::Outputs(output.into()))
    }

    fn sized(size: Size) -> Self {
        let (Size::Kernel(extents) | Size::Outputs(extents)) = size;
        let ones = Extents::from_three(extents.rank(), [1; AXES]);
        Self {
            size,
            stride: ones,
            dilation: ones,
            padding: Padding::Valid,
            rounding: Rounding::Floor,
        }
    }

    /// Sets the step between two windows.
    pub fn stride(mut self, stride: impl Into<Extents>) -> Self {
        self.stride = stride.into();
        self
    }

    /// Sets the step between two taps.
    pub fn dilation(mut self, dilation: impl Into<Extents>) -> Self {
        self.dilation = dilation.into();
        self
    }

    /// Sets the padding: `[1, 1]` for both sides, `[(1, 2), (0, 1)]` for before and after,
    /// [`Same`], or [`Padding::Valid`].
    pub fn padding(mut self, padding: impl Into<Padding>) -> Self {
        self.padding = padding.into();
        self
    }

    /// Sets whether a partial last window is dropped or kept.
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.rounding = rounding;
        self
    }

    /// Whether output extents are rounded up.
    pub(crate) fn rounds_up(&self) -> bool {
        self.rounding == Rounding::Ceil
    }

    /// The number of axes; 0 if the size is one number for every axis.
    pub fn rank(&self) -> usize {
        let (Size::Kernel(extents) | Size::Outputs(extents)) = self.size;
        extents.rank()
    }

    /// The taps on each axis; `None` for an adaptive window, whose taps follow from the input.
    pub fn kernel(&self) -> Option<Extents> {
        match self.size {
            Size::Kernel(kernel) => Some(kernel),
            Size::Outputs(_) => None,
        }
    }

    /// Applies the window to an input and checks every number.
    pub fn over(&self, input: Extents) -> Result<Grid, Error> {
        self.check_adaptive()?;
        let rank = input.rank();
        let window = self.of_rank(rank)?;
        let mut axes = [Axis::MISSING; AXES];
        for (i, axis) in axes.iter_mut().enumerate().skip(AXES - rank) {
            let (name, input) = (AxisName::of(i), input.three(1)[i]);
            *axis = match window.size {
                Size::Kernel(kernel) => Axis::new(window.request(i, input, kernel.three(1)[i]))?,
                Size::Outputs(output) => Axis::adaptive(name, input, output.three(1)[i])?,
            };
        }
        Grid::new(rank, axes)
    }

    /// The same window for a problem with `rank` axes, with one number per axis in every option.
    pub fn of_rank(self, rank: usize) -> Result<Self, Error> {
        // A window with its own number of axes says so, rather than its options.
        let expected = if self.rank() == 0 { rank } else { self.rank() };
        if expected != rank {
            return Err(Error::Rank { expected, found: rank });
        }
        let (stride, dilation) = (self.stride.of_rank(rank)?, self.dilation.of_rank(rank)?);
        let size = match self.size {
            Size::Kernel(kernel) => Size::Kernel(kernel.of_rank(rank)?),
            Size::Outputs(outputs) => Size::Outputs(outputs.of_rank(rank)?),
        };
        let padding = match self.padding {
            Padding::Explicit { before, after } => {
                Padding::Explicit { before: before.of_rank(rank)?, after: after.of_rank(rank)? }
            }
            padding => padding,
        };
        Ok(Self { size, stride, dilation, padding, ..self })
    }

    /// The extents of the input over which this window has these numbers of positions: the output of the transposed
    /// convolution. With a stride several inputs have; `extra`, below the stride, says how much longer than the
    /// shortest one it is. [`Same`] gives `L·s`, and allows no `extra`.
    ///
    /// ```
    /// use windowpane_geometry::{Extents, Window};
    ///
    /// let window = Window::new(3).stride(2).padding(1);
    /// assert_eq!(window.transposed([4, 8].into(), [0, 1].into())?, Extents::from([7, 16]));
    /// assert_eq!(window.over([7, 16].into())?.output(), Extents::from([4, 8]));
    /// # Ok::<(), windowpane_geometry::Error>(())
    /// ```
    pub fn transposed(&self, positions: Extents, extra: Extents) -> Result<Extents, Error> {
        let rank = positions.rank();
        let (window, extra) = (self.of_rank(rank)?, extra.of_rank(rank)?);
        let kernel = window.kernel().ok_or(Error::AdaptiveConvolution)?;
        let mut extents = [0; AXES];
        for (i, extent) in extents.iter_mut().enumerate().skip(AXES - rank) {
            let [positions, kernel, extra] = [positions, kernel, extra].map(|all| all.three(1)[i]);
            *extent = Axis::transposed(window.request(i, 0, kernel), positions, extra)?;
        }
        Ok(Extents::from_three(rank, extents))
    }

    /// The options of axis `i` of three.
    fn request(&self, i: usize, input: usize, kernel: usize) -> AxisRequest {
        AxisRequest {
            name: AxisName::of(i),
            input,
            kernel,
            stride: self.stride.three(1)[i],
            dilation: self.dilation.three(1)[i],
            padding: match self.padding {
                Padding::Valid => AxisPadding::Explicit { before: 0, after: 0 },
                Padding::Same(Same::Upper) => AxisPadding::SameUpper,
                Padding::Same(Same::Lower) => AxisPadding::SameLower,
                Padding::Explicit { before, after } => {
                    AxisPadding::Explicit { before: before.three(0)[i], after: after.three(0)[i] }
                }
            },
            rounding: self.rounding,
        }
    }

    /// Refuses options that an adaptive window does not take.
    fn check_adaptive(&self) -> Result<(), Error> {
        let ones = Extents::from_three(self.rank(), [1; AXES]);
        let set = [
            (Quantity::Stride, self.stride != ones),
            (Quantity::Dilation, self.dilation != ones),
            (Quantity::Padding, self.padding != Padding::Valid),
            (Quantity::Rounding, self.rounding != Rounding::Floor),
        ];
        match set.into_iter().find(|(_, is_set)| *is_set) {
            Some((what, _)) if self.kernel().is_none() => Err(Error::Adaptive { what }),
            _ => Ok(()),
        }
    }
}

/// A window applied to an input: the positions of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    rank: usize,
    axes: [Axis; AXES],
}

impl Grid {
    fn new(rank: usize, axes: [Axis; AXES]) -> Result<Self, Error> {
        for (what, of) in [
            (Quantity::Elements, Axis::input as fn(&Axis) -> usize),
            (Quantity::Taps, Axis::kernel),
            (Quantity::Outputs, Axis::output),
        ] {
            let product =
                axes.iter().try_fold(1usize, |product, axis| product.checked_mul(of(axis)));
            // Signed positions must fit too.
            if product.is_none_or(|product| product > isize::MAX as usize) {
                let axis = AxisName::of_largest(axes.each_ref().map(of), &[]);
                let limit = isize::MAX as usize;
                return Err(Error::TooLarge { axis, what, asked: product, limit });
            }
        }
        Ok(Self { rank, axes })
    }

    /// The padding before and after each axis.
    pub fn padding(&self) -> Padding {
        let of = |side: fn(&Axis) -> usize| {
            Extents::from_three(self.rank, self.axes.each_ref().map(side))
        };
        Padding::Explicit { before: of(Axis::before), after: of(Axis::after) }
    }

    /// The number of axes of the problem, without those added.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Axis `i` of the problem's own axes.
    ///
    /// # Panics
    /// If `i` is not below [`rank`](Self::rank).
    pub fn axis(&self, i: usize) -> &Axis {
        &self.axes[AXES - self.rank..][i]
    }

    /// Depth, height and width; missing axes have extent 1.
    pub fn axes(&self) -> &[Axis; AXES] {
        &self.axes
    }

    /// The extents of the input.
    pub fn input(&self) -> Extents {
        Extents::from_three(self.rank, self.axes.map(|axis| axis.input()))
    }

    /// The extents of the output.
    pub fn output(&self) -> Extents {
        Extents::from_three(self.rank, self.axes.map(|axis| axis.output()))
    }

    /// The extents of the window.
    pub fn kernel(&self) -> Extents {
        Extents::from_three(self.rank, self.axes.map(|axis| axis.kernel()))
    }

    /// The number of taps of one window, inside the input or not; of the longest if windows differ.
    pub fn taps(&self) -> usize {
        self.axes.iter().map(|axis| axis.kernel()).product()
    }

    /// Whether the problem was defined by the number of windows, so that sizes and steps follow from the
    /// input.
    pub fn is_adaptive(&self) -> bool {
        self.axes.iter().any(Axis::is_adaptive)
    }

    /// Whether the windows of some axis differ in length or step.
    pub fn is_uneven(&self) -> bool {
        self.axes.iter().any(Axis::is_uneven)
    }

    /// The number of coordinates of the input plane.
    pub fn input_plane(&self) -> usize {
        self.axes.iter().map(|axis| axis.input()).product()
    }

    /// The number of windows over the input plane.
    pub fn output_plane(&self) -> usize {
        self.axes.iter().map(|axis| axis.output()).product()
    }

    /// The position of a coordinate inside the row-major input plane.
    pub fn plane_index(&self, [d, h, w]: [usize; AXES]) -> usize {
        (d * self.axes[1].input() + h) * self.axes[2].input() + w
    }

    /// The position of a window inside the row-major output plane.
    pub fn output_index(&self, [d, h, w]: [usize; AXES]) -> usize {
        (d * self.axes[1].output() + h) * self.axes[2].output() + w
    }
}
