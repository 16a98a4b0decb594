//! Reads and writes tensors in files. An output file appears complete or not at all; an input is read only
//! as far as its header says.

#[cfg(feature = "npy")]
mod npy;
#[cfg(feature = "safetensors")]
mod safetensors;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::{Element, Error, Result};

fn file_error(path: &Path, reason: impl ToString) -> Error {
    Error::File { path: path.display().to_string(), reason: reason.to_string() }
}

/// What is read: a regular file, or a pipe, a device or any other reader, whose length is unknown.
struct Source<R> {
    path: PathBuf,
    from: R,
    length: Option<u64>,
}

/// The name of a reader or a writer without a path in error messages.
const NAMELESS: &str = "the array";

impl Source<File> {
    fn open(path: &Path) -> Result<Self> {
        let unreadable = |error: io::Error| file_error(path, format!("cannot be read: {error}"));
        let file = File::open(path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        let length = found.is_file().then_some(found.len());
        Ok(Self { path: path.into(), from: file, length })
    }
}

impl<R: Read> Source<R> {
    #[cfg(feature = "npy")]
    fn nameless(from: R) -> Self {
        Self { path: NAMELESS.into(), from, length: None }
    }

    /// Refuses a file whose length differs from that of its header and its elements together.
    fn expect(&self, header: u64, elements: u64) -> Result<()> {
        let Some(length) = self.length else { return Ok(()) };
        let reason = match (header.saturating_add(elements), length) {
            (needed, length) if needed == length => return Ok(()),
            (needed, length) if needed > length => format!(
                "is cut short: its header asks for {elements} bytes of elements and it has {}",
                length.saturating_sub(header),
            ),
            (needed, length) => {
                let more = length - needed;
                let bytes = if more == 1 { "byte" } else { "bytes" };
                format!("has {more} {bytes} more than its header asks for; save it again")
            }
        };
        Err(file_error(&self.path, reason))
    }

    /// Reads the next elements. If the length of the source is unknown, memory is allocated as they arrive, so that a
    /// header that promises too many elements does not allocate memory for them.
    fn elements<T: Element>(&mut self, count: usize) -> Result<Vec<T>> {
        const AT_ONCE: usize = 1 << 20;
        let mut elements: Vec<T::Stored> = Vec::new();
        let mut read = || {
            if self.length.is_some() {
                elements.try_reserve_exact(count)?;
            }
            while elements.len() < count {
                let (start, more) = (elements.len(), AT_ONCE.min(count - elements.len()));
                elements.try_reserve(more)?;
                elements.resize(start + more, bytemuck::Zeroable::zeroed());
                self.from.read_exact(bytemuck::cast_slice_mut(&mut elements[start..]))?;
            }
            Ok(())
        };
        read().map_err(|error: io::Error| {
            let reason = match error.kind() {
                io::ErrorKind::UnexpectedEof => "is cut short within its elements".into(),
                io::ErrorKind::OutOfMemory => format!(
                    "has {count} elements, for which there is no memory; cut it into smaller files"
                ),
                _ => format!("cannot be read: {error}"),
            };
            file_error(&self.path, reason)
        })?;
        Ok(T::from_stored(elements))
    }
}

/// The error of a writer without a path.
fn unwritable(error: impl std::fmt::Display) -> Error {
    file_error(NAMELESS.as_ref(), format!("cannot be written: {error}"))
}

/// Writes a temporary file next to the target and then renames it.
fn write(path: &Path, contents: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new();
    // The permissions follow the user's umask, not the restrictive default of temporary files.
    #[cfg(unix)]
    file.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let written = file.tempfile_in(folder).and_then(|mut file| {
        contents(file.as_file_mut())?;
        // Some disks report only now that they are full.
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    });
    written.map_err(|error| file_error(path, format!("cannot be written: {error}")))
}

#[cfg(all(test, feature = "npy", feature = "safetensors"))]
mod tests {
    use std::fs;

    use super::*;
    use crate::{DType, Device, Tensor};

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
        round_trip::<i64>(&numbers);
        round_trip::<i32>(&numbers);
        round_trip::<u32>(&numbers);
        round_trip::<i16>(&numbers);
        round_trip::<u16>(&numbers);
        round_trip::<i8>(&numbers);
        round_trip::<u8>(&numbers);
        round_trip::<bool>(&numbers);
    }

    /// The ends of wide integers come back, under NumPy's name of the type; a true bool may be any byte but 0.
    #[test]
    fn wide_integers_and_truth_values_survive_a_file() {
        fn check<T: Element>(elements: [T; 4], descr: &str) {
            let host = Device::host();
            let tensor = Tensor::from_slice(&host, &elements, [4]).unwrap();
            let mut npy = Vec::new();
            tensor.write_npy_to(&mut npy).unwrap();
            assert!(String::from_utf8_lossy(&npy).contains(&format!("'descr': '{descr}'")));
            let read = Tensor::read_npy_from(&host, &npy[..]).unwrap();
            assert_eq!(read.to_vec::<T>().unwrap(), elements);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x.safetensors");
            Tensor::write_safetensors(&path, [("x", &tensor)]).unwrap();
            let read = &Tensor::read_safetensors(&host, &path).unwrap()["x"];
            assert_eq!(read.to_vec::<T>().unwrap(), elements);
            if T::DTYPE == DType::Bool {
                *npy.last_mut().unwrap() = 2;
                let read = Tensor::read_npy_from(&host, &npy[..]).unwrap();
                assert_eq!(read.to_bytes().unwrap(), [0, 1, 1, 1]);
            }
        }
        check([i64::MIN, (1 << 53) + 1, -1, i64::MAX], "<i8");
        check([0, 1, 1 << 31, u32::MAX], "<u4");
        check([false, true, true, false], "|b1");
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
