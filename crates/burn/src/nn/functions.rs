//! The functions beneath the modules.

use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
use burn::tensor::{Int, Tensor};
use burn_backend::TensorMetadata;
use windowpane::{
    Extents, LpPool, MaxPool, MaxUnpool, MedianPool, MinPool, ModePool, Padding, Rank, RankPool,
    StochasticPool, SumPool, Window,
};

use super::fractional::Fractional;
use super::gradient::{self, Pool};
use super::padded::{PadOptions, PaddingMode};
use super::primitive::{Floats, Strategy, integers_of, into_integers};
use super::queue::{Operator, Queued, queue};

/// Lp pooling: the norm of each window, `(Σ|x|^p)^(1/p)`.
///
/// The input is `[batch_size, channels]`, then one to three axes. The module is [`LpPool2d`](super::LpPool2d).
///
/// ```
/// use burn::tensor::{Device, DeviceKind, Tensor};
/// use windowpane_burn::{Window, nn};
///
/// let device = Device::wgpu(DeviceKind::DefaultDevice);
/// let x = Tensor::<3>::from_data([[[3.0, -4.0, 6e30, 8e30]]], &device);
/// let y = nn::lp_pool(x, 2.0, Window::new(2).stride(2));
/// let y = y.into_data().try_to_vec::<f32>()?;
/// assert!(y[0] == 5.0 && (y[1] / 1e31 - 1.0).abs() < 1e-6);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
/// If the window does not fit the input, if `p` is not finite or below 1, and if the device cannot compute it.
pub fn lp_pool<const D: usize>(input: Tensor<D>, p: f64, window: Window) -> Tensor<D> {
    pool(Pool::norm(LpPool::with_window(p, window)), input).0.into_tensor()
}

/// Sum pooling: the sum of each window.
///
/// The input is `[batch_size, channels]`, then one to three axes. The module is [`SumPool2d`](super::SumPool2d).
///
/// # Panics
/// If the window does not fit the input, and if the device cannot compute it.
pub fn sum_pool<const D: usize>(input: Tensor<D>, window: Window) -> Tensor<D> {
    pool(Pool::sum(SumPool::with_window(window)), input).0.into_tensor()
}

/// Min pooling: the smallest number of each window.
///
/// The input is `[batch_size, channels]`, then one to three axes. The module is [`MinPool2d`](super::MinPool2d).
///
/// # Panics
/// If the window does not fit the input, and if the device cannot compute it.
pub fn min_pool<const D: usize>(input: Tensor<D>, window: Window) -> Tensor<D> {
    pool(Pool::min(MinPool::with_window(window)), input).0.into_tensor()
}

/// As [`min_pool`], and the position of each minimum in its plane, in row-major order, as an `i32`.
///
/// A window without any number, which padding can create, has the index −1.
///
/// # Panics
/// As [`min_pool`].
pub fn min_pool_with_indices<const D: usize>(
    input: Tensor<D>,
    window: Window,
) -> (Tensor<D>, Tensor<D, Int>) {
    pool_with_indices(Pool::min(MinPool::with_window(window)), input)
}

/// Median pooling: the middle number of each window, the larger one of two in the middle.
///
/// It has no gradient: the result is detached from the graph. The input is `[batch_size, channels]`, then one to three
/// axes. The module is [`MedianPool2d`](super::MedianPool2d).
///
/// ```
/// use burn::tensor::{Device, DeviceKind, Tensor};
/// use windowpane_burn::{Window, nn};
///
/// let device = Device::wgpu(DeviceKind::DefaultDevice);
/// let x = Tensor::<3>::from_data([[[1.0, 99.0, 2.0, 3.0, -99.0, 4.0]]], &device);
/// let y = nn::median_pool(x, Window::new(3).padding(1));
/// assert_eq!(y.into_data().try_to_vec::<f32>()?, [99.0, 2.0, 3.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
/// If the window does not fit the input, and if the device cannot compute it.
pub fn median_pool<const D: usize>(input: Tensor<D>, window: Window) -> Tensor<D> {
    detached(Operator::Median(MedianPool::with_window(window)), input)
}

