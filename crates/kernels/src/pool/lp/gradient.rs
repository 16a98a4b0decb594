//! The gradient of the norm as a gather: one unit per input vector.
//!
//! ```text
//! norms[o] = (Σ|x|^p)^(1/p)                 computed by the norm's kernel, in the accumulator's type
//! for each input (n, x, c):                 one unit, lanes along c
//!     for each window o over x:             row-major, so that the sum has one order
//!         add dy[o] · sign(x) · (|x|/norms[o])^(p−1)
//! ```
//!
//! The gradient of an `x` of 0 is 0. `p = 1` needs no norms. The code departs from this in three ways. Quotients of f32
//! are computed from the significands, and the difference of the exponents is an integer. For `p < 2`, whose power
//! makes very small quotients larger, such a quotient is scaled up first. A norm that overflows f32 is stored scaled
//! down and marked.

use cubecl::client::Client;
use cubecl::prelude::*;
use windowpane_geometry::{DType, Exponent};

use super::bits::{INFINITY, NAN, parts_of, shifted, size_bits};
use super::kernel::power;
use super::{LESS, Power, launch_into, workspace};
use crate::cube::convert::{accumulator, elem, round};
use crate::cube::numbers;
use crate::cube::optional::Optional;
use crate::cube::unit::unit_position;
use crate::pool::common::cover::{GatherArgs, GatherForm, gather_args, site_of, window_at};
use crate::pool::common::{Task, Tensor, optional};

