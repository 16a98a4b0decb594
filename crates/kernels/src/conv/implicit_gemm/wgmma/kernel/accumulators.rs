//! The accumulators of a warpgroup, and the products that are added to them.
//!
//! Products are asynchronous and run in the order in which they were issued. Accumulators are handed over to them
//! (`started`), a group of products is marked (`commit`), and waited for.

use cubecl::prelude::*;
use cubecl::wgmma::{Accumulator, MatrixDescriptor};

use super::super::tile::ROWS;
use super::form::Form;

/// A unit's accumulators for 64 rows.
pub(super) type Accumulators = Array<f32>;

/// Accumulators that products are being added to.
pub(super) type Running = cubecl::prelude::Pending<Accumulator<f32>>;

/// Accumulators set to zero, for all rows of a warpgroup.
#[cube]
pub(super) fn zeros(#[comptime] form: Form) -> Sequence<Accumulator<f32>> {
    let mut sums = Sequence::<Accumulator<f32>>::new();
    #[unroll]
    for _ in 0..form.tile.ratio_m {
        sums.push(Accumulator::<f32>::new(comptime!(form.tile.block_n as usize)));
    }
    sums
}

#[cube]
pub(super) fn values(sums: &Accumulator<f32>) -> Accumulators {
    let mut values = Array::<f32>::new(sums.len());
    #[unroll]
    for i in 0..sums.len() {
        values[i] = sums.get(i);
    }
    values
}

/// Hands the accumulators over to the products that follow.
#[cube]
pub(super) fn started(sums: &Sequence<Accumulator<f32>>) -> Sequence<Running> {
    let mut running = Sequence::<Running>::new();
    #[unroll]
    for i in 0..sums.len() {
        running.push(sums.index(i).clone().start());
    }
    running
}

/// Issues all products of a stage.
#[cube]
pub(super) fn multiply_all<E: Float>(
    sums: &mut Sequence<Running>,
    rows: &MatrixDescriptor<E>,
    columns: &MatrixDescriptor<E>,
    #[comptime] form: Form,
) {
    #[unroll]
    for k in 0..form.instructions {
        multiply(sums, rows, columns, k, form);
    }
}

/// Issues the `k`-th matrix instructions of a stage, one for each 64 rows.
#[cube]
pub(super) fn multiply<E: Float>(
    sums: &mut Sequence<Running>,
    rows: &MatrixDescriptor<E>,
    columns: &MatrixDescriptor<E>,
    #[comptime] k: usize,
    #[comptime] form: Form,
) {
    let term = comptime!(k * form.step());
    // In planar pixels the next terms are the same chunks of pixels, some pixels later.
    let (shift, row_term) = comptime!(match form.planar {
        Some(shift) => (k as u32 * shift, 0),
        None => (0, term),
    });
    #[unroll]
    for i in 0..form.tile.ratio_m {
        let rows = rows.at(comptime!((shift + i * ROWS) as usize), row_term);
        sums.index_mut(comptime!(i as usize)).execute(&rows, &columns.at(0usize, term));
    }
}
