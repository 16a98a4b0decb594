//! Unpooling: maxima go back to where they were, and the gradient of that.
//!
//! ```text
//! sources = −1                                                   one unit an input
//! for each output o:  sources[winner(o)] = max(itself, o)        one unit an output, atomic
//! x[i]  = y[sources[i]], or 0 where that is −1                   one unit an input
//! dy[o] = dx[winner(o)] if that source is o, or 0                one unit an output
//! ```
//!
//! Where several windows name one place the last of them wins, in whatever order units run: integers
//! have a greatest. An index of −1 goes nowhere. One that is no position of its own plane goes
//! nowhere either, and its element is noted, the first of several: who reads the result has to look.

use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{DType, IndexBase, Pooling};

use super::launch::{buffer, check_buffers};
use super::plan::{Algorithm, Output, Plan, PlanError, Reduction, pixel_channels};
use super::window::indexing;
use crate::dtype::elem;
use crate::unit::{grid, unit_position};
use crate::{Limits, Target};

/// What the note of [`launch_unpool`] holds where no index was out of range.
pub const NONE_OUT_OF_RANGE: i32 = i32::MAX;

impl Plan {
    /// Chooses how to unpool, and how to go back.
    pub fn unpool(
        pooling: &Pooling,
        base: IndexBase,
        dtype: DType,
        limits: &Limits,
    ) -> Result<Self, PlanError> {
        let plan = Self::with(Algorithm::Direct, pooling, reduction(base), dtype, limits)?;
        // Every channel has winners of its own.
        let workspace = (pooling.input().elements() + 1) * size_of::<i32>();
        Ok(Self { lanes: 1, unrolled: false, workspace, ..plan })
    }
}

fn reduction(base: IndexBase) -> Reduction {
    Reduction::Max(Output::ValuesAndIndices(base))
}

/// Launches unpooling: `y` and `indices` have the elements of `pooling`'s output, `x` those of its
/// input.
///
/// Returns one `i32`, to be read with the result: the first element whose index is out of range, or
/// [`NONE_OUT_OF_RANGE`].
pub fn launch_unpool(
    target: Target<'_>,
    pooling: &Pooling,
    base: IndexBase,
    dtype: DType,
    plan: &Plan,
    [y, indices, x]: [&Handle; 3],
) -> Result<Handle, PlanError> {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    check_buffers(dtype, [(y, outputs), (x, inputs)])?;
    let (sources, note) = settle(target, pooling, base, dtype, plan, indices)?;
    if inputs > 0 {
        let (client, plan) = (target.client, &scalar(plan));
        let (cubes, units) = grid(client, plan.units, inputs);
        // SAFETY: `settle` has checked that a source is an element of `y`.
        unsafe {
            unpool::launch_unchecked(
                client,
                cubes,
                units,
                buffer(y, outputs, plan),
                buffer(&sources, inputs, plan),
                buffer(x, inputs, plan),
                inputs as u32,
                plan.runs,
                elem(dtype),
            )
        };
    }
    Ok(note)
}

/// Launches the gradient of unpooling: `dx` has the elements of `pooling`'s input, `indices` and `dy`
/// those of its output. Returns what [`launch_unpool`] does.
pub fn launch_unpool_backward(
    target: Target<'_>,
    pooling: &Pooling,
    base: IndexBase,
    dtype: DType,
    plan: &Plan,
    [dx, indices, dy]: [&Handle; 3],
) -> Result<Handle, PlanError> {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    check_buffers(dtype, [(dy, outputs), (dx, inputs)])?;
    let (sources, note) = settle(target, pooling, base, dtype, plan, indices)?;
    if outputs > 0 {
        let (client, plan) = (target.client, &scalar(plan));
        let (cubes, units) = grid(client, plan.units, outputs);
        // SAFETY: `place_of` gives elements of `dx` only.
        unsafe {
            unpool_backward::launch_unchecked(
                client,
                cubes,
                units,
                buffer(dx, inputs, plan),
                buffer(indices, outputs, plan),
                buffer(&sources, inputs, plan),
                buffer(dy, outputs, plan),
                place_args(pooling, base),
                plan.runs,
                elem(dtype),
            )
        };
    }
    Ok(note)
}

