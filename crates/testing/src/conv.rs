use proptest::prelude::*;
use windowpane::{Activation, Conv, Element};
use windowpane_geometry::{
    Convolution, DType, Extents, Filter, FilterLayout, Layout, Rounding, Shape, Window,
};

use crate::pool::{axis, padding_kind, window_of};
use crate::{Fill, Flavour};

/// A convolution problem and its numbers.
#[derive(Clone, Copy, Debug)]
pub struct ConvCase {
    /// The samples.
    pub batch: usize,
    /// The groups.
    pub groups: usize,
    /// The channels of a group.
    pub channels: usize,
    /// The filters of a group.
    pub filters: usize,
    /// The spatial extents.
    pub space: Extents,
    /// The window.
    pub window: Window,
    /// The layout of input and output.
    pub layout: Layout,
    /// The layout of the filters.
    pub filter_layout: FilterLayout,
    /// The activation.
    pub activation: Activation,
    /// Whether a bias is added.
    pub bias: bool,
    /// Whether a residual is added.
    pub residual: bool,
    /// The numbers.
    pub fill: Fill,
}

/// The tensors of a convolution, each of which has numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Role {
    Input,
    Filter,
    Bias,
    Residual,
    OutputGradient,
}

impl ConvCase {
    /// Any problem that geometry accepts, small enough to run many: channel counts that are and are not multiples of
    /// vectors and tiles, depthwise, and empty batches.
    pub fn any() -> impl Strategy<Value = Self> {
        let problem = (1..=3usize).prop_flat_map(|rank| {
            (proptest::collection::vec(axis(), rank), padding_kind(), Just(Rounding::Floor))
        });
        let count = || prop_oneof![4 => 1..=5usize, 1 => Just(8), 1 => Just(16), 1 => 17..=40usize];
        // One group, several groups of few channels, one channel per group, and several groups of 8 channels.
        let counts = prop_oneof![
            3 => (Just(1), count(), count()),
            1 => (2..=4usize, 1..=5usize, 1..=5usize),
            1 => (count(), Just(1), Just(1)),
            1 => (2..=3usize, Just(8), Just(16)),
        ];
        let layouts = (
            prop_oneof![Just(Layout::ChannelsLast), Just(Layout::ChannelsFirst)],
            prop_oneof![
                Just(FilterLayout::Fhwc),
                Just(FilterLayout::Hwcf),
                Just(FilterLayout::Fchw)
            ],
        );
        let batch = prop_oneof![1 => Just(0usize), 9 => 1..=3usize];
        let epilogue = (activation(), any::<bool>(), any::<bool>());
        (problem, batch, counts, layouts, epilogue, Fill::any()).prop_filter_map(
            "the window does not fit",
            |((axes, padding, rounding), batch, counts, layouts, epilogue, fill)| {
                let (space, window) = window_of(&axes, padding, rounding);
                let (groups, channels, filters) = counts;
                let (layout, filter_layout) = layouts;
                let (activation, bias, residual) = epilogue;
                let case = Self {
                    batch,
                    groups,
                    channels,
                    filters,
                    space,
                    window,
                    layout,
                    filter_layout,
                    activation,
                    bias,
                    residual,
                    fill,
                };
                case.convolution().ok().map(|_| case)
            },
        )
    }

    /// Problems with aligned channels, as matrix units and tensor copies require: those of [`any`](Self::any), with
    /// other counts.
    pub fn aligned() -> impl Strategy<Value = Self> {
        let count = || proptest::sample::select(vec![8usize, 16, 24, 64, 72, 128, 136]);
        let counts = prop_oneof![
            3 => (Just(1), count(), count()),
            1 => (2..=3usize, Just(64), proptest::sample::select(vec![8usize, 40, 64])),
        ];
        let layout = prop_oneof![2 => Just(Layout::ChannelsLast), 1 => Just(Layout::ChannelsFirst)];
        (Self::any(), counts, layout).prop_filter_map(
            "the window does not fit",
            |(case, (groups, channels, filters), layout)| {
                let case = Self { groups, channels, filters, layout, ..case };
                case.convolution().ok().map(|_| case)
            },
        )
    }

    /// Filters of several taps, which are contiguous, and several channels: those of [`any`](Self::any),
    /// [`aligned`](Self::aligned) and [`side_by_side`](Self::side_by_side).
    pub fn contiguous_taps() -> impl Strategy<Value = Self> {
        prop_oneof![Self::any(), Self::aligned(), Self::side_by_side()].prop_filter_map(
            "a filter has one tap or one channel",
            |case| {
                let case = Self { filter_layout: FilterLayout::Fchw, ..case };
                let filter = case.convolution().ok()?.filter();
                (filter.taps() > 1 && filter.channels() > 1).then_some(case)
            },
        )
    }

