use core::array::from_fn;

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::Index;
use windowpane::{
    AvgPool, Backend, DType, Device, Divisor, Element, Error, IndexBase, Layout, LpPool, MaxPool,
    MinPool, PoolAlgorithm, PoolPlan, SumPool, Tensor, Tuned,
};
use windowpane_geometry::{Extents, Extremum, Pooling, Rounding, Shape, Window};
use windowpane_reference::pool::{
    Algorithm as Reference, backward, direct, extremum, extremum_with_indices,
};
use windowpane_testing::{
    Fill, Flavour, Named, PoolCase, assert_same, assert_totals, executed, named_device,
    on_every_device, on_one_type, proptest,
};

pub(crate) type Check = Result<(), TestCaseError>;

/// The plan's own choice, and every forward algorithm that a device has. The stencils, which are for 3×3 windows on
/// planes that keep their extents, have properties of their own.
pub(crate) fn algorithms(device: &Device) -> Vec<Option<PoolAlgorithm>> {
    use PoolAlgorithm::{BlockReduce, CpuRows, Direct, RegisterTile, Sliding};
    these(device, &[Direct, RegisterTile, Sliding, BlockReduce, CpuRows])
}

/// The same for gradients.
fn gradients(device: &Device) -> Vec<Option<PoolAlgorithm>> {
    use PoolAlgorithm::{
        Direct, Gather, GatherStaged, GatherTile, Scatter, SegmentedScatter, VanHerk,
    };
    let all = [Direct, Gather, GatherTile, GatherStaged, Scatter, SegmentedScatter, VanHerk];
    gradients_of(device, &all)
}

fn these(device: &Device, algorithms: &[PoolAlgorithm]) -> Vec<Option<PoolAlgorithm>> {
    or_own(algorithms, |algorithm| has(device, algorithm))
}

fn gradients_of(device: &Device, algorithms: &[PoolAlgorithm]) -> Vec<Option<PoolAlgorithm>> {
    or_own(algorithms, |algorithm| has_gradient(device, algorithm))
}

/// The plan's own choice, and the algorithms for which `has` is true.
fn or_own(
    algorithms: &[PoolAlgorithm],
    has: impl Fn(PoolAlgorithm) -> bool,
) -> Vec<Option<PoolAlgorithm>> {
    let had = algorithms.iter().copied().filter(|algorithm| has(*algorithm));
    [None].into_iter().chain(had.map(Some)).collect()
}

/// This algorithm, if the device has it.
fn only(device: &Device, algorithm: PoolAlgorithm) -> Vec<Option<PoolAlgorithm>> {
    let had = has(device, algorithm) || has_gradient(device, algorithm);
    had.then_some(Some(algorithm)).into_iter().collect()
}

/// Operators that force an algorithm, with several windows in both layouts: most algorithms support one of them.
fn windows(algorithm: PoolAlgorithm) -> impl Iterator<Item = (MaxPool, AvgPool)> {
    let layouts = [Layout::ChannelsLast, Layout::ChannelsFirst].into_iter();
    layouts.flat_map(move |layout| {
        [(3, 1, 1), (15, 1, 7), (28, 28, 0)].map(|(kernel, stride, padding)| {
            let max = MaxPool::new([kernel; 2]).stride([stride; 2]).padding([padding; 2]);
            let mean = AvgPool::new([kernel; 2]).stride([stride; 2]).padding([padding; 2]);
            (max.layout(layout).algorithm(algorithm), mean.layout(layout).algorithm(algorithm))
        })
    })
}

/// Whether a device has an algorithm: whether it can be planned for one of these problems.
pub(crate) fn has(device: &Device, algorithm: PoolAlgorithm) -> bool {
    let dims = [2, 32, 28, 28];
    windows(algorithm).any(|(max, mean)| {
        [DType::F32, DType::F16].into_iter().any(|dtype| {
            max.plan(device, dtype, &dims).is_ok() || mean.plan(device, dtype, &dims).is_ok()
        })
    })
}

/// The same for gradients.
pub(crate) fn has_gradient(device: &Device, algorithm: PoolAlgorithm) -> bool {
    let dims = [2, 32, 28, 28];
    let planes = windows(algorithm).any(|(max, mean)| {
        max.plan_backward(device, DType::F32, &dims).is_ok()
            || mean.plan_backward(device, DType::F32, &dims).is_ok()
    });
    let volume = MaxPool::new([3; 3]).stride([2; 3]).padding([1; 3]).algorithm(algorithm);
    planes || volume.plan_backward(device, DType::F32, &[1, 8, 8, 8, 64]).is_ok()
}

/// The plan, or `None` if the forced algorithm does not support this problem or device.
fn planned(plan: windowpane::Result<PoolPlan>) -> Result<Option<PoolPlan>, TestCaseError> {
    match plan {
        Ok(plan) => Ok(Some(plan)),
        // SEMANTICS 8: refused if the driver would end the loops early.
        Err(Error::NoKernel { .. } | Error::LoopLimit { .. }) => Ok(None),
        Err(error) => Err(TestCaseError::fail(error.to_string())),
    }
}

/// Runs a block with the pooling of an extremum over the windows of a case.
macro_rules! with_pool {
    ($extremum:expr, $case:expr, |$pool:ident| $body:expr) => {
        match $extremum {
            Extremum::Max => {
                let $pool = MaxPool::with_window($case.window).layout($case.layout);
                $body
            }
            Extremum::Min => {
                let $pool = MinPool::with_window($case.window).layout($case.layout);
                $body
            }
        }
    };
}

on_every_device! {
    /// SEMANTICS 2.1, 2.3 and 2.5: values are identical bit for bit, in every type.
    fn extrema_are_the_reference(device, case in (PoolCase::any(), any::<Index>(), extrema()), algorithm in algorithms(device)) {
        let (case, pick, extremum) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8, bool], check_extremum(&case, extremum, algorithm))
    }

    /// SEMANTICS 2.2 to 2.5: the index of the first of equal values, of the last NaN, or −1.
    fn indices_are_the_reference(device, case in (PoolCase::any(), any::<Index>(), extrema(), index_base()), algorithm in algorithms(device)) {
        let (case, pick, extremum, base) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8, bool], check_indices(&case, extremum, base, algorithm))
    }

    /// SEMANTICS 2.1, 2.2 and 7.2: numbers that a graphics driver may treat as 0 are not ties.
    fn winners_of_least_numbers_are_the_reference(device, case in (PoolCase::any(), any::<Index>(), extrema(), index_base()), algorithm in algorithms(device)) {
        let (case, pick, extremum, base) = case;
        let case = PoolCase { fill: Fill { flavour: Flavour::Least, ..case.fill }, ..case };
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_winners(&case, extremum, base, algorithm))
    }

    /// SEMANTICS 3 and 7: within the derived bound, with NaN and infinities in the right places; 3.5: exact for integers.
    fn average_is_the_reference(device, case in (PoolCase::any(), any::<Index>(), divisor()), algorithm in algorithms(device)) {
        let (case, pick, divisor) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8], check_average(&case, divisor, algorithm))
    }
}

fn check_extremum<T: Element>(
    device: &Device,
    case: &PoolCase,
    which: Extremum,
    algorithm: Option<PoolAlgorithm>,
) -> Check {
    let elements = case.elements::<T>();
    with_pool!(which, case, |pool| {
        let pool = pool.algorithm(algorithm);
        let Some(plan) = planned(pool.plan(device, T::DTYPE, &case.dims()))? else { return Ok(()) };
        executed(plan.algorithm(), T::DTYPE);
        let x = ok(Tensor::from_slice(device, &elements, case.dims()))?;
        let y = ok(ok(pool.forward_with_plan(&plan, &x))?.to_vec::<T>())?;
        assert_same(&y, &extremum(which, Reference::Direct, &case.problem(), &elements))
    })
}

fn check_indices<T: Element>(
    device: &Device,
    case: &PoolCase,
    which: Extremum,
    base: IndexBase,
    algorithm: Option<PoolAlgorithm>,
) -> Check {
    let elements = case.elements::<T>();
    let (problem, direct) = (case.problem(), Reference::Direct);
    let (values, positions) = extremum_with_indices(which, direct, &problem, base, &elements);
    with_pool!(which, case, |pool| {
        let pool = pool.index_base(base).algorithm(algorithm);
        let plan = planned(pool.plan_with_indices(device, T::DTYPE, &case.dims()))?;
        let Some(plan) = plan else { return Ok(()) };
        executed(plan.algorithm(), T::DTYPE);
        let x = ok(Tensor::from_slice(device, &elements, case.dims()))?;
        let (y, indices) = ok(pool.forward_with_indices_with_plan(&plan, &x))?;
        assert_same(&ok(y.to_vec::<T>())?, &values)?;
        assert_same(&ok(indices.to_vec::<i32>())?, &positions)
    })
}

fn check_winners<T: Element>(
    device: &Device,
    case: &PoolCase,
    which: Extremum,
    base: IndexBase,
    algorithm: Option<PoolAlgorithm>,
) -> Check {
    check_extremum::<T>(device, case, which, algorithm)?;
    check_indices::<T>(device, case, which, base, algorithm)
}

