//! Few windows of many taps: a team of units a window, whose neighbours read neighbouring memory.
//!
//! ```text
//! for each output (n, o, c):                    one team of T units
//!     unit m folds the taps m, m + T, m + 2T, …      several loads in flight
//!     the team's folds are folded in shared memory    T/2 pairs, T/4 pairs, …
//! ```
//!
//! Channels-last the lanes of a vector are channels, and neighbouring units are neighbouring vectors
//! of the same tap. Channels-first neighbouring units are neighbouring taps; and where a window is the
//! whole plane its taps are the plane as it lies in memory, read in vectors where they divide it.
//!
//! Where even so there are too few units, the taps are cut into parts, each with teams of its own,
//! and a second launch folds the parts. Taps are folded out of order, so that of equal maxima the one
//! at the lower position is the winner, and of NaN the one at the higher.

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Axis, DType, Pooling};

use super::launch::{optional_vectors, vectors};
use super::plan::{Output, Plan, Reduction, pixel_channels, widest_divisor};
use super::window::{
    Accumulator, Form as Tap, Problem, Site, accumulator_at, finish, fold, merge, plane_position,
    problem_args, site_of,
};
use crate::axis::{AxisArgs, AxisForm, Taps};
use crate::dtype::{elem, widen};
use crate::unit::{grid, unit_position};

/// The loads of a unit that are in flight at once.
const FLIGHT: u32 = 4;

/// As many units as fill a large GPU several times over.
const ENOUGH_UNITS: usize = 1 << 17;

/// How the taps of a problem are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Teams {
    /// The elements that a unit reads at once, and whether they are neighbours of one plane.
    pub(super) lanes: usize,
    pub(super) across: bool,
    /// The units of a team.
    pub(super) team: u32,
    /// The parts that the taps are cut into.
    pub(super) parts: usize,
}

impl Teams {
    /// Chooses teams for a problem; `lanes` divide a pixel, `widest` is the most that are loaded at
    /// once.
    pub(super) fn new(pooling: &Pooling, units: u32, lanes: usize, widest: usize) -> Self {
        let across = pixel_channels(pooling) == 1 && is_flat(pooling);
        let lanes = if across { widest_divisor(pooling.grid().taps(), widest) } else { lanes };
        let taps = pooling.grid().taps() / if across { lanes } else { 1 };
        let outputs = pooling.output().elements() / if across { 1 } else { lanes };
        let power = |n: usize| 1usize << n.max(1).ilog2();
        // Neighbouring units share a pixel's vectors before they share its taps.
        let pixel = (pixel_channels(pooling) / lanes).next_power_of_two().min(32);
        let pixel = if across { 1 } else { pixel };
        // Each unit of a team has a few taps, and the last fold is not most of the work.
        let most = power(taps / FLIGHT as usize).min(power(units as usize / pixel));
        let wanted = if pixel_channels(pooling) == 1 {
            most
        } else {
            (ENOUGH_UNITS / outputs.max(1)).max(1).next_power_of_two()
        };
        let team = wanted.min(most);
        let parts = (ENOUGH_UNITS / (outputs * team).max(1)).clamp(1, MOST_PARTS);
        let parts = parts.min(taps / (team * 4 * FLIGHT as usize)).max(1);
        Self { lanes, across, team: team as u32, parts }
    }
}

/// The most parts that the taps of a window are cut into: a unit folds them one by one.
pub(super) const MOST_PARTS: usize = 128;

/// Whether a window is the whole plane, so that its taps lie in memory as they are counted.
pub(super) fn is_flat(pooling: &Pooling) -> bool {
    let whole = |axis: &Axis| {
        let all = axis.output() == 1 && axis.before() == 0 && axis.kernel() == axis.input();
        all && (axis.dilation() == 1 || axis.kernel() == 1)
    };
    pooling.grid().axes().iter().all(whole)
}

/// The bytes that a cube's units share.
pub(super) fn shared_bytes(reduction: Reduction, plan: &Plan) -> usize {
    plan.units as usize * written(plan) * partial_bytes(reduction, plan)
}

/// The bytes of the parts.
pub(super) fn workspace(pooling: &Pooling, reduction: Reduction, plan: &Plan) -> usize {
    let parts = if plan.parts > 1 { plan.parts } else { 0 };
    parts * pooling.output().elements() * partial_bytes(reduction, plan)
}

