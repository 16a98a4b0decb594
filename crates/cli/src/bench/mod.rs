//! `windowpane bench`: many cases, several backends side by side.
//!
//! A new kind of case is a file beside [`pool`] and a line of [`ready`].

mod case;
mod measure;
mod pool;
mod row;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use windowpane::{Backend, Device};

use crate::failure::Failure;
use crate::progress::Progress;

use case::Case;
use measure::{Measured, Stopwatch};
use row::{Ceiling, Row};

const EXAMPLE: &str = "\
Example: the average cases of a file on two backends, an object a line
  windowpane bench --cases cases.jsonl --backend cuda,vulkan --filter avgpool --format json

A case a line: {\"name\": \"stem\", \"kind\": \"maxpool\", \"pass\": \"fwd\", \"n\": 8, \"c\": 64, \"size\": [56, 56],
\"k\": [3, 3], \"s\": [2, 2], \"p\": [1, 1], \"d\": [1, 1], \"dtype\": \"f32\", \"layout\": \"nhwc\", \"indices\": false}.
Times are the device's own, the median of several windows of many launches each.";

/// The arguments of `bench`.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Bench {
    /// The cases, a JSON object a line
    #[arg(long, value_name = "FILE.jsonl")]
    cases: PathBuf,
    /// One or more of cuda, hip, metal, vulkan, wgpu, cpu, host [default: the best of this build
    /// and machine]
    #[arg(long, value_name = "BACKEND,…", value_delimiter = ',')]
    backend: Vec<Backend>,
    /// The device's number among those of each backend
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: usize,
    /// Only cases whose name, kind, pass, type and layout, as in stem/maxpool/fwd/f32/nhwc, have
    /// this text in them
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// How the results are printed
    #[arg(long, value_enum, default_value = "json")]
    format: Format,
    /// Print results only: no progress
    #[arg(long)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    // No help texts: with them clap sets every flag's help on lines of its own.
    Json,
}

/// A case made ready on a device: everything that it needs is there, and it can be launched.
trait Work: Send {
    /// Launches it once more.
    fn launch(&mut self) -> windowpane::Result<()>;
    /// Waits for the last launch, and tells whether it went well.
    fn wait(&self) -> windowpane::Result<()>;
    /// The algorithm that was chosen.
    fn algorithm(&self) -> String;
    /// The fewest bytes that a launch moves.
    fn bytes(&self) -> u64;
    /// The additions and multiplications of a launch, where they are what it is measured by.
    fn operations(&self) -> Option<u64>;
}

/// Makes a case ready on a device.
fn ready(case: &Case, device: &Device) -> Result<Box<dyn Work>, Failure> {
    match &*case.kind {
        "maxpool" | "avgpool" => pool::ready(case, device),
        other => {
            Err(Failure::Failed(format!("there is no kind `{other}`; use one of maxpool, avgpool")))
        }
    }
}

impl Bench {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let cases = self.cases()?;
        let devices = self.devices()?;
        let progress = Progress::new(self.quiet, "measuring how fast the devices copy");
        let mut stopwatches = Vec::new();
        for device in devices {
            progress.now(format!("measuring how fast {device} copies"));
            let ceiling = device.copy_ceiling()?;
            self.print(&progress, &Ceiling::copy(&device, ceiling))?;
            stopwatches.push((ceiling, Stopwatch::new(device)));
        }

        let (mut done, mut failed, total) = (0, 0, cases.len() * stopwatches.len());
        for case in &cases {
            for (ceiling, stopwatch) in &mut stopwatches {
                let device = stopwatch.device().clone();
                done += 1;
                progress.now(format!("{done} of {total}: {} on {device}", case.path()));
                let measured = measure(case, stopwatch);
                failed += usize::from(measured.is_err());
                self.print(&progress, &Row::new(case, &device, *ceiling, measured))?;
            }
        }
        match failed {
            0 => Ok(()),
            _ => Err(Failure::Failed(format!(
                "{failed} of {total} cases did not run; their rows say why"
            ))),
        }
    }

    /// The cases of the file that the filter lets through.
    fn cases(&self) -> Result<Vec<Case>, Failure> {
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

    fn print(&self, progress: &Progress, line: &impl serde::Serialize) -> Result<(), Failure> {
        match self.format {
            Format::Json => progress.say(row::json(line)?),
        }
    }
}

/// Makes a case ready and times it. Whatever goes wrong ends the case, not the run.
fn measure(case: &Case, stopwatch: &mut Stopwatch) -> Result<Measured, String> {
    let device = stopwatch.device().clone();
    let measured = catch_unwind(AssertUnwindSafe(|| {
        let mut work = ready(case, &device)?;
        stopwatch.measure(&mut *work)
    }));
    match measured {
        Ok(measured) => measured.map_err(|failure| failure.to_string()),
        Err(panic) => Err(format!("a bug, please report it: {}", words(&*panic))),
    }
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it said nothing").into()
}
