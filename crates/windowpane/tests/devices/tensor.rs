use proptest::prelude::*;
use windowpane::{
    AvgPool, Conv, DType, Device, Divisor, Element, Error, Layout, LpPool, MaxPool, MaxUnpool,
    MedianPool, MinPool, ModePool, Rank, RankPool, Tensor,
};
use windowpane_testing::{Fill, assert_same, executed, on_every_device, proptest};

use crate::pool::has_sums;

on_every_device! {
    /// Elements that are copied to a device are read back unchanged, directly and through the host.
    fn elements_come_back(device, case in (Fill::any(), 0..40usize, 1..9usize)) {
        let (fill, rows, columns) = case;
        executed("copies", DType::F32);
        let elements: Vec<f32> = fill.elements(rows * columns);
        let tensor = Tensor::from_slice(device, &elements, [rows, columns])
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        let there = tensor.to_vec::<f32>().map_err(|error| TestCaseError::fail(error.to_string()))?;
        assert_same(&there, &elements)?;
        let back = tensor
            .to_device(&windowpane::Device::host())
            .and_then(|tensor| tensor.to_vec::<f32>())
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        assert_same(&back, &elements)
    }
}

/// A change of layout moves every element to its place, and the reverse change restores the tensor: for types of all
/// sizes, and for matrices that fill their tiles, that fill some only partly, and that have one row or one column.
#[test]
fn layouts_are_changed_and_restored() {
    use Layout::{ChannelsFirst, ChannelsLast};
    let shapes: [&[usize]; 12] = [
        &[2, 64, 8, 8],
        &[1, 3, 224, 224],
        &[3, 70, 7, 7],
        &[2, 129, 65],
        &[1, 2, 5000],
        &[2, 5000, 2],
        &[1, 1, 9, 9],
        &[4, 9, 1],
        &[2, 96, 14, 14],
        &[1, 8, 3, 5, 7],
        &[0, 8, 3, 3],
        &[70_000, 2, 2],
    ];
    let types = [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8];
    for device in windowpane::Device::all() {
        for dtype in types.into_iter().filter(|dtype| device.supports(*dtype)) {
            for dims in shapes {
                let x = Tensor::random(&device, dtype, dims, 1).unwrap();
                let y = x.to_layout(ChannelsFirst, ChannelsLast).unwrap();
                let (batch, channels) = (dims[0], dims[1]);
                let turned: Vec<usize> = [&[batch], &dims[2..], &[channels]].concat();
                assert_eq!(y.dims(), turned, "{device} {dtype}");
                let (size, plane) = (dtype.size(), dims[2..].iter().product::<usize>());
                let (first, last) = (x.to_bytes().unwrap(), y.to_bytes().unwrap());
                let element = |bytes: &[u8], at: usize| bytes[at * size..][..size].to_vec();
                for at in 0..batch * channels * plane {
                    let (n, c, p) = (at / channels / plane, at / plane % channels, at % plane);
                    let expected = element(&first, at);
                    let found = element(&last, (n * plane + p) * channels + c);
                    assert_eq!(found, expected, "{device} {dtype} {dims:?}: element {at}");
                }
                let back = y.to_layout(ChannelsLast, ChannelsFirst).unwrap();
                assert_eq!(back.dims(), dims);
                assert!(back.to_bytes().unwrap() == first, "{device} {dtype} {dims:?}");
            }
        }
    }
    let flat = Tensor::from_slice(&Device::host(), &[1.0f32], [1]).unwrap();
    assert!(flat.to_layout(ChannelsFirst, ChannelsLast).is_err());
}

/// A copy equals its source, whatever vectors divide its length, and does not change clones of its target.
#[test]
fn copies_are_copies() {
    for device in windowpane::Device::all() {
        for (dtype, len) in [(DType::F32, 1 << 16), (DType::F32, 6 * 4097), (DType::F16, 31)] {
            if !device.supports(dtype) {
                continue;
            }
            let source = Tensor::random(&device, dtype, [len], 1).unwrap();
            let mut target = Tensor::random(&device, dtype, [len], 2).unwrap();
            let (before, clone) = (target.to_bytes().unwrap(), target.clone());
            target.copy_from(&source).unwrap();
            assert!(target.to_bytes().unwrap() == source.to_bytes().unwrap(), "{device} {len}");
            assert!(clone.to_bytes().unwrap() == before, "{device}: a clone was written to");
            drop(clone);
            target.randomize(3).unwrap();
            target.copy_from(&source).unwrap();
            assert!(target.to_bytes().unwrap() == source.to_bytes().unwrap(), "{device} {len}");
            let other = Tensor::random(&device, dtype, [len + 1], 1).unwrap();
            let refused = target.copy_from(&other);
            assert!(matches!(refused, Err(Error::DimsMismatch { .. })), "{device}");
        }
    }
}

