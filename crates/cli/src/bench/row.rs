//! The lines of a run: what each device can do at most, and then a row for each case on it.

use std::borrow::Cow;
use std::path::Path;

use serde::{Deserialize, Serialize};
use windowpane::Device;

use super::against::{Agreement, Moved};
use super::case::Case;
use super::lines;
use super::measure::Measured;
use crate::failure::Failure;

/// A line of a run, ours or a peer's.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Line {
    Ceiling(Ceiling),
    Row(Row),
    /// What `--against` tells after the rows.
    Agreement(Agreement),
    Moved(Moved),
}

/// What a device can do at most, measured in the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ceiling {
    /// `copy`, `vector` or `matrix`.
    pub(super) ceiling: String,
    /// The bytes that a copy reads and writes; the type that arithmetic is done in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gbs: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tflops: Option<f64>,
    /// Why it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// `cold`: the caches filled with other things before each launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cache: Option<String>,
    /// Whose it is: a backend of ours, or a peer.
    #[serde(default)]
    pub(super) backend: String,
    #[serde(default)]
    pub(super) device: String,
}

impl Ceiling {
    /// The bytes a second that a plain copy of so many reads and writes.
    pub(super) fn copy(device: &Device, bytes: u64, bytes_per_s: f64) -> Self {
        let gbs = Some(rounded(bytes_per_s / 1e9));
        Self { bytes: Some(bytes), gbs, ..Self::of("copy", device) }
    }

    /// The operations a second on a type, in `vector` or `matrix` units.
    pub(super) fn arithmetic(device: &Device, unit: &str, dtype: &str, per_s: f64) -> Self {
        let (dtype, tflops) = (Some(dtype.into()), Some(rounded(per_s / 1e12)));
        Self { dtype, tflops, ..Self::of(unit, device) }
    }

    /// Arithmetic that could not be measured.
    pub(super) fn failed(device: &Device, unit: &str, dtype: &str, error: String) -> Self {
        Self { dtype: Some(dtype.into()), error: Some(error), ..Self::of(unit, device) }
    }

    /// Who has it, as rows name it: with cold caches another one.
    pub(super) fn whose(&self) -> Cow<'_, str> {
        whose(&self.backend, self.cache.as_deref() == Some("cold"))
    }

    /// Whether both are the same contestant's.
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

/// A case on a device: its time, or why it has none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) pass: String,
    pub(super) dtype: String,
    pub(super) layout: String,
    /// How exact the products of f32 are, where it is not strict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) precision: Option<String>,
    /// Ours; a peer's rows have its name instead.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) backend: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<String>,
    /// The day of its record, by which its file is called.
    #[serde(skip)]
    pub(super) day: String,
    #[serde(flatten)]
    pub(super) result: Outcome,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Outcome {
    Time(Box<Time>),
    Error {
        error: String,
        /// `cold`, where a time would have been one with cold caches.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cache: Option<String>,
    },
}

/// How long a case took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Time {
    #[serde(default)]
    pub(super) algorithm: String,
    /// How a product of matrices is cut up, as `--tile` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tile: Option<String>,
    pub(super) ms: f64,
    /// Of the fastest window.
    #[serde(default)]
    pub(super) ms_fastest: Option<f64>,
    #[serde(default)]
    pub(super) gbs: f64,
    #[serde(default)]
    pub(super) tflops: Option<f64>,
    /// Operations a byte, where a pooling has one a tap and a convolution two.
    #[serde(default)]
    pub(super) intensity: Option<f64>,
    /// Of the device's largest copy, or of its arithmetic where the case has more of that.
    #[serde(default)]
    pub(super) ceiling_fraction: Option<f64>,
    /// Of a copy of as many bytes as the case moves.
    #[serde(default)]
    pub(super) copy_fraction: Option<f64>,
    /// The worst element's error, in units of its bound; 0 is bit for bit. On fewer samples than
    /// were timed, where all would have taken long.
    #[serde(default)]
    pub(super) error_in_bounds: Option<f64>,
    /// `warm`: launches back to back. `cold`: the caches filled with other things before each.
    #[serde(default)]
    pub(super) cache: String,
    #[serde(default)]
    pub(super) spread: f64,
    #[serde(default)]
    pub(super) noisy: bool,
    /// Whose clock it was: `device` or `host`.
    #[serde(default)]
    pub(super) clock: String,
    #[serde(default)]
    pub(super) windows: u32,
    #[serde(default)]
    pub(super) launches: u32,
    /// Whether they came out of a recording.
    #[serde(default)]
    pub(super) recorded: bool,
}

