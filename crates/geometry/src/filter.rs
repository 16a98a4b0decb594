use core::fmt;

use crate::{
    AXES, Axis, AxisName, Error, Extents, Grid, LIMIT, Layout, Padding, Quantity, Shape, Window,
};

/// The memory layout of filters, named by its 2-D form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FilterLayout {
    /// Count, kernel, channels: `F[D]HWC`.
    #[default]
    Fhwc,
    /// Kernel, channels, count: `[D]HWCF`.
    Hwcf,
    /// Count, channels, kernel: `FC[D]HW`.
    Fchw,
}

impl fmt::Display for FilterLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fhwc => "fhwc",
            Self::Hwcf => "hwcf",
            Self::Fchw => "fchw",
        })
    }
}

/// The shape of filters, in any layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    count: usize,
    channels: usize,
    kernel: Extents,
}

impl Filter {
    /// A checked shape of `count` filters, each over the `channels` channels of one group: no number is
    /// 0, and the number of elements is not too large.
    pub fn new(count: usize, channels: usize, kernel: Extents) -> Result<Self, Error> {
        for (what, value) in [(Quantity::Filters, count), (Quantity::FilterChannels, channels)] {
            if value == 0 {
                return Err(Error::Zero { axis: None, what });
            }
        }
        kernel.check_nonzero(Quantity::Kernel)?;
        let elements = kernel
            .as_slice()
            .iter()
            .chain(&[channels, count])
            .try_fold(1usize, |product, &extent| product.checked_mul(extent));
        match elements {
            Some(elements) if elements <= isize::MAX as usize => {
                Ok(Self { count, channels, kernel })
            }
            asked => Err(Error::TooLarge {
                axis: AxisName::of_largest(kernel.three(1), &[count, channels]),
                what: Quantity::FilterElements,
                asked,
                limit: isize::MAX as usize,
            }),
        }
    }

    /// The shape of filters in an array with these dimensions, in memory order, in a layout.
    pub fn from_dims(dims: &[usize], layout: FilterLayout) -> Result<Self, Error> {
        let rank = dims.len().saturating_sub(2);
        if rank == 0 || rank > AXES {
            return Err(Error::RankUnsupported { found: rank });
        }
        let at = Positions::of(layout, rank);
        let kernel = Extents::try_from(&dims[at.kernel..at.kernel + rank])?;
        Self::new(dims[at.count], dims[at.channels], kernel)
    }

    /// The dimensions in memory order.
    pub fn dims(&self, layout: FilterLayout) -> impl ExactSizeIterator<Item = usize> + use<> {
        let rank = self.kernel.rank();
        let at = Positions::of(layout, rank);
        let mut dims = [0; AXES + 2];
        dims[at.count] = self.count;
        dims[at.channels] = self.channels;
        dims[at.kernel..at.kernel + rank].copy_from_slice(self.kernel.as_slice());
        dims.into_iter().take(rank + 2)
    }

    /// The number of filters, `NF`.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The channels that each filter sees, `C / groups`.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// The taps on each axis.
    pub fn kernel(&self) -> Extents {
        self.kernel
    }

    /// The taps of one filter in one channel.
    pub fn taps(&self) -> usize {
        self.kernel.as_slice().iter().product()
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.count * self.channels * self.taps()
    }

    /// The strides in memory.
    pub fn strides(&self, layout: FilterLayout) -> FilterStrides {
        let [_, height, width] = self.kernel.three(1);
        let taps = self.taps();
        let (count, channel, tap) = match layout {
            FilterLayout::Fhwc => (taps * self.channels, 1, self.channels),
            FilterLayout::Hwcf => (1, self.count, self.channels * self.count),
            FilterLayout::Fchw => (taps * self.channels, taps, 1),
        };
        FilterStrides { count, channel, kernel: [height * width * tap, width * tap, tap] }
    }
}

/// The position of each dimension of the filters.
struct Positions {
    count: usize,
    channels: usize,
    /// The first of the kernel's dimensions.
    kernel: usize,
}

impl Positions {
    fn of(layout: FilterLayout, rank: usize) -> Self {
        match layout {
            FilterLayout::Fhwc => Self { count: 0, channels: rank + 1, kernel: 1 },
            FilterLayout::Hwcf => Self { count: rank + 1, channels: rank, kernel: 0 },
            FilterLayout::Fchw => Self { count: 0, channels: 1, kernel: 2 },
        }
    }
}

/// Strides: the number of elements to the next neighbour along each dimension of the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilterStrides {
    /// To the next filter.
    pub count: usize,
    /// To the next channel.
    pub channel: usize,
    /// To the next tap in depth, height and width.
    pub kernel: [usize; AXES],
}

