//! Compares every position that the crate computes with one found by stepping through the axis.
//!
//! `PROPTEST_CASES` sets the number of random problems.

use proptest::prelude::*;
use windowpane_geometry::{
    AXES, Axis, AxisName, Convolution, Divisor, Error, Exponent, Extents, Filter, FilterLayout,
    Grid, IndexBase, LIMIT, Layout, Padding, Pooling, Quantity, Rounding, Same, Shape, Window,
};

/// The options of one axis. `sides` is the explicit padding before and after.
#[derive(Clone, Copy, Debug)]
struct Asked {
    input: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    sides: (usize, usize),
}

#[derive(Clone, Debug)]
struct Problem {
    axes: Vec<Asked>,
    same: Option<Same>,
    rounding: Rounding,
}

fn asked() -> impl Strategy<Value = Asked> {
    let side = || prop_oneof![3 => 0usize..4, 1 => 0usize..24];
    let kernel = prop_oneof![3 => 1usize..6, 1 => 1usize..24];
    (1usize..=40, kernel, 1usize..=9, 1usize..=5, (side(), side())).prop_map(
        |(input, kernel, stride, dilation, sides)| Asked { input, kernel, stride, dilation, sides },
    )
}

fn problem() -> impl Strategy<Value = Problem> {
    let same = prop_oneof![
        3 => Just(None),
        1 => Just(Some(Same::Upper)),
        1 => Just(Some(Same::Lower))
    ];
    let rounding = prop_oneof![Just(Rounding::Floor), Just(Rounding::Ceil)];
    (prop::collection::vec(asked(), 1..=AXES), same, rounding)
        .prop_map(|(axes, same, rounding)| Problem { axes, same, rounding })
}

impl Problem {
    fn extents(&self, of: fn(&Asked) -> usize) -> Extents {
        let numbers: Vec<usize> = self.axes.iter().map(of).collect();
        Extents::try_from(&numbers[..]).unwrap()
    }

    fn window(&self) -> Window {
        let padding = match self.same {
            Some(same) => same.into(),
            None => Padding::Explicit {
                before: self.extents(|a| a.sides.0),
                after: self.extents(|a| a.sides.1),
            },
        };
        Window::new(self.extents(|a| a.kernel))
            .stride(self.extents(|a| a.stride))
            .dilation(self.extents(|a| a.dilation))
            .padding(padding)
            .rounding(self.rounding)
    }

    fn grid(&self) -> Result<Grid, Error> {
        self.window().over(self.extents(|a| a.input))
    }
}

/// The extent of each axis and its number of windows, with mostly more coordinates than windows.
fn adaptive() -> impl Strategy<Value = Vec<(usize, usize)>> {
    let windows = prop_oneof![4 => 1usize..12, 1 => 1usize..60];
    prop::collection::vec((1usize..=40, windows), 1..=AXES)
}

fn fit(axes: &[(usize, usize)]) -> Result<Grid, Error> {
    let of = |pick: fn(&(usize, usize)) -> usize| {
        Extents::try_from(&*axes.iter().map(pick).collect::<Vec<_>>()).unwrap()
    };
    Window::adaptive(of(|axis| axis.1)).over(of(|axis| axis.0))
}

/// The coordinates of each of `output` windows. A window has `1/output` of the axis, and reads every coordinate of
/// which any part is in its share; coordinate `x` extends from `x` to `x + 1`.
fn share(input: usize, output: usize) -> Walked {
    let windows = (0..output).map(|o| {
        // In units of 1/O: the window from o·L to (o+1)·L, the coordinate from x·O to (x+1)·O.
        let touched = |x: &usize| (x + 1) * output > o * input && x * output < (o + 1) * input;
        (0..input).filter(touched).map(|x| x as i64).collect()
    });
    Walked { before: 0, after: 0, windows: windows.collect() }
}

/// The windows of one axis, found by stepping.
#[derive(Debug)]
struct Walked {
    before: usize,
    after: usize,
    /// For each window, the coordinate of each tap.
    windows: Vec<Vec<i64>>,
}

/// Slides a window over an axis one step at a time; `None` if no window fits.
fn walk(asked: &Asked, same: Option<Same>, rounding: Rounding) -> Option<Walked> {
    let Asked { input, stride, .. } = *asked;
    let span = (1..asked.kernel).fold(1, |span, _| span + asked.dilation);
    let (mut before, mut after) = asked.sides;
    let mut count = 0;
    if let Some(same) = same {
        // 1.3: one window for each stride that begins in the input, and the least padding that fits them.
        count = (0..input).step_by(stride).count();
        (before, after) = (0, 0);
        while (count - 1) * stride + span > before + input + after {
            let grow_after = match same {
                Same::Upper => after == before,
                Same::Lower => after != before,
            };
            *(if grow_after { &mut after } else { &mut before }) += 1;
        }
    } else {
        let padded = before + input + after;
        if span > padded {
            return None;
        }
        match rounding {
            // 1.1: while a window fits.
            Rounding::Floor => {
                while count * stride + span <= padded {
                    count += 1;
                }
            }
            // 1.2: until a window reaches the end; one that starts past the input is dropped.
            Rounding::Ceil => {
                count = 1;
                while (count - 1) * stride + span < padded {
                    count += 1;
                }
                if (count - 1) * stride >= before + input {
                    count -= 1;
                }
            }
        }
    }
    let first = -(before as i64);
    let windows = (0..count).map(|o| {
        let start = first + (0..o).map(|_| stride as i64).sum::<i64>();
        (0..asked.kernel).map(|t| start + (t * asked.dilation) as i64).collect()
    });
    Some(Walked { before, after, windows: windows.collect() })
}

