//! Which problems a processor computes with wide vectors, and the rows and vectors that a thread computes.

use core::fmt;

use windowpane_geometry::{Convolution, LIMIT, Layout, Precision, Tile, TileOverrides};

use super::weight;
use crate::conv::common::{
    Arguments, Kernel, MOST_ROWS, Packing, check_neighbours, check_registers, columns, cost,
    has_few_phases, independent_units, register_tile, registers, widest_register,
};
use crate::conv::problem::{Pass, Request, Task, multiplications};
use crate::error::{NotApplicable, PlanError, require};

/// The register tile of a thread: rows by vectors of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The windows of a thread. For a data gradient these are coordinates, for a weight gradient channels.
    pub rows: u32,
    /// The vectors of filters; for a data gradient, of channels.
    pub vectors: u32,
    /// The elements of a vector.
    pub lanes: u32,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows={},vectors={},lanes={}", self.rows, self.vectors, self.lanes)
    }
}

/// The share of the vector units' speed that the products reach.
const REACHED: f64 = 0.5;

impl Kernel for Config {
    fn applies(task: Task<'_>) -> Result<(), NotApplicable> {
        let Task { conv, request, device } = task;
        require(device.cores.is_some(), "it is for CPUs")?;
        require(request.precision == Precision::Strict, "it does not round to tf32")?;
        match request.pass {
            Pass::Forward | Pass::Data => {
                let lanes = widest_register(request.dtype, device) as usize;
                require(
                    Packing::new(conv, request.pass, lanes).elements() <= LIMIT,
                    "the packed filters are too large",
                )?;
                require(has_few_phases(conv, request.pass), "strides make too many phases")
            }
            Pass::Weight => Ok(()),
            Pass::Bias => Err(NotApplicable("a bias gradient has no products")),
        }
    }

    /// As many rows by vectors of accumulators as fit in a processor's registers, together with the weights of one term
    /// and the value that they are multiplied by.
    fn new(task: Task<'_>) -> Option<Self> {
        let Task { conv, request, device } = task;
        let columns = columns(conv, request.pass);
        let lanes = (widest_register(request.dtype, device) as usize).min(match request.pass {
            // The vectors of the output gradient are loaded in its original layout.
            Pass::Weight => 1 << contiguous_filters(conv).trailing_zeros().min(30),
            _ => columns.next_power_of_two(),
        });
        // Processors with 64-byte vectors have 32 vector registers, others have 16.
        let (registers, most) = if device.load_bytes >= 64 { (31, 4) } else { (15, 2) };
        let vectors = columns.div_ceil(lanes).min(most);
        let rows = ((registers - 1 - vectors) / vectors).min(MOST_ROWS);
        Some(Self { rows: rows as u32, vectors: vectors as u32, lanes: lanes as u32 })
    }

    fn over(self, overrides: &TileOverrides) -> Result<Self, PlanError> {
        let [rows, vectors, lanes] = registers(overrides, [self.rows, self.vectors, self.lanes])?;
        Ok(Self { rows, vectors, lanes })
    }

    fn tile(&self) -> Option<Tile> {
        Some(register_tile(self.rows, self.vectors, self.lanes))
    }

    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        check_registers([self.rows, self.vectors, self.lanes], task)?;
        match task.request.pass {
            Pass::Weight => check_neighbours(self.lanes, contiguous_filters(task.conv)),
            _ => Ok(()),
        }
    }

    fn units(&self, task: Task<'_>) -> u32 {
        independent_units(task.device.units_per_cube, task.device)
    }

    fn splits(&self, _: Task<'_>) -> usize {
        1
    }

    fn most_splits(&self, _: Task<'_>) -> usize {
        1
    }

    /// The packed filters.
    fn workspace(&self, conv: &Convolution, request: Request, _: usize) -> usize {
        match request.pass {
            Pass::Weight => 0,
            pass => Packing::new(conv, pass, self.lanes as usize).bytes(request.dtype),
        }
    }

    /// Estimates the time from the products of all vectors, including padding, and from the bytes of the tensors.
    fn seconds(&self, task: Task<'_>, _: usize) -> f64 {
        let Task { conv, request, device } = task;
        let columns = columns(conv, request.pass).max(1);
        // A vector takes as long as the widest one, however many of its lanes have columns.
        let padded = columns.div_ceil(self.lanes as usize) as f64 / columns as f64;
        let lanes = f64::from(widest_register(request.dtype, device));
        let products = multiplications(conv) as f64 * padded * lanes;
        let multiplying = products / (REACHED * device.speeds.vector as f64);
        let packing = if request.pass == Pass::Weight { 0 } else { 1 };
        let moving = device.copy_seconds(cost::bytes(conv, request));
        device.launch_seconds(1 + packing) + multiplying.max(moving)
    }

    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        match arguments.task.request.pass {
            Pass::Weight => weight::launch(arguments, *self),
            _ => super::launch(arguments, *self),
        }
        Ok(())
    }
}

/// The number of filters of a group that are contiguous in memory.
fn contiguous_filters(conv: &Convolution) -> usize {
    match conv.layout() {
        Layout::ChannelsLast => conv.filter().count() / conv.groups(),
        Layout::ChannelsFirst => 1,
    }
}
