//! The loops over windows of each element type. They are compiled here once, and not in every crate that pools.

use half::{bf16, f16};
use windowpane_geometry::{Divisor, Extremum, IndexBase, Pooling};
use windowpane_reference::pool::backward::IndexOutOfRange;

use super::backward::{Cut, average_backward};
use super::element::Poolable;
use super::field::Field;
use super::scatter::max_backward;
use super::sink::{Divisors, Quotients, Values, Winners};
use super::source::{Keys, Packed, Power, Terms};
use super::sweep::Sweep;
use crate::shared::written;

/// What an element type computes.
pub(super) trait Loops: Sized {
    /// The extremum of each window.
    fn extremum(sweep: &Sweep, pooling: &Pooling, of: Extremum, x: &[Self]) -> Vec<Self>;

    /// The extremum of each window and its index.
    fn extremum_with_indices(
        sweep: &Sweep,
        pooling: &Pooling,
        of: Extremum,
        base: IndexBase,
        x: &[Self],
    ) -> (Vec<Self>, Vec<i32>);

    /// The sum of each window, divided, or its norm.
    fn sum(
        sweep: &Sweep,
        pooling: &Pooling,
        divisor: Divisor,
        power: Power,
        x: &[Self],
    ) -> Vec<Self>;

    /// The gradient of an average.
    fn average_backward(cut: &Cut, pooling: &Pooling, divisor: Divisor, dy: &[Self]) -> Vec<Self>;

    /// The gradient of an extremum.
    fn max_backward(
        pooling: &Pooling,
        base: IndexBase,
        dy: &[Self],
        indices: &[i32],
    ) -> Result<Vec<Self>, IndexOutOfRange>;
}

macro_rules! loops {
    ($($type:ty),*) => {$(
        impl Loops for $type {
            fn extremum(sweep: &Sweep, pooling: &Pooling, of: Extremum, x: &[Self]) -> Vec<Self> {
                match of {
                    Extremum::Max => values::<Self, false>(sweep, pooling, x),
                    Extremum::Min => values::<Self, true>(sweep, pooling, x),
                }
            }

            fn extremum_with_indices(
                sweep: &Sweep,
                pooling: &Pooling,
                of: Extremum,
                base: IndexBase,
                x: &[Self],
            ) -> (Vec<Self>, Vec<i32>) {
                match of {
                    Extremum::Max => winners::<Self, false>(sweep, pooling, base, x),
                    Extremum::Min => winners::<Self, true>(sweep, pooling, base, x),
                }
            }

            fn sum(
                sweep: &Sweep,
                pooling: &Pooling,
                divisor: Divisor,
                power: Power,
                x: &[Self],
            ) -> Vec<Self> {
                sums(sweep, pooling, divisor, power, x)
            }

            fn average_backward(
                cut: &Cut,
                pooling: &Pooling,
                divisor: Divisor,
                dy: &[Self],
            ) -> Vec<Self> {
                average_backward(cut, pooling, divisor, dy)
            }

            fn max_backward(
                pooling: &Pooling,
                base: IndexBase,
                dy: &[Self],
                indices: &[i32],
            ) -> Result<Vec<Self>, IndexOutOfRange> {
                max_backward(pooling, base, dy, indices)
            }
        }
    )*};
}

loops!(f64, f32, f16, bf16, i32, i16, u16, i8, u8);

fn values<T: Poolable, const MIN: bool>(sweep: &Sweep, pooling: &Pooling, x: &[T]) -> Vec<T> {
    let field = Field::of(pooling);
    // SAFETY: a sweep writes every result.
    unsafe {
        written(pooling.output().elements(), |y| {
            sweep.run(&Keys::<T, MIN>(x), &Values::<T, MIN> { field, y });
        })
    }
}

fn winners<T: Poolable, const MIN: bool>(
    sweep: &Sweep,
    pooling: &Pooling,
    base: IndexBase,
    x: &[T],
) -> (Vec<T>, Vec<i32>) {
    let (field, strides) = (Field::of(pooling), pooling.index_strides(base));
    let source = Packed::<T, MIN> { x, lanes: field.lanes, plane: field.grid.input_plane() };
    let outputs = pooling.output().elements();
    let mut indices = Vec::new();
    // SAFETY: a sweep writes every result.
    let y = unsafe {
        written(outputs, |y| {
            indices = written(outputs, |indices| {
                sweep.run(&source, &Winners::<T, MIN> { field, strides, x, y, indices });
            });
        })
    };
    (y, indices)
}

fn sums<T: Poolable>(
    sweep: &Sweep,
    pooling: &Pooling,
    divisor: Divisor,
    power: Power,
    x: &[T],
) -> Vec<T> {
    let field = Field::of(pooling);
    let divisors = Divisors::new(field.grid, divisor);
    // SAFETY: a sweep writes every result.
    unsafe {
        written(pooling.output().elements(), |y| {
            sweep.run(&Terms { x, power }, &Quotients { field, divisors, power, y });
        })
    }
}
