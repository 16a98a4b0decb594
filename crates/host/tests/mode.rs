//! Compares the modes of `host` with the reference and with numbers that are counted.

mod windows;

use std::collections::BTreeMap;

use half::{bf16, f16};
use proptest::prelude::*;
use windowpane_geometry::{Extents, Layout, Pooling, Shape, Window};
use windowpane_host::{Ranked, mode, mode_bytes};
use windowpane_reference::pool::mode::mode as reference;

use windows::{assert_same, numbers, poolings};

fn check<T: Ranked>(pooling: &Pooling, seed: u64) -> Result<(), TestCaseError> {
    for nans in [false, true] {
        let x = numbers::<T>(pooling.input().elements(), seed, nans);
        assert_same(&mode(pooling, &x), &reference(pooling, &x))?;
    }
    let result = pooling.output().elements() * size_of::<T>();
    prop_assert!(mode_bytes::<T>(pooling) >= result);
    Ok(())
}

proptest! {
    #[test]
    fn modes_are_the_reference(pooling in poolings(), seed in any::<u64>()) {
        check::<f32>(&pooling, seed)?;
        check::<f64>(&pooling, seed)?;
        check::<f16>(&pooling, seed)?;
        check::<bf16>(&pooling, seed)?;
        check::<i64>(&pooling, seed)?;
        check::<i32>(&pooling, seed)?;
        check::<u32>(&pooling, seed)?;
        check::<bool>(&pooling, seed)?;
        check::<i16>(&pooling, seed)?;
        check::<u16>(&pooling, seed)?;
        check::<i8>(&pooling, seed)?;
        check::<u8>(&pooling, seed)?;
    }
}

/// Windows of every length, side by side: sorted in blocks, sorted one by one, and counted.
#[test]
fn windows_of_every_length_have_their_mode() {
    fn check<T: Ranked>(of: impl Fn(u32) -> T) {
        let mut state = 1u32;
        let x: Vec<T> = (0..600)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                of(state >> 24)
            })
            .collect();
        let line = Shape::new(1, 1, Extents::from([x.len()])).unwrap();
        for taps in (1..40).chain([63, 64, 65, 128, 199, 200, 201, 300]) {
            let pooling = Pooling::new(line, &Window::new([taps]), Layout::ChannelsLast).unwrap();
            for (window, y) in x.windows(taps).zip(mode(&pooling, &x)) {
                let mut counts = BTreeMap::new();
                for number in window {
                    *counts.entry(number.key()).or_insert(0) += 1;
                }
                let most = counts.values().max();
                let least = counts.iter().find(|(_, count)| Some(*count) == most).unwrap().0;
                assert!(y.key() == *least, "{taps} taps");
            }
        }
    }
    check(|n| n as u8);
    check(|n| (n % 7) as u8);
    check(|n| (n as u8) as i8);
    check(|n| n % 3 == 0);
    check(|n| u32::MAX - n % 5);
    check(|n| if n % 2 == 0 { i32::MIN } else { i32::MAX - (n % 4) as i32 });
    check(|n| (n % 9) as f32 - 4.0);
    check(|n| f64::from(n % 30) / 3.0);
}