/// A recording can be replayed several times; each replay does the recorded work on the results of the one before.
#[test]
#[cfg(feature = "kernels")]
fn recordings_do_the_work_again() {
    // Allocations by other threads may be the reason why nothing is recorded.
    if !crate::is_alone("tensor::recordings_do_the_work_again") {
        return;
    }
    for device in windowpane::Device::all() {
        let x = Tensor::random(&device, DType::F32, [2, 9, 9, 5], 1).unwrap();
        let blur = AvgPool::new([3, 3]).stride([1, 1]).padding([1, 1]);
        let plan = blur.plan(&device, x.dtype(), x.dims()).unwrap();
        let fresh = || {
            let copy = || Tensor::from_bytes(&device, x.dtype(), &x.to_bytes().unwrap(), x.dims());
            [vec![copy().unwrap()], vec![copy().unwrap()]]
        };
        let twice = |[a, b]: &mut [Vec<Tensor>; 2]| {
            plan.run(&[&a[0]], b)?;
            plan.run(&[&b[0]], a)
        };
        let mut again = fresh();
        let mut recording = device.record(|| twice(&mut again)).unwrap();
        // CubeCL's CPU runtime records nothing, and the host has no launches.
        assert_eq!(recording.is_captured(), !device.uses_host_memory(), "{device}");
        for _ in 0..2 {
            recording.replay().unwrap();
        }
        let ((), _) = device.time(|| recording.replay()).unwrap();
        drop(recording);
        let mut expected = fresh();
        (0..4).for_each(|_| twice(&mut expected).unwrap());
        let [again, expected] = [again, expected].map(|both| both.map(|it| it[0].to_bytes()));
        for (again, expected) in again.into_iter().zip(expected) {
            assert!(again.unwrap() == expected.unwrap(), "{device}");
        }
    }
}

/// Work that few devices can record is called again by a replay.
#[test]
#[cfg(feature = "kernels")]
fn work_that_brings_numbers_is_done_again() {
    if !crate::is_alone("tensor::work_that_brings_numbers_is_done_again") {
        return;
    }
    for device in windowpane::Device::all() {
        let (pool, mut y, mut calls) = (MaxPool::new([2, 2]), Vec::new(), 0);
        let plan = pool.plan(&device, DType::F32, &[1, 2, 2, 1]).unwrap();
        let mut recording = device
            .record(|| {
                calls += 1;
                let x = Tensor::from_slice(&device, &[0.0, calls as f32, 0.5, 0.25], [1, 2, 2, 1])?;
                plan.run(&[&x], &mut y)
            })
            .unwrap();
        // CUDA and HIP record the numbers too.
        let may_keep = ["cuda", "hip"].contains(&device.backend().name());
        assert!(may_keep || !recording.is_captured(), "{device}");
        recording.replay().unwrap();
        drop(recording);
        assert!(calls >= 2, "{device}");
        assert_eq!(y[0].to_vec::<f32>().unwrap(), [calls as f32], "{device}");
    }
}

