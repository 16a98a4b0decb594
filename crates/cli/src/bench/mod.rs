//! `windowpane bench`, `verify` and `report`: many cases on several backends side by side, compared
//! with the reference and with other libraries.
//!
//! A new kind of case needs a file next to [`pool`], [`conv`] and [`pad`], and a line in every `match` on the
//! [`Family`].

mod against;
mod case;
mod ceiling;
mod conv;
mod forced;
mod jobs;
mod lines;
mod measure;
mod pad;
mod plot;
mod pool;
mod print;
mod random;
mod report;
mod row;
mod sliding;
mod tally;
mod verify;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use windowpane::{Backend, Device, MaxPool, Tensor, TileOverrides};

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
Example: the average-pooling cases of a file on two backends, as JSON lines
  windowpane bench --cases cases.jsonl --backend cuda,vulkan --filter avgpool --format json

One case per line, wrapped here: {\"name\": \"stem\", \"kind\": \"maxpool\", \"pass\": \"fwd\", \"n\": 8,
\"c\": 64, \"size\": [56, 56], \"k\": [3, 3], \"s\": [2, 2], \"p\": [1, 1], \"d\": [1, 1], \"dtype\": \"f32\",
\"layout\": \"nhwc\", \"indices\": false}.
A convolution (kind conv, pass fwd, data, weight or bias) has \"cout\" and \"groups\" and no indices,
and may have \"precision\": \"tf32\"; its filters have the layout of its data, or the one in
\"filters\": fhwc, hwcf or fchw. forward, backward, dgrad and wgrad are accepted as other names of
fwd, bwd, data and weight.
benches/README.md lists all kinds and fields: adaptive and SAME windows, padding modes, epilogues.
A time is device time: the median of several timing runs of many launches each, replayed from a
recording (such as a CUDA graph) if the device supports it. With --flush-cache a timing run is one
launch, and 384 MB of random numbers are written before it, untimed. Before a case is timed, part of
it is compared with the reference.

Example: time all kernels, to see what the choice among them costs
  windowpane bench --cases cases.jsonl --every-kernel --format json

Example: find the fastest kernels and tiles of this GPU and save them for later runs and for `conv`
  windowpane bench --cases cases.jsonl --filter conv --tune --tuned gpu.tuned";

/// How much the reference computes for the check before a case is timed: taps of a pooling, products
/// of a convolution.
const QUICK_CHECK: u64 = 1 << 22;
const QUICK_PRODUCTS: u64 = 1 << 24;

/// With `--every-kernel`, a kernel that takes this many times as long as the chosen one, and at least this many seconds,
/// is timed only roughly. A shorter launch would have to be queued ahead, or the host's time would be measured.
const HOPELESS: f64 = 8.0;
const LONG: f64 = 1e-3;

/// The cases, and where they run.
#[derive(Args)]
struct Cases {
    /// One or more of cuda, hip, metal, vulkan, wgpu, cpu, host [default: the best available]
    #[arg(long, value_name = "BACKEND,…", value_delimiter = ',')]
    backend: Vec<Backend>,
    /// Index of the device within each backend
    #[arg(long, value_name = "N", value_parser = number, default_value_t = 0)]
    device: usize,
    /// Run only cases whose name/kind/pass/dtype/layout, as in stem/maxpool/fwd/f32/nhwc, contains
    /// this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// auto, or one algorithm for all cases, by the name that `plan pool` or `plan conv` prints
    #[arg(long, value_name = "NAME", value_parser = forced::algorithm, default_value = "auto")]
    algorithm: Auto,
    /// Tile sizes to override for all convolutions, as in `conv`
    #[arg(long, value_name = "NAME=NUMBER,…")]
    tile: Option<TileOverrides>,
    /// Use the tuned choices in this file; with `bench --tune`, write them (the file need not exist)
    #[arg(long, value_name = "FILE")]
    tuned: Option<PathBuf>,
    /// Output format [default: table on a terminal, else json]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Print only results: no progress
    #[arg(long)]
    quiet: bool,
}

/// The arguments of `bench`.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Bench {
    /// The cases, one JSON object per line
    #[arg(long = "cases", value_name = "FILE.jsonl")]
    file: PathBuf,
    #[command(flatten)]
    cases: Cases,
    /// Evict the caches before each launch
    #[arg(long)]
    flush_cache: bool,
    /// Let the device rest before each case, because a hot device lowers its clock
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0")]
    rest: Duration,
    /// First time the kernels of each case, and the tiles of convolutions, and use the fastest
    #[arg(long)]
    tune: bool,
    /// Time every kernel that can compute a case, the chosen one first
    #[arg(long, conflicts_with_all = ["algorithm", "tile", "tune", "against", "plot"])]
    every_kernel: bool,
    /// First compile the kernels of all cases, on all cores of the processor
    #[arg(long, conflicts_with = "tune")]
    compile: bool,
    /// Do not compare with the reference before timing
    #[arg(long)]
    unchecked: bool,
    /// Compare with an earlier run in JSON lines; exit with status 1 if a case is slower or broken
    #[arg(long, value_name = "OLD.jsonl")]
    against: Option<PathBuf>,
    /// Relative change of a time that is tolerated; more if its timing runs differ by more
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "0.05")]
    threshold: f64,
    /// Draw the cases on rooflines, and the backends side by side
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    // No help texts: they would make clap print every flag's help on separate lines.
    Table,
    Markdown,
    Json,
}