fn partial_bytes(reduction: Reduction, plan: &Plan) -> usize {
    let index = if is_indexed(reduction) { DType::I32.size() } else { 0 };
    plan.accumulator.size() + index
}

fn is_indexed(reduction: Reduction) -> bool {
    matches!(reduction, Reduction::Max(Output::ValuesAndIndices(_)))
}

/// The lanes that are written: those of a plane become one number.
fn written(plan: &Plan) -> usize {
    if plan.across { 1 } else { plan.lanes }
}

/// The numbers of the teams, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct TeamArgs {
    /// The units that are neighbours: those of a team, or the teams of a cube.
    neighbours: FastDivmod<u32>,
    /// The units of a team, the teams of a cube, and how often a team is halved.
    team: u32,
    teams: u32,
    halvings: u32,
    /// The cubes that compute one part, and the parts.
    cubes: FastDivmod<u32>,
    parts: u32,
    /// The taps of a window and of a part of it, in vectors where the lanes lie along them.
    taps: u32,
    taps_a_part: u32,
    /// The taps that a team has in flight.
    round: FastDivmod<u32>,
    /// The taps on each axis but the outermost.
    kernel_height: FastDivmod<u32>,
    kernel_width: FastDivmod<u32>,
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    tap: Tap,
    /// Whether the taps are the plane as it lies in memory.
    flat: bool,
    /// Whether the lanes lie along the taps.
    across: bool,
    /// Whether neighbouring units are neighbouring vectors, not neighbouring taps.
    pixels: bool,
    units: u32,
}

impl Form {
    fn new(pooling: &Pooling, reduction: Reduction, dtype: DType, plan: &Plan) -> Self {
        Self {
            tap: Tap::new(pooling, reduction, dtype, &each(plan)),
            flat: is_flat(pooling),
            across: plan.across,
            pixels: pixel_channels(pooling) > 1,
            units: plan.units,
        }
    }

    /// The units whose positions are shared; one, where there are none to share.
    fn shared_positions(&self) -> usize {
        if self.tap.fold.has_index() { self.units as usize } else { 1 }
    }
}

/// Launches the teams, and what folds their parts; the caller has checked plan and buffers.
pub(super) fn launch(
    client: &Client,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    buffers: [&Handle; 2],
    indices: Option<&Handle>,
) {
    match plan.parts {
        1 => launch_whole(client, pooling, reduction, dtype, plan, buffers, indices),
        _ => launch_parts(client, pooling, reduction, dtype, plan, buffers, indices),
    }
}

/// Launches teams that have whole windows.
fn launch_whole(
    client: &Client,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    [input, output]: [&Handle; 2],
    indices: Option<&Handle>,
) {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let (written, cubes) = (written(plan), cubes_of_a_part(pooling, plan));
    let (count, dim) = grid(client, plan.units, cubes * plan.units as usize);
    // SAFETY: taps outside a window are moved inside before they are read, and teams without a window
    // write nothing.
    unsafe {
        whole::launch_unchecked(
            client,
            count,
            dim,
            plan.lanes,
            written,
            vectors(input, inputs, plan.lanes),
            vectors(output, outputs, written),
            optional_vectors(indices, outputs, written),
            problem_args(pooling, reduction, dtype, &each(plan)),
            team_args(pooling, plan, cubes),
            Form::new(pooling, reduction, dtype, plan),
            elem(dtype),
            elem(plan.accumulator),
        )
    };
}

/// Launches teams that have parts of windows, and then what folds these.
fn launch_parts(
    client: &Client,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
    [input, output]: [&Handle; 2],
    indices: Option<&Handle>,
) {
    let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
    let (written, cubes) = (written(plan), cubes_of_a_part(pooling, plan));
    let form = Form::new(pooling, reduction, dtype, plan);
    let elements = plan.parts * outputs;
    let values = client.empty(elements * plan.accumulator.size());
    let positions = is_indexed(reduction).then(|| client.empty(elements * DType::I32.size()));
    let (count, dim) = grid(client, plan.units, cubes * plan.parts * plan.units as usize);
    // SAFETY: taps outside a window or its part are moved inside before they are read, teams without a
    // window write nothing, and the parts are as many as the plan says.
    unsafe {
        part::launch_unchecked(
            client,
            count,
            dim,
            plan.lanes,
            written,
            vectors(input, inputs, plan.lanes),
            vectors(&values, elements, written),
            optional_vectors(positions.as_ref(), elements, written),
            problem_args(pooling, reduction, dtype, &each(plan)),
            team_args(pooling, plan, cubes),
            form,
            elem(dtype),
            elem(plan.accumulator),
        )
    };
    let (count, dim) = grid(client, plan.units, outputs / written);
    // SAFETY: a unit past the last result ends.
    unsafe {
        fold_parts::launch_unchecked(
            client,
            count,
            dim,
            written,
            vectors(&values, elements, written),
            optional_vectors(positions.as_ref(), elements, written),
            vectors(output, outputs, written),
            optional_vectors(indices, outputs, written),
            problem_args(pooling, reduction, dtype, &each(plan)),
            plan.parts as u32,
            form,
            elem(dtype),
            elem(plan.accumulator),
        )
    };
}

