//! One unit an output vector, every tap read: the shape of Caffe's kernel.
//!
//! ```text
//! for each output (n, o, c):            one unit, its lanes along c
//!     for each tap t inside the input:  row-major
//!         fold x[n, o·s − before + t·d, c] into the accumulator
//! ```
//!
//! Where the code departs from this: short windows are unrolled, and then a tap outside the input
//! is not skipped but moved to the nearest tap inside. For a maximum the repeated tap changes
//! nothing, not even the index; an average drops it by a select. So every load is unconditional
//! and all of them can be in flight at once.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, DType, Divisor, IndexBase, Layout, Pooling};

use super::plan::{Output, Plan, Reduction, pixel_channels};
use crate::axis::{
    AxisArgs, AxisArgsLaunch, AxisForm, Taps, axis_args, coordinate, has_all_taps, is_inside,
    padded_taps, taps_of,
};
use crate::dtype::{MaximumForm, elem, maximum, round, widen, widen_kept};

/// The numbers of a problem, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Problem {
    /// The output vectors.
    pub(super) vectors: u32,
    /// The vectors of a pixel.
    pub(super) pixel: FastDivmod<u32>,
    pub(super) pixel_vectors: u32,
    pub(super) depth: AxisArgs,
    pub(super) height: AxisArgs,
    pub(super) width: AxisArgs,
    /// What a fixed divisor divides by.
    pub(super) divisor: u32,
    /// One over the divisor of a window that is inside with all its taps.
    pub(super) reciprocal: InputScalar,
    /// The steps of an index to the next sample, position, and lane of a vector.
    pub(super) index_batch: u32,
    pub(super) index_position: u32,
    pub(super) index_lane: u32,
    /// Less than every number: what an empty window's maximum is.
    pub(super) lowest: InputScalar,
}

pub(super) fn problem_args(
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
) -> ProblemLaunch {
    let [depth, height, width]: [AxisArgsLaunch; AXES] =
        pooling.grid().axes().each_ref().map(axis_args);
    let [index_batch, index_channel, index_position] = indexing(pooling, reduction.base());
    let index_lane = match plan.across {
        true => index_position * pooling.grid().axes()[AXES - 1].stride() as u32,
        false => index_channel,
    };
    let pixel = pixel_vectors(pooling, plan);
    ProblemLaunch::new(
        (pooling.output().elements() / plan.lanes) as u32,
        pixel,
        pixel,
        depth,
        height,
        width,
        reduction.fixed_divisor(),
        InputScalar::new(1.0 / full_divisor(pooling, reduction), elem(plan.accumulator)),
        index_batch,
        index_position,
        index_lane,
        lowest(dtype, plan.accumulator),
    )
}

/// The vectors of a pixel; lanes across pixels leave one.
pub(super) fn pixel_vectors(pooling: &Pooling, plan: &Plan) -> u32 {
    if plan.across { 1 } else { (pixel_channels(pooling) / plan.lanes) as u32 }
}

/// What the sum of a window with all its taps inside is divided by.
pub(super) fn full_divisor(pooling: &Pooling, reduction: Reduction) -> f64 {
    match reduction {
        Reduction::Average(Divisor::Fixed(n)) => f64::from(n),
        _ => pooling.grid().taps() as f64,
    }
}

/// The steps of an index to the next sample, channel and position of the plane.
pub(super) fn indexing(pooling: &Pooling, base: IndexBase) -> [u32; 3] {
    let steps = pooling.index_strides(base);
    // With channels first a channel is a sample of its own, one channel wide.
    let batch = match pooling.layout() {
        Layout::ChannelsLast => steps.batch,
        Layout::ChannelsFirst => steps.channel,
    };
    [batch, steps.channel, steps.space[AXES - 1]].map(|step| step as u32)
}

/// The value of an empty window, in the accumulator's type.
fn lowest(dtype: DType, accumulator: DType) -> InputScalar {
    let accumulator = elem(accumulator);
    match dtype {
        DType::I32 => InputScalar::new(i32::MIN, accumulator),
        DType::I8 => InputScalar::new(i8::MIN, accumulator),
        DType::U8 => InputScalar::new(u8::MIN, accumulator),
        _ => InputScalar::new(f64::NEG_INFINITY, accumulator),
    }
}

