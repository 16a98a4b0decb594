//! Libraries and data that are published as Python wheels.
//!
//! The folder `wheels` of this crate has a requirements file for each set, with the SHA-256 of every wheel: pip refuses
//! any wheel other than those that this repository was tested with.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::apt;
use crate::{Result, shell};

/// The tags of the wheels: fixed, so that every machine and every Python downloads the same files.
const TAGS: [&str; 8] = [
    "--implementation=cp",
    "--python-version=3.11",
    "--abi=cp311",
    "--platform=manylinux_2_28_x86_64",
    "--no-deps",
    "--only-binary=:all:",
    "--require-hashes",
    "--quiet",
];

/// Downloads the wheels of a requirements file to `folder` and unpacks them there, in one tree.
pub(crate) fn unpack(requirements: &str, folder: &Path) -> Result<()> {
    if shell::ask("python3", &["-m", "pip", "--version"]).is_none() {
        apt::install(&["python3", "python3-pip"])?;
    }
    let list = folder.join("requirements.txt");
    fs::write(&list, requirements)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download"]).args(TAGS);
    shell::run(pip.arg("--dest").arg(folder).arg("--requirement").arg(&list))?;
    for wheel in folder.read_dir()?.flatten().map(|file| file.path()) {
        if wheel.extension().is_some_and(|kind| kind == "whl") {
            let mut unzip = Command::new("python3");
            shell::run(unzip.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(folder))?;
            fs::remove_file(&wheel)?;
        }
    }
    Ok(())
}
