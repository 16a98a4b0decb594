//! Estimates the time of a mainloop that stages blocks in shared memory (`simt` and `mma`).
//!
//! A multiprocessor multiplies and loads the blocks of its cubes at the speeds of its units. With few cubes, it waits
//! for the loads of each step.

use windowpane_geometry::{Convolution, Tile};

use super::blocks::Product;
use super::rules::{longest_product, most_splits};
use crate::conv::common::{Gather, columns, cost};
use crate::conv::problem::Request;
use crate::device::Capabilities;

/// The speed of a mainloop with a tile. Its times are in cycles of a multiprocessor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mainloop {
    /// The multiply-adds per second that all multiprocessors reach together.
    pub(crate) products: f64,
    /// The time of the loads of a step.
    pub(crate) loads: f64,
    /// The shortest time of a step, and how much longer it is if its loads miss the last cache.
    pub(crate) step: f64,
    pub(crate) miss: f64,
    /// The time of storing an element of a tile, and the additional time of one that is not stored together with its
    /// neighbours.
    pub(crate) store: f64,
    pub(crate) scattered: f64,
    /// The units of a multiprocessor that hide each other's loads.
    pub(crate) resident: u32,
}

/// The sizes of a problem, which do not depend on the tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// The rows of a product, and the terms of its sums; in a strided data gradient those of the largest phase.
    rows: usize,
    pub(crate) terms: usize,
    /// The most parts that a launch supports.
    pub(crate) most_splits: usize,
    columns: usize,
    groups: usize,
    phases: usize,
    /// The products of all phases, relative to phases that are all as large as the largest.
    share: f64,
    bytes: f64,
}

impl Sizes {
    pub(crate) fn new(conv: &Convolution, request: Request) -> Self {
        let pass = request.pass;
        let (rows, terms) = longest_product(conv, pass);
        let (_, phases) = Gather::largest(conv, pass);
        let phases = phases.map_or(1, |phases| phases.count());
        let products = |gather: Gather| gather.rows(conv) as f64 * gather.terms(conv) as f64;
        let share = match phases {
            1 => 1.0,
            _ => {
                let all: f64 = Gather::all(conv, pass).map(products).sum();
                all / (phases as f64 * rows as f64 * terms as f64).max(1.0)
            }
        };
        let (columns, groups, bytes) =
            (columns(conv, pass), conv.groups(), cost::bytes(conv, request));
        let most_splits = most_splits(conv, pass);
        Self { rows, terms, most_splits, columns, groups, phases, share, bytes }
    }
}

/// The estimated seconds of a pass with cubes of `units` units.
pub(crate) fn seconds(
    sizes: &Sizes,
    tile: &Tile,
    product: &Product,
    mainloop: Mainloop,
    (units, splits): (u32, usize),
    device: &Capabilities,
) -> f64 {
    let Sizes { rows, terms, columns, .. } = *sizes;
    let multiprocessors = device.multiprocessor_count();
    let [m, n, k] = [tile.block_m, tile.block_n, tile.block_k].map(|block| block as usize);
    let row_blocks = rows.div_ceil(m).saturating_mul(sizes.phases);
    let tiles = row_blocks * columns.div_ceil(n) * sizes.groups * splits;
    let most = tiles.div_ceil(multiprocessors);
    // With several tiles for each multiprocessor, phases with shorter sums take less time.
    let share = if most > 1 { sizes.share } else { 1.0 };
    let steps = terms.div_ceil(splits).div_ceil(k) as f64 * share;

    let speed = mainloop.products / multiprocessors as f64 / device.clock();
    let step = (m * n * k) as f64 / speed + mainloop.loads;
    let scattered = if product.stored_lanes() > 1 { 0 } else { m.min(rows) * n.min(columns) };
    let store = mainloop.store * (m * n) as f64 + mainloop.scattered * scattered as f64;

    let busy = most as f64 * (steps * step + store);
    let waves = most.div_ceil((mainloop.resident / units.max(1)).max(1) as usize) as f64;
    let shortest = mainloop.step + mainloop.miss * device.missed(sizes.bytes);
    let waiting = waves * (steps * step.max(shortest) + store + cost::START);
    let moving = cost::moving(sizes.bytes, device);
    device.launch_seconds(1) + moving.max(busy.max(waiting) / device.clock())
}
