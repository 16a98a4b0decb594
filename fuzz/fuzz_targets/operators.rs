//! Runs every operator and its gradient on `host`, and compares them with loops and with each other.
//!
//! `host` computes with the reference, so the reference cannot check it here: results are compared with loops over the
//! taps of each window, and each gradient with its own operator through `⟨f(x), g⟩ = ⟨x, fᵀ(g)⟩`. The numbers are small
//! integers, so that their sums are exact, and only results are rounded to the type. Results that are too large for the
//! type are infinite.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use windowpane::{
    AvgPool, Conv, DType, Device, Divisor, FilterLayout, IndexBase, Layout, LpPool, MaxPool,
    MaxUnpool, Tensor,
};
use windowpane_fuzz::{Sliding, positions, windows};
use windowpane_geometry::Extents;

#[derive(Arbitrary, Debug)]
struct Input {
    sliding: Sliding,
    channels_first: bool,
    batch: u8,
    channels: u8,
    /// The number of groups, and of filters in each group, of a convolution.
    groups: u8,
    filters: u8,
    filter_layout: u8,
    base: u8,
    operator: Operator,
    dtype: u8,
    data: Vec<i8>,
}

impl Input {
    fn dtype(&self) -> DType {
        [DType::F64, DType::F32, DType::F16, DType::BF16][usize::from(self.dtype) % 4]
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Operator {
    Max,
    Average(Option<u8>),
    Norm(u8),
    Unpool,
    Conv,
}

fuzz_target!(|input: Input| {
    // A refusal is an error, not a finding.
    let _ = run(&input);
});

/// The numbers of the input from index `start` on, repeated as often as needed.
fn numbers(input: &Input, start: usize, count: usize) -> Vec<f64> {
    let whole = |byte: &i8| f64::from(*byte % 8);
    let mut all: Vec<f64> = input.data.iter().map(whole).collect();
    if all.is_empty() {
        all = vec![1.0, -2.0, 3.0];
    }
    (0..count).map(|i| all[(start + i) % all.len()]).collect()
}

fn tensor(input: &Input, start: usize, dims: &[usize]) -> windowpane::Result<Tensor> {
    let exact = numbers(input, start, dims.iter().product());
    Tensor::from_slice(&Device::host(), &exact, dims)?.to_dtype(input.dtype())
}

/// The elements, which f64 holds exactly.
fn exact(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (exact(a), exact(b));
    assert_eq!(a.len(), b.len());
    a.iter().zip(&b).map(|(a, b)| a * b).sum()
}

/// The unit roundoff of a type, and its largest number.
fn limits(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F16 => (2f64.powi(-11), 65504.0),
        DType::BF16 => (2f64.powi(-8), 3.3e38),
        DType::F32 => (2f64.powi(-24), 3.4e38),
        _ => (2f64.powi(-53), f64::MAX),
    }
}

/// The error of sums and powers before they are rounded to the type, relative to the terms.
fn slack(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e-10 } else { 1e-5 }
}

/// The distance of the smallest numbers, which is not relative. f16 is the only type in which results are so small.
fn least(dtype: DType) -> f64 {
    if dtype == DType::F16 { 2f64.powi(-24) } else { 0.0 }
}

/// Checks a result whose terms have this magnitude; 0 if the sum of them is exact.
fn assert_close(dtype: DType, found: f64, expected: f64, terms: f64) {
    let (unit, largest) = limits(dtype);
    let bound = 2.0 * unit * expected.abs() + slack(dtype) * terms + least(dtype);
    if found.is_infinite() && expected.abs() + bound > largest {
        assert_eq!(found.signum(), expected.signum());
        return;
    }
    assert!((found - expected).abs() <= bound, "{dtype}: {found} is not {expected}");
}

