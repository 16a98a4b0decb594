//! Lp pooling, rank and mode pooling, and max unpooling on every device. Adaptive windows are tested with the cases of `pool`.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::Index;
use windowpane::{
    AvgPool, Conv, DType, Device, Divisor, Element, Error, Extents, FilterLayout, IndexBase,
    Layout, LpPool, MaxPool, MaxUnpool, MedianPool, MinPool, ModePool, Rank, RankPool, Same,
    Tensor, Window,
};
use windowpane_geometry::{Exponent, Pooling, Shape};
use windowpane_reference::pool::{direct, lp, mode, rank, unpool};
use windowpane_testing::{
    Fill, Flavour, PoolCase, assert_same, assert_totals, executed, on_every_device, on_one_type,
    proptest,
};

use crate::pool::{Check, devices, index_base, ok, output_gradient};

on_every_device! {
    /// SEMANTICS 4.1 and 7: within the derived bound, with NaN and infinities in the right places.
    fn norm_is_the_reference(device, case in (PoolCase::any(), any::<Index>(), exponent())) {
        let (case, pick, p) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_norm(&case, p))
    }

    /// SEMANTICS 5.2, 5.3 and 7: the gradient is within its bound, and a second run gives the same bits.
    fn norm_gradient_is_the_reference(device, case in (PoolCase::any(), any::<Index>(), exponent())) {
        let (case, pick, p) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_norm_gradient(&case, p))
    }

    /// SEMANTICS 4.4 to 4.6: identical bit for bit, in every type.
    fn ranks_are_the_reference(device, case in (PoolCase::any(), any::<Index>(), ranks())) {
        let (case, pick, rank) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8, bool], check_rank(&case, rank))
    }

    /// SEMANTICS 4.5 and 7.2: numbers that a graphics driver may treat as 0 are not ties.
    fn ranks_of_least_numbers_are_the_reference(device, case in (PoolCase::any(), any::<Index>(), ranks())) {
        let (case, pick, rank) = case;
        let case = PoolCase { fill: Fill { flavour: Flavour::Least, ..case.fill }, ..case };
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_rank(&case, rank))
    }

    /// SEMANTICS 4.7: identical bit for bit, in every type, also of numbers that a graphics driver may treat as 0.
    fn modes_are_the_reference(device, case in (PoolCase::any(), any::<Index>(), any::<bool>())) {
        let (case, pick, least) = case;
        let flavour = if least { Flavour::Least } else { case.fill.flavour };
        let case = PoolCase { fill: Fill { flavour, ..case.fill }, ..case };
        match least {
            true => on_one_type!(device, pick, [f64, f32, f16, bf16], check_mode(&case)),
            false => on_one_type!(device, pick, [f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8, bool], check_mode(&case)),
        }
    }

    /// SEMANTICS 4.3: identical bit for bit, for any indices, including several of the same position.
    fn unpooling_is_the_reference(device, case in (PoolCase::any(), any::<Index>(), index_base(), any::<u64>())) {
        let (case, pick, base, seed) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8, bool], check_unpool(&case, base, seed))
    }

    /// SEMANTICS 5.4: the gradient is the adjoint of unpooling, also if several indices name the same position.
    fn unpooling_gradient_is_the_reference(device, case in (PoolCase::any(), any::<Index>(), index_base(), any::<u64>())) {
        let (case, pick, base, seed) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_unpool_gradient(&case, base, seed))
    }

    /// SEMANTICS 4.3: an index out of range is an error when the result is read, which names the first such element.
    fn foreign_indices_are_errors(device, case in (PoolCase::any(), any::<Index>(), index_base(), foreign())) {
        let (case, place, base, index) = case;
        check_foreign(device, &case, base, place, index)
    }

    /// SEMANTICS 5.4: ⟨f(x), g⟩ = ⟨x, fᵀ(g)⟩, exactly if nothing is rounded.
    fn average_is_adjoint(device, case in PoolCase::any()) {
        check_adjoint(device, &case)
    }
}

