//! `cargo xtask fuzz`: replays past findings, then searches with every fuzz target for a while.
//!
//! libFuzzer needs coverage counters, and nothing else from a nightly compiler: an LLVM pass inserts them, which a
//! stable compiler can run too. So the targets are built with the same compiler as everything else, with debug
//! assertions and overflow checks, and without the sanitizers that only nightly has.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::Result;
use crate::shell::{self, cargo};

/// The compiler flags that show libFuzzer which branches an input takes and with which numbers it is compared.
const FLAGS: [&str; 7] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg",
    "fuzzing",
];

/// The options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How long each target searches, after past findings and the corpus have passed
    #[arg(long, value_name = "N", default_value_t = SECONDS)]
    seconds: u32,
    /// Only these targets [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

/// The number of seconds for which a target searches in the gate.
pub(crate) const SECONDS: u32 = 20;

/// Runs `cargo xtask fuzz`.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    fuzz(options.seconds, &options.targets)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the targets, replays past findings, and searches. Fails if there is any finding.
pub(crate) fn fuzz(seconds: u32, only: &[String]) -> Result<()> {
    let mut targets = targets()?;
    if let Some(unknown) = only.iter().find(|name| !targets.contains(name)) {
        return Err(format!("no target is called `{unknown}`; use {}", targets.join(", ")).into());
    }
    targets.retain(|name| only.is_empty() || only.contains(name));
    let programs = build()?;
    let queue = Mutex::new(VecDeque::from(targets));
    let failures = Mutex::new(Vec::new());
    // A target uses one core, so one target per core runs at a time.
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(name) = next else { break };
                    match Target::new(&programs, &name).and_then(|target| target.run(seconds)) {
                        Ok(line) => println!("{name}: {line}"),
                        Err(error) => {
                            println!("{name}: {error}");
                            failures.lock().unwrap_or_else(PoisonError::into_inner).push(name);
                        }
                    }
                }
            });
        }
    });
    match &*failures.into_inner().unwrap_or_else(PoisonError::into_inner) {
        [] => Ok(()),
        failed => {
            Err(format!("fuzzing failed in {}; the lines above say how", failed.join(", ")).into())
        }
    }
}

fn folder() -> PathBuf {
    shell::root().join("fuzz")
}

/// The names of the targets, in alphabetical order.
fn targets() -> Result<Vec<String>> {
    let files = folder().join("fuzz_targets").read_dir()?.flatten().map(|file| file.path());
    let mut names: Vec<_> =
        files.filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

/// Builds the targets and returns their folder.
fn build() -> Result<PathBuf> {
    let version =
        shell::ask("rustc", &["-vV"]).ok_or("`rustc -vV` says nothing; is Rust installed?")?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or("`rustc -vV` names no host")?;
    let target = shell::target_folder().join("fuzz");
    // With `--target`, the flags do not apply to build scripts and macros, which are not linked with libFuzzer.
    let mut command =
        cargo(&["build", "--bins", "--manifest-path", "fuzz/Cargo.toml", "--target", host]);
    command.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}")).env("CARGO_TARGET_DIR", &target);
    shell::run(&mut command)?;
    Ok(target.join(host).join("debug"))
}

/// A target and its files.
struct Target {
    program: PathBuf,
    /// Inputs to start from, and inputs that once failed; both are in the repository.
    corpus: PathBuf,
    regressions: PathBuf,
    /// Inputs found by a search, for the next one.
    found: PathBuf,
    log: PathBuf,
}

impl Target {
    fn new(programs: &Path, name: &str) -> Result<Self> {
        let work = programs.join("search").join(name);
        let found = work.join("corpus");
        fs::create_dir_all(&found)?;
        Ok(Self {
            program: programs.join(name),
            corpus: folder().join("corpus").join(name),
            regressions: folder().join("regressions").join(name),
            found,
            log: work.join("log"),
        })
    }