/// Launches the gradient of a norm. The caller has checked the plan and the buffers: `dy` has as many elements as the
/// output, `x` and `dx` as many as the input.
pub(super) fn launch_gradient(
    client: &Client,
    task: Task<'_>,
    p: Exponent,
    [dy, x, dx]: [Tensor<'_>; 3],
) {
    let (lanes, sums) = (task.lanes(), accumulator(task.dtype()));
    let norms = match workspace(task, p) {
        0 => optional(None, lanes),
        bytes => {
            let norms = client.empty(bytes);
            let norms = Tensor::new(&norms, task.outputs());
            launch_into(client, task, p, sums, sums != DType::F64, [x, norms]);
            optional(Some(norms), lanes)
        }
    };
    let (cubes, units) = task.grid(client, task.inputs() / lanes);
    let q = p.get() - 1.0;
    let undone = f64::from(FAR) * q;
    let form = SlopeForm {
        gather: GatherForm { windows: None, ..GatherForm::new(task) },
        power: Power::of(p),
        double: sums == DType::F64,
        root: q < 1.0,
    };
    let args = numbers! { SlopeArgsLaunch {
        gather: gather_args(task), exponent: InputScalar::new(q, elem(sums)),
        orders: undone as i32, rest: InputScalar::new((-undone.fract()).exp2(), elem(sums)),
    } };
    // SAFETY: every access of the kernel is inside the tensors by the arithmetic of `Axis`.
    unsafe {
        slope::launch_unchecked(
            client,
            cubes,
            units,
            lanes,
            dy.vectors(lanes),
            x.vectors(lanes),
            norms,
            dx.vectors(lanes),
            args,
            form,
            [task.elem(), elem(sums)],
        )
    };
}

#[derive(CubeType, CubeLaunch)]
struct SlopeArgs {
    gather: GatherArgs,
    /// `p − 1`.
    exponent: InputScalar,
    /// The power of a very small quotient that was scaled up is scaled down by this many powers of two, and by the
    /// factor `rest` for the remaining fraction of one.
    orders: i32,
    rest: InputScalar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SlopeForm {
    gather: GatherForm,
    power: Power,
    /// Whether sums have 64 bits.
    double: bool,
    /// Whether the power makes small quotients larger.
    root: bool,
}

/// A quotient below `2^−NEAR`, which may be less than `2^−300`, is scaled up by `2^FAR`.
const FAR: i32 = 184;
const NEAR: i32 = 100;

#[cube(launch_unchecked)]
fn slope<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    x: &[Vector<S, N>],
    norms: Optional<Box<[Vector<A, N>]>>,
    dx: &mut [Vector<S, N>],
    args: &SlopeArgs,
    #[comptime] form: SlopeForm,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let vector = unit_position(form.gather.window.contiguous);
    if vector >= args.gather.problem.vectors {
        terminate!();
    }
    let window = comptime!(form.gather.window);
    let site = site_of(&args.gather, vector, window);
    let x = Vector::<A, N>::cast_from(x[vector as usize]);
    let zero = Vector::<A, N>::new(A::from_int(0));
    let mut sum = zero;
    for o in site.windows() {
        let over = window_at(&args.gather, &site, o, form.gather);
        let at = over.vector as usize;
        let gradient = Vector::<A, N>::cast_from(dy[at]);
        let share = #[comptime]
        match &norms.given {
            ComptimeOption::Some(norms) => gradient * steepness::<A, N>(x, norms[at], args, form),
            ComptimeOption::None => gradient,
        };
        sum += select(over.reads, share * sign(x, form), zero);
    }
    let nothing = if comptime!(form.double) {
        x.equal(&zero)
    } else {
        size_bits::<A, N>(x).equal(&Vector::new(0i32))
    };
    dx[vector as usize] = round::<A, S, N>(select_many(nothing, zero, sum), window.rounds);
}

/// The sign of a number; NaN for a NaN.
#[cube]
fn sign<A: Float, N: Size>(x: Vector<A, N>, #[comptime] form: SlopeForm) -> Vector<A, N> {
    if comptime!(form.double) {
        let one = Vector::<A, N>::new(A::from_int(1));
        let negative = x.less_than(&Vector::new(A::from_int(0)));
        select_many(x.is_nan(), x, select_many(negative, -one, one))
    } else {
        let bits = Vector::<i32, N>::reinterpret(x);
        let one = (bits & Vector::new(i32::MIN)) | Vector::new(0x3f80_0000i32);
        let is_nan = size_bits::<A, N>(x).greater_than(&Vector::new(INFINITY));
        Vector::<A, N>::reinterpret(select_many(is_nan, bits, one))
    }
}

/// `(|x| / norm)^(p − 1)`.
#[cube]
fn steepness<A: Float, N: Size>(
    x: Vector<A, N>,
    norm: Vector<A, N>,
    args: &SlopeArgs,
    #[comptime] form: SlopeForm,
) -> Vector<A, N> {
    if comptime!(form.double) {
        let quotient = x.abs() / norm;
        if comptime!(form.power == Power::Two) {
            quotient
        } else {
            power(quotient, Vector::new(args.exponent.get::<A>()))
        }
    } else {
        let (size, whole) = (size_bits::<A, N>(x), size_bits::<A, N>(norm));
        let steepness = finite_steepness::<A, N>(x, norm, args, form);
        let infinity = Vector::<i32, N>::new(INFINITY);
        let bits = Vector::<i32, N>::reinterpret(steepness);
        let bits = select_many(whole.equal(&infinity), Vector::new(0i32), bits);
        let no_number = size.greater_equal(&infinity).or(whole.greater_than(&infinity));
        Vector::<A, N>::reinterpret(select_many(no_number, Vector::new(NAN), bits))
    }
}

/// The same for finite 32-bit numbers that are not 0.
#[cube]
fn finite_steepness<A: Float, N: Size>(
    x: Vector<A, N>,
    norm: Vector<A, N>,
    args: &SlopeArgs,
    #[comptime] form: SlopeForm,
) -> Vector<A, N> {
    let own = parts_of::<A, N>(size_bits::<A, N>(x));
    let all = parts_of::<A, N>(size_bits::<A, N>(norm));
    let digits = own.fraction / all.fraction;
    let none = Vector::<i32, N>::new(0i32);
    let marked = Vector::<i32, N>::reinterpret(norm).less_than(&none);
    let less = select_many(marked, Vector::new(LESS), none);
    let exponent = own.exponent - all.exponent - less;
    if comptime!(form.power == Power::Two) {
        shifted::<A, N>(digits, exponent)
    } else if comptime!(form.root) {
        let small = exponent.less_than(&Vector::new(-NEAR));
        let up = select_many(small, Vector::new(FAR), none);
        let near = shifted::<A, N>(digits, exponent + up);
        let near = near.powf(Vector::new(args.exponent.get::<A>()));
        let far = near * Vector::new(args.rest.get::<A>());
        select_many(small, shifted::<A, N>(far, Vector::new(-args.orders)), near)
    } else {
        power(shifted::<A, N>(digits, exponent), Vector::new(args.exponent.get::<A>()))
    }
}
