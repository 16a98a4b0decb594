//! Compares the poolings of `host` with the reference.
//!
//! Rule numbers are those of docs/SEMANTICS.md.

mod windows;

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use windowpane_geometry::{
    Divisor, Exponent, Extents, Extremum, IndexBase, Layout, Padding, Pooling, Rounding, Shape,
    Window,
};
use windowpane_host::pool::{self, Poolable};
use windowpane_reference::pool::{self as reference, Algorithm, backward, direct, lp};
use windowpane_reference::{Scalar, Total};

use windows::{numbers, poolings};

type Checked = Result<(), TestCaseError>;

const ALGORITHMS: [Algorithm; 2] = [Algorithm::Direct, Algorithm::Sliding];

/// Rule 2.5: bit for bit, any NaN for NaN.
fn same<T: Scalar>(found: &[T], expected: &[T]) -> Checked {
    prop_assert_eq!(found.len(), expected.len());
    for (at, (y, expected)) in found.iter().zip(expected).enumerate() {
        prop_assert_eq!(y.to_integer(), expected.to_integer(), "element {}", at);
        let (y, expected) = (y.to_f64(), expected.to_f64());
        let both = y.is_nan() && expected.is_nan();
        prop_assert!(both || y.to_bits() == expected.to_bits(), "{at}: {y}, not {expected}");
    }
    Ok(())
}

/// Rule 7 with sums in f64; both sums are, so that the error of both counts.
fn close<T: Scalar>(found: &[T], expected: &[Total]) -> Checked {
    prop_assert_eq!(found.len(), expected.len());
    let least = T::from_f64(smallest::<T>()).to_f64();
    for (at, (y, total)) in found.iter().zip(expected).enumerate() {
        let (y, value) = (y.to_f64(), total.value);
        let bound = total.bound(T::ROUNDOFF, 2.0 * f64::ROUNDOFF) + least;
        let overflows = y.is_infinite() && y == T::from_f64(value + bound.copysign(value)).to_f64();
        let equal = y == value || (y.is_nan() && value.is_nan()) || overflows;
        prop_assert!(equal || (y - value).abs() <= bound, "{at}: {y:e}, not {total:?}");
    }
    Ok(())
}

/// The smallest positive number.
fn smallest<T: Scalar>() -> f64 {
    // Halves until nothing is left.
    let halves = |x: &f64| Some(x / 2.0).filter(|x| T::from_f64(*x) != T::ZERO);
    std::iter::successors(Some(1.0), halves).last().unwrap_or(0.0)
}

fn extrema<T: Poolable>(pooling: &Pooling, base: IndexBase, seed: u64) -> Checked {
    for nans in [false, true] {
        let x = numbers::<T>(pooling.input().elements(), seed, nans);
        for which in [Extremum::Max, Extremum::Min] {
            let (expected, winners) =
                reference::extremum_with_indices(which, Algorithm::Direct, pooling, base, &x);
            for algorithm in ALGORITHMS {
                same(&pool::extremum(which, algorithm, pooling, &x), &expected)?;
                let (y, found) = pool::extremum_with_indices(which, algorithm, pooling, base, &x);
                same(&y, &expected)?;
                prop_assert_eq!(&found, &winners);
            }
        }
    }
    Ok(())
}

fn sums<T: Poolable>(pooling: &Pooling, divisor: Divisor, seed: u64) -> Checked {
    for nans in [false, true] {
        let x = numbers::<T>(pooling.input().elements(), seed, nans);
        let expected = direct::average_totals(pooling, divisor, &x);
        for algorithm in ALGORITHMS {
            close(&pool::average(algorithm, pooling, divisor, &x), &expected)?;
        }
        for p in [1.0, 2.0, 3.0].map(Exponent::new) {
            close(&pool::norm(pooling, p, &x), &lp::norm_totals(pooling, p, &x))?;
        }
        let dy = numbers::<T>(pooling.output().elements(), seed, nans);
        let expected = backward::average_backward_totals(pooling, divisor, &dy);
        close(&pool::average_backward(pooling, divisor, &dy), &expected)?;
    }
    Ok(())
}

/// Rule 3.5: sums are exact, and quotients rounded to the nearest integer.
fn integer_sums<T: Poolable>(pooling: &Pooling, divisor: Divisor, seed: u64) -> Checked {
    let x = numbers::<T>(pooling.input().elements(), seed, false);
    let expected = direct::average(pooling, divisor, &x);
    for algorithm in ALGORITHMS {
        same(&pool::average(algorithm, pooling, divisor, &x), &expected)?;
    }
    Ok(())
}

