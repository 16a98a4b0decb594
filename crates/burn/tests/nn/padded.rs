//! Padding, forward and backward.

use windowpane::Pad;
use windowpane_burn::nn::{self, PaddingMode};
use windowpane_burn::{Extents, Padding};

use crate::draw::Draw;
use crate::random::{Hosted, LAYOUT, check, hosted};
use crate::read;

const CASES: u64 = 12;
const MODES: [PaddingMode; 4] =
    [PaddingMode::Zeros, PaddingMode::Reflect, PaddingMode::Replicate, PaddingMode::Circular];

fn padded<const D: usize>() {
    for case in 0..CASES {
        let mut random = Draw::new(100 * case + D as u64);
        let mut shape = [random.between(1, 3); D];
        shape[1] = random.between(1, 4);
        shape[2..].fill_with(|| random.between(1, 6));
        // Up to more than the input, so that patterns repeat.
        let [before, after] = [(); 2].map(|()| {
            let sides: Vec<usize> = (2..D).map(|_| random.between(0, 8)).collect();
            Extents::try_from(&*sides).expect("there are one to three axes")
        });
        let padding = Padding::Explicit { before, after };
        let mode = MODES[case as usize % 4];
        let input = || Draw::new(case).input(shape);
        let x = hosted(&read(input()[0].clone()), shape);
        let name = format!("{shape:?} padded by {before} and {after}, {mode:?}");

        let host = Pad::new(padding).mode(mode.into()).layout(LAYOUT);
        let y = host.forward(&x).expect(&name);
        let gradient = |dy: &Hosted| host.backward(dy, x.dims()).expect(&name);
        check(&name, &input, |x| nn::pad(x, padding, mode), &y, gradient, false);
        // Without a gradient.
        let untracked = nn::pad(input()[0].clone().inner(), padding, mode);
        assert_eq!(read(untracked), y.to_vec::<f32>().expect("it is f32"), "{name}");
    }
}

#[test]
fn padding_of_one_axis() {
    padded::<3>();
}

#[test]
fn padding_of_two_axes() {
    padded::<4>();
}

#[test]
fn padding_of_three_axes() {
    padded::<5>();
}
