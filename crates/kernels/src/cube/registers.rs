//! Registers that loops update: vectors that are written repeatedly, whose number is known at compile time.

use cubecl::prelude::*;

/// Vectors of a unit, held in registers.
pub(crate) type Registers<T, N> = Sequence<RuntimeCell<Vector<T, N>>>;

/// `count` vectors of zeros.
#[cube]
pub(crate) fn zeros<T: Float, N: Size>(#[comptime] count: u32) -> Registers<T, N> {
    let mut zeros = Sequence::<RuntimeCell<Vector<T, N>>>::new();
    #[unroll]
    for _ in 0..count {
        zeros.push(RuntimeCell::new(Vector::new(T::from_int(0))));
    }
    zeros
}

/// The current values of the registers.
#[cube]
pub(crate) fn read<T: Float, N: Size>(registers: &Registers<T, N>) -> Sequence<Vector<T, N>> {
    let mut values = Sequence::<Vector<T, N>>::new();
    #[unroll]
    for i in 0..registers.len() {
        values.push(registers.index(i).read());
    }
    values
}
