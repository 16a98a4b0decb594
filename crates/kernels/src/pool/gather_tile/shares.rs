//! The shares of an average's gradient: the divisor of each window, and the sums of shares on each line of windows.

use cubecl::prelude::*;

use super::Blocks;
use super::form::Form;
use super::kernel::BlockPosition;
use super::windows::{Window, moved, window_at};
use crate::pool::common::window::counted_at;

/// The windows of a block, with the factor or divisor for each tap's share of their gradients. Lanes along the width
/// have divisors of their own. Lanes along the channels share one, which is computed only once.
#[cube]
pub(super) fn shared_out<A: Float, N: Size>(
    windows: Sequence<Window<A, N>>,
    blocks: &Blocks,
    place: &BlockPosition,
    #[comptime] form: Form,
) -> Sequence<Window<A, N>> {
    let [depth, height, width] = comptime!(form.windows());
    let lanes = comptime!(form.window_lanes as usize);
    let columns = comptime!(width.1 as usize);
    // Most lines have all their taps; the divisors of their windows then depend only on the column.
    let all = comptime!((form.axes[0].kernel * form.axes[1].kernel) as i32);
    let mut counts = Sequence::<i32>::new();
    let mut usual = Sequence::<A>::new();
    #[unroll]
    for i in 0..columns {
        let w = place.width.window + comptime!(width.0 + i as i32);
        let w = moved(&blocks.width, w, comptime!(form.axes[2].whole)) * lanes as i32;
        #[unroll]
        for lane in 0..lanes {
            let o = (w + lane as i32) as u32;
            let count = counted_at(&blocks.problem.width, o, form.window.axes[2], form.window.fold);
            counts.push(count);
            usual.push(if comptime!(form.compares()) {
                column_factor::<A>(count, form)
            } else {
                usual_of::<A>(blocks, count, all, form)
            });
        }
    }
    let mut shares = Sequence::<Window<A, N>>::new();
    #[unroll]
    for line in 0..comptime!(depth.1 * height.1) {
        let d = place.depth.window + comptime!(depth.0 + (line / height.1) as i32);
        let h = place.height.window + comptime!(height.0 + (line % height.1) as i32);
        let always = comptime!(form.axes[0].whole);
        let d = moved(&blocks.depth, d, always);
        let always = comptime!(form.axes[1].whole);
        let h = moved(&blocks.height, h, always);
        let taps =
            counted_at(&blocks.problem.depth, d as u32, form.window.axes[0], form.window.fold)
                * counted_at(
                    &blocks.problem.height,
                    h as u32,
                    form.window.axes[1],
                    form.window.fold,
                );
        let mut own = Sequence::<RuntimeCell<A>>::new();
        let factor = if comptime!(form.compares()) {
            line_factor::<A>(blocks, taps, form)
        } else {
            A::from_int(1)
        };
        #[unroll]
        for i in 0..comptime!(columns * lanes) {
            let usual = *usual.index(i);
            own.push(RuntimeCell::new(if comptime!(form.compares()) {
                factor * usual
            } else {
                usual
            }));
        }
        if comptime!(!form.compares()) && taps != all {
            #[unroll]
            for i in 0..comptime!(columns * lanes) {
                own.index(i).store(over::<A>(*counts.index(i) * taps, form));
            }
        }
        #[unroll]
        for i in 0..columns {
            let window = windows.index(comptime!(line as usize * columns + i));
            let mut divisors = Vector::<A, N>::new(own.index(comptime!(i * lanes)).read());
            #[unroll]
            for lane in 1..lanes {
                divisors.insert(lane, own.index(comptime!(i * lanes + lane)).read());
            }
            let (share, winner) = (window.share, window.winner);
            shares.push(Window::<A, N> { share, weight: divisors, winner });
        }
    }
    shares
}

