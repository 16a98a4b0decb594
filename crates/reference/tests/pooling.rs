//! Compares the plain loops with windows enumerated tap by tap, and the sliding algorithms with the plain loops.
//!
//! Rule numbers are those of docs/SEMANTICS.md. `PROPTEST_CASES` sets the number of random problems.

mod common;

use std::collections::HashMap;

use common::{Element, Walked, bits, walk};
use half::{bf16, f16};
use proptest::prelude::*;
use windowpane_geometry::{
    Divisor, Exponent, Extents, Extremum, IndexBase, Layout, Padding, Pooling, Rank, Rounding,
    Shape, Window,
};
use windowpane_reference::pool::{
    self, Algorithm, backward, deque, direct, lp, mode, prefix, rank, unpool,
};
use windowpane_reference::{Scalar, Total};

fn with_data() -> impl Strategy<Value = (Pooling, Vec<f32>)> {
    common::poolings()
        .prop_flat_map(|pooling| (Just(pooling), common::data(pooling.input().elements())))
}

/// Rule 2.2 literally: the last NaN, or the first of the elements that equal the extremum.
fn winner<T: Scalar>(extremum: Extremum, window: &Walked, x: &[T]) -> Option<usize> {
    let value = |&i: &usize| x[window.inside[i].1].to_f64();
    let taps = 0..window.inside.len();
    let last_nan = taps.clone().rev().find(|i| value(i).is_nan());
    last_nan.or_else(|| {
        let values = taps.clone().map(|i| value(&i));
        let best = match extremum {
            Extremum::Max => values.fold(f64::NEG_INFINITY, f64::max),
            Extremum::Min => values.fold(f64::INFINITY, f64::min),
        };
        taps.clone().find(|i| value(i) == best)
    })
}

/// Rule 2.4 literally.
fn index(pooling: &Pooling, base: IndexBase, window: &Walked, tap: usize) -> i32 {
    let ([d, h, w], memory) = window.inside[tap];
    let [_, height, width] = pooling.input().space().three(1);
    let plane = (d * height + h) * width + w;
    let index = match base {
        IndexBase::Plane => plane,
        IndexBase::Tensor => {
            (window.n * pooling.input().channels() + window.c) * pooling.input().plane() + plane
        }
        IndexBase::Memory => memory,
    };
    index as i32
}

/// Rule 2.1: the winner's value; if a zero wins, +0 of a maximum and −0 of a minimum if some tap is that zero.
fn best<T: Element>(extremum: Extremum, window: &Walked, x: &[T], winner: usize) -> T {
    let best = x[window.inside[winner].1];
    let taps = window.inside.iter().map(|tap| x[tap.1]);
    let mut zeros = taps.filter(|v| best.to_f64() == 0.0 && v.to_f64() == 0.0);
    let preferred = |v: &T| v.to_f64().is_sign_positive() == (extremum == Extremum::Max);
    zeros.find(preferred).unwrap_or(best)
}

fn check_extremum<T: Element>(
    extremum: Extremum,
    pooling: &Pooling,
    base: IndexBase,
    x: &[f32],
) -> Result<(), TestCaseError> {
    let x: Vec<T> = x.iter().map(|&x| T::of(x)).collect();
    let indexed = |algorithm| pool::extremum_with_indices(extremum, algorithm, pooling, base, &x);
    let (y, winners) = indexed(Algorithm::Direct);
    prop_assert_eq!(y.len(), pooling.output().elements());
    prop_assert_eq!(winners.len(), y.len());
    let empty = match extremum {
        Extremum::Max => T::LOWEST,
        Extremum::Min => T::HIGHEST,
    };
    for window in walk(pooling) {
        let (value, place) = match winner(extremum, &window, &x) {
            Some(tap) => (best(extremum, &window, &x, tap), index(pooling, base, &window, tap)),
            None => (empty, -1),
        };
        prop_assert_eq!((y[window.at].bits(), winners[window.at]), (value.bits(), place));
    }

    let y = bits(&y);
    for algorithm in [Algorithm::Direct, Algorithm::Sliding] {
        prop_assert_eq!(&bits(&pool::extremum(extremum, algorithm, pooling, &x)), &y);
    }
    let (values, places) = indexed(Algorithm::Sliding);
    prop_assert_eq!(&bits(&values), &y);
    prop_assert_eq!(&places, &winners);
    Ok(())
}

fn check_rank<T: Element>(wanted: Rank, pooling: &Pooling, x: &[f32]) -> Result<(), TestCaseError> {
    let x: Vec<T> = x.iter().map(|&x| T::of(x)).collect();
    let y = rank::rank(pooling, wanted, &x);
    prop_assert_eq!(y.len(), pooling.output().elements());
    for window in walk(pooling) {
        // Rules 4.4 to 4.6 literally.
        let mut numbers: Vec<f64> = window.inside.iter().map(|&(_, at)| x[at].to_f64()).collect();
        let found = y[window.at].to_f64();
        if numbers.iter().any(|number| number.is_nan()) {
            prop_assert!(found.is_nan());
            continue;
        }
        numbers.sort_by(f64::total_cmp);
        let place = match wanted {
            Rank::Nth(k) => k as usize,
            Rank::Fraction { part, whole } => numbers.len() * part as usize / whole as usize,
        };
        let expected = numbers.get(place).or(numbers.last()).copied().unwrap_or(0.0);
        prop_assert_eq!(found.to_bits(), expected.to_bits());
    }
    Ok(())
}

