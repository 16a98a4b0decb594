//! `windowpane bench`, `verify` and `report`: many cases, several backends side by side, what they
//! compute held to the reference, and peers beside them.
//!
//! A new kind of case is a file beside [`pool`] and [`conv`], and a line of [`ready`] and of [`check`].

mod against;
mod case;
mod ceiling;
mod conv;
mod forced;
mod lines;
mod measure;
mod plot;
mod pool;
mod print;
mod report;
mod row;
mod sliding;
mod verify;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use windowpane::{Backend, Device, Tiling};

use crate::args::number;
use crate::element::Comparison;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::tuned;

use against::Earlier;
use case::Case;
use ceiling::Ceilings;
use forced::{Auto, Forced};
use measure::{Measured, Stopwatch};
use plot::Picture;
use print::Printer;
use row::{Against, Line, Row};

pub(crate) use report::Report;
pub(crate) use verify::Verify;

const EXAMPLE: &str = "\
Example: the average cases of a file on two backends, an object a line
  windowpane bench --cases cases.jsonl --backend cuda,vulkan --filter avgpool --format json

A case a line, here in three: {\"name\": \"stem\", \"kind\": \"maxpool\", \"pass\": \"fwd\", \"n\": 8, \"c\": 64,
\"size\": [56, 56], \"k\": [3, 3], \"s\": [2, 2], \"p\": [1, 1], \"d\": [1, 1], \"dtype\": \"f32\",
\"layout\": \"nhwc\", \"indices\": false}.
A convolution (kind conv, pass fwd, dgrad or wgrad) has no indices and has \"cout\" and \"groups\",
and may have \"precision\": \"tf32\"; its filters are laid out as its data.
Times are the device's own, the median of several windows of many launches each, out of a recording
such as CUDA's graphs where the device makes one; with --flush-cache a window is one launch, and
before it, untimed, 384 MB are filled with random numbers. Before a case is timed, a part of it is
computed and held to the reference.

Example: the fastest kernels and tiles of this GPU, kept for later runs and for `conv`
  windowpane bench --cases cases.jsonl --filter conv --tune --tuned gpu.tuned";

/// The taps that the reference computes for the check before a case is timed, and the
/// multiplications, of which a tap has one a channel.
const QUICK_CHECK: u64 = 1 << 22;
const QUICK_PRODUCTS: u64 = 1 << 24;

/// The cases, and where they run.
#[derive(Args)]
struct Cases {
    /// The cases, a JSON object a line
    #[arg(long, value_name = "FILE.jsonl")]
    cases: PathBuf,
    /// One or more of cuda, hip, metal, vulkan, wgpu, cpu, host [default: the best of this build
    /// and machine]
    #[arg(long, value_name = "BACKEND,…", value_delimiter = ',')]
    backend: Vec<Backend>,
    /// The device's number among those of each backend
    #[arg(long, value_name = "N", value_parser = number, default_value_t = 0)]
    device: usize,
    /// Only cases whose name, kind, pass, type and layout, as in stem/maxpool/fwd/f32/nhwc, have
    /// this text in them
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// auto, or one way for all cases, by the name that `plan pool` or `plan conv` prints
    #[arg(long, value_name = "NAME", value_parser = forced::algorithm, default_value = "auto")]
    algorithm: Auto,
    /// The tiling of all convolutions, or some of its numbers, as `conv` takes them
    #[arg(long, value_name = "NAME=NUMBER,…")]
    tile: Option<Tiling>,
    /// Follow a table of tuned convolutions; with `bench --tune` it is written, and need not be there
    #[arg(long, value_name = "FILE")]
    tuned: Option<PathBuf>,
    /// How the results are printed [default: table on a terminal, else json]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Print results only: no progress
    #[arg(long)]
    quiet: bool,
}

/// The arguments of `bench`.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Bench {
    #[command(flatten)]
    cases: Cases,
    /// Time with cold caches
    #[arg(long)]
    flush_cache: bool,
    /// Let the device rest for so long before each case is timed: hot work lowers its clock
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0")]
    rest: Duration,
    /// Pick kernel and tile of each convolution by measuring first
    #[arg(long)]
    tune: bool,
    /// Time without comparing with the reference first
    #[arg(long)]
    unchecked: bool,
    /// Tell what moved, came and went since this run, in JSON lines, and exit 1 if a case is slower
    /// or broken
    #[arg(long, value_name = "OLD.jsonl")]
    against: Option<PathBuf>,
    /// The share of its time by which a case may change; more where its windows differ by more
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "0.05")]
    threshold: f64,
    /// Draw the cases on their devices' rooflines, and the backends side by side
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    // No help texts: with them clap sets every flag's help on lines of its own.
    Table,
    Markdown,
    Json,
}

