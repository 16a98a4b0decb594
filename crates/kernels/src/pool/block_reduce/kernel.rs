//! The kernels of teams: they reduce whole windows, parts of windows, and the results of these parts. In the kernel of
//! staged planes, each unit reduces a plane by itself.

use cubecl::prelude::*;

use super::{FLIGHT, Form, STAGED, TeamArgs};
use crate::cube::axis::{AxisArgs, AxisForm, Taps};
use crate::cube::convert::widen;
use crate::cube::optional::Optional;
use crate::cube::unit::unit_position;
use crate::pool::common::window::{
    Accumulator, ProblemArgs, Site, accumulator_at, fold, merge, plane_position,
};

/// Each team reduces a window and writes the result.
#[cube(launch_unchecked)]
pub(super) fn whole<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, M>],
    mut indices: Optional<Box<[Vector<i32, M>]>>,
    args: &TeamArgs,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let member = member_of(args, form);
    let site = Site::new(&args.problem, member.vector, form.window);
    let folded = team::<S, A, N, M>(input, args, &member, &site, form);
    if member.writes {
        site.finish::<S, A, M>(output, &mut indices, &folded, member.vector);
    }
}

/// Each cube copies planes to shared memory, and each unit reduces one of them.
#[cube(launch_unchecked)]
pub(super) fn staged<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, M>],
    mut indices: Optional<Box<[Vector<i32, M>]>>,
    args: &TeamArgs,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let lanes = N::value();
    let room = comptime!((form.units * STAGED) as usize * lanes);
    let mut shared = Shared::<[Vector<S, M>]>::new_aligned_slice(room, 16usize);
    let first = CUBE_POS as u32 * args.teams;
    let planes = min(max(args.problem.vectors, first) - first, args.teams);
    let base = first * args.taps / lanes as u32;
    // The last vector of the cube's planes; that of all planes if the cube has none.
    let end = min(first + planes, args.problem.vectors) * args.taps / lanes as u32;
    let mut loaded = Sequence::<Vector<S, N>>::new();
    #[unroll]
    for i in 0..STAGED {
        let v = base + UNIT_POS + comptime!(i * form.units);
        loaded.push(input[min(v, end - 1) as usize]);
    }
    #[unroll]
    for i in 0..STAGED {
        let v = (UNIT_POS + comptime!(i * form.units)) as usize;
        if comptime!(form.vectors) {
            let vectors: &mut [Vector<S, N>] = shared[0..room].with_vector_size_mut();
            vectors[v] = *loaded.index(i as usize);
        } else {
            #[unroll]
            for lane in 0..lanes {
                shared[v * lanes + lane] = Vector::new(loaded.index(i as usize).extract(lane));
            }
        }
    }
    sync_cube();
    if UNIT_POS < planes {
        let vector = first + UNIT_POS;
        let site = Site::new(&args.problem, vector, form.window);
        let mut folded = accumulator_at::<A, M>(&site);
        let (rounds, _) = args.round.div_mod(args.taps);
        let own = UNIT_POS * args.taps;
        for round in 0..rounds {
            #[unroll]
            for i in 0..STAGED {
                tap_of_plane::<S, A, M>(&shared, own, round * STAGED + i, &mut folded, form);
            }
        }
        for t in rounds * STAGED..args.taps {
            tap_of_plane::<S, A, M>(&shared, own, t, &mut folded, form);
        }
        site.finish::<S, A, M>(output, &mut indices, &folded, vector);
    }
}

/// Combines tap `t` of the plane that begins at element `first` of shared memory.
#[cube]
fn tap_of_plane<S: Float, A: Float, M: Size>(
    shared: &Shared<[Vector<S, M>]>,
    first: u32,
    t: u32,
    folded: &mut Accumulator<A, M>,
    #[comptime] form: Form,
) {
    let value = widen::<S, A, M>(shared[(first + t) as usize], form.window.widened);
    let next = Accumulator::<A, M> { value, position: Vector::new(t as i32) };
    fold::<A, M>(folded, &next, form.window);
}

