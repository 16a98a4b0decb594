//! The search for the tile and the number of parts of its sums with the lowest estimated time, for the mainloops that
//! stage blocks in shared memory (`simt` and `mma`).

use windowpane_geometry::{Convolution, Tile};

use super::rules::longest_product;
use crate::conv::common::rules::MOST_CUBES;
use crate::conv::common::split_k;
use crate::conv::problem::{Pass, Request};
use crate::device::Capabilities;

/// The numbers of parts that are tried.
const TRIED: [usize; 20] =
    [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048];

/// A problem on a device, and the seconds in which a kernel computes it with a tile and a number of parts.
pub(in crate::conv) struct Search<'a, F: Fn(&Tile, usize) -> f64> {
    pub(in crate::conv) conv: &'a Convolution,
    pub(in crate::conv) request: Request,
    pub(in crate::conv) device: &'a Capabilities,
    pub(in crate::conv) seconds: F,
}

impl<F: Fn(&Tile, usize) -> f64> Search<'_, F> {
    /// The tile with the lowest estimate, each with the best number of parts for it.
    pub(in crate::conv) fn tile(&self, tiles: impl IntoIterator<Item = Tile>) -> Option<Tile> {
        let estimated = tiles.into_iter().map(|tile| (self.estimate(&tile).0, tile));
        estimated.min_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, tile)| tile)
    }

    /// The number of parts with the lowest estimate.
    pub(in crate::conv) fn splits(&self, tile: &Tile) -> usize {
        self.estimate(tile).1
    }

    /// The lowest estimate of a tile, with the time in which parts are added, and its number of parts.
    fn estimate(&self, tile: &Tile) -> (f64, usize) {
        let Self { conv, request, device, seconds } = self;
        let (_, terms) = longest_product(conv, request.pass);
        let steps = terms.div_ceil(tile.block_k as usize);
        let most = most(conv, request.pass).min(steps);
        let total = |splits: usize| {
            let adds = split_k::stores_parts(request.pass, request.dtype, splits);
            let adding = if adds { split_k::seconds(conv, *request, splits, device) } else { 0.0 };
            (seconds(tile, splits) + adding, splits)
        };
        let tried = TRIED.into_iter().take_while(|splits| *splits == 1 || *splits <= most);
        tried.map(total).min_by(|(one, _), (other, _)| one.total_cmp(other)).unwrap_or((0.0, 1))
    }
}

/// The most parts that a launch supports.
pub(in crate::conv) fn most(conv: &Convolution, pass: Pass) -> usize {
    let (_, terms) = longest_product(conv, pass);
    // Parts and groups share one axis of the launch.
    split_k::at_most(conv, pass, terms.min(MOST_CUBES / conv.groups()))
}