fn check_axis(axis: &Axis, asked: &Asked, walked: &Walked) -> Result<(), TestCaseError> {
    let (length, after) = (asked.input as i64, walked.after as i64);
    prop_assert_eq!((axis.before(), axis.after()), (walked.before, walked.after));
    prop_assert_eq!(axis.output(), walked.windows.len());
    for (o, taps) in walked.windows.iter().enumerate() {
        prop_assert_eq!(axis.start(o), taps[0]);
        for (t, &x) in taps.iter().enumerate() {
            prop_assert_eq!(axis.coordinate(o, t), x);
            let inside = (0..length).contains(&x);
            prop_assert_eq!(axis.inside(o).contains(&t), inside);
            prop_assert_eq!(axis.windows_inside(t).contains(&o), inside);
            prop_assert_eq!(t < axis.padded_taps(o), x < length + after);
            prop_assert!(inside || axis.clipped());
            prop_assert!(inside || !axis.always_inside().contains(&t));
        }
        prop_assert!(axis.inside(o).end <= asked.kernel);
        prop_assert!(!axis.inside(o).is_empty() || axis.may_be_empty());
        prop_assert!(axis.padded_taps(o) <= asked.kernel);
    }
    for t in 0..asked.kernel {
        prop_assert!(axis.windows_inside(t).end <= axis.output());
    }
    Ok(())
}

/// Checks the inverse: which windows read a coordinate, and with which tap.
fn check_inverse(axis: &Axis, asked: &Asked, walked: &Walked) -> Result<(), TestCaseError> {
    for x in 0..asked.input {
        let candidates = axis.windows_over(x);
        prop_assert!(candidates.end <= axis.output());
        for (o, taps) in walked.windows.iter().enumerate() {
            let tap = taps.iter().position(|&read| read == x as i64);
            prop_assert_eq!(axis.tap_of(o, x), tap);
            prop_assert!(tap.is_none() || candidates.contains(&o));
            // The range has no window that ends before the coordinate or starts after it.
            let over = taps[0] <= x as i64 && x as i64 <= *taps.last().unwrap();
            prop_assert_eq!(candidates.contains(&o), over);
        }
    }
    let mut read: Vec<i64> = walked.windows.concat();
    let total = read.len();
    read.sort_unstable();
    read.dedup();
    prop_assert_eq!(axis.overlaps(), read.len() < total);
    Ok(())
}

/// Windows of one class read coordinates with the same residue; windows of two classes never read the same
/// coordinate.
fn check_classes(axis: &Axis, asked: &Asked, walked: &Walked) -> Result<(), TestCaseError> {
    let residue = |x: i64| x.rem_euclid(asked.dilation as i64);
    let mut seen = vec![];
    let mut residues = vec![];
    for class in axis.classes() {
        let windows: Vec<usize> = class.collect();
        let of_class = residue(walked.windows[windows[0]][0]);
        prop_assert!(!residues.contains(&of_class));
        residues.push(of_class);
        prop_assert!(windows.iter().all(|&o| residue(walked.windows[o][0]) == of_class));
        prop_assert!(windows.is_sorted());
        seen.extend(windows);
    }
    seen.sort_unstable();
    prop_assert_eq!(seen, (0..axis.output()).collect::<Vec<_>>());
    Ok(())
}

