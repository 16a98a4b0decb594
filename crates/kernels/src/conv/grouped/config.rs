//! Which problems the kernel is for, and the run of rows that a unit computes.

use core::fmt;

use windowpane_geometry::{AXES, Convolution, Layout, Precision, Tile, TileOverrides};

use super::{UNITS, packing};
use crate::conv::common::{
    Arguments, Gather, Kernel, MOST_TOGETHER, Run, check_number, check_registers, columns, cost,
    has_few_phases, has_few_taps, independent_units, inner, register_tile, registers, widest_load,
};
use crate::conv::problem::{Pass, Request, Task, fragment};
use crate::error::{NotApplicable, PlanError, require};

/// The lanes of every vector, of channels that are read or of filters.
pub(super) const LANES: u32 = 4;

/// The most channels or filters of a group, without and with matrix units. Larger groups fill a block of a matrix
/// product well enough that the product is faster; with matrix units this is the case for smaller groups already.
const MOST_CHANNELS: usize = 16;
const MOST_CHANNELS_BESIDE_MATRIX_UNITS: usize = 8;

/// The register tile of a unit: a run of rows by one vector of filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of neighbouring windows (or coordinates, for a data gradient) that a unit computes.
    pub rows: u32,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows={}", self.rows)
    }
}

/// The instructions of a loaded vector of pixels, and of a product.
const PIXEL: f64 = 16.0;
const PRODUCT: f64 = 1.5;

impl Kernel for Config {
    fn applies(task: Task<'_>) -> Result<(), NotApplicable> {
        let Task { conv, request, device } = task;
        let most = match fragment(task) {
            Some(_) => MOST_CHANNELS_BESIDE_MATRIX_UNITS,
            None => MOST_CHANNELS,
        };
        let lanes = LANES as usize;
        let few = |count: usize| count.is_multiple_of(lanes) && (1..=most).contains(&count);
        require(device.cores.is_none(), "it is for GPUs")?;
        require(request.precision == Precision::Strict, "it does not round to tf32")?;
        require(
            matches!(request.pass, Pass::Forward | Pass::Data),
            "it computes only the forward pass and the data gradient",
        )?;
        require(conv.groups() > 1, "there is one group")?;
        require(conv.layout() == Layout::ChannelsLast, "channels are not last")?;
        require(
            few(inner(conv, request.pass)) && few(columns(conv, request.pass)),
            "channels and filters per group must be multiples of 4, and few",
        )?;
        require(
            widest_load(request.dtype, device) == LANES,
            "the device does not load vectors of 4 elements of this type",
        )?;
        require(has_few_taps(conv), "taps along the width are too many or too far apart")?;
        require(has_few_phases(conv, request.pass), "strides make too many phases")
    }

    /// A run of eight rows.
    fn new(_: Task<'_>) -> Option<Self> {
        Some(Self { rows: 8 })
    }

    fn over(self, overrides: &TileOverrides) -> Result<Self, PlanError> {
        let [rows, vectors, lanes] = registers(overrides, [self.rows, 1, LANES])?;
        check_number("ratio_n", vectors, 1)?;
        check_number("elems_per_thread", lanes, LANES)?;
        Ok(Self { rows })
    }

    fn tile(&self) -> Option<Tile> {
        Some(register_tile(self.rows, 1, LANES))
    }

    fn check(&self, task: Task<'_>) -> Result<(), PlanError> {
        check_registers([self.rows, 1, LANES], task)
    }

    fn units(&self, task: Task<'_>) -> u32 {
        independent_units(UNITS, task.device)
    }

    /// The packed filters.
    fn workspace(&self, conv: &Convolution, request: Request, _: usize) -> usize {
        packing(conv, request.pass).bytes(request.dtype)
    }

    /// Estimates the time from the instructions that load pixels and multiply them, and from the bytes of the tensors.
    fn seconds(&self, task: Task<'_>, _: usize) -> f64 {
        let Task { conv, request, device } = task;
        let pass = request.pass;
        let lanes = LANES as usize;
        let vectors = conv.groups() * columns(conv, pass) / lanes;
        let (mut instructions, mut products) = (0.0, 0);
        for gather in Gather::all(conv, pass) {
            let along = Run::new(self.rows, &gather.axes[AXES - 1]);
            let width = gather.axes[AXES - 1].rows;
            let units =
                gather.rows(conv) / width.max(1) * width.div_ceil(self.rows as usize) * vectors;
            let taps: usize = gather.axes[..AXES - 1].iter().map(|axis| axis.taps).product();
            let lines = (units * taps * inner(conv, pass) / lanes) as f64;
            let multiplied = f64::from(along.rows * along.taps * LANES * LANES);
            instructions += lines * (PIXEL * f64::from(along.pixels().1) + PRODUCT * multiplied);
            products += 1;
        }
        let launches = usize::div_ceil(products, MOST_TOGETHER) + 1;
        let units = device.multiprocessor_count() as f64 * device.units_per_cycle();
        let moving = cost::moving(cost::bytes(conv, request), device);
        device.launch_seconds(launches) + moving.max(instructions / (units * device.clock()))
    }

    fn launch(&self, arguments: &Arguments<'_>) -> Result<(), PlanError> {
        super::launch(arguments, *self)
    }
}
