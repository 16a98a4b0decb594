//! `windowpane verify`: the same cases, compared with the reference.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use comfy_table::{CellAlignment, Table};
use serde::{Deserialize, Serialize};
use windowpane::Device;

use super::case::Case;
use super::jobs::{self, Job, Workers};
use super::random::{Drawn, Draws, Sizes};
use super::row::{self, pass_name, rounded};
use super::tally::Tally;
use super::{Cases, Checked, Format, guarded, held, is_lost, lost, print};
use crate::args::{natural, number};
use crate::failure::Failure;
use crate::progress::{Progress, say};

const EXAMPLE: &str = "\
Example: every case of a file on two backends, and then random problems
  windowpane verify --cases cases.jsonl --backend cuda,host
  windowpane verify --random 2000 --large --seed 7 --backend cuda

The error is the worst element's, in units of its bound: 0 is bit for bit, above 1 is wrong. A whole
case is launched, over memory that holds no result. Where the reference would take more taps than
--taps, only some samples, channels and filters are compared, and the row says how many. A case of
which one plane is too much for the reference is launched smaller, and the row says how small.

--random draws problems of all kinds, passes, types and layouts that a device has, and runs each by
the plan's own kernel and by each other that can. A failing case is printed as a line that --cases
takes. The summary counts how often each kernel computed each pass in each type; with --least N, a
kernel with fewer than N cases of a pass and type fails the run. With --print nothing runs, and the
lines of small problems that together use every kernel are printed.

Most of the time goes into compiling kernels and into the reference, on one core of the CPU. With
--jobs N, N processes compute a problem each at the same time; each needs memory for its problem,
here and on the device. The output does not depend on N.";

/// The arguments of `verify`.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Verify {
    /// The cases, one JSON object per line
    #[arg(long = "cases", value_name = "FILE.jsonl", required_unless_present = "random")]
    file: Option<PathBuf>,
    /// Draw N random problems in place of a file's cases
    #[arg(long, value_name = "N", value_parser = number,
          conflicts_with_all = ["file", "algorithm", "tile"])]
    random: Option<usize>,
    /// The seed of random problems, to draw the same again [default: the time]
    #[arg(long, value_name = "S", requires = "random", conflicts_with = "file")]
    seed: Option<u64>,
    /// Random problems of up to 1 GiB, not 16 MiB
    #[arg(long, requires = "random", conflicts_with = "file")]
    large: bool,
    /// Fail if a kernel computed fewer than N cases of a pass and type that it has
    #[arg(long, value_name = "N", requires = "random", conflicts_with_all = ["file", "print"])]
    least: Option<usize>,
    /// Only print small problems, one for each kernel, pass and type, as lines that --cases takes
    #[arg(long, requires = "random", conflicts_with_all = ["file", "large", "format"])]
    print: bool,
    /// Compute N problems at once, each in a process of its own
    #[arg(long, value_name = "N", value_parser = natural, default_value_t = 1,
          conflicts_with = "print")]
    jobs: usize,
    /// Compute the jobs on standard input, for a process with --jobs
    #[arg(long, hide = true)]
    worker: bool,
    #[command(flatten)]
    cases: Cases,
    /// The most taps, or for a convolution multiplications, that the reference computes of a case
    #[arg(long, value_name = "N", value_parser = number, default_value_t = 1 << 24)]
    taps: usize,
}

/// A case on a device, with the error of its results relative to the reference.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Row {
    name: String,
    kind: String,
    pass: String,
    dtype: String,
    layout: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    precision: Option<String>,
    backend: String,
    device: String,
    #[serde(flatten)]
    result: Outcome,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Outcome {
    Right {
        algorithm: String,
        error_in_bounds: f64,
        samples: usize,
        of: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<Vec<usize>>,
        outputs: usize,
        of_outputs: usize,
    },
    Error {
        error: String,
    },
}

/// The rows of a job: one for each of its cases, up to one after which no other could be computed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Computed {
    rows: Vec<Row>,
    /// Whether the device is lost since the last row.
    pub(super) is_lost: bool,
}

/// The outcome of random problems.
#[derive(Default, Serialize)]
struct Summary {
    seed: u64,
    problems: usize,
    cases: usize,
    failures: usize,
    /// The fewest cases that any kernel executed for a pass and type, and which cell that is.
    fewest: usize,
    fewest_of: String,
    /// How many such cells there are, and in how many fewer cases ran than had to.
    cells: usize,
    #[serde(skip)]
    short: usize,
}