fn check_average<T: Element>(
    device: &Device,
    case: &PoolCase,
    divisor: Divisor,
    algorithm: Option<PoolAlgorithm>,
) -> Check {
    if !has_sums(device, T::DTYPE) {
        return Ok(());
    }
    let elements = case.elements::<T>();
    let pool =
        AvgPool::with_window(case.window).layout(case.layout).divisor(divisor).algorithm(algorithm);
    let Some(plan) = planned(pool.plan(device, T::DTYPE, &case.dims()))? else { return Ok(()) };
    executed(plan.algorithm(), T::DTYPE);
    let x = ok(Tensor::from_slice(device, &elements, case.dims()))?;
    let y = ok(ok(pool.forward_with_plan(&plan, &x))?.to_vec::<T>())?;
    match T::DTYPE.is_float() {
        true => assert_totals(&y, &direct::average_totals(&case.problem(), divisor, &elements))?,
        false => assert_same(&y, &direct::average(&case.problem(), divisor, &elements))?,
    }
    let again = ok(ok(pool.forward_with_plan(&plan, &x))?.to_vec::<T>())?;
    assert_same(&again, &y)
}

/// SEMANTICS 3.5: whether a device has integers that hold the sums of this type.
pub(crate) fn has_sums(device: &Device, dtype: DType) -> bool {
    match dtype {
        _ if device.backend() == Backend::Host => dtype != DType::Bool,
        DType::I64 | DType::Bool => false,
        DType::I32 | DType::U32 => device.supports(DType::I64),
        _ => true,
    }
}

fn extrema() -> impl Strategy<Value = Extremum> {
    prop_oneof![Just(Extremum::Max), Just(Extremum::Min)]
}

pub(crate) fn index_base() -> impl Strategy<Value = IndexBase> {
    prop_oneof![Just(IndexBase::Plane), Just(IndexBase::Tensor), Just(IndexBase::Memory)]
}

pub(crate) fn divisor() -> impl Strategy<Value = Divisor> {
    prop_oneof![
        Just(Divisor::Padded),
        Just(Divisor::Valid),
        (1..40u32).prop_map(Divisor::Fixed),
        (1..40u32).prop_map(Divisor::Truncated),
    ]
}

/// Turns an error into a failure of the case, which proptest then shrinks and prints.
pub(crate) fn ok<T>(result: windowpane::Result<T>) -> Result<T, TestCaseError> {
    result.map_err(|error| TestCaseError::fail(error.to_string()))
}

/// Device 0 of every backend that is available.
pub(crate) fn devices() -> Vec<Device> {
    windowpane::Backend::ALL
        .into_iter()
        .filter_map(|backend| match named_device(backend) {
            Named::Found(device) => Some(device),
            Named::Skipped(_) => None,
        })
        .collect()
}

/// `sliding` gives the same result as `direct`, or is refused by a device without a kernel for it.
#[test]
fn a_forced_algorithm_is_right_or_refused() {
    for device in devices() {
        let elements: Vec<f32> = (0..64u8).map(|i| f32::from(i.wrapping_mul(37))).collect();
        let x = Tensor::from_slice(&device, &elements, [1, 64, 1]).unwrap();
        let pool = MaxPool::new([9]).stride([2]).padding([4]);
        let expected =
            pool.algorithm(PoolAlgorithm::Direct).forward(&x).unwrap().to_vec::<f32>().unwrap();
        match pool.algorithm(PoolAlgorithm::Sliding).forward(&x) {
            Ok(y) => assert_eq!(y.to_vec::<f32>().unwrap(), expected),
            Err(error) => assert!(matches!(error, Error::NoKernel { .. }), "{error}"),
        }
    }
}

/// A launch that is too large for one dimension of a grid, with more than one cube per processor.
#[test]
fn many_outputs_are_all_written() {
    for device in devices() {
        let (batch, extent) = (3, 1 << 21);
        let elements: Vec<f32> = (0..batch * extent).map(|i| (i % 1021) as f32).collect();
        let x = Tensor::from_slice(&device, &elements, [batch, extent, 1]).unwrap();
        let y = MaxPool::new([2]).stride([1]).forward(&x).unwrap().to_vec::<f32>().unwrap();
        let expected: Vec<f32> = elements
            .chunks(extent)
            .flat_map(|line| line.windows(2).map(|pair| pair[0].max(pair[1])))
            .collect();
        assert!(y == expected, "{device}: some of {} outputs are wrong", y.len());
    }
}

/// Pixels with more channels than a multiprocessor loads at once are divided among units, forward and backward: channel
/// counts that are multiples of whole vectors, only of tiles, or of neither.
#[test]
fn pixels_of_many_channels_are_all_read() {
    let host = Device::host();
    for device in devices() {
        for channels in [64, 72, 148, 130] {
            let dims = [2, 6, 7, channels];
            let elements: Vec<f32> =
                (0..dims.iter().product::<usize>()).map(|i| (i * 31 % 1009) as f32).collect();
            let read = |y: Tensor| y.to_vec::<f32>().unwrap();
            let pooled = |device: &Device| {
                let x = Tensor::from_slice(device, &elements, dims).unwrap();
                let pool = MaxPool::new([3, 3]).stride([1, 1]).padding([1, 1]);
                let (y, winners) = pool.forward_with_indices(&x).unwrap();
                let dx = read(pool.backward(&x, &winners, &dims).unwrap());
                (read(y), winners.to_vec::<i32>().unwrap(), dx)
            };
            assert!(pooled(&device) == pooled(&host), "{device}: {channels} channels");
        }
    }
}

/// Planes that few or no vectors divide, more of them than one cube stages, forward and backward.
#[test]
fn odd_planes_are_all_written() {
    for device in devices() {
        for extent in [7, 20, 35] {
            let dims = [3, 5, extent, extent];
            let elements: Vec<f32> =
                (0..dims.iter().product::<usize>()).map(|i| (i * 31 % 1009) as f32).collect();
            let close = |y: Tensor, truth: Tensor| {
                let (y, truth) = (y.to_vec::<f32>().unwrap(), truth.to_vec::<f32>().unwrap());
                y.iter().zip(&truth).all(|(y, truth)| (y - truth).abs() <= 1e-5 * truth.abs())
            };
            let pooled = |device: &Device| {
                let x = Tensor::from_slice(device, &elements, dims).unwrap();
                let pool = AvgPool::new([3, 3]).stride([1, 1]).padding([1, 1]);
                let pool = pool.layout(windowpane::Layout::ChannelsFirst).divisor(Divisor::Valid);
                let (y, dx) = (pool.forward(&x).unwrap(), pool.backward(&x, &dims).unwrap());
                (y, dx)
            };
            let (y, dx) = pooled(&device);
            let (true_y, true_dx) = pooled(&Device::host());
            assert!(close(y, true_y) && close(dx, true_dx), "{device}: {extent} × {extent}");
        }
    }
}

/// Large windows on planes, reduced along both axes in one launch if the device can do so: several tiles, a last
/// segment shorter than the others, and windows longer than the plane.
#[test]
fn large_windows_of_planes_are_the_reference() {
    let cases = [
        ([20, 23], [5, 5], [2, 2]),
        ([17, 40], [7, 18], [3, 0]),
        ([40, 9], [33, 2], [16, 1]),
        ([33, 300], [31, 31], [15, 15]),
        ([70, 130], [63, 63], [31, 31]),
        ([12, 12], [17, 17], [8, 8]),
        ([4, 1700], [3, 31], [1, 15]),
        ([150, 6], [137, 3], [68, 1]),
    ];
    let (first, last) = (windowpane::Layout::ChannelsFirst, windowpane::Layout::ChannelsLast);
    // With channels last only some run, because the reference takes long for the largest windows.
    let cases = cases
        .map(|case| (first, case))
        .into_iter()
        .chain(cases[..4].iter().map(|&case| (last, case)))
        .chain([(last, ([12, 300], [5, 31], [2, 15]))]);
    for (layout, ([height, width], kernel, padding)) in cases {
        let (samples, channels, dims) = match layout {
            windowpane::Layout::ChannelsFirst => (2, 3, [2, 3, height, width]),
            _ => (1, 16, [1, height, width, 16]),
        };
        let elements: Vec<f32> =
            (0..dims.iter().product::<usize>()).map(|i| (i * 31 % 1009) as f32).collect();
        let max = MaxPool::new(kernel).stride([1, 1]).padding(padding).layout(layout);
        let mean = AvgPool::new(kernel).stride([1, 1]).padding(padding).layout(layout);
        let mean = mean.divisor(Divisor::Valid);
        let shape = Shape::new(samples, channels, Extents::from([height, width])).unwrap();
        let window = Window::new(kernel).stride([1, 1]).padding(padding);
        let problem = Pooling::new(shape, &window, layout).unwrap();
        let true_max = direct::max(&problem, &elements);
        let true_mean = direct::average_totals(&problem, Divisor::Valid, &elements);
        for device in devices() {
            for algorithm in [None, Some(PoolAlgorithm::Sliding)] {
                let named = format!("{device}: {kernel:?} of {height} × {width}, {layout}");
                let x = Tensor::from_slice(&device, &elements, dims).unwrap();
                let read = |y: windowpane::Result<Tensor>| match y {
                    Ok(y) => Some(y.to_vec::<f32>().unwrap()),
                    Err(Error::NoKernel { .. }) => None,
                    Err(error) => panic!("{named}: {error}"),
                };
                if let Some(y) = read(max.algorithm(algorithm).forward(&x)) {
                    assert_same(&y, &true_max).expect(&named);
                }
                if let Some(y) = read(mean.algorithm(algorithm).forward(&x)) {
                    assert_totals(&y, &true_mean).expect(&named);
                }
            }
        }
        if kernel.iter().product::<usize>() < 1000 {
            check_as::<f16>(&problem, &max, &mean, &elements, dims);
            check_as::<bf16>(&problem, &max, &mean, &elements, dims);
        }
    }
}

