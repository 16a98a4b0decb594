//! Estimates the time from the instructions of all units, and from the latency of one unit's loads, each of which waits
//! for the one before.

use windowpane_geometry::Layout;

use crate::conv::common::cost;
use crate::conv::common::gather::{inner, weight_steps};
use crate::conv::problem::{Pass, Task, results, windows};
use crate::cube::SECTOR;

/// The cycles from one term of a unit's sum to the next, and the instructions of a term.
const LATENCY: f64 = 55.0;
const TERM: f64 = 8.0;

/// The time of finding a tap's pixel, or a window of a weight gradient, in terms; and that of finding an element.
const TAP: f64 = 8.0;
const ELEMENT: f64 = 50.0;

/// The instructions that take as long as a sector of memory for a plane.
const OF_SECTOR: f64 = 2.0;

pub(super) fn seconds(task: Task<'_>, splits: usize) -> f64 {
    let Task { conv, request, device } = task;
    let pass = request.pass;
    let (taps, terms) = match pass {
        Pass::Forward | Pass::Data => {
            let taps = conv.filter().taps();
            (taps, taps * inner(conv, pass))
        }
        Pass::Weight | Pass::Bias => {
            (windows(conv).div_ceil(splits), windows(conv).div_ceil(splits))
        }
    };
    // Units with neighbouring filters read weights that are not neighbours, each in a sector of its own. With channels
    // first, neighbouring units read neighbouring pixels.
    let step = match (pass, conv.layout()) {
        (Pass::Weight | Pass::Bias, _) => 0,
        (_, Layout::ChannelsFirst) => 1,
        _ if conv.filter().count() > conv.groups() => weight_steps(conv, pass).column,
        _ => weight_steps(conv, pass).group,
    };
    let spread = (step * request.dtype.size()).min(SECTOR);
    let (taps, terms) = (taps as f64 * TAP, terms as f64);
    let instructions = TERM * (ELEMENT + taps + terms) + OF_SECTOR * spread as f64 * terms;
    let elements = (results(conv, pass) * splits) as f64;
    let units = device.multiprocessor_count() as f64 * device.units_per_cycle();
    // The cores of a processor compute one element after the other.
    let turns = device.cores.map_or(1.0, |cores| (elements / f64::from(cores)).max(1.0));
    let cycles = (elements * instructions / units).max(turns * LATENCY * (taps + terms));
    let moving = cost::moving(cost::bytes(conv, request), device);
    device.launch_seconds(1) + moving.max(cycles / device.clock())
}
