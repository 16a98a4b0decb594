//! Compares the rank filters of `host` with the reference.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use windowpane_geometry::{Extents, Layout, Padding, Pooling, Rank, Rounding, Shape, Window};
use windowpane_host::{Ranked, rank, rank_bytes};
use windowpane_reference::pool::rank::rank as reference;

/// Few windows, and rows that several blocks of them fill; windows that are kept and that are too large for that.
fn poolings() -> impl Strategy<Value = Pooling> {
    let problem = (1..=3usize).prop_flat_map(|axes| {
        let (longest, widest) = ([300, 90, 20][axes - 1], [260, 17, 7][axes - 1]);
        let numbers = |range: std::ops::Range<usize>| prop::collection::vec(range, axes);
        let kernel = prop_oneof![3 => numbers(1..6), 1 => numbers(1..widest)];
        let steps = (
            prop_oneof![3 => numbers(1..2), 1 => numbers(1..4)],
            prop_oneof![3 => numbers(1..2), 1 => numbers(1..4)],
        );
        (
            numbers(1..longest),
            kernel,
            steps,
            (numbers(0..4), numbers(0..9)),
            any::<bool>(),
            0..8usize,
        )
    });
    let counts = (0..3usize, prop_oneof![3 => Just(1usize), 2 => 2..9usize, 1 => Just(70)]);
    let layout = select(vec![Layout::ChannelsLast, Layout::ChannelsFirst]);
    (problem, counts, layout).prop_filter_map(
        "the window does not fit",
        |((input, kernel, steps, sides, ceil, kind), (batch, channels), layout)| {
            let of = |numbers: &[usize]| Extents::try_from(numbers).unwrap();
            let padding = Padding::Explicit { before: of(&sides.0), after: of(&sides.1) };
            let window = Window::new(of(&kernel)).stride(of(&steps.0)).dilation(of(&steps.1));
            let rounding = if ceil { Rounding::Ceil } else { Rounding::Floor };
            let window = window.padding(padding).rounding(rounding);
            let window = if kind == 0 { Window::adaptive(of(&kernel)) } else { window };
            let shape = Shape::new(batch, channels, of(&input)).unwrap();
            // The reference takes seconds for large problems.
            let found = Pooling::new(shape, &window, layout).ok()?;
            let work = found.output().elements().checked_mul(found.grid().taps())?;
            (work < 1 << 21 && found.input().elements() < 1 << 17).then_some(found)
        },
    )
}

fn ranks() -> impl Strategy<Value = Rank> {
    prop_oneof![
        3 => Just(Rank::MEDIAN),
        2 => (0u32..30).prop_map(Rank::Nth),
        1 => Just(Rank::Nth(u32::MAX)),
        2 => (1u32..9).prop_flat_map(|whole| {
            (0..=whole).prop_map(move |part| Rank::Fraction { part, whole })
        }),
    ]
}

/// Numbers with ties, zeros of both signs, infinities, and NaN if `nans`.
fn numbers<T: Ranked>(len: usize, seed: u64, nans: bool) -> Vec<T> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let number = (state >> 40) as f64;
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

fn check<T: Ranked>(pooling: &Pooling, wanted: Rank, seed: u64) -> Result<(), TestCaseError> {
    for nans in [false, true] {
        let x = numbers::<T>(pooling.input().elements(), seed, nans);
        let (y, expected) = (rank(pooling, wanted, &x), reference(pooling, wanted, &x));
        prop_assert_eq!(y.len(), expected.len());
        for (at, (y, expected)) in y.iter().zip(&expected).enumerate() {
            let (y, expected) = (y.to_f64(), expected.to_f64());
            let same = y.to_bits() == expected.to_bits() || (y.is_nan() && expected.is_nan());
            prop_assert!(same, "element {at} is {y}, not {expected}");
        }
    }
    let result = pooling.output().elements() * size_of::<T>();
    prop_assert!(rank_bytes::<T>(pooling) >= result);
    Ok(())
}

proptest! {
    #[test]
    fn ranks_are_the_reference(pooling in poolings(), rank in ranks(), seed in any::<u64>()) {
        check::<f32>(&pooling, rank, seed)?;
        check::<f64>(&pooling, rank, seed)?;
        check::<f16>(&pooling, rank, seed)?;
        check::<bf16>(&pooling, rank, seed)?;
        check::<i32>(&pooling, rank, seed)?;
        check::<i8>(&pooling, rank, seed)?;
        check::<u8>(&pooling, rank, seed)?;
    }
}

/// Every 16-bit number is in its place, and comes back from its key.
#[test]
fn keys_have_the_order_of_the_numbers() {
    fn check<T: Ranked>(of_bits: fn(u16) -> T) {
        let mut all: Vec<T> = (0..=u16::MAX).map(of_bits).collect();
        all.sort_by_key(|number| number.key());
        for pair in all.windows(2) {
            let (a, b) = (pair[0].to_f64(), pair[1].to_f64());
            assert!(a.total_cmp(&b).is_lt() || b.is_nan(), "{a} and {b}");
            assert_eq!(b.is_nan(), pair[1].key() > T::GREATEST);
        }
        for number in all {
            let back = T::of(number.key());
            assert!(back == number || number.to_f64().is_nan() && back.to_f64().is_nan());
        }
    }
    check(f16::from_bits);
    check(bf16::from_bits);
}
