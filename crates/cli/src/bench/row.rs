//! The lines of a run: first the measured peaks of each device, then a row for each case on it.

use std::borrow::Cow;
use std::path::Path;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use windowpane::Device;

use super::against::{Agreement, Moved};
use super::case::Case;
use super::lines;
use super::measure::Measured;
use crate::failure::Failure;

/// The name of a pass in tables, paths and pictures: the gradients that other libraries call `dgrad`
/// and `wgrad` are `data` and `weight`, and `forward` and `backward` are `fwd` and `bwd`.
pub(super) fn pass_name(pass: &str) -> &str {
    match pass {
        "forward" => "fwd",
        "backward" => "bwd",
        "dgrad" => "data",
        "wgrad" => "weight",
        _ => pass,
    }
}

/// A case's path, `name/kind/pass/dtype/layout`.
pub(super) fn path([name, kind, pass, dtype, layout]: [&str; 5]) -> String {
    [name, kind, pass_name(pass), dtype, layout].join("/")
}

/// A path, or a pattern of paths, with its pass spelled as [`path`] spells it.
pub(super) fn respelled(pattern: &str) -> String {
    pattern.split('/').map(pass_name).collect::<Vec<_>>().join("/")
}

/// Whether a case's path contains a text, in any spelling of its pass.
pub(super) fn path_contains(parts: [&str; 5], text: &str) -> bool {
    let path = path(parts);
    path.contains(text) || path.contains(&respelled(text)) || parts.join("/").contains(text)
}

/// A line of a run, ours or a peer's.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Line {
    Ceiling(Ceiling),
    Row(Row),
    /// Printed by `--against` after the rows.
    Agreement(Agreement),
    Moved(Moved),
}

/// A peak of a device, measured in the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ceiling {
    /// `copy`, `vector` or `matrix`.
    pub(super) ceiling: String,
    /// For a copy the bytes that it reads and writes; for arithmetic `dtype`, the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gbs: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tflops: Option<f64>,
    /// Why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// `cold` if the caches were evicted before each launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cache: Option<String>,
    /// Our backend, or the peer, that measured it.
    #[serde(default)]
    pub(super) backend: String,
    #[serde(default)]
    pub(super) device: String,
}

impl Ceiling {
    /// The bandwidth of a copy that reads and writes `bytes`.
    pub(super) fn copy(device: &Device, bytes: u64, bytes_per_s: f64) -> Self {
        let gbs = Some(rounded(bytes_per_s / 1e9));
        Self { bytes: Some(bytes), gbs, ..Self::of("copy", device) }
    }

    /// The arithmetic throughput in a type, on `vector` or `matrix` units.
    pub(super) fn arithmetic(device: &Device, unit: &str, dtype: &str, per_s: f64) -> Self {
        let (dtype, tflops) = (Some(dtype.into()), Some(rounded(per_s / 1e12)));
        Self { dtype, tflops, ..Self::of(unit, device) }
    }

    /// Arithmetic throughput that could not be measured.
    pub(super) fn failed(device: &Device, unit: &str, dtype: &str, error: String) -> Self {
        Self { dtype: Some(dtype.into()), error: Some(error), ..Self::of(unit, device) }
    }

    /// The contestant, as rows name it; cold caches count as a separate one.
    pub(super) fn whose(&self) -> Cow<'_, str> {
        whose(&self.backend, self.cache.as_deref() == Some("cold"))
    }

    /// Whether both belong to the same contestant.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        self.whose() == other.whose()
    }

    fn of(ceiling: &str, device: &Device) -> Self {
        Self {
            error: None,
            cache: None,
            ceiling: ceiling.into(),
            bytes: None,
            dtype: None,
            gbs: None,
            tflops: None,
            backend: device.backend().name().into(),
            device: device.name().into(),
        }
    }
}

/// A case on a device: its time, or an error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) pass: String,
    pub(super) dtype: String,
    pub(super) layout: String,
    /// The precision of f32 products, if not strict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) precision: Option<String>,
    /// Our backend; a peer's rows have `peer` instead.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) backend: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<String>,
    /// The program that measured it; peers' rows and older rows have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) build: Option<Build>,
    /// When it was measured, in UTC, as 2026-11-23T08:30:00Z.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<String>,
    /// If every kernel was timed: whether this one is the plan's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) chosen: Option<bool>,
    /// The date of the record, taken from the file name.
    #[serde(skip)]
    pub(super) day: String,
    #[serde(flatten)]
    pub(super) result: Outcome,
}

/// The source and the compiler of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Build {
    pub(super) version: Cow<'static, str>,
    /// The commit, with a `+` if there were uncommitted changes at build time; empty outside a repository.
    pub(super) commit: Cow<'static, str>,
    pub(super) compiler: Cow<'static, str>,
}

