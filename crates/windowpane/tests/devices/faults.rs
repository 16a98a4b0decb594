//! Faults after which a device still works. `docs/FAULTS.md` lists them.

use std::thread;

use windowpane::{AvgPool, Backend, Conv, DType, Device, Error, MaxPool, MaxUnpool, Tensor};

#[cfg(feature = "kernels")]
use crate::overrides::tile_numbers;
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
        assert!(plan.to_string().contains("threads per block"), "{device}");
        // Plans of other kernels were not changed.
        let ran = plan.run(&[&x], &mut Vec::new());
        assert!(matches!(ran, Ok(()) | Err(Error::Plan { .. })), "{device}: {ran:?}");
        let w = Tensor::random(&device, DType::F32, [8, 3, 3, 4], 2).unwrap();
        let conv = Conv::new([3, 3]);
        let mut plan = conv.plan_backward_weight(&device, DType::F32, x.dims(), w.dims()).unwrap();
        let Some(kernel) = plan.kernel_mut() else { continue };
        kernel.splits = usize::MAX;
        tile_numbers(&mut kernel.config).into_iter().for_each(|number| *number = 0);
        assert_eq!(plan.workspace(), 0, "{device}");
        assert!(plan.to_string().contains("split-K"), "{device}");
        let dy = Tensor::random(&device, DType::F32, [1, 62, 62, 8], 3).unwrap();
        let refused = plan.run(&[&dy, &x], &mut Vec::new());
        assert!(matches!(refused, Err(Error::Plan { .. })), "{device}: {refused:?}");
        works(&device);
    }
}

/// A recording keeps the memory that its launches use. Work can drop its tensors behind the recording's back; a replay
/// then must not write into memory that other tensors have got since.
#[test]
#[cfg(feature = "kernels")]
fn replays_never_write_into_the_memory_of_others() {
    use std::cell::RefCell;
    use std::rc::Rc;

    // Allocations by other threads may be the reason why nothing is recorded.
    if !crate::is_alone("faults::replays_never_write_into_the_memory_of_others") {
        return;
    }
    for device in devices() {
        let dims = [1, 32, 32, 4];
        let random = |seed| Tensor::random(&device, DType::F32, dims, seed).unwrap();
        let plan = MaxPool::new([1, 1]).plan(&device, DType::F32, &dims).unwrap();
        let tensors = Rc::new(RefCell::new(Some((random(1), Vec::new()))));
        let shared = tensors.clone();
        let work = move || match &mut *shared.borrow_mut() {
            Some((x, y)) => plan.run(&[&*x], y),
            None => Ok(()),
        };
        let mut recording = device.record(work).unwrap();
        assert_eq!(recording.is_captured(), !device.uses_host_memory(), "{device}");
        *tensors.borrow_mut() = None;
        // One more than the tensors that were dropped, so that they would get that memory.
        let others: Vec<_> = (2..8).map(random).collect();
        let before: Vec<_> = others.iter().map(|other| other.to_bytes().unwrap()).collect();
        for _ in 0..3 {
            recording.replay().unwrap();
        }
        for (other, before) in others.iter().zip(&before) {
            assert!(other.to_bytes().unwrap() == *before, "{device}: a replay wrote into a tensor");
        }
        drop(recording);
        works(&device);
    }
}

#[cfg(feature = "kernels")]
mod rejected {
    use cubecl::prelude::*;

    #[cube(launch_unchecked)]
    pub(super) fn ones(output: &mut [f32]) {
        if ABSOLUTE_POS < output.len() {
            output[ABSOLUTE_POS] = 1.0;
        }
    }
}

/// A launch with more units in a cube than any device has is an error of its own result; the next call works.
#[test]
#[cfg(feature = "kernels")]
fn a_launch_that_is_rejected_costs_no_other() {
    use cubecl::prelude::{BufferArg, CubeCount, CubeDim};

    // A rejected launch may leave an error for another thread's call.
    if !crate::is_alone("faults::a_launch_that_is_rejected_costs_no_other") {
        return;
    }
    // `cpu` rejects no number of units.
    for device in devices().into_iter().filter(|device| !device.uses_host_memory()) {
        let client = device.client().unwrap();
        for _ in 0..3 {
            let output = client.create_from_slice(bytemuck::cast_slice(&[0f32; 16]));
            let units = CubeDim::new_1d(1 << 20);
            // SAFETY: the kernel checks its position.
            unsafe {
                let output = BufferArg::from_raw_parts(output.clone(), 16);
                rejected::ones::launch_unchecked(client, CubeCount::new_1d(1), units, output);
            }
            let output = Tensor::from_handle(&device, DType::F32, output, [16]).unwrap();
            let read = output.to_vec::<f32>();
            assert!(matches!(read, Err(Error::Device { .. })), "{device}: {read:?}");
            let read = crate::asynchronous::block_on(output.to_vec_async::<f32>());
            assert!(matches!(read, Err(Error::Device { .. })), "{device}: {read:?}");
            let part = output.narrow(0, 0, 8).and_then(|part| part.to_vec::<f32>());
            assert!(matches!(part, Err(Error::Device { .. })), "{device}: {part:?}");
            works(&device);
        }
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
