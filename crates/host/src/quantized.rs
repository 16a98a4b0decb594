//! Quantized convolutions: the matrix products are those of floats, which hold the integers exactly.

use windowpane_geometry::{Convolution, Layout, Pass};
use windowpane_reference::conv::{Epilogue, Scaling};
use windowpane_reference::{Scalar, parallel};

use crate::{Element, bytes, forward};

/// The most products of 8-bit integers, of up to 2¹⁴ each, whose sums are exact in `f32`, in any order.
const EXACT_IN_F32: usize = 1 << 10;

/// The quantized convolution of `x` with the filters `w`, as the reference defines it, bit for bit.
pub fn quantized<T: Scalar>(
    conv: &Convolution,
    x: &[i8],
    w: &[i8],
    scaling: Scaling<'_>,
) -> Vec<T> {
    conv.check_int8().expect("the caller checks that sums fit");
    scaling.check(conv);
    match is_exact_in_f32(conv) {
        true => by::<f32, T>(conv, x, w, scaling),
        // A sum has 31 bits at most.
        false => by::<f64, T>(conv, x, w, scaling),
    }
}

/// The most bytes that it allocates at any time, as [`bytes`](crate::bytes()) says.
pub fn quantized_bytes<T: Scalar>(conv: &Convolution) -> usize {
    let (factor, own) = match is_exact_in_f32(conv) {
        true => (size_of::<f32>(), bytes::<f32>(Pass::Forward, conv)),
        false => (size_of::<f64>(), bytes::<f64>(Pass::Forward, conv)),
    };
    let factors = conv.input().elements().saturating_add(conv.filter().elements());
    let results = conv.output().elements().saturating_mul(size_of::<T>());
    own.saturating_add(factors.saturating_mul(factor)).saturating_add(results)
}

fn is_exact_in_f32(conv: &Convolution) -> bool {
    conv.filter().taps() * conv.filter().channels() <= EXACT_IN_F32
}

/// Computes with sums in `S`.
fn by<S: Element + From<i8>, T: Scalar>(
    conv: &Convolution,
    x: &[i8],
    w: &[i8],
    scaling: Scaling<'_>,
) -> Vec<T> {
    let floats = |integers: &[i8]| parallel::collect(integers.len(), |i| S::from(integers[i]));
    let sums = forward(conv, &floats(x), &floats(w), Epilogue::NONE);
    let (filters, plane) = (conv.filter().count(), conv.output().plane());
    parallel::collect(sums.len(), |i| {
        let f = match conv.layout() {
            Layout::ChannelsLast => i % filters,
            Layout::ChannelsFirst => i / plane % filters,
        };
        T::from_f64(f64::from(scaling.apply(sums[i].to_f64() as i32, f)))
    })
}
