//! The gradient of maxima and minima: each output gradient goes to the position of its index.
//!
//! A task is a plane, or with channels last a block of its lanes. Sums are in `f64`, in the row-major order of the
//! outputs.

use core::sync::atomic::{AtomicBool, Ordering};

use windowpane_geometry::{AXES, IndexBase, Pooling};
use windowpane_reference::pool::backward::{IndexOutOfRange, check_indices};

use super::element::{Poolable, narrow};
use super::field::Field;
use crate::shared::{self, Shared, written};

/// The lanes of a task.
const LANES: usize = 16;

/// The output gradients that are converted at once.
const CHUNK: usize = 64;

/// The elements of the input below which one thread computes it.
const SMALL: usize = 1 << 14;

/// The gradient of a maximum or a minimum. The lists have the lengths of the output.
pub(super) fn max_backward<T: Poolable>(
    pooling: &Pooling,
    base: IndexBase,
    dy: &[T],
    indices: &[i32],
) -> Result<Vec<T>, IndexOutOfRange> {
    let field = Field::of(pooling);
    let (plane, lanes) = (field.grid.input_plane(), field.lanes);
    let scatter = Scatter { field, pooling, base, dy, indices };
    let blocks = lanes.div_ceil(LANES);
    let is_wrong = AtomicBool::new(false);
    let compute = |dx: Shared<'_, T>| {
        let is_small = dx.len() <= SMALL;
        let tasks = field.outer * blocks;
        shared::run(tasks, items(&field), is_small, |task, sums: &mut [f64]| {
            let (outer, first) = (task / blocks, task % blocks * LANES);
            let own = LANES.min(lanes - first);
            let sums = &mut sums[..plane * own];
            if !scatter.block(outer, first, own, sums) {
                is_wrong.store(true, Ordering::Relaxed);
            }
            let at = outer * plane * lanes + first;
            if own == lanes {
                // SAFETY: the task has the whole plane.
                return narrow(sums, unsafe { dx.slice(at, sums.len()) });
            }
            for (pixel, sums) in sums.chunks_exact(own).enumerate() {
                // SAFETY: no other task has these lanes.
                narrow(sums, unsafe { dx.slice(at + pixel * lanes, own) });
            }
        });
    };
    // SAFETY: the lanes of the tasks are all elements.
    let dx = unsafe { written(pooling.input().elements(), compute) };
    if is_wrong.into_inner() {
        check_indices(pooling, base, indices)?;
    }
    Ok(dx)
}

/// The bytes that all threads need.
pub(super) fn scratch(pooling: &Pooling) -> usize {
    let items = items(&Field::of(pooling));
    items.saturating_mul(size_of::<f64>() * rayon::current_num_threads())
}

/// The items that a task needs.
fn items(field: &Field<'_>) -> usize {
    field.grid.input_plane().saturating_mul(field.lanes.min(LANES))
}

struct Scatter<'a, T> {
    field: Field<'a>,
    pooling: &'a Pooling,
    base: IndexBase,
    dy: &'a [T],
    indices: &'a [i32],
}

impl<T: Poolable> Scatter<'_, T> {
    /// Adds up some lanes of an outer position; returns whether each index is a position in its plane.
    fn block(&self, outer: usize, first: usize, own: usize, sums: &mut [f64]) -> bool {
        let Field { grid, lanes, .. } = self.field;
        let strides = self.pooling.index_strides(self.base);
        let step = strides.space[AXES - 1] as u64;
        let mut bases = [0; LANES];
        for (lane, base) in bases[..own].iter_mut().enumerate() {
            *base = self.field.index_base(&strides, outer, first + lane) as u64;
        }
        sums.fill(0.0);
        let (plane, outputs) = (grid.input_plane() as u64, grid.output_plane());
        // The outputs that follow each other in memory, as far as they are converted at once.
        let run = if own == lanes { outputs * lanes } else { own };
        let mut terms = [0.0; CHUNK];
        let mut is_right = true;
        for start in (0..outputs * own).step_by(run) {
            let at = (outer * outputs + start / own) * lanes + first;
            let chunks = self.dy[at..][..run].chunks(CHUNK);
            let chunks = chunks.zip(self.indices[at..][..run].chunks(CHUNK));
            let mut lane = 0;
            for (dy, indices) in chunks {
                let terms = &mut terms[..dy.len()];
                T::widen(dy, terms, |_, term| term);
                for (term, index) in terms.iter().zip(indices) {
                    // A negative index, or one below the base, is behind every plane.
                    let steps = (i64::from(*index) as u64).wrapping_sub(bases[lane]);
                    let (pixel, rest) =
                        if step == 1 { (steps, 0) } else { (steps / step, steps % step) };
                    if *index >= 0 && pixel < plane && rest == 0 {
                        sums[pixel as usize * own + lane] += term;
                    } else {
                        is_right &= *index == -1;
                    }
                    lane = if lane + 1 == own { 0 } else { lane + 1 };
                }
            }
        }
        is_right
    }
}
