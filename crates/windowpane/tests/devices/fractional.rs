//! Fractional max pooling on every device.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::Index;
use windowpane::{
    DType, Device, Element, Error, FractionalMaxPool, IndexBase, Layout, MaxUnpool, Tensor,
};
use windowpane_geometry::{Error as Misfit, Extents, Fractional, Shape, Window};
use windowpane_reference::pool::{backward, fractional};
use windowpane_testing::{
    PoolCase, assert_same, assert_totals, executed, on_every_device, on_one_type, proptest,
};

use crate::pool::{Check, devices, index_base, ok, output_gradient};

on_every_device! {
    /// SEMANTICS 4.9: maxima and indices are identical bit for bit, and the gradient is within its bound.
    fn maxima_at_random_distances_are_the_reference(
        device,
        case in (case(), any::<Index>(), index_base(), any::<u32>(), any::<bool>())
    ) {
        let ((case, kernel), pick, base, seed, is_given) = case;
        let check = Checked { case, kernel, base, seed, is_given };
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_maxima(&check))
    }
}

/// A problem whose window is adaptive and has the extents of the output, and the extents of the windows.
fn case() -> impl Strategy<Value = (PoolCase, Extents)> {
    (PoolCase::any(), any::<[Index; 3]>(), any::<[Index; 3]>()).prop_map(
        |(case, kernels, outputs)| {
            let axes = case.space.as_slice().iter().zip(kernels.iter().zip(&outputs));
            let (kernel, output): (Vec<usize>, Vec<usize>) = axes
                .map(|(input, (kernel, output))| {
                    let kernel = 1 + kernel.index((*input).min(5));
                    (kernel, 1 + output.index(input - kernel + 1))
                })
                .unzip();
            let of = |extents: &[usize]| Extents::try_from(extents).unwrap();
            (PoolCase { window: Window::adaptive(of(&output)), ..case }, of(&kernel))
        },
    )
}

#[derive(Debug)]
struct Checked {
    case: PoolCase,
    kernel: Extents,
    base: IndexBase,
    seed: u32,
    /// Whether the random numbers are given as a tensor.
    is_given: bool,
}

fn check_maxima<T: Element>(device: &Device, check: &Checked) -> Check {
    let Checked { case, kernel, base, seed, is_given } = check;
    let elements = case.elements::<T>();
    let (input, output) = (case.problem().input(), case.problem().output().space());
    let problem = Fractional::new(input, *kernel, output, case.layout).unwrap();
    let samples: Vec<f32> = problem.samples(*seed).collect();
    let x = ok(Tensor::from_slice(device, &elements, case.dims()))?;
    let pool = FractionalMaxPool::new(*kernel, output).layout(case.layout).index_base(*base);
    let pool = match is_given {
        true => {
            let dims = [input.batch(), input.channels(), input.space().rank()];
            pool.samples(&ok(Tensor::from_slice(device, &samples, dims))?)
        }
        false => pool.seed(*seed),
    };
    let (y, winners) = ok(pool.forward_with_indices(&x))?;
    executed("fractional", T::DTYPE);
    let (expected, indices) = fractional::max_with_indices(&problem, &samples, *base, &elements);
    assert_same(&ok(y.to_vec::<T>())?, &expected)?;
    assert_same(&ok(winners.to_vec::<i32>())?, &indices)?;
    assert_same(&ok(ok(pool.forward(&x))?.to_vec::<T>())?, &expected)?;

    let (dy, output_dims) = output_gradient::<T>(case);
    let gradient = ok(Tensor::from_slice(device, &dy, &output_dims))?;
    let dx = ok(ok(pool.backward(&gradient, &winners, &case.dims()))?.to_vec::<T>())?;
    let totals = backward::max_backward_totals(problem.pooling(), *base, &dy, &indices);
    assert_totals(&dx, &totals.map_err(|error| TestCaseError::fail(error.to_string()))?)
}

/// Both layouts have the same windows; other seeds and other channels have others.
#[test]
fn windows_are_as_far_apart_as_the_seed_says() {
    for device in devices() {
        let first = Layout::ChannelsFirst;
        let x: Vec<f32> = (0..2 * 3 * 40 * 30).map(|i| (i % 1200) as f32).collect();
        let x = Tensor::from_slice(&device, &x, [2, 3, 40, 30]).unwrap();
        let pool = FractionalMaxPool::with_ratio(2, 0.6).layout(first).seed(5);
        let (y, indices) = pool.forward_with_indices(&x).unwrap();
        assert_eq!(y.dims(), [2, 3, 24, 18]);
        let read = |y: &Tensor| y.to_vec::<f32>().unwrap();
        // Elements are their own positions, and increase along both axes.
        let positions = indices.to_vec::<i32>().unwrap().into_iter().map(|at| at as f32);
        assert_eq!(read(&y), positions.collect::<Vec<_>>(), "{device}");
        let planes: Vec<Vec<f32>> = read(&y).chunks(24 * 18).map(<[f32]>::to_vec).collect();
        assert!(
            planes[1..].iter().all(|plane| *plane != planes[0]),
            "{device}: channels are alike"
        );
        let other = pool.clone().seed(6).forward(&x).unwrap();
        assert_ne!(read(&other), read(&y), "{device}");
        let last = x.to_layout(first, Layout::ChannelsLast).unwrap();
        let turned = pool.layout(Layout::ChannelsLast).forward(&last).unwrap();
        let turned = turned.to_layout(Layout::ChannelsLast, first).unwrap();
        assert_eq!(read(&turned), read(&y), "{device}: the layouts differ");
    }
}

