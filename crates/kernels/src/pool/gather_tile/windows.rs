//! The windows over a block: how they are loaded, and which of them each lane uses.

use cubecl::prelude::*;

use super::form::Form;
use super::kernel::BlockPosition;
use super::{BlockAxis, Blocks};
use crate::cube::convert::{widen, widen_kept};
use crate::cube::optional::Optional;
use crate::pool::common::window::split;

/// A window's gradient and its winner.
#[derive(CubeType)]
pub(super) struct Window<A: Float, N: Size> {
    /// The gradient, and the factor or divisor for each tap's share of it if windows have divisors of their own.
    pub(super) share: Vector<A, N>,
    pub(super) weight: Vector<A, N>,
    pub(super) winner: Vector<i32, N>,
}

/// Loads vector `i` of the windows over a block; the shares of windows that do not exist are 0.
#[cube]
pub(super) fn window<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    winners: &Optional<Box<[Vector<i32, N>]>>,
    blocks: &Blocks,
    place: &BlockPosition,
    #[comptime] i: u32,
    #[comptime] form: Form,
) -> Window<A, N> {
    let windows = comptime!(form.windows());
    let at = comptime!(split([windows[0].1, windows[1].1, windows[2].1], i));
    let d = place.depth.window + comptime!(windows[0].0 + at[0] as i32);
    let h = place.height.window + comptime!(windows[1].0 + at[1] as i32);
    let w = place.width.window + comptime!(windows[2].0 + at[2] as i32);
    let [always_d, always_h, always_w] = comptime!(form.axes.map(|block| block.whole));
    let there = is_there(&blocks.depth, d, always_d)
        && is_there(&blocks.height, h, always_h)
        && is_there(&blocks.width, w, always_w);
    let d = moved(&blocks.depth, d, always_d);
    let h = moved(&blocks.height, h, always_h);
    let w = moved(&blocks.width, w, always_w);
    let line = (place.sample * blocks.depth.outputs + d) * blocks.height.outputs + h;
    let pixel = line * blocks.width.outputs + w;
    let at = (pixel * blocks.problem.pixel_vectors as i32 + place.pixel_vector) as usize;
    let share = if comptime!(always_d && always_h && always_w) {
        widen::<S, A, N>(dy[at], form.window.widened)
    } else {
        widen_kept::<S, A, N>(dy[at], there, form.window.widened)
    };
    let weight = Vector::new(A::from_int(1));
    #[comptime]
    match &winners.given {
        ComptimeOption::Some(winners) => Window::<A, N> { share, weight, winner: winners[at] },
        ComptimeOption::None => Window::<A, N> { share, weight, winner: Vector::new(-1i32) },
    }
}

#[cube]
fn is_there(args: &BlockAxis, o: i32, #[comptime] always: bool) -> bool {
    if comptime!(always) { true.runtime() } else { o >= 0 && o < args.outputs }
}

/// The window, clamped to those that exist.
#[cube]
pub(super) fn moved(args: &BlockAxis, o: i32, #[comptime] always: bool) -> i32 {
    if comptime!(always) { o } else { min(max(o, 0i32), args.outputs - 1) }
}

/// Window `step` on `line` of those over input vector `w`; each lane takes its own.
#[cube]
pub(super) fn window_at<A: Float, M: Size, N: Size>(
    windows: &Sequence<Window<A, M>>,
    #[comptime] line: usize,
    #[comptime] w: u32,
    #[comptime] step: u32,
    #[comptime] form: Form,
) -> Window<A, N> {
    let first = comptime!(line * form.windows()[2].1 as usize);
    if comptime!(!form.window.along_width) {
        // If lanes are channels, all vectors have the same number.
        let window = windows.index(comptime!(first + form.on_line(w, step, 0).0));
        Window::<A, N> {
            share: Vector::cast_from(window.share),
            weight: Vector::cast_from(window.weight),
            winner: Vector::cast_from(window.winner),
        }
    } else {
        let mut share = Vector::<A, N>::new(A::from_int(0));
        let mut weight = Vector::<A, N>::new(A::from_int(1));
        #[unroll]
        for lane in 0..N::value() {
            if comptime!(form.over_lane(w, lane as u32).1 > step) {
                let (vector, element) = comptime!(form.on_line(w, step, lane as u32));
                let window = windows.index(comptime!(first + vector));
                share.insert(lane, window.share.extract(element));
                weight.insert(lane, window.weight.extract(element));
            }
        }
        // Winners are not needed here: `gather_lane` reads them lane by lane.
        Window::<A, N> { share, weight, winner: Vector::new(-1i32) }
    }
}