fn check_mode<T: Element>(pooling: &Pooling, x: &[f32]) -> Result<(), TestCaseError> {
    let x: Vec<T> = x.iter().map(|&x| T::of(x)).collect();
    let y = mode::mode(pooling, &x);
    prop_assert_eq!(y.len(), pooling.output().elements());
    for window in walk(pooling) {
        // Rule 4.7 literally: each number is counted.
        let mut counts = HashMap::<u64, usize>::new();
        for &(_, at) in &window.inside {
            *counts.entry(x[at].to_f64().to_bits()).or_default() += 1;
        }
        let found = y[window.at].to_f64();
        if counts.keys().any(|&bits| f64::from_bits(bits).is_nan()) {
            prop_assert!(found.is_nan());
            continue;
        }
        let most = counts.values().max();
        let frequent = counts.iter().filter(|(_, count)| Some(*count) == most);
        let expected = frequent.map(|(&bits, _)| f64::from_bits(bits)).min_by(f64::total_cmp);
        prop_assert_eq!(found.to_bits(), expected.unwrap_or(0.0).to_bits());
    }
    Ok(())
}

fn ranks() -> impl Strategy<Value = Rank> {
    prop_oneof![
        2 => Just(Rank::MEDIAN),
        2 => (0u32..40).prop_map(Rank::Nth),
        1 => Just(Rank::Nth(u32::MAX)),
        2 => (1u32..1000).prop_flat_map(|whole| {
            (0..=whole).prop_map(move |part| Rank::Fraction { part, whole })
        }),
    ]
}

/// Rule 7: a value is within the error bound of a sum; NaN and infinities match.
fn check_sum<T: Scalar>(y: T, total: &Total) -> Result<(), TestCaseError> {
    let (y, reference) = (y.to_f64(), total.value);
    let equal = if reference.is_finite() {
        // Both sums are accumulated in f64, so the error of both counts.
        (y - reference).abs() <= total.bound(T::ROUNDOFF, 2.0 * f64::ROUNDOFF)
    } else {
        y == reference || (y.is_nan() && reference.is_nan())
    };
    prop_assert!(equal, "{y} is not {total:?}");
    Ok(())
}

fn check_average<T: Element>(
    pooling: &Pooling,
    divisor: Divisor,
    x: &[f32],
) -> Result<(), TestCaseError> {
    let x: Vec<T> = x.iter().map(|&x| T::of(x)).collect();
    let totals = direct::average_totals(pooling, divisor, &x);
    prop_assert_eq!(totals.len(), pooling.output().elements());
    let direct = direct::average(pooling, divisor, &x);
    let sliding = prefix::average(pooling, divisor, &x);
    let chosen = pool::average(pooling, divisor, &x);
    prop_assert_eq!((direct.len(), sliding.len(), chosen.len()), {
        let n = totals.len();
        (n, n, n)
    });
    for window in walk(pooling) {
        let total = &totals[window.at];
        // Rules 3.1 to 3.3 literally.
        let terms = window.inside.iter().map(|&(_, at)| x[at].to_f64());
        let divisor = match divisor {
            Divisor::Valid => window.inside.len(),
            Divisor::Fixed(n) | Divisor::Truncated(n) => n as usize,
            Divisor::Padded => padded(pooling, &window),
        } as f64;
        let expected = if window.inside.is_empty() { 0.0 } else { terms.sum::<f64>() / divisor };
        prop_assert!(expected == total.value || (expected.is_nan() && total.value.is_nan()));
        prop_assert_eq!(total.terms, window.inside.len());

        let rounded = T::from_f64(total.value);
        prop_assert!(direct[window.at] == rounded || rounded.to_f64().is_nan());
        check_sum(direct[window.at], total)?;
        check_sum(sliding[window.at], total)?;
        check_sum(chosen[window.at], total)?;
    }
    Ok(())
}

/// The taps of a window that are inside or in the padding, counted one by one.
fn padded(pooling: &Pooling, window: &Walked) -> usize {
    if pooling.grid().is_adaptive() {
        return window.inside.len();
    }
    let within = |tap: &[usize; 3]| {
        (0..3).all(|i| {
            let axis = &pooling.grid().axes()[i];
            window.o[i] * axis.stride() + tap[i] * axis.dilation()
                < axis.before() + axis.input() + axis.after()
        })
    };
    common::positions(pooling.grid().kernel().three(1)).iter().filter(|tap| within(tap)).count()
}

