//! The safetensors format: a length, a header in JSON, then the tensors exactly as they are in memory.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;

use ::safetensors::tensor::{Metadata, TensorInfo, TensorView};
use ::safetensors::{Dtype, serialize};
use windowpane_geometry::DType;

use super::{NAMELESS, Source, file_error, unwritable, write};
use crate::element::with_element;
use crate::tensor::count;
use crate::{Device, Error, Result, Tensor};

/// The longest header that the format allows.
const LONGEST_HEADER: u64 = 100_000_000;

/// The types that the format and this crate share.
const TYPES: [(Dtype, DType); 12] = [
    (Dtype::F64, DType::F64),
    (Dtype::F32, DType::F32),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::BF16),
    (Dtype::I64, DType::I64),
    (Dtype::I32, DType::I32),
    (Dtype::U32, DType::U32),
    (Dtype::I16, DType::I16),
    (Dtype::U16, DType::U16),
    (Dtype::I8, DType::I8),
    (Dtype::U8, DType::U8),
    (Dtype::BOOL, DType::Bool),
];

impl Tensor {
    /// Reads every tensor of a safetensors file, by name.
    pub fn read_safetensors(
        device: &Device,
        path: impl AsRef<Path>,
    ) -> Result<BTreeMap<String, Self>> {
        let path = path.as_ref();
        let mut source = Source::open(path)?;
        let (metadata, header) = header(&mut source).map_err(|error| file_error(path, error))?;
        // The whole header is checked before any element is read; `Metadata` has already checked the offsets.
        let mut tensors = Vec::new();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else { continue };
            let dtype = stored_type(info, &name).map_err(|error| file_error(path, error))?;
            device.require(dtype)?;
            let elements = count(&info.shape)
                .map_err(|error| file_error(path, format!("holds {name:?}, but {error}")))?;
            tensors.push((name, dtype, elements, info.shape.clone()));
        }
        source.expect(header, metadata.data_len() as u64)?;
        // Read in the order of the file, each tensor into its own memory.
        let read = |(name, dtype, elements, dims)| {
            let tensor = with_element!(dtype, T => {
                Self::from_elements(device, source.elements::<T>(elements)?.into(), dims)
            })?;
            Ok((name, tensor))
        };
        tensors.into_iter().map(read).collect()
    }

    /// Writes tensors to a safetensors file, by name.
    pub fn write_safetensors<'a>(
        path: impl AsRef<Path>,
        tensors: impl IntoIterator<Item = (&'a str, &'a Self)>,
    ) -> Result<()> {
        let path = path.as_ref();
        let bytes = serialized(tensors, |reason| file_error(path, reason))?;
        write(path, |file| file.write_all(&bytes))
    }

    /// Writes the same bytes as [`write_safetensors`](Self::write_safetensors) to any writer.
    ///
    /// ```
    /// use windowpane::{Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 2.0], [2])?;
    /// let mut bytes = Vec::new();
    /// Tensor::write_safetensors_to(&mut bytes, [("x", &x)])?;
    /// assert!(bytes.ends_with(&2.0f32.to_le_bytes()));
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn write_safetensors_to<'a>(
        mut to: impl Write,
        tensors: impl IntoIterator<Item = (&'a str, &'a Self)>,
    ) -> Result<()> {
        let bytes = serialized(tensors, |reason| file_error(NAMELESS.as_ref(), reason))?;
        to.write_all(&bytes).map_err(unwritable)
    }
}

/// The bytes of a file.
fn serialized<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    refused: impl Fn(String) -> Error,
) -> Result<Vec<u8>> {
    let bytes = tensors
        .into_iter()
        .map(|(name, tensor)| Ok((name, tensor, tensor.to_bytes()?)))
        .collect::<Result<Vec<_>>>()?;
    let bad = |error| refused(format!("cannot be written: {error}"));
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
    serialize(views, None).map_err(bad)
}

/// The header, which describes tensors without gaps between them, and the number of bytes before the first one.
fn header(source: &mut Source<impl Read>) -> Result<(Metadata, u64), String> {
    let unreadable = |error| format!("cannot be read: {error}");
    let none = |reason: &dyn std::fmt::Display| format!("is no safetensors file: {reason}");
    let mut bytes = Vec::new();
    source.from.by_ref().take(8).read_to_end(&mut bytes).map_err(unreadable)?;
    let length = bytes.as_slice().try_into().map(u64::from_le_bytes);
    let length = length.map_err(|_| none(&"it is shorter than the length of a header"))?;
    if length > LONGEST_HEADER {
        return Err(none(&format!(
            "its header would have {length} bytes and the longest allowed has {LONGEST_HEADER}"
        )));
    }
    let mut header = Vec::new();
    source.from.by_ref().take(length).read_to_end(&mut header).map_err(unreadable)?;
    if (header.len() as u64) < length {
        return Err(none(&"it ends before its header does"));
    }
    let metadata = serde_json::from_slice(&header).map_err(|error| none(&error))?;
    Ok((metadata, 8 + length))
}

