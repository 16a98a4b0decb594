//! Random shapes and options, with one axis to three.

use burn::nn::{PaddingConfig1d, PaddingConfig2d, PaddingConfig3d};
use burn::tensor::{Tensor, TensorData};
use windowpane::{
    Device as Host, Layout, LpPool, MaxPool, MaxUnpool, MedianPool, MinPool, ModePool, RankPool,
    SumPool,
};
use windowpane_burn::{Rounding, Window, nn};

use crate::draw::{Draw, device};
use crate::{read, read_integers};

const CASES: u64 = 6;
pub(crate) const LAYOUT: Layout = Layout::ChannelsFirst;

pub(crate) type Hosted = windowpane::Tensor;

pub(crate) fn hosted<const D: usize>(numbers: &[f32], dims: [usize; D]) -> Hosted {
    Hosted::from_slice(&Host::host(), numbers, dims).expect("as many numbers as the shape has")
}

pub(crate) fn numbers(tensor: &Hosted) -> Vec<f32> {
    tensor.to_vec().expect("these tensors are f32")
}

/// The two are the same, or within rounding if they are sums.
pub(crate) fn compare(name: &str, found: &[f32], expected: &[f32], are_sums: bool) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let most = expected.iter().filter(|value| value.is_finite());
    let most = most.fold(1.0f32, |most, value| most.max(value.abs()));
    let bound = if are_sums { 1e-5 * most } else { 0.0 };
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found == expected || (found - expected).abs() <= bound;
        assert!(same, "{name} at {at}: {found} and {expected}");
    }
}

/// Draws an input: the tensor, and the leaf that it is made from.
pub(crate) type Input<'a, const D: usize> = &'a dyn Fn() -> [Tensor<D>; 2];

/// Compares `forward`, and its gradient with respect to the leaf, with what `host` gives for `dy`: the output and the
/// gradient with respect to the input.
pub(crate) fn check<const D: usize>(
    name: &str,
    input: Input<'_, D>,
    forward: impl FnOnce(Tensor<D>) -> Tensor<D>,
    expected: &Hosted,
    gradient: impl FnOnce(&Hosted) -> Hosted,
    are_sums: bool,
) {
    let [x, leaf] = input();
    let dims = x.dims();
    let y = forward(x);
    assert_eq!(y.dims().as_slice(), expected.dims(), "{name}");
    compare(name, &read(y.clone()), &numbers(expected), are_sums);

    let mut draw = Draw::new(dims.iter().sum::<usize>() as u64);
    let dy = draw.numbers(expected.len());
    let weights = Tensor::<D>::from_data(TensorData::new(dy.clone(), y.dims()), &y.device());
    let found = leaf.grad(&(y.clone() * weights).sum().backward()).expect("the leaf is tracked");

    // Burn takes this gradient on to the leaf.
    let dx = gradient(&hosted(&dy, y.dims()));
    let [x, leaf] = input();
    let dx = Tensor::<D>::from_data(TensorData::new(numbers(&dx), dims), &x.device());
    let wanted = leaf.grad(&(x * dx).sum().backward()).expect("the leaf is tracked");
    compare(&format!("{name}, gradient"), &read(found), &read(wanted), true);
}

/// Compares `forward` with what `host` gives, and checks that no gradient reaches its input.
fn check_detached<const D: usize>(
    name: &str,
    input: Input<'_, D>,
    forward: impl FnOnce(Tensor<D>) -> Tensor<D>,
    expected: &Hosted,
) {
    let [x, leaf] = input();
    let found = forward(x.clone());
    assert_eq!(found.dims().as_slice(), expected.dims(), "{name}");
    compare(name, &read(found.clone()), &numbers(expected), false);
    // The other factor is tracked, and gets the result as its gradient.
    let found = found.sum().reshape([1; D]).expand(x.dims());
    let gradients = (found.clone() * x).sum().backward();
    let wanted = {
        let [x, leaf] = input();
        let gradients = (found.detach() * x).sum().backward();
        read(leaf.grad(&gradients).expect("the leaf is tracked"))
    };
    let found = read(leaf.grad(&gradients).expect("the leaf is tracked"));
    compare(&format!("{name}, detached"), &found, &wanted, false);
}

