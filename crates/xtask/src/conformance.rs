//! `cargo xtask conformance`: ONNX's own tests of pooling, unpooling and convolution nodes, on every
//! device of this machine.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::machine::Machine;
use crate::provision::wheels;
use crate::{Result, shell, test};

/// The tests' package and its hash.
const WHEEL: &str = include_str!("../wheels/onnx.txt");
/// The folder of the tests in the package.
const INSIDE: &str = "onnx/backend/test/data";
/// The environment variable that passes this folder to the tests.
const FOLDER: &str = "WINDOWPANE_ONNX";

/// The options of `cargo xtask conformance`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Devices that may not be missing, as `host,cpu,wgpu`
    #[arg(long, value_name = "LIST", default_value = "host")]
    require: String,
}

/// Downloads the tests and runs them.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let choice = Machine::look().backends();
    println!("{}", choice.line());
    let features = choice.features.join(",");
    let mut command =
        shell::cargo(&["test", "--workspace", "--features", &features, "--test", "conformance"]);
    command.args(["--", "--nocapture"]).env(test::REQUIRE, &options.require);
    shell::run(include(&mut command)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Downloads the tests and makes a command that tests the workspace run them too.
pub(crate) fn include(command: &mut Command) -> Result<&mut Command> {
    Ok(command.env(FOLDER, provide()?))
}

/// The folder of the tests, which are downloaded if they are not there yet.
fn provide() -> Result<PathBuf> {
    // One folder per version of the wheel list, so that an old download is not used after the list changes.
    let version = WHEEL.split_once("sha256:").map_or("", |(_, hash)| hash.trim());
    let folder =
        shell::target_folder().join(format!("onnx-{}", version.get(..12).unwrap_or(version)));
    if !folder.exists() {
        println!("downloading ONNX's tests as a Python package (19 MB)");
        // Unpacked under another name and then renamed: after an interruption, the next run starts over.
        let scratch = folder.with_extension("part");
        if scratch.exists() {
            fs::remove_dir_all(&scratch)?;
        }
        fs::create_dir_all(&scratch)?;
        wheels::unpack(WHEEL, &scratch)?;
        fs::rename(&scratch, &folder)?;
    }
    Ok(folder.join(INSIDE))
}