proptest! {
    #[test]
    fn extrema_are_the_contracts((pooling, x) in with_data(), base in common::bases()) {
        for extremum in [Extremum::Max, Extremum::Min] {
            check_extremum::<f32>(extremum, &pooling, base, &x)?;
            check_extremum::<f64>(extremum, &pooling, base, &x)?;
            check_extremum::<f16>(extremum, &pooling, base, &x)?;
            check_extremum::<bf16>(extremum, &pooling, base, &x)?;
            check_extremum::<i32>(extremum, &pooling, base, &x)?;
            check_extremum::<i8>(extremum, &pooling, base, &x)?;
            check_extremum::<u8>(extremum, &pooling, base, &x)?;
        }
    }

    #[test]
    fn modes_are_the_contracts((pooling, x) in with_data()) {
        check_mode::<f32>(&pooling, &x)?;
        check_mode::<f64>(&pooling, &x)?;
        check_mode::<bf16>(&pooling, &x)?;
        check_mode::<f16>(&pooling, &x)?;
        check_mode::<i32>(&pooling, &x)?;
        check_mode::<i8>(&pooling, &x)?;
        check_mode::<u8>(&pooling, &x)?;
    }

    #[test]
    fn ranks_are_the_contracts((pooling, x) in with_data(), rank in ranks()) {
        check_rank::<f32>(rank, &pooling, &x)?;
        check_rank::<f64>(rank, &pooling, &x)?;
        check_rank::<bf16>(rank, &pooling, &x)?;
        check_rank::<f16>(rank, &pooling, &x)?;
        check_rank::<i32>(rank, &pooling, &x)?;
        check_rank::<i8>(rank, &pooling, &x)?;
        check_rank::<u8>(rank, &pooling, &x)?;
    }

    #[test]
    fn averages_are_the_contracts((pooling, x) in with_data(), divisor in common::divisors()) {
        check_average::<f32>(&pooling, divisor, &x)?;
        check_average::<f64>(&pooling, divisor, &x)?;
        check_average::<bf16>(&pooling, divisor, &x)?;
    }

    /// Elements outside a window have no influence on it, not even on its last bit.
    #[test]
    fn prefix_sums_keep_windows_apart(
        (pooling, x) in with_data(),
        place in any::<prop::sample::Index>(),
        poison in prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300]),
    ) {
        if x.is_empty() {
            return Ok(());
        }
        let place = place.index(x.len());
        let mut x: Vec<f64> =
            x.into_iter().map(|x| if x.is_finite() { x.into() } else { 1.0 }).collect();
        x[place] = 1.0;
        let clean = prefix::average(&pooling, Divisor::Padded, &x);
        x[place] = poison;
        let poisoned = prefix::average(&pooling, Divisor::Padded, &x);
        for window in walk(&pooling) {
            let (clean, poisoned) = (clean[window.at], poisoned[window.at]);
            if window.inside.iter().any(|&(_, at)| at == place) {
                prop_assert!(!poisoned.is_finite() || poisoned > 1e290);
            } else {
                prop_assert_eq!(clean.to_bits(), poisoned.to_bits());
            }
        }
    }

    /// Rule 5.1, compared with enumerated windows; both ways to find the winners agree.
    #[test]
    fn max_gradients_go_to_the_winners((pooling, x) in with_data(), base in common::bases()) {
        let (y, winners) = direct::max_with_indices(&pooling, base, &x);
        // Small integers, so that sums are exact in any order.
        let dy: Vec<f32> = (0..y.len()).map(|i| (i * 7 % 23) as f32 - 11.0).collect();
        let dx = backward::max_backward(&pooling, base, &dy, &winners).unwrap();
        let totals = backward::max_backward_totals(&pooling, base, &dy, &winners).unwrap();
        let mut expected = vec![0.0; x.len()];
        let mut terms = vec![0; x.len()];
        for window in walk(&pooling) {
            if let Some(tap) = winner(Extremum::Max, &window, &x) {
                expected[window.inside[tap].1] += dy[window.at];
                terms[window.inside[tap].1] += 1;
            }
        }
        prop_assert_eq!(&dx, &expected);
        prop_assert_eq!(totals.iter().map(|t| t.terms).collect::<Vec<_>>(), terms.clone());
        prop_assert!(totals.iter().zip(&dx).all(|(total, &dx)| total.value == f64::from(dx)));
        prop_assert_eq!(&backward::max_backward_from_input(&pooling, &dy, &x), &dx);

        // Rule 4.3: each maximum is back at its position, and all other elements are zero.
        let back = unpool::max_unpool(&pooling, base, &y, &winners).unwrap();
        for (i, (back, x)) in back.iter().zip(&x).enumerate() {
            let expected = if terms[i] > 0 { *x } else { 0.0 };
            // A maximum of zero has the sign that rule 2.1 gives it.
            let zeros = *back == 0.0 && expected == 0.0;
            prop_assert!(zeros || back.to_bits() == expected.to_bits());
        }
    }

    /// Rule 4.3: an index outside its own plane is an error that says where.
    #[test]
    fn foreign_indices_are_refused(
        (pooling, x) in with_data(),
        base in common::bases(),
        place in any::<prop::sample::Index>(),
        index in prop_oneof![Just(i32::MIN), Just(-2), Just(i32::MAX), -3i32..3000],
    ) {
        let (y, mut winners) = direct::max_with_indices(&pooling, base, &x);
        if y.is_empty() {
            return Ok(());
        }
        let at = place.index(y.len());
        winners[at] = index;
        // The indices of all elements of this sample and channel, and −1.
        let window = walk(&pooling).into_iter().find(|window| window.at == at).unwrap();
        let own = common::positions(pooling.input().space().three(1)).into_iter().map(|x| {
            let memory =
                common::memory(&pooling.input(), pooling.layout(), window.n, window.c, x);
            let inside = vec![(x, memory)];
            crate::index(&pooling, base, &Walked { inside, at, o: window.o, ..window }, 0)
        });
        let allowed = index == -1 || own.into_iter().any(|own| own == index);
        let refusal = backward::IndexOutOfRange { at, index };
        let dx = backward::max_backward(&pooling, base, &y, &winners);
        let back = unpool::max_unpool(&pooling, base, &y, &winners);
        let gradient = unpool::max_unpool_backward(&pooling, base, &x, &winners);
        if allowed {
            prop_assert!(dx.is_ok() && back.is_ok() && gradient.is_ok());
        } else {
            prop_assert_eq!(dx.unwrap_err(), refusal);
            prop_assert_eq!(back.unwrap_err(), refusal);
            prop_assert_eq!(gradient.unwrap_err(), refusal);
        }
    }

    /// Rule 4.3: if several windows have the same winner, the last one counts. Rule 5.4: the gradient is the adjoint.
    #[test]
    fn unpooling_and_its_gradient_are_adjoint(
        (pooling, y, g, picks) in common::poolings().prop_flat_map(|pooling| {
            let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
            let picks = prop::collection::vec(any::<prop::sample::Index>(), outputs);
            (Just(pooling), common::integers(outputs), common::integers(inputs), picks)
        }),
        base in common::bases(),
    ) {
        // The winner of each window is any element of the plane, or none.
        let mut indices = vec![-1; y.len()];
        let mut expected = vec![0.0; g.len()];
        let mut source = vec![None; g.len()];
        for window in walk(&pooling) {
            let plane = common::positions(pooling.input().space().three(1));
            let pick = picks[window.at].index(plane.len() + 1);
            let Some(&position) = plane.get(pick) else { continue };
            let memory =
                common::memory(&pooling.input(), pooling.layout(), window.n, window.c, position);
            let own = Walked { inside: vec![(position, memory)], ..window };
            indices[own.at] = index(&pooling, base, &own, 0);
            expected[memory] = y[own.at];
            source[memory] = Some(own.at);
        }
        let x = unpool::max_unpool(&pooling, base, &y, &indices).unwrap();
        prop_assert_eq!(&x, &expected);
        let dy = unpool::max_unpool_backward(&pooling, base, &g, &indices).unwrap();
        let mut expected = vec![0.0; y.len()];
        for (source, g) in source.iter().zip(&g) {
            if let Some(at) = *source {
                expected[at] = *g;
            }
        }
        prop_assert_eq!(&dy, &expected);
        let left: f64 = x.iter().zip(&g).map(|(x, g)| x * g).sum();
        let right: f64 = y.iter().zip(&dy).map(|(y, dy)| y * dy).sum();
        prop_assert_eq!(left, right);
    }

    /// Rule 4.1 literally, where plain powers can be computed, and the gradient.
    #[test]
    fn norms_are_the_contracts(
        (pooling, x) in common::poolings().prop_flat_map(|pooling| {
            (Just(pooling), prop::collection::vec(-4.0f64..4.0, pooling.input().elements()))
        }),
        p in prop_oneof![Just(1.0), Just(2.0), Just(3.0), 1.0f64..8.0],
    ) {
        let exponent = Exponent::new(p);
        let y = lp::norm(&pooling, exponent, &x);
        let totals = lp::norm_totals(&pooling, exponent, &x);
        for window in walk(&pooling) {
            let powers = window.inside.iter().map(|&(_, at)| x[at].abs().powf(p));
            let expected = powers.sum::<f64>().powf(1.0 / p);
            let close = (y[window.at] - expected).abs() <= 1e-13 * expected;
            prop_assert!(close, "{} is not {expected}", y[window.at]);
            prop_assert_eq!(totals[window.at].value, y[window.at]);
            let moved = totals[window.at].magnitude;
            prop_assert!(moved >= expected * window.inside.len() as f64 / 2.0);
        }

        let dy: Vec<f64> = (0..y.len()).map(|i| (i % 7) as f64 - 3.0).collect();
        let dx = lp::norm_backward(&pooling, exponent, &dy, &x);
        let mut expected = vec![0.0; x.len()];
        for window in walk(&pooling) {
            for &(_, at) in &window.inside {
                let slope = x[at].signum() * x[at].abs().powf(p - 1.0) * y[window.at].powf(1.0 - p);
                expected[at] += if x[at] == 0.0 { 0.0 } else { dy[window.at] * slope };
            }
        }
        let totals = lp::norm_backward_totals(&pooling, exponent, &dy, &x);
        for ((dx, expected), total) in dx.iter().zip(&expected).zip(&totals) {
            prop_assert_eq!(total.value, *dx);
            let close = (dx - expected).abs() <= 4.0 * total.bound(f64::ROUNDOFF, f64::ROUNDOFF);
            prop_assert!(close, "{dx} is not {expected}");
        }
        // A norm is homogeneous: Σ x·∂f/∂x = f.
        let left: f64 = y.iter().zip(&dy).map(|(y, dy)| y * dy).sum();
        let right: f64 = x.iter().zip(&dx).map(|(x, dx)| x * dx).sum();
        let size: f64 = y.iter().zip(&dy).map(|(y, dy)| (y * dy).abs()).sum();
        prop_assert!((left - right).abs() <= 1e-11 * size.max(f64::MIN_POSITIVE));
    }

    /// Rule 5.4: ⟨f(x), g⟩ = ⟨x, fᵀ(g)⟩.
    #[test]
    fn average_and_its_gradient_are_adjoint(
        (pooling, x, g) in common::poolings().prop_flat_map(|pooling| {
            let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
            (Just(pooling), common::integers(inputs), common::integers(outputs))
        }),
        divisor in common::divisors(),
    ) {
        let y = direct::average(&pooling, divisor, &x);
        let dx = backward::average_backward(&pooling, divisor, &g);
        let totals = backward::average_backward_totals(&pooling, divisor, &g);
        prop_assert!(totals.iter().zip(&dx).all(|(total, &dx)| total.value == dx));
        let left: f64 = y.iter().zip(&g).map(|(y, g)| y * g).sum();
        let right: f64 = x.iter().zip(&dx).map(|(x, dx)| x * dx).sum();
        // Both sides are sums of the terms x·g/divisor, whose magnitudes are these. A term takes
        // part in a sum over taps or outputs, a sum over elements, a division and a product.
        let sizes: f64 = x.iter().zip(&totals).map(|(x, total)| x.abs() * total.magnitude).sum();
        let roundings = 2 * (x.len() + y.len()) + 4;
        let bound = roundings as f64 * f64::ROUNDOFF * sizes;
        prop_assert!((left - right).abs() <= bound, "{left} is not {right}, bound {bound}");
        // Without rounding, nothing may differ.
        let y = direct::average(&pooling, Divisor::Fixed(4), &x);
        let dx = backward::average_backward(&pooling, Divisor::Fixed(4), &g);
        let left: f64 = y.iter().zip(&g).map(|(y, g)| y * g).sum();
        let right: f64 = x.iter().zip(&dx).map(|(x, dx)| x * dx).sum();
        prop_assert_eq!(left, right);
    }
}