proptest! {
    #[test]
    fn axes_agree_with_a_walk(problem in problem()) {
        let walked: Option<Vec<Walked>> =
            problem.axes.iter().map(|a| walk(a, problem.same, problem.rounding)).collect();
        let (grid, walked) = match (problem.grid(), walked) {
            (Ok(grid), Some(walked)) => (grid, walked),
            (Err(Error::KernelTooLong { axis, effective, padded }), None) => {
                // The first axis that is too short is named, with its numbers.
                let missing = AXES - problem.axes.len();
                let (i, short) = problem.axes.iter().enumerate()
                    .find(|(_, a)| walk(a, None, problem.rounding).is_none()).unwrap();
                let names = [AxisName::Depth, AxisName::Height, AxisName::Width];
                prop_assert_eq!(axis, names[missing + i]);
                prop_assert_eq!(padded, short.input + short.sides.0 + short.sides.1);
                let last_tap = (1..short.kernel).fold(0, |last, _| last + short.dilation);
                prop_assert_eq!(effective, last_tap + 1);
                return Ok(());
            }
            (grid, walked) => return Err(TestCaseError::fail(format!("{grid:?} but {walked:?}"))),
        };
        prop_assert_eq!(grid.rank(), problem.axes.len());
        for (i, (asked, walked)) in problem.axes.iter().zip(&walked).enumerate() {
            let axis = grid.axis(i);
            check_axis(axis, asked, walked)?;
            check_inverse(axis, asked, walked)?;
            check_classes(axis, asked, walked)?;
        }
        // A missing axis has one window with one inside tap.
        for axis in &grid.axes()[..AXES - grid.rank()] {
            prop_assert_eq!((axis.input(), axis.kernel(), axis.output()), (1, 1, 1));
            prop_assert_eq!(axis.inside(0), 0..1);
        }
    }

    /// 4.2: an axis defined by its number of windows is consistent like any other.
    #[test]
    fn adaptive_axes_agree_with_sharing(axes in adaptive()) {
        let grid = fit(&axes).unwrap();
        for (i, &(input, output)) in axes.iter().enumerate() {
            let (axis, shared) = (grid.axis(i), share(input, output));
            let longest = shared.windows.iter().map(Vec::len).max().unwrap();
            prop_assert_eq!((axis.input(), axis.kernel()), (input, longest));
            prop_assert_eq!(axis.is_uneven(), input % output != 0);
            prop_assert!(axis.is_adaptive() && !axis.may_be_empty());
            prop_assert_eq!(axis.clipped(), axis.is_uneven());
            for (o, taps) in shared.windows.iter().enumerate() {
                prop_assert_eq!(axis.inside(o), 0..taps.len());
                prop_assert_eq!(axis.padded_taps(o), taps.len());
                prop_assert_eq!(axis.start(o), taps[0]);
                for (t, &x) in taps.iter().enumerate() {
                    prop_assert_eq!(axis.coordinate(o, t), x);
                    prop_assert!(axis.windows_inside(t).contains(&o));
                }
            }
            // For the inverse and the classes: no dilation, and the kernel of the longest window.
            let asked = Asked { input, kernel: longest, stride: 1, dilation: 1, sides: (0, 0) };
            check_inverse(axis, &asked, &shared)?;
            check_classes(axis, &asked, &shared)?;
        }
        prop_assert!(grid.is_adaptive());
        let even = |axes: &[(usize, usize)]| axes.iter().all(|(input, output)| input % output == 0);
        prop_assert_eq!(grid.is_uneven(), !even(&axes));
        // If the division is even, the result equals an ordinary window.
        if even(&axes) {
            let of = |pick: fn(&(usize, usize)) -> usize| {
                Extents::try_from(&*axes.iter().map(pick).collect::<Vec<_>>()).unwrap()
            };
            let kernel = of(|(input, output)| input / output);
            let asked = Window::new(kernel).stride(kernel).over(of(|axis| axis.0)).unwrap();
            prop_assert_eq!((asked.kernel(), asked.output()), (grid.kernel(), grid.output()));
            for (asked, axis) in asked.axes().iter().zip(grid.axes()) {
                prop_assert_eq!((asked.stride(), asked.clipped()), (axis.stride(), axis.clipped()));
            }
        }
    }

    #[test]
    fn divisors_agree_with_counting(
        problem in problem(),
        n in 1u32..100,
        pick in any::<[prop::sample::Index; AXES]>(),
    ) {
        let Ok(grid) = problem.grid() else { return Ok(()) };
        // A window's taps are the product of its axes' taps: count them one by one.
        let o: [usize; AXES] = std::array::from_fn(|i| pick[i].index(grid.axes()[i].output()));
        let missing = AXES - grid.rank();
        let (mut inside, mut padded) = (0, 0);
        let taps: Vec<Vec<i64>> = (0..AXES).map(|i| {
            if i < missing { return vec![0] }
            let walked = walk(&problem.axes[i - missing], problem.same, problem.rounding);
            walked.unwrap().windows[o[i]].clone()
        }).collect();
        for d in &taps[0] { for h in &taps[1] { for w in &taps[2] {
            let at = [*d, *h, *w];
            let within = |i: usize, extra: i64| at[i] < grid.axes()[i].input() as i64 + extra;
            inside += usize::from((0..AXES).all(|i| at[i] >= 0 && within(i, 0)));
            padded += usize::from((0..AXES).all(|i| within(i, grid.axes()[i].after() as i64)));
        }}}
        prop_assert_eq!(Divisor::Valid.of(&grid, o), inside);
        prop_assert_eq!(Divisor::Padded.of(&grid, o), padded);
        prop_assert!(padded > 0);
        prop_assert_eq!(Divisor::Fixed(n).of(&grid, o), n as usize);
    }

    #[test]
    fn offsets_and_indices_agree_with_enumeration(
        batch in 0usize..3,
        channels in 1usize..4,
        space in prop::collection::vec(1usize..5, 1..=AXES),
    ) {
        let extents = Extents::try_from(&space[..]).unwrap();
        let shape = Shape::new(batch, channels, extents).unwrap();
        let window = Window::new(Extents::try_from(&vec![1; space.len()][..]).unwrap());
        for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
            let dims: Vec<usize> = shape.dims(layout).collect();
            prop_assert_eq!(dims.iter().product::<usize>(), shape.elements());
            prop_assert_eq!(Shape::from_dims(&dims, layout), Ok(shape));

            let pooling = Pooling::new(shape, &window, layout).unwrap();
            let strides = shape.strides(layout);
            let index = |base| pooling.index_strides(base);
            // Steps through the memory, and through the logical tensor in parallel.
            let mut memory = 0;
            for (n, c, position, plane) in walk_memory(batch, channels, extents.three(1), layout) {
                prop_assert_eq!(strides.offset(n, c, position), memory);
                prop_assert_eq!(index(IndexBase::Memory).offset(n, c, position), memory);
                prop_assert_eq!(index(IndexBase::Plane).offset(n, c, position), plane);
                let tensor = (n * channels + c) * shape.plane() + plane;
                prop_assert_eq!(index(IndexBase::Tensor).offset(n, c, position), tensor);
                prop_assert_eq!(pooling.grid().plane_index(position), plane);
                memory += 1;
            }
            prop_assert_eq!(memory, shape.elements());
        }
    }

    #[test]
    fn filter_offsets_agree_with_enumeration(
        count in 1usize..4,
        channels in 1usize..4,
        kernel in prop::collection::vec(1usize..4, 1..=AXES),
    ) {
        let extents = Extents::try_from(&kernel[..]).unwrap();
        let [depth, height, width] = extents.three(1);
        let filter = Filter::new(count, channels, extents).unwrap();
        let taps = || (0..depth).flat_map(move |d| {
            (0..height).flat_map(move |h| (0..width).map(move |w| [d, h, w]))
        });
        for layout in [FilterLayout::Fhwc, FilterLayout::Hwcf, FilterLayout::Fchw] {
            let mut order = vec![];
            match layout {
                FilterLayout::Fhwc => for f in 0..count { for t in taps() { for c in 0..channels {
                    order.push((f, c, t));
                }}},
                FilterLayout::Hwcf => for t in taps() { for c in 0..channels { for f in 0..count {
                    order.push((f, c, t));
                }}},
                FilterLayout::Fchw => for f in 0..count { for c in 0..channels { for t in taps() {
                    order.push((f, c, t));
                }}},
            }
            let strides = filter.strides(layout);
            let offsets: Vec<usize> =
                order.iter().map(|&(f, c, t)| strides.offset(f, c, t)).collect();
            prop_assert_eq!(offsets, (0..filter.elements()).collect::<Vec<_>>());
            let dims: Vec<usize> = filter.dims(layout).collect();
            prop_assert_eq!(Filter::from_dims(&dims, layout), Ok(filter));
        }
    }

    /// 1.4: any request gives a result or an error. Debug builds would panic if a number wrapped.
    #[test]
    fn extreme_numbers_never_panic(
        numbers in prop::collection::vec(prop::collection::vec(extreme(), 6), 1..=AXES),
        (batch, channels, count, groups) in (extreme(), extreme(), extreme(), extreme()),
        ceil in any::<bool>(),
        same in any::<bool>(),
    ) {
        let pick = |i: usize| {
            let picked: Vec<usize> = numbers.iter().map(|axis| axis[i]).collect();
            Extents::try_from(&picked[..]).unwrap()
        };
        let padding = match same {
            true => Same::Upper.into(),
            false => Padding::Explicit { before: pick(4), after: pick(5) },
        };
        let rounding = if ceil { Rounding::Ceil } else { Rounding::Floor };
        let window = Window::new(pick(1)).stride(pick(2)).dilation(pick(3));
        let window = window.padding(padding).rounding(rounding);
        if let Ok(grid) = window.over(pick(0)) {
            touch_ends(&grid);
        }
        if let Ok(grid) = Window::adaptive(pick(1)).over(pick(0)) {
            touch_ends(&grid);
        }
        let shape = Shape::new(batch, channels, pick(0));
        let filter = Filter::new(count, channels, pick(1));
        if let Ok(filter) = filter {
            prop_assert!(filter.elements() > 0);
        }
        if let Ok(shape) = shape {
            prop_assert_eq!(shape.elements() == 0, batch == 0);
            for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
                if let Ok(pooling) = Pooling::new(shape, &window, layout) {
                    let fits = pooling.check_indices(IndexBase::Memory).is_ok();
                    prop_assert_eq!(fits, shape.elements() <= LIMIT + 1);
                }
                if let Ok(filter) = filter {
                    let order = FilterLayout::Fhwc;
                    let _ = Convolution::new(shape, filter, &window, groups, layout, order);
                }
            }
        }
    }
}

