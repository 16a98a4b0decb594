//! Erosion, dilation and what is made of them, on every device.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use windowpane::{DType, Device, Element, Error, Layout, Morphology, PaddingMode, Tensor};
use windowpane_geometry::{
    Error as Misfit, Extents, Extremum, Footprint, Padded, Padding, Pooling, Window,
};
use windowpane_reference::{pad, pool::footprint::extremum_under};
use windowpane_testing::{PoolCase, assert_same, executed, on_every_device, on_one_type, proptest};

use crate::pool::{Check, devices, ok};

on_every_device! {
    /// SEMANTICS 4.10: identical bit for bit, for every footprint, origin and border.
    fn erosion_and_dilation_are_the_reference(device, case in (case(), any::<Index>())) {
        let (case, pick) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8, bool], check(&case))
    }
}

#[derive(Debug)]
struct Checked {
    case: PoolCase,
    kernel: Vec<usize>,
    /// The taps that count; all of them for a rectangle.
    taps: Vec<bool>,
    origin: Vec<isize>,
    border: Border,
    extremum: Extremum,
}

#[derive(Clone, Copy, Debug)]
enum Border {
    Nothing,
    Constant(f64),
    Copies(PaddingMode),
}

fn case() -> impl Strategy<Value = Checked> {
    let border = prop_oneof![
        Just(Border::Nothing),
        select(vec![-1000.0, -1.0, 0.0, 2.0, 1e6]).prop_map(Border::Constant),
        select(PaddingMode::ALL.to_vec()).prop_map(Border::Copies),
    ];
    let extremum = select(vec![Extremum::Max, Extremum::Min]);
    let numbers = (any::<[Index; 3]>(), any::<[Index; 3]>(), any::<u64>(), any::<bool>());
    (PoolCase::any(), numbers, border, extremum).prop_map(
        |(case, (sizes, origins, mut bits, is_whole), border, extremum)| {
            let rank = case.space.rank();
            // One axis has long runs.
            let most = |i: usize| if i + 1 == rank { 12 } else { 4 };
            let kernel: Vec<usize> = (0..rank).map(|i| 1 + sizes[i].index(most(i))).collect();
            let origin =
                |(k, origin): (&usize, &Index)| origin.index(*k) as isize - (k / 2) as isize;
            let origin: Vec<isize> = kernel.iter().zip(&origins).map(origin).collect();
            let mut taps: Vec<bool> = (0..kernel.iter().product())
                .map(|_| {
                    bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    is_whole || bits >> 61 > 2
                })
                .collect();
            let last = taps.len() - 1;
            taps[last] |= !taps.contains(&true);
            let origin = if origin.iter().all(|o| *o == 0) { Vec::new() } else { origin };
            Checked { case, kernel, taps, origin, border, extremum }
        },
    )
}

fn check<T: Element>(device: &Device, check: &Checked) -> Check {
    let Checked { case, kernel, taps, origin, border, extremum } = check;
    let extents = Extents::try_from(&**kernel).unwrap();
    let elements = case.elements::<T>();
    let x = ok(Tensor::from_slice(device, &elements, case.dims()))?;
    let morphology = ok(Morphology::with_footprint(extents, taps))?;
    let morphology = morphology.origin(origin.clone()).layout(case.layout);
    let morphology = match *border {
        Border::Nothing => morphology,
        Border::Constant(value) => morphology.constant(value),
        Border::Copies(mode) => morphology.padding_mode(mode),
    };
    let y = ok(match extremum {
        Extremum::Min => morphology.erosion(&x),
        Extremum::Max => morphology.dilation(&x),
    })?;
    executed("footprint", T::DTYPE);
    prop_assert_eq!(y.dims(), case.dims());
    assert_same(&ok(y.to_vec::<T>())?, &expected(check, extents, &elements))
}