    /// Replays, then searches; returns a line with its progress.
    fn run(&self, seconds: u32) -> Result<String> {
        let past = files(&self.regressions)?;
        if !past.is_empty() {
            self.call(|command| command.args(&past))?;
        }
        let log = self.call(|command| {
            command.arg(&self.found).arg(&self.corpus).arg(format!("-max_total_time={seconds}"))
        })?;
        let progress = Progress::read(&log)?;
        Ok(format!("{progress}, {} past findings passed", past.len()))
    }

    /// Runs the target with libFuzzer's limits and returns its output.
    fn call(&self, arguments: impl FnOnce(&mut Command) -> &mut Command) -> Result<String> {
        let mut command = Command::new(&self.program);
        let artifacts = format!("-artifact_prefix={}/", self.found.with_file_name("").display());
        arguments(&mut command)
            .args(["-timeout=10", "-rss_limit_mb=2048", "-malloc_limit_mb=1024", &artifacts])
            // Threads would make coverage depend on their order.
            .env("RAYON_NUM_THREADS", "1")
            .stdout(File::create(&self.log)?)
            .stderr(File::options().append(true).open(&self.log)?);
        let status = command.status()?;
        let log = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
        if status.success() {
            return Ok(log);
        }
        let tail: Vec<_> = log.lines().rev().take(40).collect();
        let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
        Err(format!(
            "{tail}\na finding ({status}); fix it, and keep its input in {}",
            self.regressions.display()
        )
        .into())
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    match folder.is_dir() {
        true => Ok(folder
            .read_dir()?
            .collect::<std::io::Result<Vec<_>>>()?
            .iter()
            .map(|file| file.path())
            .collect()),
        false => Ok(Vec::new()),
    }
}

/// The progress of a search: libFuzzer's own counts, with the branches before and after.
#[derive(Debug, PartialEq)]
struct Progress {
    runs: u64,
    branches: [u64; 2],
}

impl Progress {
    /// Reads the lines `#2 INITED cov: 5 …` and `#9 DONE cov: 7 …`. Without coverage the search would be blind, so
    /// missing counts are an error.
    fn read(log: &str) -> Result<Self> {
        let line = |word: &str| {
            log.lines().rev().find(|line| line.split_whitespace().nth(1) == Some(word))
        };
        let number = |line: &str, before: &str| {
            let mut words = line.split_whitespace();
            words.find(|word| *word == before)?;
            words.next()?.parse().ok()
        };
        let branches = |word| line(word).and_then(|line| number(line, "cov:"));
        let runs = line("DONE")
            .and_then(|line| line.strip_prefix('#')?.split_whitespace().next()?.parse().ok());
        match (runs, branches("INITED"), branches("DONE")) {
            (Some(runs), Some(before), Some(after)) if after > 0 => {
                Ok(Self { runs, branches: [before, after] })
            }
            _ => {
                Err("libFuzzer counted no coverage; the target was built without its flags".into())
            }
        }
    }
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { runs, branches: [before, after] } = self;
        write!(f, "{runs} runs, {before} branches by the corpus, {after} at the end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_from_the_log() {
        let log = "INFO: seed corpus\n#6\tINITED cov: 251 ft: 400 corp: 5/99b\n\
                   #9001\tNEW    cov: 300 ft: 500\n#10000\tDONE   cov: 312 ft: 600 corp: 7/1Kb\n";
        let progress = Progress::read(log).unwrap();
        assert_eq!(progress, Progress { runs: 10000, branches: [251, 312] });
        let blind = log.replace("cov: 312 ", "");
        assert!(Progress::read(&blind).unwrap_err().to_string().contains("no coverage"));
    }

    #[test]
    fn every_target_has_a_corpus_and_a_program() {
        let manifest = fs::read_to_string(folder().join("Cargo.toml")).unwrap();
        for name in targets().unwrap() {
            assert!(!files(&folder().join("corpus").join(&name)).unwrap().is_empty(), "{name}");
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
        }
    }
}