/// Every element of a tensor in memory order: sample, channel, position, position in the plane.
fn walk_memory(
    batch: usize,
    channels: usize,
    [depth, height, width]: [usize; AXES],
    layout: Layout,
) -> Vec<(usize, usize, [usize; AXES], usize)> {
    let mut pixels = vec![];
    for d in 0..depth {
        for h in 0..height {
            for w in 0..width {
                pixels.push(([d, h, w], pixels.len()));
            }
        }
    }
    let mut elements = vec![];
    for n in 0..batch {
        match layout {
            Layout::ChannelsLast => {
                for &(position, plane) in &pixels {
                    elements.extend((0..channels).map(|c| (n, c, position, plane)));
                }
            }
            Layout::ChannelsFirst => {
                for c in 0..channels {
                    elements
                        .extend(pixels.iter().map(|&(position, plane)| (n, c, position, plane)));
                }
            }
        }
    }
    elements
}

fn extreme() -> impl Strategy<Value = usize> {
    let edges = [1, LIMIT, u32::MAX as usize, isize::MAX as usize, usize::MAX];
    prop_oneof![
        2 => 0usize..5,
        1 => (prop::sample::select(edges.to_vec()), 0usize..3)
            .prop_map(|(edge, less)| edge.saturating_sub(less)),
        1 => LIMIT - 3..LIMIT + 3,
        1 => (any::<usize>(), 0u32..64).prop_map(|(bits, shift)| bits >> shift),
    ]
}

/// Computes every position of the first and the last window.
fn touch_ends(grid: &Grid) {
    for axis in grid.axes() {
        for o in [0, axis.output() - 1] {
            for t in [0, axis.kernel() - 1] {
                let _ = (axis.coordinate(o, t), axis.inside(o), axis.padded_taps(o));
                let _ = axis.windows_inside(t);
            }
            for x in [0, axis.input() - 1] {
                let _ = (axis.windows_over(x), axis.tap_of(o, x));
            }
        }
        let _ = (axis.overlaps(), axis.classes().next());
    }
    let last = grid.axes().map(|axis| axis.output() - 1);
    for divisor in [Divisor::Padded, Divisor::Valid, Divisor::Fixed(u32::MAX)] {
        divisor.of(grid, last);
    }
    let _ = (grid.taps(), grid.input_plane(), grid.output_plane());
}

/// The error of a result, which must be one, and its message.
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> (Error, String) {
    let error = result.unwrap_err();
    (error, error.to_string())
}