/// Rule 4.1 where plain powers overflow or vanish, and where the norm, which the gradient divides by, is 0.
#[test]
fn norms_of_extremes() {
    let p = pooling(Window::new([2]).stride([2]).padding([(0, 2)]), [10], 1);
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let x = [3e30f32, -4e30, 3e-30, 4e-30, 0.0, -0.0, -inf, 1.0, nan, inf];
    let y = lp::norm(&p, Exponent::new(2), &x);
    assert_eq!(y[..4], [5e30, 5e-30, 0.0, inf]);
    assert!(y[4].is_nan());
    assert_eq!(y[5], 0.0);
    let sum = [0, 2].map(|i| (f64::from(x[i].abs()) + f64::from(x[i + 1].abs())) as f32);
    assert_eq!(lp::norm(&p, Exponent::new(1), &x)[..4], [sum[0], sum[1], 0.0, inf]);
    let wide = lp::norm(&p, Exponent::new(1000.0), &x);
    assert!((wide[0] / 4e30 - 1.0).abs() < 1e-6 && wide[3] == inf);

    let dy = [10.0f32, 10.0, 10.0, 10.0, 10.0, 10.0];
    let dx = lp::norm_backward(&p, Exponent::new(2), &dy, &x);
    assert_eq!(dx[..6], [6.0, -8.0, 6.0, 8.0, 0.0, 0.0]);
    // ∞/∞, a number divided by ∞, and divided by NaN.
    assert!(dx[6].is_nan() && dx[7] == 0.0 && dx[8].is_nan() && dx[9].is_nan());
    let dx = lp::norm_backward(&p, Exponent::new(1), &dy, &x);
    assert_eq!(dx[..8], [10.0, -10.0, 10.0, 10.0, 0.0, 0.0, -10.0, 10.0]);
    assert!(dx[8].is_nan() && dx[9] == 10.0);
}

