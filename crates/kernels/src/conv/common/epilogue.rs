//! The epilogue of a sum, in registers: bias, residual, activation, rounding.
//!
//! The sums of a quantized convolution are integers. Each is multiplied by the scale of its filter, then the bias is added,
//! in `f32` and rounded after each step, so that every device gives the same bits.

use cubecl::prelude::*;
use cubecl::server::Handle;
use windowpane_geometry::{Activation, DType};

use super::buffer;
use crate::cube::optional::{Optional, OptionalLaunch, optional as given_or_not};
use crate::cube::{nearest_integers, rectified, round};

/// The compile-time options of an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EpilogueForm {
    activation: Kind,
    /// Whether sums are `f64`. The device's own error function is too inaccurate for them.
    wide: bool,
    /// Whether the kernel must round bf16 itself.
    bf16: bool,
    /// Whether sums are integers that have scales.
    scaled: bool,
    /// Whether scaled sums are rounded to integers of 8 bits.
    to_int8: bool,
}

/// An activation without its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    None,
    Relu,
    Relu6,
    Gelu,
    Silu,
    Leaky,
}

/// The epilogue of each sum of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epilogue<'a> {
    /// One number per filter, in the type of the results, or in `f32` where there are scales.
    pub(crate) bias: Option<&'a Handle>,
    /// The scale of each filter's sums in `f32`, if these are integers.
    pub(crate) scale: Option<&'a Handle>,
    pub(crate) residual: Option<&'a Handle>,
    pub(crate) activation: Activation,
    /// Whether the device rounds bf16 to nearest even.
    pub(crate) rounds: bool,
}

impl Epilogue<'_> {
    /// No epilogue except rounding.
    pub(crate) const NONE: Self = Self {
        bias: None,
        scale: None,
        residual: None,
        activation: Activation::None,
        rounds: false,
    };

    pub(crate) fn form(&self, stored: DType) -> EpilogueForm {
        let activation = match self.activation {
            Activation::None => Kind::None,
            Activation::Relu => Kind::Relu,
            Activation::Relu6 => Kind::Relu6,
            Activation::Gelu => Kind::Gelu,
            Activation::Silu => Kind::Silu,
            Activation::Leaky(_) => Kind::Leaky,
            // The enum is non-exhaustive; a new activation needs a kernel here.
            other => unreachable!("{other} has no kernel"),
        };
        let (wide, bf16) = (stored == DType::F64, stored == DType::BF16 && !self.rounds);
        let scaled = self.scale.is_some();
        EpilogueForm { activation, wide, bf16, scaled, to_int8: scaled && !stored.is_float() }
    }

    /// Whether what is done to a sum depends on its filter.
    pub(crate) fn depends_on_filter(&self) -> bool {
        self.bias.is_some() || self.scale.is_some()
    }

    /// The kernel arguments, for `filters` filters and `results` results in vectors of `lanes`, of type `stored`.
    pub(crate) fn args<S: Float, N: Size>(
        &self,
        filters: usize,
        results: usize,
        lanes: usize,
        stored: DType,
    ) -> EpilogueArgsLaunch<S, N> {
        let slope = match self.activation {
            Activation::Leaky(slope) => slope,
            _ => 0.0,
        };
        let vectors = filters / lanes;
        let bias_if = |scaled: bool| self.bias.filter(|_| self.scale.is_some() == scaled);
        EpilogueArgsLaunch::new(
            optional(bias_if(false), vectors),
            optional(self.scale, vectors),
            optional(bias_if(true), vectors),
            optional(self.residual, results / lanes),
            slope,
            0,
            self.form(stored),
        )
    }
}

/// A tensor that may be missing, in vectors.
pub(crate) fn optional<T: LaunchArg<RuntimeArg = BufferArg>>(
    handle: Option<&Handle>,
    vectors: usize,
) -> OptionalLaunch<T> {
    given_or_not(handle.map(|handle| buffer(handle, vectors)))
}