/// Checks that the inner products of two pairs agree, each of a tensor and of a result that was rounded. `terms` is the
/// magnitude of the terms of each result; 0 if the sums of them are exact.
fn assert_adjoint([one, other]: [[&Tensor; 2]; 2], terms: f64) {
    let dtype = one[0].dtype();
    let (unit, _) = limits(dtype);
    let mut bound = 0.0;
    let mut products = [0.0; 2];
    for (sum, [given, result]) in products.iter_mut().zip([one, other]) {
        let (given, result) = (exact(given), exact(result));
        assert_eq!(given.len(), result.len());
        // It was too large for the type.
        if result.iter().any(|x| x.is_infinite()) {
            return;
        }
        for (given, result) in given.iter().zip(&result) {
            *sum += given * result;
            let rounded = 2.0 * unit * result.abs() + slack(dtype) * terms + least(dtype);
            bound += given.abs() * rounded;
        }
        // The products of f64 are rounded too.
        bound += if terms == 0.0 { 0.0 } else { slack(dtype) * (1.0 + sum.abs()) };
    }
    let [found, expected] = products;
    assert!((found - expected).abs() <= bound, "{dtype}: {found} is not {expected}");
}

fn run(input: &Input) -> windowpane::Result<()> {
    let window = input.sliding.window([9, 5, 5, 4, 7, 7], 9)?;
    let layout = if input.channels_first { Layout::ChannelsFirst } else { Layout::ChannelsLast };
    let (batch, channels) = (usize::from(input.batch % 3), usize::from(input.channels % 5));
    let space = input.sliding.numbers(0, 9);
    let dims = |channels: usize, space: &[usize]| match layout {
        Layout::ChannelsFirst => [&[batch, channels], space].concat(),
        Layout::ChannelsLast => [&[batch], space, &[channels]].concat(),
    };
    let x = tensor(input, 0, &dims(channels, &space))?;
    let dtype = input.dtype();
    let base =
        [IndexBase::Plane, IndexBase::Tensor, IndexBase::Memory][usize::from(input.base) % 3];
    match input.operator {
        Operator::Max => {
            let pool = MaxPool::with_window(window).layout(layout).index_base(base);
            let (y, winners) = pool.forward_with_indices(&x)?;
            let dy = tensor(input, 3, y.dims())?;
            let dx = pool.backward(&dy, &winners, x.dims())?;
            // A gradient goes to the position of its maximum, so both inner products agree, except for empty windows.
            let (values, winners) = (exact(&y), winners.to_vec::<i32>()?);
            let met = values.iter().zip(&winners).map(|(y, at)| if *at < 0 { 0.0 } else { *y });
            let met = Tensor::from_slice(&Device::host(), &met.collect::<Vec<_>>(), y.dims())?;
            assert_adjoint([[&x, &dx], [&dy, &met.to_dtype(dtype)?]], 0.0);
            let plan = pool.plan(&Device::host(), dtype, x.dims())?;
            for (y, taps) in values.iter().zip(windows(plan.pooling(), &exact(&x))) {
                assert_eq!(*y, taps.numbers.into_iter().fold(f64::NEG_INFINITY, f64::max));
            }
            let only =
                values.iter().zip(&winners).all(|(y, at)| (*at < 0) == (*y == f64::NEG_INFINITY));
            assert!(only, "only an empty window has no winner");
        }
        Operator::Average(divisor) => {
            let divisor = match divisor {
                None => Divisor::Padded,
                Some(0) => Divisor::Valid,
                Some(n) => Divisor::Fixed(n.into()),
            };
            let pool = AvgPool::with_window(window).layout(layout).divisor(divisor);
            let y = pool.forward(&x)?;
            let dy = tensor(input, 3, y.dims())?;
            let dx = pool.backward(&dy, x.dims())?;
            assert_adjoint([[&x, &dx], [&dy, &y]], 64.0);
            let plan = pool.plan(&Device::host(), dtype, x.dims())?;
            for (y, taps) in exact(&y).into_iter().zip(windows(plan.pooling(), &exact(&x))) {
                let by = match divisor {
                    Divisor::Valid => taps.numbers.len().max(1),
                    Divisor::Fixed(n) | Divisor::Truncated(n) => n as usize,
                    _ => taps.padded,
                };
                let sum: f64 = taps.numbers.iter().sum();
                assert_close(dtype, y, sum / by as f64, 64.0);
            }
        }
        Operator::Norm(p) => {
            let p = f64::from(p % 12) / 2.0;
            let pool = LpPool::with_window(p, window).layout(layout);
            let y = pool.forward(&x)?;
            let dy = tensor(input, 3, y.dims())?;
            let dx = pool.backward(&dy, &x)?;
            // A norm is homogeneous: its gradient along its own argument is the norm.
            assert_adjoint([[&x, &dx], [&dy, &y]], 512.0);
            let plan = pool.plan(&Device::host(), dtype, x.dims())?;
            for (y, taps) in exact(&y).into_iter().zip(windows(plan.pooling(), &exact(&x))) {
                let sum: f64 = taps.numbers.iter().map(|x| x.abs().powf(p)).sum();
                let norm = sum.powf(1.0 / p);
                assert_close(dtype, y, norm, 512.0 + norm);
            }
        }
        Operator::Unpool => {
            let pool = MaxPool::with_window(window).layout(layout).index_base(base);
            let (y, winners) = pool.forward_with_indices(&x)?;
            let back =
                MaxUnpool::new(Extents::try_from(&space[..])?).layout(layout).index_base(base);
            let y = tensor(input, 5, y.dims())?;
            let unpooled = back.forward(&y, &winners)?;
            let g = tensor(input, 3, unpooled.dims())?;
            // Nothing is rounded.
            let dy = back.backward(&g, &winners)?;
            assert_eq!(dot(&unpooled, &g), dot(&y, &dy));
        }
        Operator::Conv => {
            let groups = usize::from(input.groups % 4);
            let count = groups * usize::from(input.filters % 3);
            let order = [FilterLayout::Fhwc, FilterLayout::Hwcf, FilterLayout::Fchw]
                [usize::from(input.filter_layout) % 3];
            let conv = Conv::with_window(window).layout(layout).filter_layout(order).groups(groups);
            let kernel = input.sliding.numbers(1, 5);
            let depth = channels.checked_div(groups).unwrap_or(0);
            let filter_dims = match order {
                FilterLayout::Hwcf => [&kernel[..], &[depth, count]].concat(),
                FilterLayout::Fchw => [&[count, depth], &kernel[..]].concat(),
                _ => [&[count], &kernel[..], &[depth]].concat(),
            };
            let w = tensor(input, 7, &filter_dims)?;
            let y = conv.forward(&x, &w, None)?;
            let dy = tensor(input, 3, y.dims())?;
            let (dx, dw) = (conv.backward_data(&dy, &w, x.dims())?, conv.backward_weight(&dy, &x)?);
            assert_adjoint([[&x, &dx], [&dy, &y]], 0.0);
            assert_adjoint([[&w, &dw], [&dy, &y]], 0.0);
            let plan = conv.plan(&Device::host(), dtype, x.dims(), w.dims())?;
            let expected = naive(plan.problem(), &exact(&x), &exact(&w));
            for (y, expected) in exact(&y).into_iter().zip(expected) {
                assert_close(dtype, y, expected, 0.0);
            }
        }
    }
    Ok(())
}