macro_rules! random {
    ($test:ident, $axes:literal, $rank:literal, $most:literal, $with_strides:ident, $of:expr, $pad:expr,
     $lp:ident, $sum:ident, $min:ident, $median:ident, $rank_pool:ident, $mode:ident,
     $adaptive:ident, $unpool:ident) => {
        #[test]
        fn $test() {
            for case in 0..CASES {
                let mut draw = Draw::new(100 * case + $axes);
                let kernel: [usize; $axes] = core::array::from_fn(|_| draw.between(1, 3));
                let stride: [usize; $axes] = core::array::from_fn(|_| draw.between(1, 3));
                let dilation: [usize; $axes] = core::array::from_fn(|_| draw.between(1, 2));
                // Burn's padding of volumes is the same on both sides.
                let before: [usize; $axes] = kernel.map(|taps| draw.between(0, taps / 2));
                let after = match $axes {
                    3 => before,
                    _ => kernel.map(|taps| draw.between(0, taps / 2)),
                };
                let ceil = draw.between(0, 1) == 1;
                let p = [1.0, 2.0, 2.5, 3.0][draw.between(0, 3)];
                let mut shape = [0; $rank];
                shape[0] = draw.between(1, 3);
                shape[1] = draw.between(1, 5);
                shape[2..].fill_with(|| draw.between(5, $most));
                let input = || Draw::new(case).input(shape);
                let x = hosted(&read(input()[0].clone()), shape);
                let sides: [(usize, usize); $axes] =
                    core::array::from_fn(|axis| (before[axis], after[axis]));
                let window = Window::new(kernel).stride(stride).dilation(dilation).padding(sides);
                let window = window.rounding(if ceil { Rounding::Ceil } else { Rounding::Floor });
                let name = format!("{shape:?}, {window:?}, p {p}");

                let host = LpPool::with_window(p, window).layout(LAYOUT);
                let module = nn::$lp::new($of(kernel))
                    .$with_strides($of(stride))
                    .with_dilation($of(dilation))
                    .with_padding($pad(before, after))
                    .with_ceil_mode(ceil)
                    .with_p(p)
                    .init();
                let y = host.forward(&x).expect(&name);
                let gradient = |dy: &Hosted| host.backward(dy, &x).expect(&name);
                let forward = |x| module.forward(x);
                check(&format!("lp {name}"), &input, forward, &y, gradient, true);

                let host = SumPool::with_window(window).layout(LAYOUT);
                let module = nn::$sum::new($of(kernel))
                    .$with_strides($of(stride))
                    .with_dilation($of(dilation))
                    .with_padding($pad(before, after))
                    .with_ceil_mode(ceil)
                    .init();
                let y = host.forward(&x).expect(&name);
                let gradient = |dy: &Hosted| host.backward(dy, x.dims()).expect(&name);
                let forward = |x| module.forward(x);
                check(&format!("sum {name}"), &input, forward, &y, gradient, true);

                let host = MinPool::with_window(window).layout(LAYOUT);
                let module = nn::$min::new($of(kernel))
                    .$with_strides($of(stride))
                    .with_dilation($of(dilation))
                    .with_padding($pad(before, after))
                    .with_ceil_mode(ceil)
                    .init();
                let (y, winners) = host.forward_with_indices(&x).expect(&name);
                let gradient = |dy: &Hosted| host.backward(dy, &winners, x.dims()).expect(&name);
                let forward = |x| module.forward(x);
                check(&format!("min {name}"), &input, forward, &y, gradient, false);
                let (found, indices) = module.forward_with_indices(input()[0].clone());
                compare(&format!("min {name} with indices"), &read(found), &numbers(&y), false);
                let expected: Vec<i32> = winners.to_vec().expect("indices are i32");
                assert_eq!(read_integers(indices.clone()), expected, "min {name}");

                // Indices of windows that overlap name positions more than once.
                let dims = indices.dims();
                let pooled = || Draw::new(case + 50).input(dims);
                let size: [usize; $axes] = core::array::from_fn(|axis| shape[2 + axis]);
                let host = MaxUnpool::new(size).layout(LAYOUT);
                let unpool = nn::$unpool::new($of(kernel)).init();
                let from = hosted(&read(pooled()[0].clone()), dims);
                let back = host.forward(&from, &winners).expect(&name);
                let gradient = |dx: &Hosted| host.backward(dx, &winners).expect(&name);
                let forward = |y| unpool.forward_to(y, indices, $of(size));
                check(&format!("unpool {name}"), &pooled, forward, &back, gradient, false);

                let host = MedianPool::with_window(window).layout(LAYOUT);
                let module = nn::$median::new($of(kernel))
                    .$with_strides($of(stride))
                    .with_dilation($of(dilation))
                    .with_padding($pad(before, after))
                    .with_ceil_mode(ceil)
                    .init();
                let y = host.forward(&x).expect(&name);
                check_detached(&format!("median {name}"), &input, |x| module.forward(x), &y);

                let taps = kernel.iter().product::<usize>();
                let nth = draw.between(0, taps) as u32;
                let host = RankPool::with_window(nth, window).layout(LAYOUT);
                let module = nn::$rank_pool::new($of(kernel), nth)
                    .$with_strides($of(stride))
                    .with_dilation($of(dilation))
                    .with_padding($pad(before, after))
                    .with_ceil_mode(ceil)
                    .init();
                let y = host.forward(&x).expect(&name);
                check_detached(&format!("rank {nth} {name}"), &input, |x| module.forward(x), &y);

                // So few numbers that windows have them more than once.
                let labels = |x: Tensor<$rank>| (x * 2.0).round();
                let host = ModePool::with_window(window).layout(LAYOUT);
                let module = nn::$mode::new($of(kernel))
                    .$with_strides($of(stride))
                    .with_dilation($of(dilation))
                    .with_padding($pad(before, after))
                    .with_ceil_mode(ceil)
                    .init();
                let x_labels = hosted(&read(labels(input()[0].clone())), shape);
                let y = host.forward(&x_labels).expect(&name);
                let forward = |x| module.forward(labels(x));
                check_detached(&format!("mode {name}"), &input, forward, &y);

                let size: [usize; $axes] = core::array::from_fn(|_| draw.between(1, 6));
                let host = MaxPool::adaptive(size).layout(LAYOUT);
                let module = nn::$adaptive::new($of(size)).init();
                let name = format!("adaptive max {shape:?} to {size:?}");
                let (y, winners) = host.forward_with_indices(&x).expect(&name);
                let gradient = |dy: &Hosted| host.backward(dy, &winners, x.dims()).expect(&name);
                check(&name, &input, |x| module.forward(x), &y, gradient, false);
                let gradient = |dy: &Hosted| host.backward(dy, &winners, x.dims()).expect(&name);
                let indexed = |x| {
                    let (y, indices) = module.forward_with_indices(x);
                    let expected: Vec<i32> = winners.to_vec().expect("indices are i32");
                    assert_eq!(read_integers(indices), expected, "{name}");
                    y
                };
                check(&format!("{name} with indices"), &input, indexed, &y, gradient, false);
                let untracked = Tensor::<$rank>::from_data(input()[0].to_data(), &device());
                let (found, indices) = nn::adaptive_max_pool_with_indices(untracked, size);
                compare(&format!("{name} untracked"), &read(found), &numbers(&y), false);
                let expected: Vec<i32> = winners.to_vec().expect("indices are i32");
                assert_eq!(read_integers(indices), expected, "{name} untracked");
            }
        }
    };
}

