//! `windowpane verify`: the same cases, held to the reference.

use clap::Args;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use windowpane::Device;

use super::case::Case;
use super::row::{self, rounded};
use super::{Cases, Checked, Format, check, guarded, print};
use crate::args::number;
use crate::failure::Failure;
use crate::progress::{Progress, say};

const EXAMPLE: &str = "\
Example: every case of a file on two backends
  windowpane verify --cases cases.jsonl --backend cuda,host

The error is the worst element's, in units of its bound: 0 is bit for bit, above 1 is wrong. Of a
case with more taps than --taps only so many samples are computed, and smaller ones if one has more;
its row says how many of how many, and of what extents. Of a convolution so large all filters and
channels are computed, and results of some are compared; the row says of how many.";

/// The arguments of `verify`.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Verify {
    #[command(flatten)]
    cases: Cases,
    /// The most taps, or for a convolution multiplications, that the reference computes of a case
    #[arg(long, value_name = "N", value_parser = number, default_value_t = 1 << 24)]
    taps: usize,
}

/// A case on a device: how far its results are from the reference's.
#[derive(Serialize)]
struct Row {
    name: String,
    kind: String,
    pass: String,
    dtype: String,
    layout: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    precision: Option<String>,
    backend: &'static str,
    device: String,
    #[serde(flatten)]
    result: Outcome,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome {
    Right {
        algorithm: String,
        error_in_bounds: f64,
        samples: usize,
        of: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<Vec<usize>>,
        outputs: usize,
        of_outputs: usize,
    },
    Error {
        error: String,
    },
}

impl Verify {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let (cases, devices) = (self.cases.read()?, self.cases.devices()?);
        let forced = self.cases.forced();
        self.cases.follow_tuned(false)?;
        let format = print::format(self.cases.format);
        let total = cases.len() * devices.len();
        let progress = Progress::of(self.cases.quiet, total);
        let mut rows = Vec::new();
        for case in &cases {
            for device in &devices {
                progress.now(format!("{} on {device}", case.path()));
                let row = Row::new(
                    case,
                    device,
                    guarded(|| check(case, device, forced, self.taps as u64)),
                );
                if format == Format::Json {
                    progress.say(row::json(&row)?)?;
                }
                rows.push(row);
                progress.step();
            }
        }
        drop(progress);
        if format != Format::Json {
            say(table(format, &rows))?;
        }
        match rows.iter().filter(|row| matches!(row.result, Outcome::Error { .. })).count() {
            0 => Ok(()),
            bad => Err(Failure::Failed(format!(
                "{bad} of {total} cases are wrong or did not run; their rows say why"
            ))),
        }
    }
}

impl Row {
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
            backend: device.backend().name(),
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
        let case = format!("{} {} {}", row.name, row.kind, row.pass);
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
        table.add_row([case, of_type, row.backend.into(), algorithm, error, samples]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::element::Comparison;

    /// A wrong result is a row that says what is wrong, and has nothing that could pass for good.
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
