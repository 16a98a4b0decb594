//! Files that are written: each appears whole or not at all, and is otherwise as any program's.

use std::fs::{self, OpenOptions, Permissions};
use std::path::{Path, PathBuf};

use windowpane::{Error, Tensor};

use crate::failure::Failure;

/// The links that lead to each other, as many as Linux follows.
const MOST_LINKS: u32 = 40;

/// A file that will be written: whole, beside its place, and then moved there.
pub(crate) struct Output {
    /// As the user calls it.
    path: PathBuf,
    /// Where it goes: to where a link leads, and no link's place.
    place: PathBuf,
    /// Where it is while it is not whole.
    part: PathBuf,
    /// Those of the file that it replaces; a new one has what the user's mask leaves.
    permissions: Option<Permissions>,
}

impl Output {
    /// Checks, before any work is done, that a file can be written there.
    pub(crate) fn new(path: &Path) -> Result<Self, Failure> {
        let cannot = |reason: String| Error::File {
            path: path.display().to_string(),
            reason: format!("cannot be written: {reason}"),
        };
        path.file_name().ok_or_else(|| cannot("it has no file name".into()))?;
        let (mut place, mut permissions) = (path.to_path_buf(), None);
        if let Ok(found) = fs::metadata(path) {
            // Moving a file onto a device or a folder would not write to it.
            if !found.is_file() {
                return Err(cannot("something other than a file has that name".into()).into());
            }
            // A file that is moved asks only its folder.
            if found.permissions().readonly() {
                return Err(cannot("the file that is there is read-only".into()).into());
            }
            place = fs::canonicalize(path).map_err(|error| cannot(error.to_string()))?;
            permissions = Some(found.permissions());
        } else {
            place = followed(place).map_err(&cannot)?;
        }
        let name = place.file_name().ok_or_else(|| cannot("it has no file name".into()))?;
        let mut part_name = std::ffi::OsString::from(".");
        part_name.push(name);
        part_name.push(format!(".{}.part", std::process::id()));
        let part = place.with_file_name(part_name);
        // One that is there was left by a process that had this one's number and was ended.
        let _ = fs::remove_file(&part);
        // Made and removed at once, so that nothing is left behind if the work is interrupted.
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&part)
            .and_then(|_| fs::remove_file(&part))
            .map_err(|error| match path.is_symlink() {
                true => cannot(format!("it leads to {}: {error}", place.display())),
                false => cannot(error.to_string()),
            })?;
        Ok(Self { path: path.into(), place, part, permissions })
    }

    /// The file, as the user calls it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether both are the same file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let place = |output: &Self| {
            let folder = output.place.parent().filter(|folder| *folder != Path::new(""));
            let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok();
            (folder, output.place.file_name().map(ToOwned::to_owned))
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
        let kept = match &self.permissions {
            Some(permissions) => fs::set_permissions(&self.part, permissions.clone()),
            None => Ok(()),
        };
        kept.and_then(|()| fs::rename(&self.part, &self.place)).map_err(|error| {
            let path = self.path.display().to_string();
            Error::File { path, reason: format!("cannot be written: {error}") }.into()
        })
    }
}

/// Where a path leads that nothing is at: a link's end, as any program that writes makes it, or
/// itself.
fn followed(path: PathBuf) -> Result<PathBuf, String> {
    let mut place = path;
    for _ in 0..MOST_LINKS {
        let Ok(next) = fs::read_link(&place) else { return Ok(place) };
        place = place.parent().unwrap_or(Path::new("")).join(next);
    }
    Err("its links lead to each other; remove one".into())
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
                let _ = fs::remove_file(&placed.place);
            }
            return Err(failure);
        }
    }
    Ok(())
}
