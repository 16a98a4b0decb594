//! Compares `windowpane-geometry` with walking along each axis one tap at a time.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use windowpane_geometry::{
    Axis, Convolution, Divisor, Error, Extents, Filter, FilterLayout, Grid, Layout, Padding,
    Pooling, Rounding, Same, Shape, Window,
};

#[derive(Arbitrary, Debug)]
struct Input {
    /// Small numbers, over which the test walks, or any numbers.
    axes: Axes,
    padding: PaddingKind,
    ceil: bool,
    /// Whether the kernel's numbers are the output's extents.
    adaptive: bool,
    batch: usize,
    channels: usize,
    filters: usize,
    groups: usize,
}

#[derive(Arbitrary, Debug)]
enum Axes {
    Small(Vec<[u8; 6]>),
    Any(Vec<[usize; 6]>),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum PaddingKind {
    Explicit,
    Upper,
    Lower,
}

/// Input, kernel, stride, dilation, padding before and after.
type Numbers = [usize; 6];

fuzz_target!(|input: Input| {
    let small = matches!(input.axes, Axes::Small(_));
    let axes: Vec<Numbers> = match &input.axes {
        Axes::Small(axes) => axes.iter().map(|axis| axis.map(|n| usize::from(n) % 48)).collect(),
        Axes::Any(axes) => axes.clone(),
    };
    let asked = match input.adaptive {
        true => extents(&axes, 1).map(Window::adaptive),
        false => window(&axes, input.padding, input.ceil),
    };
    let Ok(window) = asked else { return };
    let Ok(space) = extents(&axes, 0) else { return };
    let grid = window.over(space);
    if let Ok(shape) = Shape::new(input.batch, input.channels, space) {
        let pooling = Pooling::new(shape, &window, Layout::ChannelsLast);
        assert!(pooling.is_err() || grid.is_ok());
        let each = input.channels.checked_div(input.groups).unwrap_or(0);
        let kernel = extents(&axes, 1).expect("as many as the input's");
        if let Ok(filter) = Filter::new(input.filters, each, kernel) {
            let (layout, order) = (Layout::ChannelsFirst, FilterLayout::Hwcf);
            let conv = Convolution::new(shape, filter, &window, input.groups, layout, order);
            if let Ok(conv) = conv {
                assert!(grid.is_ok() && conv.output().batch() == input.batch);
                assert!(conv.first_channel(input.filters - 1) + each <= input.channels);
                let _ = (conv.output().elements(), filter.elements(), filter.strides(order));
            }
        }
    }
    if let Ok(grid) = &grid {
        touch(grid);
    }
    if small {
        let rounding = if input.ceil { Rounding::Ceil } else { Rounding::Floor };
        let walked = axes.iter().map(|axis| match input.adaptive {
            true => share(*axis),
            false => walk(*axis, input.padding, rounding),
        });
        let walked: Option<Vec<_>> = walked.collect();
        match (grid, walked) {
            (Ok(grid), Some(walked)) => {
                for (i, walked) in walked.iter().enumerate() {
                    check(grid.axis(i), walked);
                }
            }
            (Err(Error::Zero { .. } | Error::KernelTooLong { .. }), None) => {}
            (grid, walked) => panic!("{grid:?} but {walked:?}"),
        }
    }
});

fn extents(axes: &[Numbers], i: usize) -> Result<Extents, Error> {
    let numbers: Vec<usize> = axes.iter().map(|axis| axis[i]).collect();
    Extents::try_from(&numbers[..])
}

fn window(axes: &[Numbers], padding: PaddingKind, ceil: bool) -> Result<Window, Error> {
    let padding = match padding {
        PaddingKind::Explicit => {
            Padding::Explicit { before: extents(axes, 4)?, after: extents(axes, 5)? }
        }
        PaddingKind::Upper => Same::Upper.into(),
        PaddingKind::Lower => Same::Lower.into(),
    };
    Ok(Window::new(extents(axes, 1)?)
        .stride(extents(axes, 2)?)
        .dilation(extents(axes, 3)?)
        .padding(padding)
        .rounding(if ceil { Rounding::Ceil } else { Rounding::Floor }))
}

/// Computes positions at both ends of every axis: none may overflow.
fn touch(grid: &Grid) {
    for axis in grid.axes() {
        for o in [0, axis.output() - 1] {
            assert!(axis.inside(o).end <= axis.padded_taps(o).max(axis.inside(o).start));
            let _ = axis.coordinate(o, axis.kernel() - 1);
        }
        for x in [0, axis.input() - 1] {
            assert!(axis.windows_over(x).end <= axis.output());
        }
        assert!(axis.windows_inside(axis.kernel() - 1).end <= axis.output());
        let _ = (axis.overlaps(), axis.classes().next());
    }
    let last = grid.axes().map(|axis| axis.output() - 1);
    assert!(Divisor::Valid.of(grid, last) <= Divisor::Padded.of(grid, last));
    let _ = (grid.taps(), grid.input_plane(), grid.output_plane());
}

/// The extent, the padding at the end, and the coordinates of every tap of every window.
#[derive(Debug)]
struct Walked {
    input: usize,
    after: usize,
    windows: Vec<Vec<i64>>,
}

fn walk(numbers: Numbers, padding: PaddingKind, rounding: Rounding) -> Option<Walked> {
    let [input, kernel, stride, dilation, mut before, mut after] = numbers;
    if [input, kernel, stride, dilation].contains(&0) {
        return None;
    }
    let span = (1..kernel).fold(1, |span, _| span + dilation);
    let mut count = 0;
    if !matches!(padding, PaddingKind::Explicit) {
        count = (0..input).step_by(stride).count();
        (before, after) = (0, 0);
        while (count - 1) * stride + span > before + input + after {
            // The odd element of padding goes to the requested side.
            let at_end = (before == after) == matches!(padding, PaddingKind::Upper);
            *(if at_end { &mut after } else { &mut before }) += 1;
        }
    } else if span > before + input + after {
        return None;
    } else if rounding == Rounding::Floor {
        while count * stride + span <= before + input + after {
            count += 1;
        }
    } else {
        count = 1;
        while (count - 1) * stride + span < before + input + after {
            count += 1;
        }
        count -= usize::from((count - 1) * stride >= before + input);
    }
    let taps = |o: usize| {
        (0..kernel).map(move |t| (o * stride + t * dilation) as i64 - before as i64).collect()
    };
    Some(Walked { input, after, windows: (0..count).map(taps).collect() })
}

/// The coordinates of each adaptive window: those that overlap its share of the axis.
fn share([input, output, ..]: Numbers) -> Option<Walked> {
    if input == 0 || output == 0 {
        return None;
    }
    let windows = (0..output).map(|o| {
        // In units of 1/O: the window from o·L to (o+1)·L, the coordinate from x·O to (x+1)·O.
        let touched = |x: &usize| (x + 1) * output > o * input && x * output < (o + 1) * input;
        (0..input).filter(touched).map(|x| x as i64).collect()
    });
    Some(Walked { input, after: 0, windows: windows.collect() })
}

fn check(axis: &Axis, walked: &Walked) {
    let (length, padded) = (walked.input as i64, (walked.input + walked.after) as i64);
    assert_eq!(axis.output(), walked.windows.len());
    assert_eq!(axis.after(), walked.after);
    for (o, taps) in walked.windows.iter().enumerate() {
        for (t, &x) in taps.iter().enumerate() {
            let inside = (0..length).contains(&x);
            assert_eq!(axis.coordinate(o, t), x);
            assert_eq!(axis.inside(o).contains(&t), inside);
            assert_eq!(axis.windows_inside(t).contains(&o), inside);
            assert_eq!(t < axis.padded_taps(o), x < padded);
        }
        for x in 0..walked.input {
            let tap = taps.iter().position(|&read| read == x as i64);
            assert_eq!(axis.tap_of(o, x), tap);
            assert!(tap.is_none() || axis.windows_over(x).contains(&o));
        }
    }
    let mut read = walked.windows.concat();
    let total = read.len();
    read.sort_unstable();
    read.dedup();
    assert_eq!(axis.overlaps(), read.len() < total);
}