/// Numbers of all sizes of a narrow type are kept, in tensors of any length, on devices that store several of them in a
/// word too: copied in and out, filled, changed in layout, pooled with empty windows, and unpooled.
#[test]
fn narrow_integers_are_whole_on_every_device() {
    fn check<T: Element>(device: &Device, all: &[T; 256]) {
        let name = format!("{device} {}", T::DTYPE);
        let host = Device::host();
        for len in (1..=9).chain([255, 256, 1023]) {
            let elements: Vec<T> = all.iter().copied().cycle().skip(len).take(len).collect();
            let on = |device: &Device| Tensor::from_slice(device, &elements, [1, len, 1]).unwrap();
            let (there, here) = (on(device), on(&host));
            assert_same(&there.to_vec::<T>().unwrap(), &elements).expect(&name);
            let mut copy = Tensor::random(device, T::DTYPE, [1, len, 1], 1).unwrap();
            copy.copy_from(&there).unwrap();
            assert_same(&copy.to_vec::<T>().unwrap(), &elements).expect(&name);
            let wide = there.to_dtype(DType::I32).unwrap().to_dtype(T::DTYPE).unwrap();
            assert_same(&wide.to_vec::<T>().unwrap(), &elements).expect(&name);
            // Windows of one tap before and after the elements are empty.
            let pools = [
                MaxPool::new([1]).padding([2]),
                MaxPool::new([3]).padding([1]),
                MaxPool::new([2]).dilation([2]).padding([2]),
            ];
            for pool in pools {
                let (y, indices) = pool.forward_with_indices(&there).unwrap();
                let (expected, winners) = pool.forward_with_indices(&here).unwrap();
                assert_same(&y.to_vec::<T>().unwrap(), &expected.to_vec::<T>().unwrap())
                    .expect(&name);
                assert_eq!(
                    indices.to_vec::<i32>().unwrap(),
                    winners.to_vec::<i32>().unwrap(),
                    "{name}"
                );
                let values = pool.forward(&there).unwrap();
                assert_same(&values.to_vec::<T>().unwrap(), &expected.to_vec::<T>().unwrap())
                    .expect(&name);
                let back = MaxUnpool::new([len]).forward(&y, &indices).unwrap();
                let right = MaxUnpool::new([len]).forward(&expected, &winners).unwrap();
                assert_same(&back.to_vec::<T>().unwrap(), &right.to_vec::<T>().unwrap())
                    .expect(&name);
            }
        }
        let x = Tensor::from_slice(device, all, [2, 2, 64]).unwrap();
        let turned = x.to_layout(Layout::ChannelsFirst, Layout::ChannelsLast).unwrap();
        let back = turned.to_layout(Layout::ChannelsLast, Layout::ChannelsFirst).unwrap();
        let expected: Vec<T> =
            (0..256).map(|at| all[at / 128 * 128 + at % 2 * 64 + at % 128 / 2]).collect();
        assert_same(&turned.to_vec::<T>().unwrap(), &expected).expect(&name);
        assert_same(&back.to_vec::<T>().unwrap(), all).expect(&name);
        let empty = Tensor::from_slice::<T>(device, &[], [0, 4, 1]).unwrap();
        assert!(MaxPool::new([2]).forward(&empty).unwrap().is_empty(), "{name}");
    }
    for device in Device::all() {
        let narrow = [DType::U8, DType::I8, DType::U16, DType::I16, DType::Bool, DType::U32];
        let has = narrow.map(|dtype| device.supports(dtype));
        assert_eq!(
            has, [true; 6],
            "{device}: every backend has integers of 8 and 16 bits, and u32"
        );
        check::<u8>(&device, &core::array::from_fn(|n| n as u8));
        check::<i8>(&device, &core::array::from_fn(|n| n as u8 as i8));
        check::<u16>(&device, &core::array::from_fn(|n| n as u16 * 257));
        check::<i16>(&device, &core::array::from_fn(|n| (n as u16 * 257) as i16));
        check::<bool>(&device, &core::array::from_fn(|n| n.count_ones() % 2 == 1));
    }
}

/// A plan of packed tensors says so, and counts their unpacked copies.
#[test]
#[cfg(feature = "kernels")]
fn plans_of_packed_tensors_say_so() {
    for device in Device::all() {
        let plan = |dtype| MaxPool::new([2, 2]).plan(&device, dtype, &[1, 9, 9, 3]).unwrap();
        let says = |dtype| plan(dtype).to_string().contains("unpacked before the kernel");
        assert!(!says(DType::I32), "{device}");
        assert_eq!(says(DType::U8), device.backend() == windowpane::Backend::Wgpu, "{device}");
        if says(DType::U8) {
            // 243 elements in and 48 out, in whole vectors of four or two `i32`.
            let own = plan(DType::I32).workspace();
            for dtype in [DType::U8, DType::U16, DType::Bool] {
                assert_eq!(plan(dtype).workspace(), own + 4 * (244 + 48), "{device}");
            }
        }
    }
}

pub(crate) fn ranks() -> impl Strategy<Value = Rank> {
    prop_oneof![
        2 => Just(Rank::MEDIAN),
        2 => (0..30u32).prop_map(Rank::Nth),
        1 => Just(Rank::Nth(u32::MAX)),
        2 => (1..200u32).prop_flat_map(|whole| {
            (0..=whole).prop_map(move |part| Rank::Fraction { part, whole })
        }),
    ]
}

fn check_rank<T: Element>(device: &Device, case: &PoolCase, wanted: Rank) -> Check {
    let elements = case.elements::<T>();
    let pool = RankPool::with_window(wanted, case.window).layout(case.layout);
    let plan = match pool.plan(device, T::DTYPE, &case.dims()) {
        Ok(plan) => plan,
        // SEMANTICS 8: refused if the driver would end the loops early, or lacks 64-bit integers.
        Err(Error::LoopLimit { .. }) => return Ok(()),
        Err(error) if error.to_string().contains("64-bit integers") => return Ok(()),
        Err(error) => return Err(TestCaseError::fail(error.to_string())),
    };
    executed(plan.algorithm(), T::DTYPE);
    let x = ok(Tensor::from_slice(device, &elements, case.dims()))?;
    let y = ok(ok(pool.forward_with_plan(&plan, &x))?.to_vec::<T>())?;
    assert_same(&y, &rank::rank(&case.problem(), wanted, &elements))
}

fn check_mode<T: Element>(device: &Device, case: &PoolCase) -> Check {
    let elements = case.elements::<T>();
    let pool = ModePool::with_window(case.window).layout(case.layout);
    let plan = match pool.plan(device, T::DTYPE, &case.dims()) {
        Ok(plan) => plan,
        // SEMANTICS 8: refused if the driver would end the loops early, or lacks 64-bit integers.
        Err(Error::LoopLimit { .. }) => return Ok(()),
        Err(error) if error.to_string().contains("64-bit integers") => return Ok(()),
        Err(error) => return Err(TestCaseError::fail(error.to_string())),
    };
    executed(plan.algorithm(), T::DTYPE);
    let x = ok(Tensor::from_slice(device, &elements, case.dims()))?;
    let y = ok(ok(pool.forward_with_plan(&plan, &x))?.to_vec::<T>())?;
    assert_same(&y, &mode::mode(&case.problem(), &elements))
}

