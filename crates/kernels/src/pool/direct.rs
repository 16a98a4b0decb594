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
    AxisArgs, AxisArgsLaunch, AxisForm, Taps, axis_args, coordinate, is_inside, padded_taps,
    taps_of,
};
use crate::dtype::{accumulator, elem, round};

/// The numbers of a problem, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Problem {
    /// The output vectors.
    vectors: u32,
    /// The vectors of a pixel.
    pixel: FastDivmod<u32>,
    pixel_vectors: u32,
    depth: AxisArgs,
    height: AxisArgs,
    width: AxisArgs,
    /// What a fixed divisor divides by.
    divisor: u32,
    /// The steps of an index to the next sample, channel and position.
    index_batch: u32,
    index_channel: u32,
    index_position: u32,
    /// Less than every number: what an empty window's maximum is.
    lowest: InputScalar,
}

pub(super) fn problem_args(
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    plan: &Plan,
) -> ProblemLaunch {
    let [depth, height, width]: [AxisArgsLaunch; AXES] =
        pooling.grid().axes().each_ref().map(axis_args);
    let divisor = match reduction {
        Reduction::Average(Divisor::Fixed(n)) => n,
        _ => 1,
    };
    let base = match reduction {
        Reduction::Max(Output::ValuesAndIndices(base)) => base,
        _ => IndexBase::Plane,
    };
    let [index_batch, index_channel, index_position] = indexing(pooling, base);
    let channels = pixel_channels(pooling);
    ProblemLaunch::new(
        (pooling.output().elements() / plan.lanes) as u32,
        (channels / plan.lanes) as u32,
        (channels / plan.lanes) as u32,
        depth,
        height,
        width,
        divisor,
        index_batch,
        index_channel,
        index_position,
        lowest(dtype),
    )
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
fn lowest(dtype: DType) -> InputScalar {
    let accumulator = elem(accumulator(dtype));
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
    depth: AxisForm,
    height: AxisForm,
    width: AxisForm,
    fold: Fold,
    float: bool,
    bf16: bool,
    runs: bool,
    /// Whether several vectors make a pixel.
    channels: bool,
    /// The axes that the problem has.
    rank: usize,
}

/// What becomes of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fold {
    Max,
    AveragePadded,
    AverageValid,
    AverageFixed,
}

impl Fold {
    fn is_max(self) -> bool {
        self == Self::Max
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
                Reduction::Max(_) => Fold::Max,
                Reduction::Average(divisor) => Fold::average(divisor),
            },
            float: dtype.is_float(),
            bf16: dtype == DType::BF16,
            runs: plan.runs,
            channels: pixel_channels(pooling) > plan.lanes,
            rank: pooling.grid().rank(),
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

    let empty = is_empty(&site, form);
    if comptime!(form.fold.is_max()) {
        let value = if empty { Vector::new(problem.lowest.get::<A>()) } else { folded.value };
        output[vector as usize] = Vector::cast_from(value);
        #[comptime]
        match &mut indices {
            ComptimeOption::Some(indices) => {
                let index = index_of(problem, &site, folded.position);
                indices[vector as usize] = if empty { Vector::new(-1i32) } else { index };
            }
            ComptimeOption::None => {}
        }
    } else {
        let average = folded.value / Vector::new(divisor::<A>(problem, &site, form));
        let average = if empty { Vector::new(A::from_int(0)) } else { average };
        output[vector as usize] = round::<A, S, N>(average, form.bf16);
    }
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
#[derive(CubeType)]
struct Site {
    sample: u32,
    /// The vector within the pixel.
    lane: u32,
    depth: Taps,
    height: Taps,
    width: Taps,
}

#[cube]
fn site_of(problem: &Problem, vector: u32, #[comptime] form: Form) -> Site {
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
        depth: taps_of(&problem.depth, d, form.depth),
        height: taps_of(&problem.height, h, form.height),
        width: taps_of(&problem.width, w, form.width),
    }
}

/// The position of a coordinate in the plane of one channel.
#[cube]
fn plane_position(problem: &Problem, d: i32, h: i32, w: i32) -> i32 {
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
struct Accumulator<A: Float, N: Size> {
    value: Vector<A, N>,
    /// The plane position of the maximum.
    position: Vector<i32, N>,
}

/// A maximum starts below every number, at the first tap inside: there it stays if all are −∞.
#[cube]
fn accumulator_at<A: Float, N: Size>(
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
    let value = Vector::<A, N>::cast_from(input[offset as usize]);
    if comptime!(form.fold.is_max()) {
        let wins = wins(value, folded.value, form.float);
        folded.value = select_many(wins, value, folded.value);
        folded.position = select_many(wins, Vector::new(position), folded.position);
    } else {
        let inside = is_inside(&site.depth, td, form.depth)
            && is_inside(&site.height, th, form.height)
            && is_inside(&site.width, tw, form.width);
        folded.value += select(inside, value, Vector::new(A::from_int(0)));
    }
}

/// Whether a later tap takes the maximum from the best so far: the first of equals stays, and so
/// does the last NaN, for nothing is greater than a NaN.
#[cube]
fn wins<A: Float, N: Size>(
    value: Vector<A, N>,
    best: Vector<A, N>,
    #[comptime] float: bool,
) -> Vector<bool, N> {
    let greater = value.greater_than(&best);
    if comptime!(float) { greater.or(value.is_nan()) } else { greater }
}

/// What the sum of a window is divided by.
#[cube]
fn divisor<A: Float>(problem: &Problem, site: &Site, #[comptime] form: Form) -> A {
    if comptime!(form.fold == Fold::AverageFixed) {
        A::cast_from(problem.divisor)
    } else {
        A::cast_from(counted_taps(problem, site, form))
    }
}

/// The taps that a divisor counts.
#[cube]
fn counted_taps(problem: &Problem, site: &Site, #[comptime] form: Form) -> i32 {
    match form.fold {
        Fold::AverageValid => {
            (site.depth.end - site.depth.first)
                * (site.height.end - site.height.first)
                * (site.width.end - site.width.first)
        }
        _ => {
            padded_taps(&problem.depth, &site.depth, form.depth)
                * padded_taps(&problem.height, &site.height, form.height)
                * padded_taps(&problem.width, &site.width, form.width)
        }
    }
}

/// The index that is returned for the tap at this position of the plane.
#[cube]
fn index_of<N: Size>(problem: &Problem, site: &Site, position: Vector<i32, N>) -> Vector<i32, N> {
    let first_channel = site.lane * N::value() as u32;
    let base = site.sample * problem.index_batch + first_channel * problem.index_channel;
    let mut index =
        position * Vector::new(problem.index_position as i32) + Vector::new(base as i32);
    #[unroll]
    for i in 0..N::value() {
        index.insert(i, index.extract(i) + i as i32 * problem.index_channel as i32);
    }
    index
}
