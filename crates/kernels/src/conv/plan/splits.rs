//! The parts that long sums are cut into, so that few of them keep a device busy.

use windowpane_geometry::{Convolution, LIMIT, Tile};

use super::rules::MOST_CUBES;
use super::{Algorithm, Pass, Request};
use crate::Limits;
use crate::conv::gather::{Gather, columns};
use crate::conv::hopper;

/// The units that keep a GPU busy, and the fewest terms that are worth a unit.
const BUSY: usize = 1 << 16;
const TERMS: usize = 64;

/// The most cubes that a long sum is cut up for, and the fewest blocks of terms that are worth one.
const BUSY_CUBES: usize = 1024;
const BLOCKS_A_PART: usize = 8;

/// The cubes of a launch forward, or for the data, that leave enough of a device idle for sums to be cut until
/// there are so many.
const FEW_CUBES: usize = 128;

/// The elements that a pass computes.
pub(in crate::conv) fn results(conv: &Convolution, pass: Pass) -> usize {
    match pass {
        Pass::Forward => conv.output().elements(),
        Pass::Data => conv.input().elements(),
        Pass::Filter => conv.filter().elements(),
        Pass::Bias => conv.filter().count(),
    }
}

/// The windows of all samples: the terms of each sum of the filter's and the bias's gradient.
pub(in crate::conv) fn windows(conv: &Convolution) -> usize {
    conv.output().batch() * conv.output().plane()
}

/// The parts of each sum that keep a device busy.
pub(super) fn splits(
    algorithm: Algorithm,
    tile: Option<Tile>,
    conv: &Convolution,
    request: Request,
    limits: &Limits,
) -> usize {
    match (algorithm, tile) {
        (Algorithm::Hopper, Some(tile)) => hopper::plan::splits(conv, request, &tile, limits),
        (Algorithm::Tiled | Algorithm::Matrix, Some(tile)) => {
            splits_of_blocks(algorithm, conv, request.pass, &tile)
        }
        _ => splits_of_sums(algorithm, conv, request.pass, limits),
    }
}

/// The most parts whose number a kernel can count.
pub(super) fn most_splits(algorithm: Algorithm, conv: &Convolution, pass: Pass) -> usize {
    let terms = match (algorithm, pass) {
        (Algorithm::Wide, _) => 1,
        (_, Pass::Filter | Pass::Bias) => windows(conv),
        (Algorithm::Tiled | Algorithm::Matrix, _) => longest_product(conv, pass).1,
        _ => 1,
    };
    // Parts and groups are one axis of these launches.
    let terms = match algorithm {
        Algorithm::Tiled | Algorithm::Matrix => terms.min(MOST_CUBES / conv.groups()),
        _ => terms,
    };
    (LIMIT / results(conv, pass).max(1)).min(terms).max(1)
}

/// Cuts few long sums, each a unit's, for as many units as keep the device busy.
fn splits_of_sums(algorithm: Algorithm, conv: &Convolution, pass: Pass, limits: &Limits) -> usize {
    let busy = limits.cores.map_or(BUSY, |cores| cores as usize);
    let wanted = busy.div_ceil(results(conv, pass).max(1));
    wanted.min(windows(conv) / TERMS).clamp(1, most_splits(algorithm, conv, pass))
}

/// Cuts the sums of few blocks, for as many cubes as keep the device busy: of the filters' gradient, whose
/// sums are long, into many parts; else only where most of the device would be idle, for parts are written,
/// read and finished by a kernel more.
fn splits_of_blocks(algorithm: Algorithm, conv: &Convolution, pass: Pass, tile: &Tile) -> usize {
    let (lines, terms) = longest_product(conv, pass);
    let blocks = lines.div_ceil(tile.block_m as usize).max(1)
        * columns(conv, pass).div_ceil(tile.block_n as usize)
        * conv.groups();
    let wanted = match pass {
        Pass::Filter => BUSY_CUBES.div_ceil(blocks),
        _ => FEW_CUBES / blocks,
    };
    let most = most_splits(algorithm, conv, pass);
    let worth = terms / (tile.block_k as usize * BLOCKS_A_PART);
    wanted.min(worth).clamp(1, most)
}

/// The lines of a product and the terms of its sums: of a gradient of the data, which is several products,
/// of that with the most terms.
fn longest_product(conv: &Convolution, pass: Pass) -> (usize, usize) {
    if pass == Pass::Filter {
        return (conv.filter().taps() * conv.filter().channels(), windows(conv));
    }
    let sizes = Gather::all(conv, pass).map(|product| (product.rows(conv), product.terms(conv)));
    sizes.max_by_key(|(_, terms)| *terms).unwrap_or_default()
}