impl Build {
    /// This program.
    const OWN: Self = Self {
        version: Cow::Borrowed(env!("CARGO_PKG_VERSION")),
        commit: Cow::Borrowed(env!("WINDOWPANE_COMMIT")),
        compiler: Cow::Borrowed(env!("WINDOWPANE_COMPILER")),
    };
}

/// Now, in UTC.
fn now() -> String {
    let now = OffsetDateTime::now_utc();
    let (hour, minute, second) = (now.hour(), now.minute(), now.second());
    format!("{}T{hour:02}:{minute:02}:{second:02}Z", now.date())
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Outcome {
    Time(Box<Time>),
    Error {
        error: String,
        /// `cold` if the time would have been measured with cold caches.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cache: Option<String>,
    },
}

/// How long a case took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Time {
    #[serde(default)]
    pub(super) algorithm: String,
    /// The tile sizes, as `--tile` takes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tile: Option<String>,
    pub(super) ms: f64,
    /// The time of the fastest timing run.
    #[serde(default)]
    pub(super) ms_fastest: Option<f64>,
    /// The host's time for the first launch and its wait, with the compilation of kernels not compiled before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ms_first: Option<f64>,
    #[serde(default)]
    pub(super) gbs: f64,
    #[serde(default)]
    pub(super) tflops: Option<f64>,
    /// Operations per byte; a pooling has one per tap, a convolution two.
    #[serde(default)]
    pub(super) intensity: Option<f64>,
    /// Share of the bandwidth of the largest copy or of one of as many bytes, whichever is faster, or of the arithmetic
    /// peak where that share is larger.
    #[serde(default)]
    pub(super) ceiling_fraction: Option<f64>,
    /// Share of the bandwidth of a copy of as many bytes.
    #[serde(default)]
    pub(super) copy_fraction: Option<f64>,
    /// The worst element's error in units of its bound; 0 means identical bits. Large cases are checked
    /// on fewer samples than are timed.
    #[serde(default)]
    pub(super) error_in_bounds: Option<f64>,
    /// `warm`: launches back to back. `cold`: caches evicted before each launch.
    #[serde(default)]
    pub(super) cache: String,
    #[serde(default)]
    pub(super) spread: f64,
    #[serde(default)]
    pub(super) noisy: bool,
    /// Which clock measured it: `device` or `host`.
    #[serde(default)]
    pub(super) clock: String,
    #[serde(default)]
    pub(super) windows: u32,
    #[serde(default)]
    pub(super) launches: u32,
    /// Whether the launches were replayed from a recording.
    #[serde(default)]
    pub(super) recorded: bool,
}

/// The peaks that a case is compared with, in bytes and operations per second.
#[derive(Clone, Debug, Default)]
pub(super) struct Against {
    /// The bandwidth of the largest copy.
    pub(super) copy: f64,
    /// The bandwidth of a copy of as many bytes.
    pub(super) sized: Option<f64>,
    /// The arithmetic peak for the case's type.
    pub(super) arithmetic: Option<f64>,
}

impl Row {
    /// The row of a case on a device, timed or failed, with warm or cold caches.
    pub(super) fn new(
        case: &Case,
        device: &Device,
        cold: bool,
        measured: Result<(Measured, Against), String>,
    ) -> Self {
        Self {
            name: case.name.clone(),
            kind: case.kind.clone(),
            pass: case.pass.clone(),
            dtype: case.dtype.clone(),
            layout: case.layout.clone(),
            precision: case.precision.clone(),
            backend: device.backend().name().into(),
            device: device.name().into(),
            peer: None,
            build: Some(Build::OWN),
            at: Some(now()),
            chosen: None,
            day: String::new(),
            result: match measured {
                Ok((measured, against)) => {
                    Outcome::Time(Box::new(Time::of(&measured, device, &against)))
                }
                Err(error) => Outcome::Error { error, cache: cold.then(|| "cold".into()) },
            },
        }
    }

    /// The path of its case.
    pub(super) fn case(&self) -> String {
        path(self.parts())
    }

    /// Whether the path of its case contains a text.
    pub(super) fn case_contains(&self, text: &str) -> bool {
        path_contains(self.parts(), text)
    }

    fn parts(&self) -> [&str; 5] {
        [&self.name, &self.kind, &self.pass, &self.dtype, &self.layout]
    }

    /// The type it computes in, as peaks name it; a peer's row does not give its precision.
    fn factors(&self) -> &str {
        computed_in(&self.dtype, self.precision.as_deref())
    }