/// Rank pooling: the k-th smallest number of each window, counted from 0, or a [fraction](Rank::Fraction) of the sorted
/// window, such as a percentile.
///
/// A window at the border ranks only its numbers inside the input, and gives the largest if it has too few. It has no
/// gradient: the result is detached from the graph. The input is `[batch_size, channels]`, then one to three axes. The
/// module is [`RankPool2d`](super::RankPool2d).
///
/// ```
/// use burn::tensor::{Device, DeviceKind, Tensor};
/// use windowpane_burn::{Rank, Window, nn};
///
/// let device = Device::wgpu(DeviceKind::DefaultDevice);
/// let x = Tensor::<3>::from_data([[[5.0, 1.0, 4.0, 2.0, 3.0, 9.0]]], &device);
/// let second = nn::rank_pool(x.clone(), 1, Window::new(3).stride(3));
/// assert_eq!(second.into_data().try_to_vec::<f32>()?, [4.0, 3.0]);
/// let quartile = nn::rank_pool(x, Rank::Fraction { part: 3, whole: 4 }, Window::new(6));
/// assert_eq!(quartile.into_data().try_to_vec::<f32>()?, [5.0]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
/// If the window does not fit the input, if a fraction is not from 0 to 1, and if the device cannot compute it.
pub fn rank_pool<const D: usize>(
    input: Tensor<D>,
    rank: impl Into<Rank>,
    window: Window,
) -> Tensor<D> {
    detached(Operator::Rank(RankPool::with_window(rank, window)), input)
}

/// Mode pooling: the most frequent number of each window, the smallest one if several are equally frequent.
///
/// It makes images of labels smaller. It has no gradient: the result is detached from the graph. The input is
/// `[batch_size, channels]`, then one to three axes. The module is [`ModePool2d`](super::ModePool2d).
///
/// ```
/// use burn::tensor::{Device, DeviceKind, Tensor};
/// use windowpane_burn::{Window, nn};
///
/// let device = Device::wgpu(DeviceKind::DefaultDevice);
/// let labels = Tensor::<3>::from_data([[[7.0, 3.0, 7.0, 9.0, 1.0, 3.0]]], &device);
/// let y = nn::mode_pool(labels, Window::new(3).stride(3));
/// assert_eq!(y.into_data().try_to_vec::<f32>()?, [7.0, 1.0]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
/// If the window does not fit the input, and if the device cannot compute it.
pub fn mode_pool<const D: usize>(input: Tensor<D>, window: Window) -> Tensor<D> {
    detached(Operator::Mode(ModePool::with_window(window)), input)
}

/// Stochastic pooling: one number of each window, drawn with a probability proportional to it.
///
/// It is for numbers that are not negative, such as the outputs of ReLU: a negative number counts as 0, and is drawn only
/// if it is the first of a window without a positive number. The same seed draws the same numbers on every device, so use
/// another one for each step of training. At inference use [`stochastic_mean`]. The input is `[batch_size, channels]`,
/// then one to three axes. The module is [`StochasticPool2d`](super::StochasticPool2d), which does both.
///
/// ```
/// use burn::tensor::{Device, DeviceKind, Tensor};
/// use windowpane_burn::{Window, nn};
///
/// let device = Device::wgpu(DeviceKind::DefaultDevice);
/// let x = Tensor::<3>::from_data([[[0.0, 6.0, 1.0, 3.0]]], &device);
/// let window = Window::new(2).stride(2);
/// let drawn = nn::stochastic_pool(x.clone(), 7, window).into_data().try_to_vec::<f32>()?;
/// assert!(drawn[0] == 6.0 && (drawn[1] == 1.0 || drawn[1] == 3.0));
/// let mean = nn::stochastic_mean(x, window).into_data().try_to_vec::<f32>()?;
/// assert_eq!(mean, [6.0, 2.5]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
/// If the window does not fit the input, and if the device cannot compute it.
pub fn stochastic_pool<const D: usize>(input: Tensor<D>, seed: u32, window: Window) -> Tensor<D> {
    pool(Pool::drawn(StochasticPool::with_window(window).seed(seed)), input).0.into_tensor()
}

/// As [`stochastic_pool`], and the position of each drawn number in its plane, in row-major order, as an `i32`.
///
/// A window without any number, which padding can create, has the index −1.
///
/// # Panics
/// As [`stochastic_pool`].
pub fn stochastic_pool_with_indices<const D: usize>(
    input: Tensor<D>,
    seed: u32,
    window: Window,
) -> (Tensor<D>, Tensor<D, Int>) {
    pool_with_indices(Pool::drawn(StochasticPool::with_window(window).seed(seed)), input)
}