/// Finds the source of every input, and the first index that is out of range.
fn settle(
    Target { client, limits }: Target<'_>,
    pooling: &Pooling,
    base: IndexBase,
    dtype: DType,
    plan: &Plan,
    indices: &Handle,
) -> Result<(Handle, Handle), PlanError> {
    plan.check(pooling, reduction(base), dtype, limits)?;
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    check_buffers(DType::I32, [(indices, outputs)])?;
    let note = client.create_from_slice(&NONE_OUT_OF_RANGE.to_ne_bytes());
    let sources = client.empty(inputs.max(1) * size_of::<i32>());
    if inputs == 0 {
        return Ok((sources, note));
    }
    let plan = &scalar(plan);
    let (cubes, units) = grid(client, plan.units, inputs);
    // SAFETY: the buffer has `inputs` elements.
    unsafe {
        forget::launch_unchecked(
            client,
            cubes,
            units,
            buffer(&sources, inputs, plan),
            inputs as u32,
            plan.runs,
        )
    };
    let (cubes, units) = grid(client, plan.units, outputs);
    // SAFETY: `place_of` gives elements of `sources` only.
    unsafe {
        settle_sources::launch_unchecked(
            client,
            cubes,
            units,
            buffer(indices, outputs, plan),
            buffer(&sources, inputs, plan),
            buffer(&note, 1, plan),
            place_args(pooling, base),
            plan.runs,
        )
    };
    Ok((sources, note))
}

/// The plan with one lane: its units handle an element each.
fn scalar(plan: &Plan) -> Plan {
    Plan { lanes: 1, ..*plan }
}

/// The numbers by which an index is a place in memory.
#[derive(CubeType, CubeLaunch)]
struct PlaceArgs {
    /// The output elements.
    outputs: u32,
    /// The channels that lie together.
    lanes: FastDivmod<u32>,
    lane_count: u32,
    /// The outputs of a plane.
    windows: FastDivmod<u32>,
    /// The inputs of a plane.
    plane: u32,
    /// The steps of an index to the next sample, channel and position.
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

/// Where in memory the input is that the index of output `at` names: −1 for none, −2 for no such.
#[cube]
fn place_of(args: &PlaceArgs, at: u32, index: i32) -> i32 {
    let (pixel, lane) = args.lanes.div_mod(at);
    let outer = args.windows.div(pixel);
    let base = (outer * args.index_batch + lane * args.index_channel) as i32;
    // Of an index below its base: any number that is not negative.
    let beyond = max(index, base) - base;
    let (position, rest) = args.index_position.div_mod(beyond as u32);
    let is_place = index >= base && rest == 0 && position < args.plane;
    let place = (outer * args.plane + position) * args.lane_count + lane;
    let missing = select(index == -1, -1i32, -2i32);
    select(is_place, place as i32, missing)
}

#[cube(launch_unchecked)]
fn forget(sources: &mut [i32], inputs: u32, #[comptime] runs: bool) {
    let at = unit_position(runs);
    if at >= inputs {
        terminate!();
    }
    sources[at as usize] = -1;
}

#[cube(launch_unchecked)]
fn settle_sources(
    indices: &[i32],
    sources: &[Atomic<i32>],
    note: &[Atomic<i32>],
    args: &PlaceArgs,
    #[comptime] runs: bool,
) {
    let at = unit_position(runs);
    if at >= args.outputs {
        terminate!();
    }
    let place = place_of(args, at, indices[at as usize]);
    if place >= 0 {
        sources[place as usize].fetch_max(at as i32);
    } else if place == -2 {
        note[0].fetch_min(at as i32);
    }
}

#[cube(launch_unchecked)]
fn unpool<S: Numeric>(
    y: &[S],
    sources: &[i32],
    x: &mut [S],
    inputs: u32,
    #[comptime] runs: bool,
    #[define(S)] _stored: ElemType,
) {
    let at = unit_position(runs);
    if at >= inputs {
        terminate!();
    }
    let source = sources[at as usize];
    // There is an element 0 to read where there is no source.
    let found = y[max(source, 0) as usize];
    x[at as usize] = select(source >= 0, found, S::from_int(0));
}

#[cube(launch_unchecked)]
fn unpool_backward<S: Numeric>(
    dx: &[S],
    indices: &[i32],
    sources: &[i32],
    dy: &mut [S],
    args: &PlaceArgs,
    #[comptime] runs: bool,
    #[define(S)] _stored: ElemType,
) {
    let at = unit_position(runs);
    if at >= args.outputs {
        terminate!();
    }
    let place = place_of(args, at, indices[at as usize]);
    let there = max(place, 0) as usize;
    let counts = place >= 0 && sources[there] == at as i32;
    dy[at as usize] = select(counts, dx[there], S::from_int(0));
}