/// Rule 4.2: as in PyTorch, 5 coordinates in 3 windows are 0..2, 1..4 and 3..5.
#[test]
fn an_adaptive_line_by_hand() {
    let p = pooling(Window::adaptive([3]), [5], 1);
    let x = [1.0f32, 5.0, 5.0, -1.0, 2.0];
    let expected = (vec![5.0, 5.0, 2.0], vec![1, 1, 4]);
    assert_eq!(direct::max_with_indices(&p, IndexBase::Plane, &x), expected);
    assert_eq!(deque::max_with_indices(&p, IndexBase::Plane, &x), expected);
    for divisor in [Divisor::Padded, Divisor::Valid] {
        assert_eq!(direct::average(&p, divisor, &x), [3.0, 3.0, 0.5]);
        assert_eq!(prefix::average(&p, divisor, &x), [3.0, 3.0, 0.5]);
    }
    let dx = backward::average_backward(&p, Divisor::Valid, &[2.0f32, 3.0, 6.0]);
    assert_eq!(dx, [1.0, 2.0, 1.0, 4.0, 3.0]);
    // If there are more windows than coordinates, the windows repeat them.
    let p = pooling(Window::adaptive([4]), [2], 1);
    assert_eq!(prefix::average(&p, Divisor::Valid, &[1.0f32, 3.0]), [1.0, 1.0, 3.0, 3.0]);
    let p = pooling(Window::adaptive([3]), [2], 1);
    assert_eq!(direct::average(&p, Divisor::Valid, &[1.0f32, 3.0]), [1.0, 2.0, 3.0]);
}