/// Work that fails or panics is not recorded, and the device still works afterwards.
#[test]
#[cfg(feature = "kernels")]
fn recordings_of_failures_are_failures() {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    if !crate::is_alone("tensor::recordings_of_failures_are_failures") {
        return;
    }
    for device in windowpane::Device::all() {
        for (failing, panics) in [(1, false), (2, false), (1, true), (2, true)] {
            let recorded = catch_unwind(AssertUnwindSafe(|| {
                let (mut calls, device) = (0, &device);
                device.record(move || {
                    calls += 1;
                    let spare = Tensor::random(device, DType::F32, [64], calls)?;
                    match calls == failing {
                        true if panics => panic!("it does"),
                        true => spare.to_vec::<i32>().map(|_| ()),
                        false => Ok(()),
                    }
                })
            }));
            match recorded {
                // The work is called a second time only on devices that may record it.
                Ok(Ok(_)) => assert!(failing == 2 && device.uses_host_memory(), "{device}"),
                Ok(Err(error)) => {
                    assert!(matches!(error, Error::DTypeMismatch { .. }), "{device}: {error}");
                }
                Err(_) => assert!(panics, "{device}"),
            }
            let x = Tensor::from_slice(&device, &[1f32, 3.0, 2.0, 0.5], [1, 2, 2, 1]).unwrap();
            let plan = MaxPool::new([2, 2]).plan(&device, x.dtype(), x.dims()).unwrap();
            let mut y = Vec::new();
            let mut recording = device.record(|| plan.run(&[&x], &mut y)).unwrap();
            assert_eq!(recording.is_captured(), !device.uses_host_memory(), "{device}");
            recording.replay().unwrap();
            drop(recording);
            assert_eq!(y[0].to_vec::<f32>().unwrap(), [3.0], "{device}");
        }
    }
}

/// Work that is compiled does not run, and later calls find their kernels compiled and are right, also after work that
/// fails or panics.
#[test]
#[cfg(feature = "kernels")]
fn compiled_work_does_not_run() {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use cubecl_runtime::execution::{ProcessMode, ProcessModeOverride, StatisticsCollector};

    // The kernels of other tests would be counted too.
    if !crate::is_alone("tensor::compiled_work_does_not_run") {
        return;
    }
    let is_host = |device: &Device| device.backend() == windowpane::Backend::Host;
    for device in Device::all().into_iter().filter(|device| !is_host(device)) {
        let collector = StatisticsCollector::new();
        let _counted = ProcessModeOverride::new(ProcessMode::Execute, &collector);
        let compilation = || collector.statistics().compilation;
        let pool = MaxPool::new([2, 2]).stride([2, 2]);
        let plan = pool.plan(&device, DType::F32, &[1, 2, 4, 1]).unwrap();
        let x = |first: f32| {
            let elements = [first, 3.0, 2.0, 0.5, 0.0, 1.0, 7.0, 0.25];
            Tensor::from_slice(&device, &elements, [1, 2, 4, 1]).unwrap()
        };
        let mut y = vec![Tensor::from_slice(&device, &[5.0f32, 6.0], [1, 1, 2, 1]).unwrap()];
        let large = x(9.0);
        device.compile(|| plan.run(&[&large], &mut y)).unwrap();
        assert_eq!(y[0].to_vec::<f32>().unwrap(), [5.0, 6.0], "{device}");
        let compiled = compilation();
        assert!(compiled.compiled + compiled.loaded >= 1, "{device}: {compiled:?}");
        plan.run(&[&large], &mut y).unwrap();
        assert_eq!(y[0].to_vec::<f32>().unwrap(), [9.0, 7.0], "{device}");
        assert_eq!(compilation().registered, compiled.registered, "{device}");

        let failed = device.compile(|| pool.forward(&large.reshape([8])?).map(drop));
        assert!(failed.is_err(), "{device}");
        let work = || device.compile(|| panic!("it does"));
        assert!(catch_unwind(AssertUnwindSafe(work)).is_err(), "{device}");
        plan.run(&[&x(1.0)], &mut y).unwrap();
        assert_eq!(y[0].to_vec::<f32>().unwrap(), [3.0, 7.0], "{device}");

        // A recording that is made where nothing runs is no graph of nothing.
        let mut z = vec![Tensor::from_slice(&device, &[5.0f32, 6.0], [1, 1, 2, 1]).unwrap()];
        let (plan, one, results, mut recording) = (&plan, &x(1.0), &mut z, None);
        device
            .compile(|| {
                recording = Some(device.record(move || plan.run(&[one], results))?);
                Ok(())
            })
            .unwrap();
        recording.unwrap().replay().unwrap();
        assert_eq!(z[0].to_vec::<f32>().unwrap(), [3.0, 7.0], "{device}");
    }
}