fn stored_type(info: &TensorInfo, name: &str) -> Result<DType, String> {
    let found = TYPES.into_iter().find(|(theirs, _)| *theirs == info.dtype);
    let available = || TYPES.map(|(theirs, _)| theirs.to_string()).join(", ");
    found.map(|(_, dtype)| dtype).ok_or_else(|| {
        format!(
            "holds {name:?} as {:?}, which has no type here; save it as one of {}",
            info.dtype,
            available()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(header: &str, elements: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), elements].concat()
    }

    /// A header for f32 tensors with these names, shapes and offsets.
    fn tensors(entries: &[(&str, &str, [usize; 2])]) -> String {
        let entry = |(name, shape, [start, end]): &(&str, &str, [usize; 2])| {
            format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
        };
        format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
    }

    fn read(bytes: &[u8]) -> Result<BTreeMap<String, Tensor>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        fs::write(&path, bytes).unwrap();
        Tensor::read_safetensors(&Device::host(), &path)
    }

    #[track_caller]
    fn refused(bytes: &[u8], saying: &str) {
        let message = read(bytes).expect_err(saying).to_string();
        assert!(message.contains("x.safetensors: ") && message.contains(saying), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }

    #[test]
    fn tensors_are_read_in_any_order() {
        let header =
            tensors(&[("b", "[1]", [4, 8]), ("a", "[1]", [0, 4]), ("none", "[0,7]", [8, 8])]);
        let elements = [1f32, 2.0].map(f32::to_le_bytes).concat();
        let read = read(&file(&header, &elements)).unwrap();
        assert_eq!(read["a"].to_vec::<f32>().unwrap(), [1.0]);
        assert_eq!(read["b"].to_vec::<f32>().unwrap(), [2.0]);
        assert_eq!(read["none"].dims(), [0, 7]);
    }

    #[test]
    fn hostile_headers_are_refused() {
        let whole = file(&tensors(&[("x", "[6]", [0, 24])]), &[0; 24]);
        assert!(read(&whole).is_ok());
        for end in 0..whole.len() {
            let saying =
                if end < whole.len() - 24 { "is no safetensors file" } else { "is cut short" };
            refused(&whole[..end], saying);
        }
        refused(&[&whole[..], &[0; 3]].concat(), "3 bytes more");
        for length in [LONGEST_HEADER + 1, u64::MAX, u64::MAX - 8] {
            let bytes = [&length.to_le_bytes()[..], &whole[8..]].concat();
            refused(&bytes, &format!("would have {length} bytes"));
        }
        refused(&file("", &[]), "is no safetensors file");
        refused(&file(&"{".repeat(1000), &[]), "is no safetensors file");
        refused(&file(&"[".repeat(100_000), &[]), "is no safetensors file");
        refused(
            &file(&format!(r#"{{"x":{}"#, r#"{"a":"#.repeat(10_000)), &[]),
            "is no safetensors",
        );
        refused(&[&8u64.to_le_bytes()[..], &[0xff; 8]].concat(), "is no safetensors file");
    }

    #[test]
    fn hostile_offsets_are_refused() {
        let is = |entries: &[(&str, &str, [usize; 2])], saying: &str| {
            refused(&file(&tensors(entries), &[0; 24]), saying);
        };
        is(&[("x", "[6]", [0, 24]), ("y", "[3]", [12, 24])], "is no safetensors file");
        is(&[("x", "[3]", [0, 12]), ("y", "[2]", [16, 24])], "is no safetensors file");
        is(&[("x", "[3]", [12, 24])], "is no safetensors file");
        is(&[("x", "[6]", [24, 0])], "is no safetensors file");
        is(&[("x", "[5]", [0, 24])], "is no safetensors file");
        is(&[("x", "[9]", [0, 36])], "is cut short");
        is(&[("x", "[250000000]", [0, 1_000_000_000])], "is cut short");
        is(&[("x", "[2147483648]", [0, 1 << 33])], "the largest allowed, 2147483647");
        is(&[("x", "[18446744073709551615,2]", [0, 24])], "is no safetensors file");
        is(&[("x", "[-6]", [0, 24])], "is no safetensors file");
        let header = tensors(&[("x", "[6]", [0, 24])]);
        refused(&file(&header.replace("F32", "F64"), &[0; 24]), "is no safetensors file");
        refused(&file(&header.replace("F32", "F31"), &[0; 24]), "is no safetensors file");
        refused(
            &file(&header.replace("[6]", "[3]").replace("F32", "U64"), &[0; 24]),
            "save it as one of F64, F32",
        );
    }
}