/// The mean of what [`stochastic_pool`] draws, `Σx²/Σx` over the positive numbers of each window: for inference.
///
/// # Panics
/// As [`stochastic_pool`].
pub fn stochastic_mean<const D: usize>(input: Tensor<D>, window: Window) -> Tensor<D> {
    pool(Pool::mean_drawn(window), input).0.into_tensor()
}

/// Fractional max pooling: the maxima of windows at pseudo-random positions, so that the output may have any size that
/// is smaller than the input.
///
/// The first window is at the start of the input and the last one at its end, and the distances of neighbouring windows
/// differ by at most one. Each channel of each sample has other positions. They follow from the seed, on every device in
/// the same way. The input is `[batch_size, channels]`, then one to three axes. The module is
/// [`FractionalMaxPool2d`](super::FractionalMaxPool2d).
///
/// ```
/// use burn::tensor::{Device, DeviceKind, Tensor};
/// use windowpane_burn::nn;
///
/// let device = Device::wgpu(DeviceKind::DefaultDevice);
/// let x = Tensor::<3>::from_data([[[5.0, 1.0, 2.0, 3.0, 4.0]]], &device);
/// let y = nn::fractional_max_pool(x, 2, 3, 7).into_data().try_to_vec::<f32>()?;
/// assert_eq!((y.len(), y[0], y[2]), (3, 5.0, 4.0));
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
/// If an axis has no room for `output_size` windows with different starts, and if the device cannot compute it.
pub fn fractional_max_pool<const D: usize>(
    input: Tensor<D>,
    kernel_size: impl Into<Extents>,
    output_size: impl Into<Extents>,
    seed: u32,
) -> Tensor<D> {
    let pooling = Fractional { kernel: kernel_size.into(), output: output_size.into(), seed };
    pool(Pool::fractional(pooling), input).0.into_tensor()
}

/// As [`fractional_max_pool`], and the position of each maximum in its plane, in row-major order, as an `i32`.
///
/// # Panics
/// As [`fractional_max_pool`].
pub fn fractional_max_pool_with_indices<const D: usize>(
    input: Tensor<D>,
    kernel_size: impl Into<Extents>,
    output_size: impl Into<Extents>,
    seed: u32,
) -> (Tensor<D>, Tensor<D, Int>) {
    let pooling = Fractional { kernel: kernel_size.into(), output: output_size.into(), seed };
    pool_with_indices(Pool::fractional(pooling), input)
}

/// Adaptive max pooling: the maximum of each of `output_size` windows, which cover the input and may overlap.
///
/// Window `o` of `O` covers `⌊o·L/O⌋ .. ⌈(o+1)·L/O⌉` of `L` positions of an axis. The input is
/// `[batch_size, channels]`, then one to three axes. The module is [`AdaptiveMaxPool2d`](super::AdaptiveMaxPool2d).
///
/// # Panics
/// If the input has other axes than the output, and if the device cannot compute it.
pub fn adaptive_max_pool<const D: usize>(
    input: Tensor<D>,
    output_size: impl Into<Extents>,
) -> Tensor<D> {
    pool(Pool::max(MaxPool::adaptive(output_size)), input).0.into_tensor()
}

/// As [`adaptive_max_pool`], and the position of each maximum in its plane, in row-major order, as an `i32`.
///
/// # Panics
/// As [`adaptive_max_pool`].
pub fn adaptive_max_pool_with_indices<const D: usize>(
    input: Tensor<D>,
    output_size: impl Into<Extents>,
) -> (Tensor<D>, Tensor<D, Int>) {
    pool_with_indices(Pool::max(MaxPool::adaptive(output_size)), input)
}