/// Seconds, at least 0, such as 0.3.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "use a number of seconds from 0, such as 0.3".into())
}

/// A fraction, at least 0, such as 0.05 for 5 %.
fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..f64::INFINITY).contains(&share) => Ok(share),
        _ => Err("use a number from 0, such as 0.05 for 5 %".into()),
    }
}

/// A case prepared on a device: its tensors exist, and it can be launched.
trait Work: Send {
    /// Launches it once.
    fn launch(&mut self) -> windowpane::Result<()>;
    /// Waits for the last launch and returns its error, if any.
    fn wait(&self) -> windowpane::Result<()>;
    /// The algorithm that was chosen.
    fn algorithm(&self) -> String;
    /// The tile sizes, if it is an implicit GEMM.
    fn tile(&self) -> Option<String> {
        None
    }
    /// The least number of bytes that a launch must move.
    fn bytes(&self) -> u64;
    /// The additions and multiplications of a launch, if TFLOP/s are reported for it.
    fn operations(&self) -> Option<u64>;
    /// All operations of a launch; a pooling has one per tap.
    fn arithmetic(&self) -> u64 {
        self.operations().unwrap_or_default()
    }
}

/// The result of comparing a case with the reference.
struct Checked {
    algorithm: String,
    /// The samples that were computed, out of all samples of the case.
    samples: usize,
    of: usize,
    /// The extents of a sample, where they are smaller than the case's.
    size: Option<Vec<usize>>,
    /// The results that were compared, out of all that were computed.
    outputs: usize,
    of_outputs: usize,
    comparison: Comparison,
}

/// A case with its inputs on a device and the reference's results.
trait Held {
    /// Launches it into poisoned memory and compares the results with the reference's.
    fn run(&mut self, forced: Forced) -> Result<Checked, Failure>;
}

/// The memory and the work of a case.
#[derive(Clone, Copy, Debug)]
struct Weight {
    /// The bytes of its tensors.
    bytes: u64,
    /// The taps or multiplications of the smallest part that can be compared with the reference.
    slice: u64,
    /// The taps or multiplications of the whole case.
    work: u64,
}

/// If the smallest part of a case needs more taps or multiplications than this and than `--taps`, a smaller case is
/// launched.
const LARGEST_SLICE: u64 = 1 << 26;

/// The module that reads a case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Family {
    Pool,
    Conv,
    Pad,
}

impl Family {
    fn of(case: &Case) -> Result<Self, Failure> {
        let kind = &*case.kind;
        Ok(match kind {
            _ if pool::KINDS.contains(&kind) => Self::Pool,
            _ if conv::KINDS.contains(&kind) => Self::Conv,
            "pad" => Self::Pad,
            other => {
                let kinds = [&pool::KINDS[..], &conv::KINDS].concat().join(", ");
                let message = format!("there is no kind `{other}`; use one of {kinds}, pad");
                return Err(Failure::Failed(message));
            }
        })
    }

    /// How much of a case the reference computes before it is timed.
    fn quick(self) -> u64 {
        match self {
            Self::Conv => QUICK_PRODUCTS,
            Self::Pool | Self::Pad => QUICK_CHECK,
        }
    }
}

/// Prepares a case on a device.
fn ready(case: &Case, device: &Device, forced: Forced) -> Result<Box<dyn Work>, Failure> {
    match Family::of(case)? {
        Family::Pool => pool::ready(case, device, forced),
        Family::Conv => conv::ready(case, device, forced),
        Family::Pad => pad::ready(case, device, forced),
    }
}