/// By the definition: the elements at `i + b` for an erosion and `i − b` for a dilation.
fn expected<T: Element>(check: &Checked, extents: Extents, x: &[T]) -> Vec<T> {
    let Checked { case, kernel, taps, origin, border, extremum } = check;
    let mirrored: Vec<bool> = taps.iter().rev().copied().collect();
    let is_dilation = *extremum == Extremum::Max;
    let footprint = if is_dilation { &mirrored } else { taps };
    let footprint = Footprint::new(extents, footprint).unwrap();
    let sides: Vec<(usize, usize)> = (0..kernel.len())
        .map(|i| {
            let least = (kernel[i] / 2) as isize + origin.get(i).unwrap_or(&0);
            let sides = (least as usize, kernel[i] - 1 - least as usize);
            if is_dilation { (sides.1, sides.0) } else { sides }
        })
        .collect();
    let of = |side: fn(&(usize, usize)) -> usize| {
        Extents::try_from(&*sides.iter().map(side).collect::<Vec<_>>()).unwrap()
    };
    let padding = Padding::Explicit { before: of(|s| s.0), after: of(|s| s.1) };
    let input = case.problem().input();
    if let Border::Nothing = border {
        let window = Window::new(extents).padding(padding);
        let pooling = Pooling::new(input, &window, case.layout).unwrap();
        return extremum_under(*extremum, &pooling, footprint, x);
    }
    let (mode, value) = match *border {
        Border::Constant(value) => (PaddingMode::Zeros, value),
        Border::Copies(mode) => (mode, 0.0),
        Border::Nothing => unreachable!(),
    };
    let padded = Padded::new(input, padding, mode, case.layout).unwrap();
    let wide = pad::pad(&padded, T::from_f64(value), x);
    let pooling = Pooling::new(padded.output(), &Window::new(extents), case.layout).unwrap();
    extremum_under(*extremum, &pooling, footprint, &wide)
}

/// Openings and closings are idempotent and on either side of the input; top-hats and gradients are the differences.
#[test]
fn compositions_are_what_they_are_made_of() {
    for device in devices() {
        let of = |i: usize| ((i * 7919 + i * i % 31) % 251) as u8;
        let numbers: Vec<u8> = (0..2 * 12 * 70).map(of).collect();
        for (layout, shape) in [
            (Layout::ChannelsLast, Morphology::new([4, 5])),
            (Layout::ChannelsFirst, Morphology::disk(2)),
        ] {
            let dims = if layout == Layout::ChannelsLast { [1, 12, 70, 2] } else { [1, 2, 12, 70] };
            let x = Tensor::from_slice(&device, &numbers, dims).unwrap();
            let shape = shape.layout(layout);
            let read = |y: windowpane::Result<Tensor>| y.unwrap().to_vec::<u8>().unwrap();
            let (opened, closed) = (shape.opening(&x).unwrap(), shape.closing(&x).unwrap());
            assert_eq!(read(shape.opening(&opened)), read(Ok(opened.clone())), "{device}");
            assert_eq!(read(shape.closing(&closed)), read(Ok(closed.clone())), "{device}");
            let (opened, closed) = (read(Ok(opened)), read(Ok(closed)));
            let order = opened.iter().zip(&numbers).zip(&closed);
            assert!(order.clone().all(|((low, x), high)| low <= x && x <= high), "{device}");
            assert!(order.clone().any(|((low, _), high)| low < high), "{device}");
            let less =
                |a: &[u8], b: &[u8]| -> Vec<u8> { a.iter().zip(b).map(|(a, b)| a - b).collect() };
            assert_eq!(read(shape.white_top_hat(&x)), less(&numbers, &opened), "{device}");
            assert_eq!(read(shape.black_top_hat(&x)), less(&closed, &numbers), "{device}");
            let (most, least) = (read(shape.dilation(&x)), read(shape.erosion(&x)));
            assert_eq!(read(shape.gradient(&x)), less(&most, &least), "{device}");
        }
    }
}

