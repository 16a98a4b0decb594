//! Registers that loops carry: vectors that are written again and again, by a number known when a kernel is
//! compiled.

use cubecl::prelude::*;

/// So many vectors of a unit.
pub(crate) type Registers<T, N> = Sequence<RuntimeCell<Vector<T, N>>>;

/// So many vectors of zeros.
#[cube]
pub(crate) fn zeros<T: Float, N: Size>(#[comptime] count: u32) -> Registers<T, N> {
    let mut zeros = Sequence::<RuntimeCell<Vector<T, N>>>::new();
    #[unroll]
    for _ in 0..count {
        zeros.push(RuntimeCell::new(Vector::new(T::from_int(0))));
    }
    zeros
}

/// What they hold.
#[cube]
pub(crate) fn read<T: Float, N: Size>(registers: &Registers<T, N>) -> Sequence<Vector<T, N>> {
    let mut values = Sequence::<Vector<T, N>>::new();
    #[unroll]
    for i in 0..registers.len() {
        values.push(registers.index(i).read());
    }
    values
}
