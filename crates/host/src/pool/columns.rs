//! Combines neighbouring pixels of rows.
//!
//! ```text
//! direct     y[i] = x[i] ⋅ x[i + d] ⋅ x[i + 2d] ⋅ …       all pixels at once, or each window by itself
//! sliding    runs[2m][i]     = runs[m][i] ⋅ runs[m][i + m·d]
//!            runs[2m + 1][i] = runs[m][i] ⋅ runs[m][i + m·d] ⋅ x[i + 2m·d]
//!            runs[k][i]      = runs[m][i] ⋅ runs[m][i + (k − m)·d]      for maxima, where runs may overlap
//! ```

use windowpane_geometry::AXES;

use super::item::{
    Item, in_vectors, join, join_both, join_shifted, join_three, join_windows, reduce, take,
};
use super::line::Line;
use super::sink::Results;
use super::sweep::{Part, Sweep};

/// The most items of a short row, whose loop would mostly work on the items that no vector has.
pub(super) const SHORT: usize = 32;

/// The most taps of single numbers some pixels apart for which all pixels are computed.
const FEW: usize = 8;

/// Rows of some planes.
pub(super) struct Planes<'a, I> {
    pub(super) items: &'a [I],
    /// The rows of each plane, of which the last ones may be of no use.
    pub(super) rows: usize,
}

/// What combines the windows of rows of pixels.
pub(super) struct Columns<'a, I> {
    width: &'a Line,
    lanes: usize,
    slides: bool,
    part: Part,
    spare: [&'a mut [I]; 2],
    results: &'a mut [I],
}

impl<'a, I: Item> Columns<'a, I> {
    pub(super) fn new(sweep: &'a Sweep, part: &Part, scratch: &'a mut [I]) -> Self {
        let width = &sweep.lines[AXES - 1];
        let (a, rest) = scratch.split_at_mut(spare(sweep));
        let (b, results) = rest.split_at_mut(spare(sweep));
        let (lanes, slides) = (sweep.lanes, sweep.slides[1]);
        Self { width, lanes, slides, part: *part, spare: [a, b], results }
    }

    /// Combines the windows of the rows of some planes: of the first `count` rows of each.
    pub(super) fn combine<'b>(&'b mut self, count: usize, planes: Planes<'b, I>) -> Results<'b, I> {
        let Self { width, lanes, slides, part, spare: [a, b], results } = self;
        let (lanes, stride, dilation) = (*lanes, width.stride(), width.dilation());
        let len = (part.windows[1] - part.windows[0]) * lanes;
        let row = part.span * lanes;
        let (rows, of_plane) = (planes.items, planes.rows);
        let all = rows.len() / row;
        let results = &mut results[..all * len];
        let of = |items, step| {
            let counts = [all / of_plane, count];
            Results { items, len, counts, steps: [of_plane * step, step] }
        };
        if a.is_empty() {
            in_vectors(
                #[inline(always)]
                || {
                    let pairs = results.chunks_exact_mut(len).zip(rows.chunks_exact(row));
                    pairs.for_each(|(y, x)| each(width, lanes, part, x, y));
                },
            );
            return of(results, len);
        }
        let runs = runs(width, dilation * lanes, *slides, rows, [a, b]);
        if stride == 1 && (len == row || len > SHORT) {
            return of(runs, row);
        }
        if stride > 1 {
            take(results, runs, [len, row], stride, lanes);
            return of(results, len);
        }
        let used = runs.chunks_exact(of_plane * row).flat_map(|x| x.chunks_exact(row).take(count));
        results.chunks_exact_mut(len).zip(used).for_each(|(y, x)| y.copy_from_slice(&x[..len]));
        let counts = [all / of_plane, count];
        Results { items: results, len, counts, steps: [count * len, len] }
    }
}

/// The items that a task needs.
pub(super) fn scratch(sweep: &Sweep) -> usize {
    let results = sweep.together().saturating_mul(sweep.windows).saturating_mul(sweep.lanes);
    spare(sweep).saturating_mul(2).saturating_add(results)
}