/// Max unpooling: writes maxima to the positions they came from, into zeros, and so reverses a max pooling.
///
/// An index is a position in the output's plane, in row-major order, as those of Burn's `max_pool2d_with_indices` are;
/// −1 is ignored, and of several equal ones the last wins. Another index outside the plane is a mistake of the caller,
/// which is ignored too. Indices that are not `i32` are converted. `output_size` is the size of the input that was
/// pooled. The module is [`MaxUnpool2d`](super::MaxUnpool2d).
///
/// ```
/// use burn::tensor::{Device, DeviceKind, Tensor};
/// use windowpane_burn::nn;
///
/// let device = Device::wgpu(DeviceKind::DefaultDevice);
/// let x = Tensor::<3>::from_data([[[1.0, 5.0, 4.0, 2.0]]], &device);
/// let (y, indices) = nn::adaptive_max_pool_with_indices(x, 2);
/// let back = nn::max_unpool(y, indices, 4);
/// assert_eq!(back.into_data().try_to_vec::<f32>()?, [0.0, 5.0, 4.0, 0.0]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
/// If there is not one index for each number, and if the device cannot compute it.
pub fn max_unpool<const D: usize>(
    input: Tensor<D>,
    indices: Tensor<D, Int>,
    output_size: impl Into<Extents>,
) -> Tensor<D> {
    if input.dims() != indices.dims() {
        let (numbers, indices) = (input.dims(), indices.dims());
        super::refuse(format!("{numbers:?} numbers to unpool, and {indices:?} indices"));
    }
    let unpool = MaxUnpool::new(output_size);
    let indices = integers_of(indices);
    match Floats::of(input) {
        Floats::Plain(y) => {
            let shape = y.shape();
            Floats::Plain(queue(Operator::Unpool(unpool), &shape, vec![y, indices]).0)
        }
        Floats::Tracked(y, strategy) => {
            let x = match strategy {
                Strategy::Balanced => gradient::unpool::<BalancedCheckpointing>(unpool, y, indices),
                Strategy::Disabled => gradient::unpool::<NoCheckpointing>(unpool, y, indices),
            };
            Floats::Tracked(x, strategy)
        }
    }
    .into_tensor()
}

/// Padding: a larger tensor, with zeros or copies around the input.
///
/// Burn's `Tensor::pad` has no circular padding, and mirrors less than the input. The input is `[batch_size, channels]`,
/// then one to three axes, and `padding` is that of the axes: `1` or `[1, 1]` for both sides, `[(1, 2), (0, 1)]` for before
/// and after. The gradient of each copy is added to that of the number that was copied. [`Conv2d`](super::Conv2d) is a
/// convolution with such padding.
///
/// ```
/// use burn::tensor::{Device, DeviceKind, Tensor};
/// use windowpane_burn::nn::{self, PaddingMode};
///
/// let device = Device::wgpu(DeviceKind::DefaultDevice);
/// let x = Tensor::<3>::from_data([[[1.0, 2.0, 3.0]]], &device);
/// let y = nn::pad(x, [(2, 1)], PaddingMode::Circular);
/// assert_eq!(y.into_data().try_to_vec::<f32>()?, [2.0, 3.0, 1.0, 2.0, 3.0, 1.0]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
/// If the padding has other axes than the input, and if the device cannot compute it.
pub fn pad<const D: usize>(
    input: Tensor<D>,
    padding: impl Into<Padding>,
    mode: PaddingMode,
) -> Tensor<D> {
    let options = PadOptions { padding: padding.into(), mode: mode.into() };
    pool(Pool::padding(options), input).0.into_tensor()
}

/// Computes an operator that has no gradient.
fn detached<const D: usize>(operator: Operator, input: Tensor<D>) -> Tensor<D> {
    let compute = |x: Queued| {
        let shape = x.shape();
        queue(operator, &shape, vec![x]).0
    };
    match Floats::of(input) {
        Floats::Plain(x) => Floats::Plain(compute(x)),
        Floats::Tracked(x, strategy) => Floats::detached(compute(x.into_primitive()), strategy),
    }
    .into_tensor()
}

fn pool<const D: usize>(pool: Pool, input: Tensor<D>) -> (Floats, Option<Queued>) {
    match Floats::of(input) {
        Floats::Plain(x) => {
            let shape = x.shape();
            let (y, indices) = queue(pool.forward, &shape, vec![x]);
            (Floats::Plain(y), indices)
        }
        Floats::Tracked(x, strategy) => {
            let (y, indices) = match strategy {
                Strategy::Balanced => pool.pool::<BalancedCheckpointing>(x),
                Strategy::Disabled => pool.pool::<NoCheckpointing>(x),
            };
            (Floats::Tracked(y, strategy), indices)
        }
    }
}

fn pool_with_indices<const D: usize>(of: Pool, input: Tensor<D>) -> (Tensor<D>, Tensor<D, Int>) {
    let (y, indices) = pool(of.with_indices(), input);
    let indices = indices.unwrap_or_else(|| unreachable!("the pooling was to give indices"));
    let context = y.context();
    (y.into_tensor(), into_integers(indices, context))
}