/// The cubes whose teams have a part of every window.
fn cubes_of_a_part(pooling: &Pooling, plan: &Plan) -> usize {
    let results = pooling.output().elements() / written(plan);
    results.div_ceil((plan.units / plan.team) as usize)
}

/// The plan as it sees results: a team's lanes along a plane leave one.
fn each(plan: &Plan) -> Plan {
    Plan { lanes: written(plan), across: false, unrolled: false, ..*plan }
}

fn team_args(pooling: &Pooling, plan: &Plan, cubes: usize) -> TeamArgsLaunch {
    let axes = pooling.grid().axes();
    let teams = plan.units / plan.team;
    let taps = pooling.grid().taps() / if plan.across { plan.lanes } else { 1 };
    let channels_last = pixel_channels(pooling) > 1;
    TeamArgsLaunch::new(
        if channels_last { teams } else { plan.team },
        plan.team,
        teams,
        plan.team.ilog2(),
        cubes as u32,
        plan.parts as u32,
        taps as u32,
        taps.div_ceil(plan.parts) as u32,
        plan.team * FLIGHT,
        axes[AXES - 2].kernel() as u32,
        axes[AXES - 1].kernel() as u32,
    )
}

/// Each team's window, folded and written.
#[cube(launch_unchecked)]
fn whole<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, M>],
    mut indices: ComptimeOption<Box<[Vector<i32, M>]>>,
    problem: &Problem,
    args: &TeamArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let member = member_of(problem, args, form);
    let site = site_of(problem, member.vector, form.tap);
    let folded = team::<S, A, N, M>(input, problem, args, &member, &site, form);
    if member.writes {
        finish::<S, A, M>(output, &mut indices, problem, &site, &folded, member.vector, form.tap);
    }
}

/// Each team's part of a window, folded.
#[cube(launch_unchecked)]
fn part<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, N>],
    values: &mut [Vector<A, M>],
    mut positions: ComptimeOption<Box<[Vector<i32, M>]>>,
    problem: &Problem,
    args: &TeamArgs,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let member = member_of(problem, args, form);
    let site = site_of(problem, member.vector, form.tap);
    let folded = team::<S, A, N, M>(input, problem, args, &member, &site, form);
    if member.writes {
        let at = (member.part * problem.vectors + member.vector) as usize;
        values[at] = folded.value;
        #[comptime]
        match &mut positions {
            ComptimeOption::Some(positions) => positions[at] = folded.position,
            ComptimeOption::None => {}
        }
    }
}

/// The parts of each window, folded and written.
#[cube(launch_unchecked)]
fn fold_parts<S: Float, A: Float, M: Size>(
    values: &[Vector<A, M>],
    positions: ComptimeOption<Box<[Vector<i32, M>]>>,
    output: &mut [Vector<S, M>],
    mut indices: ComptimeOption<Box<[Vector<i32, M>]>>,
    problem: &Problem,
    parts: u32,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let vector = unit_position(form.tap.runs);
    if vector >= problem.vectors {
        terminate!();
    }
    let mut folded = part_at::<A, M>(values, &positions, vector);
    let rounds = (parts - 1) / FLIGHT;
    for round in 0..rounds {
        let mut next = Sequence::<Accumulator<A, M>>::new();
        #[unroll]
        for i in 0..FLIGHT {
            let part = 1 + round * FLIGHT + i;
            next.push(part_at::<A, M>(values, &positions, part * problem.vectors + vector));
        }
        #[unroll]
        for i in 0..FLIGHT {
            add::<A, M>(&mut folded, next.index(i as usize), form);
        }
    }
    for part in 1 + rounds * FLIGHT..parts {
        let next = part_at::<A, M>(values, &positions, part * problem.vectors + vector);
        add::<A, M>(&mut folded, &next, form);
    }
    let site = site_of(problem, vector, form.tap);
    finish::<S, A, M>(output, &mut indices, problem, &site, &folded, vector, form.tap);
}