/// A conversion rounds once, to nearest even, and clamps numbers that are out of an integer type's range.
#[test]
fn conversions_round_once() {
    let host = windowpane::Device::host();
    // 1 + 2⁻¹¹ + 2⁻³⁰ is above the midpoint of two f16 numbers. If it were rounded to f32 first, it would become the
    // midpoint, and then be rounded down.
    let x = Tensor::from_slice(&host, &[1.0 + 2f64.powi(-11) + 2f64.powi(-30), -3e5, 2.5], [3])
        .unwrap();
    let halves = x.to_dtype(DType::F16).unwrap().to_vec::<half::f16>().unwrap();
    assert_eq!(halves[0].to_f64(), 1.0 + 2f64.powi(-10));
    assert_eq!(halves[1].to_f64(), f64::NEG_INFINITY);
    assert_eq!(x.to_dtype(DType::I8).unwrap().to_vec::<i8>().unwrap(), [1, -128, 2]);
}

/// On every device, a conversion gives the numbers that the host's gives: for all numbers of 16 bits and fewer, and for
/// f32 at and beside the midpoints of 16-bit numbers. Subnormal numbers may count as 0 (SEMANTICS 7.2).
#[test]
fn conversions_of_devices_are_the_hosts() {
    let host = Device::host();
    let bits: Vec<u32> = (0..=u32::from(u16::MAX)).collect();
    let upper = bits.iter().map(|bits| bits << 16);
    // Below, at and above the midpoints of bf16; those of f16 have three more bits.
    let beside = |wide: u32| [0x7fff, 0x8000, 0x8001, 0x0fff, 0x1000, 0x1001].map(|low| wide | low);
    let floats: Vec<f32> =
        upper.clone().flat_map(beside).chain(upper).map(f32::from_bits).collect();
    let halves = bits.iter().map(|bits| half::f16::from_bits(*bits as u16));
    let upper_halves = bits.iter().map(|bits| half::bf16::from_bits(*bits as u16));
    // Beside all that is rounded to 24, 11 or 8 digits, of both signs; and the ends.
    let integers = (0..31).flat_map(|digits| {
        let beside = [0, 1, 0x7f, 0x80, 0x81, 0xff, 0x100, 0x180, 0x7fff, 0x8000, 0x8001];
        let power = 1i32 << digits;
        let uppers =
            [0, power >> 1, power >> 7, power >> 8, (power >> 8) * 3, power >> 11, power >> 12];
        beside.into_iter().flat_map(move |low| uppers.map(|upper| power.wrapping_add(upper) + low))
    });
    let integers: Vec<i32> = integers.flat_map(|x| [x, x.wrapping_neg(), x ^ i32::MIN]).collect();
    let unsigned: Vec<u32> = integers.iter().map(|x| *x as u32).collect();
    // The same at the other end of 64 bits, and as they are.
    let low = integers.iter().map(|x| i64::from(*x));
    let long: Vec<i64> = low.flat_map(|x| [x, x << 32, (x << 32) + 1, x << 22, !x]).collect();
    let sources = [
        Tensor::from_slice(&host, &integers, [integers.len()]),
        Tensor::from_slice(&host, &unsigned, [integers.len()]),
        Tensor::from_slice(&host, &long, [long.len()]),
        Tensor::from_slice(&host, &[true, false, true], [3]),
        Tensor::from_slice(&host, &floats, [floats.len()]),
        Tensor::from_slice(&host, &halves.collect::<Vec<_>>(), [bits.len()]),
        Tensor::from_slice(&host, &upper_halves.collect::<Vec<_>>(), [bits.len()]),
        Tensor::from_slice(&host, &(i16::MIN..=i16::MAX).collect::<Vec<_>>(), [1 << 16]),
        Tensor::from_slice(&host, &(1..=u16::MAX).collect::<Vec<_>>(), [(1 << 16) - 1]),
        Tensor::from_slice(&host, &(i8::MIN..=i8::MAX).collect::<Vec<_>>(), [256]),
        Tensor::from_slice(&host, &(1..=u8::MAX).collect::<Vec<_>>(), [255]),
    ];
    let sources = sources.map(|x| x.expect("a small tensor"));
    for device in Device::all() {
        for (x, to) in sources.iter().flat_map(|x| DType::ALL.map(|to| (x, to))) {
            let from = x.dtype();
            if !device.supports(from) || !device.supports(to) {
                continue;
            }
            let numbers = |tensor: Tensor| {
                let there = tensor.to_device(&host).and_then(|tensor| tensor.to_dtype(DType::F64));
                there.and_then(|wide| wide.to_vec::<f64>()).expect("f64 is on the host")
            };
            let there =
                x.to_device(&device).and_then(|x| x.to_dtype(to)).expect("it has both types");
            let here = x.to_dtype(to).expect("every type");
            if to == DType::I64 {
                // An f64 would not tell all of these apart.
                let (found, expected) = (there.to_vec::<i64>(), here.to_vec::<i64>());
                assert_eq!(found.unwrap(), expected.unwrap(), "{device}: {from} to {to}");
                continue;
            }
            let (found, expected) = (numbers(there), numbers(here));
            for ((y, e), x) in found.iter().zip(&expected).zip(numbers(x.clone())) {
                let subnormal = x.abs() < 2f64.powi(-126) || e.abs() < 2f64.powi(-14);
                let same = y.to_bits() == e.to_bits() || (y.is_nan() && e.is_nan());
                let flushed = subnormal && *y == 0.0;
                assert!(same || flushed, "{device}: {x:e} in {from} is {y:e} in {to}, not {e:e}");
            }
        }
    }
}

