//! Each operator, forward and backward, on random shapes.

use burn::tensor::module::{
    self, adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d, avg_pool1d, avg_pool2d,
    avg_pool3d, conv_transpose1d, conv_transpose2d, conv1d, conv2d, max_pool_output_size,
    max_pool1d, max_pool2d,
};
use burn::tensor::ops::{AvgPoolOptions, ConvOptions, ConvTransposeOptions, MaxPoolOptions};
use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData};

use crate::draw::{Draw, device};
use crate::{Numbers, both, is_plain};

/// The cases of each operator and number of axes; `WINDOWPANE_CASES` sets another number.
fn cases() -> u64 {
    const FEW: u64 = 3;
    std::env::var("WINDOWPANE_CASES").map_or(FEW, |cases| cases.parse().expect("a number"))
}

fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.cast(DType::F32).into_data().try_to_vec().expect("it was converted")
}

fn read_integers<const D: usize>(tensor: Tensor<D, Int>) -> Vec<f32> {
    let numbers = tensor.into_data().convert::<i32>().try_to_vec::<i32>().expect("converted");
    numbers.into_iter().map(|number| number as f32).collect()
}

/// How the numbers are computed.
#[derive(Clone, Copy)]
struct How {
    /// The type of every input, output and gradient.
    dtype: DType,
    /// Whether operators compute in f32, on numbers that are rounded to the type.
    is_wide: bool,
    /// Whether to give, in place of a sum of `n` terms, `n` times the sum of their magnitudes.
    of_terms: bool,
}

impl How {
    /// The operand of an operator.
    fn of<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        let x = x.cast(self.dtype);
        if self.is_wide { x.cast(DType::F32) } else { x }
    }

    /// The factor of a sum.
    fn factor<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        let x = self.of(x);
        if self.of_terms { x.abs() } else { x }
    }

    /// Sums of `terms` terms; of a pass for terms `terms` times these.
    fn sums(self, terms: usize, sums: Vec<f32>) -> Vec<f32> {
        match self.of_terms {
            true => sums.into_iter().map(|sum| terms as f32 * sum.abs()).collect(),
            false => sums,
        }
    }
}

/// The name of a leaf's gradient, its number of terms, and how to read it.
type Leaf<'a> = (&'a str, usize, &'a dyn Fn(&Gradients) -> Vec<f32>);