/// Seconds from 0, as 0.3.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "use seconds from 0, as 0.3".into())
}

/// A share from 0, as 0.05 for five per cent.
fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..f64::INFINITY).contains(&share) => Ok(share),
        _ => Err("use a number from 0, as 0.05 for five per cent".into()),
    }
}

/// A case made ready on a device: everything that it needs is there, and it can be launched.
trait Work: Send {
    /// Launches it once more.
    fn launch(&mut self) -> windowpane::Result<()>;
    /// Waits for the last launch, and tells whether it went well.
    fn wait(&self) -> windowpane::Result<()>;
    /// The algorithm that was chosen.
    fn algorithm(&self) -> String;
    /// How its product of matrices is cut up, if it is one.
    fn tile(&self) -> Option<String> {
        None
    }
    /// The fewest bytes that a launch moves.
    fn bytes(&self) -> u64;
    /// The additions and multiplications of a launch, where they are what it is measured by.
    fn operations(&self) -> Option<u64>;
    /// All operations of a launch: one a tap for a pooling.
    fn arithmetic(&self) -> u64 {
        self.operations().unwrap_or_default()
    }
}

/// What came of a case's comparison with the reference.
struct Checked {
    algorithm: String,
    /// The samples that were computed, of all that the case has.
    samples: usize,
    of: usize,
    /// The extents of a sample, where they are smaller than the case's.
    size: Option<Vec<usize>>,
    /// The results that were compared, of all that were computed.
    outputs: usize,
    of_outputs: usize,
    comparison: Comparison,
}

/// Makes a case ready on a device.
fn ready(case: &Case, device: &Device, forced: Forced) -> Result<Box<dyn Work>, Failure> {
    match &*case.kind {
        "maxpool" | "avgpool" => pool::ready(case, device, forced),
        "conv" => conv::ready(case, device, forced),
        other => Err(no_kind(other)),
    }
}

fn no_kind(other: &str) -> Failure {
    Failure::Failed(format!("there is no kind `{other}`; use one of maxpool, avgpool, conv"))
}

/// Runs as much of a case as makes at most so many taps, and compares the results with the
/// reference's.
fn check(case: &Case, device: &Device, forced: Forced, taps: u64) -> Result<Checked, Failure> {
    match &*case.kind {
        "maxpool" | "avgpool" => pool::check(case, device, forced, taps),
        "conv" => conv::check(case, device, forced, taps),
        other => Err(no_kind(other)),
    }
}

/// How much of a case the reference computes before it is timed.
fn quick(case: &Case) -> u64 {
    match &*case.kind {
        "conv" => QUICK_PRODUCTS,
        _ => QUICK_CHECK,
    }
}

/// The type of the factors of a case's products, as ceilings name it.
fn factors(case: &Case) -> String {
    match &*case.kind {
        "conv" => conv::arithmetic(case),
        _ => case.dtype.clone(),
    }
}

impl Bench {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let cases = self.cases.read()?;
        let earlier = self.against.as_ref().map(|path| Earlier::read(path, self.threshold));
        let earlier = earlier.transpose()?;
        let picture = self.plot.as_ref().map(|path| Picture::new(path)).transpose()?;
        let devices = self.cases.devices()?;
        self.cases.follow_tuned(self.tune)?;
        let progress = Progress::of(self.cases.quiet, (cases.len() + 1) * devices.len());
        let mut printer = Printer::new(self.cases.format);