/// Compares the maximum and the average of these numbers, converted to another type, with the reference, on devices
/// that have the type. The maximum is also taken with numbers among them that a reduction could lose.
fn check_as<T: Element>(
    problem: &Pooling,
    max: &MaxPool,
    mean: &AvgPool,
    elements: &[f32],
    dims: [usize; 4],
) {
    let cast = |x: f32| T::from_f64(x.into());
    let rare = [f32::NAN, -0.0, 0.0, f32::NEG_INFINITY, f32::INFINITY, -3.0];
    let rarely = |(i, &x): (usize, &f32)| match i % 997 {
        0 => cast(rare[i / 997 % rare.len()]),
        _ => cast(if i / 997 % 2 == 0 { f32::NEG_INFINITY } else { -x }),
    };
    let others: Vec<T> = elements.iter().enumerate().map(rarely).collect();
    let elements: Vec<T> = elements.iter().map(|&x| cast(x)).collect();
    let true_mean = direct::average_totals(problem, Divisor::Valid, &elements);
    let true_max = [&elements, &others].map(|elements| direct::max(problem, elements));
    for device in devices().into_iter().filter(|device| device.supports(T::DTYPE)) {
        let [x, other] = [&elements, &others]
            .map(|elements| Tensor::from_slice(&device, elements, dims).unwrap());
        for algorithm in [None, Some(PoolAlgorithm::Sliding)] {
            let named = format!("{device}: {mean:?} of {dims:?} in {}", T::DTYPE);
            let read = |y: windowpane::Result<Tensor>| match y {
                Ok(y) => Some(y.to_vec::<T>().unwrap()),
                Err(Error::NoKernel { .. }) => None,
                Err(error) => panic!("{named}: {error}"),
            };
            if let Some(y) = read(mean.algorithm(algorithm).forward(&x)) {
                assert_totals(&y, &true_mean).expect(&named);
            }
            for (x, truth) in [&x, &other].into_iter().zip(&true_max) {
                if let Some(y) = read(max.algorithm(algorithm).forward(x)) {
                    assert_same(&y, truth).expect(&named);
                }
            }
        }
    }
}

/// The indices of winners with lanes along the width, in the longest vectors that a device loads, which are those of
/// 16-bit numbers; with NaN among ties.
#[test]
fn winners_along_rows_of_short_numbers_are_the_reference() {
    let (height, width) = (12, 16);
    let numbers = [1.0, 3.0, f32::NAN, 3.0, -2.0, f32::NAN, 0.0].map(f16::from_f32);
    let elements: Vec<f16> = (0..height * width).map(|i| numbers[i * i / 3 % 7]).collect();
    let shape = Shape::new(1, 1, Extents::from([height, width])).unwrap();
    for kernel in [[2, 1], [3, 3]] {
        let problem =
            Pooling::new(shape, &Window::new(kernel).stride([1, 1]), Layout::ChannelsFirst);
        let (true_max, winners) =
            direct::max_with_indices(&problem.unwrap(), IndexBase::Plane, &elements);
        let max = MaxPool::new(kernel).stride([1, 1]).layout(Layout::ChannelsFirst);
        for device in devices().into_iter().filter(|device| device.supports(DType::F16)) {
            let x = Tensor::from_slice(&device, &elements, [1, 1, height, width]).unwrap();
            let (y, indices) = max.forward_with_indices(&x).unwrap();
            let named = format!("{device}: {kernel:?}");
            assert_same(&y.to_vec::<f16>().unwrap(), &true_max).expect(&named);
            assert_eq!(indices.to_vec::<i32>().unwrap(), winners, "{named}");
        }
    }
}

/// Long rows, channels first, of numbers whose order is not that of their bits. A CPU's threads compute such rows whole
/// or in pieces, with vectors as long as those of the outputs or longer.
#[test]
fn long_rows_are_the_reference() {
    let numbers = [
        [1.5, -1.5, -0.0, 0.0, -2.25, 1e-40],
        [-1e-40, 1e30, -1e30, -1.5, -1e9, -0.0],
        [f32::INFINITY, f32::NEG_INFINITY, -3.0, -1e-40, -0.0, 7.0],
        [f32::NAN, -f32::NAN, f32::NEG_INFINITY, -1.0, -0.0, -8.0],
    ];
    let cases = [
        ([2, 3, 56, 56], [3, 3], [2, 2], [1, 1]),
        ([1, 1, 9, 256], [13, 13], [1, 1], [6, 6]),
        ([1, 2, 40, 32], [5, 3], [3, 4], [2, 1]),
        ([1, 2, 7, 48], [2, 2], [2, 2], [0, 0]),
    ];
    for (row, (dims, kernel, stride, padding)) in
        numbers.iter().flat_map(|row| cases.map(|case| (row, case)))
    {
        // Each number repeats for a while, so that few windows contain all of them.
        let number = |i: usize| row[(i / 5 * 7 + i / 37) % row.len()];
        let elements: Vec<f32> = (0..dims.iter().product()).map(number).collect();
        let layout = windowpane::Layout::ChannelsFirst;
        let max = MaxPool::new(kernel).stride(stride).padding(padding).layout(layout);
        let mean = AvgPool::new(kernel).stride(stride).padding(padding).layout(layout);
        let mean = mean.divisor(Divisor::Valid);
        let [samples, channels, height, width] = dims;
        let shape = Shape::new(samples, channels, Extents::from([height, width])).unwrap();
        let window = Window::new(kernel).stride(stride).padding(padding);
        let problem = Pooling::new(shape, &window, layout).unwrap();
        let true_max = direct::max(&problem, &elements);
        let true_mean = direct::average_totals(&problem, Divisor::Valid, &elements);
        let normal: Vec<f32> =
            elements.iter().map(|x| if x.is_subnormal() { 0.0 } else { *x }).collect();
        let normal_mean = direct::average_totals(&problem, Divisor::Valid, &normal);
        for device in devices() {
            let named = format!("{device}: {kernel:?} of {dims:?}, {row:?}");
            let true_mean = if keeps_subnormals(&device) { &true_mean } else { &normal_mean };
            let x = Tensor::from_slice(&device, &elements, dims).unwrap();
            let y = max.forward(&x).unwrap().to_vec::<f32>().unwrap();
            assert_same(&y, &true_max).expect(&named);
            let y = mean.forward(&x).unwrap().to_vec::<f32>().unwrap();
            assert_totals(&y, true_mean).expect(&named);
        }
    }
}

/// SEMANTICS 7.2: whether the device's sums keep subnormal numbers. Only graphics drivers may treat them as 0.
fn keeps_subnormals(device: &Device) -> bool {
    let x = Tensor::from_slice(device, &[1e-40f32; 2], [1, 1, 1, 2]).unwrap();
    let mean = AvgPool::new([1, 2]).layout(Layout::ChannelsFirst).forward(&x).unwrap();
    let keeps = mean.to_vec::<f32>().unwrap()[0] != 0.0;
    let must = matches!(device.backend(), Backend::Host | Backend::Cpu | Backend::Cuda);
    assert!(keeps || !must, "{device} takes numbers below the normal ones for 0");
    keeps
}