    /// Windows of one tap that skip pixels: those of [`any`](Self::any), with other windows.
    pub fn skipping() -> impl Strategy<Value = Self> {
        (Self::any(), proptest::collection::vec(1..=4usize, 3)).prop_filter_map(
            "no pixel is skipped",
            |(case, strides)| {
                let rank = case.space.rank();
                let strides = Extents::try_from(&strides[..rank]).ok()?;
                let window = Window::new(Extents::from(1).of_rank(rank).ok()?).stride(strides);
                let case = Self { window, ..case };
                case.convolution().ok()?.sampled().map(|_| case)
            },
        )
    }

    /// Windows that are several pixels apart and skip none: those of [`any`](Self::any), with other windows.
    pub fn apart() -> impl Strategy<Value = Self> {
        let axis = (1..=4usize, 0..=3usize, 0..=3usize);
        let many = proptest::sample::select(vec![8usize, 12, 16, 24]);
        let channels = prop_oneof![3 => 1..=6usize, 1 => many];
        (Self::any(), proptest::collection::vec(axis, 3), channels).prop_filter_map(
            "there are no blocks",
            |(case, axes, channels)| {
                let of = |of: fn(&(usize, usize, usize)) -> usize| {
                    let all: Vec<_> = axes.iter().map(of).collect();
                    Extents::try_from(&all[..case.space.rank()]).ok()
                };
                let window = Window::new(of(|(stride, more, _)| stride + more)?)
                    .stride(of(|(stride, ..)| *stride)?)
                    .padding(of(|(_, _, padding)| *padding)?);
                let case = Self { window, groups: 1, channels, ..case };
                case.convolution().ok()?.space_to_depth(8).map(|_| case)
            },
        )
    }

    /// Problems of [`aligned`](Self::aligned) whose windows lie side by side along the last axis, without padding.
    pub fn side_by_side() -> impl Strategy<Value = Self> {
        let others = (1..=3usize, 1..=2usize, 0..=1usize);
        (Self::aligned(), 2..=4usize, 1..=5usize, others).prop_filter_map(
            "the window does not fit",
            |(case, wide, windows, (kernel, stride, padding))| {
                let mut space = case.space.as_slice().to_vec();
                let last = space.len() - 1;
                space[last] = wide * windows;
                let with_last = |other: usize, of_last: usize| {
                    let all = (0..=last).map(|i| if i == last { of_last } else { other });
                    Extents::try_from(&*all.collect::<Vec<_>>()).ok()
                };
                let window = Window::new(with_last(kernel, wide)?)
                    .stride(with_last(stride, wide)?)
                    .padding(with_last(padding, 0)?);
                let case = Self { space: Extents::try_from(&*space).ok()?, window, ..case };
                case.convolution().ok().map(|_| case)
            },
        )
    }

    /// Problems of [`aligned`](Self::aligned) with images so large that all sums of a weight gradient are long: at
    /// least 64 terms for each tap that reads the image at all.
    pub fn many_windows() -> impl Strategy<Value = Self> {
        (Self::aligned(), 1..=6usize).prop_filter_map("the sums are short", |(case, times)| {
            let space: Vec<usize> = case.space.as_slice().iter().map(|x| x * times).collect();
            let space = Extents::try_from(&*space).ok()?;
            let case = Self { space, ..case };
            let problem = case.convolution().ok()?;
            let fewest = problem.grid().axes().each_ref().map(|axis| {
                let windows = (0..axis.kernel()).map(|tap| axis.windows_inside(tap).len());
                windows.filter(|windows| *windows > 0).min().unwrap_or(0)
            });
            let is_long = problem.input().batch() * fewest.iter().product::<usize>() >= 64;
            // The reference has to compute them too.
            let filter = problem.filter();
            let products = problem.output().elements() * filter.taps() * filter.channels();
            (is_long && products < 1 << 26).then_some(case)
        })
    }

    /// Problems with groups of one or a few channels, whose total number of channels is a multiple of 8: those of
    /// [`any`](Self::any), with other counts and layouts.
    pub fn few_a_group() -> impl Strategy<Value = Self> {
        let few = proptest::sample::select(vec![
            (1usize, 8usize),
            (1, 24),
            (2, 4),
            (4, 6),
            (8, 2),
            (8, 4),
        ]);
        let layout = prop_oneof![
            Just(FilterLayout::Fhwc),
            Just(FilterLayout::Hwcf),
            Just(FilterLayout::Fchw)
        ];
        (Self::any(), few, layout, 1..=5usize).prop_filter_map(
            "the window does not fit",
            |(case, (channels, groups), filter_layout, times)| {
                let (layout, filters) = (Layout::ChannelsLast, channels);
                // More windows than one block has.
                let space: Vec<usize> = case.space.as_slice().iter().map(|x| x * times).collect();
                let space = Extents::try_from(&*space).ok().filter(|_| case.space.rank() < 3);
                let space = space.unwrap_or(case.space);
                let case = Self { space, groups, channels, filters, layout, filter_layout, ..case };
                case.convolution().ok().map(|_| case)
            },
        )
    }

