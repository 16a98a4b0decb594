//! Random programs that mix operators which are replaced, modules of `windowpane_burn::nn`, and others of Burn.
//!
//! The only test of its process: it counts how often operators were replaced.

#[path = "shared/both.rs"]
mod both;
#[path = "shared/draw.rs"]
mod draw;

use core::cell::Cell;

use burn::tensor::activation::relu;
use burn::tensor::module::{conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Tensor, TensorData};
use windowpane_burn::{Window, nn};

use both::{Numbers, both};
use draw::Draw;

const PROGRAMS: u64 = 6;
const LAYERS: usize = 10;
const SHAPE: [usize; 4] = [2, 4, 10, 10];

/// Runs all programs; gives the numbers, and how many convolutions and maxima there were.
fn run() -> (Numbers, [u64; 2]) {
    let mut numbers = Numbers::new();
    let [mut convolutions, mut maxima] = [0, 0];
    for program in 0..PROGRAMS {
        let mut draw = Draw::new(program + 40);
        let leaf = draw.tensor(SHAPE);
        let mut x = leaf.clone();
        let mut weights = Vec::new();
        let mut sides = Vec::new();
        let window = Window::new(3).padding(1);
        for _ in 0..LAYERS {
            x = match draw.between(0, 6) {
                0 | 1 => {
                    convolutions += 1;
                    let weight = draw.tensor([4, 4, 3, 3]);
                    weights.push(weight.clone());
                    let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
                    conv2d(x, weight * 0.2, None, options)
                }
                2 => relu(x) + 0.1,
                3 => {
                    maxima += 1;
                    let options = MaxPoolOptions::new([3, 3]).with_stride([1, 1]);
                    max_pool2d(x, options.with_padding_pairs([(1, 1), (1, 1)]))
                }
                4 => nn::min_pool(x, window),
                5 => nn::lp_pool(x, 2.0, window) * 0.3,
                _ => {
                    let matrix = TensorData::new(draw.numbers(400 * 3), [400, 3]);
                    let matrix = Tensor::<2>::from_data(matrix, &x.device());
                    sides.push(x.clone().flatten::<2>(1, 3).matmul(matrix).sum());
                    x
                }
            };
        }
        let total = sides.into_iter().fold(x.mean(), |total, side| total + side * 0.01);
        let gradients = total.clone().backward();
        let read = |tensor: Tensor<4>| tensor.into_data().try_to_vec().expect("it is f32");
        numbers.push((format!("program {program}"), vec![total.into_scalar::<f32>()]));
        for tensor in weights.iter().chain([&leaf]) {
            let gradient = tensor.grad(&gradients).expect("it is tracked");
            numbers.push((format!("program {program} gradient"), read(gradient)));
        }
    }
    (numbers, [convolutions, maxima])
}

/// Modules that are queued beside Burn's operators do not keep those after them from being replaced.
#[test]
fn programs_are_the_same() {
    let counted = Cell::new([0; 2]);
    let compute = || {
        let (numbers, counts) = run();
        counted.set(counts);
        numbers
    };
    let Some([installed, plain]) = both("programs_are_the_same", compute) else { return };
    for ((name, found), (_, expected)) in installed.iter().zip(&plain) {
        let most = expected.iter().fold(1e-3f32, |most, value| most.max(value.abs()));
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let same = (found - expected).abs() <= 1e-4 * most;
            assert!(same, "{name} at {at}: {found} and {expected}");
        }
    }
    let [convolutions, maxima] = counted.get();
    let counters = windowpane_burn::counters();
    for (operator, computed) in [
        ("conv2d_x_backward", convolutions),
        ("conv2d_weight_backward", convolutions),
        ("max_pool2d_with_indices_backward", maxima),
    ] {
        assert_eq!(counters.of(operator).replaced, computed, "{operator}:\n{counters}");
    }
    assert_eq!(counters.fell_back(), 0, "{counters}");
}