/// Windows that extend past the input on both sides, so far that no tap is inside for all of them, with every kernel
/// that supports them.
#[test]
fn windows_past_both_ends_are_the_reference() {
    let elements: Vec<f32> = (0..96).map(|i| ((i * 29 + i / 7) % 31) as f32 - 9.0).collect();
    for (kernel, stride, before, after) in
        [(7, 3, 5, 1), (12, 2, 11, 4), (6, 1, 5, 5), (8, 3, 4, 4)]
    {
        let window = Window::new([kernel]).stride([stride]).padding([(before, after)]);
        let window = window.rounding(Rounding::Ceil);
        let layout = windowpane::Layout::ChannelsFirst;
        let shape = Shape::new(2, 6, Extents::from([8])).unwrap();
        let problem = Pooling::new(shape, &window, layout).unwrap();
        let true_max = direct::max(&problem, &elements);
        let true_mean = direct::average_totals(&problem, Divisor::Valid, &elements);
        let algorithms = PoolAlgorithm::ALL.map(Some).into_iter().chain([None]);
        for (device, algorithm) in algorithms
            .flat_map(|algorithm| devices().into_iter().map(move |device| (device, algorithm)))
        {
            let named = format!("{device}, {algorithm:?}: {kernel} by {stride}");
            let x = Tensor::from_slice(&device, &elements, [2, 6, 8]).unwrap();
            let max = MaxPool::with_window(window).layout(layout).algorithm(algorithm);
            let mean = AvgPool::with_window(window)
                .layout(layout)
                .divisor(Divisor::Valid)
                .algorithm(algorithm);
            if let Some(y) = computed(max.forward(&x)) {
                assert_same(&y, &true_max).expect(&named);
            }
            if let Some(y) = computed(mean.forward(&x)) {
                assert_totals(&y, &true_mean).expect(&named);
            }
        }
    }
}

/// The result of a forced kernel, or `None` if it does not support this problem or device.
fn computed(y: windowpane::Result<Tensor>) -> Option<Vec<f32>> {
    match y {
        Err(Error::NoKernel { .. }) => None,
        y => Some(y.unwrap().to_vec().unwrap()),
    }
}

/// Another batch or image size compiles nothing new as long as it has the same kernel. With channels first this holds for
/// widths that the same vectors divide.
///
/// All launches of the process are counted, so the test runs in a process of its own.
#[cfg(feature = "kernels")]
#[test]
fn new_sizes_compile_nothing_new() {
    if !crate::is_alone("pool::new_sizes_compile_nothing_new") {
        return;
    }
    use windowpane::Layout::{ChannelsFirst, ChannelsLast};
    for device in devices().into_iter().filter(|device| device.client().is_some()) {
        for layout in [ChannelsLast, ChannelsFirst] {
            let launched = cubecl::launched::LaunchedKernels::new();
            pool_sizes(&device, layout);
            let kernels = launched.finish().len();
            assert_eq!(kernels, 2, "{device} {layout}: one for the maximum, one for the average");
        }
    }
}

#[cfg(feature = "kernels")]
fn pool_sizes(device: &Device, layout: windowpane::Layout) {
    use windowpane::Layout;
    let kernel = PoolAlgorithm::RegisterTile;
    let max = MaxPool::new([3, 3]).stride([2, 2]).padding([1, 1]).layout(layout).algorithm(kernel);
    let same = windowpane::Same::Upper;
    let average =
        AvgPool::new([3, 3]).stride([1, 2]).padding(same).layout(layout).algorithm(kernel);
    let widths = match layout {
        Layout::ChannelsLast => [8, 8, 17, 9, 3],
        Layout::ChannelsFirst => [8, 24, 56, 40, 120],
    };
    let sizes = [[1, 8, 4], [5, 8, 4], [2, 31, 4], [1, 64, 4], [7, 200, 4]];
    for ([n, h, c], w) in sizes.into_iter().zip(widths) {
        let dims = match layout {
            Layout::ChannelsLast => [n, h, w, c],
            Layout::ChannelsFirst => [n, c, h, w],
        };
        let x = Tensor::from_slice(device, &vec![1.0f32; n * h * w * c], dims).unwrap();
        max.forward(&x).unwrap().wait().unwrap();
        average.forward(&x).unwrap().wait().unwrap();
    }
}

/// Large divisors do not overflow, and windows with more taps than a kernel can count are refused.
#[test]
fn large_divisors_do_not_wrap() {
    let elements = [1.0f32, 2.0, 3.0, 4.0];
    for device in devices() {
        let x = Tensor::from_slice(&device, &elements, [1, 2, 2, 1]).unwrap();
        for fixed in [u32::MAX, 1 << 31, (1 << 24) + 1] {
            let divisor = Divisor::Fixed(fixed);
            let y = AvgPool::new([2, 2]).divisor(divisor).forward(&x).unwrap();
            let expected = 10.0 / f64::from(fixed);
            let y = f64::from(y.to_vec::<f32>().unwrap()[0]);
            assert!((y / expected - 1.0).abs() < 1e-6, "{device}: {y}, not {expected}");
            let dy = Tensor::from_slice(&device, &[10.0f32], [1, 1, 1, 1]).unwrap();
            let pool = AvgPool::new([2, 2]).divisor(divisor);
            let dx = pool.backward(&dy, &[1, 2, 2, 1]).unwrap().to_vec::<f32>().unwrap();
            assert!((f64::from(dx[3]) / expected - 1.0).abs() < 1e-6, "{device}: {dx:?}");
        }
        let huge = AvgPool::new([1 << 16, 1 << 16]).stride([1, 1]).padding([1 << 15, 1 << 15]);
        match huge.forward(&x) {
            Ok(y) => {
                let expected = 10.0 / 2f64.powi(32);
                let y = f64::from(y.to_vec::<f32>().unwrap()[0]);
                assert!((y / expected - 1.0).abs() < 1e-6, "{device}: {y}, not {expected}");
            }
            Err(error) => assert!(error.to_string().contains("4294967296 taps"), "{error}"),
        }
    }
}

/// SEMANTICS 8: all taps of a large window are counted, or it is refused if the driver would end the loop early.
#[test]
fn no_tap_of_a_large_window_is_left_out() {
    for device in devices() {
        let x = Tensor::from_slice(&device, &vec![1.0f32; 90_000], [1, 300, 300, 1]).unwrap();
        let pool = AvgPool::new([300, 300]).divisor(Divisor::Fixed(1));
        for algorithm in [None, Some(PoolAlgorithm::Direct)] {
            match pool.algorithm(algorithm).forward(&x) {
                Ok(y) => assert_eq!(y.to_vec::<f32>().unwrap(), [90_000.0], "{device}"),
                Err(error) => assert!(matches!(error, Error::LoopLimit { .. }), "{error}"),
            }
        }
    }
}

/// A plan runs only the problem that it was made for.
#[test]
fn a_plan_for_something_else_is_refused() {
    for device in devices() {
        let x = Tensor::from_slice(&device, &[1.0f32; 16], [1, 4, 4, 1]).unwrap();
        let pool = AvgPool::new([2, 2]);
        let plan = pool.plan(&device, DType::F32, x.dims()).unwrap();
        assert!(pool.forward_with_plan(&plan, &x).is_ok());
        let refused = |result: windowpane::Result<Tensor>| {
            assert!(matches!(result, Err(Error::PlanMismatch { .. })), "{device}: {result:?}");
        };
        refused(pool.divisor(Divisor::Fixed(3)).forward_with_plan(&plan, &x));
        refused(pool.stride([1, 1]).forward_with_plan(&plan, &x));
        refused(MaxPool::new([2, 2]).forward_with_plan(&plan, &x));
        let other = Tensor::from_slice(&device, &[1.0f32; 32], [2, 4, 4, 1]).unwrap();
        refused(pool.forward_with_plan(&plan, &other));
    }
}

/// Impossible requests are refused with an error that names the numbers.
#[test]
fn what_cannot_be_done_is_refused() {
    for device in devices() {
        let x = Tensor::from_slice(&device, &[1i32; 16], [1, 4, 4, 1]);
        let Ok(x) = x else { continue };
        let error = |result: windowpane::Result<Tensor>| result.expect_err("refused").to_string();
        assert!(error(LpPool::new(2, [2, 2]).forward(&x)).contains("i32"));
        assert!(error(MaxPool::new([5, 1]).forward(&x)).contains("spans 5 on the height axis"));
        assert!(
            error(MaxPool::new([0, 1]).forward(&x))
                .contains("kernel extent on the height axis is 0")
        );
        assert!(error(MaxPool::new([2, 2]).stride([usize::MAX, 1]).forward(&x)).contains("stride"));
        assert!(error(MaxPool::new([2]).forward(&x)).contains("1 axes but 2"));
        for dtype in DType::ALL.into_iter().filter(|dtype| !device.supports(*dtype)) {
            let plan = MaxPool::new([2, 2]).plan(&device, dtype, &[1, 4, 4, 1]);
            assert!(matches!(plan, Err(Error::DTypeUnsupported { .. })), "{device} {dtype}");
        }
    }
}

