//! Computes windows term by term, without structural zeros.

use cubecl::prelude::*;

use super::block::PlaneWork;
use super::results::{Window, result_of};
use crate::conv::common::{EpilogueArgs, finish_at, read, tap_point};

/// Computes a vector of results term by term and stores it to memory.
#[cube]
pub(super) fn recomputed<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    w: &[S],
    epilogue: &EpilogueArgs<S, N>,
    out: &mut [Vector<S, N>],
    work: &PlaneWork<'_>,
    window: &Window,
) {
    let sum = term_by_term::<S, A, N>(a, w, work, window);
    let at = result_of(work, window);
    out[at as usize] = finish_at::<S, A, N>(epilogue, sum, window.vector, at);
}

/// The sums of a window's vector, using only products that belong to a tap.
#[cube]
fn term_by_term<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    w: &[S],
    work: &PlaneWork<'_>,
    window: &Window,
) -> Vector<A, N> {
    let (gather, form) = (work.gather, comptime!(work.form));
    let lanes = comptime!(form.lanes);
    let vectors = comptime!(form.vectors());
    let mut sum = Vector::<A, N>::new(A::from_int(0));
    let top = read(&gather.height, window.line);
    let left = read(&gather.width, window.column);
    let first = CUBE_POS_Z * gather.a_batch / lanes + window.vector / vectors * vectors;
    // The vector's first group, and its first column in this group.
    let group = window.vector * lanes / comptime!(form.group);
    let column = window.vector % vectors * lanes;
    for th in 0..gather.height.taps_count {
        let h = top + th as i32 * gather.height.tap_step;
        for tw in 0..gather.width.taps_count {
            let x = left + tw as i32 * gather.width.tap_step;
            let inside =
                (h as u32) < gather.height.extent as u32 && (x as u32) < gather.width.extent as u32;
            if inside {
                let at = (h * gather.height.a_step + x * gather.width.a_step) as u32 / lanes;
                let weights = tap_point(gather, 0u32, th, tw).other
                    + group * gather.b_group
                    + column * work.block.column_step;
                for from in 0..vectors.runtime() {
                    let pixel = Vector::<A, N>::cast_from(a[(first + at + from) as usize]);
                    let weights = weights + from * lanes * gather.b_inner;
                    add_products::<S, A, N>(w, work, &mut sum, pixel, weights);
                }
            }
        }
    }
    sum
}

/// Adds the products of a vector of pixels: to each filter's sum those of its own group.
///
/// The filters are computed one by one. Computing them together would take many registers, and code that rarely runs
/// should not reduce the occupancy of the kernel.
#[cube]
fn add_products<S: Float, A: Float, N: Size>(
    w: &[S],
    work: &PlaneWork<'_>,
    sum: &mut Vector<A, N>,
    pixel: Vector<A, N>,
    weights: u32,
) {
    let form = comptime!(work.form);
    for f in 0..work.block.lanes {
        let (group, column) = (f / comptime!(form.group), f % comptime!(form.group));
        let weights = weights + group * work.gather.b_group + column * work.block.column_step;
        let mut total = A::from_int(0);
        #[unroll]
        for c in 0..form.lanes {
            if group == comptime!(c / form.group) {
                let at = weights + comptime!(c % form.group) * work.gather.b_inner;
                let weight = A::cast_from(w[at as usize]);
                total = fma(pixel.extract(comptime!(c as usize)), weight, total);
            }
        }
        #[unroll]
        for lane in 0..form.lanes {
            let at = comptime!(lane as usize);
            let before = sum.extract(at);
            sum.insert(at, select(f == lane, before + total, before));
        }
    }
}