/// Elements that do not match a tensor's dimensions or type are refused.
#[test]
fn mismatches_are_errors() {
    let host = windowpane::Device::host();
    let short = Tensor::from_slice(&host, &[1.0f32; 5], [2, 3]);
    assert!(matches!(short, Err(Error::Length { found: 5, .. })));
    let huge = Tensor::from_slice(&host, &[1.0f32; 5], [usize::MAX, 3]);
    assert!(matches!(huge, Err(Error::Length { .. })));
    let x = Tensor::from_slice(&host, &[1.0f32; 6], [2, 3]).unwrap();
    let read = x.to_vec::<i32>();
    assert!(matches!(read, Err(Error::DTypeMismatch { asked: DType::I32, found: DType::F32 })));
    assert_eq!(f32::DTYPE, DType::F32);
}

on_every_device! {
    /// Random numbers are in their range, spread over it, and the same for the same seed.
    fn random_numbers_are_spread(device, case in (0..u32::MAX, 1..3000usize)) {
        let (seed, elements) = case;
        executed("random numbers", DType::F32);
        let fail = |error: Error| TestCaseError::fail(error.to_string());
        let random = |seed| Tensor::random(device, DType::F32, [elements], seed);
        let numbers = random(seed).and_then(|x| x.to_vec::<f32>()).map_err(fail)?;
        prop_assert_eq!(numbers.len(), elements);
        prop_assert!(numbers.iter().all(|x| (-0.5..0.5).contains(x)), "{:?}", numbers);
        let mut other = random(seed).map_err(fail)?;
        assert_same(&other.to_vec::<f32>().map_err(fail)?, &numbers)?;
        if elements >= 1000 {
            // Six standard deviations of the mean of uniform numbers.
            let mean = numbers.iter().map(|x| f64::from(*x)).sum::<f64>() / elements as f64;
            prop_assert!(mean.abs() < 6.0 * (1.0 / 12.0 / elements as f64).sqrt(), "mean {}", mean);
            other.randomize(seed ^ 1).map_err(fail)?;
            prop_assert!(other.to_vec::<f32>().map_err(fail)? != numbers);
        }
        Ok(())
    }
}

/// A clone keeps its numbers when its original is filled with others.
#[test]
fn a_clone_keeps_its_numbers() {
    for device in windowpane::Device::all() {
        let mut x = Tensor::random(&device, DType::F32, [1000], 1).unwrap();
        let (clone, before) = (x.clone(), x.to_vec::<f32>().unwrap());
        x.randomize(2).unwrap();
        assert_eq!(clone.to_vec::<f32>().unwrap(), before, "{device}");
        assert_ne!(x.to_vec::<f32>().unwrap(), before, "{device}");
    }
}

