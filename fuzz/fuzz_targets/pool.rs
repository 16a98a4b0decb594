//! Compares the deque and the prefix sums with the plain loops.

#![no_main]

use arbitrary::Arbitrary;
use half::f16;
use libfuzzer_sys::fuzz_target;
use windowpane_fuzz::Sliding;
use windowpane_geometry::{Divisor, Extents, IndexBase, Layout, Pooling, Shape};
use windowpane_reference::Scalar;
use windowpane_reference::pool::{deque, direct, prefix};

#[derive(Arbitrary, Debug)]
struct Input {
    sliding: Sliding,
    channels_first: bool,
    batch: u8,
    channels: u8,
    base: u8,
    divisor: Option<u8>,
    /// The elements as the bits of `f16`, repeated as often as needed: two bytes can be any NaN, zero, infinity or
    /// magnitude.
    data: Vec<u16>,
}

fuzz_target!(|input: Input| {
    let Some(pooling) = pooling(&input) else { return };
    let elements = input.data.iter().cycle().take(pooling.input().elements());
    let x: Vec<f32> = elements.map(|&bits| f16::from_bits(bits).to_f32()).collect();
    if x.len() != pooling.input().elements() {
        return;
    }

    let base =
        [IndexBase::Plane, IndexBase::Tensor, IndexBase::Memory][usize::from(input.base) % 3];
    let (y, winners) = direct::max_with_indices(&pooling, base, &x);
    let (slid, slid_winners) = deque::max_with_indices(&pooling, base, &x);
    assert_eq!(winners, slid_winners);
    assert_eq!(bits(&y), bits(&slid));
    assert_eq!(bits(&y), bits(&direct::max(&pooling, &x)));
    assert_eq!(bits(&y), bits(&deque::max(&pooling, &x)));

    let divisor = match input.divisor {
        None => Divisor::Padded,
        Some(0) => Divisor::Valid,
        Some(n) => Divisor::Fixed(n.into()),
    };
    let totals = direct::average_totals(&pooling, divisor, &x);
    let slid = prefix::average(&pooling, divisor, &x);
    for (total, y) in totals.iter().zip(slid) {
        let (y, reference) = (f64::from(y), total.value);
        // Both sums are accumulated in f64, so the error of both counts.
        let bound = total.bound(f32::ROUNDOFF, 2.0 * f64::ROUNDOFF);
        let equal = match reference.is_finite() {
            true => (y - reference).abs() <= bound,
            false => y == reference || (y.is_nan() && reference.is_nan()),
        };
        assert!(equal, "{y} is not {total:?}");
    }
});

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The problem, or `None` if it is invalid or too large to compare quickly.
fn pooling(input: &Input) -> Option<Pooling> {
    let window = input.sliding.window([40, 24, 8, 6, 20, 20], 24).ok()?;
    let (batch, channels) = (usize::from(input.batch % 3), usize::from(input.channels % 40));
    let space = Extents::try_from(&input.sliding.numbers(0, 40)[..]).ok()?;
    let shape = Shape::new(batch, channels, space).ok()?;
    let layout = if input.channels_first { Layout::ChannelsFirst } else { Layout::ChannelsLast };
    let pooling = Pooling::new(shape, &window, layout).ok()?;
    let visits = pooling.output().elements().saturating_mul(pooling.grid().taps());
    (visits < 1 << 20 && shape.elements() < 1 << 16).then_some(pooling)
}