/// What does not fit is refused before anything runs.
#[test]
fn what_does_not_fit_is_refused() {
    for device in devices() {
        let zeros = |dtype, dims: &[usize]| Tensor::random(&device, dtype, dims, 1).unwrap();
        let x = zeros(DType::F32, &[1, 6, 6, 2]);
        let pool = FractionalMaxPool::new(2, 4);
        let many = FractionalMaxPool::new(3, 5).forward(&x);
        assert!(matches!(many, Err(Error::Geometry(Misfit::TooManyWindows { .. }))), "{many:?}");
        for ratio in [0.1, 1.5, -1.0, f64::NAN, f64::INFINITY] {
            let y = FractionalMaxPool::with_ratio(2, ratio).forward(&x);
            assert!(matches!(y, Err(Error::Geometry(_))), "{ratio}: {y:?}");
        }
        let integers = Tensor::from_slice(&device, &[1i32; 72], [1, 6, 6, 2]).unwrap();
        let refused = pool.forward(&integers);
        assert!(matches!(refused, Err(Error::FloatsOnly { .. })), "{refused:?}");
        let given = |samples: &Tensor| pool.clone().samples(samples).forward(&x);
        assert!(given(&zeros(DType::F32, &[1, 2, 2])).is_ok());
        let wrong = given(&zeros(DType::F32, &[1, 2, 3]));
        assert!(matches!(wrong, Err(Error::OperandMismatch { .. })), "{wrong:?}");
        let whole = Tensor::from_slice(&device, &[1i32; 4], [1, 2, 2]).unwrap();
        assert!(matches!(given(&whole), Err(Error::DTypeMismatch { .. })));
        let (y, winners) = pool.forward_with_indices(&x).unwrap();
        let dy = pool.backward(&x, &winners, x.dims());
        assert!(matches!(dy, Err(Error::GradientMismatch { .. })), "{dy:?}");
        let dy = pool.backward(&y, &whole, x.dims());
        assert!(matches!(dy, Err(Error::OperandMismatch { .. })), "{dy:?}");
    }
}

/// SEMANTICS 4.3: a gradient by winners that were computed from an index out of range is an error when it is read.
#[test]
fn doubtful_winners_are_errors() {
    for device in devices() {
        let x = Tensor::random(&device, DType::F32, [1, 6, 6, 1], 1).unwrap();
        let pool = FractionalMaxPool::new(2, 4);
        let y = pool.forward(&x).unwrap();
        let one = |number| Tensor::from_slice(&device, &[number], [1, 1, 1, 1]).unwrap();
        // `host` refuses the index at once.
        let winners = MaxUnpool::new([4, 4]).forward(&one(7), &one(99));
        let Ok(winners) = winners else { continue };
        let dx = pool.backward(&y, &winners, x.dims()).unwrap();
        assert!(matches!(dx.to_vec::<f32>(), Err(Error::Index(_))), "{device}");
    }
}

/// Tensors without elements, and samples that are not from 0 to 1, whose windows still are inside the input.
#[test]
fn corners() {
    for device in devices() {
        let empty = Tensor::from_slice::<f32>(&device, &[], [0, 6, 6, 2]).unwrap();
        let pool = FractionalMaxPool::new(2, 4);
        let (y, winners) = pool.forward_with_indices(&empty).unwrap();
        assert_eq!((y.dims(), winners.dims()), (&[0, 4, 4, 2][..], &[0, 4, 4, 2][..]));
        assert_eq!(pool.backward(&y, &winners, &[0, 6, 6, 2]).unwrap().dims(), [0, 6, 6, 2]);
        let x: Vec<f32> = (0..36).map(|i| i as f32).collect();
        let x = Tensor::from_slice(&device, &x, [1, 6, 6, 1]).unwrap();
        for u in [f32::NAN, f32::INFINITY, -f32::INFINITY, -1e30, 1e30, -0.5, 1.0, 7.3] {
            let samples = Tensor::from_slice(&device, &[u, 0.5], [1, 1, 2]).unwrap();
            let pool = pool.clone().samples(&samples);
            let (y, winners) = pool.forward_with_indices(&x).unwrap();
            let y = y.to_vec::<f32>().unwrap();
            assert!(y.iter().all(|y| (0.0..36.0).contains(y)), "{device}: {u} {y:?}");
            assert_eq!(y[15], 35.0, "{device}: {u}");
            assert_eq!(winners.to_vec::<i32>().unwrap()[15], 35, "{device}: {u}");
        }
    }
}

/// What PyTorch 2.11 computes: `torch.nn.functional.fractional_max_pool2d` of 0 … 69 in 7 rows, 3×2 windows, 3×6 of them,
/// with the samples 0.3 for the rows and 0.7 for the columns, which PyTorch's tensor of samples has first.
#[test]
fn maxima_are_pytorchs() {
    let problem = Fractional::new(
        Shape::new(1, 1, Extents::from([7, 10])).unwrap(),
        Extents::from([3, 2]),
        Extents::from([3, 6]),
        Layout::ChannelsFirst,
    );
    let x: Vec<f32> = (0..70).map(|i| i as f32).collect();
    let (y, _) = fractional::max_with_indices(&problem.unwrap(), &[0.3, 0.7], IndexBase::Plane, &x);
    let rows = [20.0, 40.0, 60.0].into_iter();
    let expected = rows.flat_map(|row| [1.0, 2.0, 4.0, 5.0, 7.0, 9.0].map(|column| row + column));
    assert_eq!(y, expected.collect::<Vec<f32>>());
}