impl FilterStrides {
    /// The offset of the weight of filter `f` for channel `c` of its group at `tap`.
    pub fn offset(&self, f: usize, c: usize, tap: [usize; AXES]) -> usize {
        let kernel: usize = tap.iter().zip(self.kernel).map(|(t, stride)| t * stride).sum();
        f * self.count + c * self.channel + kernel
    }
}

/// A convolution problem: filters applied to every sample of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    input: Shape,
    output: Shape,
    filter: Filter,
    grid: Grid,
    groups: usize,
    layout: Layout,
    filter_layout: FilterLayout,
}

impl Convolution {
    /// Applies the window of the filters to an input and checks every number.
    ///
    /// The window's kernel must be that of the filters, `groups` must divide both channel counts, and a
    /// filter must have the channels of one group. Output extents are rounded down.
    pub fn new(
        input: Shape,
        filter: Filter,
        window: &Window,
        groups: usize,
        layout: Layout,
        filter_layout: FilterLayout,
    ) -> Result<Self, Error> {
        if window.rounds_up() {
            return Err(Error::RoundedUp);
        }
        let grid = window.over(input.space())?;
        let kernel = window.kernel().ok_or(Error::AdaptiveConvolution)?;
        same_kernel(kernel.of_rank(grid.rank())?, filter.kernel())?;
        if groups == 0 {
            return Err(Error::Zero { axis: None, what: Quantity::Groups });
        }
        for (what, count) in
            [(Quantity::Channels, input.channels()), (Quantity::Filters, filter.count())]
        {
            if count % groups != 0 {
                return Err(Error::Groups { what, count, groups });
            }
        }
        let expected = input.channels() / groups;
        if filter.channels() != expected {
            let (found, channels) = (filter.channels(), input.channels());
            return Err(Error::FilterChannels { found, expected, channels, groups });
        }
        let output = Shape::new(input.batch(), filter.count(), grid.output())?;
        Ok(Self { input, output, filter, grid, groups, layout, filter_layout })
    }

    /// The shape of the input.
    pub fn input(&self) -> Shape {
        self.input
    }

    /// The shape of the output; its channel count is the number of filters.
    pub fn output(&self) -> Shape {
        self.output
    }

    /// The filters.
    pub fn filter(&self) -> Filter {
        self.filter
    }

    /// The positions of the window.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Refuses sums of so many products of 8-bit integers that they may not fit in 32 bits: more than 131071 terms of up
    /// to 128·128.
    ///
    /// ```
    /// # use windowpane_geometry::{Convolution, Extents, Filter, FilterLayout, Layout, Shape, Window};
    /// let convolution = |channels: usize| {
    ///     let image = Shape::new(1, channels, Extents::from([8, 8]))?;
    ///     let filter = Filter::new(1, channels, Extents::from([3, 3]))?;
    ///     let (window, layout) = (Window::new([3, 3]), Layout::ChannelsLast);
    ///     Convolution::new(image, filter, &window, 1, layout, FilterLayout::Fhwc)
    /// };
    /// assert!(convolution(131_071 / 9)?.check_int8().is_ok());
    /// assert!(convolution(131_071 / 9 + 1)?.check_int8().is_err());
    /// # Ok::<(), windowpane_geometry::Error>(())
    /// ```
    pub fn check_int8(&self) -> Result<(), Error> {
        const LARGEST_PRODUCT: usize = 1 << 14;
        let limit = LIMIT / LARGEST_PRODUCT;
        match self.filter.taps().saturating_mul(self.filter.channels()) {
            terms if terms <= limit => Ok(()),
            terms => {
                let (axis, what, asked) = (None, Quantity::Terms, Some(terms));
                Err(Error::TooLarge { axis, what, asked, limit })
            }
        }
    }

    /// The number of groups that both channel counts are divided into.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// The layout of input and output.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The layout of the filters.
    pub fn filter_layout(&self) -> FilterLayout {
        self.filter_layout
    }

    /// The same convolution over tensors in other layouts.
    #[must_use]
    pub fn with_layouts(self, layout: Layout, filter_layout: FilterLayout) -> Self {
        Self { layout, filter_layout, ..self }
    }