on_every_device! {
    /// Rows whose inputs and results are divisible by different vectors: values, indices and averages of strips.
    fn rows_of_other_vectors(device, case in (other_vectors(), any::<Index>(), extrema(), index_base(), divisor(), 0..3), algorithm in only(device, PoolAlgorithm::RegisterTile)) {
        let (case, pick, extremum, base, divisor, operator) = case;
        match operator {
            0 => on_one_type!(device, pick, [f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8, bool], check_extremum(&case, extremum, algorithm)),
            1 => on_one_type!(device, pick, [f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8, bool], check_indices(&case, extremum, base, algorithm)),
            _ => on_one_type!(device, pick, [f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8], check_average(&case, divisor, algorithm)),
        }
    }

    /// SEMANTICS 5.1 and 7: the gradient of an extremum, computed from its indices, in every index base.
    fn gradients_of_extrema_are_the_reference(device, case in (PoolCase::any(), any::<Index>(), extrema(), index_base()), algorithm in gradients(device)) {
        let (case, pick, extremum, base) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_gradient(&case, extremum, base, algorithm))
    }

    /// The same for small windows on volumes, staged in shared memory.
    fn gradients_of_extrema_in_volumes(device, case in (volumes(), any::<Index>(), extrema()), algorithm in only(device, PoolAlgorithm::GatherStaged)) {
        let (case, pick, extremum) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_gradient(&case, extremum, IndexBase::Plane, algorithm))
    }

    /// The same for windows of any size on volumes, in every index base.
    fn gradients_of_extrema_of_any_windows_in_volumes(device, case in (windows_in_volumes(), any::<Index>(), extrema(), index_base()), algorithm in only(device, PoolAlgorithm::SegmentedScatter)) {
        let (case, pick, extremum, base) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_gradient(&case, extremum, base, algorithm))
    }

    /// The same where no windows overlap, in every index base.
    fn gradients_of_extrema_of_windows_apart(device, case in (apart(), any::<Index>(), extrema(), index_base()), algorithm in gradients_of(device, &[PoolAlgorithm::Scatter, PoolAlgorithm::Gather])) {
        let (case, pick, extremum, base) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_gradient(&case, extremum, base, algorithm))
    }

    /// SEMANTICS 5.2 and 7: the gradient of an average is its adjoint, for every divisor.
    fn average_gradient_is_the_reference(device, case in (PoolCase::any(), any::<Index>(), divisor()), algorithm in gradients(device)) {
        let (case, pick, divisor) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_average_gradient(&case, divisor, algorithm))
    }

    /// The same for small windows of stride 1, at all edges of planes of many widths: by blocks, and by the plan's own
    /// choice.
    fn average_gradient_of_close_windows(device, case in (close_windows(), any::<Index>(), divisor()), algorithm in gradients_of(device, &[PoolAlgorithm::GatherTile])) {
        let (case, pick, divisor) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_average_gradient(&case, divisor, algorithm))
    }

    /// Averages of 3×3 on planes that keep their extents, and their gradients: as one run of elements, wherever its
    /// rows end, or down the rows, and by the plan's own choice.
    fn averages_of_kept_planes(device, case in (kept_planes(), any::<Index>(), divisor(), any::<bool>()), algorithm in these(device, &[PoolAlgorithm::Stencil])) {
        let (case, pick, divisor, gradient) = case;
        if gradient {
            on_one_type!(device, pick, [f32, f16, bf16], check_average_gradient(&case, divisor, algorithm))
        } else {
            on_one_type!(device, pick, [f32, f16, bf16], check_average(&case, divisor, algorithm))
        }
    }
}

/// Volumes with channels last and small windows, most of which overlap, with tile boundaries inside the volumes.
fn volumes() -> impl Strategy<Value = PoolCase> {
    let channels = prop_oneof![Just(4usize), Just(12), Just(64)];
    let shape = (0usize..=2, channels, 1usize..=20, 1usize..=11, 1usize..=11);
    let axes = [(3, 2, 1), (3, 2, 0), (2, 2, 1), (3, 1, 1), (1, 2, 0), (2, 1, 2)];
    let axis = || any::<Index>().prop_map(move |pick| *pick.get(&axes));
    let rounding = prop_oneof![Just(Rounding::Floor), Just(Rounding::Ceil)];
    (shape, axis(), axis(), rounding, Fill::any()).prop_map(
        |((batch, channels, depth, height, width), along, across, rounding, fill)| {
            let (space, axes) = ([depth, height, width], [along, across, across]);
            let kernel: [usize; 3] = from_fn(|i| axes[i].0.min(space[i] + 2 * axes[i].2));
            let window = Window::new(kernel).stride(axes.map(|axis| axis.1));
            let window = window.padding(axes.map(|axis| axis.2)).rounding(rounding);
            let (space, layout) = (Extents::from(space), Layout::ChannelsLast);
            PoolCase { batch, channels, space, window, layout, fill }
        },
    )
}

/// Volumes with windows of any size, which overlap along the depth or leave gaps, and of which some are empty. Where
/// volumes are deep, columns of windows are cut into pieces, and long windows leave room for fewer units in a cube.
fn windows_in_volumes() -> impl Strategy<Value = PoolCase> {
    let axis = |longest: usize, kernel: usize, stride: usize| {
        (1..=longest, 1..=kernel, 1..=stride, 0usize..=8, 0usize..=8)
    };
    let depth = prop_oneof![3 => axis(48, 8, 6), 1 => axis(72, 40, 3)];
    let axes = (depth, axis(14, 8, 3), axis(14, 8, 3)).prop_map(|(d, h, w)| [d, h, w]);
    let layout = prop_oneof![Just(Layout::ChannelsLast), Just(Layout::ChannelsFirst)];
    let rounding = prop_oneof![Just(Rounding::Floor), Just(Rounding::Ceil)];
    (1usize..=2, 1usize..=18, axes, (layout, rounding), Fill::any()).prop_map(
        |(batch, channels, axes, (layout, rounding), fill)| {
            let kernel = axes.map(|(extent, kernel, ..)| kernel.min(extent));
            let padding: [_; 3] = from_fn(|i| {
                let (.., before, after) = axes[i];
                (before.min(kernel[i]), after.min(kernel[i]))
            });
            let window = Window::new(kernel).stride(axes.map(|axis| axis.2)).padding(padding);
            let (space, window) =
                (Extents::from(axes.map(|axis| axis.0)), window.rounding(rounding));
            PoolCase { batch, channels, space, window, layout, fill }
        },
    )
}

/// Windows that do not overlap: as far apart as they are long, or further, and with gaps in them; and one window over all.
fn apart() -> impl Strategy<Value = PoolCase> {
    let axis = || (1usize..=9, 1usize..=4, 1usize..=2, 0usize..=2, any::<bool>());
    let layout = prop_oneof![Just(Layout::ChannelsLast), Just(Layout::ChannelsFirst)];
    let options = (layout, any::<bool>(), any::<bool>(), Fill::any());
    (0usize..=3, 1usize..=5, [axis(), axis(), axis()], 1usize..=3, options).prop_map(
        |(batch, channels, axes, rank, (layout, ceil, pads, fill))| {
            let axes = axes[..rank].iter().map(|&(extent, kernel, dilation, further, one)| {
                let kernel = if one { extent } else { kernel.min(extent.div_ceil(dilation)) };
                let dilation = if one { 1 } else { dilation };
                [extent, kernel, dilation, (kernel - 1) * dilation + 1 + further]
            });
            let axes: Vec<_> = axes.collect();
            let each = |nth: usize| -> Vec<usize> { axes.iter().map(|axis| axis[nth]).collect() };
            let extents = |nth| Extents::try_from(each(nth).as_slice()).expect("extents");
            let window = Window::new(extents(1)).dilation(extents(2)).stride(extents(3));
            let window = if ceil { window.rounding(Rounding::Ceil) } else { window };
            let halves: Vec<_> = each(1).iter().map(|kernel| kernel / 2).collect();
            let padding = Extents::try_from(halves.as_slice()).expect("extents");
            let window = if pads { window.padding(padding) } else { window };
            PoolCase { batch, channels, space: extents(0), window, layout, fill }
        },
    )
}

/// Devices with `stencil`, and a 3×3 average that is forced to use it; with at least two channels, its units move down
/// rows.
#[cfg(feature = "kernels")]
fn walked_down(divisor: Divisor) -> impl Iterator<Item = (Device, AvgPool)> {
    let pool = AvgPool::new([3, 3]).stride([1, 1]).padding([1, 1]).divisor(divisor);
    let devices = Device::all().into_iter().filter(|device| !device.uses_host_memory());
    devices.map(move |device| (device, pool.algorithm(PoolAlgorithm::Stencil)))
}

/// With an odd width, two units compute the same column. One of them writes it, so that its sum has only one order: a
/// large number absorbs the 1 before another cancels the large one.
#[test]
#[cfg(feature = "kernels")]
fn a_column_of_two_units_is_written_once() {
    // Enough channels that the two units are in different cubes, the second of which ends later.
    let (rows, columns, channels) = (2, 35, 512);
    let mut numbers = vec![0f32; rows * columns * channels];
    for (column, number) in [(32, 1.0), (33, 2f32.powi(30)), (34, -(2f32.powi(30)))] {
        numbers[channels * column] = number;
    }
    for (device, pool) in walked_down(Divisor::Padded) {
        let dims = [1, rows, columns, channels];
        let x = Tensor::from_slice(&device, &numbers, dims).unwrap();
        for y in [pool.forward(&x), pool.backward(&x, &dims)] {
            let y = y.unwrap().to_vec::<f32>().unwrap();
            let sums = [33, columns + 33].map(|at| y[channels * at]);
            assert_eq!(sums, [0.0, 0.0], "{device}");
        }
    }
}