/// What changes the code of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) depth: AxisForm,
    pub(super) height: AxisForm,
    pub(super) width: AxisForm,
    pub(super) fold: Fold,
    pub(super) maximum: MaximumForm,
    pub(super) float: bool,
    pub(super) rounds: bool,
    /// Whether elements are widened by their bits.
    pub(super) widened: bool,
    pub(super) runs: bool,
    /// Whether several vectors make a pixel.
    pub(super) channels: bool,
    /// Whether the lanes of a vector are neighbours along the width, not channels.
    pub(super) across: bool,
    /// Whether sums are multiplied by one over their divisor. That rounds once more, for which the
    /// bound of a sum has room: the truth is not computed in the same type, and of `n` roundings that
    /// it allows the last addition's is already that of the result.
    pub(super) reciprocal: bool,
    /// The axes that the problem has.
    pub(super) rank: usize,
}

/// What becomes of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fold {
    Max,
    MaxAndIndex,
    AveragePadded,
    AverageValid,
    AverageFixed,
    /// By a kernel of its own.
    Norm,
}

impl Fold {
    pub(super) fn is_max(self) -> bool {
        matches!(self, Self::Max | Self::MaxAndIndex)
    }

    pub(super) fn is_fixed(self) -> bool {
        self == Self::AverageFixed
    }

    pub(super) fn has_index(self) -> bool {
        self == Self::MaxAndIndex
    }

    pub(super) fn average(divisor: Divisor) -> Self {
        match divisor {
            Divisor::Padded => Self::AveragePadded,
            Divisor::Valid => Self::AverageValid,
            Divisor::Fixed(_) => Self::AverageFixed,
        }
    }
}

impl Form {
    pub(super) fn new(pooling: &Pooling, reduction: Reduction, dtype: DType, plan: &Plan) -> Self {
        let [depth, height, width] =
            pooling.grid().axes().each_ref().map(|axis| AxisForm::new(axis, plan.unrolled));
        Self {
            depth,
            height,
            width,
            fold: match reduction {
                Reduction::Max(Output::Values) => Fold::Max,
                Reduction::Max(Output::ValuesAndIndices(_)) => Fold::MaxAndIndex,
                Reduction::Average(divisor) => Fold::average(divisor),
                Reduction::Norm(_) => Fold::Norm,
            },
            maximum: plan.maximum,
            float: dtype.is_float(),
            rounds: plan.rounds,
            widened: plan.widens(dtype),
            runs: plan.runs,
            channels: pixel_vectors(pooling, plan) > 1,
            across: plan.across,
            reciprocal: dtype != DType::F64,
            rank: pooling.grid().rank(),
        }
    }

    /// The form of windows that are inside with all their taps, on the width where that is said.
    pub(super) fn unclipped(self, width: bool) -> Self {
        Self {
            depth: self.depth.unclipped(),
            height: self.height.unclipped(),
            width: if width { self.width.unclipped() } else { self.width },
            ..self
        }
    }

    fn unrolled(&self) -> bool {
        self.width.taps.is_some()
    }

    /// The taps on each axis of an unrolled loop.
    fn taps(&self) -> [u32; AXES] {
        [self.depth, self.height, self.width].map(|axis| axis.taps.unwrap_or(0))
    }

    fn may_be_empty(&self) -> bool {
        self.depth.may_be_empty || self.height.may_be_empty || self.width.may_be_empty
    }
}

/// `S` is how elements are stored, `A` how they are compared and summed. `A` may be an integer:
/// the bound is what lets one kernel serve both, and nothing fractional is asked of integers.
#[cube(launch_unchecked)]
pub(super) fn direct<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    output: &mut [Vector<S, N>],
    mut indices: ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &Problem,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let vector = unit_position(form.runs);
    if vector >= problem.vectors {
        terminate!();
    }
    let site = site_of(problem, vector, form);
    let mut folded = accumulator_at::<A, N>(problem, &site, form);
    if comptime!(form.unrolled()) {
        let [taps_d, taps_h, taps_w] = comptime!(form.taps());
        #[unroll]
        for td in 0..taps_d {
            #[unroll]
            for th in 0..taps_h {
                #[unroll]
                for tw in 0..taps_w {
                    let (td, th, tw) = (td as i32, th as i32, tw as i32);
                    fold_tap::<S, A, N>(input, problem, &site, &mut folded, td, th, tw, form);
                }
            }
        }
    } else {
        for td in site.depth.first..site.depth.end {
            for th in site.height.first..site.height.end {
                for tw in site.width.first..site.width.end {
                    fold_tap::<S, A, N>(input, problem, &site, &mut folded, td, th, tw, form);
                }
            }
        }
    }

    finish::<S, A, N>(output, &mut indices, problem, &site, &folded, vector, form);
}

