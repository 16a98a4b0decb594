//! `cargo xtask wheel`: builds the Python package, installs it in a new environment and tests it there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::shell::{self, target_folder};
use crate::{Result, shell::root};

/// The tools that build and test the package, and all that they need, each with the SHA-256 of its wheels.
const TOOLS: &str = "crates/xtask/wheels/python.txt";

/// The options of `cargo xtask wheel`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Backends beside `host`, as `wgpu,cuda`
    #[arg(long, value_name = "LIST", default_value = "wgpu")]
    features: String,
    /// Compile it as tests are compiled: sooner and from dependencies that other builds share, but it is large
    #[arg(long)]
    dev: bool,
}

/// Builds and tests the wheel, and prints its path.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    println!("the wheel: {}", build(&options.features, options.dev)?.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds the wheel with these backends, and tests it.
pub(crate) fn build(features: &str, dev: bool) -> Result<PathBuf> {
    let (environment, wheels) = (target_folder().join("python"), target_folder().join("wheels"));
    // A new environment each time, so that nothing of an earlier run is tested.
    for folder in [&environment, &wheels] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    shell::run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let python = environment.join("bin/python");
    let pip = |arguments: &[&str], what: &Path| {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        shell::run(command.args(arguments).arg(what))
    };
    // A package without a wheel would fetch the tools that build it, which have no hashes.
    let hashed = ["--require-hashes", "--only-binary=:all:", "--requirement"];
    pip(&hashed, &root().join(TOOLS))?;
    let mut maturin = Command::new(environment.join("bin/maturin"));
    maturin.args(["build", "--locked", "--strip", "--no-default-features"]);
    if !dev {
        maturin.arg("--release");
    }
    // For this machine; published wheels are built for an older C library.
    maturin.args(["--compatibility", "linux", "--features", features]);
    maturin.arg("--manifest-path").arg(root().join("crates/python/Cargo.toml"));
    shell::run(maturin.arg("--out").arg(&wheels).current_dir(root()))?;
    let wheel = fs::read_dir(&wheels)?.next().ok_or("maturin has made no wheel")??.path();
    println!("{} MB", fs::metadata(&wheel)?.len().div_ceil(1 << 20));
    pip(&["--no-deps"], &wheel)?;
    // Not in the folder of the sources, so that the installed package is imported.
    let tool = |module: &str, arguments: &[&str], what: &Path| {
        let mut command = Command::new(&python);
        command.args(["-m", module]).args(arguments).arg(what).current_dir(&environment);
        shell::run(&mut command)
    };
    let (package, name) = (root().join("crates/python"), Path::new("windowpane"));
    let pytest = ["--quiet", "-rs", "-p", "no:cacheprovider"];
    tool("pytest", &pytest, &package.join("tests"))?;
    // The modules for libraries that are not installed here are skipped, as their tests are.
    let doctests = ["--doctest-modules", "--doctest-ignore-import-errors", "--pyargs"];
    tool("pytest", &[&pytest[..], &doctests].concat(), name)?;
    tool("doctest", &[], &package.join("README.md"))?;
    let configuration = package.join("pyproject.toml").display().to_string();
    tool("mypy", &["--config-file", &configuration, "--package"], name)?;
    tool("mypy.stubtest", &[], Path::new("windowpane._native"))?;
    Ok(wheel)
}