/// Integer types get whole numbers; more elements than kernels can count are refused.
#[test]
fn random_integers_are_whole_and_too_many_are_refused() {
    for device in windowpane::Device::all() {
        for dtype in device.dtypes() {
            let x = Tensor::random(&device, dtype, [4, 300], 3).unwrap();
            let x = x.to_device(&windowpane::Device::host()).unwrap();
            let numbers = x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            let range = match dtype {
                DType::Bool => 0.0..=1.0,
                dtype if dtype.is_float() => -0.5..=0.5,
                _ => 0.0..=127.0,
            };
            assert!(numbers.iter().all(|x| range.contains(x)), "{device} {dtype}: {numbers:?}");
            assert!(numbers.iter().any(|x| *x != numbers[0]), "{device} {dtype}: {numbers:?}");
        }
        let vast = Tensor::random(&device, DType::F32, [1 << 20, 1 << 20], 1);
        assert!(matches!(vast, Err(Error::Geometry(_))), "{device}: {vast:?}");
    }
}

/// SEMANTICS 1.4 and 8: a problem that is too large for any memory can be planned on `host`, with saturated counts of
/// bytes and operations, and is an error when its result would be allocated. It never panics or ends the process.
#[test]
fn what_no_memory_holds_is_refused() {
    for device in Device::all() {
        let x = Tensor::from_slice(&device, &[1.0f32], [1, 1, 1, 1]).unwrap();
        let index = Tensor::from_slice(&device, &[0i32], [1, 1, 1, 1]).unwrap();
        // The input is small, and the output has 2⁵⁸ elements.
        let (far, wide) = ([1 << 28, 1 << 28], [1 << 29, 1 << 29]);
        let refused = |y: windowpane::Result<Tensor>| {
            let error = y.expect_err("there is no such memory").to_string();
            assert!(error.contains("memory") || error.contains("elements"), "{device}: {error}");
        };
        refused(MaxPool::new([1, 1]).padding(far).forward(&x));
        refused(AvgPool::new([1, 1]).padding(far).forward(&x));
        refused(LpPool::new(2, [1, 1]).padding(far).forward(&x));
        refused(MaxPool::adaptive(wide).forward(&x));
        refused(MaxUnpool::new(wide).forward(&x, &index));
        refused(Conv::new([1, 1]).padding(far).forward(&x, &x, None));
    }
    let (host, vast) = (Device::host(), [1 << 60, 1, 1, 1]);
    let pool = MaxPool::new([1, 1]).plan(&host, DType::F64, &vast).unwrap();
    let conv = Conv::new([1, 1]).plan(&host, DType::F64, &vast, &[1; 4]).unwrap();
    assert_eq!([pool.bytes(), conv.bytes()], [u64::MAX; 2]);
    let (x, w) = ([1 << 42, 1, 1, 1 << 20], [1 << 20, 1, 1, 1 << 20]);
    let conv = Conv::new([1, 1]).plan(&host, DType::F64, &x, &w).unwrap();
    assert_eq!(conv.operations(), u64::MAX);
}