/// Differences that a type does not have become its least or greatest number, and those of floats are rounded once.
#[test]
fn differences_stay_in_their_type() {
    fn check<T: Element>(past: f64, x: &[T], gradient: &[T], hat: &[T]) {
        for device in devices() {
            if device.supports(T::DTYPE) {
                let x = Tensor::from_slice(&device, x, [1, x.len(), 1]).unwrap();
                let far = Morphology::new(3).constant(past);
                let found = far.gradient(&x).unwrap().to_vec::<T>().unwrap();
                assert_eq!(found, gradient, "{device} {}", T::DTYPE);
                let found = far.black_top_hat(&x).unwrap().to_vec::<T>().unwrap();
                assert_eq!(found, hat, "{device} {}", T::DTYPE);
            }
        }
    }
    let (most, least) = (i32::MAX, i32::MIN);
    check(0.0, &[5, most, -7], &[most; 3], &[-5, 0, 7]);
    check(0.0, &[5, -2, least], &[7, most, most], &[-5, 2, most]);
    check(-5.0, &[most; 3], &[most, 0, most], &[least, 0, least]);
    let wide = i64::MAX - 3;
    check(0.0, &[wide, 2, -7], &[wide, i64::MAX, 9], &[-wide, 0, 7]);
    check(-5.0, &[i64::MAX; 3], &[i64::MAX, 0, i64::MAX], &[i64::MIN, 0, i64::MIN]);
    check(0.0, &[4_000_000_000u32, 1, 9], &[4_000_000_000, 3_999_999_999, 9], &[0, 8, 0]);
    check(0.0, &[true, false, true], &[true; 3], &[false, true, false]);
    check(0.0, &[100i8, -100, 3], &[127, 127, 103], &[-100, 103, -3]);
    check(0.0, &[60_000u16, 1, 9], &[60_000, 59_999, 9], &[0, 8, 0]);
    check(0.0, &[200u8, 1, 9], &[200, 199, 9], &[0, 8, 0]);
    check(0.0, &[1.0f32, 3e-8, 0.0], &[1.0, 1.0, 3e-8], &[-1.0, 0.0, 0.0]);
    let halves = |numbers: [f32; 3]| numbers.map(f16::from_f32);
    let (gradient, hat) = (halves([2048.0, 2052.0, 4.0]), halves([-2048.0, 0.0, 3.0]));
    check(0.0, &halves([2048.0, 1.0, -3.0]), &gradient, &hat);
}

/// What does not fit is refused before anything runs.
#[test]
fn what_does_not_fit_is_refused() {
    for device in devices() {
        let x = Tensor::random(&device, DType::F32, [1, 6, 6, 2], 1).unwrap();
        let refused = |of: Morphology| match of.dilation(&x) {
            Err(Error::Geometry(misfit)) => misfit,
            other => panic!("{device}: {other:?}"),
        };
        assert!(matches!(refused(Morphology::new([3])), Misfit::Rank { expected: 2, .. }));
        assert!(matches!(refused(Morphology::new(0)), Misfit::Zero { .. }));
        assert!(matches!(refused(Morphology::new(3).origin([0])), Misfit::Rank { .. }));
        assert!(matches!(refused(Morphology::new(3).origin([0, 2])), Misfit::Origin { .. }));
        assert!(matches!(refused(Morphology::ball(1)), Misfit::Rank { .. }));
        for radius in [1 << 14, 1 << 40, usize::MAX] {
            assert!(matches!(refused(Morphology::disk(radius)), Misfit::TooLarge { .. }));
        }
        let short = Morphology::with_footprint([2, 2], &[true; 3]);
        assert!(matches!(short, Err(Error::Geometry(Misfit::Footprint { .. }))));
        let empty = Morphology::with_footprint([2, 2], &[false; 4]);
        assert!(matches!(empty, Err(Error::Geometry(Misfit::EmptyFootprint))));
        let none = Tensor::random(&device, DType::F32, [0, 6, 6, 2], 1).unwrap();
        assert_eq!(Morphology::disk(1).opening(&none).unwrap().dims(), [0, 6, 6, 2]);
    }
}
