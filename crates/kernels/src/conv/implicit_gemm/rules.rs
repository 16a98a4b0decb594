//! Which problems are computed as one matrix product, the size of the product, and which blocks fit.

use windowpane_geometry::{Convolution, Tile};

use crate::conv::common::gather::{Gather, columns};
use crate::conv::common::rules::{MOST_CUBES, has_few_phases};
use crate::conv::error::{NotApplicable, PlanError, require};
use crate::conv::problem::{Pass, Request, windows};
use crate::device::Capabilities;

/// The number of lines in the smallest block that a plan starts with.
const LINES: usize = 64;

/// Whether a GPU can compute a problem as a matrix product.
pub(in crate::conv) fn applies(
    conv: &Convolution,
    request: Request,
    device: &Capabilities,
) -> Result<(), NotApplicable> {
    // On a processor, barriers cost more than shared blocks save.
    require(device.cores.is_none(), "it is for GPUs")?;
    require(request.pass != Pass::Bias, "the gradient of the bias has no products")?;
    require(
        conv.groups() <= MOST_CUBES
            && columns(conv, request.pass) <= MOST_CUBES
            && lines(conv, request.pass).div_ceil(LINES) <= device.cubes as usize,
        "the product has more blocks than a launch has cubes",
    )?;
    require(has_few_phases(conv, request.pass), "strides make too many phases")
}

/// The number of lines of the longest product of a pass.
pub(in crate::conv) fn lines(conv: &Convolution, pass: Pass) -> usize {
    let lines = |gather: Gather| match pass {
        Pass::Filter => gather.terms(conv),
        _ => gather.rows(conv),
    };
    Gather::all(conv, pass).map(lines).max().unwrap_or(0)
}

/// The lines of a product and the terms of its sums. A data gradient consists of several products; the result is for
/// the one with the most terms.
pub(in crate::conv) fn longest_product(conv: &Convolution, pass: Pass) -> (usize, usize) {
    if pass == Pass::Filter {
        return (conv.filter().taps() * conv.filter().channels(), windows(conv));
    }
    let sizes = Gather::all(conv, pass).map(|product| (product.rows(conv), product.terms(conv)));
    sizes.max_by_key(|(_, terms)| *terms).unwrap_or_default()
}

/// Rejects a tile that needs more blocks of lines than a launch can have cubes.
pub(in crate::conv) fn check_cubes(
    tile: &Tile,
    conv: &Convolution,
    pass: Pass,
    device: &Capabilities,
) -> Result<(), PlanError> {
    let cubes = lines(conv, pass).div_ceil(tile.block_m as usize);
    match cubes <= device.cubes as usize {
        true => Ok(()),
        false => Err(PlanError::Cubes { cubes, limit: device.cubes }),
    }
}

/// A tile, followed by smaller ones for devices that do not have enough shared memory for it.
pub(in crate::conv) fn smaller(tile: Tile) -> [Tile; 4] {
    let single = Tile { stages: 1, ..tile };
    let low = Tile { block_m: 64, ratio_m: (tile.ratio_m / 2).max(1), ..single };
    let narrow = Tile { block_n: low.block_n.min(32), ratio_n: 1, ..low };
    [tile, single, low, narrow]
}
