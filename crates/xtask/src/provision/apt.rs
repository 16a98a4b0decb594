//! Installs Debian packages, where that is possible without asking the user.

use std::process::Command;

use crate::{Result, shell};

/// Installs the packages if the user is root and the machine has apt; otherwise the error says what to install.
pub(super) fn install(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    if !shell::has_program("apt-get") {
        return Err(format!(
            "install what Debian calls `{list}` with this system's package manager, then run \
             `cargo xtask provision` again"
        )
        .into());
    }
    if !is_root() {
        return Err(format!("run `sudo apt-get install --no-install-recommends {list}`").into());
    }
    println!("installing the Debian packages {list}");
    shell::run(apt_get().arg("update"))?;
    shell::run(apt_get().args(["install", "-y", "--no-install-recommends"]).args(packages))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.arg("-qq").env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn is_root() -> bool {
    shell::ask("id", &["-u"]).is_some_and(|id| id.trim() == "0")
}
