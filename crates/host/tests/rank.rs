//! Compares the rank filters of `host` with the reference.

mod windows;

use half::{bf16, f16};
use proptest::prelude::*;
use windowpane_geometry::{Pooling, Rank};
use windowpane_host::{Ranked, rank, rank_bytes};
use windowpane_reference::pool::rank::rank as reference;

use windows::{assert_same, numbers, poolings};

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

fn check<T: Ranked>(pooling: &Pooling, wanted: Rank, seed: u64) -> Result<(), TestCaseError> {
    for nans in [false, true] {
        let x = numbers::<T>(pooling.input().elements(), seed, nans);
        assert_same(&rank(pooling, wanted, &x), &reference(pooling, wanted, &x))?;
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
        check::<i64>(&pooling, rank, seed)?;
        check::<i32>(&pooling, rank, seed)?;
        check::<u32>(&pooling, rank, seed)?;
        check::<bool>(&pooling, rank, seed)?;
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
