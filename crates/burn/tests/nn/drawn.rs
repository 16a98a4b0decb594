//! Poolings with random numbers: what they draw, their gradients, and the seeds of modules.

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use windowpane::{FractionalMaxPool, LpPool, StochasticPool};
use windowpane_burn::{Extents, Window, nn};

use crate::draw::{Draw, device};
use crate::random::{Hosted, LAYOUT, check, compare, hosted, numbers};
use crate::{read, read_integers};

const CASES: u64 = 6;

/// A shape and, for each of its axes, three numbers from 1 to 3.
fn draw<const D: usize>(draw: &mut Draw) -> ([usize; D], [Vec<usize>; 3]) {
    let most = [14, 11, 8][D - 3];
    let mut shape = [draw.between(1, 3); D];
    shape[1] = draw.between(1, 5);
    shape[2..].fill_with(|| draw.between(5, most));
    (shape, core::array::from_fn(|_| (2..D).map(|_| draw.between(1, 3)).collect()))
}

fn extents(axes: &[usize]) -> Extents {
    Extents::try_from(axes).expect("there are one to three")
}

fn stochastic<const D: usize>() {
    for case in 0..CASES {
        let mut random = Draw::new(100 * case + D as u64);
        let (shape, [kernel, stride, padding]) = draw::<D>(&mut random);
        let padding: Vec<_> =
            kernel.iter().zip(padding).map(|(taps, most)| most.min(taps / 2)).collect();
        let [kernel, stride, padding] = [kernel, stride, padding].map(|axes| extents(&axes));
        let window = Window::new(kernel).stride(stride).padding(padding);
        let input = || Draw::new(case).input(shape);
        let x = hosted(&read(input()[0].clone()), shape);
        let name = format!("{shape:?}, {window:?}");

        let seed = random.between(0, 1 << 30) as u32;
        let host = StochasticPool::with_window(window).seed(seed).layout(LAYOUT);
        let (y, drawn) = host.forward_with_indices(&x).expect(&name);
        let gradient = |dy: &Hosted| host.backward(dy, &drawn, x.dims()).expect(&name);
        let forward = |x| nn::stochastic_pool(x, seed, window);
        check(&format!("drawn {name}"), &input, forward, &y, gradient, false);
        let (found, indices) = nn::stochastic_pool_with_indices(input()[0].clone(), seed, window);
        compare(&format!("drawn {name} with indices"), &read(found), &numbers(&y), false);
        let expected: Vec<i32> = drawn.to_vec().expect("indices are i32");
        assert_eq!(read_integers(indices), expected, "drawn {name}");
        let untracked = Tensor::<D>::from_data(input()[0].to_data(), &device());
        let found = nn::stochastic_pool(untracked, seed, window);
        compare(&format!("drawn {name} untracked"), &read(found), &numbers(&y), false);

        let y = host.mean(&x).expect(&name);
        let gradient = |dy: &Hosted| mean_gradient(window, dy, &x);
        let forward = |x| nn::stochastic_mean(x, window);
        check(&format!("mean {name}"), &input, forward, &y, gradient, true);
    }
}

/// The gradient of the mean, which is the quotient of the 2-norm's square and the 1-norm of what is positive.
fn mean_gradient(window: Window, dy: &Hosted, x: &Hosted) -> Hosted {
    let like = |values: Vec<f32>, dims: &[usize]| {
        Hosted::from_slice(x.device(), &values, dims).expect("as many numbers as the shape has")
    };
    let w = like(numbers(x).into_iter().map(|x| x.max(0.0)).collect(), x.dims());
    let [norm, total] = [2.0, 1.0].map(|p| LpPool::with_window(p, window).layout(LAYOUT));
    let [norms, totals] = [norm, total].map(|pool| numbers(&pool.forward(&w).expect("it fits")));
    let scaled = |factor: fn(f32, f32) -> f32| {
        let factors = norms.iter().zip(&totals).map(|(norm, total)| match *total {
            0.0 => 0.0,
            total => factor(*norm, total),
        });
        let values = numbers(dy).into_iter().zip(factors).map(|(dy, factor)| dy * factor);
        like(values.collect(), dy.dims())
    };
    let of_norm = norm.backward(&scaled(|norm, total| 2.0 * norm / total), &w).expect("it fits");
    let of_total = scaled(|norm, total| (norm / total).powi(2));
    let of_total = total.backward(&of_total, &w).expect("it fits");
    let parts = numbers(&of_norm).into_iter().zip(numbers(&of_total));
    like(parts.map(|(norm, total)| norm - total).collect(), x.dims())
}

#[test]
fn stochastic_pooling_of_one_axis() {
    stochastic::<3>();
}

#[test]
fn stochastic_pooling_of_two_axes() {
    stochastic::<4>();
}

#[test]
fn stochastic_pooling_of_three_axes() {
    stochastic::<5>();
}

