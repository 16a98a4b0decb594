//! The files that hold arrays: `.npy`, `.safetensors`, and `-` for standard input and output, which hold a `.npy` file.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use windowpane::{Device, Error, Tensor};

use crate::failure::Failure;

/// The name of an output tensor in a safetensors file whose path does not say one.
const UNNAMED: &str = "result";

/// Where an array is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// Standard input or output.
    Standard,
    /// A `.npy` file.
    Npy(PathBuf),
    /// A `.safetensors` file, and the name after `#` of a tensor in it.
    Safetensors(PathBuf, Option<String>),
}

impl Location {
    /// The location that an argument names.
    pub(crate) fn of(argument: &Path) -> Self {
        let is_safetensors = |path: &Path| path.extension() == Some(OsStr::new("safetensors"));
        if argument == Path::new("-") {
            return Self::Standard;
        }
        if is_safetensors(argument) {
            return Self::Safetensors(argument.into(), None);
        }
        match argument.to_str().and_then(|text| text.rsplit_once('#')) {
            Some((path, name)) if is_safetensors(path.as_ref()) => {
                Self::Safetensors(path.into(), Some(name.into()))
            }
            _ => Self::Npy(argument.into()),
        }
    }

    /// The file; `None` for standard input and output.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Standard => None,
            Self::Npy(path) | Self::Safetensors(path, _) => Some(path),
        }
    }

    /// Writes a tensor in the format of the location. A file that is replaced because of a name after `#` keeps its other
    /// tensors.
    pub(crate) fn write(&self, tensor: &Tensor, to: impl io::Write) -> windowpane::Result<()> {
        match self {
            Self::Standard | Self::Npy(_) => tensor.write_npy_to(to),
            Self::Safetensors(_, None) => Tensor::write_safetensors_to(to, [(UNNAMED, tensor)]),
            Self::Safetensors(path, Some(name)) => {
                let mut tensors = match path.exists() {
                    true => Tensor::read_safetensors(&Device::host(), path)?,
                    false => BTreeMap::new(),
                };
                tensors.insert(name.clone(), tensor.clone());
                let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
                Tensor::write_safetensors_to(to, named)
            }
        }
    }
}

/// As a user names it in a sentence.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standard => f.write_str("standard input"),
            Self::Npy(path) | Self::Safetensors(path, None) => path.display().fmt(f),
            Self::Safetensors(path, Some(name)) => write!(f, "{}#{name}", path.display()),
        }
    }
}

/// The array that an argument names, on `host`.
pub(crate) fn read(argument: &Path) -> Result<Tensor, Failure> {
    let (host, location) = (Device::host(), Location::of(argument));
    match &location {
        Location::Npy(path) => Ok(Tensor::read_npy(&host, path)?),
        Location::Standard => {
            Ok(Tensor::read_npy_from(&host, io::stdin().lock()).map_err(|error| match error {
                Error::File { reason, .. } => Error::File { path: location.to_string(), reason },
                error => error,
            })?)
        }
        Location::Safetensors(path, name) => {
            let mut tensors = Tensor::read_safetensors(&host, path)?;
            let found = match name {
                Some(name) => tensors.remove(name),
                None if tensors.len() == 1 => tensors.pop_first().map(|(_, tensor)| tensor),
                None => None,
            };
            found.ok_or_else(|| {
                let names: Vec<_> = tensors.keys().map(String::as_str).collect();
                let names = if names.is_empty() { "nothing".into() } else { names.join(", ") };
                let path = path.display();
                Failure::Failed(format!(
                    "{location}: the file holds {names}; name one of them, as in {path}#NAME"
                ))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_told_from_their_names() {
        let of = |argument: &str| Location::of(argument.as_ref());
        assert_eq!(of("-"), Location::Standard);
        assert_eq!(of("x.npy"), Location::Npy("x.npy".into()));
        assert_eq!(of("a#b.npy"), Location::Npy("a#b.npy".into()));
        assert_eq!(of("x.safetensors"), Location::Safetensors("x.safetensors".into(), None));
        let named = Location::Safetensors("a#b.safetensors".into(), Some("conv1.weight".into()));
        assert_eq!(of("a#b.safetensors#conv1.weight"), named);
        assert_eq!(named.to_string(), "a#b.safetensors#conv1.weight");
    }
}
