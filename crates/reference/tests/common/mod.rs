//! Shared by the tests: strategies for problems and data, and windows enumerated tap by tap.

#![allow(dead_code, reason = "each test binary uses its own part")]

use half::{bf16, f16};
use proptest::prelude::*;
use windowpane_geometry::{
    AXES, Axis, Divisor, Extents, Grid, IndexBase, Layout, Padding, Pooling, Rounding, Same, Shape,
    Window,
};
use windowpane_reference::Scalar;

pub(crate) type Position = [usize; AXES];

fn extents(numbers: &[usize]) -> Extents {
    Extents::try_from(numbers).unwrap()
}

/// A window and the extents that it is applied to. `longest` bounds the extent of a 1-D problem; problems with more
/// axes are smaller.
pub(crate) fn windows(longest: usize) -> impl Strategy<Value = (Window, Extents)> {
    prop_oneof![windows_rounded(longest, Rounding::Floor), windows_rounded(longest, Rounding::Ceil)]
}

/// Windows of a convolution, which has no ceil rounding.
pub(crate) fn floored_windows(longest: usize) -> impl Strategy<Value = (Window, Extents)> {
    windows_rounded(longest, Rounding::Floor)
}

fn windows_rounded(longest: usize, rounding: Rounding) -> impl Strategy<Value = (Window, Extents)> {
    (1..=AXES)
        .prop_flat_map(move |rank| {
            let longest = [longest, 9, 6][rank - 1];
            let numbers = |range: std::ops::Range<usize>| prop::collection::vec(range, rank);
            let kernel = prop_oneof![numbers(1..5), numbers(1..longest + 3)];
            let side = || prop_oneof![2 => numbers(0..3), 1 => numbers(0..9)];
            let same = prop_oneof![
                4 => Just(None),
                1 => Just(Some(Same::Upper)),
                1 => Just(Some(Same::Lower))
            ];
            let steps = (numbers(1..5), prop_oneof![numbers(1..2), numbers(1..4)]);
            (numbers(1..longest), kernel, steps, (side(), side()), same)
        })
        .prop_filter_map("the kernel fits", move |(input, kernel, steps, sides, same)| {
            let padding = same.map_or(
                Padding::Explicit { before: extents(&sides.0), after: extents(&sides.1) },
                Padding::from,
            );
            let window = Window::new(extents(&kernel))
                .stride(extents(&steps.0))
                .dilation(extents(&steps.1))
                .padding(padding)
                .rounding(rounding);
            let input = extents(&input);
            window.over(input).is_ok().then_some((window, input))
        })
}

pub(crate) fn layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![Just(Layout::ChannelsLast), Just(Layout::ChannelsFirst)]
}

pub(crate) fn bases() -> impl Strategy<Value = IndexBase> {
    prop::sample::select(vec![IndexBase::Plane, IndexBase::Tensor, IndexBase::Memory])
}

pub(crate) fn divisors() -> impl Strategy<Value = Divisor> {
    prop_oneof![Just(Divisor::Padded), Just(Divisor::Valid), (1u32..50).prop_map(Divisor::Fixed)]
}

/// Adaptive windows: at least as many as coordinates, or fewer, evenly divided or not.
fn adaptive(longest: usize) -> impl Strategy<Value = (Window, Extents)> {
    (1..=AXES).prop_flat_map(move |rank| {
        let longest = [longest, 9, 6][rank - 1];
        let numbers = |range: std::ops::Range<usize>| prop::collection::vec(range, rank);
        let outputs = prop_oneof![4 => numbers(1..7), 1 => numbers(1..2), 1 => numbers(1..12)];
        (numbers(1..longest), outputs)
            .prop_map(|(input, output)| (Window::adaptive(extents(&output)), extents(&input)))
    })
}

/// Pooling problems, including batches of 0 and more channels than one task processes.
pub(crate) fn poolings() -> impl Strategy<Value = Pooling> {
    poolings_of(prop_oneof![3 => windows(40), 1 => adaptive(40)])
}

fn poolings_of(
    windows: impl Strategy<Value = (Window, Extents)>,
) -> impl Strategy<Value = Pooling> {
    let channels = prop_oneof![4 => 1usize..5, 1 => 30usize..70];
    (windows, 0usize..4, channels, layouts()).prop_map(
        |((window, input), batch, channels, layout)| {
            let shape = Shape::new(batch, channels, input).unwrap();
            Pooling::new(shape, &window, layout).unwrap()
        },
    )
}

/// Numbers with ties, both zeros, infinities, NaN of several kinds, and all sizes.
pub(crate) fn awkward() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => (-2i8..3).prop_map(f32::from),
        1 => Just(-0.0f32),
        1 => prop::sample::select(vec![f32::NEG_INFINITY, f32::INFINITY]),
        1 => prop::sample::select(vec![f32::NAN, -f32::NAN, f32::from_bits(0x7fc1_2345)]),
        2 => wild(),
    ]
}

/// Numbers of all sizes whose sums neither overflow nor become subnormal.
pub(crate) fn wild() -> impl Strategy<Value = f32> {
    (-1.0f32..1.0, -20i32..30).prop_map(|(value, exponent)| {
        // The value is moved away from 0, where differences of two numbers would be too small.
        (value + value.signum()) * 10.0f32.powi(exponent)
    })
}