#[cube]
fn add<A: Float, M: Size>(
    folded: &mut Accumulator<A, M>,
    next: &Accumulator<A, M>,
    #[comptime] form: Form,
) {
    let before = Accumulator::<A, M> { value: folded.value, position: folded.position };
    let both = merge::<A, M>(&before, next, form.tap.fold, form.tap.maximum, form.tap.float);
    folded.value = both.value;
    folded.position = both.position;
}

#[cube]
fn part_at<A: Float, M: Size>(
    values: &[Vector<A, M>],
    positions: &ComptimeOption<Box<[Vector<i32, M>]>>,
    at: u32,
) -> Accumulator<A, M> {
    #[comptime]
    let position = match positions {
        ComptimeOption::Some(positions) => positions[at as usize],
        ComptimeOption::None => Vector::new(0i32),
    };
    Accumulator::<A, M> { value: values[at as usize], position }
}

/// What a unit is among the teams.
#[derive(CubeType)]
struct Member {
    /// Its number in the team.
    number: u32,
    /// The output vector of the team, or one that is there.
    vector: u32,
    part: u32,
    /// Whether the team has a window and this unit is one of it, and whether it is the first.
    works: bool,
    writes: bool,
}

#[cube]
fn member_of(problem: &Problem, args: &TeamArgs, #[comptime] form: Form) -> Member {
    let (quotient, remainder) = args.neighbours.div_mod(UNIT_POS);
    let (number, team) =
        if comptime!(form.pixels) { (quotient, remainder) } else { (remainder, quotient) };
    let (part, cube) = args.cubes.div_mod(CUBE_POS as u32);
    let vector = cube * args.teams + team;
    let works =
        number < args.team && team < args.teams && part < args.parts && vector < problem.vectors;
    Member {
        number,
        vector: min(vector, problem.vectors - 1),
        part,
        works,
        writes: works && number == 0,
    }
}

/// Folds the taps of a team: the result is its first unit's.
#[cube]
fn team<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, N>],
    problem: &Problem,
    args: &TeamArgs,
    member: &Member,
    site: &Site,
    #[comptime] form: Form,
) -> Accumulator<A, M> {
    let mut folded = accumulator_at::<A, N>(problem, site, form.tap);
    let nothing = accumulator_at::<A, N>(problem, site, form.tap);
    if member.works {
        let first = member.part * args.taps_a_part;
        let end = min(first + args.taps_a_part, args.taps);
        let (rounds, rest) = args.round.div_mod(max(end, first) - first);
        let mut t = first + member.number;
        for _ in 0..rounds {
            round::<S, A, N>(input, problem, args, site, &mut folded, &nothing, t, end, true, form);
            t += args.team * comptime!(FLIGHT);
        }
        if rest > 0 {
            round::<S, A, N>(
                input,
                problem,
                args,
                site,
                &mut folded,
                &nothing,
                t,
                end,
                false,
                form,
            );
        }
    }
    let mut lanes = lanes_folded::<A, N, M>(&folded, form);

    let mut values = Shared::<[Vector<A, M>]>::new_slice(comptime!(form.units as usize));
    let mut positions = Shared::<[Vector<i32, M>]>::new_slice(comptime!(form.shared_positions()));
    let apart = if comptime!(form.pixels) { args.teams } else { 1u32.runtime() };
    values[UNIT_POS as usize] = lanes.value;
    if comptime!(form.tap.fold.has_index()) {
        positions[UNIT_POS as usize] = lanes.position;
    }
    sync_cube();
    for halving in 0..args.halvings {
        let half = args.team >> (halving + 1);
        if member.works && member.number < half {
            let at = (UNIT_POS + half * apart) as usize;
            let position = if comptime!(form.tap.fold.has_index()) {
                positions[at]
            } else {
                Vector::new(0i32)
            };
            let next = Accumulator::<A, M> { value: values[at], position };
            add::<A, M>(&mut lanes, &next, form);
            values[UNIT_POS as usize] = lanes.value;
            if comptime!(form.tap.fold.has_index()) {
                positions[UNIT_POS as usize] = lanes.position;
            }
        }
        sync_cube();
    }
    lanes
}

