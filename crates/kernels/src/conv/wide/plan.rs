//! Which problems a processor computes in wide vectors, and the rows and vectors that a thread has of one.

use windowpane_geometry::{Convolution, LIMIT, Layout, Tile};

use super::packing;
use crate::Limits;
use crate::conv::gather::columns;
use crate::conv::plan::rules::{
    MOST_ROWS, check_neighbours, check_registers, has_few_phases, widest_register,
};
use crate::conv::plan::{Pass, PlanError, Request};

/// Whether there is such a kernel for a problem and a device.
pub(in crate::conv) fn can(conv: &Convolution, request: Request, limits: &Limits) -> bool {
    let lanes = widest_register(request.dtype, limits) as usize;
    limits.cores.is_some()
        && match request.pass {
            Pass::Forward | Pass::Data => {
                packing(conv, request.pass, lanes).elements() <= LIMIT
                    && has_few_phases(conv, request.pass)
            }
            Pass::Filter => true,
            Pass::Bias => false,
        }
}

/// As many rows by vectors of sums as a processor's registers hold, with a term's weights and the
/// number that they are multiplied with beside them.
pub(in crate::conv) fn tile(conv: &Convolution, request: Request, limits: &Limits) -> Tile {
    let columns = columns(conv, request.pass);
    let lanes = (widest_register(request.dtype, limits) as usize).min(match request.pass {
        // Vectors of the output's gradient, as it lies.
        Pass::Filter => 1 << together(conv).trailing_zeros().min(30),
        _ => columns.next_power_of_two(),
    });
    // 64-byte vectors come with 32 registers, shorter ones with 16.
    let (registers, most) = if limits.load_bytes >= 64 { (31, 4) } else { (15, 2) };
    let vectors = columns.div_ceil(lanes).min(most);
    let rows = ((registers - 1 - vectors) / vectors).min(MOST_ROWS);
    Tile {
        block_m: rows as u32,
        block_n: (vectors * lanes) as u32,
        block_k: 1,
        ratio_m: rows as u32,
        ratio_n: vectors as u32,
        elems_per_thread: lanes as u32,
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
    match request.pass {
        Pass::Filter => check_neighbours(tile.elems_per_thread, together(conv)),
        _ => Ok(()),
    }
}

/// The filters of a group that lie together in memory.
fn together(conv: &Convolution) -> usize {
    match conv.layout() {
        Layout::ChannelsLast => conv.filter().count() / conv.groups(),
        Layout::ChannelsFirst => 1,
    }
}