/// 1.4: the error and its message contain the axis and the numbers.
#[test]
fn refusals_name_axis_and_numbers() {
    use AxisName::*;
    let over = Extents::from([5, 6, 7]);
    let window = Window::new([3, 3, 3]);

    let zero = |axis, what| Error::Zero { axis: Some(axis), what };
    let (error, text) = refused(Window::new([3, 0, 3]).over(over));
    assert_eq!(error, zero(Height, Quantity::Kernel));
    assert_eq!(text, "the kernel extent on the height axis is 0; it must be at least 1");
    assert_eq!(refused(window.stride([0, 1, 1]).over(over)).0, zero(Depth, Quantity::Stride));
    assert_eq!(refused(window.dilation([1, 1, 0]).over(over)).0, zero(Width, Quantity::Dilation));
    assert_eq!(refused(window.over(Extents::from([5, 0, 7]))).0, zero(Height, Quantity::Input));

    let (error, text) = refused(window.dilation([2, 3, 4]).padding([0, 0, 0]).over(over));
    assert_eq!(error, Error::KernelTooLong { axis: Height, effective: 7, padded: 6 });
    assert!(text.contains("height") && text.contains('7') && text.contains('6'), "{text}");

    let too_large = |axis, what, asked| Error::TooLarge { axis, what, asked, limit: LIMIT };
    let (error, text) = refused(window.stride([1, 1, LIMIT + 1]).over(over));
    assert_eq!(error, too_large(Some(Width), Quantity::Stride, Some(LIMIT + 1)));
    assert!(text.contains("width") && text.contains("2147483648") && text.contains("2147483647"));
    let (error, text) = refused(window.dilation([usize::MAX / 2, 1, 1]).over(over));
    assert_eq!(error, too_large(Some(Depth), Quantity::Dilation, Some(usize::MAX / 2)));
    assert!(text.contains("depth"));
    let (error, _) = refused(Window::new([LIMIT]).dilation([2]).over(Extents::from([1])));
    assert_eq!(error, too_large(Some(Width), Quantity::EffectiveKernel, Some(2 * (LIMIT - 1) + 1)));
    let (error, _) = refused(Window::new([1]).padding([LIMIT]).over(Extents::from([1])));
    assert_eq!(error, too_large(Some(Width), Quantity::PaddedInput, Some(2 * LIMIT + 1)));
    let (error, _) = refused(Window::new([1]).padding([usize::MAX]).over(Extents::from([1])));
    assert_eq!(error, too_large(Some(Width), Quantity::Padding, Some(usize::MAX)));
}

/// 4.2: options that follow from the input cannot be set, and 0 is not a valid number of windows.
#[test]
fn adaptive_windows_take_no_options() {
    let over = Extents::from([5, 6]);
    let window = Window::adaptive([2, 3]);
    assert!(window.over(over).is_ok() && window.kernel().is_none());
    for (set, what) in [
        (window.stride([1, 2]), Quantity::Stride),
        (window.dilation([2, 1]), Quantity::Dilation),
        (window.padding(Same::Upper), Quantity::Padding),
        (window.rounding(Rounding::Ceil), Quantity::Rounding),
    ] {
        let (error, text) = refused(set.over(over));
        assert_eq!(error, Error::Adaptive { what });
        assert!(text.contains(&what.to_string()) && text.contains("leave it out"), "{text}");
    }
    let (error, text) = refused(Window::adaptive([2, 0]).over(over));
    assert_eq!(error, Error::Zero { axis: Some(AxisName::Width), what: Quantity::Output });
    assert_eq!(text, "the output extent on the width axis is 0; it must be at least 1");
    let many = Window::adaptive([1, LIMIT + 1]).over(over);
    assert!(matches!(refused(many).0, Error::TooLarge { what: Quantity::Output, .. }));
    assert_eq!(refused(window.over(Extents::from([5]))).0, Error::Rank { expected: 2, found: 1 });
}

#[test]
fn exponents_are_finite_and_at_least_one() {
    for p in [1.0, 1.5, 2.0, 1e300] {
        assert_eq!(Exponent::new(p).check(), Ok(()));
    }
    for p in [0.0, 0.999, -1.0, f64::NAN, f64::INFINITY] {
        let (error, text) = refused(Exponent::new(p).check());
        assert_eq!(error, Error::Exponent { asked: Exponent::new(p) });
        assert!(text.contains(&format!("is {p};")), "{text}");
    }
}

#[test]
fn products_that_overflow_are_refused() {
    use AxisName::*;
    let limit = isize::MAX as usize;
    let long = Extents::from([LIMIT, LIMIT, LIMIT]);
    let of = |axis, what| Error::TooLarge { axis, what, asked: None, limit };
    let overflow = |what| of(Some(Depth), what);
    let (error, text) = refused(Window::new([1, 1, 1]).over(long));
    assert_eq!(error, overflow(Quantity::Elements));
    assert_eq!(
        text,
        "the number of elements is more than the largest allowed, 9223372036854775807; make the \
         batch, the channels or an extent smaller; the longest axis is the depth"
    );
    assert_eq!(refused(Window::new(long).over(long)).0, overflow(Quantity::Elements));
    let small = Extents::from([1, 1, 1]);
    let half = LIMIT / 2;
    let wide = Window::new([half - 1, half, half]).padding([half, half, half]);
    let (error, text) = refused(wide.over(small));
    assert_eq!(error, of(Some(Height), Quantity::Taps));
    assert!(text.contains("make the kernel smaller; the longest axis is the height"), "{text}");
    let many = Window::new([1, 1, 1]).padding([half, half, half]);
    let (error, text) = refused(many.over(small));
    assert_eq!(error, overflow(Quantity::Outputs));
    assert!(text.starts_with("the number of outputs is more than"), "{text}");
    let wide = Some(Width);
    assert_eq!(refused(Shape::new(2, 2, Extents::from([limit]))).0, of(wide, Quantity::Elements));
    let asked = Some(limit + 1);
    assert_eq!(
        refused(Shape::new(1, 1, Extents::from([limit + 1]))).0,
        Error::TooLarge { axis: wide, what: Quantity::Elements, asked, limit }
    );
    // A batch of 0 has no elements, but the size of a sample must still be valid.
    let (error, text) = refused(Shape::new(0, usize::MAX, Extents::from([2])));
    assert_eq!(error, of(None, Quantity::Elements));
    assert!(text.ends_with("make the batch, the channels or an extent smaller"), "{text}");
    assert_eq!(
        refused(Filter::new(usize::MAX, 2, Extents::from([1]))).0,
        of(None, Quantity::FilterElements)
    );
    // The error for a sum of numbers of one axis names the sum and the axis.
    let (_, text) = refused(Window::new([2, 2]).padding([LIMIT, 1]).over(Extents::from([2, 2])));
    assert!(text.starts_with("the padded input on the height axis is 4294967296, more"), "{text}");
    assert!(text.ends_with("make the input or its padding smaller"), "{text}");
    let (_, text) = refused(Window::new([1, 4]).dilation([1, LIMIT]).over(Extents::from([2, 2])));
    assert!(text.contains("on the width axis is 6442450942"), "{text}");
    assert!(text.ends_with("make the kernel or its dilation smaller"), "{text}");
}

