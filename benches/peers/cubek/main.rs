//! cubek-pool and cubek-convolution on the cases of `windowpane bench`, a JSON row each, which
//! `windowpane report` joins with ours:
//! `cubek --cases cases.jsonl --backend cuda > cubek.jsonl`.
//!
//! Of each case every strategy that it has runs once, and is held to our own result: one that does
//! nothing would be the fastest. Those that are right are timed, and the row is the fastest one's.
//! The devices, the inputs and the clock are ours, so that nothing but the kernels differs. The work is
//! done by another process, which is ended where a strategy is not done in time.

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

/// What went wrong, for a row that says so.
type Result<T> = std::result::Result<T, String>;

/// cubek on the cases of `windowpane bench`, a JSON row each
#[derive(Parser)]
struct Arguments {
    /// The cases, a JSON object a line
    #[arg(long, value_name = "FILE.jsonl")]
    cases: PathBuf,
    /// One of cuda, hip, metal, vulkan, wgpu, cpu [default: the best of this build and machine]
    #[arg(long)]
    backend: Option<Backend>,
    /// Only cases whose name, kind, pass, type and layout have this text in them
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Only strategies whose names have this text in them
    #[arg(long, value_name = "TEXT", default_value = "")]
    strategy: String,
    /// How long a strategy may take to compile, run and be timed, or a case to be made ready; a strategy
    /// that takes longer is left out of all cases of its pass and type
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    limit: u64,
    /// Do the cases in this process, and tell what is tried
    #[arg(long, hide = true)]
    work: bool,
    /// The cases to leave out, from the first
    #[arg(long, hide = true, default_value_t = 0)]
    skip: usize,
    /// Strategies to leave out, as they were told
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

/// Has other processes do the cases, and prints their rows.
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

/// Who ran what, for a row.
fn row(case: &Case, device: &Device) -> Value {
    let mut row = json!({
        "name": case.name, "kind": case.kind, "pass": case.pass, "dtype": case.dtype,
        "layout": case.layout, "peer": "cubek", "backend": "cubek", "device": device.name(),
        "ran_on": device.backend().name(),
    });
    if let Some(precision) = &case.precision {
        row["precision"] = json!(precision);
    }
    row
}

/// Does the cases, and prints a row of each and what is tried before.
fn work(asked: &Arguments) -> Result<()> {
    let cases = Case::read(&asked.cases, &asked.filter)?;
    let device = device(asked)?;
    // A strategy that panics is one that is not there; its words are in no one's way.
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

/// What the row says of the fastest right strategy, or why there is none. Strategies have this text in
/// their names, and `begin` is told of each before it runs, or refuses it.
fn measure(
    case: &Case,
    device: &Device,
    clock: &mut Clock,
    strategy: &str,
    begin: impl Fn(&str) -> Result<()>,
) -> Result<Value> {
    if case.layout != "nhwc" {
        return Err("cubek has channels last alone".into());
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

/// Does something of which a panic is an error like others.
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

/// The beginning of what may be many lines.
fn one_line(words: &str) -> String {
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(160).collect()
}

/// Five digits: no clock gives more.
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

    /// Devices that cubek runs on. Mesa's software Vulkan, at least to 22.3, ends the process where
    /// SPIR-V shares memory.
    fn devices() -> impl Iterator<Item = Device> {
        let ends = |device: &Device| {
            device.backend() == Backend::Vulkan && device.name().contains("llvmpipe")
        };
        Device::all().into_iter().filter(move |it| it.client().is_some() && !ends(it))
    }

    /// Every kind and pass runs on every device that has kernels, and is right there.
    #[test]
    fn cases_are_right_and_timed() {
        let mut cases = vec![case(json!({ "kind": "avgpool", "pass": "fwd" }))];
        cases.push(case(json!({ "kind": "avgpool", "pass": "bwd" })));
        cases.push(case(json!({ "kind": "maxpool", "pass": "fwd" })));
        cases.push(case(json!({ "kind": "maxpool", "pass": "fwd", "indices": true })));
        cases.push(case(json!({ "kind": "maxpool", "pass": "bwd" })));
        for pass in ["fwd", "dgrad", "wgrad"] {
            cases.push(case(json!({ "kind": "conv", "pass": pass, "cout": 32 })));
        }
        cases.push(case(json!({ "kind": "conv", "pass": "fwd", "cout": 16, "groups": 16 })));
        for device in devices() {
            let mut clock = Clock::new(&device);
            // The threads of a processor spin at the barriers of its products, for minutes.
            let slow = |case: &&Case| device.backend() == Backend::Cpu && case.kind == "conv";
            for case in cases.iter().filter(|case| !slow(case)) {
                let row = guarded(|| measure(case, &device, &mut clock, "", |_| Ok(())));
                let row = row.unwrap_or_else(|error| panic!("{} {}: {error}", case.path(), device));
                assert!(row["ms"].as_f64().is_some_and(|ms| ms > 0.0), "{row}");
            }
        }
    }

    /// A strategy that writes nothing, or something else, is no result.
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
