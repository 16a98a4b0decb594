use proptest::prelude::*;
use windowpane_geometry::{Extents, Layout, Padding, Pooling, Rounding, Same, Shape, Window};

use crate::Fill;

/// A pooling problem and its input.
#[derive(Clone, Copy, Debug)]
pub struct PoolCase {
    /// The samples.
    pub batch: usize,
    /// The channels.
    pub channels: usize,
    /// The spatial extents.
    pub space: Extents,
    /// The window.
    pub window: Window,
    /// The layout.
    pub layout: Layout,
    /// The elements.
    pub fill: Fill,
}

impl PoolCase {
    /// Any problem, small enough to run many.
    pub fn any() -> impl Strategy<Value = Self> {
        prop_oneof![2 => Self::odd(), 1 => Self::overlapping()]
    }

    /// Typical problems: overlapping and large windows, on rows whose length is or is not a multiple of the
    /// vector width.
    fn overlapping() -> impl Strategy<Value = Self> {
        let axis = |longest: usize| {
            let input = prop_oneof![Just(8), Just(12), Just(16), Just(24), Just(32), 5..=33usize];
            let numbers = (input, 1..=longest, 1..=3usize, any::<[usize; 2]>());
            numbers.prop_map(move |(input, kernel, stride, [before, after])| AxisCase {
                input: input.min(3 * longest),
                kernel,
                stride: stride.min(kernel),
                dilation: 1,
                before: before % kernel,
                after: after % kernel,
            })
        };
        let axes = (1..=3usize).prop_flat_map(move |rank| {
            proptest::collection::vec(axis([40, 20, 6][rank - 1]), rank)
        });
        let rounding = prop_oneof![Just(Rounding::Floor), Just(Rounding::Ceil)];
        let layout = prop_oneof![Just(Layout::ChannelsLast), Just(Layout::ChannelsFirst)];
        let channels = prop_oneof![1..=4usize, Just(8)];
        (axes, rounding, 1..=2usize, channels, layout, Fill::any()).prop_filter_map(
            "the window does not fit",
            |(axes, rounding, batch, channels, layout, fill)| {
                let of = |f| extents(&axes, f);
                let window = Window::new(of(|a| a.kernel))
                    .stride(of(|a| a.stride))
                    .padding(Padding::Explicit { before: of(|a| a.before), after: of(|a| a.after) })
                    .rounding(rounding);
                let case = Self { batch, channels, space: of(|a| a.input), window, layout, fill };
                case.pooling().ok().map(|_| case)
            },
        )
    }

    /// Any problem that geometry accepts, including adaptive windows, ties, NaN, infinities, empty windows,
    /// empty batches and kernels longer than their input.
    fn odd() -> impl Strategy<Value = Self> {
        let problem = (1..=3usize).prop_flat_map(|rank| {
            let axes = proptest::collection::vec(axis(), rank);
            let adaptive = prop_oneof![3 => Just(false), 1 => Just(true)];
            let rounding = prop_oneof![Just(Rounding::Floor), Just(Rounding::Ceil)];
            (axes, padding_kind(), rounding, adaptive)
        });
        let layout = prop_oneof![Just(Layout::ChannelsLast), Just(Layout::ChannelsFirst)];
        // Channel counts that are and are not multiples of the vector width.
        let channels = prop_oneof![1..=5usize, Just(8), Just(16), Just(24)];
        let batch = prop_oneof![1 => Just(0usize), 9 => 1..=3usize];
        (problem, batch, channels, layout, Fill::any()).prop_filter_map(
            "the window does not fit",
            |((axes, padding, rounding, adaptive), batch, channels, layout, fill)| {
                let (space, asked) = window_of(&axes, padding, rounding);
                // Uses the kernel's numbers as window counts.
                let taps = extents(&axes, |axis| axis.kernel);
                let window = if adaptive { Window::adaptive(taps) } else { asked };
                let case = Self { batch, channels, space, window, layout, fill };
                case.pooling().ok().map(|_| case)
            },
        )
    }

    /// The problem, checked by geometry.
    pub fn pooling(&self) -> Result<Pooling, windowpane_geometry::Error> {
        let shape = Shape::new(self.batch, self.channels, self.space)?;
        Pooling::new(shape, &self.window, self.layout)
    }

    /// The problem, which geometry has accepted.
    ///
    /// # Panics
    /// If geometry refuses a hand-written case.
    pub fn problem(&self) -> Pooling {
        self.pooling().expect("geometry accepts the case")
    }

    /// The dimensions of the input in memory order.
    pub fn dims(&self) -> Vec<usize> {
        let shape = Shape::new(self.batch, self.channels, self.space);
        shape.expect("the case was built from a shape").dims(self.layout).collect()
    }

    /// The elements of the input.
    pub fn elements<T: windowpane::Element>(&self) -> Vec<T> {
        self.fill.elements(self.dims().iter().product())
    }
}

/// The extents and the window described by axes.
pub(crate) fn window_of(
    axes: &[AxisCase],
    padding: PaddingKind,
    rounding: Rounding,
) -> (Extents, Window) {
    let of = |f| extents(axes, f);
    let padding = match padding {
        PaddingKind::Explicit => {
            Padding::Explicit { before: of(|a| a.before), after: of(|a| a.after) }
        }
        PaddingKind::Valid => Padding::Valid,
        PaddingKind::Same(same) => Padding::Same(same),
    };
    let window = Window::new(of(|a| a.kernel))
        .stride(of(|a| a.stride))
        .dilation(of(|a| a.dilation))
        .padding(padding)
        .rounding(rounding);
    (of(|a| a.input), window)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AxisCase {
    input: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    before: usize,
    after: usize,
}

/// One number of each axis.
fn extents(axes: &[AxisCase], of: fn(&AxisCase) -> usize) -> Extents {
    let numbers: Vec<_> = axes.iter().map(of).collect();
    Extents::try_from(&*numbers).expect("one to three axes")
}

pub(crate) fn axis() -> impl Strategy<Value = AxisCase> {
    // Mostly common window sizes, sometimes a long one.
    let kernel = prop_oneof![6 => 1..=4usize, 1 => 5..=13usize];
    let padding = || prop_oneof![4 => 0..=2usize, 1 => 3..=9usize];
    (1..=11usize, kernel, 1..=4usize, 1..=3usize, padding(), padding()).prop_map(
        |(input, kernel, stride, dilation, before, after)| AxisCase {
            input,
            kernel,
            stride,
            dilation,
            before,
            after,
        },
    )
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum PaddingKind {
    Explicit,
    Valid,
    Same(Same),
}

pub(crate) fn padding_kind() -> impl Strategy<Value = PaddingKind> {
    prop_oneof![
        3 => Just(PaddingKind::Explicit),
        1 => Just(PaddingKind::Valid),
        1 => Just(PaddingKind::Same(Same::Upper)),
        1 => Just(PaddingKind::Same(Same::Lower)),
    ]
}
