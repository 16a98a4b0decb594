//! `cargo xtask record`: records a whole machine, ours and the peers, and makes its pages.
//!
//! A ratio is meaningful only if both sides ran on the same machine in the same session. So one command
//! runs everything in turn, writes `benches/results/NAME/DATE*.jsonl`, and updates the pages and the README's
//! tables. A missing peer is skipped, and the last lines say so. A failing case gets a row with its error;
//! the other cases continue.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use time::{Date, Month, OffsetDateTime};

use crate::Result;
use crate::shell::{self, cargo};

/// The folder of the runs that the README shows.
const RESULTS: &str = "benches/results";

/// The arguments of `cargo xtask record`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Name of the device, used for its folder and page, such as nvidia-h200
    #[arg(value_parser = file_name)]
    name: String,
    /// The cases, one JSON object per line
    #[arg(long, value_name = "FILE.jsonl", default_value = "benches/cases.jsonl")]
    cases: PathBuf,
    /// Our backends, side by side, as in `windowpane bench --backend`
    #[arg(long, value_name = "BACKEND,…")]
    backend: String,
    /// Run only cases whose name/kind/pass/dtype/layout contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Use this file of tuned plans
    #[arg(long, value_name = "FILE")]
    tuned: Option<PathBuf>,
    /// Also record with cold caches
    #[arg(long)]
    cold: bool,
    /// Let the device rest before each case, for us and for PyTorch, as in `windowpane bench --rest`
    #[arg(long, value_name = "SECONDS")]
    rest: Option<f64>,
    /// Repeat our run at the end; the pages mark cases on which the two disagree
    #[arg(long)]
    twice: bool,
    /// Skip peers by name: torch, torch-compile, onnxruntime, cubek
    #[arg(long, value_name = "PEER,…", value_delimiter = ',')]
    without: Vec<String>,
    /// Use this `windowpane` binary instead of building one
    #[arg(long, value_name = "PROGRAM")]
    windowpane: Option<PathBuf>,
    /// Use this `cubek` binary instead of building one
    #[arg(long, value_name = "PROGRAM")]
    cubek: Option<PathBuf>,
    /// The backend of `cubek` [default: the first of ours]
    #[arg(long, value_name = "BACKEND")]
    cubek_backend: Option<String>,
    /// The Python interpreter for the Python peers
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,
    /// The date in the file names [default: today, UTC]
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = day)]
    date: Option<String>,
    /// Folder for the runs
    #[arg(long, value_name = "FOLDER", default_value = RESULTS)]
    results: PathBuf,
    /// Folder for the pages of all runs
    #[arg(long, value_name = "FOLDER", default_value = "docs/benchmarks")]
    pages: PathBuf,
    /// Page whose tables are filled from all runs [default: README.md, if the runs go to
    /// benches/results]
    #[arg(long, value_name = "PAGE.md")]
    fill: Option<PathBuf>,
}

/// A contestant: the suffix of its file names, and the command that runs it.
struct Contestant {
    name: String,
    command: Command,
}

/// Records, and makes the pages; fails if our own run prints no rows.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let root = root()?;
    let folder = root.join(&options.results).join(&options.name);
    fs::create_dir_all(&folder)?;
    let date = options.date.clone().unwrap_or_else(today);
    let windowpane = match &options.windowpane {
        Some(built) => built.clone(),
        None => build("windowpane-cli", "windowpane", &features(&options.backend))?,
    };
    let mut told = Vec::new();
    let mut contestants = ours(options, &windowpane);
    let (peers, lacking) = peers(options, &root)?;
    contestants.extend(peers);
    contestants.extend(options.twice.then(|| again(options, &windowpane)));
    for Contestant { name, mut command } in contestants {
        let end = if name.is_empty() { String::new() } else { format!(".{name}") };
        let file = folder.join(format!("{date}{end}.jsonl"));
        let rows = keep(command.current_dir(&root), &file)?;
        if rows == 0 && name.is_empty() {
            return Err("`windowpane bench` printed no rows; see its output above".into());
        }
        told.push(match rows {
            0 => format!("{name}: no rows"),
            _ => format!("{}: {rows} lines", file.display()),
        });
    }
    shell::run(report(options, &windowpane).current_dir(&root))?;
    told.extend(lacking);
    println!("\n{}", told.join("\n"));
    Ok(ExitCode::SUCCESS)
}