        let mut contestants = Vec::new();
        for device in devices {
            let contestant = self.prepare(&device, &cases, &progress);
            for line in contestant.iter().flat_map(|(ceilings, _)| ceilings.lines()) {
                printer.add(&progress, Line::Ceiling(line.clone()))?;
            }
            contestants.push((device, contestant));
            progress.step();
        }
        if let [(_, Err(error))] = &contestants[..] {
            return Err(Failure::Failed(error.clone()));
        }
        let (mut failed, total) = (0, cases.len() * contestants.len());
        for case in &cases {
            for (device, contestant) in &mut contestants {
                progress.now(format!("{} on {device}", case.path()));
                let measured = self.measure(case, contestant);
                failed += usize::from(measured.is_err());
                let row = Row::new(case, device, self.flush_cache, measured);
                printer.add(&progress, Line::Row(row))?;
                progress.step();
            }
        }
        drop(progress);
        printer.finish()?;
        let filter = self.cases.filter.as_deref().unwrap_or_default();
        let slower = earlier.map_or(Ok(0), |earlier| printer.moved(&earlier, filter))?;
        // Where nothing ran there is nothing to draw, and that is not what is wrong.
        let drawn = picture.map_or(Ok(()), |picture| picture.draw(printer.lines()));
        match (failed, slower) {
            (0, 0) => drawn,
            (0, slower) => Err(Failure::Failed(format!(
                "{slower} of {total} cases are slower than they were, or broken"
            ))),
            (failed, _) => Err(Failure::Failed(format!(
                "{failed} of {total} cases did not run; their rows say why"
            ))),
        }
    }

    /// What is forced on a case: with `--tune`, what was measured to be the fastest where it is
    /// not what plans now choose by themselves.
    fn forced(&self, case: &Case, device: &Device) -> Result<Forced, Failure> {
        let forced = self.cases.forced();
        if !self.tune || case.kind != "conv" {
            return Ok(forced);
        }
        let tuned = conv::tune(case, device, forced)?;
        // At once, so that a run that is ended has kept what it found.
        self.cases.tuned.as_deref().map_or(Ok(()), tuned::keep)?;
        Ok(tuned)
    }

    /// Measures what a device can do at most. One that fails at it ends its own rows, not those of
    /// the devices beside it.
    fn prepare(&self, device: &Device, cases: &[Case], progress: &Progress) -> Contestant {
        guarded(|| {
            let mut stopwatch = Stopwatch::new(device.clone(), self.flush_cache, self.rest)?;
            let ceilings = Ceilings::measure(&mut stopwatch, cases, |what| progress.now(what))?;
            Ok((ceilings, stopwatch))
        })
    }

    /// Makes a case ready and times it. Whatever goes wrong ends the case, not the run.
    fn measure(
        &self,
        case: &Case,
        contestant: &mut Contestant,
    ) -> Result<(Measured, Against), String> {
        let (ceilings, stopwatch) = match contestant {
            Ok(ready) => (&ready.0, &mut ready.1),
            Err(error) => return Err(format!("the device's ceilings were not measured: {error}")),
        };
        guarded(|| {
            let device = stopwatch.device().clone();
            let forced = self.forced(case, &device)?;
            let mut work = ready(case, &device, forced)?;
            let error = match self.unchecked {
                true => None,
                false => Some(right(&check(case, &device, forced, quick(case))?)?),
            };
            let measured = Measured { error, ..stopwatch.measure(&mut *work)? };
            let against = ceilings.against(&factors(case), measured.bytes);
            Ok((measured, against))
        })
    }
}

/// A device's ceilings and what times cases on it, or why it has none.
type Contestant = Result<(Ceilings, Stopwatch), String>;

/// The worst error of a case that is right; a wrong one is a failure, however fast.
fn right(checked: &Checked) -> Result<f64, Failure> {
    match &checked.comparison.wrong {
        None => Ok(checked.comparison.worst),
        Some(wrong) => Err(Failure::Failed(format!("the result is wrong: {wrong}"))),
    }
}