/// Each team reduces a part of a window.
#[cube(launch_unchecked)]
pub(super) fn part<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, N>],
    values: &mut [Vector<A, M>],
    mut positions: Optional<Box<[Vector<i32, M>]>>,
    args: &TeamArgs,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let member = member_of(args, form);
    let site = Site::new(&args.problem, member.vector, form.window);
    let folded = team::<S, A, N, M>(input, args, &member, &site, form);
    if member.writes {
        let at = (member.part * args.problem.vectors + member.vector) as usize;
        values[at] = folded.value;
        #[comptime]
        match &mut positions.given {
            ComptimeOption::Some(positions) => positions[at] = folded.position,
            ComptimeOption::None => {}
        }
    }
}

/// Each unit combines the parts of a window and writes the result.
#[cube(launch_unchecked)]
pub(super) fn fold_parts<S: Float, A: Float, M: Size>(
    values: &[Vector<A, M>],
    positions: Optional<Box<[Vector<i32, M>]>>,
    output: &mut [Vector<S, M>],
    mut indices: Optional<Box<[Vector<i32, M>]>>,
    problem: &ProblemArgs,
    parts: u32,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let vector = unit_position(form.window.contiguous);
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
    let site = Site::new(problem, vector, form.window);
    site.finish::<S, A, M>(output, &mut indices, &folded, vector);
}

#[cube]
fn add<A: Float, M: Size>(
    folded: &mut Accumulator<A, M>,
    next: &Accumulator<A, M>,
    #[comptime] form: Form,
) {
    let before = *folded;
    let both = merge::<A, M>(&before, next, form.window);
    folded.value = both.value;
    folded.position = both.position;
}

#[cube]
fn part_at<A: Float, M: Size>(
    values: &[Vector<A, M>],
    positions: &Optional<Box<[Vector<i32, M>]>>,
    at: u32,
) -> Accumulator<A, M> {
    #[comptime]
    let position = match &positions.given {
        ComptimeOption::Some(positions) => positions[at as usize],
        ComptimeOption::None => Vector::new(0i32),
    };
    Accumulator::<A, M> { value: values[at as usize], position }
}

/// A unit's place among the teams.
#[derive(CubeType)]
struct Member {
    /// Its number in the team.
    number: u32,
    /// The output vector of the team, clamped to those that exist.
    vector: u32,
    part: u32,
    /// Whether the team has a window and the unit belongs to the team, and whether it is also the team's first unit.
    works: bool,
    writes: bool,
}

#[cube]
fn member_of(args: &TeamArgs, #[comptime] form: Form) -> Member {
    let (quotient, remainder) = args.neighbours.div_mod(UNIT_POS);
    let (number, team) =
        if comptime!(form.pixels) { (quotient, remainder) } else { (remainder, quotient) };
    let (part, cube) = args.cubes.div_mod(CUBE_POS as u32);
    let vector = cube * args.teams + team;
    let works = number < args.team
        && team < args.teams
        && part < args.parts
        && vector < args.problem.vectors;
    Member {
        number,
        vector: min(vector, args.problem.vectors - 1),
        part,
        works,
        writes: works && number == 0,
    }
}

