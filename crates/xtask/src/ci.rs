//! `cargo xtask ci`: the whole gate, cheap steps first, so that it fails early.
//!
//! Each step has a heading and its time; the first failure ends the run. The workspace tests come last, so that a
//! reader finds their output at the end of the log, followed by the table of steps.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::lint::lint;
use crate::provision::{self, llvm};
use crate::shell::{self, cargo};
use crate::{Result, burn, conformance, deny, disk, fuzz, test, wheel};

/// The devices that the workspace tests may not skip.
const REQUIRED: &str = "host,cpu,wgpu,vulkan";

/// The backends that are compiled without any other. `wgpu` is the default of the first commands, and Vulkan and Metal
/// are two more entries of its list of devices, which need no build each.
const ALONE: [&str; 3] = ["vulkan,metal", "cpu", "cuda"];

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
    let mut steps = vec![
        step("format", format),
        step("chores and architecture", || shell::run(&mut cargo(&["test", "-p", "xtask"]))),
        step("licences, bans, sources", deny::check),
        step("provision", provision),
        step("first command: pool3d", || first_command("pool3d")),
        step("first command: pool2d", || first_command("pool2d")),
        step("documentation", documentation),
    ];
    for backends in ALONE {
        steps.push(step(format!("{backends} alone"), move || check_alone(backends)));
    }
    steps.extend([
        step("hip alone", check_hip),
        step("the peer cubek", check_cubek),
        step("Burn", burn::test),
        step("fuzz targets", || fuzz::fuzz(fuzz::SECONDS, &[])),
        step("host alone", host_tests),
        step("Python package", || wheel::build("wgpu").map(drop)),
        step("disk space", disk::make_room),
        step("lints, tests on every device", device_tests),
    ]);
    steps
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
    let mut command = cargo(&["run", "--release", "--", name]);
    let nothing = shell::root().join("no-such-driver.json");
    command.env("VK_DRIVER_FILES", &nothing).env("VK_ICD_FILENAMES", &nothing);
    let output = shell::read(&mut command)?;
    print!("{output}");
    if output.contains("valid:y") {
        return Ok(());
    }
    Err(format!("`{name}` did not print `valid:y`; its result disagrees with the reference").into())
}

/// With the default features and `kernel-cache`. No other step builds that one, because it depends on a database.
fn documentation() -> Result<()> {
    let mut command =
        cargo(&["doc", "--workspace", "--no-deps", "--features", "windowpane/kernel-cache"]);
    shell::run(command.env("RUSTDOCFLAGS", "-Dwarnings"))
}

/// The library with few backends or none: a feature may not depend on what another one enables.
fn alone(verb: &str, backends: Option<&str>) -> Command {
    let mut command = cargo(&[verb, "-p", "windowpane", "--no-default-features"]);
    if let Some(backends) = backends {
        command.args(["--features", backends]);
    }
    command
}

fn check_alone(backends: &str) -> Result<()> {
    shell::run(&mut alone("check", Some(backends)))
}

/// CubeCL's `hip` compiles C++ against LLD, which an LLVM that is sufficient for the other backends may lack.
fn check_hip() -> Result<()> {
    let mut command = alone("check", Some("hip"));
    if !llvm::has_lld() {
        println!("this LLVM comes without LLD: only the Rust of `hip` is checked");
        // CubeCL's build scripts skip their C++ if only documentation is built.
        command.env("DOCS_RS", "1");
    }
    shell::run(&mut command)
}

/// Lints the benchmarks with the one peer in Rust, which no other step builds.
fn check_cubek() -> Result<()> {
    let mut command = cargo(&["clippy", "-p", "windowpane-benches", "--all-targets"]);
    shell::run(command.args(["--features", "cubek", "--", "-D", "warnings"]))
}

/// The library, and the guide and the examples as they are on a machine without a GPU.
fn host_tests() -> Result<()> {
    shell::run(&mut lint(alone("test", None))?)?;
    let examples = cargo(&["test", "-p", "windowpane-examples", "--no-default-features"]);
    shell::run(&mut lint(examples)?)
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
    fn every_backend_is_compiled_without_those_that_it_does_not_need() {
        let names: Vec<_> = steps().into_iter().map(|step| step.name).collect();
        for backends in ["host", "vulkan,metal", "cpu", "cuda", "hip"] {
            assert!(names.contains(&format!("{backends} alone")), "{backends}: {names:?}");
        }
        let library = include_str!("../../windowpane/Cargo.toml");
        for wgpu in ["default = [\"wgpu\"]", "vulkan = [\"wgpu\"", "metal = [\"wgpu\""] {
            assert!(library.contains(wgpu), "a backend needs a check of its own: {wgpu}");
        }
    }
}