fn pooling<const N: usize>(window: Window, space: [usize; N], channels: usize) -> Pooling
where
    Extents: From<[usize; N]>,
{
    let shape = Shape::new(1, channels, Extents::from(space)).unwrap();
    Pooling::new(shape, &window, Layout::ChannelsLast).unwrap()
}

#[test]
fn a_line_by_hand() {
    let p = pooling(Window::new([3]).stride([2]).padding([1]), [6], 1);
    let x = [1.0f32, 5.0, 5.0, -1.0, 2.0, 0.0];
    let expected = (vec![5.0, 5.0, 2.0], vec![1, 1, 4]);
    assert_eq!(direct::max_with_indices(&p, IndexBase::Plane, &x), expected);
    assert_eq!(deque::max_with_indices(&p, IndexBase::Plane, &x), expected);
    assert_eq!(direct::average(&p, Divisor::Padded, &x), [2.0, 3.0, 1.0 / 3.0]);
    assert_eq!(direct::average(&p, Divisor::Valid, &x), [3.0, 3.0, 1.0 / 3.0]);
    assert_eq!(direct::average(&p, Divisor::Fixed(2), &x), [3.0, 4.5, 0.5]);
    assert_eq!(direct::average(&p, Divisor::Truncated(2), &x), [3.0, 4.5, 0.5]);
    // The sums are 6, 9 and 1.
    let [above, below] = [1, -1].map(|sign| x.map(|x| sign * x as i16));
    assert_eq!(direct::average(&p, Divisor::Fixed(2), &above), [3, 4, 0]);
    assert_eq!(direct::average(&p, Divisor::Fixed(4), &above), [2, 2, 0]);
    assert_eq!(direct::average(&p, Divisor::Truncated(4), &above), [1, 2, 0]);
    assert_eq!(prefix::average(&p, Divisor::Truncated(4), &above), [1, 2, 0]);
    assert_eq!(direct::average(&p, Divisor::Truncated(4), &below), [-1, -2, 0]);
    let dx = backward::average_backward(&p, Divisor::Valid, &[2.0f32, 3.0, 6.0]);
    assert_eq!(dx, [1.0, 2.0, 1.0, 3.0, 2.0, 2.0]);
    let dx = backward::max_backward(&p, IndexBase::Plane, &[2.0f32, 3.0, 6.0], &expected.1);
    assert_eq!(dx.unwrap(), [0.0, 5.0, 0.0, 0.0, 6.0, 0.0]);
}

/// Two channels of a line, with windows that the ends cut.
#[test]
fn ranks_by_hand() {
    let p = pooling(Window::new([3]).padding([1]), [4], 2);
    let x = [4, 40, 1, 10, 3, 30, 2, 20];
    assert_eq!(rank::rank(&p, Rank::MEDIAN, &x), [4, 40, 3, 30, 2, 20, 3, 30]);
    assert_eq!(rank::rank(&p, Rank::Nth(0), &x), [1, 10, 1, 10, 1, 10, 2, 20]);
    assert_eq!(rank::rank(&p, Rank::Nth(2), &x), [4, 40, 4, 40, 3, 30, 3, 30]);
    let quarter = Rank::Fraction { part: 1, whole: 3 };
    assert_eq!(rank::rank(&p, quarter, &x), [1, 10, 3, 30, 2, 20, 2, 20]);
    let x = [-0.0f32, 1.0, 0.0, f32::NAN, 0.0, 2.0, f32::NEG_INFINITY, 3.0];
    let least = rank::rank(&p, Rank::Nth(0), &x);
    assert!(least[0].is_sign_negative() && least[1].is_nan() && least[7] == 2.0);
    assert_eq!(least[4], f32::NEG_INFINITY);
}