    /// Problems whose channels and filters are multiples of 8 in total, but mostly not in each group: those of
    /// [`any`](Self::any), with other counts. A group's first channel is then not aligned for copies of 16 bytes.
    pub fn odd_groups() -> impl Strategy<Value = Self> {
        let count = || proptest::sample::select(vec![1usize, 2, 3, 4, 6, 12, 20]);
        let same = count().prop_map(|channels| (channels, channels));
        let counts = prop_oneof![2 => same, 1 => (count(), count())];
        (Self::any(), counts, 1..=2usize, 1..=4usize).prop_filter_map(
            "the window does not fit",
            |(case, (channels, filters), eights, times)| {
                // The fewest groups with a multiple of 8 channels in total, or twice as many.
                let whole = |count: usize| 8 >> count.trailing_zeros().min(3);
                let groups = (whole(channels).max(whole(filters)) * eights).max(2);
                // More windows than one block has.
                let space: Vec<usize> = case.space.as_slice().iter().map(|x| x * times).collect();
                let space = Extents::try_from(&*space).ok().filter(|_| case.space.rank() < 3);
                let space = space.unwrap_or(case.space);
                let case = Self { space, groups, channels, filters, ..case };
                case.convolution().ok().map(|_| case)
            },
        )
    }

    /// The problem, checked by geometry.
    pub fn convolution(&self) -> Result<Convolution, windowpane_geometry::Error> {
        let input = Shape::new(self.batch, self.groups * self.channels, self.space)?;
        let filters = self.groups * self.filters;
        let kernel = self.window.kernel().ok_or(windowpane_geometry::Error::AdaptiveConvolution)?;
        let filter = Filter::new(filters, self.channels, kernel)?;
        let (layout, filter_layout) = (self.layout, self.filter_layout);
        Convolution::new(input, filter, &self.window, self.groups, layout, filter_layout)
    }

    /// The problem, which geometry has accepted.
    ///
    /// # Panics
    /// If geometry refuses a hand-written case.
    pub fn problem(&self) -> Convolution {
        self.convolution().expect("geometry accepts the case")
    }

    /// The operator.
    pub fn conv(&self) -> Conv {
        Conv::with_window(self.window)
            .groups(self.groups)
            .layout(self.layout)
            .filter_layout(self.filter_layout)
            .activation(self.activation)
    }

    /// The dimensions of a tensor in memory order.
    pub fn dims(&self, role: Role) -> Vec<usize> {
        let problem = self.problem();
        match role {
            Role::Input => problem.input().dims(self.layout).collect(),
            Role::Filter => problem.filter().dims(self.filter_layout).collect(),
            Role::Bias => vec![problem.filter().count()],
            Role::Residual | Role::OutputGradient => problem.output().dims(self.layout).collect(),
        }
    }

    /// The elements of a tensor. Only the input and the output gradient have NaN and infinities: SEMANTICS 6.6 leaves
    /// open what a weight that is not finite gives over the padding.
    pub fn elements<T: Element>(&self, role: Role) -> Vec<T> {
        let len = self.dims(role).iter().product();
        let fill = self.fill_of(role);
        // Products, and their sums, must be finite in f16 too.
        let scale = match (T::DTYPE, role) {
            (_, Role::Input) => 1.0,
            (DType::F16, _) => 1.0 / 64.0,
            _ => 1.0,
        };
        let elements = fill.elements::<T>(len);
        elements.into_iter().map(|x| T::from_f64(x.to_f64() * scale)).collect()
    }

    fn fill_of(&self, role: Role) -> Fill {
        let Fill { flavour, seed } = self.fill;
        let flavour = match (flavour, role) {
            (Flavour::Special, Role::Filter | Role::Bias | Role::Residual) => Flavour::Ties,
            _ => flavour,
        };
        Fill { flavour, seed: seed.wrapping_add((role as u64) << 32) }
    }
}

fn activation() -> impl Strategy<Value = Activation> {
    prop_oneof![
        3 => Just(Activation::None),
        1 => Just(Activation::Relu),
        1 => Just(Activation::Relu6),
        1 => Just(Activation::Gelu),
        1 => Just(Activation::Silu),
        1 => prop_oneof![Just(0.01f32), Just(0.3), Just(-2.0)].prop_map(Activation::Leaky),
    ]
}