/// Does something of which a failure, and a panic too, is what is told of it.
fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|failure| failure.to_string()),
        Err(panic) => Err(format!("a bug, please report it: {}", words(&*panic))),
    }
}

impl Cases {
    /// The cases of the file that the filter lets through.
    fn read(&self) -> Result<Vec<Case>, Failure> {
        let mut cases = Case::read(&self.cases)?;
        let filter = self.filter.as_deref().unwrap_or_default();
        let all = cases.len();
        cases.retain(|case| case.path().contains(filter));
        if cases.is_empty() {
            let file = self.cases.display();
            return Err(Failure::Failed(match all {
                0 => format!("{file}: has no cases; write a JSON object a line"),
                _ => format!("{file}: none of the {all} cases has `{filter}` in it"),
            }));
        }
        Ok(cases)
    }

    /// Makes plans follow the table that is named; one that will be written need not be there.
    fn follow_tuned(&self, written: bool) -> Result<(), Failure> {
        match &self.tuned {
            // Whether it can be written is seen before hours of measuring.
            Some(path) if written && !path.exists() => Output::new(path).map(drop),
            Some(path) => tuned::follow(path),
            None => Ok(()),
        }
    }

    fn forced(&self) -> Forced {
        Forced { algorithm: self.algorithm.0, tile: self.tile }
    }

    fn devices(&self) -> Result<Vec<Device>, Failure> {
        let mut backends = self.backend.clone();
        if backends.is_empty() {
            backends.push(Device::best().backend());
        }
        if let Some(twice) = backends.iter().enumerate().find(|(i, b)| backends[..*i].contains(b)) {
            let message = format!("--backend has {} twice; name each once", twice.1);
            return Err(Failure::Arguments(message));
        }
        let devices = backends.into_iter().map(|backend| Device::new(backend, self.device));
        Ok(devices.collect::<Result<_, _>>()?)
    }
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it said nothing").into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A wrong result is never a time.
    #[test]
    fn wrong_cases_have_no_time() {
        let case: Case = serde_json::from_value(json!({
            "name": "x", "kind": "maxpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
        }))
        .expect("a case");
        let comparison = Comparison::of_same(&[1.0f32, 2.0], &[1.0, 3.0]);
        let algorithm = "direct".into();
        let checked = Checked {
            algorithm,
            samples: 1,
            of: 1,
            size: None,
            outputs: 2,
            of_outputs: 2,
            comparison,
        };
        let measured = guarded(|| {
            right(&checked)?;
            unreachable!("it would be timed now")
        });
        let row = Row::new(&case, &Device::host(), false, measured);
        assert_eq!(row.error(), Some("the result is wrong: element 1 is 2, not 3"));
        assert!(row.time().is_none());
    }

    /// A device that is lost before its first case leaves rows that say so, and others theirs.
    #[test]
    fn a_device_without_ceilings_has_rows_that_say_so() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            bench: Bench,
        }
        let line = <Line as clap::Parser>::parse_from(["bench", "--cases", "cases.jsonl"]);
        let case: Case = serde_json::from_value(json!({
            "name": "x", "kind": "avgpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
            "n": 1, "c": 4, "size": [6], "k": [2], "s": [2], "p": [0], "d": [1],
        }))
        .expect("a case");
        let host = Device::host();
        let row = |contestant: &mut Contestant| {
            Row::new(&case, &host, false, line.bench.measure(&case, contestant))
        };
        let lost = row(&mut Err("it is lost".into()));
        assert_eq!(lost.error(), Some("the device's ceilings were not measured: it is lost"));
        let progress = Progress::new(true, "");
        let mut ready = line.bench.prepare(&host, std::slice::from_ref(&case), &progress);
        assert!(row(&mut ready).time().is_some_and(|time| time.ms > 0.0));
    }

    #[test]
    fn shares_are_numbers_from_zero() {
        assert_eq!((share("0.05"), share("0")), (Ok(0.05), Ok(0.0)));
        for bad in ["-0.1", "NaN", "inf", "5%", ""] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