fn exponent() -> impl Strategy<Value = f64> {
    prop_oneof![
        2 => Just(1.0),
        2 => Just(2.0),
        1 => Just(3.0),
        2 => 1.0..4.0f64,
        1 => 1.0..40.0f64,
    ]
}

fn foreign() -> impl Strategy<Value = i32> {
    prop_oneof![Just(i32::MIN), Just(-2), Just(i32::MAX), 0..4000i32]
}

/// Whether the operator was refused because the device has no powers of f64.
fn lacks_powers<T>(result: &windowpane::Result<T>) -> bool {
    matches!(result, Err(error) if error.to_string().contains("has no powers of f64"))
}

fn check_norm<T: Element>(device: &Device, case: &PoolCase, p: f64) -> Check {
    let elements = case.elements::<T>();
    let pool = LpPool::with_window(p, case.window).layout(case.layout);
    let x = ok(Tensor::from_slice(device, &elements, case.dims()))?;
    let y = pool.forward(&x);
    if lacks_powers(&y) {
        return Ok(());
    }
    executed("norm", T::DTYPE);
    let y = ok(ok(y)?.to_vec::<T>())?;
    assert_totals(&y, &lp::norm_totals(&case.problem(), Exponent::new(p), &elements))
}

fn check_norm_gradient<T: Element>(device: &Device, case: &PoolCase, p: f64) -> Check {
    let elements = case.elements::<T>();
    let (dy, output_dims) = output_gradient::<T>(case);
    let pool = LpPool::with_window(p, case.window).layout(case.layout);
    let x = ok(Tensor::from_slice(device, &elements, case.dims()))?;
    let gradient = ok(Tensor::from_slice(device, &dy, &output_dims))?;
    let dx = pool.backward(&gradient, &x);
    if lacks_powers(&dx) {
        return Ok(());
    }
    executed("norm's gradient", T::DTYPE);
    let dx = ok(ok(dx)?.to_vec::<T>())?;
    let expected = lp::norm_backward_totals(&case.problem(), Exponent::new(p), &dy, &elements);
    assert_totals(&dx, &expected)?;
    let again = ok(ok(pool.backward(&gradient, &x))?.to_vec::<T>())?;
    assert_same(&again, &dx)
}

/// For each output a random index of its own plane, or −1, all about equally often.
fn any_indices(problem: &Pooling, base: IndexBase, seed: u64) -> Vec<i32> {
    let (plane, outputs) = (problem.input().plane(), problem.output().elements());
    let picks = Fill { flavour: Flavour::Mixed, seed }.elements::<f64>(outputs);
    let steps = problem.index_strides(base);
    let (channels, pixels) = (problem.output().channels(), problem.output().plane());
    let indices = picks.iter().enumerate().map(|(at, pick)| {
        let (n, c) = match problem.layout() {
            Layout::ChannelsLast => (at / channels / pixels, at % channels),
            Layout::ChannelsFirst => (at / pixels / channels, at / pixels % channels),
        };
        match (pick.to_bits() % (plane as u64 + 1)) as usize {
            pixel if pixel == plane => -1,
            pixel => (steps.offset(n, c, [0; 3]) + pixel * steps.space[2]) as i32,
        }
    });
    indices.collect()
}

fn max_unpool(case: &PoolCase, base: IndexBase) -> MaxUnpool {
    MaxUnpool::new(case.space).layout(case.layout).index_base(base)
}

fn output_dims(case: &PoolCase) -> Vec<usize> {
    case.problem().output().dims(case.layout).collect()
}

fn check_unpool<T: Element>(device: &Device, case: &PoolCase, base: IndexBase, seed: u64) -> Check {
    executed("unpooling", T::DTYPE);
    let (problem, dims) = (case.problem(), output_dims(case));
    let y: Vec<T> = case.fill.elements(dims.iter().product());
    let indices = any_indices(&problem, base, seed);
    let pooled = ok(Tensor::from_slice(device, &y, &dims))?;
    let winners = ok(Tensor::from_slice(device, &indices, &dims))?;
    let x = ok(max_unpool(case, base).forward(&pooled, &winners))?;
    prop_assert_eq!(x.dims(), case.dims());
    let expected = unpool::max_unpool(&problem, base, &y, &indices);
    assert_same(&ok(x.to_vec::<T>())?, &expected.map_err(|e| TestCaseError::fail(e.to_string()))?)
}

fn check_unpool_gradient<T: Element>(
    device: &Device,
    case: &PoolCase,
    base: IndexBase,
    seed: u64,
) -> Check {
    executed("unpooling's gradient", T::DTYPE);
    let (problem, dims) = (case.problem(), output_dims(case));
    let dx = case.elements::<T>();
    let indices = any_indices(&problem, base, seed);
    let gradient = ok(Tensor::from_slice(device, &dx, case.dims()))?;
    let winners = ok(Tensor::from_slice(device, &indices, &dims))?;
    let dy = ok(max_unpool(case, base).backward(&gradient, &winners))?;
    prop_assert_eq!(dy.dims(), dims);
    let expected = unpool::max_unpool_backward(&problem, base, &dx, &indices);
    assert_same(&ok(dy.to_vec::<T>())?, &expected.map_err(|e| TestCaseError::fail(e.to_string()))?)
}