/// Reduces the taps of a team. The result is that of its first unit.
#[cube]
fn team<S: Float, A: Float, N: Size, M: Size>(
    input: &[Vector<S, N>],
    args: &TeamArgs,
    member: &Member,
    site: &Site<'_>,
    #[comptime] form: Form,
) -> Accumulator<A, M> {
    let mut folded = accumulator_at::<A, N>(site);
    let nothing = accumulator_at::<A, N>(site);
    if member.works {
        let first = member.part * args.taps_per_part;
        let end = min(first + args.taps_per_part, args.taps);
        let (rounds, rest) = args.round.div_mod(max(end, first) - first);
        let mut t = first + member.number;
        for _ in 0..rounds {
            round::<S, A, N>(input, args, site, &mut folded, &nothing, t, end, true, form);
            t += args.team * comptime!(FLIGHT);
        }
        if rest > 0 {
            round::<S, A, N>(input, args, site, &mut folded, &nothing, t, end, false, form);
        }
    }
    let mut lanes = lanes_folded::<A, N, M>(&folded, form);

    let mut values = Shared::<[Vector<A, M>]>::new_slice(comptime!(form.units as usize));
    let mut positions = Shared::<[Vector<i32, M>]>::new_slice(comptime!(form.shared_positions()));
    let apart = if comptime!(form.pixels) { args.teams } else { 1u32.runtime() };
    values[UNIT_POS as usize] = lanes.value;
    if comptime!(form.window.fold.has_index()) {
        positions[UNIT_POS as usize] = lanes.position;
    }
    sync_cube();
    for halving in 0..args.halvings {
        let half = args.team >> (halving + 1);
        if member.works && member.number < half {
            let at = (UNIT_POS + half * apart) as usize;
            let position = if comptime!(form.window.fold.has_index()) {
                positions[at]
            } else {
                Vector::new(0i32)
            };
            let next = Accumulator::<A, M> { value: values[at], position };
            add::<A, M>(&mut lanes, &next, form);
            values[UNIT_POS as usize] = lanes.value;
            if comptime!(form.window.fold.has_index()) {
                positions[UNIT_POS as usize] = lanes.position;
            }
        }
        sync_cube();
    }
    lanes
}

/// Reduces the taps `t`, `t` + T, …, whose loads a unit has in flight at once.
#[cube]
fn round<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    args: &TeamArgs,
    site: &Site<'_>,
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
        let place = place_of::<N>(args, site, there, form);
        let value = widen::<S, A, N>(input[place.vector as usize], form.window.widened);
        let inside = place.inside && (comptime!(whole) || t == there);
        if comptime!(whole && form.whole_plane) {
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
        fold::<A, N>(folded, taps.index(i as usize), form.window);
    }
}

/// The position of a tap.
#[derive(CubeType)]
struct TapPosition<N: Size> {
    /// Its vector, clamped to those that exist.
    vector: u32,
    position: Vector<i32, N>,
    /// Whether it is inside the input.
    inside: bool,
}

#[cube]
fn place_of<N: Size>(
    args: &TeamArgs,
    site: &Site<'_>,
    t: u32,
    #[comptime] form: Form,
) -> TapPosition<N> {
    if comptime!(form.along_width) {
        let lanes = N::value() as u32;
        let mut position = Vector::<i32, N>::new((t * lanes) as i32);
        #[unroll]
        for i in 0..N::value() {
            position.insert(i, (t * lanes) as i32 + i as i32);
        }
        TapPosition::<N> { vector: site.sample * args.taps + t, position, inside: true.runtime() }
    } else if comptime!(form.whole_plane) {
        let position = t as i32;
        let vector = site.vector_at(position);
        TapPosition::<N> { vector, position: Vector::new(position), inside: true.runtime() }
    } else {
        let (row, w) = args.kernel_width.div_mod(t);
        let (d, h) = args.kernel_height.div_mod(row);
        let position = plane_position(
            &args.problem,
            inner(&args.problem.depth, &site.depth, d, form.window.axes[0]),
            inner(&args.problem.height, &site.height, h, form.window.axes[1]),
            inner(&args.problem.width, &site.width, w, form.window.axes[2]),
        );
        let inside =
            is_inside(&site.depth, d) && is_inside(&site.height, h) && is_inside(&site.width, w);
        let vector = site.vector_at(position);
        TapPosition::<N> { vector, position: Vector::new(position), inside }
    }
}

/// The coordinate of tap `t`, clamped to the input.
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

/// The lanes as they are written: lanes along the taps are reduced to one.
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
        if comptime!(form.along_width) {
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
