//! What happens to sums before they are stored: bias, residual, activation, rounding.

use windowpane_geometry::Activation;
use windowpane_reference::conv::{Epilogue, activate};

use crate::element::Element;
use crate::shared::Shared;
use crate::sum::Sum;

/// Adds the bias and the residual to sums and applies the activation.
///
/// The sums are those of neighbours in memory: `step` is 1 if each has its own filter, and 0 if all have the filter
/// `f`; `residual` is at the same places as the results, `apart` from each other.
pub(crate) fn complete<T: Element>(
    epilogue: &Epilogue<'_, T>,
    sums: &mut [T::Sum],
    (f, step): (usize, usize),
    (at, apart): (usize, usize),
) {
    match epilogue.bias {
        Some(bias) if step == 0 => {
            let bias = bias[f].widen();
            sums.iter_mut().for_each(|sum| *sum = *sum + bias);
        }
        Some(bias) => {
            sums.iter_mut().zip(&bias[f..]).for_each(|(sum, bias)| *sum = *sum + bias.widen());
        }
        None => {}
    }
    match epilogue.residual {
        Some(residual) if apart == 1 => {
            let residual = &residual[at..at + sums.len()];
            sums.iter_mut().zip(residual).for_each(|(sum, more)| *sum = *sum + more.widen());
        }
        Some(residual) => {
            let residual = residual[at..].iter().step_by(apart);
            sums.iter_mut().zip(residual).for_each(|(sum, more)| *sum = *sum + more.widen());
        }
        None => {}
    }
    apply(epilogue.activation, sums);
}

/// Whether [`complete`] leaves every sum as it is.
pub(crate) fn is_nothing<T>(epilogue: &Epilogue<'_, T>) -> bool {
    let Epilogue { bias, residual, activation } = epilogue;
    bias.is_none() && residual.is_none() && *activation == Activation::None
}

/// Completes sums and stores them, rounded, from `at` on, `apart` from each other.
///
/// # Safety
/// Nobody else uses these elements of the result meanwhile.
pub(crate) unsafe fn store<T: Element>(
    epilogue: &Epilogue<'_, T>,
    sums: &mut [T::Sum],
    filter: (usize, usize),
    (at, apart): (usize, usize),
    result: Shared<'_, T>,
) {
    complete(epilogue, sums, filter, (at, apart));
    if apart == 1 {
        // SAFETY: the caller guarantees that nobody else uses these elements.
        T::narrow_all(sums, unsafe { result.slice(at, sums.len()) });
        return;
    }
    for (i, sum) in sums.iter().enumerate() {
        // SAFETY: as above.
        unsafe { result.write(at + i * apart, T::narrow(*sum)) };
    }
}

/// Applies an activation, each as the reference defines it, to sums in their own type.
fn apply<S: Sum>(activation: Activation, sums: &mut [S]) {
    // Written as comparisons so that NaN stays NaN.
    let positive = |v: S| if v < S::ZERO { S::ZERO } else { v };
    let of = S::from_f64;
    match activation {
        Activation::None => {}
        Activation::Relu => each(sums, positive),
        Activation::Relu6 => {
            let six = of(6.0);
            each(sums, |v| if v > six { six } else { positive(v) });
        }
        Activation::Leaky(slope) => {
            let slope = of(f64::from(slope));
            each(sums, |v| if v < S::ZERO { v * slope } else { v });
        }
        Activation::Gelu => {
            let (half, one, scale) = (of(0.5), of(1.0), of(core::f64::consts::FRAC_1_SQRT_2));
            each(sums, |v| v * half * (one + (v * scale).erf()));
        }
        Activation::Silu => {
            let (one, minus) = (of(1.0), of(-1.0));
            each(sums, |v| v / (one + (v * minus).exp()));
        }
        other => each(sums, |v| of(activate(other, v.to_f64()))),
    }
}

#[inline(always)]
fn each<S: Sum>(sums: &mut [S], f: impl Fn(S) -> S) {
    sums.iter_mut().for_each(|sum| *sum = f(*sum));
}