/// What is added to sums, in vectors like those of the results, and the factor for negative numbers.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct EpilogueArgs<S: Float, N: Size> {
    pub(crate) bias: Optional<Box<[Vector<S, N>]>>,
    /// The scales of sums that are integers, and what is added to the scaled sums.
    scale: Optional<Box<[Vector<f32, N>]>>,
    scaled_bias: Optional<Box<[Vector<f32, N>]>>,
    pub(crate) residual: Optional<Box<[Vector<S, N>]>>,
    pub(crate) slope: f32,
    /// A zero that compilers do not know.
    zero: u32,
    #[cube(comptime)]
    pub(crate) form: EpilogueForm,
}

/// Activates and rounds a sum that already includes its bias and residual.
#[cube]
pub(crate) fn finish<S: Float, A: Float, N: Size>(
    sum: Vector<A, N>,
    slope: f32,
    #[comptime] form: EpilogueForm,
) -> Vector<S, N> {
    round::<A, S, N>(activate::<A, N>(sum, slope, form), form.bf16)
}

/// Adds bias and residual to a sum, then activates and rounds it. A sum with a scale has no residual.
#[cube]
pub(crate) fn finish_at<S: Float, A: Float, N: Size>(
    epilogue: &EpilogueArgs<S, N>,
    sum: Vector<A, N>,
    channel: u32,
    at: u32,
) -> Vector<S, N> {
    if comptime!(epilogue.form.scaled) {
        let value = scaled::<S, A, N>(epilogue, sum, channel);
        let value = activate::<f32, N>(value, epilogue.slope, epilogue.form);
        if comptime!(epilogue.form.to_int8) {
            Vector::cast_from(nearest_integers::<N>(value, -128, 127))
        } else {
            round::<f32, S, N>(value, comptime!(epilogue.form.bf16))
        }
    } else {
        let mut sum = sum;
        #[comptime]
        match &epilogue.bias.given {
            ComptimeOption::Some(bias) => sum += Vector::cast_from(bias[channel as usize]),
            ComptimeOption::None => {}
        }
        finish_with::<S, A, N>(epilogue, sum, at)
    }
}

/// The product of a sum and its scale, plus the bias, each rounded to `f32`.
#[cube]
fn scaled<S: Float, A: Float, N: Size>(
    epilogue: &EpilogueArgs<S, N>,
    sum: Vector<A, N>,
    channel: u32,
) -> Vector<f32, N> {
    let mut value = Vector::<f32, N>::cast_from(sum);
    #[comptime]
    match &epilogue.scale.given {
        ComptimeOption::Some(scale) => value *= scale[channel as usize],
        ComptimeOption::None => {}
    }
    #[comptime]
    match &epilogue.scaled_bias.given {
        ComptimeOption::Some(bias) => {
            // No compiler can fuse a product with a sum if it does not know that these bits stay the same.
            let bits = Vector::<u32, N>::reinterpret(value) ^ Vector::new(epilogue.zero);
            value = Vector::<f32, N>::reinterpret(bits) + bias[channel as usize];
        }
        ComptimeOption::None => {}
    }
    value
}

/// Adds the residual to a sum that already includes its bias, then activates and rounds it.
#[cube]
pub(crate) fn finish_with<S: Float, A: Float, N: Size>(
    epilogue: &EpilogueArgs<S, N>,
    sum: Vector<A, N>,
    at: u32,
) -> Vector<S, N> {
    let mut sum = sum;
    #[comptime]
    match &epilogue.residual.given {
        ComptimeOption::Some(residual) => sum += Vector::cast_from(residual[at as usize]),
        ComptimeOption::None => {}
    }
    finish::<S, A, N>(sum, epilogue.slope, epilogue.form)
}

