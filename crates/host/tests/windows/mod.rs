//! Poolings and numbers for the tests.

use std::ops::Range;

use proptest::prelude::*;
use proptest::sample::select;
use windowpane_geometry::{Extents, Layout, Padding, Pooling, Rounding, Shape, Window};
use windowpane_reference::Scalar;

/// Poolings of a few large planes and of many small ones, which are combined together.
pub(crate) fn poolings() -> impl Strategy<Value = Pooling> {
    prop_oneof![3 => large_planes(), 2 => small_planes()].prop_filter_map(
        "the window does not fit",
        |Drawn {
             counts: [batch, channels],
             input,
             kernel,
             steps,
             sides,
             ceil,
             adaptive,
             layout,
         }| {
            let of = |numbers: &[usize]| Extents::try_from(numbers).unwrap();
            let padding = Padding::Explicit { before: of(&sides.0), after: of(&sides.1) };
            let window = Window::new(of(&kernel)).stride(of(&steps.0)).dilation(of(&steps.1));
            let rounding = if ceil { Rounding::Ceil } else { Rounding::Floor };
            let window = window.padding(padding).rounding(rounding);
            let window = if adaptive { Window::adaptive(of(&kernel)) } else { window };
            let shape = Shape::new(batch, channels, of(&input)).unwrap();
            // The reference takes seconds for large problems.
            let found = Pooling::new(shape, &window, layout).ok()?;
            let work = found.output().elements().checked_mul(found.grid().taps())?;
            (work < 1 << 21 && found.input().elements() < 1 << 17).then_some(found)
        },
    )
}

/// The numbers of a pooling.
#[derive(Debug)]
struct Drawn {
    /// Samples and channels.
    counts: [usize; 2],
    input: Vec<usize>,
    kernel: Vec<usize>,
    /// Strides and dilations.
    steps: (Vec<usize>, Vec<usize>),
    /// The padding before and after.
    sides: (Vec<usize>, Vec<usize>),
    ceil: bool,
    adaptive: bool,
    layout: Layout,
}

/// Few windows, and rows that several blocks of them fill; windows that are kept and that are too large for that.
fn large_planes() -> impl Strategy<Value = Drawn> {
    let counts = (0..3usize, prop_oneof![3 => Just(1usize), 2 => 2..9usize, 1 => Just(70)]);
    let layout = select(vec![Layout::ChannelsLast, Layout::ChannelsFirst]);
    let problem = (1..=3usize).prop_flat_map(|axes| {
        let (longest, widest) = ([300, 90, 20][axes - 1], [260, 17, 7][axes - 1]);
        let kernel = prop_oneof![3 => numbers_of(axes, 1..6), 1 => numbers_of(axes, 1..widest)];
        let sides = (numbers_of(axes, 0..4), numbers_of(axes, 0..9));
        (numbers_of(axes, 1..longest), kernel, steps(axes), sides)
    });
    (counts, problem, any::<bool>(), 0..8usize, layout).prop_map(
        |(counts, (input, kernel, steps, sides), ceil, kind, layout)| {
            let (counts, adaptive) = (counts.into(), kind == 0);
            Drawn { counts, input, kernel, steps, sides, ceil, adaptive, layout }
        },
    )
}

/// Planes so small that several are combined together: few of them, and many tasks of them with a smaller last one.
fn small_planes() -> impl Strategy<Value = Drawn> {
    let planes = (1..4usize, prop_oneof![3 => 2..60usize, 1 => 400..4000usize]);
    // With channels last the planes are the samples.
    let layout = select(vec![Layout::ChannelsFirst, Layout::ChannelsFirst, Layout::ChannelsLast]);
    let problem = prop_oneof![1 => Just(1usize), 3 => Just(2)].prop_flat_map(|axes| {
        let sides = (numbers_of(axes, 0..3), numbers_of(axes, 0..3));
        (numbers_of(axes, 1..10), numbers_of(axes, 1..5), steps(axes), sides)
    });
    (planes, problem, any::<bool>(), layout).prop_map(
        |((few, many), (input, kernel, steps, sides), ceil, layout)| {
            let counts = match layout {
                Layout::ChannelsFirst => [few, many],
                Layout::ChannelsLast => [many, few],
            };
            Drawn { counts, input, kernel, steps, sides, ceil, adaptive: false, layout }
        },
    )
}

fn numbers_of(axes: usize, range: Range<usize>) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(range, axes)
}

/// Strides and dilations, mostly 1.
fn steps(axes: usize) -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    let step = || prop_oneof![3 => numbers_of(axes, 1..2), 1 => numbers_of(axes, 1..4)];
    (step(), step())
}

/// Numbers with ties, zeros of both signs, infinities, and NaN if `nans`.
#[allow(dead_code, reason = "the test of memory needs none")]
pub(crate) fn numbers<T: Scalar>(len: usize, seed: u64, nans: bool) -> Vec<T> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let number = (state >> 40) as f64;
            // Integers that an f64 does not tell apart, at both ends of the type or close to 0.
            let integer = i128::from(state as i64 >> (state % 60));
            if T::ZERO.to_integer().is_some() && state % 4 == 1 {
                return T::from_integer(integer);
            }
            T::from_f64(match (state >> 33) % 64 {
                0 => f64::NEG_INFINITY,
                1 => f64::INFINITY,
                2 if nans => f64::NAN,
                3 if nans => -f64::NAN,
                4..=9 => -0.0,
                10..=15 => 0.0,
                16..=40 => number % 5.0 - 2.0,
                _ => (number - 8e6) / 1e5,
            })
        })
        .collect()
}

/// Holds results to those of the reference, bit for bit; every NaN is the same.
#[allow(dead_code, reason = "the test of memory needs none")]
pub(crate) fn assert_same<T: Scalar>(y: &[T], expected: &[T]) -> Result<(), TestCaseError> {
    prop_assert_eq!(y.len(), expected.len());
    for (at, (y, expected)) in y.iter().zip(expected).enumerate() {
        prop_assert_eq!(y.to_integer(), expected.to_integer(), "element {}", at);
        let (y, expected) = (y.to_f64(), expected.to_f64());
        let same = y.to_bits() == expected.to_bits() || (y.is_nan() && expected.is_nan());
        prop_assert!(same, "element {at} is {y}, not {expected}");
    }
    Ok(())
}
