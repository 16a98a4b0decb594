//! `cargo xtask ci`: the whole gate, cheap steps first, so that it fails early.
//!
//! Each step has a heading and its time; the first failure ends the run. The workspace tests come last, so that a
//! reader finds their output at the end of the log, followed by the table of steps.
//!
//! Nothing is built with the release profile, for which all crates would be compiled once more.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::lint::lint;
use crate::provision::{self, llvm};
use crate::shell::{self, cargo};
use crate::{Result, burn, conformance, deny, disk, fuzz, publish, test, wheel};

/// The devices that the workspace tests may not skip.
const REQUIRED: &str = "host,cpu,wgpu,vulkan";

/// The features that are backends.
const BACKENDS: [&str; 6] = ["wgpu", "vulkan", "metal", "cpu", "cuda", "hip"];

/// One step of the gate.
struct Step {
    name: String,
    work: Box<dyn Fn() -> Result<()>>,
}

fn step(name: impl Into<String>, work: impl Fn() -> Result<()> + 'static) -> Step {
    Step { name: name.into(), work: Box::new(work) }
}

/// Runs the gate; fails with its first failing step.
pub(crate) fn run() -> Result<ExitCode> {
    let log = follow(&steps());
    println!("\n{}", log.table());
    Ok(if log.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn steps() -> Vec<Step> {
    vec![
        step("format", format),
        step("chores and architecture", || shell::run(&mut cargo(&["test", "-p", "xtask"]))),
        step("licences, bans, sources", deny::check),
        step("packages", publish::check),
        step("provision", provision),
        step("first command: pool3d", || first_command("pool3d")),
        step("first command: pool2d", || first_command("pool2d")),
        step("documentation, every backend", documentation),
        step("the peer cubek", check_cubek),
        step("Burn", burn::test),
        step("fuzz targets", || fuzz::fuzz(fuzz::SECONDS, &[])),
        step("host alone", host_tests),
        step("Python package", || wheel::build("wgpu", true).map(drop)),
        step("disk space", disk::make_room),
        step("lints, tests on every device", device_tests),
    ]
}

fn format() -> Result<()> {
    shell::run(&mut cargo(&["fmt", "--all", "--check"]))?;
    // A workspace of its own. `--all` would format the crates of the other one again.
    shell::run(&mut cargo(&["fmt", "--check", "--manifest-path", burn::MANIFEST]))
}

fn provision() -> Result<()> {
    if provision::provision() {
        return Ok(());
    }
    Err("the gate needs everything above; do what the MISSING lines say".into())
}

/// Runs the README's first command as on a machine without a Vulkan driver, whether or not this one has a driver.
fn first_command(name: &str) -> Result<()> {
    let mut command = cargo(&["run", "--", name]);
    let nothing = shell::root().join("no-such-driver.json");
    command.env("VK_DRIVER_FILES", &nothing).env("VK_ICD_FILENAMES", &nothing);
    let output = shell::read(&mut command)?;
    print!("{output}");
    if output.contains("valid:y") {
        return Ok(());
    }
    Err(format!("`{name}` did not print `valid:y`; its result disagrees with the reference").into())
}

/// What is documented is compiled as well: whatever uses the library needs it whole.
fn documentation() -> Result<()> {
    let mut command = with_everything(&["doc", "--workspace", "--no-deps"])?;
    shell::run(command.env("RUSTDOCFLAGS", "-Dwarnings"))
}

/// The one peer in Rust, which no other step builds.
fn check_cubek() -> Result<()> {
    // As documentation does, so that dependencies are compiled once: with the whole workspace, but only these programs.
    shell::run(&mut with_everything(&[
        "check",
        "--workspace",
        "--bin",
        "cubek",
        "--test",
        "cubek",
    ])?)
}

/// A command with lints and every feature that no test has: every backend, the database that `cuda` and `hip` keep kernels
/// in, and the peer.
fn with_everything(args: &[&str]) -> Result<Command> {
    let library = BACKENDS.iter().map(|name| format!("windowpane/{name}"));
    let features: Vec<_> = library.chain(["windowpane-benches/cubek".into()]).collect();
    let mut command = lint(cargo(args))?;
    without_lld(command.args(["--features", &features.join(",")]));
    Ok(command)
}

/// CubeCL's `hip` compiles C++ against LLD, which an LLVM that is sufficient for the other backends may lack.
fn without_lld(command: &mut Command) -> &mut Command {
    if !llvm::has_lld() {
        println!("this LLVM comes without LLD: only the Rust of `hip` is checked");
        // CubeCL's build scripts skip their C++ if only documentation is built.
        command.env("DOCS_RS", "1");
    }
    command
}

/// The library, and the guide and the examples as they are on a machine without a GPU. One command, so that the library
/// is compiled once, with the formats that the examples read.
fn host_tests() -> Result<()> {
    let packages = ["-p", "windowpane", "-p", "windowpane-examples"];
    let mut command = cargo(&["test", "--no-default-features"]);
    command.args(packages);
    shell::run(&mut lint(command)?)
}

/// The workspace with every backend that runs here, and ONNX's tests of its operators.
fn device_tests() -> Result<()> {
    let mut command = lint(test::required(REQUIRED))?;
    shell::run(conformance::include(&mut command)?)
}

/// Runs the steps in order until one fails.
fn follow(steps: &[Step]) -> Log {
    let mut log = Log::default();
    for step in steps {
        if !log.passed() {
            log.rows.push(Row::new(step, Verdict::NotRun, Duration::ZERO));
            continue;
        }
        println!("\n== {}", step.name);
        let start = Instant::now();
        let verdict = match (step.work)() {
            Ok(()) => Verdict::Passed,
            Err(error) => {
                println!("failed: {error}");
                Verdict::Failed
            }
        };
        let time = start.elapsed();
        let free = disk::free().map(|free| format!("; {} of disk free", disk::gigabytes(free)));
        let (word, seconds, free) = (verdict.word(), time.as_secs_f64(), free.unwrap_or_default());
        println!("-- {}: {word} after {seconds:.1} s{free}", step.name);
        log.rows.push(Row::new(step, verdict, time));
    }
    log
}

/// The outcome of each step.
#[derive(Default)]
struct Log {
    rows: Vec<Row>,
}

struct Row {
    name: String,
    verdict: Verdict,
    time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Passed,
    Failed,
    NotRun,
}

impl Row {
    fn new(step: &Step, verdict: Verdict, time: Duration) -> Self {
        Self { name: step.name.clone(), verdict, time }
    }
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::NotRun => "not run",
        }
    }
}

