//! Output files. Each appears complete or not at all; in permissions and links it behaves like a file that any other
//! program writes.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use windowpane::{Error, Tensor};

use crate::array::Location;
use crate::failure::Failure;
use crate::interrupt;
use crate::progress::{print_bytes, say};

/// The longest chain of symbolic links that is followed, as on Linux.
const MOST_LINKS: u32 = 40;

/// A file that will be written: first completely, to a temporary file next to its destination, and then renamed. Or
/// standard output, which is written last.
pub(crate) struct Output {
    /// The format.
    array: Location,
    /// The path as the user gave it.
    path: PathBuf,
    /// The destination, with symbolic links resolved.
    place: PathBuf,
    /// The temporary file.
    part: PathBuf,
    /// The permissions of the file that it replaces; `None` for a new file, whose permissions follow the user's
    /// umask.
    permissions: Option<Permissions>,
}

impl Output {
    /// Checks, before any work is done, that a file can be written there.
    pub(crate) fn new(argument: &Path) -> Result<Self, Failure> {
        let array = Location::of(argument);
        let Some(path) = array.path().map(Path::to_path_buf) else {
            let (path, place, part) = (argument.into(), PathBuf::new(), PathBuf::new());
            return Ok(Self { array, path, place, part, permissions: None });
        };
        let path = &*path;
        let cannot = |reason: String| Error::File {
            path: path.display().to_string(),
            reason: format!("cannot be written: {reason}"),
        };
        path.file_name().ok_or_else(|| cannot("it has no file name".into()))?;
        let (mut place, mut permissions) = (path.to_path_buf(), None);
        if let Ok(found) = fs::metadata(path) {
            // Renaming a file onto a device or a folder would not write to it.
            if !found.is_file() {
                return Err(cannot("something other than a file has that name".into()).into());
            }
            // A rename checks only the permissions of the folder.
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
        // An existing one was left by a process with the same process id that was killed.
        let _ = fs::remove_file(&part);
        // Created and removed at once, so that nothing is left behind if the work is interrupted.
        File::create_new(&part).and_then(|_| fs::remove_file(&part)).map_err(|error| match path
            .is_symlink()
        {
            true => cannot(format!("it leads to {}: {error}", place.display())),
            false => cannot(error.to_string()),
        })?;
        Ok(Self { array, path: path.into(), place, part, permissions })
    }

    /// The path as the user gave it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is standard output.
    fn is_standard(&self) -> bool {
        self.array == Location::Standard
    }

    /// Whether both have the same destination.
    pub(crate) fn is(&self, other: &Self) -> bool {
        if self.is_standard() || other.is_standard() {
            return self.is_standard() && other.is_standard();
        }
        let place = |output: &Self| {
            let folder = output.place.parent().filter(|folder| *folder != Path::new(""));
            let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok();
            (folder, output.place.file_name().map(ToOwned::to_owned))
        };
        place(self) == place(other)
    }

    /// Writes the temporary file, with its final contents and permissions.
    fn write(&self, tensor: &Tensor) -> Result<(), Failure> {
        let file = self.begin()?;
        self.array.write(tensor, &file).map_err(|error| match error {
            // The error must name the path that the user gave, not the temporary file.
            Error::File { reason, .. } => self.failed(reason),
            error => error,
        })?;
        self.finish(file)
    }

    /// Writes the file and moves it to its destination.
    pub(crate) fn place_bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut file = self.begin()?;
        file.write_all(bytes).map_err(|error| self.unwritable(error))?;
        self.finish(file)?;
        Ok(self.place()?)
    }

    fn begin(&self) -> Result<File, Failure> {
        interrupt::remove_if_interrupted(&self.part);
        Ok(File::create_new(&self.part).map_err(|error| self.unwritable(error))?)
    }

    fn finish(&self, file: File) -> Result<(), Failure> {
        let kept = self.permissions.clone().map_or(Ok(()), |kept| file.set_permissions(kept));
        // Some disks report only now that they are full.
        kept.and_then(|()| file.sync_all()).map_err(|error| self.unwritable(error))?;
        Ok(())
    }

    fn place(&self) -> Result<(), Error> {
        fs::rename(&self.part, &self.place).map_err(|error| self.unwritable(error))
    }

    fn unwritable(&self, error: io::Error) -> Error {
        self.failed(format!("cannot be written: {error}"))
    }

    fn failed(&self, reason: String) -> Error {
        Error::File { path: self.path.display().to_string(), reason }
    }
}

/// The destination of a path at which no file exists: the end of its chain of links, where other programs would
/// create the file too, or the path itself.
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
        if self.is_standard() {
            return;
        }
        // It exists only if something failed.
        let _ = fs::remove_file(&self.part);
        interrupt::forget(&self.part);
    }
}

/// Writes every tensor to its file, and then says what was done unless standard output holds an array. No file is
/// replaced before all temporary files are complete.
pub(crate) fn write_all(
    outputs: &[(Output, Tensor)],
    summary: Option<String>,
) -> Result<(), Failure> {
    let (standard, files): (Vec<_>, Vec<_>) =
        outputs.iter().partition(|(output, _)| output.is_standard());
    for (output, tensor) in &files {
        output.write(tensor)?;
    }
    for (i, (output, _)) in files.iter().enumerate() {
        output.place().map_err(|error| match (error, &files[..i]) {
            (Error::File { path, reason }, [.., (placed, _)]) => {
                let placed = placed.path.display();
                Error::File { path, reason: format!("{reason}; {placed} was written before it") }
            }
            (error, _) => error,
        })?;
    }
    for (output, tensor) in &standard {
        let mut bytes = Vec::new();
        output.array.write(tensor, &mut bytes)?;
        print_bytes(&bytes)?;
    }
    match summary {
        Some(summary) if standard.is_empty() => say(summary),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use windowpane::Device;

    use super::*;

    /// A folder takes the second file's name between the check and the rename.
    #[test]
    fn a_second_file_that_fails_costs_no_other() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let (first, second) = (folder.path().join("y.npy"), folder.path().join("at.npy"));
        fs::write(&first, "the user's").expect("a file for the test");
        let x = Tensor::from_slice(&Device::host(), &[1u8, 2], [2]).expect("a tensor");
        let output = |path: &Path| (Output::new(path).expect("it can be written"), x.clone());
        let outputs = [output(&first), output(&second)];
        fs::create_dir(&second).expect("a folder for the test");
        let message = write_all(&outputs, None).expect_err("a folder is in the way").to_string();
        assert!(message.contains("at.npy: cannot be written"), "{message}");
        assert!(message.contains("y.npy was written before it"), "{message}");
        drop(outputs);
        assert_eq!(fs::read(&first).expect("it is there").len(), 128 + 2);
        assert_eq!(fs::read_dir(folder.path()).expect("the test's folder").count(), 2);
    }
}