/// If blocks of columns do not divide the width, two units compute some columns and sum them in different orders: such
/// a column gets the first unit's sum, as it does with a width that the blocks divide.
#[test]
#[cfg(feature = "kernels")]
fn columns_of_two_units_have_the_first_ones_sums() {
    for device in Device::all().into_iter().filter(|device| !device.uses_host_memory()) {
        for divisor in [Divisor::Padded, Divisor::Valid] {
            columns_of_two_units::<f32>(&device, divisor);
            if device.supports(DType::F16) {
                columns_of_two_units::<f16>(&device, divisor);
            }
        }
    }
}

#[cfg(feature = "kernels")]
fn columns_of_two_units<T: Element>(device: &Device, divisor: Divisor) {
    let (channels, rows, wide) = (5, 7, 48);
    let fill = Fill { flavour: Flavour::Mixed, seed: 1 };
    let numbers: Vec<T> = fill.elements(channels * rows * wide);
    let pool = AvgPool::new([3, 3]).stride([1, 1]).padding([1, 1]).divisor(divisor);
    for algorithm in [PoolAlgorithm::RegisterTile, PoolAlgorithm::Stencil] {
        let pool = pool.algorithm(algorithm);
        // The results for this width, forward and backward, line by line.
        let both = |width: usize| {
            let dims = [1, rows, width, channels];
            let at = |line: usize, column| line / rows + (line % rows * width + column) * channels;
            let mut input = vec![numbers[0]; channels * rows * width];
            for (line, numbers) in numbers.chunks_exact(wide).enumerate() {
                for (column, number) in numbers[..width].iter().enumerate() {
                    input[at(line, column)] = *number;
                }
            }
            let x = Tensor::from_slice(device, &input, dims).unwrap();
            [pool.forward(&x), pool.backward(&x, &dims)].map(|y| {
                let y = y.unwrap().to_vec::<T>().unwrap();
                let lines = (0..channels * rows)
                    .map(|line| (0..width).map(|column| y[at(line, column)].to_f64()).collect());
                lines.collect::<Vec<Vec<f64>>>()
            })
        };
        // A window of the last column lacks a column, and the gradient of the column before it includes a share of that
        // window.
        let expected = both(wide).map(|lines| lines.concat());
        for width in wide - 11..wide {
            for (found, expected) in both(width).iter().zip(&expected) {
                for (found, expected) in found.iter().zip(expected.chunks_exact(wide)) {
                    let same = found[..width - 2] == expected[..width - 2];
                    assert!(same, "{device}: {algorithm:?} {divisor:?} {width}");
                }
            }
        }
    }
}

/// Large shares are each divided before they are added. Graphics drivers are excluded, because they may move the common
/// factor out of the sum.
#[test]
#[cfg(feature = "kernels")]
fn large_shares_together_do_not_overflow() {
    let (rows, columns) = (8, 9);
    let keeps = |device: &Device| matches!(device.backend(), Backend::Cuda | Backend::Hip);
    let pools = [Divisor::Valid, Divisor::Padded].into_iter().flat_map(walked_down);
    for (device, pool) in pools.filter(|(device, _)| keeps(device)) {
        let flat = pool.layout(Layout::ChannelsFirst).algorithm(PoolAlgorithm::Stencil);
        for (pool, dims, step) in
            [(pool, [1, rows, columns, 2], 2), (flat, [1, 2, rows, columns], 1)]
        {
            // Three in a column, three in the first row, and three by three inside.
            for (height, width) in [(2..5, 4..5), (0..1, 3..6), (2..5, 3..6)] {
                let mut shares = vec![0f32; 2 * rows * columns];
                for row in height.clone() {
                    for column in width.clone() {
                        shares[step * (columns * row + column)] = 3e38;
                    }
                }
                let dy = Tensor::from_slice(&device, &shares, dims).unwrap();
                let dx = pool.backward(&dy, &dims).unwrap().to_vec::<f32>().unwrap();
                let finite = dx.iter().all(|share| share.is_finite());
                assert!(finite, "{device}: {height:?} {width:?} {dims:?}");
            }
        }
    }
}

/// A large share is divided before it is weighted: down the rows, and in one run of elements.
#[test]
#[cfg(feature = "kernels")]
fn large_shares_do_not_overflow() {
    let (rows, columns) = (8, 9);
    for (device, pool) in walked_down(Divisor::Valid) {
        let flat = pool.layout(Layout::ChannelsFirst).algorithm(PoolAlgorithm::Stencil);
        let layouts = [(pool, [1, rows, columns, 2], 2), (flat, [1, 2, rows, columns], 1)];
        for ((pool, dims, step), at) in layouts.into_iter().flat_map(|layout| {
            // In a corner, in the first column, on the row before the last, and inside.
            [(0, 0), (3, 0), (rows - 2, 4), (3, 4)].map(|at| (layout, at))
        }) {
            let mut shares = vec![0f32; 2 * rows * columns];
            shares[step * (columns * at.0 + at.1)] = 3e38;
            let dy = Tensor::from_slice(&device, &shares, dims).unwrap();
            let dx = pool.backward(&dy, &dims).unwrap().to_vec::<f32>().unwrap();
            let near = |at: usize, end: usize| at.saturating_sub(1)..(at + 2).min(end);
            let (height, width) = (near(at.0, rows), near(at.1, columns));
            let share = 3e38 / (height.len() * width.len()) as f32;
            for (row, column) in
                height.clone().flat_map(|row| width.clone().map(move |column| (row, column)))
            {
                let got = dx[step * (columns * row + column)];
                assert!((got / share - 1.0).abs() < 1e-6, "{device}: {at:?} {row} {column}: {got}");
            }
            let some = dx.iter().filter(|share| **share != 0.0).count();
            assert_eq!(some, height.len() * width.len(), "{device}: {at:?}");
        }
    }
}

/// Planes with channels first whose input rows and output rows are divisible by different powers of two, with windows
/// that overlap or do not, and have an extent along the height or not; and signals with such rows.
fn other_vectors() -> impl Strategy<Value = PoolCase> {
    let shapes = [(30, 2, 2, 1), (22, 2, 2, 1), (56, 2, 2, 0), (56, 3, 2, 1), (24, 3, 2, 1)];
    let shapes = [&shapes[..], &[(16, 1, 4, 0), (18, 4, 4, 3), (48, 3, 4, 0)]].concat();
    let shapes = [&shapes[..], &[(80, 5, 5, 0), (64, 8, 8, 0), (32, 5, 1, 2)]].concat();
    let width = any::<Index>().prop_map(move |pick| *pick.get(&shapes));
    (0usize..=3, 1usize..=3, 0usize..=9, any::<bool>(), width, Fill::any()).prop_map(
        |(batch, channels, height, is_tall, (width, kernel, stride, padding), fill)| {
            let along = Window::new([kernel]).stride([stride]).padding([padding]);
            let rows = Window::new([1, kernel]).stride([1, stride]).padding([padding, padding]);
            let planes = Window::new([2, kernel]).stride([2, stride]).padding([1, padding]);
            let (space, window) = match (height, is_tall) {
                (0, _) => (Extents::from([width]), along),
                (_, false) => (Extents::from([height, width]), rows),
                (_, true) => (Extents::from([height, width]), planes),
            };
            PoolCase { batch, channels, space, window, layout: Layout::ChannelsFirst, fill }
        },
    )
}

/// Planes with 3×3 windows of stride 1 and padding 1; with channels last, for vectors of all lengths, and with rows for
/// more than one unit.
pub(crate) fn kept_planes() -> impl Strategy<Value = PoolCase> {
    let channels = prop_oneof![1usize..=12, Just(32), Just(48)];
    let extents = (0usize..=3, channels, 1usize..=2, 2usize..=28, 2usize..=40);
    let layout = prop_oneof![Just(Layout::ChannelsLast), Just(Layout::ChannelsFirst)];
    let rounding = prop_oneof![Just(Rounding::Floor), Just(Rounding::Ceil)];
    (extents, rounding, layout, Fill::any()).prop_map(|(extents, rounding, layout, fill)| {
        let (batch, channels, depth, height, width) = extents;
        let window = Window::new([1, 3, 3]).stride([1, 1, 1]).padding([0, 1, 1]);
        let window = window.rounding(rounding);
        let space = Extents::from([depth, height, width]);
        PoolCase { batch, channels, space, window, layout, fill }
    })
}

/// Planes with windows of up to three taps per axis and stride 1.
fn close_windows() -> impl Strategy<Value = PoolCase> {
    use windowpane::Layout::{ChannelsFirst, ChannelsLast};
    let axis = || {
        (1usize..=3).prop_flat_map(|kernel| {
            (Just(kernel), 0..kernel, 0..kernel).prop_flat_map(|(kernel, before, after)| {
                // The input may be shorter than the window if the padding makes up for it.
                let least = kernel.saturating_sub(before + after).max(1);
                (Just(kernel), Just(before), Just(after), least..=13usize)
            })
        })
    };
    let layout = prop_oneof![Just(ChannelsLast), Just(ChannelsFirst)];
    (1usize..=3, 1usize..=12, axis(), axis(), layout, Fill::any()).prop_map(
        |(batch, channels, height, width, layout, fill)| {
            let window = Window::new([height.0, width.0]).stride([1, 1]);
            let window = window.padding([(height.1, height.2), (width.1, width.2)]);
            let space = Extents::from([height.3, width.3]);
            PoolCase { batch, channels, space, window, layout, fill }
        },
    )
}