/// The ends of the types, and numbers that an f64 would not tell apart, are exact on every device that has the type: as
/// maxima, minima, their indices, medians, modes and unpooled, and of empty windows too (SEMANTICS 2.3, 2.5, 2.6).
#[test]
fn the_ends_of_wide_integers_are_exact() {
    fn check<T: Element>(device: &Device, x: [T; 4], [least, most]: [T; 2]) {
        if !device.supports(T::DTYPE) {
            return;
        }
        let name = format!("{device} {}", T::DTYPE);
        let on = Tensor::from_slice(device, &x, [1, 4, 1]).unwrap();
        let read = |tensor: Tensor| tensor.to_vec::<T>().unwrap();
        assert_eq!(read(on.clone()), x, "{name}");
        // The first window is empty.
        let max = MaxPool::new([2]).stride([1]).padding([2]);
        let min = MinPool::new([2]).stride([1]).padding([2]);
        let (y, winners) = max.forward_with_indices(&on).unwrap();
        // `x` ascends.
        assert_eq!(read(y.clone()), [least, x[0], x[1], x[2], x[3], x[3], least], "{name}");
        assert_eq!(winners.to_vec::<i32>().unwrap(), [-1, 0, 1, 2, 3, 3, -1], "{name}");
        let back = MaxUnpool::new([4]).forward(&y, &winners).unwrap();
        assert_eq!(read(back), x, "{name}");
        let (y, winners) = min.forward_with_indices(&on).unwrap();
        assert_eq!(read(y), [most, x[0], x[0], x[1], x[2], x[3], most], "{name}");
        assert_eq!(winners.to_vec::<i32>().unwrap(), [-1, 0, 0, 1, 2, 3, -1], "{name}");
        assert_eq!(read(MedianPool::new([2]).forward(&on).unwrap()), [x[1], x[3]], "{name}");
        assert_eq!(read(RankPool::new(Rank::Nth(0), [4]).forward(&on).unwrap()), [x[0]], "{name}");
        let thrice = [x[3], x[2], x[3], x[0]];
        let thrice = Tensor::from_slice(device, &thrice, [1, 4, 1]).unwrap();
        assert_eq!(read(ModePool::new([4]).forward(&thrice).unwrap()), [x[3]], "{name}");
    }
    for device in Device::all() {
        let exact = (1i64 << 53) + 1;
        check(&device, [i64::MIN, exact - 1, exact, i64::MAX], [i64::MIN, i64::MAX]);
        check(&device, [i64::MIN, i64::MIN + 1, -exact, -exact + 1], [i64::MIN, i64::MAX]);
        check(&device, [0, 1, u32::MAX - 1, u32::MAX], [0, u32::MAX]);
        check(&device, [0, i32::MAX as u32, 1 << 31, u32::MAX], [0, u32::MAX]);
        check(&device, [i32::MIN, -1, i32::MAX - 1, i32::MAX], [i32::MIN, i32::MAX]);
    }
}

/// SEMANTICS 3.5: sums of wide integers are exact, and their quotients are rounded once, where a device has the
/// integers for them; elsewhere they are refused.
#[test]
fn sums_of_wide_integers_are_exact_or_refused() {
    fn check<T: Element>(device: &Device, x: &[T], divisor: Divisor, expected: T) {
        if !device.supports(T::DTYPE) {
            return;
        }
        let on = Tensor::from_slice(device, x, [1, x.len(), 1]).unwrap();
        let pool = AvgPool::new([x.len()]).divisor(divisor);
        let has = has_sums(device, T::DTYPE);
        match pool.forward(&on) {
            Ok(y) => {
                assert!(has, "{device}");
                assert_eq!(y.to_vec::<T>().unwrap(), [expected], "{device} {}", T::DTYPE);
            }
            Err(error) => {
                let error = error.to_string();
                assert!(!has && error.contains("integers that hold sums"), "{device}: {error}");
            }
        }
    }
    let mean = Divisor::Valid;
    for device in Device::all() {
        check(&device, &[i32::MAX, i32::MAX, i32::MAX - 1], mean, i32::MAX);
        check(&device, &[i32::MIN; 3], mean, i32::MIN);
        check(&device, &[i32::MAX, i32::MAX - 1], mean, i32::MAX - 1);
        check(&device, &[i32::MIN, i32::MIN + 1], Divisor::Truncated(2), i32::MIN + 1);
        check(&device, &[i32::MAX, 1], Divisor::Fixed(1), i32::MAX);
        check(&device, &[u32::MAX, u32::MAX - 1], mean, u32::MAX - 1);
        check(&device, &[u32::MAX, u32::MAX - 1, u32::MAX - 2], mean, u32::MAX - 1);
        check(&device, &[u32::MAX, 1], Divisor::Fixed(1), u32::MAX);
        check(&device, &[i64::MAX, i64::MAX - 2], mean, i64::MAX - 1);
        check(&device, &[i64::MIN, i64::MIN + 1], Divisor::Truncated(2), i64::MIN + 1);
        check(&device, &[i64::MIN, -1], Divisor::Fixed(1), i64::MIN);
        if device.supports(DType::Bool) {
            let on = Tensor::from_slice(&device, &[true, false], [1, 2, 1]).unwrap();
            let refused = AvgPool::new([2]).forward(&on).expect_err("a bool has no sums");
            assert!(refused.to_string().contains("not defined for bool"), "{device}: {refused}");
        }
    }
}
