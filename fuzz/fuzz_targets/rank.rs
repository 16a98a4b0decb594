//! Runs rank filters and modes on `host`, in every type, and compares them with windows that are sorted.

#![no_main]

use arbitrary::Arbitrary;
use half::{bf16, f16};
use libfuzzer_sys::fuzz_target;
use windowpane::{Device, Element, Layout, ModePool, Pooling, Rank, RankPool, Tensor};
use windowpane_fuzz::{Sliding, windows};
use windowpane_geometry::{Extents, Shape};
use windowpane_reference::Scalar;

#[derive(Arbitrary, Debug)]
struct Input {
    sliding: Sliding,
    channels_first: bool,
    batch: u8,
    channels: u8,
    /// The number of elements that precede the result, or a fraction of them.
    nth: u32,
    whole: Option<u32>,
    dtype: u8,
    /// The elements as bits, repeated as often as needed: two bytes can be any NaN, zero, infinity or magnitude.
    data: Vec<u16>,
}

impl Input {
    fn rank(&self) -> Rank {
        match self.whole {
            None => Rank::Nth(self.nth),
            Some(whole) => Rank::Fraction { part: self.nth, whole },
        }
    }
}

fuzz_target!(|input: Input| {
    match input.dtype % 9 {
        0 => check(&input, |bits| f64::from(f16::from_bits(bits))),
        1 => check(&input, |bits| f32::from(f16::from_bits(bits))),
        2 => check(&input, f16::from_bits),
        3 => check(&input, bf16::from_bits),
        4 => check(&input, |bits| i32::from(bits as i16)),
        5 => check(&input, |bits| bits as i8),
        6 => check(&input, |bits| bits as u8),
        7 => check(&input, |bits| bits as i16),
        _ => check(&input, |bits| bits),
    }
});

fn check<T: Element>(input: &Input, of_bits: impl Fn(u16) -> T) {
    let (rank, Some((pooling, window))) = (input.rank(), pooling(input)) else { return };
    let is_rank = rank.check().is_ok();
    assert_eq!(rank.to_string().parse::<Rank>().ok(), is_rank.then_some(rank));
    let (layout, elements) = (pooling.layout(), pooling.input().elements());
    let data = if input.data.is_empty() { &[0][..] } else { &input.data };
    let x: Vec<T> = data.iter().cycle().take(elements).map(|bits| of_bits(*bits)).collect();
    let dims: Vec<usize> = pooling.input().dims(layout).collect();
    let tensor = Tensor::from_slice(&Device::host(), &x, dims).expect("a tensor");
    let numbers: Vec<f64> = x.into_iter().map(Scalar::to_f64).collect();
    let compare = |y: Tensor, expected: &dyn Fn(Vec<f64>) -> f64, what: &str| {
        let y = y.to_vec::<T>().expect("numbers");
        for (y, taps) in y.into_iter().zip(windows(&pooling, &numbers)) {
            let (y, expected) = (y.to_f64(), expected(taps.numbers));
            let is_same = y.to_bits() == expected.to_bits() || y.is_nan() && expected.is_nan();
            assert!(is_same, "{y} is not {expected}, {what}");
        }
    };
    let y = ModePool::with_window(window).layout(layout).forward(&tensor);
    compare(y.expect("a window that other poolings take"), &most_frequent, "the mode");
    let y = RankPool::with_window(rank, window).layout(layout).forward(&tensor);
    // A window that other poolings take is refused only for its rank.
    assert_eq!(y.is_ok(), is_rank, "{rank}: {:?}", y.err());
    let Ok(y) = y else { return };
    compare(y, &|numbers| taken(rank, numbers), "the number at the rank");
}

/// SEMANTICS 4.7.
fn most_frequent(mut numbers: Vec<f64>) -> f64 {
    if numbers.iter().any(|number| number.is_nan()) {
        return f64::NAN;
    }
    numbers.sort_by(f64::total_cmp);
    let runs = numbers.chunk_by(|a, b| a.to_bits() == b.to_bits());
    // The last one of the longest in reverse order is the first.
    runs.rev().max_by_key(|run| run.len()).map_or(0.0, |run| run[0])
}

/// SEMANTICS 4.4 to 4.6.
fn taken(rank: Rank, mut numbers: Vec<f64>) -> f64 {
    let n = numbers.len() as u64;
    if numbers.iter().any(|number| number.is_nan()) || n == 0 {
        return if n == 0 { 0.0 } else { f64::NAN };
    }
    numbers.sort_by(f64::total_cmp);
    let precede = match rank {
        Rank::Nth(k) => k.into(),
        Rank::Fraction { part, whole } => n * u64::from(part) / u64::from(whole),
    };
    numbers[precede.min(n - 1) as usize]
}

/// The problem and its window, or `None` if it is invalid or too large to compare quickly.
fn pooling(input: &Input) -> Option<(Pooling, windowpane::Window)> {
    let window = input.sliding.window([24, 9, 5, 4, 12, 12], 16).ok()?;
    let (batch, channels) = (usize::from(input.batch % 3), usize::from(input.channels % 5));
    let space = Extents::try_from(&input.sliding.numbers(0, 24)[..]).ok()?;
    let shape = Shape::new(batch, channels, space).ok()?;
    let layout = if input.channels_first { Layout::ChannelsFirst } else { Layout::ChannelsLast };
    let pooling = Pooling::new(shape, &window, layout).ok()?;
    let visits = pooling.output().elements().saturating_mul(pooling.grid().taps());
    (visits < 1 << 18).then_some((pooling, window))
}