    /// The same convolution with wider pixels, if windows lie side by side along the last axis: the pixels of a row of
    /// a window are then one pixel with as many times the channels, and every element stays where it is in memory.
    ///
    /// `None` if windows overlap, leave gaps or reach into padding there, or if pixels are not contiguous.
    pub fn merged(&self) -> Option<Self> {
        let axes = self.grid.axes();
        let last = &axes[AXES - 1];
        let wide = last.kernel();
        let side_by_side = wide > 1
            && last.stride() == wide
            && last.dilation() == 1
            && last.before() + last.after() == 0
            && last.input() == last.output() * wide;
        let contiguous = self.layout == Layout::ChannelsLast
            && self.filter_layout != FilterLayout::Fchw
            && self.groups == 1;
        if !side_by_side || !contiguous {
            return None;
        }
        let with_last = |of: fn(&Axis) -> usize, last: usize| {
            let [depth, height, _] = axes.each_ref().map(of);
            Extents::from_three(self.grid.rank(), [depth, height, last])
        };
        let kernel = with_last(Axis::kernel, 1);
        let window = Window::new(kernel)
            .stride(with_last(Axis::stride, 1))
            .dilation(with_last(Axis::dilation, 1))
            .padding(self.grid.padding());
        let channels = self.filter.channels * wide;
        let space = with_last(Axis::input, last.output());
        let input = Shape::new(self.input.batch(), channels, space).ok()?;
        let filter = Filter::new(self.filter.count, channels, kernel).ok()?;
        Self::new(input, filter, &window, 1, self.layout, self.filter_layout).ok()
    }

    /// The same convolution over only the pixels that it reads, if windows have one tap and skip pixels: those at every
    /// stride-th position are the whole input.
    ///
    /// `None` if windows have several taps, read every pixel or reach into padding.
    pub fn sampled(&self) -> Option<Self> {
        let axes = self.grid.axes();
        let inside =
            |axis: &Axis| axis.before() == 0 && axis.windows_inside(0).len() == axis.output();
        let skips = |axis: &Axis| axis.stride() > 1 && axis.input() > axis.output();
        if self.filter.taps() > 1 || !axes.iter().all(inside) || !axes.iter().any(skips) {
            return None;
        }
        let read =
            Shape::new(self.input.batch(), self.input.channels(), self.output.space()).ok()?;
        let window = Window::new(self.filter.kernel);
        Self::new(read, self.filter, &window, self.groups, self.layout, self.filter_layout).ok()
    }

    /// The same convolution over blocks of pixels, which a window moves by in one step: each is one pixel with the channels of
    /// all its pixels, one pixel after the other, so that windows have a stride of 1. Its layouts are
    /// [`ChannelsLast`](Layout::ChannelsLast) and [`Fhwc`](FilterLayout::Fhwc).
    ///
    /// Zeros make the channels a multiple of `multiple`, and filters whole blocks. The padding of axes with a stride becomes
    /// a part of the blocks, as zeros.
    ///
    /// `None` if windows do not move by several pixels, have fewer taps than their stride, or dilated ones; if there are
    /// groups or no outputs; or if the blocks have too many elements.
    pub fn space_to_depth(&self, multiple: usize) -> Option<Self> {
        let axes = self.grid.axes();
        let in_order = |axis: &Axis| {
            axis.stride() == 1 || (axis.dilation() == 1 && axis.kernel() >= axis.stride())
        };
        let apart = axes.iter().any(|axis| axis.stride() > 1);
        if !apart || !axes.iter().all(in_order) || self.groups > 1 || self.output.elements() == 0 {
            return None;
        }
        let of =
            |of: fn(&Axis) -> usize| Extents::from_three(self.grid.rank(), axes.each_ref().map(of));
        let kernel = of(|axis| axis.kernel().div_ceil(axis.stride()));
        let space = of(|axis| match axis.stride() {
            1 => axis.input(),
            stride => axis.output() + axis.kernel().div_ceil(stride) - 1,
        });
        let before = of(|axis| if axis.stride() == 1 { axis.before() } else { 0 });
        let after = of(|axis| if axis.stride() == 1 { axis.after() } else { 0 });
        let padding = Padding::Explicit { before, after };
        let window = Window::new(kernel).dilation(of(Axis::dilation)).padding(padding);
        let channels =
            axes.iter().map(Axis::stride).fold(self.filter.channels, usize::saturating_mul);
        let channels = channels.checked_next_multiple_of(multiple)?;
        let input = Shape::new(self.input.batch(), channels, space).ok()?;
        let filter = Filter::new(self.filter.count, channels, kernel).ok()?;
        Self::new(input, filter, &window, 1, Layout::ChannelsLast, FilterLayout::Fhwc).ok()
    }

    /// The first input channel that filter `f` sees.
    pub fn first_channel(&self, f: usize) -> usize {
        f / (self.filter.count / self.groups) * self.filter.channels
    }
}

fn same_kernel(window: Extents, filter: Extents) -> Result<(), Error> {
    if window.rank() != filter.rank() {
        return Err(Error::Rank { expected: window.rank(), found: filter.rank() });
    }
    let pairs = window.three(1).into_iter().zip(filter.three(1));
    for (i, (window, filter)) in pairs.enumerate() {
        if window != filter {
            return Err(Error::FilterKernel { axis: AxisName::of(i), window, filter });
        }
    }
    Ok(())
}
