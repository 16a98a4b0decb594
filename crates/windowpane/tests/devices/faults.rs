//! Faults after which a device still works. `docs/FAULTS.md` lists them.

use std::thread;

#[cfg(feature = "kernels")]
use proptest::prelude::*;
use windowpane::{AvgPool, Backend, Conv, DType, Device, Error, MaxPool, MaxUnpool, Tensor};
#[cfg(feature = "kernels")]
use windowpane_testing::{PoolCase, assert_same, executed, on_every_device, proptest};

use crate::pool::devices;

/// Checks a small pooling with a known result.
#[track_caller]
fn works(device: &Device) {
    let x = Tensor::from_slice(device, &[1.0f32, 5.0, 4.0, 2.0], [1, 4, 1]).unwrap();
    assert_eq!(MaxPool::new([2]).forward(&x).unwrap().to_vec::<f32>().unwrap(), [5.0, 4.0]);
}

/// A request for more than a buffer or the host's memory can hold is an error, for tensors and for operators.
#[test]
fn a_device_goes_on_after_too_much_was_asked_of_it() {
    for device in devices() {
        let x = Tensor::from_slice(&device, &[1.0f32], [1, 1, 1]).unwrap();
        let pool = MaxPool::new([1]).padding([1 << 30]);
        let conv = Conv::new([1]).padding([1 << 30]);
        for _ in 0..3 {
            let vast = Tensor::random(&device, DType::F32, [1 << 20, 1 << 20], 1);
            assert!(vast.is_err(), "{device}");
            // 2³¹ + 1 outputs; kernels count at most 2³¹ − 1.
            for refused in [pool.forward(&x), conv.forward(&x, &x, None)] {
                let error = refused.expect_err("too large").to_string();
                assert!(error.contains("2147483647"), "{device}: {error}");
            }
            works(&device);
        }
    }
}

/// 2³¹ elements are too many to count, and 2³¹ − 1 are not.
#[test]
fn tensors_end_at_two_to_the_thirty_first() {
    let vast = (1usize << 31, (1usize << 31) - 1);
    for device in devices() {
        let error = Tensor::random(&device, DType::U8, [vast.0], 1).expect_err("too many");
        assert!(error.to_string().contains("2147483647"), "{device}: {error}");
        let plan = MaxPool::new([1]).plan(&device, DType::F32, &[1, vast.0, 1]);
        assert!(plan.is_err(), "{device}");
    }
    assert!(MaxPool::new([1]).plan(&Device::host(), DType::F32, &[1, vast.1, 1]).is_ok());
}

/// Several threads launch on one device, from a shared tensor and from their own.
#[test]
fn threads_share_a_device_and_a_tensor() {
    for device in devices() {
        let shared = Tensor::random(&device, DType::F32, [2, 16, 16, 8], 1).unwrap();
        let (pool, w) = (MaxPool::new([3, 3]).stride([1, 1]), [4, 3, 3, 8]);
        let w = Tensor::random(&device, DType::F32, w, 2).unwrap();
        let work = |own: &Tensor| {
            let pooled = pool.forward(&shared).unwrap().to_vec::<f32>().unwrap();
            let convolved = Conv::new([3, 3]).forward(own, &w, None).unwrap();
            (pooled, convolved.to_vec::<f32>().unwrap())
        };
        let own = |seed| Tensor::random(&device, DType::F32, [2, 16, 16, 8], seed).unwrap();
        let expected: Vec<_> = (0..4).map(|seed| work(&own(seed))).collect();
        thread::scope(|scope| {
            for (seed, expected) in expected.iter().enumerate() {
                let (work, own, device) = (&work, &own, &device);
                scope.spawn(move || {
                    for _ in 0..20 {
                        let found = work(&own(seed as u32));
                        assert!(found == *expected, "{device}: thread {seed} has other results");
                    }
                });
            }
        });
        works(&device);
    }
}

/// A tensor can be used after the thread that made it has ended.
#[test]
fn tensors_outlive_the_thread_that_made_them() {
    for device in devices() {
        let there = device.clone();
        let made = thread::spawn(move || {
            let x = Tensor::random(&there, DType::F32, [1, 64, 4], 7).unwrap();
            AvgPool::new([4]).forward(&x).unwrap()
        });
        let y = made.join().unwrap();
        let x = Tensor::random(&device, DType::F32, [1, 64, 4], 7).unwrap();
        let expected = AvgPool::new([4]).forward(&x).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), expected, "{device}");
    }
}