fn check_gradient<T: Element>(
    device: &Device,
    case: &PoolCase,
    which: Extremum,
    base: IndexBase,
    algorithm: Option<PoolAlgorithm>,
) -> Check {
    with_pool!(which, case, |pool| {
        let pool = pool.index_base(base).algorithm(algorithm);
        let Some(plan) = planned(pool.plan_backward(device, T::DTYPE, &case.dims()))? else {
            return Ok(());
        };
        executed(plan.algorithm(), T::DTYPE);
        let (problem, direct) = (case.problem(), Reference::Direct);
        let elements = case.elements::<T>();
        let (_, winners) = extremum_with_indices(which, direct, &problem, base, &elements);
        let (dy, output_dims) = output_gradient::<T>(case);
        let gradient = ok(Tensor::from_slice(device, &dy, &output_dims))?;
        let indices = ok(Tensor::from_slice(device, &winners, &output_dims))?;
        let dx = ok(pool.backward_with_plan(&plan, &gradient, &indices))?;
        let dx = ok(dx.to_vec::<T>())?;
        let expected = backward::max_backward_totals(&problem, base, &dy, &winners);
        assert_totals(&dx, &expected.map_err(|error| TestCaseError::fail(error.to_string()))?)?;

        // SEMANTICS 5.3: the same bits again, also when computed from the input without indices.
        let x = ok(Tensor::from_slice(device, &elements, case.dims()))?;
        let again = ok(ok(pool.backward_with_plan(&plan, &gradient, &indices))?.to_vec::<T>())?;
        assert_same(&again, &dx)?;
        let pool = pool.algorithm(None);
        let found = ok(ok(pool.backward_from_input(&gradient, &x))?.to_vec::<T>())?;
        let chosen = ok(ok(pool.backward(&gradient, &indices, &case.dims()))?.to_vec::<T>())?;
        assert_same(&found, &chosen)
    })
}

fn check_average_gradient<T: Element>(
    device: &Device,
    case: &PoolCase,
    divisor: Divisor,
    algorithm: Option<PoolAlgorithm>,
) -> Check {
    let pool =
        AvgPool::with_window(case.window).layout(case.layout).divisor(divisor).algorithm(algorithm);
    let Some(plan) = planned(pool.plan_backward(device, T::DTYPE, &case.dims()))? else {
        return Ok(());
    };
    executed(plan.algorithm(), T::DTYPE);
    let (dy, output_dims) = output_gradient::<T>(case);
    let gradient = ok(Tensor::from_slice(device, &dy, &output_dims))?;
    let dx = ok(ok(pool.backward_with_plan(&plan, &gradient))?.to_vec::<T>())?;
    assert_totals(&dx, &backward::average_backward_totals(&case.problem(), divisor, &dy))?;

    // SEMANTICS 5.3: the same bits again.
    let again = ok(ok(pool.backward_with_plan(&plan, &gradient))?.to_vec::<T>())?;
    assert_same(&again, &dx)
}

/// Numbers for the output gradient, different from those of the case's input.
pub(crate) fn output_gradient<T: Element>(case: &PoolCase) -> (Vec<T>, Vec<usize>) {
    let dims: Vec<usize> = case.problem().output().dims(case.layout).collect();
    let fill = Fill { seed: !case.fill.seed, ..case.fill };
    (fill.elements(dims.iter().product()), dims)
}

/// A sum is an average with the divisor 1, forward and backward, and says its name.
#[test]
fn a_sum_is_an_average_divided_by_one() {
    let dims = [2, 7, 9, 3];
    for device in devices() {
        let x = Tensor::random(&device, DType::F32, dims, 1).unwrap();
        let read = |y: windowpane::Result<Tensor>| y.unwrap().to_vec::<f32>().unwrap();
        let window = Window::new([3, 2]).stride([2, 1]).padding([1, 1]);
        let (sum, mean) =
            (SumPool::with_window(window), AvgPool::with_window(window).divisor(Divisor::Fixed(1)));
        let y = sum.forward(&x).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), read(mean.forward(&x)), "{device}");
        assert_eq!(read(sum.backward(&y, &dims)), read(mean.backward(&y, &dims)), "{device}");
        assert_eq!(
            read(SumPool::global().forward(&x)),
            read(AvgPool::global().divisor(Divisor::Fixed(1)).forward(&x)),
            "{device}"
        );
        let plan = sum.plan(&device, DType::F32, &dims).unwrap();
        assert_eq!(plan.rows()[0], ("operator", "sum pooling".into()));
    }
}

/// Plans that write over earlier results give the results of their own input, also if its size is different, and do not
/// change what a clone holds. Wrong inputs are refused.
#[test]
fn a_plan_runs_again() {
    for device in devices() {
        let (pool, mean) = (MaxPool::new([3, 2]), AvgPool::new([3, 2]));
        let mut results = Vec::new();
        let mut kept = Vec::new();
        for (seed, batch) in [(1, 2), (2, 2), (3, 5)] {
            let dims = [batch, 9, 8, 4];
            let x = Tensor::random(&device, DType::F32, dims, seed).unwrap();
            let plan = pool.plan_with_indices(&device, DType::F32, &dims).unwrap();
            plan.run(&[&x], &mut results).unwrap();
            let (y, winners) = pool.forward_with_indices(&x).unwrap();
            let y = y.to_vec::<f32>().unwrap();
            assert_eq!(results[0].to_vec::<f32>().unwrap(), y, "{device}");
            assert_eq!(results[1].to_vec::<i32>().unwrap(), winners.to_vec::<i32>().unwrap());
            kept.push((results[0].clone(), y));

            let dy = Tensor::random(&device, DType::F32, results[0].dims(), seed + 10).unwrap();
            let mut gradients = Vec::new();
            let plan = pool.plan_backward(&device, DType::F32, &dims).unwrap();
            plan.run(&[&dy, &winners], &mut gradients).unwrap();
            let dx = pool.backward(&dy, &winners, &dims).unwrap();
            assert_eq!(gradients[0].to_vec::<f32>().unwrap(), dx.to_vec::<f32>().unwrap());
            let plan = mean.plan_backward(&device, DType::F32, &dims).unwrap();
            plan.run(&[&dy], &mut gradients).unwrap();
            let dx = mean.backward(&dy, &dims).unwrap();
            assert_eq!(gradients[0].to_vec::<f32>().unwrap(), dx.to_vec::<f32>().unwrap());
            assert_eq!(gradients.len(), 1);

            for wrong in [&[][..], &[&x], &[&dy, &winners]] {
                let refused = plan.run(wrong, &mut gradients);
                assert!(
                    matches!(refused, Err(Error::PlanMismatch { .. })),
                    "{device}: {refused:?}"
                );
            }
            assert_eq!(gradients[0].to_vec::<f32>().unwrap(), dx.to_vec::<f32>().unwrap());
        }
        for (tensor, elements) in kept {
            assert_eq!(tensor.to_vec::<f32>().unwrap(), elements, "{device}");
        }
    }
}

/// The bytes that a plan counts are those of every tensor that it reads or writes.
#[test]
fn a_plan_counts_its_bytes() {
    let (host, dims) = (Device::host(), [2, 8, 8, 4]);
    let pool = MaxPool::new([2, 2]);
    let (input, output) = (512, 128);
    let plain = pool.plan(&host, DType::BF16, &dims).unwrap();
    assert_eq!(plain.bytes(), 2 * (input + output));
    let indexed = pool.plan_with_indices(&host, DType::BF16, &dims).unwrap();
    assert_eq!(indexed.bytes(), 2 * (input + output) + 4 * output);
    let backward = pool.plan_backward(&host, DType::BF16, &dims).unwrap();
    assert_eq!(backward.bytes(), 2 * (input + output) + 4 * output);
    let norm = windowpane::LpPool::new(2.0, [2, 2]).plan_backward(&host, DType::BF16, &dims);
    assert_eq!(norm.unwrap().bytes(), 2 * (2 * input + output));
}