fn fractional<const D: usize>() {
    for case in 0..CASES {
        let mut random = Draw::new(100 * case + D as u64);
        let (shape, [kernel, ..]) = draw::<D>(&mut random);
        let room = shape[2..].iter().zip(&kernel).map(|(extent, taps)| extent - taps + 1);
        let output: Vec<_> = room.map(|most| random.between(1, most)).collect();
        let [kernel, output] = [kernel, output].map(|axes| extents(&axes));
        let input = || Draw::new(case).input(shape);
        let x = hosted(&read(input()[0].clone()), shape);
        let name = format!("fractional {shape:?}, {kernel} to {output}");

        let seed = random.between(0, 1 << 30) as u32;
        let host = FractionalMaxPool::new(kernel, output).seed(seed).layout(LAYOUT);
        let (y, winners) = host.forward_with_indices(&x).expect(&name);
        let gradient = |dy: &Hosted| host.backward(dy, &winners, x.dims()).expect(&name);
        let forward = |x| nn::fractional_max_pool(x, kernel, output, seed);
        check(&name, &input, forward, &y, gradient, false);
        let x = input()[0].clone();
        let (found, indices) = nn::fractional_max_pool_with_indices(x, kernel, output, seed);
        compare(&format!("{name} with indices"), &read(found), &numbers(&y), false);
        let expected: Vec<i32> = winners.to_vec().expect("indices are i32");
        assert_eq!(read_integers(indices), expected, "{name}");
        let untracked = Tensor::<D>::from_data(input()[0].to_data(), &device());
        let found = nn::fractional_max_pool(untracked, kernel, output, seed);
        compare(&format!("{name} untracked"), &read(found), &numbers(&y), false);
    }
}

#[test]
fn fractional_pooling_of_one_axis() {
    fractional::<3>();
}

#[test]
fn fractional_pooling_of_two_axes() {
    fractional::<4>();
}

#[test]
fn fractional_pooling_of_three_axes() {
    fractional::<5>();
}

/// Numbers between 0 and 1, so many that no two draws are equal.
fn positive<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let numbers = Draw::new(3).numbers(shape.iter().product());
    Tensor::from_data(TensorData::new(numbers, shape), device).abs()
}

macro_rules! modules {
    ($test:ident, $shape:expr, $two:expr, $eight:expr,
     $stochastic:ident $stochastic_config:ident, $fractional:ident $fractional_config:ident) => {
        #[test]
        fn $test() {
            let training = device().autodiff();
            let make = |seed| nn::$stochastic_config::new($two).with_seed(seed).init();
            let draw = |pool: &nn::$stochastic| read(pool.forward(positive($shape, &training)));
            let pool = make(Some(7));
            let [first, second] = [draw(&pool), draw(&pool)];
            assert_ne!(first, second);
            // The same seed draws the same, and a clone continues.
            let again = make(Some(7));
            assert_eq!(draw(&again), first);
            assert_eq!(draw(&again.clone()), second);
            assert_ne!(draw(&make(Some(8))), first);
            assert_ne!(draw(&make(None)), draw(&make(None)));
            // At inference and frozen it is the mean.
            let window = Window::new($two).stride($two);
            let mean = read(nn::stochastic_mean(positive($shape, &device()), window));
            assert_eq!(read(pool.valid().forward(positive($shape, &device()))), mean);
            assert_eq!(draw(&pool.freeze()), mean);

            let make = |size| nn::$fractional_config::new($two, size).with_seed(Some(7)).init();
            let draw = |pool: &nn::$fractional| read(pool.forward(positive($shape, &training)));
            let pool = make(nn::OutputSize::Ratio(0.5));
            let (y, indices) = pool.forward_with_indices(positive($shape, &training));
            assert!(y.dims()[2..].iter().all(|extent| *extent == 8));
            let first = read(y);
            let last = $shape.len() - 1;
            let planes: Tensor<3> = positive($shape, &training).flatten(2, last);
            assert_eq!(read(planes.gather(2, indices.flatten(2, last))), first);
            let second = draw(&pool);
            assert_ne!(first, second);
            let again = make(nn::OutputSize::Exact($eight));
            assert_eq!(draw(&again), first);
            assert_eq!(draw(&again.clone()), second);
            // At inference and frozen the positions are those of the first call, each time.
            let inference = || read(pool.valid().forward(positive($shape, &device())));
            assert_eq!([inference(), inference()], [first.clone(), first.clone()]);
            assert_eq!(draw(&pool.clone().freeze()), first);
        }
    };
}

modules!(
    modules_of_one_axis,
    [2, 3, 17],
    2,
    8,
    StochasticPool1d StochasticPool1dConfig,
    FractionalMaxPool1d FractionalMaxPool1dConfig
);
modules!(
    modules_of_two_axes,
    [2, 3, 16, 17],
    [2, 2],
    [8, 8],
    StochasticPool2d StochasticPool2dConfig,
    FractionalMaxPool2d FractionalMaxPool2dConfig
);
modules!(
    modules_of_three_axes,
    [1, 2, 17, 16, 17],
    [2, 2, 2],
    [8, 8, 8],
    StochasticPool3d StochasticPool3dConfig,
    FractionalMaxPool3d FractionalMaxPool3dConfig
);