impl Verify {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if self.worker {
            let devices = self.cases.devices()?;
            self.cases.follow_tuned(false)?;
            return jobs::work(self, &devices);
        }
        match (self.random, &self.file) {
            (Some(problems), _) if self.print => self.print_random(problems),
            (Some(problems), _) => self.run_random(problems),
            (None, Some(file)) => self.run_cases(self.cases.read(file)?),
            (None, None) => Err(Failure::Arguments("give --cases or --random".into())),
        }
    }

    /// Runs a problem by each of the kernels that its cases force.
    pub(super) fn compute(&self, device: &Device, cases: &[Case]) -> Computed {
        let mut computed = Computed { rows: Vec::new(), is_lost: false };
        let forced = |case: &Case| case.forced(self.cases.forced());
        let Some(first) = cases.first() else { return computed };
        let mut ready = guarded(|| held(first, device, forced(first)?, self.taps as u64));
        for case in cases {
            let checked = match &mut ready {
                Ok(ready) => guarded(|| ready.run(forced(case)?)),
                Err(error) => Err(error.clone()),
            };
            let row = Row::new(case, device, checked);
            computed.is_lost = row.error().is_some() && is_lost(device);
            computed.rows.push(row);
            if computed.is_lost || ready.is_err() {
                break;
            }
        }
        computed
    }

    fn run_cases(&self, cases: Vec<Case>) -> Result<(), Failure> {
        let devices = self.cases.devices()?;
        self.cases.follow_tuned(false)?;
        let format = print::format(self.cases.format);
        let total = cases.len() * devices.len();
        let progress = Progress::of(self.cases.quiet, total);
        let mut workers = Workers::start(self, &devices, self.jobs.min(total))?;
        let mut rows = Vec::new();
        let mut count = |done: Vec<(Job, Computed)>| {
            done.into_iter().try_for_each(|(job, computed)| {
                if format == Format::Json {
                    computed.rows.iter().try_for_each(|row| progress.say(row::json(row)?))?;
                }
                progress.step();
                let end = computed.end(&job, &devices[job.device]);
                rows.extend(computed.rows);
                end
            })
        };
        let mut count_all = || {
            for case in &cases {
                for (position, device) in devices.iter().enumerate() {
                    progress.now(format!("{} on {device}", case.path()));
                    let job = Job { device: position, cases: vec![case.clone()] };
                    count(workers.give(job)?)?;
                }
            }
            count(workers.finish()?)
        };
        let end = count_all();
        drop(progress);
        if format != Format::Json {
            say(table(format, &rows))?;
        }
        end?;
        match rows.iter().filter(|row| row.error().is_some()).count() {
            0 => Ok(()),
            bad => Err(Failure::Failed(format!(
                "{bad} of {total} cases are wrong or did not run; their rows say why"
            ))),
        }
    }

    /// Draws problems for each device, and runs each with every kernel that can compute it.
    fn run_random(&self, problems: usize) -> Result<(), Failure> {
        let devices = self.cases.devices()?;
        self.cases.follow_tuned(false)?;
        // Thousands of rows are only useful to programs, which ask for JSON.
        let format = self.cases.format.unwrap_or(Format::Table);
        let now = || SystemTime::now().duration_since(UNIX_EPOCH);
        let seed = self.seed.unwrap_or_else(|| now().map_or(0, |since| since.as_secs()));
        let filter = self.cases.filter.as_deref().unwrap_or_default();
        let progress = Progress::of(self.cases.quiet, problems * devices.len());
        let mut workers = Workers::start(self, &devices, self.jobs.min(problems))?;
        let mut summary = Summary { seed, fewest: usize::MAX, ..Summary::default() };
        for (position, device) in devices.iter().enumerate() {
            let mut tally = Tally::default();
            let sizes = Sizes::new(self.large, device);
            let mut draws = Draws::new(device, sizes, seed, filter);
            for _ in 0..problems {
                let Some(drawn) = draws.next(&mut tally) else {
                    return Err(no_problem(device, filter));
                };
                progress.now(format!("{} on {device}", drawn.case.path()));
                for done in workers.give(Job { device: position, cases: drawn.cases() })? {
                    summary.count(done, device, format, &progress, &mut tally)?;
                }
            }
            for done in workers.finish()? {
                summary.count(done, device, format, &progress, &mut tally)?;
            }
            let backend = device.backend().name();
            if let Some((cell, fewest)) = tally.fewest().filter(|(_, n)| *n < summary.fewest) {
                summary.fewest = fewest;
                summary.fewest_of = format!("{} on {backend}", cell.words());
            }
            summary.cells += tally.cells();
            summary.short += tally.short(self.least.unwrap_or_default());
            match format {
                Format::Json => {
                    tally.lines(backend).try_for_each(|line| progress.say(row::json(&line)?))?;
                }
                _ => progress.say(tally.table(format, backend))?,
            }
        }
        drop(progress);
        summary.close(format, self.least.unwrap_or_default())
    }

    /// Draws small problems, and prints those with a kernel, pass and type that was not printed before, forced.
    fn print_random(&self, problems: usize) -> Result<(), Failure> {
        let [device] = &self.cases.devices()?[..] else {
            let message = "--print draws for the kernels of one backend; name one";
            return Err(Failure::Arguments(message.into()));
        };
        let filter = self.cases.filter.as_deref().unwrap_or_default();
        let mut draws = Draws::new(device, Sizes::tiny(), self.seed.unwrap_or(1), filter);
        let mut tally = Tally::default();
        for _ in 0..problems {
            let Some(drawn) = draws.next(&mut tally) else {
                return Err(no_problem(device, filter));
            };
            for kernel in drawn.kernels {
                if tally.seen(&drawn.case, kernel) > 0 {
                    continue;
                }
                tally.add(&drawn.case, kernel);
                let mut case = drawn.case.clone();
                case.name = format!("{}-{kernel}", case.name);
                case.algorithm = Some(kernel.into());
                say(row::json(&case)?)?;
            }
        }
        Ok(())
    }
}