/// Writes what the taps of a window came to as output `vector`.
#[cube]
pub(super) fn finish<S: Float, A: Float, N: Size>(
    output: &mut [Vector<S, N>],
    indices: &mut ComptimeOption<Box<[Vector<i32, N>]>>,
    problem: &Problem,
    site: &Site,
    folded: &Accumulator<A, N>,
    vector: u32,
    #[comptime] form: Form,
) {
    let empty = is_empty(site, form);
    if comptime!(form.fold.is_max()) {
        let value = if empty { Vector::new(problem.lowest.get::<A>()) } else { folded.value };
        output[vector as usize] = Vector::cast_from(value);
        #[comptime]
        match indices {
            ComptimeOption::Some(indices) => {
                let index = index_of(problem, site, folded.position);
                indices[vector as usize] = if empty { Vector::new(-1i32) } else { index };
            }
            ComptimeOption::None => {}
        }
    } else {
        let average = average::<A, N>(problem, site, folded.value, form);
        let average = if empty { Vector::new(A::from_int(0)) } else { average };
        output[vector as usize] = round::<A, S, N>(average, form.rounds);
    }
}

/// The sum of a window over its divisor.
#[cube]
fn average<A: Float, N: Size>(
    problem: &Problem,
    site: &Site,
    sum: Vector<A, N>,
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(!form.reciprocal) {
        sum / divisors::<A, N>(problem, site, form)
    } else if comptime!(!form.across) {
        sum * scale::<A, N>(problem, site, form)
    } else if is_whole::<N>(problem, site, form) {
        sum * Vector::new(problem.reciprocal.get::<A>())
    } else {
        sum / divisors::<A, N>(problem, site, form)
    }
}

/// One over the divisor of a window, which all lanes have in common.
#[cube]
pub(super) fn scale<A: Float, N: Size>(
    problem: &Problem,
    site: &Site,
    #[comptime] form: Form,
) -> Vector<A, N> {
    let scale = if is_whole::<N>(problem, site, form) {
        problem.reciprocal.get::<A>()
    } else {
        A::from_int(1) / divisors::<A, N>(problem, site, form).extract(0usize)
    };
    Vector::new(scale)
}

/// Whether every tap is inside the input.
#[cube]
fn is_whole<N: Size>(problem: &Problem, site: &Site, #[comptime] form: Form) -> bool {
    let width = if comptime!(form.across && form.width.clipped) {
        let lanes = N::value() as i32;
        let reach = (problem.width.kernel - 1) * problem.width.dilation;
        let last = site.width.start + (lanes - 1) * problem.width.stride + reach;
        site.width.start >= 0 && last < problem.width.input
    } else {
        has_all_taps(&problem.width, &site.width, form.width)
    };
    width
        && has_all_taps(&problem.depth, &site.depth, form.depth)
        && has_all_taps(&problem.height, &site.height, form.height)
}

/// The position of the vector that this unit computes.
#[cube]
pub(crate) fn unit_position(#[comptime] runs: bool) -> u32 {
    if comptime!(runs) {
        UNIT_POS * CUBE_COUNT as u32 + CUBE_POS as u32
    } else {
        ABSOLUTE_POS as u32
    }
}

/// Where an output is, and which taps of its window are inside.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Site {
    pub(super) sample: u32,
    /// The vector within the pixel.
    pub(super) lane: u32,
    /// The position along the width.
    pub(super) column: u32,
    pub(super) depth: Taps,
    pub(super) height: Taps,
    pub(super) width: Taps,
}