#[test]
fn shapes_have_no_extent_of_zero_but_may_have_a_batch_of_zero() {
    let channels = Error::Zero { axis: None, what: Quantity::Channels };
    assert_eq!(refused(Shape::new(1, 0, Extents::from([4]))).0, channels);
    let width = Error::Zero { axis: Some(AxisName::Width), what: Quantity::Input };
    assert_eq!(refused(Shape::new(1, 1, Extents::from([4, 0]))).0, width);
    assert_eq!(Shape::new(0, 3, Extents::from([4])).unwrap().elements(), 0);
    let fixed = Error::Zero { axis: None, what: Quantity::Divisor };
    assert_eq!(refused(Divisor::Fixed(0).check()).0, fixed);
    assert_eq!(Divisor::Fixed(1).check(), Ok(()));
}

#[test]
fn ranks_must_agree() {
    let window = Window::new([2, 2]);
    let rank = |found| Error::Rank { expected: 2, found };
    assert_eq!(refused(window.over(Extents::from([4]))).0, rank(1));
    let square = Extents::from([4, 4]);
    assert_eq!(refused(window.stride([1, 1, 1]).over(square)).0, rank(3));
    assert_eq!(refused(window.dilation([1]).over(square)).0, rank(1));
    assert_eq!(refused(window.padding([1]).over(square)).0, rank(1));
    assert_eq!(refused(Extents::try_from(&[1; 4][..])).0, Error::RankUnsupported { found: 4 });
    for dims in [0, 1, 2, 6] {
        let found = usize::saturating_sub(dims, 2);
        let refusal = Error::RankUnsupported { found };
        assert_eq!(refused(Shape::from_dims(&vec![1; dims], Layout::ChannelsLast)).0, refusal);
        assert_eq!(refused(Filter::from_dims(&vec![1; dims], FilterLayout::Hwcf)).0, refusal);
    }
}

#[test]
fn indices_that_do_not_fit_are_refused() {
    let pooling = |batch, channels, width| {
        let shape = Shape::new(batch, channels, Extents::from([width])).unwrap();
        Pooling::new(shape, &Window::new([1]), Layout::ChannelsLast).unwrap()
    };
    // The last index of 2³¹ elements is the largest that fits.
    let fits = pooling(2, 4, 1 << 28);
    assert_eq!(fits.check_indices(IndexBase::Tensor), Ok(()));
    let large = pooling(2, 5, 1 << 28);
    assert_eq!(large.check_indices(IndexBase::Plane), Ok(()));
    for base in [IndexBase::Tensor, IndexBase::Memory] {
        let (error, text) = refused(large.check_indices(base));
        assert!(matches!(error, Error::TooLarge { what: Quantity::Elements, .. }));
        assert!(text.contains("2684354560"), "{text}");
    }
}

#[test]
fn convolutions_check_groups_and_filters() {
    let image = Shape::new(2, 6, Extents::from([8, 8])).unwrap();
    let window = Window::new([3, 3]).padding(Same::Upper);
    let new = |count, channels, kernel: [usize; 2], groups| {
        let filter = Filter::new(count, channels, kernel.into()).unwrap();
        Convolution::new(image, filter, &window, groups, Layout::ChannelsLast, FilterLayout::Fhwc)
    };

    let conv = new(9, 2, [3, 3], 3).unwrap();
    assert_eq!(conv.output(), Shape::new(2, 9, Extents::from([8, 8])).unwrap());
    let firsts: Vec<usize> = (0..9).map(|f| conv.first_channel(f)).collect();
    assert_eq!(firsts, [0, 0, 0, 2, 2, 2, 4, 4, 4]);

    let zero = Error::Zero { axis: None, what: Quantity::Groups };
    assert_eq!(refused(new(9, 2, [3, 3], 0)).0, zero);
    let (error, text) = refused(new(8, 2, [3, 3], 4));
    assert_eq!(error, Error::Groups { what: Quantity::Channels, count: 6, groups: 4 });
    assert!(text.contains("6, which 4 groups"), "{text}");
    let filters = Error::Groups { what: Quantity::Filters, count: 8, groups: 3 };
    assert_eq!(refused(new(8, 2, [3, 3], 3)).0, filters);
    let (error, text) = refused(new(6, 3, [3, 3], 3));
    assert_eq!(error, Error::FilterChannels { found: 3, expected: 2, channels: 6, groups: 3 });
    assert!(text.contains("3 channels") && text.contains("need 2"), "{text}");
    let (error, text) = refused(new(6, 2, [3, 5], 3));
    assert_eq!(error, Error::FilterKernel { axis: AxisName::Width, window: 3, filter: 5 });
    assert!(text.contains("width") && text.contains('5'), "{text}");
    for (count, channels, what) in [(0, 1, Quantity::Filters), (1, 0, Quantity::FilterChannels)] {
        let zero = Error::Zero { axis: None, what };
        assert_eq!(refused(Filter::new(count, channels, Extents::from([1]))).0, zero);
    }
    let filter = Filter::new(6, 2, [4, 4].into()).unwrap();
    let (layout, order) = (Layout::ChannelsLast, FilterLayout::Fhwc);
    let adaptive = Convolution::new(image, filter, &Window::adaptive([2, 2]), 3, layout, order);
    assert_eq!(refused(adaptive).0, Error::AdaptiveConvolution);
    let rounded = Window::new([4, 4]).rounding(Rounding::Ceil);
    let rounded = Convolution::new(image, filter, &rounded, 3, layout, order);
    assert_eq!(refused(rounded).0, Error::RoundedUp);
    let kernel = Error::Zero { axis: Some(AxisName::Width), what: Quantity::Kernel };
    assert_eq!(refused(Filter::new(1, 1, Extents::from([0]))).0, kernel);
}