fn scattered<T: Poolable>(pooling: &Pooling, base: IndexBase, seed: u64) -> Checked {
    let x = numbers::<T>(pooling.input().elements(), seed, true);
    let dy = numbers::<T>(pooling.output().elements(), !seed, false);
    let (_, mut winners) = reference::direct::max_with_indices(pooling, base, &x);
    let expected = backward::max_backward_totals(pooling, base, &dy, &winners).unwrap();
    close(&pool::max_backward(pooling, base, &dy, &winners).unwrap(), &expected)?;
    // Rule 5.1: an index that is not a position of its own plane.
    if !winners.is_empty() {
        let at = seed as usize % winners.len();
        for wrong in [-2, i32::MIN, pooling.input().elements() as i32, i32::MAX] {
            winners[at] = wrong;
            let found = pool::max_backward(pooling, base, &dy, &winners);
            prop_assert_eq!(found, backward::max_backward(pooling, base, &dy, &winners));
        }
    }
    Ok(())
}

fn bases() -> impl Strategy<Value = IndexBase> {
    select(vec![IndexBase::Plane, IndexBase::Tensor, IndexBase::Memory])
}

fn divisors() -> impl Strategy<Value = Divisor> {
    prop_oneof![Just(Divisor::Padded), Just(Divisor::Valid), (1..9u32).prop_map(Divisor::Fixed)]
}

proptest! {
    #[test]
    fn extrema_are_the_reference(pooling in poolings(), base in bases(), seed in any::<u64>()) {
        extrema::<f32>(&pooling, base, seed)?;
        extrema::<f64>(&pooling, base, seed)?;
        extrema::<f16>(&pooling, base, seed)?;
        extrema::<i64>(&pooling, base, seed)?;
        extrema::<i32>(&pooling, base, seed)?;
        extrema::<u32>(&pooling, base, seed)?;
        extrema::<bool>(&pooling, base, seed)?;
        extrema::<u8>(&pooling, base, seed)?;
    }

    #[test]
    fn sums_are_within_the_bound(pooling in poolings(), by in divisors(), seed in any::<u64>()) {
        sums::<f32>(&pooling, by, seed)?;
        sums::<f64>(&pooling, by, seed)?;
        sums::<bf16>(&pooling, by, seed)?;
    }

    #[test]
    fn sums_of_integers_are_exact(
        pooling in poolings(),
        by in prop_oneof![divisors(), (1..9u32).prop_map(Divisor::Truncated)],
        seed in any::<u64>(),
    ) {
        integer_sums::<i64>(&pooling, by, seed)?;
        integer_sums::<i32>(&pooling, by, seed)?;
        integer_sums::<u32>(&pooling, by, seed)?;
        integer_sums::<i16>(&pooling, by, seed)?;
        integer_sums::<u16>(&pooling, by, seed)?;
        integer_sums::<i8>(&pooling, by, seed)?;
        integer_sums::<u8>(&pooling, by, seed)?;
    }

    #[test]
    fn gradients_of_extrema_are_the_reference(
        pooling in poolings(),
        base in bases(),
        seed in any::<u64>(),
    ) {
        scattered::<f32>(&pooling, base, seed)?;
        scattered::<f16>(&pooling, base, seed)?;
    }
}

/// Problems that are cut into many tasks, along rows and planes, and some that were computed wrongly once.
fn large() -> Vec<Pooling> {
    let of = |counts: [usize; 2], space: &[usize], window: Window, layout| {
        let space = Extents::try_from(space).unwrap();
        let shape = Shape::new(counts[0], counts[1], space).unwrap();
        Pooling::new(shape, &window, layout).unwrap()
    };
    let (first, last) = (Layout::ChannelsFirst, Layout::ChannelsLast);
    let box_of = |k: usize| Window::new([k, k]).padding([k / 2, k / 2]);
    vec![
        of([1, 1], &[700, 900], box_of(15), first),
        of([1, 1], &[40, 9000], box_of(31).stride([2, 3]), first),
        of([1, 3], &[333, 301], box_of(9).dilation([2, 3]), last),
        of([2, 64], &[56, 56], box_of(3).stride([2, 2]).rounding(Rounding::Ceil), last),
        of([2, 64], &[56, 56], box_of(3).stride([2, 2]).rounding(Rounding::Ceil), first),
        of([3, 70], &[13, 13], box_of(13), first),
        of([3, 512], &[7, 7], box_of(3), first),
        of([2, 300], &[14, 14], box_of(3).stride([2, 2]), first),
        of([1, 64], &[17, 17], Window::new([1, 1]).stride([8, 8]), first),
        // The one window of a row is as long as the input, and one pixel before it.
        of([1, 64], &[6, 5], Window::new([1, 5]).stride([1, 3]).padding([0, 1]), first),
        of([1, 64], &[500, 2], Window::new([505, 1]).padding([252, 0]), first),
        of([3, 512], &[7, 7], Window::adaptive(1), first),
        of([3, 512], &[7, 7], Window::adaptive(1), last),
        of([1, 2], &[300, 200], Window::adaptive(1), last),
        of([2, 40], &[50, 70], Window::adaptive([7, 9]), last),
        of([2, 5], &[20, 30, 40], Window::new([7, 7, 7]).padding([3, 3, 3]), first),
        of([1, 1], &[200_000], Window::new([400]).stride([3]), first),
        of([1, 1], &[30, 40], box_of(201).padding(Padding::from([100, 100])), first),
        // Found by random tests.
        of([1, 1], &[43, 59], Window::new([2, 1]).padding([(3, 5), (2, 0)]), last),
        of([1, 1], &[87, 40], Window::new([2, 1]).padding([(3, 6), (0, 5)]), last),
        of([1, 70], &[59, 5], Window::new([2, 1]).padding([(0, 7), (1, 0)]), last),
        of([1, 1], &[15], Window::new([1]).stride([3]).padding([(2, 0)]), last),
    ]
}

