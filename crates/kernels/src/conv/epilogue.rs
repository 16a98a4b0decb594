//! What follows a sum, in registers: bias, residual, activation, rounding.

use cubecl::prelude::*;
use windowpane_geometry::{Activation, DType};

use crate::dtype::round;

/// What of an epilogue changes the code of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EpilogueForm {
    activation: Kind,
    /// Whether sums are `f64`, for which the device's own error function is too coarse.
    wide: bool,
    bf16: bool,
}

/// An activation without its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    None,
    Relu,
    Relu6,
    Gelu,
    Silu,
    Leaky,
}

impl EpilogueForm {
    pub(super) fn new(activation: Activation, dtype: DType) -> Self {
        let activation = match activation {
            Activation::None => Kind::None,
            Activation::Relu => Kind::Relu,
            Activation::Relu6 => Kind::Relu6,
            Activation::Gelu => Kind::Gelu,
            Activation::Silu => Kind::Silu,
            Activation::Leaky(_) => Kind::Leaky,
            // The enum may grow; this crate grows with it.
            other => unreachable!("{other} has no kernel"),
        };
        Self { activation, wide: dtype == DType::F64, bf16: dtype == DType::BF16 }
    }

    /// Only the rounding to a type.
    pub(super) fn plain(dtype: DType) -> Self {
        Self::new(Activation::None, dtype)
    }
}

/// What the negative side is multiplied by, where an activation asks.
pub(super) fn slope(activation: Activation) -> f32 {
    match activation {
        Activation::Leaky(slope) => slope,
        _ => 0.0,
    }
}

/// A sum, its bias and residual added already, activated and rounded.
#[cube]
pub(super) fn finish<S: Float, A: Float, N: Size>(
    sum: Vector<A, N>,
    slope: f32,
    #[comptime] form: EpilogueForm,
) -> Vector<S, N> {
    round::<A, S, N>(activate::<A, N>(sum, slope, form), form.bf16)
}

/// Selects rather than takes maxima, so that a NaN stays one.
#[cube]
fn activate<A: Float, N: Size>(
    v: Vector<A, N>,
    slope: f32,
    #[comptime] form: EpilogueForm,
) -> Vector<A, N> {
    let zero = Vector::<A, N>::new(A::from_int(0));
    if comptime!(form.activation == Kind::Relu) {
        select_many(v.less_than(&zero), zero, v)
    } else if comptime!(form.activation == Kind::Relu6) {
        let six = Vector::<A, N>::new(A::from_int(6));
        let v = select_many(v.less_than(&zero), zero, v);
        select_many(v.greater_than(&six), six, v)
    } else if comptime!(form.activation == Kind::Leaky) {
        select_many(v.less_than(&zero), v * Vector::new(A::cast_from(slope)), v)
    } else if comptime!(form.activation == Kind::Silu) {
        v / (Vector::new(A::from_int(1)) + (-v).exp())
    } else if comptime!(form.activation == Kind::Gelu) {
        let z = v * Vector::new(A::new(core::f64::consts::FRAC_1_SQRT_2));
        let erf = if comptime!(form.wide) { error_function::<A, N>(v) } else { z.erf() };
        v * (Vector::new(A::new(0.5)) * (Vector::new(A::from_int(1)) + erf))
    } else {
        v
    }
}

/// The terms of the series below that an argument of 2.5 needs, and the steps of its fraction.
const TERMS: u32 = 60;

/// `erf(v/√2)` to all digits of an `f64`: what is missing to 1 as a continued fraction, and near 0,
/// where that does not converge, a series.
#[cube]
fn error_function<A: Float, N: Size>(v: Vector<A, N>) -> Vector<A, N> {
    let one = Vector::<A, N>::new(A::from_int(1));
    let two = Vector::<A, N>::new(A::from_int(2));
    let root = two.sqrt();
    let z = v.abs() / root;
    let near = Vector::<A, N>::new(A::new(2.5));
    let is_near = z.less_than(&near);
    // Each branch is fed an argument that it can take, and selected where it was meant.
    let inner = select_many(is_near, z, near);
    let outer = select_many(is_near, near, z);

    let mut term = inner;
    let mut sum = inner;
    let mut fraction = outer;
    for i in 1..TERMS {
        let odd = Vector::new(A::cast_from(2 * i + 1));
        term = term * two * inner * inner / odd;
        sum += term;
        let step = Vector::new(A::cast_from(TERMS - i));
        fraction = outer + step / two / fraction;
    }
    let root_pi = Vector::<A, N>::new(A::new(1.772_453_850_905_516));
    let series = two / root_pi * (-inner * inner).exp() * sum;
    let missing = (-outer * outer).exp() / root_pi / fraction;
    let erf = select_many(is_near, series, one - missing);
    let erf = select_many(v.less_than(&Vector::new(A::from_int(0))), -erf, erf);
    select_many(v.is_nan(), v, erf)
}