fn check_foreign(
    device: &Device,
    case: &PoolCase,
    base: IndexBase,
    place: Index,
    index: i32,
) -> Check {
    let (problem, dims) = (case.problem(), output_dims(case));
    let y: Vec<f32> = case.fill.elements(dims.iter().product());
    if y.is_empty() {
        return Ok(());
    }
    executed("unpooling", DType::F32);
    let (_, mut indices) = direct::max_with_indices(&problem, base, &case.elements::<f32>());
    indices[place.index(y.len())] = index;
    let pooled = ok(Tensor::from_slice(device, &y, &dims))?;
    let winners = ok(Tensor::from_slice(device, &indices, &dims))?;
    let found = max_unpool(case, base).forward(&pooled, &winners);
    let waited = found.as_ref().ok().map(Tensor::wait);
    // Results computed from it are errors too, for every operator.
    let further: Vec<_> = found.iter().flat_map(|x| further(case, x)).collect();
    // A tensor that is overwritten is valid again.
    let anew = found.as_ref().ok().cloned();
    let found = found.and_then(|x| x.to_vec::<f32>());
    match (found, unpool::max_unpool(&problem, base, &y, &indices)) {
        (Ok(found), Ok(expected)) => {
            ok(waited.unwrap_or(Ok(())))?;
            assert_same(&found, &expected)
        }
        (Err(Error::Index(found)), Err(expected)) => {
            prop_assert_eq!(found, expected);
            prop_assert!(waited.is_none_or(|waited| waited.is_err()));
            prop_assert!(further.iter().all(Result::is_err), "{further:?}");
            ok(anew.map_or(Ok(()), |mut x| x.randomize(1).and_then(|()| x.wait())))
        }
        (found, expected) => Err(TestCaseError::fail(format!("{found:?}, not {expected:?}"))),
    }
}

/// The results of further operators on the result.
fn further(case: &PoolCase, x: &Tensor) -> [windowpane::Result<Vec<f32>>; 2] {
    let pooled = MaxPool::global().layout(case.layout).forward(x);
    let channels = case.problem().input().channels();
    let kernel = &[1; 3][..x.dims().len() - 2];
    let filter = [&[1], kernel, &[channels]].concat();
    let filter = Tensor::from_slice(x.device(), &vec![1.0f32; channels], filter);
    let convolved = filter.and_then(|filter| {
        let conv = Conv::new(Extents::try_from(kernel)?).layout(case.layout);
        conv.filter_layout(FilterLayout::Fhwc).forward(x, &filter, None)
    });
    [pooled, convolved].map(|y| y.and_then(|y| y.to_vec::<f32>()))
}

fn check_adjoint(device: &Device, case: &PoolCase) -> Check {
    executed("average", DType::F32);
    let case = PoolCase { fill: Fill { flavour: Flavour::Ties, ..case.fill }, ..*case };
    let (x, (g, output_dims)) = (case.elements::<f32>(), output_gradient::<f32>(&case));
    // Divided by a power of two, small integers have exact sums.
    let pool = AvgPool::with_window(case.window).layout(case.layout).divisor(Divisor::Fixed(4));
    let both = |device: &Device| -> windowpane::Result<[Vec<f32>; 2]> {
        let y = Tensor::from_slice(device, &x, case.dims()).and_then(|x| pool.forward(&x))?;
        let dy = Tensor::from_slice(device, &g, &output_dims)?;
        let dx = pool.backward(&dy, &case.dims())?.to_vec::<f32>()?;
        Ok([y.to_vec::<f32>()?, dx])
    };
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let [y, dx] = ok(both(device))?;
    let products = [dot(&y, &g), dot(&x, &dx)];
    if products[0] != products[1] {
        // Which of the two is wrong, and whether it is wrong every time.
        let (right, again) = (ok(both(&Device::host()))?, ok(both(device))?);
        let differs = |found: [Vec<f32>; 2]| {
            let first = |i: usize| found[i].iter().zip(&right[i]).position(|(a, b)| a != b);
            format!("y differs from the host's at {:?}, dx at {:?}", first(0), first(1))
        };
        let (once, twice) = (differs([y, dx]), differs(again));
        prop_assert!(false, "{:?}: {}; computed again, {}", products, once, twice);
    }
    Ok(())
}