#[cube]
pub(super) fn site_of(problem: &Problem, vector: u32, #[comptime] form: Form) -> Site {
    let (pixel, lane) =
        if comptime!(form.channels) { problem.pixel.div_mod(vector) } else { (vector, 0u32) };
    let (row, w) = problem.width.output.div_mod(pixel);
    let (plane, h) =
        if comptime!(form.rank > 1) { problem.height.output.div_mod(row) } else { (row, 0u32) };
    let (sample, d) =
        if comptime!(form.rank > 2) { problem.depth.output.div_mod(plane) } else { (plane, 0u32) };
    Site {
        sample,
        lane,
        column: w,
        depth: taps_of(&problem.depth, d, form.depth),
        height: taps_of(&problem.height, h, form.height),
        width: taps_of(&problem.width, w, form.width),
    }
}

/// The position of a coordinate in the plane of one channel.
#[cube]
pub(super) fn plane_position(problem: &Problem, d: i32, h: i32, w: i32) -> i32 {
    (d * problem.height.input + h) * problem.width.input + w
}

#[cube]
fn is_empty(site: &Site, #[comptime] form: Form) -> bool {
    if comptime!(form.may_be_empty()) {
        site.depth.first >= site.depth.end
            || site.height.first >= site.height.end
            || site.width.first >= site.width.end
    } else {
        false.runtime()
    }
}

/// What has been folded so far: a maximum and where it was, or a sum.
#[derive(CubeType)]
pub(super) struct Accumulator<A: Float, N: Size> {
    pub(super) value: Vector<A, N>,
    /// The plane position of the maximum.
    pub(super) position: Vector<i32, N>,
}

/// A maximum starts below every number, at the first tap inside: there it stays if all are −∞.
#[cube]
pub(super) fn accumulator_at<A: Float, N: Size>(
    problem: &Problem,
    site: &Site,
    #[comptime] form: Form,
) -> Accumulator<A, N> {
    if comptime!(form.fold.is_max()) {
        let first = plane_position(
            problem,
            coordinate(&problem.depth, &site.depth, site.depth.first, form.depth),
            coordinate(&problem.height, &site.height, site.height.first, form.height),
            coordinate(&problem.width, &site.width, site.width.first, form.width),
        );
        Accumulator::<A, N> {
            value: Vector::new(problem.lowest.get::<A>()),
            position: Vector::new(first),
        }
    } else {
        Accumulator::<A, N> { value: Vector::new(A::from_int(0)), position: Vector::new(0i32) }
    }
}

/// Folds the tap (`td`, `th`, `tw`) into the accumulator.
#[cube]
fn fold_tap<S: Float, A: Float, N: Size>(
    input: &[Vector<S, N>],
    problem: &Problem,
    site: &Site,
    folded: &mut Accumulator<A, N>,
    td: i32,
    th: i32,
    tw: i32,
    #[comptime] form: Form,
) {
    let position = plane_position(
        problem,
        coordinate(&problem.depth, &site.depth, td, form.depth),
        coordinate(&problem.height, &site.height, th, form.height),
        coordinate(&problem.width, &site.width, tw, form.width),
    );
    let plane = problem.depth.input * problem.height.input * problem.width.input;
    let pixel = site.sample * plane as u32 + position as u32;
    let offset =
        if comptime!(form.channels) { pixel * problem.pixel_vectors + site.lane } else { pixel };
    let next = if comptime!(form.fold.is_max()) {
        widen::<S, A, N>(input[offset as usize], form.widened)
    } else {
        let inside = is_inside(&site.depth, td, form.depth)
            && is_inside(&site.height, th, form.height)
            && is_inside(&site.width, tw, form.width);
        widen_kept::<S, A, N>(input[offset as usize], inside, form.widened)
    };
    let next = Accumulator::<A, N> { value: next, position: Vector::new(position) };
    fold::<A, N>(folded, &next, form);
}

/// Folds what comes later in row-major order into what came before.
///
/// Of equals the first keeps its index; the last NaN takes it, for nothing is greater than a NaN.
#[cube]
pub(super) fn fold<A: Float, N: Size>(
    folded: &mut Accumulator<A, N>,
    next: &Accumulator<A, N>,
    #[comptime] form: Form,
) {
    if comptime!(form.fold == Fold::MaxAndIndex) {
        let greater = next.value.greater_than(&folded.value);
        let wins = if comptime!(form.float) { greater.or(next.value.is_nan()) } else { greater };
        folded.position = select_many(wins, next.position, folded.position);
    }
    folded.value = together::<A, N>(folded.value, next.value, form);
}

