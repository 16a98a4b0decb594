//! Sharing devices and memory with CubeCL programs.

use cubecl::server::Handle;
use windowpane::kernels::{self, BufferError, Capabilities, Target};
use windowpane::{DType, Device, Error, Extents, Layout, MaxPool, PaddingMode, Tensor};
use windowpane_geometry::{Padded, Shape};

/// Every device of this machine that CubeCL reaches.
fn devices() -> impl Iterator<Item = Device> {
    Device::all().into_iter().filter(|device| device.client().is_some())
}

/// The device of a client is the device that the client came from.
#[test]
fn a_clients_device_is_the_same_device() {
    for device in devices() {
        let client = device.client().expect("it has one").clone();
        let wrapped = Device::from_client(client);
        assert_eq!((&wrapped, wrapped.backend()), (&device, device.backend()));
        assert_eq!(wrapped.is_emulated(), device.is_emulated());
        assert_eq!(wrapped.dtypes().collect::<Vec<_>>(), device.dtypes().collect::<Vec<_>>());
        assert_ne!(wrapped, Device::host());
        let x = Tensor::random(&device, DType::F32, [1, 4, 4, 2], 1).unwrap();
        // A tensor of one is a tensor of the other.
        let same = x.to_device(&wrapped).unwrap();
        assert_eq!(same.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
    }
}

/// An operator reads foreign memory where it is, and its result is memory for others.
#[test]
fn memory_goes_in_and_out_without_a_copy() {
    let pixels: Vec<f32> = (0..2 * 8 * 8).map(|pixel| (pixel * 37 % 101) as f32).collect();
    let pool = MaxPool::new([2, 2]).layout(Layout::ChannelsFirst);
    let host = Tensor::from_slice(&Device::host(), &pixels, [1, 2, 8, 8]).unwrap();
    let expected = pool.forward(&host).unwrap().to_vec::<f32>().unwrap();
    for device in devices() {
        let client = device.client().expect("it has one");
        let memory = client.create_from_slice(bytemuck::cast_slice(&pixels));
        let x = Tensor::from_handle(&device, DType::F32, memory.clone(), [1, 2, 8, 8]).unwrap();
        let again = x.handle().expect("it is on the device");
        assert_eq!(again.overlap(&memory), cubecl::server::Overlap::Same, "{device}");
        let y = pool.forward(&x).unwrap();
        let bytes = client.read_one_unchecked(y.handle().expect("it is on the device"));
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&bytes), expected, "{device}");
    }
}

/// Memory that others may hold is never overwritten, whether it came from outside or went there.
#[test]
fn shared_memory_is_not_overwritten() {
    for device in devices() {
        let client = device.client().expect("it has one");
        let memory = client.create_from_slice(bytemuck::cast_slice(&[1.0f32, 2.0]));
        let mut taken = Tensor::from_handle(&device, DType::F32, memory.clone(), [2]).unwrap();
        taken.randomize(1).unwrap();
        let bytes = client.read_one_unchecked(memory);
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&bytes), [1.0, 2.0], "{device}");

        let mut given = Tensor::from_slice(&device, &[3.0f32, 4.0], [2]).unwrap();
        let memory = given.handle().expect("it is on the device");
        given.randomize(1).unwrap();
        let bytes = client.read_one_unchecked(memory);
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&bytes), [3.0, 4.0], "{device}");
        assert_ne!(given.to_vec::<f32>().unwrap(), [3.0, 4.0], "{device}");
    }
}

/// Memory of another device, too little memory and memory from which vectors cannot be loaded are refused.
#[test]
fn memory_that_kernels_cannot_use_is_refused() {
    for device in devices() {
        let client = device.client().expect("it has one");
        let memory = client.create_from_slice(bytemuck::cast_slice(&[0.0f32; 64]));
        let take = |device: &Device, memory, dims: &[usize]| {
            Tensor::from_handle(device, DType::F32, memory, dims).map(|_| ())
        };
        let error = take(&device, memory.clone(), &[65]).unwrap_err().to_string();
        assert!(error.contains("has 256 bytes and 260 are needed"), "{error}");
        let error = take(&device, memory.clone().offset_start(4), &[2]).unwrap_err().to_string();
        assert!(error.contains("starts at byte 4 of its memory"), "{error}");
        let host = take(&Device::host(), memory.clone(), &[64]);
        assert!(matches!(host, Err(Error::ForeignHandle { .. })), "{host:?}");
        for other in devices().filter(|other| *other != device) {
            let error = take(&other, memory.clone(), &[64]);
            assert!(matches!(error, Err(Error::ForeignHandle { .. })), "{other}: {error:?}");
        }
        assert_eq!(take(&device, memory, &[64]).ok(), Some(()));
    }
}