impl Log {
    fn passed(&self) -> bool {
        self.count(Verdict::Failed) == 0
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// One line per step, then their total time and a last line with the counts.
    fn table(&self) -> String {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        let mut table = String::new();
        for Row { name, verdict, time } in &self.rows {
            let (word, seconds) = (verdict.word(), time.as_secs_f64());
            table += &format!("{name:width$}  {word:7}  {seconds:8.1} s\n");
        }
        let total = self.rows.iter().map(|row| row.time).sum::<Duration>().as_secs_f64();
        table += &format!("{:width$}  {:7}  {total:8.1} s\n", "all steps", "");
        table += &format!(
            "steps: {} passed, {} failed, {} not run",
            self.count(Verdict::Passed),
            self.count(Verdict::Failed),
            self.count(Verdict::NotRun),
        );
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_ends_the_run_and_the_table_says_so() {
        let log = follow(&[
            step("good", || Ok(())),
            step("bad", || Err("broken".into())),
            step("never", || panic!("ran after a failure")),
        ]);
        assert!(!log.passed());
        let verdicts: Vec<_> = log.rows.iter().map(|row| row.verdict).collect();
        use Verdict::{Failed, NotRun, Passed};
        assert_eq!(verdicts, [Passed, Failed, NotRun]);
        assert!(log.table().ends_with("steps: 1 passed, 1 failed, 1 not run"), "{}", log.table());
    }

    #[test]
    fn the_list_has_the_librarys_backends() {
        let library = include_str!("../../windowpane/Cargo.toml");
        let features = library.lines().filter(|line| line.contains("\"cubecl/"));
        let mut names: Vec<_> = features.filter_map(|line| line.split(" = ").next()).collect();
        names.retain(|name| *name != "kernel-cache");
        assert_eq!(names, BACKENDS);
    }
}