/// The failure for a filter that leaves no problem to draw.
fn no_problem(device: &Device, filter: &str) -> Failure {
    Failure::Failed(format!(
        "{device} has no problem of `{filter}`; use a part of kind/pass/type, as conv/weight"
    ))
}

impl Drawn {
    /// The problem by the plan's own kernel, and forced by each other kernel that can compute it.
    fn cases(&self) -> Vec<Case> {
        let of = |(i, kernel): (usize, &&str)| {
            let mut case = self.case.clone();
            if i > 0 {
                case.name = format!("{}-{kernel}", case.name);
                case.algorithm = Some((*kernel).into());
            }
            case
        };
        self.kernels.iter().enumerate().map(of).collect()
    }
}

impl Summary {
    /// Counts the cases of a random problem. A failure is printed with its case.
    fn count(
        &mut self,
        (job, computed): (Job, Computed),
        device: &Device,
        format: Format,
        progress: &Progress,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        self.problems += 1;
        for (row, case) in computed.rows.iter().zip(&job.cases) {
            self.cases += 1;
            if format == Format::Json {
                progress.say(row::json(row)?)?;
            }
            match &row.result {
                Outcome::Right { algorithm, .. } => tally.add(case, algorithm),
                Outcome::Error { error } => {
                    self.failures += 1;
                    if format != Format::Json {
                        progress.say(format!("{}: {error}", device.backend()))?;
                    }
                    progress.say(row::json(case)?)?;
                }
            }
        }
        progress.step();
        computed.end(&job, device)
    }

    /// Prints the closing line; fails if a case failed, or if a kernel computed too few of a pass and type.
    fn close(self, format: Format, least: usize) -> Result<(), Failure> {
        let Self { seed, problems, cases, failures, fewest, fewest_of, cells, short } = &self;
        match format {
            Format::Json => say(row::json(&self)?)?,
            _ => say(format!(
                "{cases} cases of {problems} problems, seed {seed}: {failures} failures; the fewest \
                 of a kernel, pass and type: {fewest} ({fewest_of})"
            ))?,
        }
        match (failures, short) {
            (0, 0) => Ok(()),
            (0, _) => Err(Failure::Failed(format!(
                "{short} of {cells} kernels, passes and types have fewer than {least} cases; draw more problems"
            ))),
            _ => Err(Failure::Failed(format!(
                "{failures} of {cases} cases are wrong or did not run; --cases takes their lines"
            ))),
        }
    }
}

impl Computed {
    /// The result of a job after which its device computes nothing more.
    pub(super) fn lost(case: &Case, device: &Device, error: String) -> Self {
        Self { rows: vec![Row::new(case, device, Err(error))], is_lost: true }
    }

    /// The failure that ends the run, if the device is lost.
    fn end(&self, job: &Job, device: &Device) -> Result<(), Failure> {
        match (self.is_lost, self.rows.iter().zip(&job.cases).next_back()) {
            (true, Some((row, case))) => Err(lost(device, case, row.error().unwrap_or_default())),
            _ => Ok(()),
        }
    }
}

impl Row {
    fn error(&self) -> Option<&str> {
        match &self.result {
            Outcome::Right { .. } => None,
            Outcome::Error { error } => Some(error),
        }
    }

    fn new(case: &Case, device: &Device, checked: Result<Checked, String>) -> Self {
        let result = match checked {
            Err(error) => Outcome::Error { error },
            Ok(Checked { comparison, algorithm, samples, of, size, outputs, of_outputs }) => {
                match comparison.wrong {
                    Some(wrong) => {
                        Outcome::Error { error: format!("the result is wrong: {wrong}") }
                    }
                    None => {
                        let error_in_bounds = rounded(comparison.worst);
                        Outcome::Right {
                            algorithm,
                            error_in_bounds,
                            samples,
                            of,
                            size,
                            outputs,
                            of_outputs,
                        }
                    }
                }
            }
        };
        Self {
            name: case.name.clone(),
            kind: case.kind.clone(),
            pass: case.pass.clone(),
            dtype: case.dtype.clone(),
            layout: case.layout.clone(),
            precision: case.precision.clone(),
            backend: device.backend().name().into(),
            device: device.name().into(),
            result,
        }
    }
}