/// A launch from one buffer to another, or only to one, as in filling it.
type Moves<'a> = &'a dyn Fn(&Handle, &Handle) -> Result<(), BufferError>;

/// The launches that are neither pooling nor convolution refuse buffers that are too short, at offsets that vectors
/// cannot be loaded from, or shared.
#[test]
fn copies_fills_pads_and_transposes_refuse_buffers() {
    for device in devices() {
        let client = device.client().expect("it has one");
        let capabilities = Capabilities::of(client);
        let target = Target { client, device: &capabilities };
        let (dtype, mode, layout) = (DType::F32, PaddingMode::Reflect, Layout::ChannelsLast);
        let shape = Shape::new(2, 8, Extents::from([8])).unwrap();
        let padded = Padded::new(shape, 4.into(), mode, layout).unwrap();
        let (small, large) = (2 * 8 * 8usize, 2 * 8 * 16usize);
        let vast = [1 << 16, 1 << 16, 1];
        let moves: [(&str, Moves<'_>, [usize; 2], [&'static str; 2]); 6] = [
            (
                "copy",
                &|from, to| kernels::copy(target, dtype, from, to, small),
                [small; 2],
                ["the source", "the copy"],
            ),
            (
                "fill",
                &|_, to| kernels::fill_random(target, dtype, to, small, 1),
                [0, small],
                ["", "the output"],
            ),
            (
                "pad",
                &|from, to| kernels::pad(target, dtype, &padded, 0.0, from, to),
                [small, large],
                ["the input", "the padded tensor"],
            ),
            (
                "difference",
                &|from, to| kernels::difference(target, dtype, small, [from, from, to]),
                [small; 2],
                ["the first tensor", "the difference"],
            ),
            (
                "pad's gradient",
                &|from, to| kernels::pad_gradient(target, dtype, &padded, from, to),
                [large, small],
                ["the padded gradient", "the gradient"],
            ),
            (
                "transpose",
                &|from, to| kernels::transpose(target, dtype, from, to, [2, 8, 8]),
                [small; 2],
                ["the source", "the transpose"],
            ),
        ];
        for (launch, run, elements, names) in moves {
            let sizes = elements.map(|elements| (elements.max(1) * dtype.size()) as u64);
            let empty = |bytes: u64| client.empty(bytes as usize);
            let [from, to] = sizes.map(empty);
            assert_eq!(run(&from, &to), Ok(()), "{device}: {launch}");
            for (i, name) in names.into_iter().enumerate().filter(|(i, _)| elements[*i] > 0) {
                let with = |other: Handle| match i {
                    0 => run(&other, &to),
                    _ => run(&from, &other),
                };
                let refused = |needed, found| Err(BufferError::TooSmall { name, needed, found });
                let short = empty(sizes[i]).offset_end(4);
                assert_eq!(with(short), refused(sizes[i], sizes[i] - 4), "{device}: {launch}");
                let past = empty(sizes[i]).offset_start(2 * sizes[i]);
                assert_eq!(with(past), refused(sizes[i], 0), "{device}: {launch}");
                let (alignment, aside) = (capabilities.offset_alignment, 4);
                if alignment > aside {
                    let offset = aside;
                    let error = BufferError::Misaligned { name, offset, alignment };
                    let aside = empty(sizes[i] + aside).offset_start(aside);
                    assert_eq!(with(aside), Err(error), "{device}: {launch}");
                }
            }
            if elements[0] > 0 {
                let both = empty(sizes[0].max(sizes[1]));
                let [other, output] = names;
                let error = BufferError::Overlap { output, other };
                assert_eq!(run(&both, &both), Err(error), "{device}: {launch}");
            }
        }
        let (from, to) = (client.empty(4), client.empty(4));
        let refused = kernels::transpose(target, dtype, &from, &to, vast);
        assert!(matches!(refused, Err(BufferError::TooMany { .. })), "{device}: {refused:?}");
    }
}

/// Another shape has the same elements, in the same memory.
#[test]
fn a_reshaped_tensor_has_the_same_elements() {
    for device in Device::all() {
        let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]).unwrap();
        let y = x.reshape([1, 3, 2]).unwrap();
        assert_eq!(y.dims(), [1, 3, 2]);
        assert_eq!(y.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
        assert!(matches!(x.reshape([4]), Err(Error::Length { .. })));
        assert!(matches!(x.reshape([usize::MAX, 2]), Err(Error::Length { .. })));
    }
    let there = Tensor::from_slice(&Device::host(), &[1.0f32], [1]).unwrap();
    assert!(there.handle().is_none());
}
