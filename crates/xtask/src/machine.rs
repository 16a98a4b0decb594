//! Detects what this machine has, without building anything.

use std::env;
use std::path::{Path, PathBuf};

use crate::provision::{llvm, vulkan};
use crate::shell;

/// The facts that decide which backends can be built and run here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Machine {
    /// The operating system, as Rust names it.
    pub(crate) os: &'static str,
    /// LLVM is installed where CubeCL looks for it.
    pub(crate) llvm: bool,
    /// A C++ compiler, whose standard library LLVM links.
    pub(crate) cpp: bool,
    /// The library of the CUDA driver.
    pub(crate) cuda_driver: bool,
    /// A Vulkan loader and at least one driver, hardware or software.
    pub(crate) vulkan_driver: bool,
}

impl Machine {
    /// Looks at the machine this runs on.
    pub(crate) fn look() -> Self {
        Self {
            os: env::consts::OS,
            llvm: llvm::is_installed(),
            cpp: has_cpp(),
            cuda_driver: has_library("libcuda.so.1"),
            vulkan_driver: vulkan::has_driver(),
        }
    }

    /// The backend features to build here, and those left out with the reason.
    pub(crate) fn backends(&self) -> Choice {
        let mut choice = Choice { features: vec!["wgpu"], left_out: Vec::new() };
        match self.os {
            "linux" => {
                choice.features.push("vulkan");
                if !self.vulkan_driver {
                    // Built anyway: tests on their devices are skipped with a message.
                    choice.left_out.push(("wgpu and vulkan devices", "no Vulkan driver"));
                }
            }
            "macos" => choice.features.push("metal"),
            _ => {}
        }
        choice.add("cpu", self.lacks_for_llvm());
        let cuda = (!self.cuda_driver).then_some("no CUDA driver library libcuda.so.1");
        choice.add("cuda", cuda.or(self.lacks_for_llvm()));
        choice
    }

    fn lacks_for_llvm(&self) -> Option<&'static str> {
        if !self.llvm {
            Some("no LLVM where CubeCL looks for it")
        } else if !self.cpp {
            Some("no C++ compiler")
        } else {
            None
        }
    }
}

/// The backends that a build includes, and the reasons for leaving out the others.
#[derive(Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) features: Vec<&'static str>,
    left_out: Vec<(&'static str, &'static str)>,
}

impl Choice {
    fn add(&mut self, feature: &'static str, lacking: Option<&'static str>) {
        match lacking {
            None => self.features.push(feature),
            Some(reason) => self.left_out.push((feature, reason)),
        }
    }

    /// The choice in one line.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("backends: host, {}", self.features.join(", "));
        for (backend, reason) in &self.left_out {
            line += &format!("; not {backend} ({reason})");
        }
        line
    }
}

/// Whether a C++ compiler is in the `PATH`.
pub(crate) fn has_cpp() -> bool {
    ["c++", "g++", "clang++"].into_iter().any(shell::has_program)
}

/// Whether the dynamic linker would find a library of this name.
pub(crate) fn has_library(name: &str) -> bool {
    // The linker's cache is the best source, but only Linux has it, and `ldconfig` may be outside the `PATH`, in
    // `/sbin`.
    let cached = ["ldconfig", "/sbin/ldconfig"]
        .into_iter()
        .find_map(|program| shell::ask(program, &["-p"]))
        .is_some_and(|cache| cache.lines().any(|line| line.trim_start().starts_with(name)));
    cached || library_folders().iter().any(|folder| folder.join(name).exists())
}

fn library_folders() -> Vec<PathBuf> {
    let usual = [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib/wsl/lib",
        "/usr/local/nvidia/lib64",
    ];
    let set = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    env::split_paths(&set).chain(usual.iter().map(|&folder| Path::new(folder).into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: Machine =
        Machine { os: "linux", llvm: true, cpp: true, cuda_driver: true, vulkan_driver: true };

    #[test]
    fn a_machine_with_everything_builds_everything() {
        let choice = EVERYTHING.backends();
        assert_eq!(choice.line(), "backends: host, wgpu, vulkan, cpu, cuda");
    }

    #[test]
    fn without_llvm_neither_cpu_nor_cuda() {
        let choice = Machine { llvm: false, ..EVERYTHING }.backends();
        assert_eq!(choice.features, ["wgpu", "vulkan"]);
        assert!(choice.line().contains("not cpu (no LLVM"), "{}", choice.line());
    }

    #[test]
    fn a_bare_linux_still_builds_what_needs_no_library() {
        let choice = Machine { os: "linux", ..Machine::default() }.backends();
        assert_eq!(choice.features, ["wgpu", "vulkan"]);
        assert!(choice.line().contains("no Vulkan driver"), "{}", choice.line());
    }

    #[test]
    fn a_mac_takes_metal_for_vulkan() {
        let choice = Machine { os: "macos", cuda_driver: false, ..EVERYTHING }.backends();
        assert_eq!(choice.features, ["wgpu", "metal", "cpu"]);
    }
}