/// Runs as much of a case as is checked before it is timed, and compares the results with the reference.
fn check(case: &Case, device: &Device, forced: Forced) -> Result<Checked, Failure> {
    let family = Family::of(case)?;
    match family {
        Family::Pool => pool::check(case, device, forced, family.quick()),
        Family::Conv => conv::check(case, device, forced, family.quick()),
        Family::Pad => pad::check(case, device, forced, family.quick()),
    }
}

/// Reads lines of cases and plans each on `host`, whole and as the part that would be checked.
pub(crate) fn plan_cases(text: &str) -> Result<(), Failure> {
    let host = Device::host();
    Case::parse("cases", text)?.iter().try_for_each(|case| {
        let family = Family::of(case)?;
        match family {
            Family::Pool => pool::plan(case, &host, family.quick()),
            Family::Conv => conv::plan(case, &host, family.quick()),
            Family::Pad => pad::plan(case, family.quick()),
        }
    })
}

/// Prepares a case on a device. The reference computes as many of its results as `taps` allows.
fn held<'a>(
    case: &'a Case,
    device: &'a Device,
    forced: Forced,
    taps: u64,
) -> Result<Box<dyn Held + 'a>, Failure> {
    match Family::of(case)? {
        Family::Pool => pool::held(case, device, forced, taps),
        Family::Conv => conv::held(case, device, forced, taps),
        Family::Pad => pad::held(case, device, forced, taps),
    }
}

/// The memory and the work of a case.
fn weigh(case: &Case) -> Result<Weight, Failure> {
    match Family::of(case)? {
        Family::Pool => pool::weigh(case),
        Family::Conv => conv::weigh(case),
        Family::Pad => pad::weigh(case),
    }
}

/// The kernels that can compute a case on a device, the plan's choice first.
fn kernels(case: &Case, device: &Device) -> Result<Vec<&'static str>, Failure> {
    match Family::of(case)? {
        Family::Pool => pool::kernels(case, device),
        Family::Conv => conv::kernels(case, device),
        Family::Pad => pad::kernels(case, device),
    }
}

/// Whether a device that has just failed cannot compute anymore. A failed launch may leave an error for the next
/// call, but not for the one after it.
fn is_lost(device: &Device) -> bool {
    let works = || {
        guarded(|| {
            let x = Tensor::from_slice(device, &[1.0f32, 3.0, 2.0, 0.0], [1, 4, 1])?;
            let y = MaxPool::new([2]).forward(&x)?.to_vec::<f32>()?;
            match y == [3.0, 2.0] {
                true => Ok(()),
                false => Err(Failure::Failed("a maximum is wrong".into())),
            }
        })
    };
    works().is_err() && works().is_err()
}

/// The failure that ends a run when its device is lost.
fn lost(device: &Device, case: &Case, error: &str) -> Failure {
    Failure::Failed(format!(
        "{device} is lost since {}: {error}; nothing more runs on it before the program starts again",
        case.path()
    ))
}

/// The type that a case computes in, as measured peaks name it.
fn factors(case: &Case) -> String {
    match Family::of(case) {
        Ok(Family::Conv) => conv::arithmetic(case),
        _ => case.dtype.clone(),
    }
}

impl Bench {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let cases = self.cases.read(&self.file)?;
        let earlier = self.against.as_ref().map(|path| Earlier::read(path, self.threshold));
        let earlier = earlier.transpose()?;
        let picture = self.plot.as_ref().map(|path| Picture::new(path)).transpose()?;
        let devices = self.cases.devices()?;
        if self.every_kernel && devices.len() > 1 {
            let message = "--every-kernel compares the kernels of one backend; name one";
            return Err(Failure::Arguments(message.into()));
        }
        self.cases.follow_tuned(self.tune)?;
        let progress = Progress::of(self.cases.quiet, (cases.len() + 1) * devices.len());
        let mut printer = Printer::new(self.cases.format);

