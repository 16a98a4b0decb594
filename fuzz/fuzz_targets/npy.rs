//! Reads any bytes as a `.npy` file: the result is an error, or a tensor that is the same after writing and reading it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use windowpane::{Device, Tensor};
use windowpane_fuzz::with_file;

fuzz_target!(|bytes: &[u8]| {
    let host = Device::host();
    with_file(bytes, |path| {
        let Ok(tensor) = Tensor::read_npy(&host, path) else { return };
        assert!(tensor.to_bytes().unwrap().len() <= bytes.len());
        tensor.write_npy(path).unwrap();
        let again = Tensor::read_npy(&host, path).unwrap();
        assert_eq!((again.dtype(), again.dims()), (tensor.dtype(), tensor.dims()));
        assert_eq!(again.to_bytes().unwrap(), tensor.to_bytes().unwrap());
    });
});