fn table(format: Format, rows: &[Row]) -> Table {
    let mut table = print::table(format);
    table.set_header(["case", "type", "backend", "algorithm", "error in bounds", "samples"]);
    if let Some(column) = table.column_mut(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for row in rows {
        let case = format!("{} {} {}", row.name, row.kind, pass_name(&row.pass));
        let of_type =
            format!("{} {}", row::computed_in(&row.dtype, row.precision.as_deref()), row.layout);
        let [algorithm, error, samples] = match &row.result {
            Outcome::Right {
                algorithm,
                error_in_bounds,
                samples,
                of,
                size,
                outputs,
                of_outputs,
            } => {
                let error = match *error_in_bounds {
                    0.0 => "0".into(),
                    error => format!("{error:.3}"),
                };
                let cut = size.as_ref().map_or(String::new(), |size| {
                    let extents = size.iter().map(usize::to_string).collect::<Vec<_>>();
                    format!(", cut to {}", extents.join("×"))
                });
                let part = match outputs == of_outputs {
                    true => String::new(),
                    false => format!(", {outputs} of {of_outputs} results"),
                };
                [algorithm.clone(), error, format!("{samples} of {of}{cut}{part}")]
            }
            Outcome::Error { error } => ["–".into(), error.clone(), "–".into()],
        };
        table.add_row([case, of_type, row.backend.clone(), algorithm, error, samples]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::element::Comparison;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        verify: Verify,
    }

    /// A kernel that cannot run is counted as a failure, and the other kernels still run.
    #[test]
    fn failures_of_random_problems_are_counted() {
        let line = <Line as clap::Parser>::parse_from(["verify", "--random", "1"]);
        let case: Case = serde_json::from_value(json!({
            "name": "x", "kind": "maxpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
            "n": 1, "c": 2, "size": [6], "k": [2], "s": [1], "p": [0], "d": [1],
        }))
        .expect("a case");
        let kernels = vec!["direct", "gather_staged", "sliding"];
        let (host, progress) = (Device::host(), Progress::new(true, ""));
        let (mut tally, mut summary) = (Tally::default(), Summary::default());
        let job = Job { device: 0, cases: Drawn { case: case.clone(), kernels }.cases() };
        let computed = line.verify.compute(&host, &job.cases);
        // As a worker writes it, and as it is read.
        let text = row::json(&computed).expect("a line");
        let read: Computed = serde_json::from_str(&text).expect("rows");
        assert_eq!(row::json(&read).expect("a line"), text);
        let counted = summary.count((job, read), &host, Format::Table, &progress, &mut tally);
        counted.expect("the device is there");
        assert_eq!((summary.problems, summary.cases, summary.failures), (1, 3, 1));
        assert_eq!(tally.seen(&case, "direct"), 1);
        assert_eq!(tally.seen(&case, "gather_staged"), 0);
        assert_eq!(tally.seen(&case, "sliding"), 1);
        let closed = summary.close(Format::Table, 0).expect_err("one has failed").to_string();
        assert!(closed.starts_with("1 of 3 cases are wrong or did not run"), "{closed}");
    }

    /// A wrong result gives a row that says what is wrong, without fields that a correct result has.
    #[test]
    fn wrong_results_are_rows_that_say_so() {
        let case: Case = serde_json::from_value(json!({
            "name": "x", "kind": "maxpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
        }))
        .expect("a case");
        let row = |comparison| {
            let algorithm = "direct".into();
            let checked = Checked {
                algorithm,
                samples: 1,
                of: 8,
                size: None,
                outputs: 2,
                of_outputs: 4,
                comparison,
            };
            serde_json::to_value(Row::new(&case, &Device::host(), Ok(checked))).expect("a row")
        };
        let wrong = row(Comparison::of_same(&[1.0f32, 2.0], &[1.0, 3.0]));
        assert_eq!(wrong["error"], json!("the result is wrong: element 1 is 2, not 3"));
        assert!(wrong.get("error_in_bounds").is_none() && wrong.get("samples").is_none());
        let right = row(Comparison::of_same(&[1.0f32, 2.0], &[1.0, 2.0]));
        assert_eq!((&right["error_in_bounds"], &right["of"]), (&json!(0.0), &json!(8)));
        assert_eq!((&right["outputs"], &right["of_outputs"]), (&json!(2), &json!(4)));
        assert!(right.get("error").is_none());
    }
}