/// The properties draw cases only for the algorithms that a device has; this test checks which ones it has.
#[test]
fn every_algorithm_plans_what_it_is_for() {
    for device in devices() {
        let is_there = |it: &PoolAlgorithm| has(&device, *it) || has_gradient(&device, *it);
        let found: Vec<_> = PoolAlgorithm::ALL.into_iter().filter(is_there).collect();
        use PoolAlgorithm::{
            BlockReduce, CpuRows, Direct, Gather, GatherStaged, GatherTile, RegisterTile, Scatter,
            SegmentedScatter, Sliding, Stencil, VanHerk,
        };
        // On devices with kernels, `sliding` selects `van_herk`.
        let (forward, backward) = ([Direct, Sliding, RegisterTile, VanHerk], [Gather, GatherTile]);
        let expected = match device.backend() {
            Backend::Host => vec![Direct, Sliding],
            Backend::Cpu => [&forward[..], &[BlockReduce, CpuRows], &backward, &[Scatter]].concat(),
            // Mesa's software Vulkan is unreliable with shared memory in SPIR-V, so such kernels are not used on it.
            Backend::Vulkan if device.is_emulated() => {
                [&forward[..], &[Stencil], &backward, &[Scatter]].concat()
            }
            _ => {
                let special = [BlockReduce, Stencil];
                let further = [GatherStaged, Scatter, SegmentedScatter];
                [&forward[..], &special, &backward, &further].concat()
            }
        };
        assert_eq!(found, expected, "{device}");
    }
}

/// SEMANTICS 5.1: kernels ignore an index outside its own window, in a neighbouring one or past the plane.
#[test]
#[cfg(feature = "kernels")]
fn indices_outside_their_windows_give_no_gradient() {
    for device in devices().into_iter().filter(|device| device.client().is_some()) {
        use PoolAlgorithm::{Gather, GatherTile, Scatter};
        for algorithm in gradients_of(&device, &[Gather, GatherTile, Scatter]) {
            let pool = MaxPool::new([4]).stride([4]).algorithm(algorithm);
            let plan = pool.plan_backward(&device, DType::F32, &[1, 8, 1]).unwrap();
            let dy = Tensor::from_slice(&device, &[1f32, 2.0], [1, 2, 1]).unwrap();
            for (indices, expected) in [
                ([3, 4], [0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0]),
                ([4, 3], [0.0; 8]),
                ([-1, 100], [0.0; 8]),
            ] {
                let indices = Tensor::from_slice(&device, &indices, [1, 2, 1]).unwrap();
                let dx = pool.backward_with_plan(&plan, &dy, &indices).unwrap();
                assert_eq!(dx.to_vec::<f32>().unwrap(), expected, "{device} {algorithm:?}");
            }
        }
    }
}

/// The same in volumes, where windows of several planes may name one plane: no gradient goes to another window's winner.
#[test]
#[cfg(feature = "kernels")]
fn indices_outside_their_windows_give_no_gradient_in_volumes() {
    for device in devices().into_iter().filter(|device| device.client().is_some()) {
        use PoolAlgorithm::{Gather, SegmentedScatter};
        for algorithm in gradients_of(&device, &[Gather, SegmentedScatter]) {
            let pool = MaxPool::new([2, 2, 2]).stride([1, 2, 2]).algorithm(algorithm);
            let plan = pool.plan_backward(&device, DType::F32, &[1, 3, 2, 4, 1]).unwrap();
            let dy = Tensor::from_slice(&device, &[1f32, 5.0, 2.0, 6.0], [1, 2, 1, 2, 1]).unwrap();
            for (indices, expected) in [([10, 10, 8, 10], 2.0), ([8, 10, 10, 10], 1.0)] {
                let indices = Tensor::from_slice(&device, &indices, [1, 2, 1, 2, 1]).unwrap();
                let dx = pool.backward_with_plan(&plan, &dy, &indices).unwrap();
                let mut all = [0.0; 24];
                (all[8], all[10]) = (expected, 11.0);
                assert_eq!(dx.to_vec::<f32>().unwrap(), all, "{device} {algorithm:?}");
            }
        }
    }
}

/// Windows of one plane that lie in the padding before the first plane. Such a row was once treated as an inner row and
/// read memory before its tensor.
#[test]
fn windows_in_planes_of_padding_are_empty() {
    let host = Device::host();
    let elements: Vec<f64> = (1..=64).map(f64::from).collect();
    let pool = AvgPool::new([1, 2, 8]).stride([1, 1, 4]).padding([(1, 1), (0, 0), (1, 3)]);
    let expected = Tensor::from_slice(&host, &elements, [1, 2, 4, 8, 1])
        .and_then(|x| pool.forward(&x)?.to_vec::<f64>())
        .unwrap();
    assert!(expected[..2].iter().all(|y| *y == 0.0));
    for device in devices().into_iter().filter(|device| device.supports(DType::F64)) {
        let x = Tensor::from_slice(&device, &elements, [1, 2, 4, 8, 1]).unwrap();
        for pool in [pool, pool.algorithm(PoolAlgorithm::CpuRows)] {
            let Some(plan) = planned(pool.plan(&device, DType::F64, x.dims())).unwrap() else {
                continue;
            };
            let found = pool.forward_with_plan(&plan, &x).unwrap().to_vec::<f64>().unwrap();
            assert_eq!(found, expected, "{device} {}", plan.algorithm());
        }
    }
}

/// A tuned plan gives the right result, forward and backward. Later plans of its problem follow it, also by a table that was
/// saved; plans that ask for a kernel do not.
#[test]
fn tuned_plans_are_right_and_are_followed() {
    // No other test uses these dimensions, because the process remembers tuned plans.
    let dims = [2, 11, 23, 4];
    let max = MaxPool::new([3, 3]).stride([1, 1]).padding([1, 1]);
    for device in devices() {
        let x = Tensor::random(&device, DType::F32, dims, 5).unwrap();
        let elements = x.to_vec::<f32>().unwrap();
        let plan = || max.plan_with_indices(&device, DType::F32, &dims).unwrap();
        let tuned = plan().tune().unwrap();
        assert_eq!(plan(), tuned, "{device}");
        let (y, indices) = max.forward_with_indices(&x).unwrap();
        let pooling = *tuned.pooling();
        let (of, by, base) = (Extremum::Max, Reference::Direct, IndexBase::Plane);
        let (values, positions) = extremum_with_indices(of, by, &pooling, base, &elements);
        assert_same(&y.to_vec::<f32>().unwrap(), &values).unwrap();
        assert_same(&indices.to_vec::<i32>().unwrap(), &positions).unwrap();
        let backward = || max.plan_backward(&device, DType::F32, &dims).unwrap();
        let gradient = backward().tune().unwrap();
        assert_eq!(backward(), gradient, "{device}");
        let dx = max.backward(&y, &indices, &dims).unwrap().to_vec::<f32>().unwrap();
        let expected = backward::max_backward(&pooling, base, &values, &positions).unwrap();
        for (dx, expected) in dx.iter().zip(&expected) {
            assert!((dx - expected).abs() <= 1e-5, "{device}: {dx} {expected}");
        }
        if device == Device::host() {
            continue;
        }

        // The entries of another table are followed, except those that no kernel can run.
        let table = Tuned::all().to_string();
        let is_own = |line: &&str| {
            line.starts_with("pooling max-pooling-with-indices") && line.contains("size=11,23")
        };
        let (problem, _) = table.lines().find(is_own).unwrap().split_once(" = ").unwrap();
        let (title, _) = table.split_once('\n').unwrap();
        let section = format!("{title}\n[{} {}]", device.backend(), device.name());
        for (algorithm, is_followed) in [("direct", true), ("gather", false)] {
            let other = format!("{section}\n{problem} = {algorithm}\n");
            other.parse::<Tuned>().unwrap().apply();
            assert_eq!(plan().algorithm().name() == algorithm, is_followed, "{device}: {other}");
        }
        // The planner's choice now; what was asked for is kept and not remembered.
        let forced = max.algorithm(PoolAlgorithm::Direct);
        let forced = forced.plan_with_indices(&device, DType::F32, &dims).unwrap();
        let before = plan();
        assert_eq!(forced.tune().unwrap(), forced, "{device}");
        assert_eq!(plan(), before, "{device}");
    }
}

/// Every operator has inputs to be tuned with; what has one kernel, or nothing to compute, does not change.
#[test]
fn every_operator_can_be_tuned() {
    let dims = [1, 9, 13, 4];
    for device in devices() {
        let (kernel, stride, padding) = ([3, 3], [2, 2], [1, 1]);
        let mean = AvgPool::new(kernel).stride(stride).padding(padding);
        let norm = LpPool::new(2.0, kernel).stride(stride);
        let max = MaxPool::new(kernel).stride(stride).padding(padding);
        let bases = max.index_base(IndexBase::Memory);
        let plans: [&dyn Fn() -> windowpane::Result<PoolPlan>; 5] = [
            &|| mean.plan(&device, DType::F32, &dims),
            &|| mean.plan_backward(&device, DType::F32, &dims),
            &|| norm.plan(&device, DType::F32, &dims),
            &|| norm.plan_backward(&device, DType::F32, &dims),
            &|| bases.plan_backward(&device, DType::F32, &dims),
        ];
        for plan in plans {
            let tuned = plan().unwrap().tune().unwrap();
            assert_eq!(plan().unwrap(), tuned, "{device}");
        }
        let empty = mean.plan(&device, DType::F32, &[0, 9, 13, 4]).unwrap();
        assert_eq!(empty.tune().unwrap(), empty, "{device}");
    }
}
