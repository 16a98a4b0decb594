//! `windowpane devices`: the backends of this build and the devices of this machine.

use clap::Args;
use comfy_table::{Attribute, Cell, CellAlignment};
use serde_json::{Value, json};
use windowpane::{ArithmeticUnit, Backend, DType, Device, Error};

use crate::args::{Format, On};
use crate::failure::Failure;
use crate::progress::{Progress, say};
use crate::table;

const EXAMPLE: &str = "\
Example: the CUDA devices
  windowpane devices --backend cuda

The last two columns are measured now. TFLOP/s: arithmetic on registers, in f32 on vector units and,
if the device has them, in f16 on matrix units. read+write GB/s: a plain copy, the upper limit of
every kernel that reads and writes memory (an emulated GPU may exceed it).";

/// The arguments of `devices`.
#[derive(Args)]
#[command(
    after_help = EXAMPLE,
    mut_arg("backend", |arg| arg.help("cuda, hip, metal, vulkan, wgpu, cpu or host [default: every backend in this build]")),
    mut_arg("device", |arg| {
        arg.help("Show only this device of its backend [default: all; without --backend, the best one's]")
    }),
    mut_arg("quiet", |arg| arg.help("Print only the table: no progress"))
)]
pub(crate) struct Devices {
    /// Output format; json prints one object per line, with speeds in operations and bytes per second
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    #[command(flatten)]
    on: On,
}

/// A line of the table.
enum Row {
    Found(Device),
    /// A backend without a device, and why.
    Missing(Backend, String),
}

impl Row {
    fn json(&self) -> Value {
        let device = match self {
            Self::Missing(backend, reason) => {
                return json!({"backend": backend.name(), "missing": reason});
            }
            Self::Found(device) => device,
        };
        let speed = |dtype, unit| device.peak_arithmetic(dtype, unit).ok().flatten();
        json!({
            "backend": device.backend().name(),
            "device": device.index(),
            "name": device.name(),
            "dtypes": device.dtypes().map(DType::name).collect::<Vec<_>>(),
            "f32_flops": speed(DType::F32, ArithmeticUnit::Vector),
            "f16_matrix_flops": speed(DType::F16, ArithmeticUnit::Matrix),
            "copy_bytes": device.peak_copy_bandwidth().ok(),
        })
    }
}

impl Devices {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let rows = match (self.on.backend, self.on.device) {
            (None, None) => Backend::built().flat_map(rows_of).collect(),
            (Some(backend), None) => {
                // A requested backend without a device is an error.
                Device::new(backend, 0)?;
                rows_of(backend)
            }
            (_, Some(_)) => vec![Row::Found(self.on.open()?)],
        };
        if self.format == Format::Json {
            let progress = Progress::new(self.on.quiet, "measuring");
            return rows.iter().try_for_each(|row| progress.say(row.json()));
        }
        let mut table = table::new();
        table.set_header(["device", "name", "types", "TFLOP/s", "read+write GB/s"]);
        for column in table.column_iter_mut().skip(3) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let progress = Progress::new(self.on.quiet, "looking for devices");
        for row in rows {
            table.add_row(match row {
                Row::Found(device) => {
                    progress.now(format!("measuring {device}"));
                    found(&device).map(Cell::new)
                }
                Row::Missing(backend, reason) => {
                    [backend.name(), &reason, "–", "–", "–"].map(|text| dim(Cell::new(text)))
                }
            });
        }
        drop(progress);
        say(table)?;
        let absent: Vec<_> =
            Backend::ALL.into_iter().filter(|b| !b.is_built()).map(Backend::name).collect();
        if self.on.backend.is_some() || absent.is_empty() {
            return Ok(());
        }
        say(format!("not in this build: {} (rebuild with --features NAME)", absent.join(", ")))
    }
}

fn rows_of(backend: Backend) -> Vec<Row> {
    let mut rows = Vec::new();
    for index in 0.. {
        match Device::new(backend, index) {
            Ok(device) => rows.push(Row::Found(device)),
            Err(_) if index > 0 => break,
            Err(Error::NoDevice { reason, .. }) => {
                rows.push(Row::Missing(backend, reason));
                break;
            }
            Err(error) => {
                rows.push(Row::Missing(backend, error.to_string()));
                break;
            }
        }
    }
    rows
}

fn found(device: &Device) -> [String; 5] {
    let types: Vec<_> = device.dtypes().map(DType::name).collect();
    let failed = |error: Error| format!("not measured: {error}");
    let copy = device.peak_copy_bandwidth().map(|bytes| format!("{:.1}", bytes / 1e9));
    let copy = copy.unwrap_or_else(failed);
    let arithmetic = arithmetic(device).unwrap_or_else(failed);
    [device.to_string(), device.name().into(), types.join(", "), arithmetic, copy]
}

/// The measured arithmetic throughput of each kind of unit that the device has.
fn arithmetic(device: &Device) -> Result<String, Error> {
    let mut told = Vec::new();
    for (name, dtype, unit) in [
        ("f32", DType::F32, ArithmeticUnit::Vector),
        ("f16 matrices", DType::F16, ArithmeticUnit::Matrix),
    ] {
        if let Some(operations) = device.peak_arithmetic(dtype, unit)? {
            told.push(format!("{name} {:.3}", operations / 1e12));
        }
    }
    Ok(if told.is_empty() { "–".into() } else { told.join(", ") })
}

fn dim(cell: Cell) -> Cell {
    cell.add_attribute(Attribute::Dim)
}