        let mut contestants = Vec::new();
        for device in devices {
            let contestant = self.prepare(&device, &cases, &progress);
            for line in contestant.iter().flat_map(|(ceilings, _)| ceilings.lines()) {
                printer.add(&progress, Line::Ceiling(line.clone()))?;
            }
            if self.compile && contestant.is_ok() && device.backend() != Backend::Host {
                progress.now(format!("kernels for {device}"));
                // A device that fails here fails again where its cases are timed, and their rows say so.
                let _ = guarded(|| self.compile(&cases, &device, &progress));
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
                for (case, chosen) in self.variants(case, device) {
                    let measured = self.measure(&case, contestant);
                    failed += usize::from(measured.is_err());
                    if let (Ok((_, stopwatch)), Ok((first, _)), Some(true)) =
                        (&mut *contestant, &measured, chosen)
                    {
                        stopwatch.give_up_after((first.seconds * HOPELESS).max(LONG));
                    }
                    let row = Row::new(&case, device, self.flush_cache, measured);
                    let row = Row { chosen, ..row };
                    let error = row.error().map(str::to_owned);
                    printer.add(&progress, Line::Row(row))?;
                    // A device whose peaks could not be measured failed before its first case; its rows say so.
                    if let (Some(error), Ok(_)) = (error, &contestant)
                        && is_lost(device)
                    {
                        drop(progress);
                        printer.finish()?;
                        return Err(lost(device, &case, &error));
                    }
                }
                if let Ok((_, stopwatch)) = contestant {
                    stopwatch.give_up_after(f64::INFINITY);
                }
                progress.step();
            }
        }
        drop(progress);
        printer.finish()?;
        let filter = self.cases.filter.as_deref().unwrap_or_default();
        let slower = earlier.map_or(Ok(0), |earlier| printer.moved(&earlier, filter))?;
        // If no case ran, there is nothing to draw; the failed cases are reported below, not that.
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

    /// Compiles the kernels of all cases, and says how long it took. A case that fails says why when it is timed.
    fn compile(&self, cases: &[Case], device: &Device, progress: &Progress) -> Result<(), Failure> {
        let (start, mut launches) = (Instant::now(), 0);
        device.compile(|| {
            for (case, _) in cases.iter().flat_map(|case| self.variants(case, device)) {
                let launch = || {
                    let forced = case.forced(self.cases.forced())?;
                    Ok(ready(&case, device, forced)?.launch()?)
                };
                launches += usize::from(guarded(launch).is_ok());
            }
            Ok(())
        })?;
        if !self.cases.quiet {
            let seconds = start.elapsed().as_secs_f64();
            progress.note(format!(
                "compiled the kernels of {launches} cases for {device} in {seconds:.1} s"
            ));
        }
        Ok(())
    }

    /// The case as it is timed on a device, and whether its kernel is the plan's choice: once, or with
    /// `--every-kernel` once for each kernel that can compute it.
    fn variants(&self, case: &Case, device: &Device) -> Vec<(Case, Option<bool>)> {
        let kernels = match self.every_kernel {
            true => guarded(|| kernels(case, device)).unwrap_or_default(),
            false => Vec::new(),
        };
        if kernels.is_empty() {
            return vec![(case.clone(), None)];
        }
        let other =
            |kernel: &str| Case { algorithm: Some(kernel.into()), tile: None, ..case.clone() };
        let others = kernels[1..].iter().map(|kernel| (other(kernel), Some(false)));
        [(case.clone(), Some(true))].into_iter().chain(others).collect()
    }

    /// The kernel and tile forced on a case. With `--tune`, those that are free are timed first, and plans take the fastest.
    fn forced(&self, case: &Case, device: &Device) -> Result<Forced, Failure> {
        let forced = case.forced(self.cases.forced())?;
        let family = Family::of(case)?;
        if !self.tune || family == Family::Pad {
            return Ok(forced);
        }
        let tuned = match family {
            Family::Pool => pool::tune(case, device, forced)?,
            _ => conv::tune(case, device, forced)?,
        };
        // Saved after each case, so that an interrupted run keeps its results.
        self.cases.tuned.as_deref().map_or(Ok(()), tuned::keep)?;
        Ok(tuned)
    }

    /// Measures the peaks of a device. A failure affects only this device's rows.
    fn prepare(&self, device: &Device, cases: &[Case], progress: &Progress) -> Contestant {
        guarded(|| {
            let mut stopwatch = Stopwatch::new(device.clone(), self.flush_cache, self.rest)?;
            let ceilings = Ceilings::measure(&mut stopwatch, cases, |what| progress.now(what))?;
            Ok((ceilings, stopwatch))
        })
    }