/// SEMANTICS 4.1 for numbers whose plain powers overflow or underflow, and special cases of the gradient.
#[test]
fn norms_of_extremes_are_norms() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let x = [3e30f32, -4e30, 3e-30, 4e-30, 0.0, -0.0, -inf, 1.0, nan, inf, 3.3e38, 0.0];
    for device in devices() {
        let tensor = Tensor::from_slice(&device, &x, [1, x.len(), 1]).unwrap();
        let dy = Tensor::from_slice(&device, &[10.0f32; 6], [1, 6, 1]).unwrap();
        for p in [1.0, 1.25, 2.0, 3.0, 100.0] {
            let pool = LpPool::new(p, [2]);
            let y = pool.forward(&tensor).unwrap().to_vec::<f32>().unwrap();
            let norm = |a: f64, b: f64| (a.powf(p) + b.powf(p)).powf(1.0 / p);
            let close = |y: f32, expected: f64| (f64::from(y) / expected - 1.0).abs() < 1e-5;
            assert!(close(y[0], norm(3.0, 4.0) * 1e30), "{device} {p}: {y:?}");
            assert!(close(y[1], norm(3.0, 4.0) * 1e-30), "{device} {p}: {y:?}");
            assert!(y[2] == 0.0 && y[3] == inf && y[4].is_nan(), "{device} {p}: {y:?}");
            assert!(close(y[5], f64::from(3.3e38f32)), "{device} {p}: {y:?}");

            let dx = pool.backward(&dy, &tensor).unwrap().to_vec::<f32>().unwrap();
            let slope = |a: f64| 10.0 * (a / norm(3.0, 4.0)).powf(p - 1.0);
            for (dx, expected) in dx.iter().zip([3.0, 4.0, 3.0, 4.0].map(slope)) {
                assert!(close(dx.abs(), expected), "{device} {p}: {dx} is not {expected}");
            }
            assert!(dx[1] < 0.0 && dx[4] == 0.0 && dx[5] == 0.0, "{device} {p}: {dx:?}");
            if p > 1.0 {
                let infinite = dx[6].is_nan() && dx[7] == 0.0 && dx[8].is_nan() && dx[9].is_nan();
                assert!(infinite, "{device} {p}: {dx:?}");
            }
        }
        // A quotient of 1e-70 whose power is not small, and a quotient of 1e-31 whose power is hardly larger.
        for (far, p) in [([1e-35f32, 1e35], 1.01), ([1e-15, 1e16], 1.95)] {
            let tensor = Tensor::from_slice(&device, &far, [1, 2, 1]).unwrap();
            let dy = Tensor::from_slice(&device, &[1.0f32], [1, 1, 1]).unwrap();
            let dx = LpPool::new(p, [2]).backward(&dy, &tensor).unwrap().to_vec::<f32>().unwrap();
            let expected = (f64::from(far[0]) / f64::from(far[1])).powf(p - 1.0);
            assert!((f64::from(dx[0]) / expected - 1.0).abs() < 1e-4, "{device} {p}: {dx:?}");
        }
    }
}

/// SEMANTICS 5.2: finite numbers whose norm overflows f32 still get their gradient.
#[test]
fn norms_too_large_have_gradients() {
    for device in devices() {
        let elements = [3e38f32, -3e38, 1e-30, f32::INFINITY, 1.0, 0.0];
        let x = Tensor::from_slice(&device, &elements, [1, 6, 1]).unwrap();
        let dy = Tensor::from_slice(&device, &[10.0f32, 10.0], [1, 2, 1]).unwrap();
        for p in [1.01, 1.5, 2.0, 3.0, 64.0] {
            let pool = LpPool::new(p, [3]);
            let dx = pool.backward(&dy, &x).unwrap().to_vec::<f32>().unwrap();
            let norm = f64::from(3e38f32) * 2f64.powf(1.0 / p);
            for (dx, x) in dx.iter().zip(&elements[..3]) {
                let size = 10.0 * (f64::from(x.abs()) / norm).powf(p - 1.0);
                let off = (f64::from(*dx) - size * f64::from(x.signum())).abs();
                assert!(off <= 1e-3 * size + 1e-37, "{device} {p}: {dx} is not {size}");
            }
            assert!(dx[3].is_nan() && dx[4..] == [0.0, 0.0], "{device} {p}: {dx:?}");
        }
    }
}

/// SEMANTICS 4.1, 5.2 and 7.1 for normal f32 numbers of every magnitude.
#[test]
fn norms_of_all_sizes_are_the_reference() {
    let length = 2000;
    let shape = Shape::new(1, 1, [length].into()).unwrap();
    for device in devices() {
        let element = |i: i32| {
            let size = (i * i % 1009 * 37 + i / 7 * 29) % 254 - 126;
            let digits = 1.0 + f64::from(i * 31 % 97) / 97.0;
            let sign = if i % 3 == 0 { -1.0 } else { 1.0 };
            (sign * digits * f64::from(size).exp2()) as f32
        };
        let mut elements: Vec<f32> = (0..length as i32).map(element).collect();
        elements[100..106].copy_from_slice(&[0.0, -0.0, 0.0, f32::INFINITY, f32::NAN, 1.0]);
        for (kernel, p) in
            [(2, 1.01), (3, 1.25), (2, 1.5), (3, 1.95), (2, 2.0), (3, 2.5), (7, 64.0)]
        {
            let window = Window::new([kernel]).stride([1]);
            let problem = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
            let dy: Vec<f32> = (0..length + 1 - kernel).map(|i| (i % 7) as f32 - 3.0).collect();
            let x = Tensor::from_slice(&device, &elements, [1, length, 1]).unwrap();
            let gradient = Tensor::from_slice(&device, &dy, [1, dy.len(), 1]).unwrap();
            let pool = LpPool::with_window(p, window);
            let named = format!("{device}: {kernel} by {p}");
            let y = pool.forward(&x).unwrap().to_vec::<f32>().unwrap();
            let expected = lp::norm_totals(&problem, Exponent::new(p), &elements);
            assert_totals(&y, &expected).expect(&named);
            let dx = pool.backward(&gradient, &x).unwrap().to_vec::<f32>().unwrap();
            let expected = lp::norm_backward_totals(&problem, Exponent::new(p), &dy, &elements);
            assert_totals(&dx, &expected).expect(&named);
        }
    }
}