/// The resident memory of this process in bytes.
#[cfg(all(target_os = "linux", feature = "kernels"))]
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// The memory of dropped results is released or reused.
#[test]
#[cfg(all(target_os = "linux", feature = "kernels"))]
fn thousands_of_operators_take_no_more_memory() {
    // Other threads' tensors would be counted too.
    if !crate::is_alone("faults::thousands_of_operators_take_no_more_memory") {
        return;
    }
    for device in devices() {
        // 64 KiB per result: 250 MiB in total, if none of it were released.
        let x = Tensor::random(&device, DType::F32, [1, 128, 128, 1], 1).unwrap();
        let w = Tensor::random(&device, DType::F32, [1, 3, 3, 1], 1).unwrap();
        let (pool, conv) = (MaxPool::new([1, 1]), Conv::new([3, 3]).padding([1, 1]));
        let work = |times: usize| {
            for _ in 0..times {
                let (y, indices) = pool.forward_with_indices(&x).unwrap();
                let dx = pool.backward(&y, &indices, x.dims()).unwrap();
                conv.forward(&dx, &w, None).unwrap().wait().unwrap();
            }
        };
        work(200);
        let before = resident();
        work(1000);
        let grown = resident().saturating_sub(before);
        assert!(grown < 64 << 20, "{device}: {grown} bytes more after 4,000 operators");
    }
}

/// Operators refuse tensors that are on two devices.
#[test]
fn tensors_of_two_devices_are_refused() {
    for there in devices().into_iter().filter(|device| device.backend() != Backend::Host) {
        let dims = [1, 4, 4, 2];
        let on = |device: &Device, dims: &[usize]| Tensor::random(device, DType::F32, dims, 1);
        for (one, other) in [(Device::host(), there.clone()), (there, Device::host())] {
            let (x, w) = (on(&one, &dims).unwrap(), on(&other, &[2, 3, 3, 2]).unwrap());
            let (y, at) = MaxPool::new([2, 2]).forward_with_indices(&x).unwrap();
            let at = at.to_device(&other).unwrap();
            let mut copy = on(&other, &dims).unwrap();
            let bias = on(&other, &[2]).unwrap();
            let here = w.to_device(&one).unwrap();
            for refused in [
                MaxPool::new([2, 2]).backward(&y, &at, x.dims()).err(),
                MaxUnpool::new([4, 4]).forward(&y, &at).err(),
                Conv::new([3, 3]).forward(&x, &w, None).err(),
                Conv::new([3, 3]).forward(&x, &here, Some(&bias)).err(),
                copy.copy_from(&x).err(),
            ] {
                let mismatch = matches!(refused, Some(Error::DeviceMismatch { .. }));
                assert!(mismatch, "{one} and {other}: {refused:?}");
            }
            works(&one);
        }
    }
}

/// A device that does not exist is an error that names its index; no other device is used instead.
#[test]
fn a_device_that_is_not_there_is_refused() {
    for device in devices() {
        for index in [1000, usize::MAX] {
            let error = Device::new(device.backend(), index).expect_err("there are not so many");
            assert!(matches!(error, Error::NoDevice { .. }), "{error}");
            assert!(error.to_string().contains(&index.to_string()), "{error}");
        }
        works(&device);
    }
}