/// The products of a convolution, each as the offsets of its output, input and weight.
fn products(conv: &Convolution) -> Vec<[usize; 3]> {
    let axes = conv.grid().axes();
    let (input, output) =
        (conv.input().strides(conv.layout()), conv.output().strides(conv.layout()));
    let weights = conv.filter().strides(conv.filter_layout());
    let all = |of: fn(&Axis) -> usize| {
        let [depth, height, width] = axes.each_ref().map(of);
        (0..depth)
            .flat_map(move |d| (0..height).flat_map(move |h| (0..width).map(move |w| [d, h, w])))
    };
    let mut found = Vec::new();
    for (n, f) in
        (0..conv.input().batch()).flat_map(|n| (0..conv.filter().count()).map(move |f| (n, f)))
    {
        for (o, tap) in all(Axis::output).flat_map(|o| all(Axis::kernel).map(move |tap| (o, tap))) {
            let x: Vec<_> = (0..AXES).map(|i| axes[i].coordinate(o[i], tap[i])).collect();
            if (0..AXES).any(|i| x[i] < 0 || x[i] >= axes[i].input() as i64) {
                continue;
            }
            let x = [x[0], x[1], x[2]].map(|x| x as usize);
            for c in 0..conv.filter().channels() {
                let input = input.offset(n, conv.first_channel(f) + c, x);
                found.push([output.offset(n, f, o), input, weights.offset(f, c, tap)]);
            }
        }
    }
    found.sort_unstable();
    found
}

/// Sampled pixels are multiplied with the same weights, into the same outputs.
#[test]
fn sampled_pixels_are_the_same_products() {
    let conv = |space: &[usize], window: &Window, layout| {
        let kernel = window.kernel().unwrap();
        let shape = Shape::new(2, 4, Extents::try_from(space).unwrap()).unwrap();
        let filter = Filter::new(6, 2, kernel).unwrap();
        Convolution::new(shape, filter, window, 2, layout, FilterLayout::Fhwc).unwrap()
    };
    for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
        for (space, strides) in
            [(&[7][..], &[3][..]), (&[5, 6], &[2, 2]), (&[9, 4], &[1, 5]), (&[4, 5, 8], &[2, 1, 3])]
        {
            let ones = Extents::from(1).of_rank(space.len()).unwrap();
            let window = Window::new(ones).stride(Extents::try_from(strides).unwrap());
            let own = conv(space, &window, layout);
            let sampled = own.sampled().expect("pixels are skipped");
            assert_eq!(sampled.sampled(), None);
            assert_eq!(sampled.output(), own.output());
            // Where each sampled pixel is in the whole input.
            let (from, to) = (sampled.input().strides(layout), own.input().strides(layout));
            let mut whole = std::collections::BTreeMap::new();
            let extents = sampled.input().space().three(1);
            let axes = own.grid().axes();
            for n in 0..2 {
                for c in 0..4 {
                    for place in (0..extents[0]).flat_map(|d| {
                        (0..extents[1]).flat_map(move |h| (0..extents[2]).map(move |w| [d, h, w]))
                    }) {
                        let apart = [0, 1, 2].map(|i| place[i] * axes[i].stride());
                        whole.insert(from.offset(n, c, place), to.offset(n, c, apart));
                    }
                }
            }
            let mut found = products(&sampled);
            found.iter_mut().for_each(|[_, input, _]| *input = whole[input]);
            found.sort_unstable();
            assert_eq!(found, products(&own), "{own:?}");
        }
        // Several taps, every pixel, or padding.
        for window in [
            Window::new([2, 1]).stride([2, 2]),
            Window::new([1, 1]),
            Window::new([1, 1]).stride([2, 2]).padding([1, 0]),
            Window::new([1, 1]).stride([2, 2]).padding([(0, 0), (0, 2)]),
        ] {
            assert_eq!(conv(&[5, 6], &window, layout).sampled(), None, "{window:?}");
        }
    }
}

/// Merged pixels are multiplied with the same weights, into the same outputs.
#[test]
fn merged_pixels_are_the_same_products() {
    let shape = |space: &[usize]| Shape::new(2, 3, Extents::try_from(space).unwrap()).unwrap();
    let conv = |space: &[usize], window: &Window, groups, layout, order| {
        let kernel = window.kernel().unwrap();
        let filter = Filter::new(6, 3 / groups, kernel).unwrap();
        Convolution::new(shape(space), filter, window, groups, layout, order).unwrap()
    };
    let (last, fhwc) = (Layout::ChannelsLast, FilterLayout::Fhwc);
    let side_by_side = Window::new([3, 2]).stride([2, 2]).padding([(1, 2), (0, 0)]);
    let volume = Window::new([2, 2, 4]).stride([2, 1, 4]).dilation([1, 2, 1]);
    for (space, window) in [(&[5, 6][..], &side_by_side), (&[4, 5, 8], &volume)] {
        for order in [fhwc, FilterLayout::Hwcf] {
            let own = conv(space, window, 1, last, order);
            let merged = own.merged().expect("windows are side by side");
            assert!(merged.input().channels() > own.input().channels());
            assert_eq!(merged.merged(), None);
            assert_eq!(products(&merged), products(&own), "{own:?}");
        }
        // Pixels or taps are not contiguous, or belong to several groups.
        assert_eq!(conv(space, window, 1, Layout::ChannelsFirst, fhwc).merged(), None);
        assert_eq!(conv(space, window, 1, last, FilterLayout::Fchw).merged(), None);
        assert_eq!(conv(space, window, 3, last, fhwc).merged(), None);
    }
    // Windows overlap, leave gaps, reach into padding, skip pixels, or leave some at the end.
    for window in [
        Window::new([2, 2]).stride([2, 1]),
        Window::new([2, 2]).stride([2, 3]),
        Window::new([2, 2]).stride([2, 2]).padding([0, 1]),
        Window::new([2, 2]).stride([2, 2]).dilation([1, 2]),
        Window::new([2, 4]).stride([2, 4]),
        Window::new([2, 1]),
    ] {
        assert_eq!(conv(&[5, 6], &window, 1, last, fhwc).merged(), None, "{window:?}");
    }
}