/// SEMANTICS 6.1, one coordinate at a time.
fn naive(problem: &windowpane::Convolution, x: &[f64], w: &[f64]) -> Vec<f64> {
    let (input, output, filter) = (problem.input(), problem.output(), problem.filter());
    let (grid, layout) = (problem.grid(), problem.layout());
    let output_space = grid.axes().map(|axis| 0..axis.output());
    let kernel = grid.axes().map(|axis| 0..axis.kernel());
    let (from, to) = (input.strides(layout), output.strides(layout));
    let taps = filter.strides(problem.filter_layout());
    let mut y = vec![0.0; output.elements()];
    for n in 0..output.batch() {
        for f in 0..filter.count() {
            for o in positions(output_space.clone()) {
                let sum = &mut y[to.offset(n, f, o)];
                for tap in positions(kernel.clone()) {
                    let at = [0, 1, 2].map(|i| grid.axes()[i].coordinate(o[i], tap[i]));
                    if (0..3).any(|i| at[i] < 0 || at[i] >= grid.axes()[i].input() as i64) {
                        continue;
                    }
                    for c in 0..filter.channels() {
                        let channel = problem.first_channel(f) + c;
                        *sum += x[from.offset(n, channel, at.map(|i| i as usize))]
                            * w[taps.offset(f, c, tap)];
                    }
                }
            }
        }
    }
    y
}