/// Huge numbers in a plan are refused. They were once multiplied before they were checked.
#[test]
#[cfg(feature = "kernels")]
fn huge_parts_are_refused_and_printed() {
    for device in devices() {
        let x = Tensor::random(&device, DType::F32, [1, 64, 64, 4], 1).unwrap();
        let mut plan = AvgPool::global().plan(&device, DType::F32, x.dims()).unwrap();
        let Some(kernel) = plan.kernel_mut() else { continue };
        if let windowpane::kernels::pool::Config::BlockReduce(config) = &mut kernel.config {
            (config.team, config.parts) = (u32::MAX, usize::MAX);
        }
        assert!(plan.to_string().contains("units"), "{device}");
        // Plans of other kernels were not changed.
        let ran = plan.run(&[&x], &mut Vec::new());
        assert!(matches!(ran, Ok(()) | Err(Error::Plan { .. })), "{device}: {ran:?}");
        let w = Tensor::random(&device, DType::F32, [8, 3, 3, 4], 2).unwrap();
        let conv = Conv::new([3, 3]);
        let mut plan = conv.plan_backward_filter(&device, DType::F32, x.dims(), w.dims()).unwrap();
        let Some(kernel) = plan.kernel_mut() else { continue };
        kernel.splits = usize::MAX;
        tile_numbers(&mut kernel.config).into_iter().for_each(|number| *number = 0);
        assert_eq!(plan.workspace(), 0, "{device}");
        assert!(plan.to_string().contains("splits"), "{device}");
        let dy = Tensor::random(&device, DType::F32, [1, 62, 62, 8], 3).unwrap();
        let refused = plan.run(&[&dy, &x], &mut Vec::new());
        assert!(matches!(refused, Err(Error::ConvPlan { .. })), "{device}: {refused:?}");
        works(&device);
    }
}

/// A conversion to a type that the device lacks is refused.
#[test]
fn conversions_are_refused_where_a_device_has_no_such_type() {
    for device in devices() {
        let x = Tensor::from_slice(&device, &[1.5f32, -2.0, 300.0], [3]).unwrap();
        for dtype in DType::ALL {
            match x.to_dtype(dtype) {
                Ok(y) => assert_eq!((y.dtype(), y.len()), (dtype, 3)),
                Err(error) => {
                    assert!(!device.supports(dtype), "{device}: {error}");
                    assert!(matches!(error, Error::DTypeUnsupported { .. }), "{error}");
                }
            }
        }
    }
}

/// The numbers in a convolution's configuration.
#[cfg(feature = "kernels")]
fn tile_numbers(config: &mut windowpane::kernels::conv::Config) -> Vec<&mut u32> {
    use windowpane::kernels::conv::Config;
    match config {
        Config::Cpu(own) => vec![&mut own.rows, &mut own.vectors, &mut own.lanes],
        Config::Depthwise(own) => vec![&mut own.rows, &mut own.lines, &mut own.lanes],
        Config::Grouped(own) => vec![&mut own.rows],
        Config::GroupedMma(own) => vec![
            &mut own.block_m,
            &mut own.block_n,
            &mut own.ratio_m,
            &mut own.ratio_n,
            &mut own.elems_per_thread,
        ],
        Config::Wgmma(own) => vec![
            &mut own.block_m,
            &mut own.block_n,
            &mut own.block_k,
            &mut own.ratio_m,
            &mut own.stages,
        ],
        Config::Mma(windowpane::kernels::conv::implicit_gemm::mma::Config { tile, .. })
        | Config::Simt(windowpane::kernels::conv::implicit_gemm::simt::Config { tile, .. }) => {
            vec![
                &mut tile.block_m,
                &mut tile.block_n,
                &mut tile.block_k,
                &mut tile.ratio_m,
                &mut tile.ratio_n,
                &mut tile.elems_per_thread,
                &mut tile.stages,
            ]
        }
        _ => vec![],
    }
}

/// A number that a caller may write into a field of a plan; mostly none, which keeps the plan's own.
#[cfg(feature = "kernels")]
fn numbers() -> impl Strategy<Value = Option<usize>> {
    let numbers =
        vec![0, 1, 2, 3, 4, 5, 8, 16, 100, 128, 4096, 1 << 31, usize::MAX / 2 + 1, usize::MAX];
    prop_oneof![7 => Just(None), 1 => proptest::sample::select(numbers).prop_map(Some)]
}

