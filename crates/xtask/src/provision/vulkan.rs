//! A Vulkan driver, in software if necessary, so that `wgpu` and `vulkan` run on every Linux machine.

use std::env;
use std::path::{Path, PathBuf};

use super::{Outcome, apt};
use crate::Result;
use crate::machine::has_library;

const LOADER: &str = "libvulkan.so.1";
/// The folders in which the loader looks for driver descriptions.
const FOLDERS: [&str; 3] =
    ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];
/// Either of these replaces the loader's own search with a list of files.
const OVERRIDES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// Whether there are a loader and the description of at least one driver.
pub(crate) fn has_driver() -> bool {
    has_library(LOADER) && driver().is_some()
}

pub(super) fn provide() -> Result<Outcome> {
    if !cfg!(target_os = "linux") {
        return Ok(Outcome::NotNeeded("graphics drivers come with the system".into()));
    }
    if let Some(place) = driver().filter(|_| has_library(LOADER)) {
        return Ok(Outcome::Present(place.display().to_string()));
    }
    if let Some(name) = OVERRIDES.into_iter().find(|name| env::var_os(name).is_some()) {
        return Err(format!("{name} names no driver file that exists; unset it").into());
    }
    apt::install(&["mesa-vulkan-drivers", "libvulkan1"])?;
    match driver().filter(|_| has_library(LOADER)) {
        Some(place) => Ok(Outcome::Installed(place.display().to_string())),
        None => Ok(Outcome::Missing(format!(
            "the packages are installed, yet there is no {LOADER} or nothing in {}",
            FOLDERS.join(", ")
        ))),
    }
}

/// The description of a driver, or the folder that holds some.
fn driver() -> Option<PathBuf> {
    match OVERRIDES.into_iter().find_map(env::var_os) {
        Some(list) => env::split_paths(&list).find(|file| file.exists()),
        None => FOLDERS.iter().map(PathBuf::from).find(|folder| describes_a_driver(folder)),
    }
}

fn describes_a_driver(folder: &Path) -> bool {
    let Ok(mut entries) = folder.read_dir() else { return false };
    entries.any(|entry| {
        entry.is_ok_and(|file| file.path().extension().is_some_and(|kind| kind == "json"))
    })
}
