//! Unpooling: moves maxima back to their positions; also the gradient of that.
//!
//! ```text
//! sources = −1                                                   one unit per input
//! for each output o:  sources[winner(o)] = max(itself, o)        one unit per output, atomic
//! x[i]  = y[sources[i]], or 0 if that is −1                      one unit per input
//! dy[o] = dx[winner(o)] if that source is o, or 0                one unit per output
//! ```
//!
//! If several windows name one position, the last of them wins in whatever order units run, because the maximum of
//! integers does not depend on the order. An index of −1 goes nowhere. An index that is no position of its own plane
//! goes nowhere either, and the first such element is recorded in a note, which the caller has to check when it reads
//! the result.

mod kernel;

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{DType, IndexBase, Pooling};

use crate::cube::convert::elem;
use crate::cube::unit::grid;
use crate::pool::common::buffers::buffer;
use crate::pool::common::settings::Settings;
use crate::pool::common::window::indexing;
use crate::pool::problem::{Problem, pixel_channels};

/// The note of [`launch_unpool`](super::launch_unpool) if no index was out of range.
pub const NONE_OUT_OF_RANGE: i32 = i32::MAX;

/// The settings for one unit per element, with the workspace for the sources.
pub(super) fn settings(problem: Problem<'_>, settings: Settings) -> Settings {
    // One element for each input and one for the note: every channel has winners of its own.
    let workspace = (problem.pooling.input().elements() + 1) * size_of::<i32>();
    Settings { lanes: 1, unrolled: false, workspace, ..settings }
}

/// Launches unpooling. The caller has checked the plan and the buffers: `y` and `indices` have as many elements as
/// `pooling`'s output, `x` as many as its input. Returns the note.
pub(super) fn launch(
    client: &Client,
    pooling: &Pooling,
    base: IndexBase,
    dtype: DType,
    settings: &Settings,
    [y, indices, x]: [&Handle; 3],
) -> Handle {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let settings = &scalar(settings);
    let (sources, note) = settle(client, pooling, base, settings, indices);
    if inputs > 0 {
        let (cubes, units) = grid(client, settings.units, inputs);
        // SAFETY: `settle` has checked that a source is an element of `y`.
        unsafe {
            kernel::unpool::launch_unchecked(
                client,
                cubes,
                units,
                buffer(y, outputs, settings),
                buffer(&sources, inputs, settings),
                buffer(x, inputs, settings),
                inputs as u32,
                settings.runs,
                elem(dtype),
            )
        };
    }
    note
}

/// Launches the gradient of unpooling. The caller has checked the plan and the buffers: `dx` has as many elements as
/// `pooling`'s input, `indices` and `dy` as many as its output. Returns the note.
pub(super) fn launch_backward(
    client: &Client,
    pooling: &Pooling,
    base: IndexBase,
    dtype: DType,
    settings: &Settings,
    [dx, indices, dy]: [&Handle; 3],
) -> Handle {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let settings = &scalar(settings);
    let (sources, note) = settle(client, pooling, base, settings, indices);
    if outputs > 0 {
        let (cubes, units) = grid(client, settings.units, outputs);
        // SAFETY: `place_of` returns only positions of elements of `dx`.
        unsafe {
            kernel::unpool_backward::launch_unchecked(
                client,
                cubes,
                units,
                buffer(dx, inputs, settings),
                buffer(indices, outputs, settings),
                buffer(&sources, inputs, settings),
                buffer(dy, outputs, settings),
                place_args(pooling, base),
                settings.runs,
                elem(dtype),
            )
        };
    }
    note
}

/// Determines the source of every input, and the first index that is out of range.
fn settle(
    client: &Client,
    pooling: &Pooling,
    base: IndexBase,
    settings: &Settings,
    indices: &Handle,
) -> (Handle, Handle) {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let note = client.create_from_slice(&NONE_OUT_OF_RANGE.to_ne_bytes());
    let sources = client.empty(inputs.max(1) * size_of::<i32>());
    if inputs == 0 {
        return (sources, note);
    }
    let (cubes, units) = grid(client, settings.units, inputs);
    // SAFETY: the buffer has `inputs` elements.
    unsafe {
        kernel::forget::launch_unchecked(
            client,
            cubes,
            units,
            buffer(&sources, inputs, settings),
            inputs as u32,
            settings.runs,
        )
    };
    let (cubes, units) = grid(client, settings.units, outputs);
    // SAFETY: `place_of` returns only positions of elements of `sources`.
    unsafe {
        kernel::settle_sources::launch_unchecked(
            client,
            cubes,
            units,
            buffer(indices, outputs, settings),
            buffer(&sources, inputs, settings),
            buffer(&note, 1, settings),
            place_args(pooling, base),
            settings.runs,
        )
    };
    (sources, note)
}

/// The settings with one lane: each unit handles one element.
fn scalar(settings: &Settings) -> Settings {
    Settings { lanes: 1, ..*settings }
}

/// The numbers that convert an index to a position in memory.
#[derive(CubeType, CubeLaunch)]
struct PlaceArgs {
    /// The number of output elements.
    outputs: u32,
    /// The number of channels that are adjacent in memory.
    lanes: FastDivmod<u32>,
    lane_count: u32,
    /// The number of outputs in a plane.
    windows: FastDivmod<u32>,
    /// The number of inputs in a plane.
    plane: u32,
    /// The index steps to the next sample, channel and position.
    index_batch: u32,
    index_channel: u32,
    index_position: FastDivmod<u32>,
}

fn place_args(pooling: &Pooling, base: IndexBase) -> PlaceArgsLaunch {
    let [batch, channel, position] = indexing(pooling, base);
    let lanes = pixel_channels(pooling) as u32;
    PlaceArgsLaunch::new(
        pooling.output().elements() as u32,
        lanes,
        lanes,
        pooling.output().plane() as u32,
        pooling.input().plane() as u32,
        batch,
        channel,
        position,
    )
}