    /// The contestant. Cold caches count as a separate contestant: its times are shown next to those
    /// with warm caches, and neither replaces the other.
    pub(super) fn whose(&self) -> Cow<'_, str> {
        whose(self.peer.as_deref().unwrap_or(&self.backend), self.is_cold())
    }

    pub(super) fn is_cold(&self) -> bool {
        match &self.result {
            Outcome::Time(time) => time.cache == "cold",
            Outcome::Error { cache, .. } => cache.as_deref() == Some("cold"),
        }
    }

    pub(super) fn time(&self) -> Option<&Time> {
        match &self.result {
            Outcome::Time(time) => Some(time),
            Outcome::Error { .. } => None,
        }
    }

    pub(super) fn error(&self) -> Option<&str> {
        match &self.result {
            Outcome::Time(_) => None,
            Outcome::Error { error, .. } => Some(error),
        }
    }
}

impl Time {
    /// Whether another time of the same case differs by at most a fraction.
    pub(super) fn agrees(&self, other: &Self, within: f64) -> bool {
        self.ms.max(other.ms) <= self.ms.min(other.ms) * (1.0 + within)
    }

    fn of(measured: &Measured, device: &Device, against: &Against) -> Self {
        let per_s = |amount: u64| amount as f64 / measured.seconds;
        let bytes_per_s = per_s(measured.bytes);
        // What fits in a cache is copied faster than the largest copy.
        let copied = bytes_per_s / against.sized.map_or(against.copy, |it| it.max(against.copy));
        let computed = measured.operations.zip(against.arithmetic);
        let computed = computed.map_or(0.0, |(operations, most)| per_s(operations) / most);
        let intensity = measured.arithmetic as f64 / measured.bytes.max(1) as f64;
        Self {
            algorithm: measured.algorithm.clone(),
            tile: measured.tile.clone(),
            ms: rounded(measured.seconds * 1e3),
            ms_fastest: Some(rounded(measured.fastest * 1e3)),
            ms_first: Some(rounded(measured.first * 1e3)),
            gbs: rounded(bytes_per_s / 1e9),
            tflops: measured.operations.map(|operations| rounded(per_s(operations) / 1e12)),
            intensity: Some(rounded(intensity)),
            ceiling_fraction: Some(rounded(copied.max(computed))),
            copy_fraction: against.sized.map(|sized| rounded(bytes_per_s / sized)),
            error_in_bounds: measured.error.map(rounded),
            cache: if measured.cold { "cold" } else { "warm" }.into(),
            spread: rounded(measured.spread),
            noisy: measured.is_noisy(),
            clock: if device.has_clock() { "device" } else { "host" }.into(),
            windows: measured.windows,
            launches: measured.launches,
            recorded: measured.recorded,
        }
    }
}

fn whose(name: &str, cold: bool) -> Cow<'_, str> {
    match cold {
        true => Cow::Owned(format!("{name} cold")),
        false => Cow::Borrowed(name),
    }
}

/// The precision that a type is computed in: the type itself, or the requested precision.
pub(super) fn computed_in<'a>(dtype: &'a str, precision: Option<&'a str>) -> &'a str {
    precision.filter(|precision| *precision != "strict").unwrap_or(dtype)
}

/// The type that a case computes in, according to our rows.
pub(super) fn factors<'a>(rows: &[&'a Row]) -> &'a str {
    let ours = rows.iter().find(|row| row.precision.is_some()).or(rows.first());
    ours.map_or("", |row| row.factors())
}

