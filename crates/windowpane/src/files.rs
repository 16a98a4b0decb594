//! Tensors in files. An output file appears whole or not at all.

use std::fs;
use std::io::Write;
use std::path::Path;

use windowpane_geometry::DType;

use crate::{Device, Error, Result, Tensor};

fn file_error(path: &Path, reason: impl ToString) -> Error {
    Error::File { path: path.display().to_string(), reason: reason.to_string() }
}

/// Reads a whole file.
fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| file_error(path, format!("cannot be read: {error}")))
}

/// Writes a whole file beside its place and then moves it there.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new();
    // Whom the file is for is the user's own mask to say, not a temporary file's secrecy.
    #[cfg(unix)]
    file.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let written = file.tempfile_in(folder).and_then(|mut file| {
        file.write_all(bytes)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    });
    written.map_err(|error| file_error(path, format!("cannot be written: {error}")))
}

#[cfg(feature = "npy")]
mod npy {
    use half::f16;
    use npyz::{AutoSerialize, DType as NpyDType, Deserialize, NpyFile, Order, WriterBuilder};

    use super::*;
    use crate::Element;

    impl Tensor {
        /// Reads a NumPy `.npy` file.
        ///
        /// The file's type is kept. NumPy has no bf16: read f32 and convert it with
        /// [`to_dtype`](Self::to_dtype).
        pub fn read_npy(device: &Device, path: impl AsRef<Path>) -> Result<Self> {
            let path = path.as_ref();
            let bytes = read(path)?;
            // Of a shape whose product overflows npyz panics, in a build that checks.
            let file = std::panic::catch_unwind(|| NpyFile::new(&bytes[..]))
                .map_err(|_| file_error(path, "has a shape that cannot be counted"))?
                .map_err(|error| {
                    file_error(path, format!("is no .npy file: {error}; write one with numpy.save"))
                })?;
            let dims: Vec<usize> = file.shape().iter().map(|dim| *dim as usize).collect();
            let elements = dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
            if elements.is_none_or(|elements| elements > bytes.len()) {
                return Err(file_error(path, format!("is cut short of its shape, {dims:?}")));
            }
            if file.order() == Order::Fortran && dims.len() > 1 {
                let reason = "is in Fortran order; save np.ascontiguousarray of it";
                return Err(file_error(path, reason));
            }
            match type_name(&file.dtype()).as_str() {
                "<f8" => elements_of::<f64>(device, path, file, dims),
                "<f4" => elements_of::<f32>(device, path, file, dims),
                "<f2" => elements_of::<f16>(device, path, file, dims),
                "<i4" => elements_of::<i32>(device, path, file, dims),
                "|i1" => elements_of::<i8>(device, path, file, dims),
                "|u1" => elements_of::<u8>(device, path, file, dims),
                other => Err(file_error(
                    path,
                    format!(
                        "holds {other}; save it as little-endian float64, 32, 16, int32, int8 or uint8"
                    ),
                )),
            }
        }

        /// Writes a NumPy `.npy` file; bf16 is written as f32.
        pub fn write_npy(&self, path: impl AsRef<Path>) -> Result<()> {
            let path = path.as_ref();
            let bytes = match self.dtype() {
                DType::F64 => file_of(&self.to_vec::<f64>()?, self.dims()),
                DType::F32 => file_of(&self.to_vec::<f32>()?, self.dims()),
                DType::F16 => file_of(&self.to_vec::<f16>()?, self.dims()),
                DType::I32 => file_of(&self.to_vec::<i32>()?, self.dims()),
                DType::I8 => file_of(&self.to_vec::<i8>()?, self.dims()),
                DType::U8 => file_of(&self.to_vec::<u8>()?, self.dims()),
                _ => {
                    let wide: Vec<f32> =
                        self.to_vec::<half::bf16>()?.into_iter().map(f32::from).collect();
                    file_of(&wide, self.dims())
                }
            };
            write(path, &bytes.map_err(|error| file_error(path, error))?)
        }
    }

    /// The type as NumPy spells it.
    fn type_name(dtype: &NpyDType) -> String {
        match dtype {
            NpyDType::Plain(name) => name.to_string(),
            other => other.descr(),
        }
    }

    fn elements_of<T: Element + Deserialize>(
        device: &Device,
        path: &Path,
        file: NpyFile<&[u8]>,
        dims: Vec<usize>,
    ) -> Result<Tensor> {
        let elements: Vec<T> =
            file.into_vec().map_err(|error| file_error(path, format!("is cut short: {error}")))?;
        Tensor::from_slice(device, &elements, dims)
    }

    fn file_of<T: AutoSerialize>(elements: &[T], dims: &[usize]) -> std::io::Result<Vec<u8>> {
        let shape: Vec<u64> = dims.iter().map(|dim| *dim as u64).collect();
        let mut bytes = Vec::new();
        let mut writer = npyz::WriteOptions::new()
            .default_dtype()
            .shape(&shape)
            .writer(&mut bytes)
            .begin_nd()?;
        writer.extend(elements)?;
        writer.finish()?;
        Ok(bytes)
    }
}

#[cfg(feature = "safetensors")]
mod safetensors {
    use std::collections::BTreeMap;

