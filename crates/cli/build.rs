//! Passes the commit and the compiler to the program, which writes them into recorded rows.

use std::process::Command;

fn main() {
    let compiler = ask(&std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into()), &["--version"]);
    let commit = ask("git", &["rev-parse", "--short=12", "HEAD"]).map(|commit| {
        // The `+` marks a program that was built with uncommitted changes.
        let status = ["--no-optional-locks", "status", "--porcelain", "--untracked-files=no"];
        let status = ask("git", &status);
        if status.is_some() { format!("{commit}+") } else { commit }
    });
    println!("cargo::rustc-env=WINDOWPANE_COMPILER={}", compiler.unwrap_or_default());
    println!("cargo::rustc-env=WINDOWPANE_COMMIT={}", commit.unwrap_or_default());
    println!("cargo::rerun-if-changed=build.rs");
    for file in ["HEAD", "logs/HEAD"] {
        let path = ask("git", &["rev-parse", "--git-path", file]);
        // A missing file would make Cargo run this in every build.
        if let Some(path) = path.filter(|path| std::path::Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

/// The first line of a program's output; none if it is missing, fails or prints nothing.
fn ask(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    text.lines().next().map(str::to_owned)
}
