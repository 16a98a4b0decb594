use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use windowpane::{Error, Tensor};

use crate::failure::Failure;

/// A file that will be written: whole, beside its place, and then moved there.
pub(crate) struct Output {
    path: PathBuf,
    /// Where it is while it is not whole.
    part: PathBuf,
}

impl Output {
    /// Checks, before any work is done, that a file can be written there.
    pub(crate) fn new(path: &Path) -> Result<Self, Failure> {
        let cannot = |reason: String| Error::File {
            path: path.display().to_string(),
            reason: format!("cannot be written: {reason}"),
        };
        let name = path.file_name().ok_or_else(|| cannot("it has no file name".into()))?;
        // Moving a file onto a device or a folder would not write to it.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(cannot("something other than a file has that name".into()).into());
        }
        let mut part_name = std::ffi::OsString::from(".");
        part_name.push(name);
        part_name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(part_name);
        // Made and removed at once, so that nothing is left behind if the work is interrupted.
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&part)
            .and_then(|_| fs::remove_file(&part))
            .map_err(|error| cannot(error.to_string()))?;
        Ok(Self { path: path.into(), part })
    }

    /// Whether both are the same file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let place = |output: &Self| {
            let folder = output.path.parent().filter(|folder| *folder != Path::new(""));
            let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok();
            (folder, output.path.file_name().map(ToOwned::to_owned))
        };
        place(self) == place(other)
    }

    /// Writes the file beside its place.
    fn write(&self, tensor: &Tensor) -> Result<(), Failure> {
        tensor.write_npy(&self.part).map_err(|error| match error {
            // The place beside is not the user's concern.
            Error::File { reason, .. } => {
                Error::File { path: self.path.display().to_string(), reason }.into()
            }
            error => error.into(),
        })
    }

    /// Writes the file, and puts it in its place.
    pub(crate) fn place_bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        fs::write(&self.part, bytes).map_err(|error| {
            let path = self.path.display().to_string();
            Error::File { path, reason: format!("cannot be written: {error}") }
        })?;
        self.place()
    }

    fn place(&self) -> Result<(), Failure> {
        fs::rename(&self.part, &self.path).map_err(|error| {
            let path = self.path.display().to_string();
            Error::File { path, reason: format!("cannot be written: {error}") }.into()
        })
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // It is there only if something failed.
        let _ = fs::remove_file(&self.part);
    }
}

/// Writes every tensor to its file, or none.
pub(crate) fn write_all(outputs: &[(Output, Tensor)]) -> Result<(), Failure> {
    for (output, tensor) in outputs {
        output.write(tensor)?;
    }
    for (i, (output, _)) in outputs.iter().enumerate() {
        if let Err(failure) = output.place() {
            for (placed, _) in &outputs[..i] {
                let _ = fs::remove_file(&placed.path);
            }
            return Err(failure);
        }
    }
    Ok(())
}