/// Ties, numbers that are all the same or all different, the ends of the range, zeros of both signs and NaN.
#[test]
fn modes_by_hand() {
    let p = pooling(Window::new([3]).padding([1]), [4], 2);
    let x = [4, 40, 4, 10, 3, 10, 3, 10];
    assert_eq!(mode::mode(&p, &x), [4, 10, 4, 10, 3, 10, 3, 10]);
    let (least, most) = (i32::MIN, i32::MAX);
    let x = [most, least, most, 0, least, most, least, least];
    assert_eq!(mode::mode(&p, &x), [most, least, most, least, least, least, least, least]);
    let x = [-0.0f32, 1.0, 0.0, f32::NAN, -0.0, 2.0, f32::INFINITY, 3.0];
    let y = mode::mode(&p, &x);
    assert!(y[0] == 0.0 && y[0].is_sign_negative(), "the zeros are two numbers, -0 the less");
    assert!(y[2].is_sign_negative() && y[1].is_nan() && y[3].is_nan() && y[5].is_nan());
    assert_eq!((y[6], y[7]), (0.0, 2.0));
    // Nothing but padding.
    let p = pooling(Window::new([1]).padding([2]), [1], 1);
    assert_eq!(mode::mode(&p, &[7u8]), [0, 0, 7, 0, 0]);
}

/// Two channels, so that the three bases differ: `N = 1`, channels-last.
#[test]
fn an_image_by_hand() {
    let p = pooling(Window::new([2, 2]), [2, 3], 2);
    #[rustfmt::skip]
    let x = [
        1i8, 60,   4, 50,   2, 40,
        3,   10,   4, 50,   9, 30,
    ];
    let y = vec![4, 60, 9, 50];
    for (base, winners) in [
        (IndexBase::Plane, vec![1, 0, 5, 1]),
        (IndexBase::Tensor, vec![1, 6, 5, 7]),
        (IndexBase::Memory, vec![2, 1, 10, 3]),
    ] {
        assert_eq!(direct::max_with_indices(&p, base, &x), (y.clone(), winners.clone()));
        assert_eq!(deque::max_with_indices(&p, base, &x), (y.clone(), winners));
    }
}

/// Rule 2.2: the index is that of the first zero, or of the last NaN. Rule 2.1: the value is +0 if some zero is +0.
#[test]
fn zeros_and_nan() {
    let p = pooling(Window::new([3]), [3], 1);
    let nan = |payload: u32| f32::from_bits(0x7fc0_0000 | payload);
    for (x, winner, value) in [
        ([-0.0f32, 0.0, -1.0], 0, 1),
        ([-1.0, 0.0, -0.0], 1, 1),
        ([-0.0, -0.0, -1.0], 0, 0),
        ([nan(1), f32::INFINITY, nan(2)], 2, 2),
        ([nan(1), nan(2), f32::INFINITY], 1, 1),
        ([f32::NEG_INFINITY; 3], 0, 0),
    ] {
        for (y, winners) in [
            direct::max_with_indices(&p, IndexBase::Plane, &x),
            deque::max_with_indices(&p, IndexBase::Plane, &x),
        ] {
            assert_eq!(winners, [winner]);
            assert_eq!(y[0].to_bits(), x[value].to_bits());
        }
    }
}

/// Rules 2.3 and 3.3: padding longer than the kernel creates windows with no tap inside.
#[test]
fn empty_windows() {
    let p = pooling(Window::new([2]).padding([3]), [1], 1);
    let x = [7i32];
    let lowest = i32::MIN;
    let expected = (vec![lowest, lowest, 7, 7, lowest, lowest], vec![-1, -1, 0, 0, -1, -1]);
    assert_eq!(direct::max_with_indices(&p, IndexBase::Plane, &x), expected);
    assert_eq!(deque::max_with_indices(&p, IndexBase::Plane, &x), expected);
    for divisor in [Divisor::Padded, Divisor::Valid, Divisor::Fixed(3)] {
        let y = direct::average(&p, divisor, &[6.0f64]);
        assert_eq!((y[0], y[5]), (0.0, 0.0));
        assert_eq!(prefix::average(&p, divisor, &[6.0f64]), y);
    }
    assert_eq!(direct::average(&p, Divisor::Valid, &[6.0f64])[2], 6.0);
    assert_eq!(backward::average_backward(&p, Divisor::Valid, &[1.0f32; 6]), [2.0]);
}

/// Rule 3.2: overhang, which ceil rounding creates, never counts.
#[test]
fn overhang_is_not_padding() {
    let window = Window::new([3]).stride([2]).padding([(0, 1)]).rounding(Rounding::Ceil);
    let p = pooling(window, [5], 1);
    let x = [1.0f64, 2.0, 3.0, 4.0, 6.0];
    // The third window has the element 6, one padded tap and one overhang.
    assert_eq!(direct::average(&p, Divisor::Padded, &x), [2.0, 13.0 / 3.0, 3.0]);
    assert_eq!(prefix::average(&p, Divisor::Padded, &x), [2.0, 13.0 / 3.0, 3.0]);
}