/// Data for a tensor of `len` elements: awkward, mostly lowest, or all different.
pub(crate) fn data(len: usize) -> impl Strategy<Value = Vec<f32>> {
    let lowest = prop_oneof![6 => Just(f32::NEG_INFINITY), 1 => awkward()];
    prop_oneof![
        2 => prop::collection::vec(awkward(), len),
        1 => prop::collection::vec(lowest, len),
        1 => prop::collection::vec(wild(), len),
    ]
}

/// Small integers, whose sums of products are exact.
pub(crate) fn integers(len: usize) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec((-9i8..10).prop_map(f64::from), len)
}

/// A type whose elements can be compared bit by bit and made from an `f32`.
pub(crate) trait Element: Scalar {
    fn bits(self) -> u64;
    fn of(value: f32) -> Self;
}

macro_rules! element {
    ($($type:ty: |$value:ident| $bits:expr, |$from:ident| $of:expr;)*) => {$(
        impl Element for $type {
            fn bits(self) -> u64 {
                let $value = self;
                $bits as u64
            }
            fn of($from: f32) -> Self {
                $of
            }
        }
    )*};
}

element! {
    f64: |x| x.to_bits(), |x| f64::from(x);
    f32: |x| x.to_bits(), |x| x;
    f16: |x| x.to_bits(), |x| f16::from_f32(x);
    bf16: |x| x.to_bits(), |x| bf16::from_f32(x);
    i32: |x| x, |x| x as i32;
    i8: |x| x, |x| x as i8;
    u8: |x| x, |x| x as u8;
}

pub(crate) fn bits<T: Element>(values: &[T]) -> Vec<u64> {
    values.iter().map(|value| value.bits()).collect()
}

/// The offset of an element in memory, by the definition of the layout.
pub(crate) fn memory(
    shape: &Shape,
    layout: Layout,
    n: usize,
    c: usize,
    position: Position,
) -> usize {
    let [depth, height, width] = shape.space().three(1);
    let [d, h, w] = position;
    match layout {
        Layout::ChannelsLast => (((n * depth + d) * height + h) * width + w) * shape.channels() + c,
        Layout::ChannelsFirst => {
            (((n * shape.channels() + c) * depth + d) * height + h) * width + w
        }
    }
}

/// All positions of these extents, row-major.
pub(crate) fn positions([depth, height, width]: Position) -> Vec<Position> {
    let mut positions = vec![];
    for d in 0..depth {
        for h in 0..height {
            for w in 0..width {
                positions.push([d, h, w]);
            }
        }
    }
    positions
}

/// Every tap of a window, row-major, with the coordinates that it reads if it is inside.
pub(crate) fn taps(grid: &Grid, o: Position) -> Vec<(Position, Option<Position>)> {
    let along: [Vec<Option<usize>>; AXES] =
        std::array::from_fn(|i| axis_taps(&grid.axes()[i], o[i]));
    let taps = positions([0, 1, 2].map(|i| along[i].len())).into_iter();
    taps.map(|tap| {
        let read = [0, 1, 2].map(|i| along[i][tap[i]]);
        let inside = read.iter().all(Option::is_some);
        (tap, inside.then(|| read.map(Option::unwrap_or_default)))
    })
    .collect()
}

/// The coordinate that each tap reads on one axis, if it is inside.
fn axis_taps(axis: &Axis, o: usize) -> Vec<Option<usize>> {
    let (input, output) = (axis.input(), axis.output());
    if axis.is_adaptive() {
        // The coordinates of which any part is in the window's share, `1/output` of the axis.
        let touched = |x: &usize| (x + 1) * output > o * input && x * output < (o + 1) * input;
        return (0..input).filter(touched).map(Some).collect();
    }
    let first = o as i64 * axis.stride() as i64 - axis.before() as i64;
    let read = (0..axis.kernel()).map(|t| first + t as i64 * axis.dilation() as i64);
    read.map(|x| (0 <= x && x < input as i64).then_some(x as usize)).collect()
}

/// One output of a pooling problem, with its taps enumerated.
pub(crate) struct Walked {
    /// The offset of the output in memory.
    pub(crate) at: usize,
    pub(crate) n: usize,
    pub(crate) c: usize,
    pub(crate) o: Position,
    /// The inside taps, row-major: the coordinates and the offset of the element in memory.
    pub(crate) inside: Vec<(Position, usize)>,
}

/// Every output of a pooling problem.
pub(crate) fn walk(pooling: &Pooling) -> Vec<Walked> {
    let (input, output, layout) = (pooling.input(), pooling.output(), pooling.layout());
    let mut outputs = vec![];
    for n in 0..output.batch() {
        for c in 0..output.channels() {
            for o in positions(output.space().three(1)) {
                let inside = taps(pooling.grid(), o).into_iter().filter_map(|(_, read)| read);
                let inside = inside.map(|x| (x, memory(&input, layout, n, c, x))).collect();
                outputs.push(Walked { at: memory(&output, layout, n, c, o), n, c, o, inside });
            }
        }
    }
    outputs
}
