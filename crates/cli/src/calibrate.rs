//! `windowpane calibrate`: measures the speeds from which the times of kernels are estimated.

use std::path::PathBuf;

use clap::Args;

use crate::args::On;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::{Progress, say};

const EXAMPLE: &str = "\
Example: measure a GPU once, and let later programs choose kernels by what was measured
  windowpane calibrate --backend vulkan -o gpu.speeds
  WINDOWPANE_SPEEDS=gpu.speeds windowpane plan pool --shape 8,112,112,64 --kernel 3,3 --why

The lines are: bytes per second of a large copy (memory) and of one that the last cache holds
(cache), multiply-adds per second of f32 on vector units (vector), of 16-bit factors on matrix
units (matrix) and by warpgroups (warpgroup, not measured), and the nanoseconds of an empty launch
(launch). The speeds of known devices are part of the program; those of others are estimated from
the number of multiprocessors.";

/// The arguments of `calibrate`.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Calibrate {
    /// The file to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    on: On,
}

impl Calibrate {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let device = self.on.open()?;
        let output = self.output.as_deref().map(Output::new).transpose()?;
        let progress = Progress::new(self.on.quiet, format!("measuring {device}"));
        let text = device.calibrate()?;
        drop(progress);
        let text = text.ok_or_else(|| {
            Failure::Failed(format!(
                "{device} has no kernels to choose from; name another backend with --backend"
            ))
        })?;
        match output {
            Some(output) => output.place_bytes(text.as_bytes()),
            None => say(text.trim_end()),
        }
    }
}