/// Medians of windows whose taps are kept in registers, and of larger ones that are searched bit by bit, over images with
/// one channel and with several.
#[test]
fn medians_of_images_are_the_reference() {
    for device in devices() {
        for (kernel, channels) in [(3, 1), (3, 8), (5, 4), (7, 1), (7, 16), (9, 2), (13, 1)] {
            let dims = [1, 19, 34, channels];
            let elements: Vec<f32> = (0..dims.iter().product::<usize>())
                .map(|i| (i * 7919 % 1009) as f32 - 500.0)
                .collect();
            let x = Tensor::from_slice(&device, &elements, dims).unwrap();
            let pool = MedianPool::new([kernel; 2]).stride([1; 2]).padding([kernel / 2; 2]);
            let plan = pool.plan(&device, DType::F32, &dims).unwrap();
            let found = pool.forward_with_plan(&plan, &x).unwrap().to_vec::<f32>().unwrap();
            let expected = rank::rank(plan.pooling(), Rank::MEDIAN, &elements);
            assert!(found == expected, "{device}: {kernel} × {kernel} of {channels} channels");
        }
    }
}

/// Modes of windows that are sorted in registers, and of larger ones that are counted, over labels in one channel and in
/// several: beside the reference and beside numbers that are counted here.
#[test]
fn modes_of_labels_are_counted() {
    fn check<T: Element + Ord>(device: &Device, of: impl Fn(usize) -> T) {
        for (kernel, channels, stride) in
            [(2, 1, 2), (2, 8, 2), (3, 4, 1), (7, 1, 2), (8, 1, 3), (8, 4, 5), (13, 2, 4)]
        {
            let dims = [2, 19, 34, channels];
            let elements: Vec<T> = (0..dims.iter().product::<usize>()).map(&of).collect();
            let x = Tensor::from_slice(device, &elements, dims).unwrap();
            let pool = ModePool::new([kernel; 2]).stride([stride; 2]).dilation([1, 2]);
            let plan = pool.plan(device, T::DTYPE, &dims).unwrap();
            let found = pool.forward_with_plan(&plan, &x).unwrap().to_vec::<T>().unwrap();
            let named = format!("{device}: {kernel} × {kernel} of {} × {channels}", T::DTYPE);
            assert!(found == mode::mode(plan.pooling(), &elements), "{named}");
            let [height, width] = [(19 - kernel) / stride + 1, (34 - 2 * kernel + 1) / stride + 1];
            for (at, y) in found.into_iter().enumerate() {
                let (pixel, channel) = (at / channels, at % channels);
                let corner = [pixel / width % height * stride, pixel % width * stride];
                let mut counts = std::collections::BTreeMap::new();
                for (row, column) in (0..kernel).flat_map(|i| (0..kernel).map(move |j| (i, 2 * j)))
                {
                    let place = (pixel / width / height * 19 + corner[0] + row) * 34 + corner[1];
                    *counts.entry(elements[(place + column) * channels + channel]).or_insert(0) +=
                        1;
                }
                let most = counts.values().max();
                let expected = counts.iter().find(|(_, count)| Some(*count) == most);
                assert_eq!(expected.map(|(number, _)| *number), Some(y), "{named}, element {at}");
            }
        }
    }
    for device in devices() {
        // Blobs, all the same, all different, and the ends of the range.
        check(&device, |i| (i / 5 % 7 * 3) as u8);
        check(&device, |_| -7i8);
        check(&device, |i| i as i32 * 7919 % 5003);
        check(&device, |i| if i * i % 11 < 5 { i32::MAX } else { i32::MIN + (i % 3) as i32 });
        check(&device, |i| (i * 7919 % 13 * 5000) as u16);
    }
}

/// SEMANTICS 4.7: ties, windows of padding only, zeros of both signs, NaN, and many taps.
#[test]
fn modes_in_corners() {
    for device in devices() {
        let line = |x: &[f32]| Tensor::from_slice(&device, x, [1, x.len(), 1]).unwrap();
        let read = |y: windowpane::Result<Tensor>| y.unwrap().to_vec::<f32>().unwrap();
        let bits = |y: Vec<f32>| y.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let x = line(&[3.0, 1.0, 2.0, 2.0, f32::INFINITY, f32::INFINITY, -0.0, 0.0]);
        let pool = ModePool::new(2).padding(4);
        assert_eq!(
            bits(read(pool.forward(&x))),
            bits(vec![0.0, 0.0, 1.0, 2.0, f32::INFINITY, -0.0, 0.0, 0.0]),
            "{device}"
        );
        let y = read(ModePool::new(2).padding([(0, 6)]).forward(&line(&[1.0, 1.0, 5.0, f32::NAN])));
        assert!(y[0] == 1.0 && y[1].is_nan() && y[2..] == [0.0; 3], "{device}: {y:?}");
        // One NaN among 300 taps is enough.
        let mut many = vec![4.0f32; 300];
        many[..90].fill(-1.0);
        for has_nan in [false, true] {
            many[17] = if has_nan { -f32::NAN } else { many[17] };
            match ModePool::global().forward(&line(&many)).map(|y| read(Ok(y))[0]) {
                Ok(y) => assert!(if has_nan { y.is_nan() } else { y == 4.0 }, "{device}: {y}"),
                Err(Error::LoopLimit { .. }) => {}
                Err(error) => panic!("{device}: {error}"),
            }
        }
        let bytes: Vec<u8> =
            (0..900).map(|i| if i % 3 == 0 { 255 } else { (i % 250) as u8 }).collect();
        let x = Tensor::from_slice(&device, &bytes, [1, 900, 1]).unwrap();
        match ModePool::new(300).forward(&x) {
            Ok(y) => assert_eq!(y.to_vec::<u8>().unwrap(), [255; 3], "{device}"),
            Err(Error::LoopLimit { .. }) => {}
            Err(error) => panic!("{device}: {error}"),
        }
    }
}