#[test]
fn large_problems_are_the_reference_on_any_number_of_threads() {
    let [one, many] =
        [1, 3].map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap());
    for pooling in large() {
        let x = numbers::<f32>(pooling.input().elements(), 7, false);
        let fast = reference::choose(&pooling);
        let (expected, winners) =
            reference::extremum_with_indices(Extremum::Max, fast, &pooling, IndexBase::Plane, &x);
        let own = pool::choose(&pooling);
        let maxima = || {
            let base = IndexBase::Plane;
            pool::extremum_with_indices(Extremum::Max, own, &pooling, base, &x)
        };
        assert_eq!(one.install(maxima), (expected.clone(), winners.clone()));
        assert_eq!(many.install(maxima), (expected.clone(), winners.clone()));
        same(&pool::extremum(Extremum::Max, own, &pooling, &x), &expected).unwrap();

        let x: Vec<f32> = x.iter().map(|x| if x.is_finite() { *x } else { 3.0 }).collect();
        let averages = || pool::average(own, &pooling, Divisor::Valid, &x);
        let y = one.install(averages);
        same(&many.install(averages), &y).unwrap();
        let expected = reference::average(&pooling, Divisor::Valid, &x);
        let most = x.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        for (y, expected) in y.iter().zip(&expected) {
            // Sums in f64 differ by far less than one rounding to f32.
            assert!((y - expected).abs() <= f32::EPSILON * expected.abs() + 1e-12 * most);
        }

        let gradients = || {
            let of_maxima = pool::max_backward(&pooling, IndexBase::Plane, &y, &winners).unwrap();
            (of_maxima, pool::average_backward(&pooling, Divisor::Valid, &y))
        };
        let (of_maxima, of_averages) = one.install(gradients);
        assert_eq!(many.install(gradients), (of_maxima.clone(), of_averages.clone()));
        let expected = backward::max_backward(&pooling, IndexBase::Plane, &y, &winners).unwrap();
        assert_eq!(of_maxima, expected);
        if pooling.grid().taps() < 100 {
            let expected = backward::average_backward_totals(&pooling, Divisor::Valid, &y);
            close(&of_averages, &expected).unwrap();
        }
    }
}

/// Sums of 31 bits, and sums that have more.
#[test]
fn sums_of_the_largest_integers_are_exact() {
    fn whole<T: Poolable + PartialEq>(space: [usize; 2], window: [usize; 2], x: T) {
        let shape = Shape::new(1, 1, Extents::from(space)).unwrap();
        let pooling = Pooling::new(shape, &Window::new(window), Layout::ChannelsFirst).unwrap();
        let taps = pooling.grid().taps() as u32;
        let (x, y) = (vec![x; shape.elements()], vec![x; pooling.output().elements()]);
        for algorithm in ALGORITHMS {
            for divisor in [Divisor::Padded, Divisor::Fixed(taps), Divisor::Truncated(taps)] {
                assert!(pool::average(algorithm, &pooling, divisor, &x) == y, "{pooling:?}");
            }
        }
    }
    let long = [([1, 1400], [1, 1001]), ([1400, 1], [1001, 1])];
    let limit =
        [([1, 33_000], [1, 32_767]), ([1, 33_000], [1, 32_768]), ([33_000, 1], [32_767, 1])];
    let wide = [([190, 200], [181, 181]), ([190, 200], [182, 181]), ([300, 310], [257, 256])];
    for (space, window) in long.into_iter().chain(limit).chain(wide) {
        for x in [u16::MAX, u16::MAX - 1, 1] {
            whole(space, window, x);
        }
        for x in [i16::MIN, i16::MAX, -1] {
            whole(space, window, x);
        }
        whole(space, window, i64::MIN);
        whole(space, window, i64::MAX);
        whole(space, window, u32::MAX);
        whole(space, window, u8::MAX);
        whole(space, window, i8::MIN);
    }
}

/// Beyond the limit of the memory of a thread, the reference computes.
#[test]
fn windows_of_any_length_are_computed() {
    let line = Shape::new(1, 1, Extents::from([10])).unwrap();
    let long = 1 << 27;
    let window = Window::new([long]).padding([long]).stride([long]);
    let pooling = Pooling::new(line, &window, Layout::ChannelsFirst).unwrap();
    let x: Vec<f32> = (0..10).map(|x| x as f32).collect();
    for algorithm in ALGORITHMS {
        let y = pool::extremum(Extremum::Max, algorithm, &pooling, &x);
        assert_eq!(y, direct::max(&pooling, &x));
        let y = pool::average(algorithm, &pooling, Divisor::Valid, &x);
        assert_eq!(y, direct::average(&pooling, Divisor::Valid, &x));
    }
}