/// Folds the taps `t`, `t` + T, … that a unit has in flight at once.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
fn round<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    problem: &Problem,
    args: &TeamArgs,
    site: &Site,
    folded: &mut Accumulator<A, N>,
    nothing: &Accumulator<A, N>,
    t: u32,
    end: u32,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) {
    let mut taps = Sequence::<Accumulator<A, N>>::new();
    #[unroll]
    for i in 0..FLIGHT {
        let t = t + i * args.team;
        let there = if comptime!(whole) { t } else { min(t, end - 1) };
        let place = place_of::<N>(problem, args, site, there, form);
        let value = widen::<S, A, N>(input[place.vector as usize], form.tap.widened);
        let inside = place.inside && (comptime!(whole) || t == there);
        if comptime!(whole && form.flat) {
            taps.push(Accumulator::<A, N> { value, position: place.position });
        } else {
            taps.push(Accumulator::<A, N> {
                value: select(inside, value, nothing.value),
                position: select(inside, place.position, nothing.position),
            });
        }
    }
    #[unroll]
    for i in 0..FLIGHT {
        fold::<A, N>(folded, taps.index(i as usize), form.tap);
    }
}

/// Where a tap is.
#[derive(CubeType)]
struct Place<N: Size> {
    /// Its vector, or one that is there.
    vector: u32,
    position: Vector<i32, N>,
    /// Whether it is inside the input.
    inside: bool,
}

#[cube]
fn place_of<N: Size>(
    problem: &Problem,
    args: &TeamArgs,
    site: &Site,
    t: u32,
    #[comptime] form: Form,
) -> Place<N> {
    let plane = (problem.depth.input * problem.height.input * problem.width.input) as u32;
    if comptime!(form.across) {
        let lanes = N::value() as u32;
        let mut position = Vector::<i32, N>::new((t * lanes) as i32);
        #[unroll]
        for i in 0..N::value() {
            position.insert(i, (t * lanes) as i32 + i as i32);
        }
        Place::<N> { vector: site.sample * args.taps + t, position, inside: true.runtime() }
    } else if comptime!(form.flat) {
        let vector = (site.sample * plane + t) * problem.pixel_vectors + site.lane;
        Place::<N> { vector, position: Vector::new(t as i32), inside: true.runtime() }
    } else {
        let (row, w) = args.kernel_width.div_mod(t);
        let (d, h) = args.kernel_height.div_mod(row);
        let position = plane_position(
            problem,
            inner(&problem.depth, &site.depth, d, form.tap.depth),
            inner(&problem.height, &site.height, h, form.tap.height),
            inner(&problem.width, &site.width, w, form.tap.width),
        );
        let inside =
            is_inside(&site.depth, d) && is_inside(&site.height, h) && is_inside(&site.width, w);
        let vector = (site.sample * plane + position as u32) * problem.pixel_vectors + site.lane;
        Place::<N> { vector, position: Vector::new(position), inside }
    }
}

/// The coordinate of tap `t`, or the nearest one inside.
#[cube]
fn inner(axis: &AxisArgs, taps: &Taps, t: u32, #[comptime] form: AxisForm) -> i32 {
    let t = t as i32;
    let x = if comptime!(form.dilated) { taps.start + t * axis.dilation } else { taps.start + t };
    if comptime!(form.clipped) { min(max(x, 0i32), axis.input - 1) } else { x }
}

#[cube]
fn is_inside(taps: &Taps, t: u32) -> bool {
    t as i32 >= taps.first && (t as i32) < taps.end
}

/// The lanes as they are written: those along the taps folded into one.
#[cube]
fn lanes_folded<A: Float, N: Size, M: Size>(
    folded: &Accumulator<A, N>,
    #[comptime] form: Form,
) -> Accumulator<A, M> {
    let mut lanes = Accumulator::<A, M> {
        value: Vector::new(folded.value.extract(0usize)),
        position: Vector::new(folded.position.extract(0usize)),
    };
    #[unroll]
    for i in 1..N::value() {
        if comptime!(form.across) {
            let next = Accumulator::<A, M> {
                value: Vector::new(folded.value.extract(i)),
                position: Vector::new(folded.position.extract(i)),
            };
            add::<A, M>(&mut lanes, &next, form);
        } else {
            lanes.value.insert(i, folded.value.extract(i));
            lanes.position.insert(i, folded.position.extract(i));
        }
    }
    lanes
}
