//! Reads any bytes as a safetensors file: the result is an error, or tensors that are the same after writing and
//! reading them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use windowpane::{Device, Tensor};
use windowpane_fuzz::with_file;

fuzz_target!(|bytes: &[u8]| {
    let host = Device::host();
    with_file(bytes, |path| {
        let Ok(tensors) = Tensor::read_safetensors(&host, path) else { return };
        Tensor::write_safetensors(path, tensors.iter().map(|(name, x)| (&**name, x))).unwrap();
        let again = Tensor::read_safetensors(&host, path).unwrap();
        assert_eq!(again.len(), tensors.len());
        for (name, tensor) in &tensors {
            assert_eq!((again[name].dtype(), again[name].dims()), (tensor.dtype(), tensor.dims()));
            assert_eq!(again[name].to_bytes().unwrap(), tensor.to_bytes().unwrap());
        }
    });
});
