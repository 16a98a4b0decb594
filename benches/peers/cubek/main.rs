//! cubek-pool and cubek-convolution on the cases of `windowpane bench`, one JSON row per case, which
//! `windowpane report` joins with ours:
//! `cubek --cases cases.jsonl --backend cuda > cubek.jsonl`.
//!
//! Every strategy for a case runs once and is compared with our result, because a strategy that does
//! nothing would be the fastest. Correct strategies are timed, and the row is that of the fastest. Devices,
//! inputs and clock are ours, so that only the kernels differ. A separate process does the work and is
//! ended if a strategy does not finish in time.

mod case;
mod contest;
mod conv;
mod pool;
mod time;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use windowpane::{Backend, Device};

use case::Case;
use contest::Contest;
use time::Clock;

/// An error message for a row.
type Result<T> = std::result::Result<T, String>;

/// cubek on the cases of `windowpane bench`, one JSON row per case
#[derive(Parser)]
struct Arguments {
    /// The cases, one JSON object per line
    #[arg(long, value_name = "FILE.jsonl")]
    cases: PathBuf,
    /// One of cuda, hip, metal, vulkan, wgpu, cpu [default: the best available]
    #[arg(long)]
    backend: Option<Backend>,
    /// Run only cases whose name/kind/pass/dtype/layout contains this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Run only strategies whose names contain this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    strategy: String,
    /// Time limit for compiling, running and timing a strategy, or for preparing a case; a strategy that
    /// exceeds it is skipped for all cases of its pass and type
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    limit: u64,
    /// Run the cases in this process and print what is tried
    #[arg(long, hide = true)]
    work: bool,
    /// Number of cases to skip at the start
    #[arg(long, hide = true, default_value_t = 0)]
    skip: usize,
    /// Strategies to skip, as printed
    #[arg(long, hide = true)]
    without: Vec<String>,
}

fn main() -> ExitCode {
    let asked = Arguments::parse();
    let done = if asked.work { work(&asked) } else { run(&asked) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cubek: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the cases in other processes and prints their rows.
fn run(asked: &Arguments) -> Result<()> {
    let cases = Case::read(&asked.cases, &asked.filter)?;
    let device = device(asked)?;
    let program = std::env::current_exe().map_err(text)?;
    let worker = |done: usize, given_up: &[String]| {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).arg("--work");
        command.args(["--skip", &done.to_string()]);
        command.args(given_up.iter().flat_map(|strategy| ["--without", strategy]));
        command
    };
    let failed = |case: usize, why: &str| {
        let mut row = row(&cases[case], &device);
        row["error"] = json!(why);
        row.to_string()
    };
    let limit = Duration::from_secs(asked.limit);
    watch::watch(cases.len(), limit, worker, failed, |row| println!("{row}"))
}

fn device(asked: &Arguments) -> Result<Device> {
    let device = match asked.backend {
        Some(backend) => Device::new(backend, 0).map_err(text)?,
        None => Device::best(),
    };
    match device.client() {
        Some(_) => Ok(device),
        None => Err("`host` has no kernels; name another backend".into()),
    }
}

/// The version of all of its crates in the workspace's `Cargo.toml`.
const VERSION: &str = "0.4.0-pre.1";

/// The fields of a row that identify case and peer.
fn row(case: &Case, device: &Device) -> Value {
    let mut row = json!({
        "name": case.name, "kind": case.kind, "pass": case.pass, "dtype": case.dtype,
        "layout": case.layout, "peer": "cubek", "backend": "cubek", "device": device.name(),
        "ran_on": device.backend().name(), "version": VERSION,
    });
    if let Some(precision) = &case.precision {
        row["precision"] = json!(precision);
    }
    row
}

/// Runs the cases and prints, for each, what is tried and then its row.
fn work(asked: &Arguments) -> Result<()> {
    let cases = Case::read(&asked.cases, &asked.filter)?;
    let device = device(asked)?;
    // A strategy that panics counts as unavailable; its message is not printed.
    std::panic::set_hook(Box::new(|_| {}));
    let mut clock = Clock::new(&device);
    for case in cases.into_iter().skip(asked.skip) {
        let mut row = row(&case, &device);
        let begin = |strategy: &str| {
            let told = format!("{}/{}/{strategy}", case.pass, case.dtype);
            if asked.without.contains(&told) {
                return Err(format!("it was not done in {} s, or ended the process", asked.limit));
            }
            println!("{}{told}", watch::TRYING);
            Ok(())
        };
        let result = guarded(|| measure(&case, &device, &mut clock, &asked.strategy, begin));
        let rest = result.unwrap_or_else(|error| json!({ "error": error }));
        if let (Some(row), Value::Object(rest)) = (row.as_object_mut(), rest) {
            row.extend(rest);
        }
        println!("{row}");
    }
    Ok(())
}

/// The row of the fastest correct strategy, or an error. Only strategies whose names contain the text run;
/// `begin` is called before each one and may refuse it.
fn measure(
    case: &Case,
    device: &Device,
    clock: &mut Clock,
    strategy: &str,
    begin: impl Fn(&str) -> Result<()>,
) -> Result<Value> {
    if case.layout != "nhwc" {
        return Err("cubek supports only channels last".into());
    }
    let contest = match &*case.kind {
        "maxpool" | "avgpool" => pool::contest(case, device)?,
        "conv" => conv::contest(case, device)?,
        other => return Err(format!("cubek has no `{other}`")),
    };
    let Contest { bytes, operations, output, expected, candidates } = contest;
    let (mut best, mut failures) = (None, Vec::new());
    for mut candidate in candidates.into_iter().filter(|it| it.name.contains(strategy)) {
        let tried = guarded(|| {
            begin(&candidate.name)?;
            output.spoil(device)?;
            (candidate.launch)()?;
            expected.hold(device, &output)?;
            clock.glance(&mut *candidate.launch)
        });
        match tried {
            Err(error) => failures.push(format!("{}: {error}", candidate.name)),
            Ok(seconds) => match &best {
                Some((least, _)) if *least <= seconds => {}
                _ => best = Some((seconds, candidate)),
            },
        }
    }
    let Some((_, mut best)) = best else {
        return Err(format!("no strategy is right; {}", failures.join("; ")));
    };
    begin(&best.name)?;
    let measured = clock.measure(&mut *best.launch, || output.spoil(device))?;
    expected.hold(device, &output)?;
    let mut row = json!({
        "algorithm": best.name,
        "ms": rounded(measured.median * 1e3),
        "ms_fastest": rounded(measured.fastest * 1e3),
        "gbs": rounded(bytes as f64 / measured.median / 1e9),
        "spread": rounded(measured.spread),
        "noisy": measured.spread > 0.05,
        "clock": if device.has_clock() { "device" } else { "host" },
        "cache": "warm",
        "windows": measured.windows,
        "launches": measured.launches,
        "recorded": measured.recorded,
        "strategies_failed": failures.len(),
    });
    if let Some(operations) = operations {
        row["tflops"] = json!(rounded(operations as f64 / measured.median / 1e12));
    }
    Ok(row)
}

/// Runs work and turns a panic into an error.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it said nothing");
        Err(format!("panicked: {}", one_line(words)))
    })
}

