//! Which problems are depthwise, and the block of rows and lines that a unit has of one.

use windowpane_geometry::{AXES, Convolution, Layout, Tile};

use crate::Limits;
use crate::conv::plan::rules::{
    MOST_ROWS, check_neighbours, check_registers, has_few_phases, has_few_taps, widest_vector,
};
use crate::conv::plan::{Pass, PlanError, Request};

/// Whether there is such a kernel for a problem.
pub(in crate::conv) fn can(conv: &Convolution, request: Request) -> bool {
    let one_each =
        conv.filter().channels() == 1 && conv.filter().count() == conv.input().channels();
    one_each
        && matches!(request.pass, Pass::Forward | Pass::Data)
        && has_few_taps(conv)
        && has_few_phases(conv, request.pass)
}

/// As many rows as leave a processor's registers room for the weights of a row of taps. On a GPU, where
/// neighbours in a plane are channels, a block of rows and lines; where they are not, a small one, so that
/// what they load lies nearer.
pub(in crate::conv) fn tile(conv: &Convolution, request: Request, limits: &Limits) -> Tile {
    let widest = widest_vector(request.dtype, limits);
    let lanes = 1 << neighbours(conv).trailing_zeros().min(widest.ilog2());
    // 64-byte vectors come with 32 registers, shorter ones with 16.
    let registers: usize = if limits.load_bytes >= 64 { 30 } else { 14 };
    let taps = conv.grid().axes()[AXES - 1].kernel();
    let (rows, lines) = match (limits.cores, conv.layout()) {
        // Lines of images are most often 7 vectors long.
        (Some(_), Layout::ChannelsFirst) if lanes > 1 => (if registers > 14 { 7 } else { 4 }, 2),
        (Some(_), _) => (registers.saturating_sub(taps + 1).clamp(4, MOST_ROWS), 1),
        (None, Layout::ChannelsLast) => (8, 2),
        (None, Layout::ChannelsFirst) => (4, 2),
    };
    Tile {
        block_m: rows as u32,
        block_n: lines * lanes,
        block_k: 1,
        ratio_m: rows as u32,
        ratio_n: lines,
        elems_per_thread: lanes,
        stages: 1,
    }
}

/// Refuses a tile that there is no such kernel for.
pub(in crate::conv) fn check(
    tile: &Tile,
    conv: &Convolution,
    request: Request,
    limits: &Limits,
) -> Result<(), PlanError> {
    check_registers(tile, request, limits)?;
    check_neighbours(tile.elems_per_thread, neighbours(conv))
}

/// The elements that lie together in memory and may be the lanes of a vector.
fn neighbours(conv: &Convolution) -> usize {
    let width = &conv.grid().axes()[AXES - 1];
    match conv.layout() {
        Layout::ChannelsLast => conv.input().channels(),
        Layout::ChannelsFirst if width.stride() == 1 => {
            1 << width.input().trailing_zeros().min(width.output().trailing_zeros())
        }
        Layout::ChannelsFirst => 1,
    }
}