    /// Prepares a case and times it. An error ends the case, not the run.
    fn measure(
        &self,
        case: &Case,
        contestant: &mut Contestant,
    ) -> Result<(Measured, Against), String> {
        let (ceilings, stopwatch) = match contestant {
            Ok(ready) => (&ready.0, &mut ready.1),
            Err(error) => return Err(format!("the device's peaks could not be measured: {error}")),
        };
        guarded(|| {
            let device = stopwatch.device().clone();
            let forced = self.forced(case, &device)?;
            let mut work = ready(case, &device, forced)?;
            let error = match self.unchecked {
                true => None,
                false => Some(right(&check(case, &device, forced)?)?),
            };
            let measured = Measured { error, ..stopwatch.measure(&mut *work)? };
            let against = ceilings.against(&factors(case), measured.bytes);
            Ok((measured, against))
        })
    }
}

/// A device's peaks and the stopwatch for its cases, or an error.
type Contestant = Result<(Ceilings, Stopwatch), String>;

/// The worst error of a correct case; a wrong result is a failure.
fn right(checked: &Checked) -> Result<f64, Failure> {
    match &checked.comparison.wrong {
        None => Ok(checked.comparison.worst),
        Some(wrong) => Err(Failure::Failed(format!("the result is wrong: {wrong}"))),
    }
}

/// Runs `work` and turns a failure or a panic into a message.
fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|failure| failure.to_string()),
        Err(panic) => Err(format!("a bug, please report it: {}", words(&*panic))),
    }
}

impl Cases {
    /// The cases of a file that pass the filter.
    fn read(&self, file: &Path) -> Result<Vec<Case>, Failure> {
        let mut cases = Case::read(file)?;
        let filter = self.filter.as_deref().unwrap_or_default();
        let all = cases.len();
        cases.retain(|case| case.path_contains(filter));
        if cases.is_empty() {
            let file = file.display();
            return Err(Failure::Failed(match all {
                0 => format!("{file}: has no cases; write one JSON object per line"),
                _ => format!("{file}: none of the {all} cases has `{filter}` in it"),
            }));
        }
        Ok(cases)
    }

    /// Makes plans use the named file of tuned choices; one that will be written need not exist.
    fn follow_tuned(&self, written: bool) -> Result<(), Failure> {
        match &self.tuned {
            // Checked before hours of measuring.
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

/// The message of a panic.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it said nothing").into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A wrong result is never timed.
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

    /// A device that works is not lost.
    #[test]
    fn devices_that_work_are_not_lost() {
        assert!(!is_lost(&Device::host()));
    }

    /// If a device fails before its first case, its rows say so; another device's cases are still timed.
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
        assert_eq!(lost.error(), Some("the device's peaks could not be measured: it is lost"));
        let progress = Progress::new(true, "");
        let mut ready = line.bench.prepare(&host, std::slice::from_ref(&case), &progress);
        assert!(row(&mut ready).time().is_some_and(|time| time.ms > 0.0));
    }

    /// Every kernel is timed, the plan's choice first; a launch that takes too long is timed in one run.
    #[test]
    fn every_kernel_is_timed() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            bench: Bench,
        }
        let line = |more: &[&str]| {
            let words = ["bench", "--cases", "cases.jsonl"].iter().chain(more);
            <Line as clap::Parser>::parse_from(words).bench
        };
        let case: Case = serde_json::from_value(json!({
            "name": "x", "kind": "conv", "pass": "fwd", "dtype": "f32", "layout": "nhwc", "cout": 4,
            "n": 1, "c": 4, "size": [6], "k": [2], "s": [2], "p": [0], "d": [1],
        }))
        .expect("a case");
        let host = Device::host();
        let variants = line(&["--every-kernel"]).variants(&case, &host);
        let known = kernels(&case, &host).expect("kernels");
        assert_eq!(variants.len(), known.len());
        for (i, (variant, chosen)) in variants.iter().enumerate() {
            assert_eq!((*chosen, variant.algorithm.is_some()), (Some(i == 0), i > 0));
        }
        let bench = line(&[]);
        assert!(matches!(&bench.variants(&case, &host)[..], [(_, None)]));
        let progress = Progress::new(true, "");
        let mut ready = bench.prepare(&host, std::slice::from_ref(&case), &progress);
        let mut windows = |seconds| {
            let (_, stopwatch) = ready.as_mut().expect("it is ready");
            stopwatch.give_up_after(seconds);
            bench.measure(&case, &mut ready).expect("a time").0.windows
        };
        assert!(windows(f64::INFINITY) > 1);
        assert_eq!(windows(0.0), 1);
    }

    #[test]
    fn shares_are_numbers_from_zero() {
        assert_eq!((share("0.05"), share("0")), (Ok(0.05), Ok(0.0)));
        for bad in ["-0.1", "NaN", "inf", "5%", ""] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
