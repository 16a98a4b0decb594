//! The loops over windows of each element type. They are compiled here once, and not in every crate that pools.

use half::{bf16, f16};
use windowpane_geometry::{Divisor, Extremum, IndexBase, Pooling};
use windowpane_reference::pool::Algorithm;
use windowpane_reference::pool::backward::IndexOutOfRange;

use super::backward::{Cut, average_backward};
use super::element::{Narrow, Poolable};
use super::field::Field;
use super::item::Whole;
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

    /// The cut of a sum, for the items that its loops compute with.
    fn cut(algorithm: Algorithm, pooling: &Pooling) -> Option<Sweep>;

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
    ($sums:ident: $($type:ty),*) => {$(
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

            fn cut(algorithm: Algorithm, pooling: &Pooling) -> Option<Sweep> {
                $sums::cut(size_of::<Self>(), algorithm, pooling)
            }

            fn sum(
                sweep: &Sweep,
                pooling: &Pooling,
                divisor: Divisor,
                power: Power,
                x: &[Self],
            ) -> Vec<Self> {
                $sums::sums(sweep, pooling, divisor, power, x)
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

loops!(in_f64: f64, f32, f16, bf16);
loops!(beyond_f64: i64, i32, u32, bool);
loops!(whole: i16, u16, i8, u8);

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

/// Sums in `f64`.
mod in_f64 {
    use super::*;

    pub(super) fn cut(_: usize, algorithm: Algorithm, pooling: &Pooling) -> Option<Sweep> {
        Sweep::new::<f64>(&Field::of(pooling), algorithm)
    }

    pub(super) fn sums<T: Poolable>(
        sweep: &Sweep,
        pooling: &Pooling,
        divisor: Divisor,
        power: Power,
        x: &[T],
    ) -> Vec<T> {
        quotients(pooling, divisor, power, |y| sweep.run::<f64>(&Terms { x, power }, y))
    }
}

/// Sums of integers that an `f64` may not hold, which the reference computes. Of `bool` there are none.
mod beyond_f64 {
    use super::*;

    pub(super) fn cut(_: usize, _: Algorithm, _: &Pooling) -> Option<Sweep> {
        None
    }

    pub(super) use in_f64::sums;
}

/// Sums of integers in `i32`, or in `f64` if they may not fit. Both are exact.
mod whole {
    use super::*;

    /// The cut for elements of `size` bytes.
    pub(super) fn cut(size: usize, algorithm: Algorithm, pooling: &Pooling) -> Option<Sweep> {
        let largest = 1 << (8 * size);
        let taps = pooling.grid().axes().iter().map(|axis| axis.kernel());
        match taps.fold(largest, usize::saturating_mul) <= i32::MAX as usize {
            true => Sweep::new::<Whole>(&Field::of(pooling), algorithm),
            false => in_f64::cut(size, algorithm, pooling),
        }
    }

    pub(super) fn sums<T: Narrow>(
        sweep: &Sweep,
        pooling: &Pooling,
        divisor: Divisor,
        power: Power,
        x: &[T],
    ) -> Vec<T> {
        if !sweep.can_leave {
            return in_f64::sums(sweep, pooling, divisor, power, x);
        }
        quotients(pooling, divisor, power, |y| sweep.run::<Whole>(&Terms { x, power }, y))
    }
}

/// What is divided, or roots of it, from what writes it.
fn quotients<T: Poolable>(
    pooling: &Pooling,
    divisor: Divisor,
    power: Power,
    write: impl FnOnce(&Quotients<'_, T>),
) -> Vec<T> {
    let field = Field::of(pooling);
    let divisors = Divisors::new(field.grid, divisor);
    let divisors = if field.lanes == 1 { divisors.listed(field.outer) } else { divisors };
    // SAFETY: a sweep writes every result.
    unsafe {
        written(pooling.output().elements(), |y| write(&Quotients { field, divisors, power, y }))
    }
}