/// Whether a text is a date such as 2026-01-31.
fn is_day(text: &str) -> bool {
    let digits = text.bytes().enumerate().all(|(at, byte)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    digits && text.len() == 10
}

/// Reads the lines of a run. An invalid line, or no lines at all, refuses the file.
pub(super) fn read(path: &Path) -> Result<Vec<Line>, Failure> {
    let (file, text) = (path.display(), lines::text(path)?);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let day = name.split('.').next().filter(|day| is_day(day)).unwrap_or_default().to_owned();
    let lines = lines::of(&text).map(|(i, line)| {
        let wrong = |what: &str| Failure::Failed(format!("{file}, line {i}: {what}"));
        let what =
            "is neither a measured peak nor the row of a case; write it with `--format json`";
        let mut line = serde_json::from_str(line).map_err(|_| wrong(what))?;
        if let Line::Row(row) = &mut line {
            if row.time().is_some_and(|time| time.ms <= 0.0) {
                return Err(wrong("has a time of zero or less; measure the case again"));
            }
            row.day.clone_from(&day);
        }
        Ok(line)
    });
    let lines: Vec<Line> = lines.collect::<Result<_, _>>()?;
    if lines.is_empty() {
        let message = format!("{file}: has no lines of a run; write it with `--format json`");
        return Err(Failure::Failed(message));
    }
    Ok(lines)
}

/// A line of JSON.
pub(super) fn json(line: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(line)
        .map_err(|error| Failure::Failed(format!("a row cannot be written: {error}")))
}

/// Five significant digits; clocks are not more precise.
pub(super) fn rounded(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    let places = (4 - number.abs().log10().floor() as i32).clamp(0, 12);
    let scale = 10f64.powi(places);
    (number * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All spellings of a pass name one case, in paths, patterns and filters.
    #[test]
    fn passes_have_one_name() {
        let parts = ["a", "conv", "dgrad", "f32", "nhwc"];
        assert_eq!(path(parts), "a/conv/data/f32/nhwc");
        assert_eq!(path(["a", "conv", "data", "f32", "nhwc"]), path(parts));
        assert_eq!(respelled("*/conv/wgrad/*"), "*/conv/weight/*");
        assert_eq!(path(["a", "conv", "forward", "f32", "nhwc"]), "a/conv/fwd/f32/nhwc");
        assert_eq!(respelled("*/maxpool/backward/*"), "*/maxpool/bwd/*");
        for (text, found) in [("dgrad", true), ("/data/", true), ("weight", false)] {
            assert_eq!(path_contains(parts, text), found, "{text}");
        }
    }

    #[test]
    fn numbers_keep_five_digits() {
        assert_eq!(rounded(0.012_345_67), 0.012346);
        assert_eq!(rounded(4230.987), 4231.0);
        assert_eq!(rounded(123_456.7), 123_457.0);
        assert_eq!(rounded(0.0), 0.0);
    }

    /// A time of zero or less is refused, so it can never be the fastest.
    #[test]
    fn times_that_are_none_are_refused() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let file = folder.path().join("run.jsonl");
        let told = |text: &str| {
            std::fs::write(&file, text).expect("a file for the test");
            read(&file).map(|lines| lines.len()).map_err(|failure| failure.to_string())
        };
        let row = |ms: &str| {
            let case = r#""name":"a","kind":"maxpool","pass":"fwd","dtype":"f32","layout":"nhwc""#;
            format!("{{{case},\"backend\":\"cpu\",\"ms\":{ms}}}\n")
        };
        assert_eq!(told(&format!("{}\r\n{}", row("1.5"), row("1e-9"))), Ok(2));
        for bad in ["0", "0.0", "-0.0", "-1"] {
            let error = told(&(row("1") + &row(bad))).expect_err("no time");
            assert!(error.contains("line 2: has a time of zero or less"), "{error}");
        }
        // Infinity is written as null, which is not a row.
        for bad in ["null", "1e999", "NaN"] {
            let error = told(&(row("1") + &row(bad))).expect_err("no row");
            assert!(error.contains("line 2: is neither"), "{error}");
        }
        assert!(told("\n").expect_err("no lines").contains("no lines of a run"));
    }

    /// Rows carry their build and their time; older rows without them are still read.
    #[test]
    fn rows_say_what_measured_them() {
        let case: Case = serde_json::from_value(serde_json::json!({
            "name": "x", "kind": "maxpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
        }))
        .expect("a case");
        let row = Row::new(&case, &Device::host(), false, Err("it failed".into()));
        let text = json(&row).expect("a line");
        let Ok(Line::Row(read)) = serde_json::from_str(&text) else { panic!("no row: {text}") };
        let build = read.build.expect("a build");
        assert_eq!(build, Build::OWN);
        assert!(build.compiler.starts_with("rustc ") && !build.version.is_empty(), "{build:?}");
        let at = read.at.expect("a time");
        assert!(is_day(&at[..10]) && at.len() == 20 && at.ends_with('Z'), "{at}");
        let (before, after) = text.split_once(",\"build\"").expect("a build");
        let (_, after) = after.split_once(",\"error\"").expect("an error");
        let old = format!("{before},\"error\"{after}");
        let Ok(Line::Row(old)) = serde_json::from_str(&old) else { panic!("no row: {old}") };
        assert!(old.build.is_none() && old.at.is_none() && old.error() == Some("it failed"));
    }

    #[test]
    fn lines_of_peers_are_read() {
        let row = r#"{"name":"a","kind":"maxpool","pass":"fwd","dtype":"f32","layout":"nhwc","#;
        let line = |end: &str| serde_json::from_str::<Line>(&format!("{row}{end}"));
        let Ok(Line::Row(timed)) = line(r#""peer":"torch","ms":0.25,"graph":true}"#) else {
            panic!("a peer's row is not read");
        };
        assert_eq!((&*timed.whose(), timed.time().map(|time| time.ms)), ("torch", Some(0.25)));
        let Ok(Line::Row(failed)) = line(r#""peer":"torch","error":"no memory"}"#) else {
            panic!("a peer's failure is not read");
        };
        assert_eq!(failed.error(), Some("no memory"));
        let ceiling = r#"{"ceiling":"copy","gbs":4230.0,"matmul_tflops":710.0,"dev":"a GPU"}"#;
        assert!(matches!(serde_json::from_str(ceiling), Ok(Line::Ceiling(_))));
        assert!(serde_json::from_str::<Line>(r#"{"name":"a"}"#).is_err());
    }
}