/// The first and the last rank are the minimum and the maximum, and ranks are of the numbers inside the input.
#[test]
fn extreme_ranks_are_extrema() {
    for device in devices() {
        let elements: Vec<i32> = (0..60).map(|i| i * 37 % 61 - 30).collect();
        let x = Tensor::from_slice(&device, &elements, [1, 6, 10, 1]).unwrap();
        let window = Window::new([3, 4]).padding([1, 2]);
        let read = |y: windowpane::Result<Tensor>| y.unwrap().to_vec::<i32>().unwrap();
        let rank = |rank| read(RankPool::with_window(rank, window).forward(&x));
        assert_eq!(rank(Rank::Nth(0)), read(MinPool::with_window(window).forward(&x)), "{device}");
        let last = Rank::Fraction { part: 7, whole: 7 };
        for most in [last, Rank::Nth(11), Rank::Nth(u32::MAX)] {
            assert_eq!(rank(most), read(MaxPool::with_window(window).forward(&x)), "{device}");
        }
        assert_eq!(read(MedianPool::global().forward(&x)), [1], "{device}");
        assert_eq!(read(RankPool::global(0).forward(&x)), [-30], "{device}");
    }
}

/// Impossible requests for adaptive windows, norms and unpooling are refused.
#[test]
fn what_the_family_cannot_do_is_refused() {
    for device in devices() {
        let x = Tensor::from_slice(&device, &[1.0f32; 16], [1, 4, 4, 1]).unwrap();
        let error = |result: windowpane::Result<Tensor>| result.expect_err("refused").to_string();
        let adaptive = MaxPool::adaptive([2, 2]);
        assert!(
            error(adaptive.stride([1, 1]).padding(Same::Upper).forward(&x)).contains("padding")
        );
        assert!(error(AvgPool::global().stride([2, 2]).forward(&x)).contains("stride"));
        assert!(
            error(AvgPool::adaptive([2, 0]).forward(&x)).contains("output extent on the width")
        );
        assert!(error(AvgPool::adaptive([2]).forward(&x)).contains("1 axes but 2"));
        for p in [0.5, f64::NAN, f64::INFINITY] {
            assert!(error(LpPool::new(p, [2, 2]).forward(&x)).contains("exponent"));
        }
        for (part, whole) in [(3, 2), (0, 0)] {
            let rank = Rank::Fraction { part, whole };
            assert!(error(RankPool::new(rank, [2, 2]).forward(&x)).contains("fraction"));
        }
        assert!(error(MaxUnpool::new([8]).forward(&x, &x)).contains("axes"));
        let unpool = MaxUnpool::new([8, 8]);
        assert!(error(unpool.forward(&x, &x)).contains("i32"), "the indices are no integers");
        if let Ok(x) = Tensor::from_slice(&device, &[1i32; 16], [1, 4, 4, 1]) {
            assert!(error(LpPool::new(2, [2, 2]).forward(&x)).contains("i32"));
        }
    }
}

/// Global pooling takes its rank from the input; if an adaptive output is larger than the input, windows overlap.
#[test]
fn adaptive_windows_take_any_input() {
    for device in devices() {
        let elements: Vec<f32> = (1..=24).map(|i| i as f32).collect();
        for dims in [&[1, 24, 1][..], &[1, 4, 6, 1], &[1, 2, 3, 4, 1]] {
            let x = Tensor::from_slice(&device, &elements, dims).unwrap();
            let read = |y: windowpane::Result<Tensor>| y.unwrap().to_vec::<f32>().unwrap();
            assert_eq!(read(MaxPool::global().forward(&x)), [24.0], "{device}");
            assert_eq!(read(AvgPool::global().forward(&x)), [12.5], "{device}");
            assert_eq!(read(LpPool::global(1).forward(&x)), [300.0], "{device}");
        }
        let x = Tensor::from_slice(&device, &[1.0f32, 3.0], [1, 2, 1]).unwrap();
        let y = AvgPool::adaptive([3]).forward(&x).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(y, [1.0, 2.0, 3.0], "{device}");
    }
}

/// Adaptive windows whose bounds need products of more than 32 bits: 100000 windows over 170001 coordinates.
#[test]
fn long_uneven_axes_are_exact() {
    let (length, windows) = (170_001, 100_000);
    let elements: Vec<f32> = (0..length).map(|i| (i * 7919 % 65537) as f32).collect();
    let shape = Shape::new(1, 1, [length].into()).unwrap();
    let window = Window::adaptive([windows]);
    let problem = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
    let expected = direct::max_with_indices(&problem, IndexBase::Plane, &elements);
    let gradient: Vec<f32> = (0..windows).map(|i| (i % 17) as f32).collect();
    let expected_gradient = windowpane_reference::pool::backward::average_backward(
        &problem,
        Divisor::Fixed(4),
        &gradient,
    );
    for device in devices() {
        let x = Tensor::from_slice(&device, &elements, [1, length, 1]).unwrap();
        let (y, winners) = MaxPool::adaptive([windows]).forward_with_indices(&x).unwrap();
        assert!(y.to_vec::<f32>().unwrap() == expected.0, "{device}");
        assert!(winners.to_vec::<i32>().unwrap() == expected.1, "{device}");
        let dy = Tensor::from_slice(&device, &gradient, [1, windows, 1]).unwrap();
        let pool = AvgPool::adaptive([windows]).divisor(Divisor::Fixed(4));
        let dx = pool.backward(&dy, &[1, length, 1]).unwrap().to_vec::<f32>().unwrap();
        assert!(dx == expected_gradient, "{device}");
    }
}

