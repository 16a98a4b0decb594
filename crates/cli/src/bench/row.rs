use serde::Serialize;
use windowpane::Device;

use super::case::Case;
use super::measure::Measured;
use crate::failure::Failure;

/// What a device can do at most, measured in the run.
#[derive(Serialize)]
pub(super) struct Ceiling<'a> {
    ceiling: &'static str,
    gbs: f64,
    backend: &'static str,
    device: &'a str,
}

impl<'a> Ceiling<'a> {
    /// The bytes a second that a plain copy reads and writes.
    pub(super) fn copy(device: &'a Device, bytes_per_s: f64) -> Self {
        let gbs = rounded(bytes_per_s / 1e9);
        Self { ceiling: "copy", gbs, backend: device.backend().name(), device: device.name() }
    }
}

/// A case on a device: its time, or why it has none.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    name: &'a str,
    kind: &'a str,
    pass: &'a str,
    dtype: &'a str,
    layout: &'a str,
    backend: &'static str,
    device: &'a str,
    #[serde(flatten)]
    result: Outcome,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome {
    Time {
        algorithm: String,
        ms: f64,
        gbs: f64,
        tflops: Option<f64>,
        /// Of the copy's bytes a second.
        ceiling_fraction: f64,
        spread: f64,
        noisy: bool,
        /// Whose clock it was: `device` or `host`.
        clock: &'static str,
        windows: u32,
        launches: u32,
    },
    Error {
        error: String,
    },
}

impl<'a> Row<'a> {
    /// `ceiling` is the bytes a second that the device copies.
    pub(super) fn new(
        case: &'a Case,
        device: &'a Device,
        ceiling: f64,
        measured: Result<Measured, String>,
    ) -> Self {
        Self {
            name: &case.name,
            kind: &case.kind,
            pass: &case.pass,
            dtype: &case.dtype,
            layout: &case.layout,
            backend: device.backend().name(),
            device: device.name(),
            result: match measured {
                Ok(measured) => Outcome::time(&measured, device, ceiling),
                Err(error) => Outcome::Error { error },
            },
        }
    }
}

impl Outcome {
    fn time(measured: &Measured, device: &Device, ceiling: f64) -> Self {
        let bytes_per_s = measured.bytes as f64 / measured.seconds;
        let per_s = |operations: u64| operations as f64 / measured.seconds;
        Self::Time {
            algorithm: measured.algorithm.clone(),
            ms: rounded(measured.seconds * 1e3),
            gbs: rounded(bytes_per_s / 1e9),
            tflops: measured.operations.map(|operations| rounded(per_s(operations) / 1e12)),
            ceiling_fraction: rounded(bytes_per_s / ceiling),
            spread: rounded(measured.spread),
            noisy: measured.is_noisy(),
            clock: if device.has_clock() { "device" } else { "host" },
            windows: measured.windows,
            launches: measured.launches,
        }
    }
}

/// A line of JSON.
pub(super) fn json(line: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(line)
        .map_err(|error| Failure::Failed(format!("a row cannot be written: {error}")))
}

/// Five digits: no clock gives more.
fn rounded(number: f64) -> f64 {
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
}