/// Rule 1.5: a batch of 0 is valid.
#[test]
fn nothing_in_nothing_out() {
    let shape = Shape::new(0, 3, Extents::from([4, 4])).unwrap();
    for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
        let p = Pooling::new(shape, &Window::new([4, 4]).padding([2, 2]), layout).unwrap();
        let (y, winners) = pool::max_with_indices::<f32>(&p, IndexBase::Tensor, &[]);
        assert!(y.is_empty() && winners.is_empty());
        assert!(deque::max_with_indices::<f32>(&p, IndexBase::Tensor, &[]).0.is_empty());
        assert!(direct::average::<f32>(&p, Divisor::Padded, &[]).is_empty());
        assert!(prefix::average::<f32>(&p, Divisor::Padded, &[]).is_empty());
        assert!(backward::average_backward::<f32>(&p, Divisor::Padded, &[]).is_empty());
    }
}

/// A window over the whole of a long axis; a running sum would mix its far ends.
#[test]
fn large_numbers_far_away_leave_no_trace() {
    let p = pooling(Window::new([64]), [4096], 1);
    let mut x = vec![1.0f64; 4096];
    (x[0], x[4095]) = (1e300, f64::NAN);
    let y = prefix::average(&p, Divisor::Padded, &x);
    assert!(y[1..4032].iter().all(|&y| y == 1.0));
    assert!(y[0] > 1e298 && y[4032].is_nan());
}

#[test]
fn large_windows_slide_and_small_ones_do_not() {
    let p = pooling(Window::new([3, 3]).padding([1, 1]), [56, 56], 64);
    assert_eq!(pool::choose(&p), Algorithm::Direct);
    let p = pooling(Window::new([31, 31]).padding([15, 15]), [56, 56], 64);
    assert_eq!(pool::choose(&p), Algorithm::Sliding);
    // One window covers the whole input, so nothing slides.
    let p = pooling(Window::new([56, 56]), [56, 56], 64);
    assert_eq!(pool::choose(&p), Algorithm::Direct);
    assert_eq!((Algorithm::Direct.to_string(), Algorithm::Sliding.to_string()).1, "sliding");
}

/// The largest padding and extents are computed with, not iterated over.
#[test]
fn long_padding_costs_nothing() {
    let far = i32::MAX as usize / 2 - 8;
    let sides = Padding::Explicit { before: [far].into(), after: [far].into() };
    let window = Window::new([2 * far]).stride([4]).padding(sides);
    let p = pooling(window, [8], 1);
    let x = [1.0f32, 2.0, 3.0, 8.0, 5.0, 6.0, 7.0, 4.0];
    assert_eq!(p.output().elements(), 3);
    assert_eq!(direct::max(&p, &x), deque::max(&p, &x));
    let sum = [36.0, 36.0, 36.0];
    assert_eq!(direct::average(&p, Divisor::Fixed(1), &x), sum);
    assert_eq!(prefix::average(&p, Divisor::Fixed(1), &x), sum);
}

#[test]
#[should_panic(expected = "the input has 3 elements but its shape has 4")]
fn a_wrong_length_is_named() {
    direct::max(&pooling(Window::new([2]), [4], 1), &[0.0f32; 3]);
}

/// Prints the times of both algorithms, from which the threshold of [`pool::choose`] was taken:
/// `cargo test --release -p windowpane-reference --test pooling -- --ignored --nocapture`
#[test]
#[ignore = "measures"]
fn sliding_against_direct() {
    let time = |run: &dyn Fn()| {
        run();
        let best = (0..5).map(|_| {
            let start = std::time::Instant::now();
            run();
            start.elapsed()
        });
        best.min().unwrap().as_secs_f64() * 1e3
    };
    println!("layout          k  s  chosen   max ms: direct  deque   average ms: direct  prefix");
    for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
        for (k, s) in [3, 5, 7, 9, 11, 15, 21, 31].into_iter().flat_map(|k| [(k, 1), (k, 2)]) {
            let window = Window::new([k, k]).stride([s, s]).padding([k / 2, k / 2]);
            let shape = Shape::new(4, 64, Extents::from([56, 56])).unwrap();
            let p = Pooling::new(shape, &window, layout).unwrap();
            let x: Vec<f32> = (0..shape.elements()).map(|i| (i * 7919 % 65537) as f32).collect();
            let times = [
                time(&|| drop(direct::max(&p, &x))),
                time(&|| drop(deque::max(&p, &x))),
                time(&|| drop(direct::average(&p, Divisor::Padded, &x))),
                time(&|| drop(prefix::average(&p, Divisor::Padded, &x))),
            ];
            let [a, b, c, d] = times;
            let (layout, chosen) = (layout.to_string(), pool::choose(&p).to_string());
            println!("{layout:14} {k:2} {s:2}  {chosen:8} {a:13.2} {b:6.2} {c:19.2} {d:7.2}");
        }
    }
}