/// What a case is compared with: ceilings in bytes and operations a second.
#[derive(Clone, Debug, Default)]
pub(super) struct Against {
    /// The largest copy's.
    pub(super) copy: f64,
    /// A copy of as many bytes.
    pub(super) sized: Option<f64>,
    /// The arithmetic's that a case of its type could use.
    pub(super) arithmetic: Option<f64>,
}

impl Row {
    /// Of a case that was timed, or not, on a device with warm caches or cold ones.
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
            day: String::new(),
            result: match measured {
                Ok((measured, against)) => {
                    Outcome::Time(Box::new(Time::of(&measured, device, &against)))
                }
                Err(error) => Outcome::Error { error, cache: cold.then(|| "cold".into()) },
            },
        }
    }

    /// The case that it is of, in one word.
    pub(super) fn case(&self) -> String {
        [&*self.name, &self.kind, &self.pass, &self.dtype, &self.layout].join("/")
    }

    /// What it computes on, as ceilings name it; a peer's row does not say how exact it is.
    fn factors(&self) -> &str {
        computed_in(&self.dtype, self.precision.as_deref())
    }

    /// Who ran it. With cold caches a contestant is another one: its times stand beside those with
    /// warm ones, and neither takes the other's place.
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
    /// Whether another time of the same differs by no more than a share.
    pub(super) fn agrees(&self, other: &Self, within: f64) -> bool {
        self.ms.max(other.ms) <= self.ms.min(other.ms) * (1.0 + within)
    }

    fn of(measured: &Measured, device: &Device, against: &Against) -> Self {
        let per_s = |amount: u64| amount as f64 / measured.seconds;
        let bytes_per_s = per_s(measured.bytes);
        let copied = bytes_per_s / against.copy;
        let computed = measured.operations.zip(against.arithmetic);
        let computed = computed.map_or(0.0, |(operations, most)| per_s(operations) / most);
        let intensity = measured.arithmetic as f64 / measured.bytes.max(1) as f64;
        Self {
            algorithm: measured.algorithm.clone(),
            tile: measured.tile.clone(),
            ms: rounded(measured.seconds * 1e3),
            ms_fastest: Some(rounded(measured.fastest * 1e3)),
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

/// What numbers of a type are computed in: their type, or the precision that was asked for.
pub(super) fn computed_in<'a>(dtype: &'a str, precision: Option<&'a str>) -> &'a str {
    precision.filter(|precision| *precision != "strict").unwrap_or(dtype)
}

/// What the rows of a case compute on: those of ours know.
pub(super) fn factors<'a>(rows: &[&'a Row]) -> &'a str {
    let ours = rows.iter().find(|row| row.precision.is_some()).or(rows.first());
    ours.map_or("", |row| row.factors())
}

/// Whether a text is a day, as 2026-01-31.
fn is_day(text: &str) -> bool {
    let digits = text.bytes().enumerate().all(|(at, byte)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    digits && text.len() == 10
}

/// Reads the lines of a run. A line that is none refuses the file, and so does a file without lines.
pub(super) fn read(path: &Path) -> Result<Vec<Line>, Failure> {
    let (file, text) = (path.display(), lines::text(path)?);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let day = name.split('.').next().filter(|day| is_day(day)).unwrap_or_default().to_owned();
    let lines = lines::of(&text).map(|(i, line)| {
        let wrong = |what: &str| Failure::Failed(format!("{file}, line {i}: {what}"));
        let what = "is neither a ceiling nor a case's row; write it with `--format json`";
        let mut line = serde_json::from_str(line).map_err(|_| wrong(what))?;
        if let Line::Row(row) = &mut line {
            if row.time().is_some_and(|time| time.ms <= 0.0) {
                return Err(wrong("has a time that is none; measure the case again"));
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

/// Five digits: no clock gives more.
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

    #[test]
    fn numbers_keep_five_digits() {
        assert_eq!(rounded(0.012_345_67), 0.012346);
        assert_eq!(rounded(4230.987), 4231.0);
        assert_eq!(rounded(123_456.7), 123_457.0);
        assert_eq!(rounded(0.0), 0.0);
    }

    /// A time that is none is in no file that is read, and so no case's fastest.
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
            assert!(error.contains("line 2: has a time that is none"), "{error}");
        }
        // A number without an end is written as none, and is no row.
        for bad in ["null", "1e999", "NaN"] {
            let error = told(&(row("1") + &row(bad))).expect_err("no row");
            assert!(error.contains("line 2: is neither"), "{error}");
        }
        assert!(told("\n").expect_err("no lines").contains("no lines of a run"));
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
