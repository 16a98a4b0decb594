//! Problems and numbers for the tests.

use proptest::prelude::*;
use proptest::sample::select;
use windowpane_geometry::{
    Activation, Convolution, Extents, Filter, FilterLayout, Layout, Padding, Same, Shape, Window,
};
use windowpane_host::Element;

/// Windows of one to three axes that fit their input, which is at most `longest`.
fn windows(longest: usize) -> impl Strategy<Value = (Window, Extents)> {
    (1..=3usize)
        .prop_flat_map(move |rank| {
            let longest = [longest, longest / 2, longest / 3][rank - 1].max(2);
            let numbers = |range: std::ops::Range<usize>| prop::collection::vec(range, rank);
            let steps = (
                prop_oneof![numbers(1..2), numbers(1..5)],
                prop_oneof![2 => numbers(1..2), 1 => numbers(1..4)],
            );
            let side = || prop_oneof![2 => numbers(0..3), 1 => numbers(0..9)];
            let same = select(vec![None, None, None, Some(Same::Upper), Some(Same::Lower)]);
            (numbers(1..longest), numbers(1..6), steps, (side(), side()), same)
        })
        .prop_filter_map("the window does not fit", |(input, kernel, steps, sides, same)| {
            let of = |numbers: &[usize]| Extents::try_from(numbers).unwrap();
            let sides = Padding::Explicit { before: of(&sides.0), after: of(&sides.1) };
            let padding = same.map_or(sides, Padding::from);
            let window = Window::new(of(&kernel)).stride(of(&steps.0)).dilation(of(&steps.1));
            let (window, input) = (window.padding(padding), of(&input));
            window.over(input).is_ok().then_some((window, input))
        })
}

/// Any problem: one group, several, depthwise; batches of 0; counts that fill vectors and that do not.
pub(crate) fn convolutions(longest: usize) -> impl Strategy<Value = Convolution> {
    let count = || prop_oneof![4 => 1..6usize, 1 => select(vec![16usize, 33, 64, 70])];
    let counts = prop_oneof![
        4 => (Just(1), count(), count()),
        2 => (2..5usize, 1..6usize, 1..6usize),
        3 => (prop_oneof![1..6usize, select(vec![16usize, 32, 40])], Just(1), Just(1)),
    ];
    let layouts = (
        select(vec![Layout::ChannelsLast, Layout::ChannelsFirst]),
        select(vec![FilterLayout::Fhwc, FilterLayout::Hwcf, FilterLayout::Fchw]),
    );
    (windows(longest), 0..4usize, counts, layouts).prop_map(
        |((window, input), batch, (groups, channels, filters), (layout, filter_layout))| {
            let shape = Shape::new(batch, groups * channels, input).unwrap();
            let filter = Filter::new(groups * filters, channels, window.kernel().unwrap()).unwrap();
            Convolution::new(shape, filter, &window, groups, layout, filter_layout).unwrap()
        },
    )
}

#[allow(dead_code, reason = "the test of memory has no epilogue")]
pub(crate) fn activations() -> impl Strategy<Value = Activation> {
    select(vec![
        Activation::None,
        Activation::Relu,
        Activation::Relu6,
        Activation::Gelu,
        Activation::Silu,
        Activation::Leaky(0.1),
    ])
}

/// Numbers that follow from a seed, of sizes that do not overflow f16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn of<T: Element>(&self, role: u64, len: usize) -> Vec<T> {
        let mut state = self.0 ^ role.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..len).map(|_| T::from_f64((next() - 0.5) * (4.0f64).powf(next() * 3.0 - 2.0))).collect()
    }
}