/// The items of each spare list.
fn spare(sweep: &Sweep) -> usize {
    let rows = sweep.together().saturating_mul(sweep.span).saturating_mul(sweep.lanes);
    if each_by_itself(&sweep.lines[AXES - 1], sweep) { 0 } else { rows }
}

/// Whether each window is computed by itself.
fn each_by_itself(width: &Line, sweep: &Sweep) -> bool {
    let few = width.kernel() <= FEW && sweep.lanes == 1 && width.output() > 1;
    let all = sweep.slides[1] || width.kernel() == 1 || few;
    let neighbours = width.stride() == 1 && width.output() > 1;
    width.is_uneven() || !(all || neighbours)
}

#[inline(always)]
fn each<I: Item>(width: &Line, lanes: usize, part: &Part, x: &[I], y: &mut [I]) {
    let (kernel, dilation) = (width.kernel(), width.dilation());
    if !width.is_uneven() && lanes > 1 {
        return join_windows(y, x, lanes, [width.stride(), kernel, dilation]);
    }
    for (i, y) in y.chunks_exact_mut(lanes).enumerate() {
        let (first, count) = match width.is_uneven() {
            true => {
                let taps = width.taps(part.windows[0] + i);
                (taps.first - part.inside[0], taps.count)
            }
            false => (i * width.stride(), kernel),
        };
        let x = &x[first * lanes..];
        match (lanes, dilation) {
            (1, 1) => y[0] = reduce(&x[..count]),
            (1, _) => {
                let taps = x.iter().step_by(dilation).take(count);
                y[0] = taps.fold(I::EMPTY, |all, item| all.join(*item));
            }
            _ => join_windows(y, x, lanes, [1, count, dilation]),
        }
    }
}

/// `x[i] ⋅ x[i + step] ⋅ …`, an item for each tap of the line; the last ones of the list have fewer.
pub(super) fn runs<'a, I: Item>(
    line: &Line,
    step: usize,
    slides: bool,
    x: &'a [I],
    [a, b]: [&'a mut [I]; 2],
) -> &'a [I] {
    match (line.kernel(), slides) {
        (1, _) => x,
        (kernel, true) => double(kernel, step, x, a, b),
        (kernel, false) => shift(kernel, step, x, a),
    }
}

/// [`runs`] tap by tap.
fn shift<'a, I: Item>(kernel: usize, step: usize, x: &'a [I], y: &'a mut [I]) -> &'a [I] {
    let y = &mut y[..x.len()];
    match kernel {
        2 => join_shifted(y, x, step),
        _ => join_three(y, x, &x[step..], &x[2 * step..]),
    }
    for tap in 3..kernel {
        join(y, &x[tap * step..]);
    }
    y
}

/// [`runs`] with partial results of `1, 2, …` items, whose number doubles.
fn double<'a, I: Item>(
    kernel: usize,
    step: usize,
    x: &'a [I],
    a: &'a mut [I],
    b: &'a mut [I],
) -> &'a [I] {
    let (mut runs, mut next) = (&mut a[..x.len()], &mut b[..x.len()]);
    let mut length = 1;
    if I::IS_IDEMPOTENT {
        join_shifted(runs, x, step);
        length = 2;
        while length < kernel {
            let by = length.min(kernel - length);
            join_shifted(next, runs, by * step);
            core::mem::swap(&mut runs, &mut next);
            length += by;
        }
        return runs;
    }
    // The binary digits of the kernel behind its first one.
    for digit in (0..kernel.ilog2()).rev() {
        let from = if length == 1 { x } else { &*runs };
        let second = &from[length * step..];
        length *= 2;
        if kernel >> digit & 1 == 1 {
            join_three(next, from, second, &x[length * step..]);
            length += 1;
        } else {
            join_both(next, from, second);
        }
        core::mem::swap(&mut runs, &mut next);
    }
    runs
}
