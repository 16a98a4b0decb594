//! Which problems are computed as one matrix product, the size of the product, and which blocks fit.

use windowpane_geometry::{Axis, Convolution, Tile};

use crate::conv::common::{Gather, MOST_CUBES, columns, split_k};
use crate::conv::problem::{Pass, Task};
use crate::error::{NotApplicable, PlanError, ensure, require};

/// The number of rows in the smallest block that a plan starts with.
const ROWS: usize = 64;

/// Whether a GPU can compute a problem as a matrix product.
pub(crate) fn applies(task: Task<'_>) -> Result<(), NotApplicable> {
    let Task { conv, request, device } = task;
    // On a processor, barriers cost more than shared blocks save.
    require(device.cores.is_none(), "it is for GPUs")?;
    require(request.pass != Pass::Bias, "a bias gradient has no products")?;
    let (_, phases) = Gather::largest(conv, request.pass);
    require(phases.is_none_or(|phases| phases.fits()), "strides make too many phases")?;
    require(
        conv.groups() <= MOST_CUBES
            && columns(conv, request.pass) <= MOST_CUBES
            && row_blocks(conv, request.pass, ROWS) <= device.cubes as usize,
        "the product has more blocks than a launch has cubes",
    )
}

/// Whether each window reads one pixel, and neighbouring windows read neighbouring pixels.
pub(crate) fn windows_are_pixels(conv: &Convolution) -> bool {
    let is_same =
        |axis: &Axis| axis.stride() == 1 && axis.before() == 0 && axis.input() == axis.output();
    conv.filter().taps() == 1 && conv.grid().axes().iter().all(is_same)
}

/// The number of blocks of `block` rows, in all phases of a data gradient.
pub(crate) fn row_blocks(conv: &Convolution, pass: Pass, block: usize) -> usize {
    let (_, phases) = Gather::largest(conv, pass);
    let (rows, _) = longest_product(conv, pass);
    rows.div_ceil(block).saturating_mul(phases.map_or(1, |phases| phases.count()))
}

/// The rows of a product and the terms of its sums. A strided data gradient consists of several products; the result
/// is for the one with the most terms.
pub(crate) fn longest_product(conv: &Convolution, pass: Pass) -> (usize, usize) {
    let (product, _) = Gather::largest(conv, pass);
    let (rows, terms) = (product.rows(conv), product.terms(conv));
    if pass == Pass::Weight { (terms, rows) } else { (rows, terms) }
}

/// Rejects a tile that needs more blocks of rows than a launch can have cubes.
pub(crate) fn check_cubes(tile: &Tile, task: Task<'_>) -> Result<(), PlanError> {
    let cubes = row_blocks(task.conv, task.request.pass, tile.block_m as usize);
    ensure(
        cubes <= task.device.cubes as usize,
        PlanError::Cubes { cubes, limit: task.device.cubes },
    )
}

/// The most parts that a launch supports.
pub(crate) fn most_splits(conv: &Convolution, pass: Pass) -> usize {
    let (_, terms) = longest_product(conv, pass);
    // Parts and groups share one axis of the launch.
    split_k::at_most(conv, pass, terms.min(MOST_CUBES / conv.groups()))
}