/// The factor for a column of windows with `count` taps along the width: the width of the kernel divided by `count`.
#[cube]
fn column_factor<A: Float>(count: i32, #[comptime] form: Form) -> A {
    let kernel = comptime!(form.axes[2].kernel);
    let mut factor = A::from_int(1);
    if comptime!(form.window.axes[2].clipped) {
        #[unroll]
        for taps in 1..kernel {
            let own = A::new(comptime!(f64::from(kernel) / f64::from(taps)));
            factor = select(count == taps as i32, own, factor);
        }
    }
    factor
}

/// The factor for a line of windows with `count` taps on the other axes, if all taps along the width existed.
#[cube]
fn line_factor<A: Float>(blocks: &Blocks, count: i32, #[comptime] form: Form) -> A {
    let [_, height, width] = comptime!(form.axes.map(|block| block.kernel));
    let mut factor = blocks.problem.reciprocal.get::<A>();
    if comptime!(form.window.axes[1].clipped) {
        #[unroll]
        for taps in 1..height {
            let own = A::new(comptime!(1.0 / f64::from(taps * width)));
            factor = select(count == taps as i32, own, factor);
        }
    }
    factor
}

/// The value of `over` for `count` taps along the width and all taps on the other axes, without a division if the width
/// has all its taps too.
#[cube]
fn usual_of<A: Float>(blocks: &Blocks, count: i32, all: i32, #[comptime] form: Form) -> A {
    let divisor = if comptime!(form.window.reciprocal) {
        RuntimeCell::<A>::new(blocks.problem.reciprocal.get::<A>())
    } else {
        RuntimeCell::<A>::new(A::cast_from(count * all))
    };
    if comptime!(form.window.reciprocal) && count != blocks.problem.width.kernel {
        divisor.store(over::<A>(count * all, form));
    }
    divisor.read()
}

/// A number of taps, or its reciprocal if shares are computed with reciprocals.
#[cube]
fn over<A: Float>(taps: i32, #[comptime] form: Form) -> A {
    if comptime!(form.window.reciprocal) {
        A::from_int(1) / A::cast_from(taps)
    } else {
        A::cast_from(taps)
    }
}

/// The shares of a block's inputs from each line of windows; inputs that differ only in their line use the same ones.
#[cube]
pub(super) fn lines<A: Float, M: Size, N: Size>(
    windows: &Sequence<Window<A, M>>,
    #[comptime] form: Form,
) -> Sequence<Vector<A, N>> {
    let mut lines = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for line in 0..form.all_lines() {
        #[unroll]
        for w in 0..comptime!(form.inputs()[2]) {
            let steps = comptime!(form.steps([0, 0, w])[2]);
            let mut sum = Vector::<A, N>::new(A::from_int(0));
            #[unroll]
            for step in 0..steps {
                let window = window_at::<A, M, N>(windows, line as usize, w, step, form);
                sum = added::<A, N>(sum, &window, comptime!(step == 0), form);
            }
            lines.push(sum);
        }
    }
    lines
}

/// A sum plus the share from a window; for the `first` window, only the share.
#[cube]
fn added<A: Float, N: Size>(
    sum: Vector<A, N>,
    window: &Window<A, N>,
    #[comptime] first: bool,
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(form.divides_each() && form.window.reciprocal && !first) {
        fma(window.share, window.weight, sum)
    } else {
        let share = if comptime!(!form.divides_each()) {
            window.share
        } else if comptime!(form.window.reciprocal) {
            window.share * window.weight
        } else {
            window.share / window.weight
        };
        if comptime!(first) { share } else { sum + share }
    }
}

/// The sum of the shares of windows that all have one divisor.
#[cube]
pub(super) fn divided_once<A: Float, N: Size>(
    blocks: &Blocks,
    sum: Vector<A, N>,
    #[comptime] form: Form,
) -> Vector<A, N> {
    if comptime!(form.window.reciprocal) {
        sum * Vector::new(blocks.problem.reciprocal.get::<A>())
    } else if comptime!(form.window.fold.is_fixed()) {
        sum / Vector::new(A::cast_from(blocks.problem.divisor))
    } else {
        let taps = blocks.problem.depth.kernel
            * blocks.problem.height.kernel
            * blocks.problem.width.kernel;
        sum / Vector::new(A::cast_from(taps))
    }
}