    use ::safetensors::tensor::TensorView;
    use ::safetensors::{Dtype, SafeTensors, serialize};

    use super::*;

    /// The types of both sides.
    const TYPES: [(Dtype, DType); 7] = [
        (Dtype::F64, DType::F64),
        (Dtype::F32, DType::F32),
        (Dtype::F16, DType::F16),
        (Dtype::BF16, DType::BF16),
        (Dtype::I32, DType::I32),
        (Dtype::I8, DType::I8),
        (Dtype::U8, DType::U8),
    ];

    impl Tensor {
        /// Reads every tensor of a safetensors file, by name.
        pub fn read_safetensors(
            device: &Device,
            path: impl AsRef<Path>,
        ) -> Result<BTreeMap<String, Self>> {
            let path = path.as_ref();
            let bytes = read(path)?;
            let file = SafeTensors::deserialize(&bytes)
                .map_err(|error| file_error(path, format!("is no safetensors file: {error}")))?;
            let tensor = |(name, view): (String, TensorView<'_>)| {
                let (_, dtype) = TYPES
                    .into_iter()
                    .find(|(theirs, _)| *theirs == view.dtype())
                    .ok_or_else(|| {
                        file_error(
                            path,
                            format!("holds `{name}` as {:?}, which has no type here", view.dtype()),
                        )
                    })?;
                Ok((name, Self::from_bytes(device, dtype, view.data(), view.shape())?))
            };
            file.tensors().into_iter().map(tensor).collect()
        }

        /// Writes tensors to a safetensors file, by name.
        pub fn write_safetensors<'a>(
            path: impl AsRef<Path>,
            tensors: impl IntoIterator<Item = (&'a str, &'a Self)>,
        ) -> Result<()> {
            let path = path.as_ref();
            let bytes = tensors
                .into_iter()
                .map(|(name, tensor)| Ok((name, tensor, tensor.to_bytes()?)))
                .collect::<Result<Vec<_>>>()?;
            let bad = |error| file_error(path, format!("cannot be written: {error}"));
            let views = bytes
                .iter()
                .map(|(name, tensor, bytes)| {
                    let (theirs, _) = TYPES
                        .into_iter()
                        .find(|(_, ours)| *ours == tensor.dtype())
                        .expect("every type is in the table");
                    Ok((*name, TensorView::new(theirs, tensor.dims().to_vec(), bytes)?))
                })
                .collect::<Result<Vec<_>, _>>()
                .map_err(bad)?;
            write(path, &serialize(views, None).map_err(bad)?)
        }
    }
}

#[cfg(all(test, feature = "npy", feature = "safetensors"))]
mod tests {
    use super::*;
    use crate::Element;

    fn round_trip<T: Element>(elements: &[f64]) {
        let host = Device::host();
        let folder = tempfile::tempdir().unwrap();
        let elements: Vec<T> = elements.iter().map(|x| T::from_f64(*x)).collect();
        let tensor = Tensor::from_slice(&host, &elements, [2, elements.len() / 2]).unwrap();

        let npy = folder.path().join("x.npy");
        tensor.write_npy(&npy).unwrap();
        let read = Tensor::read_npy(&host, &npy).unwrap().to_dtype(T::DTYPE).unwrap();
        assert_eq!(
            (read.dims(), read.to_bytes().unwrap()),
            (tensor.dims(), tensor.to_bytes().unwrap())
        );

        let both = folder.path().join("x.safetensors");
        Tensor::write_safetensors(&both, [("x", &tensor), ("again", &tensor)]).unwrap();
        let read = Tensor::read_safetensors(&host, &both).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read["x"].to_bytes().unwrap(), tensor.to_bytes().unwrap());
        assert_eq!(read["again"].dtype(), T::DTYPE);
    }

    #[test]
    fn every_type_survives_a_file() {
        let numbers = [0.0, -1.5, 2.0, 100.0, -128.0, 3.0];
        round_trip::<f64>(&numbers);
        round_trip::<f32>(&numbers);
        round_trip::<half::f16>(&numbers);
        round_trip::<half::bf16>(&numbers);
        round_trip::<i32>(&numbers);
        round_trip::<i8>(&numbers);
        round_trip::<u8>(&numbers);
    }

    #[test]
    fn an_empty_tensor_survives_a_file() {
        let host = Device::host();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        Tensor::from_slice::<f32>(&host, &[], [0, 3]).unwrap().write_npy(&path).unwrap();
        assert_eq!(Tensor::read_npy(&host, &path).unwrap().dims(), [0, 3]);
    }

    #[test]
    fn a_bad_file_is_an_error_that_names_it() {
        let host = Device::host();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        let message = |path: &Path| Tensor::read_npy(&host, path).unwrap_err().to_string();
        assert!(message(&path).contains("x.npy"));
        fs::write(&path, b"not an array").unwrap();
        assert!(message(&path).contains("is no .npy file"));
        let whole = Tensor::from_slice(&host, &[1.0f32; 64], [64]).unwrap();
        whole.write_npy(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 8]).unwrap();
        assert!(message(&path).contains("is cut short"));
        assert!(whole.write_npy(folder.path().join("no/such/folder.npy")).is_err());
    }
}