fn text(error: impl std::fmt::Display) -> String {
    one_line(&error.to_string())
}

/// The text on one line, cut to 160 characters.
fn one_line(words: &str) -> String {
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(160).collect()
}

/// Five significant digits; clocks are not more precise.
fn rounded(number: f64) -> f64 {
    format!("{number:.4e}").parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(words: Value) -> Case {
        let mut case = json!({
            "name": "x", "n": 2, "c": 16, "size": [12, 12], "k": [3, 3], "s": [1, 1], "p": [1, 1],
            "d": [1, 1], "dtype": "f32", "layout": "nhwc",
        });
        if let (Some(case), Value::Object(words)) = (case.as_object_mut(), words) {
            case.extend(words);
        }
        serde_json::from_value(case).expect("a case")
    }

    /// Devices that cubek runs on. Mesa's software Vulkan, up to at least 22.3, aborts on SPIR-V that uses
    /// shared memory.
    fn devices() -> impl Iterator<Item = Device> {
        let ends = |device: &Device| {
            device.backend() == Backend::Vulkan && device.name().contains("llvmpipe")
        };
        Device::all().into_iter().filter(move |it| it.client().is_some() && !ends(it))
    }

    /// Every kind and pass runs correctly on every device that has kernels.
    #[test]
    fn cases_are_right_and_timed() {
        let mut cases = vec![case(json!({ "kind": "avgpool", "pass": "fwd" }))];
        cases.push(case(json!({ "kind": "avgpool", "pass": "bwd" })));
        cases.push(case(json!({ "kind": "maxpool", "pass": "fwd" })));
        cases.push(case(json!({ "kind": "maxpool", "pass": "fwd", "indices": true })));
        cases.push(case(json!({ "kind": "maxpool", "pass": "bwd" })));
        for pass in ["fwd", "data", "weight"] {
            cases.push(case(json!({ "kind": "conv", "pass": pass, "cout": 32 })));
        }
        cases.push(case(json!({ "kind": "conv", "pass": "fwd", "cout": 16, "groups": 16 })));
        for device in devices() {
            let mut clock = Clock::new(&device);
            // On a CPU the threads spin at barriers for minutes.
            let slow = |case: &&Case| device.backend() == Backend::Cpu && case.kind == "conv";
            for case in cases.iter().filter(|case| !slow(case)) {
                let row = guarded(|| measure(case, &device, &mut clock, "", |_| Ok(())));
                let row = row.unwrap_or_else(|error| panic!("{} {}: {error}", case.path(), device));
                assert!(row["ms"].as_f64().is_some_and(|ms| ms > 0.0), "{row}");
            }
        }
    }

    /// A strategy that writes nothing, or something wrong, gives no row.
    #[test]
    fn wrong_strategies_are_found() {
        for device in devices() {
            let case = case(json!({ "kind": "avgpool", "pass": "fwd" }));
            let mut contest = pool::contest(&case, &device).expect("a contest");
            contest.output.spoil(&device).expect("other numbers");
            let wrong = contest.expected.hold(&device, &contest.output);
            assert!(wrong.is_err_and(|error| error.contains("wrong")));
            (contest.candidates[0].launch)().expect("it runs");
            contest.expected.hold(&device, &contest.output).expect("it is right");
        }
    }

    #[test]
    fn what_cubek_has_not_is_an_error() {
        for device in devices() {
            let mut clock = Clock::new(&device);
            let conv = json!({ "kind": "conv", "pass": "fwd", "layout": "nchw", "cout": 16 });
            let refused = measure(&case(conv), &device, &mut clock, "", |_| Ok(()));
            assert!(refused.is_err_and(|error| error.contains("channels last")));
        }
    }
}