/// The repository: where this program was built, or, on a machine that it was copied to, the current folder.
fn root() -> Result<PathBuf> {
    let built = shell::root();
    if built.join("benches/peers").is_dir() {
        return Ok(built);
    }
    let here = std::env::current_dir()?;
    match here.join("benches/peers").is_dir() {
        true => Ok(here),
        false => {
            Err("there is no benches/peers here; run this in the root of the repository".into())
        }
    }
}

/// Builds a program for these backends and returns its path.
fn build(package: &str, program: &str, features: &str) -> Result<PathBuf> {
    let mut command = cargo(&["build", "--release", "--no-default-features", "-p", package]);
    shell::run(command.args(["--bin", program, "--features", features]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(shell::root().join(target).join("release").join(program))
}

/// The features of these backends; `host` is always there.
fn features(backends: &str) -> String {
    backends.split(',').filter(|backend| *backend != "host").collect::<Vec<_>>().join(",")
}

fn bench(options: &Options, windowpane: &Path) -> Command {
    let mut command = Command::new(windowpane);
    command.args(["bench", "--format", "json", "--backend", &options.backend]);
    command.arg("--cases").arg(&options.cases);
    if let Some(filter) = &options.filter {
        command.args(["--filter", filter]);
    }
    if let Some(tuned) = &options.tuned {
        command.arg("--tuned").arg(tuned);
    }
    rested(command, options)
}

/// Adds the rest before each case to the command of a contestant that supports it.
fn rested(mut command: Command, options: &Options) -> Command {
    if let Some(rest) = options.rest {
        command.args(["--rest", &rest.to_string()]);
    }
    command
}

/// The command that makes the pages of all runs and fills the tables of one more page.
fn report(options: &Options, windowpane: &Path) -> Command {
    let mut command = Command::new(windowpane);
    command.arg("report").arg(&options.results).arg("--into").arg(&options.pages);
    let readme = (options.results == Path::new(RESULTS)).then(|| "README.md".into());
    if let Some(page) = options.fill.clone().or(readme) {
        command.arg("--fill").arg(page);
    }
    command
}

/// Our own runs: with warm caches, and also with cold ones if requested.
fn ours(options: &Options, windowpane: &Path) -> Vec<Contestant> {
    let warm = Contestant { name: String::new(), command: bench(options, windowpane) };
    let mut cold = bench(options, windowpane);
    // The warm run has compared the same kernels with the reference.
    cold.args(["--flush-cache", "--unchecked"]);
    let cold = Contestant { name: "cold".into(), command: cold };
    [warm].into_iter().chain(options.cold.then_some(cold)).collect()
}

/// Our own second run, with the name by which `windowpane report` recognises it.
fn again(options: &Options, windowpane: &Path) -> Contestant {
    let mut command = bench(options, windowpane);
    // The first run has compared the same kernels with the reference.
    command.arg("--unchecked");
    Contestant { name: "again".into(), command }
}

/// The available peers, and messages about the missing ones.
fn peers(options: &Options, root: &Path) -> Result<(Vec<Contestant>, Vec<String>)> {
    let (mut peers, mut lacking) = (Vec::new(), Vec::new());
    let wanted = |name: &str| !options.without.iter().any(|without| without == name);
    let pythons: [(&str, &str, &str, &[&str]); 3] = [
        ("torch", "torch", "pytorch.py", &[]),
        ("torch-compile", "torch", "pytorch.py", &["--compile"]),
        ("onnxruntime", "onnxruntime, onnx", "ort.py", &["--relayout"]),
    ];
    for (name, modules, script, flags) in pythons.into_iter().filter(|(name, ..)| wanted(name)) {
        if shell::ask(&options.python, &["-c", &format!("import {modules}")]).is_none() {
            lacking.push(format!("{name}: left out, `{}` has no {modules}", options.python));
            continue;
        }
        let mut command = Command::new(&options.python);
        command.arg(root.join("benches/peers").join(script)).args(flags);
        if modules == "torch" {
            command = rested(command, options);
        }
        peers.push(Contestant { name: name.into(), command: of_cases(command, options) });
    }
    if wanted("cubek") {
        match cubek(options)? {
            Some(command) => {
                peers
                    .push(Contestant { name: "cubek".into(), command: of_cases(command, options) });
            }
            None => lacking.push("cubek: left out, it has kernels for no backend here".into()),
        }
    }
    Ok((peers, lacking))
}

/// cubek on the requested backend, or on the first of ours other than `host` and `cpu`.
fn cubek(options: &Options) -> Result<Option<Command>> {
    let first = || options.backend.split(',').find(|backend| !["host", "cpu"].contains(backend));
    let Some(backend) = options.cubek_backend.as_deref().or_else(first) else { return Ok(None) };
    let program = match &options.cubek {
        Some(built) => built.clone(),
        None => build("windowpane-benches", "cubek", &format!("{},cubek", features(backend)))?,
    };
    let mut command = Command::new(program);
    command.args(["--backend", backend]);
    Ok(Some(command))
}

/// Adds the cases of the record to a peer's command.
fn of_cases(mut command: Command, options: &Options) -> Command {
    command.arg("--cases").arg(&options.cases);
    if let Some(filter) = &options.filter {
        command.args(["--filter", filter]);
    }
    command
}

/// Runs a command and keeps the JSON lines that it prints, whatever its exit status; returns their number. The file
/// gets its name when it is complete, and is removed if it is empty.
fn keep(command: &mut Command, file: &Path) -> Result<usize> {
    let part = file.with_extension("part");
    let status = shell::status(command.stdout(Stdio::from(File::create(&part)?)));
    // A command that did not start left nothing to keep.
    let status = status.inspect_err(|_| drop(fs::remove_file(&part)))?;
    let rows = fs::read_to_string(&part)?.lines().filter(|line| !line.trim().is_empty()).count();
    if !status.success() {
        println!("it ended with {status}");
    }
    match rows {
        0 => fs::remove_file(&part)?,
        _ => fs::rename(&part, file)?,
    }
    Ok(rows)
}

/// Checks a name for a folder and a page; it may not lead to another folder.
fn file_name(text: &str) -> std::result::Result<String, String> {
    let known = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    match !text.is_empty() && !text.starts_with('.') && text.chars().all(known) {
        true => Ok(text.into()),
        false => Err("use only letters, digits, -, _ and ., as in nvidia-h200".into()),
    }
}

/// Checks a date, which must be written as in file names, so that they sort by it.
fn day(text: &str) -> std::result::Result<String, String> {
    let known = || {
        let [year, month, day]: [&str; 3] = text.split('-').collect::<Vec<_>>().try_into().ok()?;
        let month = Month::try_from(month.parse::<u8>().ok()?).ok()?;
        Date::from_calendar_date(year.parse().ok()?, month, day.parse().ok()?).ok()
    };
    match known().filter(|known| known.to_string() == text) {
        Some(_) => Ok(text.into()),
        None => Err("write the date as 2026-11-21".into()),
    }
}

/// Today in UTC, as `2026-11-21`.
fn today() -> String {
    OffsetDateTime::now_utc().date().to_string()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn typed(words: &str) -> Options {
        Line::try_parse_from(words.split(' ')).unwrap().options
    }

    fn args(command: &Command) -> Vec<&str> {
        command.get_args().filter_map(|arg| arg.to_str()).collect()
    }

    #[test]
    fn a_day_is_written_as_files_are_called() {
        let parts: Vec<_> = today().split('-').map(str::len).collect();
        assert_eq!(parts, [4, 2, 2]);
    }

    #[test]
    fn names_and_days_are_what_files_can_be_called() {
        for name in ["nvidia-h200", "amd_epyc.2", "gerät"] {
            assert_eq!(file_name(name).as_deref(), Ok(name));
        }
        for bad in ["", "..", ".hidden", "../evil", "a/b", "a\\b", "a b"] {
            assert!(file_name(bad).is_err(), "{bad}");
        }
        assert_eq!(day("2026-02-28").as_deref(), Ok("2026-02-28"));
        assert!(day(&today()).is_ok());
        for bad in
            ["yesterday", "2026-2-28", "2026-02-30", "2026-13-01", "26-02-28", "", "2026-02-28-1"]
        {
            assert!(day(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ours_are_warm_and_cold_of_the_same_cases() {
        let options =
            typed("record gpu --backend cuda,host --filter conv --cold --tuned t --rest 0.3");
        let ours = ours(&options, Path::new("windowpane"));
        let names: Vec<_> = ours.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["", "cold"]);
        let warm = args(&ours[0].command);
        let asked = ["bench", "--format", "json", "--backend", "cuda,host", "--cases"];
        assert_eq!(warm[..6], asked);
        let asked = ["benches/cases.jsonl", "--filter", "conv", "--tuned", "t", "--rest", "0.3"];
        assert_eq!(warm[6..], asked);
        assert!(args(&ours[1].command).contains(&"--flush-cache"));
        let again = again(&options, Path::new("windowpane"));
        assert_eq!(again.name, "again");
        assert_eq!(args(&again.command), [&warm[..], &["--unchecked"]].concat());
        assert_eq!(features(&options.backend), "cuda");
    }

    /// All pages that document the record have the same command, and it parses.
    #[test]
    fn pages_say_one_command() {
        let pages = ["benches/README.md", "docs/MEASURING.md"]
            .map(|page| fs::read_to_string(shell::root().join(page)).unwrap());
        let lines = pages.iter().flat_map(|page| page.lines());
        let mut found: Vec<_> =
            lines.filter_map(|line| line.strip_prefix("cargo xtask ")).collect();
        found.retain(|line| line.starts_with("record "));
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0], found[1]);
        let options = typed(found[0]);
        assert_eq!((options.rest, options.twice), (Some(0.3), true));
        assert!(shell::root().join(&options.cases).is_file());
    }

    /// The README does not show runs that are kept in another folder.
    #[test]
    fn the_readme_is_filled_from_the_runs_that_it_shows() {
        let made = |flags: &str| {
            let options = typed(&format!("record gpu --backend cuda{flags}"));
            let report = report(&options, Path::new("windowpane"));
            args(&report).join(" ")
        };
        let usual = "report benches/results --into docs/benchmarks --fill";
        assert_eq!(made(""), format!("{usual} README.md"));
        assert_eq!(made(" --fill page.md"), format!("{usual} page.md"));
        assert_eq!(made(" --results here"), "report here --into docs/benchmarks");
    }

    #[test]
    fn peers_that_are_not_there_are_told() {
        let options = typed("record cpu --backend cpu --python no-such-python");
        let (there, lacking) = peers(&options, Path::new("")).unwrap();
        assert!(there.is_empty());
        assert_eq!(lacking.len(), 4, "{lacking:?}");
        let options = typed("record gpu --backend cpu,vulkan --cubek c --without torch,cubek");
        let (there, _) = peers(&options, Path::new("")).unwrap();
        assert!(there.iter().all(|one| !["torch", "cubek"].contains(&one.name.as_str())));
        let options = typed("record gpu --backend cpu,vulkan --cubek c");
        assert_eq!(args(&cubek(&options).unwrap().unwrap()), ["--backend", "vulkan"]);
    }

    #[test]
    fn rows_are_kept_however_the_command_ends() {
        let folder = std::env::temp_dir().join(format!("windowpane-record-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("day.jsonl");
        let nothing = keep(Command::new("cargo").arg("--no-such-flag"), &file).unwrap();
        assert_eq!((nothing, file.exists()), (0, false));
        let lines = keep(Command::new("cargo").arg("--version"), &file).unwrap();
        assert_eq!((lines, file.exists()), (1, true));
        let never = folder.join("never.jsonl");
        assert!(keep(&mut Command::new("no-such-program-here"), &never).is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "a part was left");
        fs::remove_dir_all(&folder).unwrap();
    }
}
