//! LLVM, with which the `cpu`, `cuda` and `hip` backends compile kernels.
//!
//! CubeCL links one exact build of it from the user's data folder; its build script uses what it finds there, or
//! downloads it. On Linux x86-64 the same libraries are also published as Python packages, which is a second way to get
//! them. They are unpacked next to the final place, moved there in one step, and marked last: after an interruption,
//! the next run starts over.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Outcome, wheels};
use crate::Result;

/// The folder that CubeCL's build script looks for; it changes with the version of CubeCL.
const FOLDER: &str = "tracel-llvm-23.1.0-4";
/// The empty file by which the build script recognises a complete folder.
const MARKER: &str = ".tracel-llvm-installed";
/// The packages and their hashes.
const WHEELS: &str = include_str!("../../wheels/llvm.txt");
/// The folder in both packages with the files to install.
const INSIDE: &str = "mlc_llvm_static/static";

/// Whether a complete LLVM is where CubeCL looks for it.
pub(crate) fn is_installed() -> bool {
    home().is_some_and(|home| home.join(MARKER).exists())
}

/// Whether the installed LLVM includes LLD, which CubeCL's `hip` backend compiles against.
pub(crate) fn has_lld() -> bool {
    home().is_some_and(|home| home.join("include/lld/Common/Driver.h").exists())
}

pub(super) fn provide() -> Result<Outcome> {
    let home = home().ok_or("no home folder to keep LLVM under; set HOME")?;
    let place = home.display().to_string();
    if is_installed() {
        return Ok(Outcome::Present(place));
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Outcome::NotNeeded(format!(
            "CubeCL's build script downloads it to {place} when `cpu` or `cuda` is first built"
        )));
    }
    match install(&home) {
        Ok(()) => Ok(Outcome::Installed(place)),
        Err(error) => Ok(Outcome::Missing(format!(
            "{error}; without it CubeCL's build script will try to download LLVM to {place} \
             itself when `cpu` or `cuda` is first built"
        ))),
    }
}

fn install(home: &Path) -> Result<()> {
    let scratch = Scratch::beside(home)?;
    println!("downloading LLVM as Python packages (90 MB)");
    wheels::unpack(WHEELS, &scratch.0)?;
    let unpacked = scratch.0.join(INSIDE);
    make_executable(&unpacked.join("bin"))?;
    // A folder without the marker is left from an interrupted installation.
    remove(home)?;
    fs::rename(&unpacked, home).map_err(|error| about("move LLVM to", home, error))?;
    let marker = home.join(MARKER);
    fs::write(&marker, "").map_err(|error| about("write", &marker, error))
}

/// Unpacking loses the permissions, and build scripts run `llvm-config`.
#[cfg(unix)]
fn make_executable(folder: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;

    let files = folder.read_dir().map_err(|error| about("list", folder, error))?;
    for file in files.flatten().map(|file| file.path()) {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))
            .map_err(|error| about("make executable", &file, error))?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> Result<()> {
    Ok(())
}

/// A folder next to LLVM's, so that moving out of it is a rename. It is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn beside(home: &Path) -> Result<Self> {
        // All runs use the same name, so that the next run removes what a killed run left.
        let folder = home.with_file_name("windowpane-provision");
        remove(&folder)?;
        fs::create_dir_all(&folder).map_err(|error| about("create", &folder, error))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.0) {
            eprintln!("xtask: {error}; it can be removed by hand");
        }
    }
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| about("remove", folder, error))?;
    }
    Ok(())
}

fn about(what: &str, path: &Path, error: std::io::Error) -> Box<dyn std::error::Error> {
    format!("could not {what} {}: {error}", path.display()).into()
}

/// The folder from which CubeCL links LLVM.
fn home() -> Option<PathBuf> {
    data_folder(env::consts::OS, |name| env::var_os(name))
        .map(|data| data.join("tracel").join(FOLDER))
}

/// The user's local data folder, by the rules of the `dirs` crate, which CubeCL uses.
fn data_folder(os: &str, var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| var(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    match os {
        "windows" => folder("LOCALAPPDATA"),
        "macos" => folder("HOME").map(|home| home.join("Library/Application Support")),
        _ => {
            folder("XDG_DATA_HOME").or_else(|| folder("HOME").map(|home| home.join(".local/share")))
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn on(os: &str, vars: &[(&str, &str)]) -> Option<PathBuf> {
        data_folder(os, |name| vars.iter().find(|var| var.0 == name).map(|var| var.1.into()))
    }

    #[test]
    fn the_data_folder_is_the_one_that_cubecl_asks_for() {
        let home = ("HOME", "/home/ada");
        assert_eq!(on("linux", &[home]), Some("/home/ada/.local/share".into()));
        assert_eq!(on("linux", &[home, ("XDG_DATA_HOME", "/data")]), Some("/data".into()));
        assert_eq!(on("macos", &[home]), Some("/home/ada/Library/Application Support".into()));
        assert_eq!(on("linux", &[]), None);
    }

    #[test]
    fn a_relative_data_folder_does_not_count() {
        let vars = [("HOME", "/home/ada"), ("XDG_DATA_HOME", "data")];
        assert_eq!(on("linux", &vars), Some("/home/ada/.local/share".into()));
    }
}