/// Two values as one, where positions are not asked for or seen to elsewhere.
#[cube]
pub(super) fn together<A: Float, N: Size>(
    a: Vector<A, N>,
    b: Vector<A, N>,
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(form.fold.is_max()) { maximum::<A, N>(a, b, form.maximum) } else { a + b }
}

/// Two folds as one, in whatever order their taps are. Of equal maxima the one at the lower position
/// is the winner, of NaN the one at the higher.
#[cube]
pub(super) fn merge<A: Float, N: Size>(
    a: &Accumulator<A, N>,
    b: &Accumulator<A, N>,
    #[comptime] fold: Fold,
    #[comptime] form: MaximumForm,
    #[comptime] float: bool,
) -> Accumulator<A, N> {
    if comptime!(fold == Fold::MaxAndIndex) {
        let earlier = b.position.less_than(&a.position);
        let wins = b.value.greater_than(&a.value).or(b.value.equal(&a.value).vec_and(earlier));
        let wins = if comptime!(float) {
            let stays = a.value.is_nan().vec_and(earlier);
            let never = b.value.greater_than(&b.value);
            wins.or(select_many(stays, never, b.value.is_nan()))
        } else {
            wins
        };
        Accumulator::<A, N> {
            value: maximum::<A, N>(a.value, b.value, form),
            position: select_many(wins, b.position, a.position),
        }
    } else if comptime!(fold.is_max()) {
        let value = maximum::<A, N>(a.value, b.value, form);
        Accumulator::<A, N> { value, position: a.position }
    } else {
        Accumulator::<A, N> { value: a.value + b.value, position: a.position }
    }
}

/// What the sums of the windows of a vector are divided by.
#[cube]
fn divisors<A: Float, N: Size>(
    problem: &Problem,
    site: &Site,
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(form.fold == Fold::AverageFixed) {
        Vector::new(A::cast_from(problem.divisor))
    } else if comptime!(form.across) {
        let mut divisors = Vector::new(A::from_int(1));
        #[unroll]
        for i in 0..N::value() {
            let width = taps_of(&problem.width, site.column + i as u32, form.width);
            let taps = counted_taps(problem, &site.depth, &site.height, &width, form);
            divisors.insert(i, A::cast_from(taps));
        }
        divisors
    } else {
        let taps = counted_taps(problem, &site.depth, &site.height, &site.width, form);
        Vector::new(A::cast_from(taps))
    }
}

/// The taps that a divisor counts.
#[cube]
fn counted_taps(
    problem: &Problem,
    depth: &Taps,
    height: &Taps,
    width: &Taps,
    #[comptime] form: Form,
) -> i32 {
    counted(&problem.depth, depth, form.depth, form.fold)
        * counted(&problem.height, height, form.height, form.fold)
        * counted(&problem.width, width, form.width, form.fold)
}

/// The taps of one axis that a divisor counts.
#[cube]
fn counted(
    axis: &AxisArgs,
    taps: &Taps,
    #[comptime] form: AxisForm,
    #[comptime] fold: Fold,
) -> i32 {
    if comptime!(fold == Fold::AverageValid) {
        taps.end - taps.first
    } else {
        padded_taps(axis, taps, form)
    }
}

/// The taps of one axis that the divisor of the window at `o` counts.
#[cube]
pub(super) fn counted_at(
    axis: &AxisArgs,
    o: u32,
    #[comptime] form: AxisForm,
    #[comptime] fold: Fold,
) -> i32 {
    counted(axis, &taps_of(axis, o, form), form, fold)
}

/// The index that is returned for the tap at this position of the plane.
#[cube]
fn index_of<N: Size>(problem: &Problem, site: &Site, position: Vector<i32, N>) -> Vector<i32, N> {
    let first = site.lane * N::value() as u32 * problem.index_lane;
    let base = site.sample * problem.index_batch + first;
    let mut index =
        position * Vector::new(problem.index_position as i32) + Vector::new(base as i32);
    #[unroll]
    for i in 0..N::value() {
        index.insert(i, index.extract(i) + i as i32 * problem.index_lane as i32);
    }
    index
}
