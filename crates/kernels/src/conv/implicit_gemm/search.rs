//! The search for the tile and the number of parts of its sums with the lowest estimated time, for the mainloops that
//! stage blocks in shared memory (`simt` and `mma`).

use windowpane_geometry::Tile;

use super::blocks::Product;
use super::cost::{self, Mainloop, Sizes};
use super::rules::check_cubes;
use crate::conv::common::split_k;
use crate::conv::problem::Task;

/// The numbers of parts that are tried.
const TRIED: [usize; 20] =
    [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048];

/// What the estimate of a tile depends on: its product, the speed of its mainloop, and the units of its cubes.
pub(crate) type Inputs = (Product, Mainloop, u32);

/// The search on a device, by the inputs that a kernel gives for a tile.
pub(crate) struct Search<'a, F: Fn(&Tile) -> Inputs> {
    task: Task<'a>,
    sizes: Sizes,
    inputs: F,
}

impl<'a, F: Fn(&Tile) -> Inputs> Search<'a, F> {
    pub(crate) fn new(task: Task<'a>, inputs: F) -> Self {
        Self { task, sizes: Sizes::new(task.conv, task.request), inputs }
    }

    /// The tile with the lowest estimate among those whose cubes a launch can count, each with the best number of parts
    /// for it.
    pub(crate) fn tile(&self, tiles: impl Iterator<Item = Tile>) -> Option<Tile> {
        let fits = |tile: &Tile| check_cubes(tile, self.task).is_ok();
        let estimated = tiles.filter(fits).map(|tile| (self.cheapest(&tile).0, tile));
        estimated.min_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, tile)| tile)
    }

    /// The number of parts with the lowest estimate.
    pub(crate) fn splits(&self, tile: &Tile) -> usize {
        self.cheapest(tile).1
    }

    /// The estimated seconds of a launch.
    pub(crate) fn seconds(&self, tile: &Tile, splits: usize) -> f64 {
        let (product, mainloop, units) = (self.inputs)(tile);
        cost::seconds(&self.sizes, tile, &product, mainloop, (units, splits), self.task.device)
    }

    /// The lowest estimate of a tile, with the time in which parts are added, and its number of parts.
    fn cheapest(&self, tile: &Tile) -> (f64, usize) {
        let Self { task, sizes, .. } = self;
        let most = sizes.terms.div_ceil(tile.block_k as usize).min(sizes.most_splits);
        let (product, mainloop, units) = (self.inputs)(tile);
        let total = |splits: usize| {
            let own = cost::seconds(sizes, tile, &product, mainloop, (units, splits), task.device);
            (own + split_k::seconds(*task, splits), splits)
        };
        let tried = TRIED.into_iter().take_while(|splits| *splits == 1 || *splits <= most);
        tried.map(total).min_by(|(one, _), (other, _)| one.total_cmp(other)).unwrap_or((0.0, 1))
    }
}