/// A plan names its operator and runs only the problem that it was made for.
#[test]
fn plans_of_the_family() {
    for device in devices() {
        let dims = [1, 5, 4, 2];
        let plan = LpPool::new(2, [2, 2]).plan_backward(&device, DType::F32, &dims).unwrap();
        assert!(plan.to_string().contains("Lp pooling's gradient"), "{plan}");
        let x = Tensor::from_slice(&device, &[1.0f32; 40], dims).unwrap();
        let other = LpPool::new(3, [2, 2]).forward_with_plan(&plan, &x);
        assert!(matches!(other, Err(Error::PlanMismatch { .. })), "{device}");
        let pool = MaxPool::adaptive([2, 3]);
        let plan = pool.plan(&device, DType::F32, &dims).unwrap();
        assert_eq!(pool.forward_with_plan(&plan, &x).unwrap().dims(), [1, 2, 3, 2]);
        let unpool = MaxUnpool::new([5, 4]);
        let plan = unpool.plan(&device, DType::F32, &[1, 2, 3, 2]).unwrap();
        assert!(plan.to_string().contains("max unpooling"), "{plan}");
        let (y, winners) = pool.forward_with_indices(&x).unwrap();
        assert_eq!(unpool.forward_with_plan(&plan, &y, &winners).unwrap().dims(), dims);
    }
}

/// Another input size compiles no new kernel, except that even and uneven adaptive windows have different kernels.
///
/// All launches of the process are counted, so the test runs in a process of its own.
#[cfg(feature = "kernels")]
#[test]
fn new_sizes_compile_nothing_new() {
    if !crate::is_alone("family::new_sizes_compile_nothing_new") {
        return;
    }
    let on = |device: &Device, dims: [usize; 4]| {
        Tensor::from_slice(device, &vec![1.0f32; dims.iter().product()], dims).unwrap()
    };
    for device in devices().into_iter().filter(|device| device.client().is_some()) {
        let count = |kernels: usize, what: &str, work: &dyn Fn()| {
            let launched = cubecl::launched::LaunchedKernels::new();
            work();
            // A process that exits while a device is still working may be ended by a signal.
            device.wait().unwrap();
            let found = launched.finish().len();
            assert_eq!(found, kernels, "{device}: {what} is so many kernels, not {kernels}");
        };
        count(1, "adaptive, evenly", &|| {
            for (n, h, w) in [(1, 7, 7), (2, 14, 28), (3, 49, 7), (1, 70, 21)] {
                AvgPool::adaptive([7, 7]).forward(&on(&device, [n, h, w, 4])).unwrap();
            }
        });
        count(1, "adaptive, unevenly", &|| {
            for (n, h, w) in [(1, 8, 9), (2, 13, 29), (3, 50, 6), (1, 71, 20)] {
                AvgPool::adaptive([7, 7]).forward(&on(&device, [n, h, w, 4])).unwrap();
            }
        });
        count(1, "global", &|| {
            for (n, h, w) in [(1, 7, 7), (2, 13, 28), (3, 1, 5)] {
                MaxPool::global().forward(&on(&device, [n, h, w, 4])).unwrap();
            }
        });
        // The exponent is a run-time value, so another one needs no other kernel.
        count(1, "norm", &|| {
            for (n, h, w, p) in [(1, 8, 8, 3.0), (2, 31, 17, 3.0), (4, 5, 90, 2.5)] {
                let pool = LpPool::new(p, [3, 3]).stride([2, 2]).padding([1, 1]);
                pool.forward(&on(&device, [n, h, w, 4])).unwrap();
            }
        });
        // So is a rank, if windows are searched bit by bit.
        count(1, "rank", &|| {
            for (n, h, w, k) in [(1, 12, 12, 3), (2, 31, 17, 40), (4, 15, 90, 0)] {
                let pool = RankPool::new(k, [9, 9]).padding([4, 4]);
                pool.forward(&on(&device, [n, h, w, 4])).unwrap();
            }
        });
        count(1, "mode", &|| {
            for (n, h, w) in [(1, 12, 12), (2, 31, 17), (4, 15, 90)] {
                let pool = ModePool::new([9, 9]).padding([4, 4]);
                pool.forward(&on(&device, [n, h, w, 4])).unwrap();
            }
        });
        count(3, "unpooling: forget, settle and unpool", &|| {
            for (n, h, w) in [(1, 4, 4), (2, 8, 6), (5, 10, 2)] {
                let y = on(&device, [n, h / 2, w / 2, 3]);
                let none = vec![-1i32; y.len()];
                let indices = Tensor::from_slice(&device, &none, y.dims()).unwrap();
                MaxUnpool::new([h, w]).forward(&y, &indices).unwrap();
            }
        });
    }
}
