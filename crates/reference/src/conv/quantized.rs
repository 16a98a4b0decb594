use windowpane_geometry::{Activation, Convolution};

use super::epilogue::activate;
use super::forward::element;
use crate::{Scalar, check_length, parallel, taps};

/// What happens to the exact sums of a quantized convolution, in this order: multiply by the scale, add the bias, apply the
/// activation, round.
#[derive(Clone, Copy, Debug)]
pub struct Scaling<'a> {
    /// One number per filter.
    pub scale: &'a [f32],
    /// One number per filter.
    pub bias: Option<&'a [f32]>,
    /// The activation, applied last.
    pub activation: Activation,
}

impl Scaling<'_> {
    /// The sum of filter `f`, scaled, with its bias and activation: each step in `f32`, rounded once.
    pub fn apply(&self, sum: i32, f: usize) -> f32 {
        let product = sum as f32 * self.scale[f];
        let value = self.bias.map_or(product, |bias| product + bias[f]);
        activate(self.activation, f64::from(value)) as f32
    }

    /// Panics if there is not one number per filter.
    #[track_caller]
    pub fn check(&self, conv: &Convolution) {
        check_length("the scale", self.scale.len(), conv.filter().count());
        if let Some(bias) = self.bias {
            check_length("the bias", bias.len(), conv.filter().count());
        }
    }
}

/// The quantized convolution of `x` with the filters `w`: exact sums, scaled, in a type of the caller's choice. Integers
/// are the nearest ones, of two the even one; they saturate, and NaN gives 0.
///
/// ```
/// use windowpane_geometry::{Activation, Convolution, Extents, Filter, FilterLayout, Layout, Shape, Window};
/// use windowpane_reference::conv::{Scaling, quantized};
///
/// let image = Shape::new(1, 1, Extents::from([3]))?;
/// let filter = Filter::new(1, 1, Extents::from([2]))?;
/// let (window, layout) = (Window::new([2]), Layout::ChannelsLast);
/// let conv = Convolution::new(image, filter, &window, 1, layout, FilterLayout::Fhwc)?;
/// let scaling = Scaling { scale: &[0.5], bias: Some(&[1.0]), activation: Activation::None };
/// let y: Vec<i8> = quantized(&conv, &[1, 2, 127], &[3, 4], scaling);
/// assert_eq!(y, [6, 127]); // 11 / 2 + 1 is 6.5
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
///
/// # Panics
/// If a sum may not fit in 32 bits: see [`Convolution::check_int8`].
pub fn quantized<T: Scalar>(
    conv: &Convolution,
    x: &[i8],
    w: &[i8],
    scaling: Scaling<'_>,
) -> Vec<T> {
    check_length("the input", x.len(), conv.input().elements());
    check_length("the filter", w.len(), conv.filter().elements());
    scaling.check(conv);
    conv.check_int8().expect("the caller checks that sums fit");
    let x_steps = conv.input().strides(conv.layout());
    let w_steps = conv.filter().strides(conv.filter_layout());
    parallel::collect(conv.output().elements(), |i| {
        let (n, f, o) = element(conv, i);
        let first = conv.first_channel(f);
        let mut sum = 0i32;
        for (tap, position) in taps::inside(conv.grid(), o) {
            let x = &x[x_steps.offset(n, first, position)..];
            let w = &w[w_steps.offset(f, 0, tap)..];
            for c in 0..conv.filter().channels() {
                sum += i32::from(x[c * x_steps.channel]) * i32::from(w[c * w_steps.channel]);
            }
        }
        T::from_f64(f64::from(scaling.apply(sum, f)))
    })
}