/// The output, with its number of terms, and the gradient of every leaf.
fn outcome<const D: usize>(
    numbers: &mut Numbers,
    how: How,
    name: &str,
    draw: &mut Draw,
    (y, terms): (Tensor<D>, usize),
    leaves: &[Leaf<'_>],
) {
    let weights = TensorData::new(draw.numbers(y.shape().num_elements()), y.dims());
    let weights = Tensor::<D>::from_data(weights, &device().autodiff());
    let weights = if how.of_terms { weights.abs() } else { weights };
    // The gradient of this conversion rounds the weights to the type.
    let y = y.cast(how.dtype);
    numbers.push((format!("{name} y"), how.sums(terms, read(y.clone()))));
    let gradients = (y.cast(DType::F32) * weights).sum().backward();
    for (leaf, terms, gradient) in leaves {
        numbers.push((format!("{name} {leaf}"), how.sums(*terms, gradient(&gradients))));
    }
}

/// The cases of all operators with this number of axes.
macro_rules! cases {
    ($name:ident, $axes:literal, $rank:literal, $most:literal, $conv:ident, $transposed:ident, $max:ident,
     $indexed:ident, $average:ident, $adaptive:expr) => {
        fn $name(how: How) -> Numbers {
            let mut numbers = Numbers::new();
            if !device().supports_dtype(how.dtype) {
                return numbers;
            }
            for case in 0..cases() {
                let mut draw = Draw::new(10 * case + $axes);
                let batch = draw.between(1, 3);
                let size: [usize; $axes] = core::array::from_fn(|_| draw.between(6, $most));
                let kernel: [usize; $axes] = core::array::from_fn(|_| draw.between(1, 3));
                let stride: [usize; $axes] = core::array::from_fn(|_| draw.between(1, 2));
                let padding: [usize; $axes] = kernel.map(|taps| draw.between(0, taps / 2));
                let dilation: [usize; $axes] = core::array::from_fn(|_| draw.between(1, 2));
                let shape = |channels: usize| {
                    let mut shape = [channels; $rank];
                    shape[0] = batch;
                    shape[2..].copy_from_slice(&size);
                    shape
                };

                let groups = draw.between(1, 3);
                let (channels, filters) =
                    (groups * draw.between(1, 3), groups * draw.between(1, 3));
                let mut taps = [filters; $rank];
                taps[1] = channels / groups;
                taps[2..].copy_from_slice(&kernel);
                let window: usize = kernel.iter().product();
                let [x, x_leaf] = draw.input(shape(channels));
                let [w, w_leaf] = draw.input(taps);
                let b = draw.tensor([filters]);
                let options = ConvOptions::new(stride, padding, dilation, groups);
                let name = format!(
                    "conv {case}: {:?} {taps:?} stride {stride:?} padding {padding:?} dilation {dilation:?} \
                     groups {groups}",
                    shape(channels)
                );
                let bias = Some(how.factor(b.clone()));
                let y = $conv(how.factor(x), how.factor(w), bias, options);
                let (inputs, outputs) = (channels / groups * window, filters / groups * window);
                let positions = y.shape().num_elements() / filters;
                outcome(&mut numbers, how, &name, &mut draw, (y, inputs + 1), &[
                    ("dx", outputs, &|all| read(x_leaf.grad(all).expect("tracked"))),
                    ("dw", positions, &|all| read(w_leaf.grad(all).expect("tracked"))),
                    ("db", positions, &|all| read(b.grad(all).expect("tracked"))),
                ]);

                (taps[0], taps[1]) = (channels, filters / groups);
                let longer = stride.map(|stride| draw.between(0, stride - 1));
                let [x, x_leaf] = draw.input(shape(channels));
                let [w, w_leaf] = draw.input(taps);
                let b = draw.tensor([filters]);
                let options = ConvTransposeOptions::new(stride, padding, longer, dilation, groups);
                let name = format!("transposed {name}, then {taps:?} output padding {longer:?}");
                let bias = Some(how.factor(b.clone()));
                let y = $transposed(how.factor(x), how.factor(w), bias, options);
                let read_once = batch * size.iter().product::<usize>();
                let positions = y.shape().num_elements() / filters;
                outcome(&mut numbers, how, &name, &mut draw, (y, inputs + 1), &[
                    ("dx", outputs, &|all| read(x_leaf.grad(all).expect("tracked"))),
                    ("dw", read_once, &|all| read(w_leaf.grad(all).expect("tracked"))),
                    ("db", positions, &|all| read(b.grad(all).expect("tracked"))),
                ]);

                let ceil = draw.between(0, 1) == 1;
                let name = format!(
                    "{:?} by {kernel:?} stride {stride:?} padding {padding:?} dilation {dilation:?} ceil {ceil}",
                    shape(channels)
                );
                let options = MaxPoolOptions {
                    kernel_size: kernel,
                    stride,
                    padding: padding.map(|both| (both, both)),
                    dilation,
                    ceil_mode: ceil,
                };
                let [x, leaf] = draw.input(shape(channels));
                let x = how.of(x);
                let (data, dtype) = (x.clone().into_data(), x.dtype());
                let shared = Tensor::<$rank>::from_data(data, (&device(), dtype));
                let y = $max(shared.clone() * 2.0, options.clone());
                numbers.push((format!("max {name} untracked"), read(y)));
                let (y, indices) = $indexed(shared, options.clone());
                numbers.push((format!("max {name} with indices"), read(y)));
                numbers.push((format!("max {name} indices"), indices));
                let y = $max(x, options);
                outcome(&mut numbers, how, &format!("max {name}"), &mut draw, (y, 1), &[
                    ("dx", window, &|all| read(leaf.grad(all).expect("tracked"))),
                ]);

                let include = draw.between(0, 1) == 1;
                let options = AvgPoolOptions {
                    kernel_size: kernel,
                    stride,
                    padding: padding.map(|both| (both, both)),
                    dilation,
                    count_include_pad: include,
                    ceil_mode: ceil,
                };
                let [x, leaf] = draw.input(shape(channels));
                let y = $average(how.factor(x), options);
                let name = format!("average {name} include {include}");
                // The quotient is rounded too, and so is the reciprocal of a divisor.
                outcome(&mut numbers, how, &name, &mut draw, (y, window + 2), &[
                    ("dx", window + 2, &|all| read(leaf.grad(all).expect("tracked"))),
                ]);

                let out: [usize; $axes] = core::array::from_fn(|_| draw.between(1, 5));
                let [x, leaf] = draw.input(shape(channels));
                let name = format!("adaptive {:?} to {out:?}", shape(channels));
                let y = $adaptive(how.factor(x), out);
                let axes = size.iter().zip(&out);
                let most: usize = axes.map(|(size, out)| size.div_ceil(*out) + 1).product();
                // At most two windows of an axis share a coordinate, as there are fewer windows than coordinates.
                outcome(&mut numbers, how, &name, &mut draw, (y, most + 2), &[
                    ("dx", (1 << $axes) + 2, &|all| read(leaf.grad(all).expect("tracked"))),
                ]);
            }
            numbers
        }
    };
}

cases!(
    one,
    1,
    3,
    14,
    conv1d,
    conv_transpose1d,
    max_pool1d,
    max_pool1d_with_indices,
    avg_pool1d,
    |x, [out]: [usize; 1]| adaptive_avg_pool1d(x, out)
);
cases!(
    two,
    2,
    4,
    12,
    conv2d,
    conv_transpose2d,
    max_pool2d,
    max_pool2d_with_indices,
    avg_pool2d,
    adaptive_avg_pool2d
);
cases!(
    three,
    3,
    5,
    8,
    conv3d,
    conv_transpose3d,
    max_pool3d,
    max_pool3d_with_indices,
    avg_pool3d,
    adaptive_avg_pool3d
);

fn max_pool1d_with_indices(x: Tensor<3>, options: MaxPoolOptions<1>) -> (Tensor<3>, Vec<f32>) {
    let (y, indices) = module::max_pool1d_with_indices(x, options);
    (y, read_integers(indices))
}

fn max_pool2d_with_indices(x: Tensor<4>, options: MaxPoolOptions<2>) -> (Tensor<4>, Vec<f32>) {
    let (y, indices) = module::max_pool2d_with_indices(x, options);
    (y, read_integers(indices))
}

/// Burn's own kernels for maxima over volumes do not compile to WGSL, so without windowpane the maximum is put together
/// from other operators.
fn max_pool3d(x: Tensor<5>, options: MaxPoolOptions<3>) -> Tensor<5> {
    match is_plain() {
        true => max_of_taps(x, options),
        false => module::max_pool3d(x, options),
    }
}

/// In place of the indices, what `x` has there.
fn max_pool3d_with_indices(x: Tensor<5>, options: MaxPoolOptions<3>) -> (Tensor<5>, Vec<f32>) {
    if is_plain() {
        let y = max_of_taps(x, options);
        return (y.clone(), read(y));
    }
    let (y, indices) = module::max_pool3d_with_indices(x.clone(), options);
    let found: Tensor<3> = x.flatten(2, 4);
    (y, read(found.gather(2, indices.flatten(2, 4))))
}

/// Burn's own gradients with respect to volumes are all zero on Mesa's software Vulkan, so without windowpane the
/// convolution is put together from flat ones, one for each tap along the first axis.
fn conv3d(
    x: Tensor<5>,
    weight: Tensor<5>,
    bias: Option<Tensor<1>>,
    options: ConvOptions<3>,
) -> Tensor<5> {
    if !is_plain() {
        return module::conv3d(x, weight, bias, options);
    }
    let ConvOptions { stride, padding, dilation, groups } = options;
    let device = x.device();
    let [batch, channels, depth, height, width] = x.dims();
    let [filters, _, taps, ..] = weight.dims();
    let (before, after) = padding[0];
    let out = (depth + before + after - dilation[0] * (taps - 1) - 1) / stride[0] + 1;
    let x = padded(x, 2, before, after, 0.0);
    let mut sum: Option<Tensor<5>> = None;
    for tap in 0..taps {
        let planes = x.clone().select(2, positions(out, stride[0], tap * dilation[0], &device));
        let planes = planes.swap_dims(1, 2).reshape([batch * out, channels, height, width]);
        let weight = weight.clone().narrow(2, tap, 1).squeeze_dim::<4>(2);
        let flat = ConvOptions::new(
            [stride[1], stride[2]],
            [padding[1].0, padding[2].0],
            [dilation[1], dilation[2]],
            groups,
        );
        let y = conv2d(planes, weight, None, flat);
        let [_, _, height, width] = y.dims();
        let y = y.reshape([batch, out, filters, height, width]).swap_dims(1, 2);
        sum = Some(match sum {
            Some(sum) => sum + y,
            None => y,
        });
    }
    let sum = sum.expect("filters have taps");
    match bias {
        Some(bias) => sum + bias.reshape([1, filters, 1, 1, 1]),
        None => sum,
    }
}

/// Without windowpane the convolution, put together from flat ones as well, of the input with zeros between its
/// coordinates and around it, with mirrored filters.
fn conv_transpose3d(
    mut x: Tensor<5>,
    weight: Tensor<5>,
    bias: Option<Tensor<1>>,
    options: ConvTransposeOptions<3>,
) -> Tensor<5> {
    if !is_plain() {
        return module::conv_transpose3d(x, weight, bias, options);
    }
    let ConvTransposeOptions { stride, padding, padding_out, dilation, groups } = options;
    let [channels, filters, taps @ ..] = weight.dims();
    for axis in 0..3 {
        let mut shape = x.dims();
        let apart = x.unsqueeze_dim::<6>(axis + 3);
        let mut zeros = apart.dims();
        zeros[axis + 3] = stride[axis] - 1;
        let parts = match zeros[axis + 3] {
            0 => vec![apart],
            _ => vec![apart.clone(), Tensor::zeros(zeros, &apart.device())],
        };
        shape[axis + 2] *= stride[axis];
        x = Tensor::cat(parts, axis + 3).reshape(shape);
        x = x.narrow(axis + 2, 0, shape[axis + 2] - (stride[axis] - 1));
        let before = dilation[axis] * (taps[axis] - 1) - padding[axis];
        x = padded(x, axis + 2, before, before + padding_out[axis], 0.0);
    }
    let [d, h, w] = taps;
    let weight = weight.reshape([groups, channels / groups, filters, d, h, w]).swap_dims(1, 2);
    let weight = weight.reshape([groups * filters, channels / groups, d, h, w]).flip([2, 3, 4]);
    conv3d(x, weight, bias, ConvOptions::new([1; 3], [0; 3], dilation, groups))
}

/// Positions `o·stride + first` for every output `o`.
fn positions(out: usize, stride: usize, first: usize, device: &Device) -> Tensor<1, Int> {
    let at: Vec<i32> = (0..out).map(|o| (o * stride + first) as i32).collect();
    Tensor::from_data(TensorData::new(at, [out]), device)
}

/// The tensor with a border on one axis.
fn padded(x: Tensor<5>, axis: usize, before: usize, after: usize, value: f32) -> Tensor<5> {
    let edge = |count: usize| {
        let mut shape = x.dims();
        shape[axis] = count;
        (count > 0).then(|| Tensor::<5>::full(shape, value, &x.device()))
    };
    let parts = [edge(before), Some(x.clone()), edge(after)];
    Tensor::cat(parts.into_iter().flatten().collect(), axis)
}

/// The maximum over windows as that of one tensor for each tap.
fn max_of_taps(mut x: Tensor<5>, options: MaxPoolOptions<3>) -> Tensor<5> {
    let [_, _, size @ ..] = x.dims();
    let out = max_pool_output_size(size, &options).expect("the window fits");
    let MaxPoolOptions { kernel_size, stride, padding, dilation, .. } = options;
    let device = x.device();
    for axis in 0..3 {
        let reach = (out[axis] - 1) * stride[axis] + dilation[axis] * (kernel_size[axis] - 1) + 1;
        let before = padding[axis].0;
        let after = reach.saturating_sub(before + size[axis]);
        // Below every number of a test; WGSL has no infinity.
        x = padded(x, 2 + axis, before, after, -1e30);
    }
    let taps =
        |axis: usize, tap: usize| positions(out[axis], stride[axis], tap * dilation[axis], &device);
    let mut most: Option<Tensor<5>> = None;
    for d in 0..kernel_size[0] {
        for h in 0..kernel_size[1] {
            for w in 0..kernel_size[2] {
                let tap = x.clone().select(2, taps(0, d)).select(3, taps(1, h));
                let tap = tap.select(4, taps(2, w));
                most = Some(match most {
                    Some(most) => most.max_pair(tap),
                    None => tap,
                });
            }
        }
    }
    most.expect("a window has a tap")
}

/// Compares the numbers, and checks that each of the named operators was replaced. Nothing is done if the device lacks
/// the type.
///
/// Without windowpane the operators compute in f32, on the same numbers: Burn's own sums of f16 and bf16 may be rounded
/// after every addition. With and without it, `n` terms are added in f32, in some order, which is off by at most
/// `n·u·Σ|terms|` with the unit roundoff `u` of f32, and then rounded once to the type. The bound is the sum of these four
/// errors.
fn check(test: &str, compute: fn(How) -> Numbers, dtype: DType, operators: &[&str]) {
    let how = How { dtype, is_wide: is_plain(), of_terms: false };
    let Some([installed, plain]) = both(test, || compute(how)) else { return };
    if installed.is_empty() {
        return;
    }
    let terms = compute(How { dtype, is_wide: true, of_terms: true });
    let float: f32 = 2f32.powi(-24);
    // The type's unit roundoff, and its smallest number.
    let (unit, smallest) = match dtype {
        DType::F32 => (float, 2f32.powi(-149)),
        DType::F16 => (2f32.powi(-11), 2f32.powi(-24)),
        _ => (2f32.powi(-8), 2f32.powi(-133)),
    };
    assert_eq!(terms.len(), installed.len());
    for (((name, found), (other, expected)), (_, terms)) in installed.iter().zip(&plain).zip(&terms)
    {
        assert_eq!(name, other);
        assert_eq!((found.len(), terms.len()), (expected.len(), expected.len()), "{name}");
        // Maxima are copies.
        let is_exact = name.starts_with("max") && !name.ends_with("dx");
        for (at, ((found, expected), terms)) in found.iter().zip(expected).zip(terms).enumerate() {
            let most = found.abs().max(expected.abs());
            // A transposed convolution is rounded before its bias, of at most 1, is added.
            let before =
                if name.ends_with("y") && name.starts_with("t") { most + 1.0 } else { 0.0 };
            // The magnitudes were rounded to the type too.
            let sums = 2.0 * float * terms / (1.0 - unit);
            let bound = match is_exact {
                true => 0.0,
                false => unit * (2.0 * most + before) + sums + smallest,
            };
            let apart = (found - expected).abs();
            assert!(apart <= bound, "{name} at {at}: {found} and {expected}, not within {bound}");
        }
    }
    let counters = windowpane_burn::counters();
    for operator in operators {
        assert!(counters.of(operator).replaced >= cases(), "{operator}:\n{counters}");
        assert_eq!(counters.of(operator).fell_back, 0, "{operator}:\n{counters}");
    }
}

const OF_ONE_AXIS: [&str; 12] = [
    "conv1d",
    "conv1d_x_backward",
    "conv1d_weight_backward",
    "conv1d_bias_backward",
    "conv_transpose1d",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool1d_with_indices_backward",
    "avg_pool1d",
    "avg_pool1d_backward",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool1d_backward",
];

#[test]
fn one_axis() {
    check("operators::one_axis", one, DType::F32, &OF_ONE_AXIS);
}

#[test]
fn one_axis_in_f16() {
    check("operators::one_axis_in_f16", one, DType::F16, &OF_ONE_AXIS);
}

#[test]
fn one_axis_in_bf16() {
    check("operators::one_axis_in_bf16", one, DType::BF16, &OF_ONE_AXIS);
}

const OF_TWO_AXES: [&str; 12] = [
    "conv2d",
    "conv2d_x_backward",
    "conv2d_weight_backward",
    "conv2d_bias_backward",
    "conv_transpose2d",
    "max_pool2d",
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool2d_backward",
];

#[test]
fn two_axes() {
    check("operators::two_axes", two, DType::F32, &OF_TWO_AXES);
}

#[test]
fn two_axes_in_f16() {
    check("operators::two_axes_in_f16", two, DType::F16, &OF_TWO_AXES);
}

#[test]
fn two_axes_in_bf16() {
    check("operators::two_axes_in_bf16", two, DType::BF16, &OF_TWO_AXES);
}

const OF_THREE_AXES: [&str; 12] = [
    "conv3d",
    "conv3d_x_backward",
    "conv3d_weight_backward",
    "conv3d_bias_backward",
    "conv_transpose3d",
    "max_pool3d",
    "max_pool3d_with_indices",
    "max_pool3d_with_indices_backward",
    "avg_pool3d",
    "avg_pool3d_backward",
    "adaptive_avg_pool3d",
    "adaptive_avg_pool3d_backward",
];

#[test]
fn three_axes() {
    check("operators::three_axes", three, DType::F32, &OF_THREE_AXES);
}
