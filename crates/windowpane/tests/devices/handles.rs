//! Sharing devices and memory with CubeCL programs.

use windowpane::{DType, Device, Error, Layout, MaxPool, Tensor};

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
