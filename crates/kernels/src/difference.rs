//! The difference of two tensors: `y[i] = a[i] − b[i]`, a unit for each vector.
//!
//! Those of integers that their type does not have become its least or greatest number.

use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::DType;

use crate::cube::buffers::{self, BufferError, Given};
use crate::cube::convert::{accumulator, elem, round};
use crate::cube::unit::{plain_grid, unit_position, widest_lanes};
use crate::device::Target;
use crate::packed;

/// Writes the differences of the elements of `a` and `b`, of any type, to `y`.
///
/// The launch is asynchronous.
pub fn difference(
    target: Target<'_>,
    dtype: DType,
    elements: usize,
    [a, b, y]: [&Handle; 3],
) -> Result<(), BufferError> {
    let given = |name, handle| Given { name, handle, dtype, elements };
    let read = [given("the first tensor", a), given("the second tensor", b)];
    buffers::check(target.device, &read, &[given("the difference", y)])?;
    if elements == 0 {
        return Ok(());
    }
    let range = dtype.integers();
    packed::computed(target, dtype, [(a, elements), (y, elements)], |computed, a, y| {
        let b = match computed == dtype {
            true => b.clone(),
            false => packed::unpack(target, dtype, b, elements),
        };
        launch(target, computed, range, elements, [a, &b, y]);
    });
    Ok(())
}

/// Launches the kernel on checked buffers of a type that kernels have, with at least one element.
fn launch(
    target: Target<'_>,
    dtype: DType,
    range: Option<(i64, i64)>,
    elements: usize,
    [a, b, y]: [&Handle; 3],
) {
    let Target { client, device } = target;
    let computed = accumulator(dtype);
    let lanes = widest_lanes(device, dtype.size().max(computed.size()), elements);
    let vectors = elements / lanes;
    let (cubes, units) = plain_grid(target, vectors);
    let form = Form {
        rounds: dtype == DType::BF16 && !device.rounds_bf16,
        contiguous: device.cores.is_some(),
    };
    let tensor = |handle: &Handle| {
        // SAFETY: the buffer holds all elements.
        unsafe { BufferArg::from_raw_parts(handle.clone(), vectors) }
    };
    let (a, b, y, types) = (tensor(a), tensor(b), tensor(y), [elem(dtype), elem(computed)]);
    // SAFETY: a unit past the last vector ends.
    unsafe {
        match range {
            None => floats::launch_unchecked(
                client,
                cubes,
                units,
                lanes,
                a,
                b,
                y,
                vectors as u32,
                form,
                types,
            ),
            Some((least, most)) => integers::launch_unchecked(
                client,
                cubes,
                units,
                lanes,
                a,
                b,
                y,
                vectors as u32,
                InputScalar::new(least, types[1]),
                InputScalar::new(most, types[1]),
                form,
                types,
            ),
        }
    }
}

/// The parameters that change a kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    rounds: bool,
    contiguous: bool,
}

#[cube(launch_unchecked)]
fn floats<S: Float, A: Float, N: Size>(
    a: &[Vector<S, N>],
    b: &[Vector<S, N>],
    y: &mut [Vector<S, N>],
    vectors: u32,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let at = unit_position(form.contiguous);
    if at >= vectors {
        terminate!();
    }
    let (a, b) = (Vector::cast_from(a[at as usize]), Vector::cast_from(b[at as usize]));
    y[at as usize] = round::<A, S, N>(a - b, form.rounds);
}

#[cube(launch_unchecked)]
fn integers<S: Int, A: Int, N: Size>(
    a: &[Vector<S, N>],
    b: &[Vector<S, N>],
    y: &mut [Vector<S, N>],
    vectors: u32,
    least: InputScalar,
    most: InputScalar,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let at = unit_position(form.contiguous);
    if at >= vectors {
        terminate!();
    }
    let least = Vector::<A, N>::new(least.get::<A>());
    let most = Vector::<A, N>::new(most.get::<A>());
    let zero = Vector::<A, N>::new(A::from_int(0));
    let a = Vector::<A, N>::cast_from(a[at as usize]);
    let b = Vector::<A, N>::cast_from(b[at as usize]);
    // The difference is at most `most` if `a` is at most `b + most`, which does not wrap around for a `b` below zero; and
    // likewise for the least.
    let below = b.less_than(&zero);
    let above = below.vec_and(a.greater_than(&(min(b, zero) + most)));
    let under = a.less_than(&(max(b, zero) + least));
    let under = under.vec_and(b.greater_than(&zero));
    let difference = select_many(above, most, select_many(under, least, a - b));
    y[at as usize] = Vector::cast_from(max(min(difference, most), least));
}