random!(
    one_axis,
    1,
    3,
    14,
    with_stride,
    |[size]: [usize; 1]| size,
    |[before]: [usize; 1], [after]: [usize; 1]| PaddingConfig1d::Explicit(before, after),
    LpPool1dConfig,
    SumPool1dConfig,
    MinPool1dConfig,
    MedianPool1dConfig,
    RankPool1dConfig,
    ModePool1dConfig,
    AdaptiveMaxPool1dConfig,
    MaxUnpool1dConfig
);
random!(
    two_axes,
    2,
    4,
    11,
    with_strides,
    |sizes: [usize; 2]| sizes,
    |[top, left]: [usize; 2], [bottom, right]: [usize; 2]| {
        PaddingConfig2d::Explicit(top, left, bottom, right)
    },
    LpPool2dConfig,
    SumPool2dConfig,
    MinPool2dConfig,
    MedianPool2dConfig,
    RankPool2dConfig,
    ModePool2dConfig,
    AdaptiveMaxPool2dConfig,
    MaxUnpool2dConfig
);
random!(
    three_axes,
    3,
    5,
    8,
    with_strides,
    |sizes: [usize; 3]| sizes,
    |[depth, height, width]: [usize; 3], _| PaddingConfig3d::Explicit(depth, height, width),
    LpPool3dConfig,
    SumPool3dConfig,
    MinPool3dConfig,
    MedianPool3dConfig,
    RankPool3dConfig,
    ModePool3dConfig,
    AdaptiveMaxPool3dConfig,
    MaxUnpool3dConfig
);