/// Uses selections instead of minima so that a NaN stays NaN. The NaN test is explicit because a shader compiler
/// may turn a selection into a minimum.
#[cube]
fn activate<A: Float, N: Size>(
    v: Vector<A, N>,
    slope: f32,
    #[comptime] form: EpilogueForm,
) -> Vector<A, N> {
    if comptime!(form.activation == Kind::Relu) {
        rectified::<A, N>(v)
    } else if comptime!(form.activation == Kind::Relu6) {
        let six = Vector::<A, N>::new(A::from_int(6));
        let low = rectified::<A, N>(v);
        select_many(v.is_nan(), v, select_many(low.greater_than(&six), six, low))
    } else if comptime!(form.activation == Kind::Leaky) {
        let zero = Vector::<A, N>::new(A::from_int(0));
        select_many(v.less_than(&zero), v * Vector::new(A::cast_from(slope)), v)
    } else if comptime!(form.activation == Kind::Silu) {
        let e = if comptime!(form.wide) { exponential::<A, N>(-v) } else { (-v).exp() };
        v / (Vector::new(A::from_int(1)) + e)
    } else if comptime!(form.activation == Kind::Gelu) {
        let z = v * Vector::new(A::new(core::f64::consts::FRAC_1_SQRT_2));
        let erf = if comptime!(form.wide) { error_function::<A, N>(v) } else { z.erf() };
        v * (Vector::new(A::new(0.5)) * (Vector::new(A::from_int(1)) + erf))
    } else {
        v
    }
}

/// The number of terms that the series below needs for an argument of 2.5, and of steps of its continued fraction.
const TERMS: u32 = 60;

/// `erf(v/√2)` to all digits of an `f64`. Away from 0, `1 − erf` is a continued fraction; near 0, where that
/// does not converge, `erf` is a series.
#[cube]
fn error_function<A: Float, N: Size>(v: Vector<A, N>) -> Vector<A, N> {
    let one = Vector::<A, N>::new(A::from_int(1));
    let two = Vector::<A, N>::new(A::from_int(2));
    let root = two.sqrt();
    let z = v.abs() / root;
    let near = Vector::<A, N>::new(A::new(2.5));
    let is_near = z.less_than(&near);
    // Each branch gets an argument that is valid for it; the right result is selected at the end.
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
    let series = two / root_pi * exponential::<A, N>(-inner * inner) * sum;
    let missing = exponential::<A, N>(-outer * outer) / root_pi / fraction;
    let erf = select_many(is_near, series, one - missing);
    let erf = select_many(v.less_than(&Vector::new(A::from_int(0))), -erf, erf);
    select_many(v.is_nan(), v, erf)
}

/// `eᵛ` to all digits of an `f64`, since Vulkan has no `f64` exponential: a series of the remainder of `v`
/// modulo `ln 2`, times a power of two.
#[cube]
fn exponential<A: Float, N: Size>(v: Vector<A, N>) -> Vector<A, N> {
    let one = Vector::<A, N>::new(A::from_int(1));
    // Arguments are clamped to ±700: beyond that, 1 + eᵛ is 1, or large enough to count as infinite.
    let most = Vector::<A, N>::new(A::from_int(700));
    let x = select_many(v.greater_than(&most), most, v);
    let x = select_many(v.less_than(&-most), -most, x);
    let steps = (x * Vector::new(A::new(core::f64::consts::LOG2_E))).round();
    // The first part of ln 2 has few enough digits that its product with `steps` is exact.
    let rest = x - steps * Vector::new(A::new(0.693_145_751_953_125));
    let rest = rest - steps * Vector::new(A::new(1.428_606_820_309_417_2e-6));

    let mut series = one;
    for i in 1..16u32 {
        let n = Vector::new(A::cast_from(16 - i));
        series = one + series * rest / n;
    }
    let mut power = one;
    let mut factor = one + one;
    let mut bits = Vector::<u32, N>::cast_from(steps.abs());
    for _ in 0..10u32 {
        let odd = (bits & Vector::new(1u32)).equal(&Vector::new(1u32));
        power = select_many(odd, power * factor, power);
        factor = factor * factor;
        bits >>= Vector::new(1u32);
    }
    let down = steps.less_than(&Vector::new(A::from_int(0)));
    let value = select_many(down, series / power, series * power);
    let infinite = v.greater_than(&Vector::new(A::new(1e300)));
    select_many(infinite, Vector::new(A::new(f64::INFINITY)), value)
}