/// Blocks are multiplied with the same weights, into the same outputs; all other products are of what is 0.
#[test]
fn blocks_of_pixels_are_the_same_products() {
    let conv = |space: &[usize], window: &Window, layout, filter_layout| {
        let kernel = window.kernel().unwrap();
        let shape = Shape::new(2, 3, Extents::try_from(space).unwrap()).unwrap();
        let filter = Filter::new(2, 3, kernel).unwrap();
        Convolution::new(shape, filter, window, 1, layout, filter_layout).unwrap()
    };
    /// Where each element of a tensor of blocks is in another tensor, by sample, channel and position.
    fn places(
        samples: usize,
        [steps, before, blocks, extents]: [[usize; AXES]; 4],
        [channels, block]: [usize; 2],
        offset: impl Fn(usize, usize, [usize; AXES]) -> usize,
    ) -> Vec<Option<usize>> {
        let mut found = Vec::new();
        for i in 0..samples * blocks.iter().product::<usize>() * block {
            let (rest, element) = (i / block, i % block);
            let (rest, w) = (rest / blocks[2], rest % blocks[2]);
            let (rest, h) = (rest / blocks[1], rest % blocks[1]);
            let (sample, at) = (rest / blocks[0], [rest % blocks[0], h, w]);
            let (pixel, channel) = (element / channels, element % channels);
            let pixel =
                [pixel / steps[2] / steps[1], pixel / steps[2] % steps[1], pixel % steps[2]];
            let place = [0, 1, 2].map(|i| (at[i] * steps[i] + pixel[i]).checked_sub(before[i]));
            let inside = |i: usize| place[i].is_some_and(|place| place < extents[i]);
            let is_there = pixel[0] < steps[0] && (0..AXES).all(inside);
            let place = place.map(Option::unwrap_or_default);
            found.push(is_there.then(|| offset(sample, channel, place)));
        }
        found
    }
    for (space, window) in [
        (&[7][..], Window::new([3]).stride([3])),
        (&[8], Window::new([5]).stride([2]).padding([2])),
        (&[5, 6], Window::new([3, 2]).stride([2, 2]).padding([1, 0])),
        (&[9, 4], Window::new([3, 5]).stride([1, 4]).padding([(1, 0), (3, 2)]).dilation([2, 1])),
        (&[4, 5, 8], Window::new([2, 1, 4]).stride([2, 1, 3]).padding([0, 0, 1])),
    ] {
        for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
            for filter_layout in [FilterLayout::Fhwc, FilterLayout::Hwcf, FilterLayout::Fchw] {
                let own = conv(space, &window, layout, filter_layout);
                let blocked = own.space_to_depth(8).expect("windows step over pixels");
                assert_eq!(blocked.output(), own.output());
                assert!(blocked.input().channels().is_multiple_of(8));
                let (axes, over) = (own.grid().axes(), blocked.grid().axes());
                let steps = axes.each_ref().map(Axis::stride);
                let of = |i: usize, number| if steps[i] == 1 { 0 } else { number };
                let before = [0, 1, 2].map(|i| of(i, axes[i].before()));
                let numbers = [3, blocked.input().channels()];
                let (x, w) = (own.input().strides(layout), own.filter().strides(filter_layout));
                let sides = [steps, before, over.each_ref().map(Axis::input)];
                let [steps, before, blocks] = sides;
                let sides = [steps, before, blocks, axes.each_ref().map(Axis::input)];
                let inputs = places(2, sides, numbers, |n, c, place| x.offset(n, c, place));
                let sides = [over, axes].map(|axes| axes.each_ref().map(Axis::kernel));
                let sides = [steps, [0; AXES], sides[0], sides[1]];
                let weights = places(2, sides, numbers, |f, c, tap| w.offset(f, c, tap));
                // The output of the blocks is channels last.
                let (to, from) =
                    (own.output().strides(layout), own.output().strides(Layout::ChannelsLast));
                let extents = own.output().space().three(1);
                let mut outputs = std::collections::BTreeMap::new();
                for i in 0..own.output().elements() {
                    let (rest, f) = (i / 2, i % 2);
                    let (rest, w) = (rest / extents[2], rest % extents[2]);
                    let (rest, h) = (rest / extents[1], rest % extents[1]);
                    let (n, place) = (rest / extents[0], [rest % extents[0], h, w]);
                    outputs.insert(from.offset(n, f, place), to.offset(n, f, place));
                }
                let real = products(&blocked)
                    .into_iter()
                    .filter_map(|[y, x, w]| Some([outputs[&y], inputs[x]?, weights[w]?]));
                let mut found: Vec<_> = real.collect();
                found.sort_unstable();
                assert_eq!(found, products(&own), "{own:?}");
            }
        }
    }
    // Fewer taps than the stride, dilated ones, and no stride.
    for window in [
        Window::new([2, 3]).stride([3, 1]),
        Window::new([3, 3]).stride([2, 1]).dilation([2, 1]),
        Window::new([3, 3]),
    ] {
        let own = conv(&[9, 9], &window, Layout::ChannelsLast, FilterLayout::Fhwc);
        assert_eq!(own.space_to_depth(8), None, "{window:?}");
    }
}
