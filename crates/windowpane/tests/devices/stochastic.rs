//! Stochastic pooling on every device.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::Index;
use windowpane::{Device, Element, Error, IndexBase, Layout, StochasticPool, Tensor};
use windowpane_reference::pool::{backward, stochastic};
use windowpane_testing::{
    PoolCase, assert_same, assert_totals, executed, on_every_device, on_one_type, proptest,
};

use crate::pool::{Check, devices, index_base, ok, output_gradient};

on_every_device! {
    /// SEMANTICS 4.8: numbers and indices are identical bit for bit, and the gradient is within its bound.
    fn drawings_are_the_reference(
        device,
        case in (PoolCase::any(), any::<Index>(), index_base(), any::<u32>())
    ) {
        let (case, pick, base, seed) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_drawn(&case, base, seed))
    }

    /// SEMANTICS 4.8 and 7: the mean of what is drawn is within its bound.
    fn means_of_drawings_are_the_reference(device, case in (PoolCase::any(), any::<Index>())) {
        let (case, pick) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_mean(&case))
    }
}

fn check_drawn<T: Element>(device: &Device, case: &PoolCase, base: IndexBase, seed: u32) -> Check {
    let elements = case.elements::<T>();
    let pool = StochasticPool::with_window(case.window).layout(case.layout);
    let pool = pool.index_base(base).seed(seed);
    let x = ok(Tensor::from_slice(device, &elements, case.dims()))?;
    let (y, drawn) = match pool.forward_with_indices(&x) {
        // SEMANTICS 8: refused if the driver would end the loops early.
        Err(Error::LoopLimit { .. }) => return Ok(()),
        results => ok(results)?,
    };
    executed("stochastic", T::DTYPE);
    let (expected, indices) = stochastic::drawn(&case.problem(), seed, base, &elements);
    assert_same(&ok(y.to_vec::<T>())?, &expected)?;
    assert_same(&ok(drawn.to_vec::<i32>())?, &indices)?;
    assert_same(&ok(ok(pool.forward(&x))?.to_vec::<T>())?, &expected)?;

    let (dy, output_dims) = output_gradient::<T>(case);
    let gradient = ok(Tensor::from_slice(device, &dy, &output_dims))?;
    let dx = ok(ok(pool.backward(&gradient, &drawn, &case.dims()))?.to_vec::<T>())?;
    let totals = backward::max_backward_totals(&case.problem(), base, &dy, &indices);
    assert_totals(&dx, &totals.map_err(|error| TestCaseError::fail(error.to_string()))?)
}

fn check_mean<T: Element>(device: &Device, case: &PoolCase) -> Check {
    let elements = case.elements::<T>();
    let pool = StochasticPool::with_window(case.window).layout(case.layout);
    let x = ok(Tensor::from_slice(device, &elements, case.dims()))?;
    let y = match pool.mean(&x) {
        Err(Error::LoopLimit { .. }) => return Ok(()),
        y => ok(y)?,
    };
    executed("mean", T::DTYPE);
    assert_totals(&ok(y.to_vec::<T>())?, &stochastic::mean_totals(&case.problem(), &elements))
}

/// Numbers are drawn as often as they are large, a seed draws the same in both layouts, and another seed draws others.
#[test]
fn numbers_are_drawn_as_often_as_they_are_large() {
    const WINDOWS: usize = 4096;
    let numbers = [1.0f32, 0.0, 4.0, 3.0, -5.0, 2.0];
    let elements: Vec<f32> = numbers.iter().copied().cycle().take(WINDOWS * 6 * 2).collect();
    for device in devices() {
        let read = |y: windowpane::Result<Tensor>| y.unwrap().to_vec::<f32>().unwrap();
        let first = Layout::ChannelsFirst;
        let x = Tensor::from_slice(&device, &elements, [1, 2, WINDOWS * 6]).unwrap();
        let pool = StochasticPool::new([6]).seed(11);
        let y = read(pool.layout(first).forward(&x));
        for number in numbers {
            let share = f64::from(number.max(0.0)) / 10.0;
            let expected = share * y.len() as f64;
            let count = y.iter().filter(|drawn| **drawn == number).count() as f64;
            // Five standard deviations.
            let most = 25.0 * expected * (1.0 - share);
            let named = format!("{device}: {count} of {number}, not {expected}");
            assert!((count - expected).powi(2) <= most, "{named}");
        }
        let other = read(pool.layout(first).seed(12).forward(&x));
        assert!(other != y, "{device}: another seed draws the same");
        let last = x.to_layout(first, Layout::ChannelsLast).unwrap();
        let turned = pool.forward(&last).unwrap().to_layout(Layout::ChannelsLast, first);
        assert_eq!(read(turned), y, "{device}: the layouts differ");
        // The mean is that of what is drawn: 30 / 10.
        let mean = read(pool.layout(first).mean(&x));
        assert!(mean.iter().all(|mean| (mean - 3.0).abs() < 1e-6), "{device}");
    }
}

/// SEMANTICS 4.8: windows of padding only, without positive numbers, with NaN and infinities, and sums that overflow.
#[test]
fn drawings_in_corners() {
    let (infinity, nan, most) = (f32::INFINITY, f32::NAN, f32::MAX);
    for device in devices() {
        let draw = |x: &[f32], pool: StochasticPool| {
            let x = Tensor::from_slice(&device, x, [1, x.len(), 1]).unwrap();
            let (y, indices) = pool.forward_with_indices(&x).unwrap();
            let mean = pool.mean(&x).unwrap();
            let [y, mean] = [y, mean].map(|y| y.to_vec::<f32>().unwrap());
            (y, indices.to_vec::<i32>().unwrap(), mean)
        };
        for seed in 0..20 {
            let pool = StochasticPool::new([2]).seed(seed);
            let (y, indices, mean) = draw(&[-1.0, 0.0, -2.0, -3.0], pool.padding([2]));
            assert_eq!(y, [0.0, -1.0, -2.0, 0.0], "{device}");
            assert_eq!(indices, [-1, 0, 2, -1], "{device}");
            assert_eq!(mean, [0.0; 4], "{device}");
            let (y, indices, mean) = draw(&[infinity, 1.0, -infinity, 2.0, most, infinity], pool);
            assert_eq!(y, [infinity, 2.0, infinity], "{device}");
            assert_eq!(indices, [0, 3, 5], "{device}");
            assert_eq!(mean, [infinity, 2.0, infinity], "{device}");
            let (y, indices, mean) = draw(&[1.0, nan, nan, infinity, nan, -nan], pool);
            assert!(y.iter().chain(&mean).all(|y| y.is_nan()), "{device}: {y:?} {mean:?}");
            assert_eq!(indices, [1, 2, 4], "{device}");
            // The sum overflows at the second number.
            let (y, indices, mean) = draw(&[most, most], pool);
            assert_eq!((y, indices), (vec![most], vec![1]), "{device}");
            assert!((mean[0] / most - 1.0).abs() < 1e-6, "{device}");
        }
    }
}