#[cfg(feature = "kernels")]
on_every_device! {
    /// A pooling plan with any numbers in its fields gives the right result or is refused.
    fn pooling_plans_of_any_numbers_are_right_or_refused(
        device,
        case in (PoolCase::any(), proptest::array::uniform8(numbers())),
        algorithm in crate::pool::algorithms(device)
    ) {
        let (case, numbers) = case;
        let fail = |error: Error| TestCaseError::fail(error.to_string());
        let elements: Vec<f32> = case.elements();
        let pool = MaxPool::over(case.window).layout(case.layout);
        let host = Tensor::from_slice(&Device::host(), &elements, case.dims()).map_err(fail)?;
        let x = host.to_device(device).map_err(fail)?;
        let forced = match algorithm {
            Some(algorithm) => pool.algorithm(algorithm),
            None => pool,
        };
        let Ok(mut plan) = forced.plan(device, DType::F32, &case.dims()) else { return Ok(()) };
        // A refusal of the numbers counts as an executed case.
        executed(plan.algorithm(), DType::F32);
        let [lanes, strip, team, parts, units, workspace, unrolled, runs] = numbers;
        if let Some(kernel) = plan.kernel_mut() {
            use windowpane::kernels::pool::Config;
            let own = &mut kernel.settings;
            own.lanes = lanes.unwrap_or(own.lanes);
            own.units = units.map_or(own.units, |units| units as u32);
            own.workspace = workspace.unwrap_or(own.workspace);
            own.unrolled = unrolled.map_or(own.unrolled, |n| n.is_multiple_of(2));
            own.runs = runs.map_or(own.runs, |n| n.is_multiple_of(2));
            match &mut kernel.config {
                Config::BlockReduce(own) => {
                    own.team = team.map_or(own.team, |team| team as u32);
                    own.parts = parts.unwrap_or(own.parts);
                }
                Config::CpuRows(own) => own.strip = strip.unwrap_or(own.strip),
                Config::RegisterTile(own) => {
                    own.strip = strip.unwrap_or(own.strip);
                    own.columns = parts.unwrap_or(own.columns);
                }
                Config::StencilRolling(own) => own.rows = strip.unwrap_or(own.rows),
                Config::VanHerk(own) => own.fused = strip.map_or(own.fused, |n| n.is_multiple_of(2)),
                _ => {}
            }
        }
        let printed = plan.to_string();
        let mut results = Vec::new();
        let Ok(()) = plan.run(&[&x], &mut results) else { return Ok(()) };
        let expected = pool.forward(&host).and_then(|y| y.to_vec::<f32>()).map_err(fail)?;
        let found = results[0].to_vec::<f32>().map_err(fail)?;
        assert_same(&found, &expected).map_err(|error| TestCaseError::fail(format!("{error}\n{printed}")))
    }

    /// The same for a convolution plan.
    fn convolution_plans_of_any_numbers_are_right_or_refused(
        device, case in (1..3usize, 1..20usize, 1..20usize, proptest::array::uniform10(numbers()))
    ) {
        let (batch, channels, filters, numbers) = case;
        let fail = |error: Error| TestCaseError::fail(error.to_string());
        let host = Device::host();
        // Whole numbers, so that sums are exact.
        let whole = |dims: [usize; 4]| {
            let elements: Vec<f32> = (0..dims.iter().product()).map(|i| (i * 7 % 5) as f32 - 2.0).collect();
            Tensor::from_slice(&host, &elements, dims)
        };
        let (x, w) = (
            whole([batch, 9, 8, channels]).map_err(fail)?,
            whole([filters, 3, 2, channels]).map_err(fail)?,
        );
        let conv = Conv::new([3, 2]).padding([1, 0]);
        let mut plan = conv.plan(device, DType::F32, x.dims(), w.dims()).map_err(fail)?;
        executed(plan.algorithm(), DType::F32);
        let [units, splits, runs, numbers @ ..] = numbers;
        if let Some(kernel) = plan.kernel_mut() {
            kernel.units = units.map_or(kernel.units, |units| units as u32);
            kernel.splits = splits.unwrap_or(kernel.splits);
            kernel.runs = runs.map_or(kernel.runs, |n| n.is_multiple_of(2));
            for (field, number) in tile_numbers(&mut kernel.config).into_iter().zip(numbers) {
                *field = number.map_or(*field, |n| n as u32);
            }
        }
        let printed = plan.to_string();
        let [on_x, on_w] = [x.to_device(device).map_err(fail)?, w.to_device(device).map_err(fail)?];
        let mut results = Vec::new();
        let Ok(()) = plan.run(&[&on_x, &on_w], &mut results) else { return Ok(()) };
        let expected = conv.forward(&x, &w, None).and_then(|y| y.to_vec::<f32>()).map_err(fail)?;
        let found = results[0].to_vec::<f32>().map_err(fail)?;
        assert_same(&found, &expected).map_err(|error| TestCaseError::fail(format!("{error}\n{printed}")))
    }
}
