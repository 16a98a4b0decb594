//! Poolings and convolutions on the processor: the device `host` of windowpane.
//!
//! [`forward()`], [`data_gradient`], [`weight_gradient`] and [`bias_gradient`] compute what the functions of the same
//! name in `windowpane-reference` define, on all cores, in vectors as wide as the processor has:
//!
//! * depthwise convolutions in vectors of channels or positions (`depthwise.rs`);
//! * all others as matrix products, of what the taps of a block of positions read with the weights (`columns.rs`,
//!   `dense.rs`, `weight.rs`). The products are those of the crate `gemm`.
//!
//! The module [`pool`] has maxima, minima, averages, sums and norms of windows and their gradients. [`rank()`] computes
//! medians and other ranks, and [`mode()`] the most frequent numbers, for blocks of neighbouring windows at once
//! (`windows.rs`).
//!
//! [`pad()`] writes a tensor with its padding.
//!
//! [`quantized()`] computes exact sums of products of `i8` by the same matrix products.
//!
//! Sums of `f64` are in `f64`, all others in `f32`; the sum is rounded once. Results do not depend on the number of
//! threads. The zeros of the padding are multiplied, so where the other factor is infinite or NaN the reference runs.
//!
//! ```
//! use windowpane_geometry::{Convolution, Extents, Filter, FilterLayout, Layout, Shape, Window};
//! use windowpane_reference::conv::Epilogue;
//!
//! let image = Shape::new(1, 1, Extents::from([4]))?;
//! let filter = Filter::new(1, 1, Extents::from([3]))?;
//! let (window, layout) = (Window::new([3]).padding([1]), Layout::ChannelsLast);
//! let conv = Convolution::new(image, filter, &window, 1, layout, FilterLayout::Fhwc)?;
//! let y = windowpane_host::forward(&conv, &[1.0f32, 2.0, 3.0, 4.0], &[1.0, 1.0, 1.0], Epilogue::NONE);
//! assert_eq!(y, [3.0, 6.0, 9.0, 7.0]);
//! # Ok::<(), windowpane_geometry::Error>(())
//! ```
//!
//! The caller must pass slices with the lengths that the geometry gives; otherwise the functions panic with a message
//! that contains the numbers.

mod bias;
mod blocks;
mod columns;
mod dense;
mod depthwise;
mod element;
mod finish;
mod memory;
mod mode;
mod pad;
mod patch;
pub mod pool;
mod quantized;
mod rank;
mod shared;
mod sum;
mod view;
mod weight;
mod windows;

pub use depthwise::is_depthwise;
pub use element::Element;
pub use memory::bytes;
pub use mode::{mode, mode_bytes};
pub use pad::pad;
pub use quantized::{quantized, quantized_bytes};
pub use rank::{Ranked, rank, rank_bytes};

use windowpane_geometry::{Convolution, Layout, Pass};
use windowpane_reference::conv::{self as reference, Epilogue};
use windowpane_reference::parallel;

use dense::{Gather, WeightSteps};
use shared::{Shared, written};
use sum::have_products;
use view::{View, combinations, views};

/// The convolution of `x` with the filters `w`, followed by the epilogue.
pub fn forward<T: Element>(
    conv: &Convolution,
    x: &[T],
    w: &[T],
    epilogue: Epilogue<'_, T>,
) -> Vec<T> {
    let conv = &simpler(conv);
    check_length("the input", x.len(), conv.input().elements());
    check_length("the filter", w.len(), conv.filter().elements());
    if let Some(bias) = epilogue.bias {
        check_length("the bias", bias.len(), conv.filter().count());
    }
    if let Some(residual) = epilogue.residual {
        check_length("the residual", residual.len(), conv.output().elements());
    }
    let lists = views(conv, Pass::Forward);
    if !is_finite(w) || !pays(conv, Pass::Forward, &lists) {
        return reference::forward(conv, x, w, epilogue);
    }
    gather(&of_pass(conv, Pass::Forward, x, w, epilogue), &lists)
}

/// The data gradient, with respect to the input.
pub fn data_gradient<T: Element>(conv: &Convolution, dy: &[T], w: &[T]) -> Vec<T> {
    let conv = &simpler(conv);
    check_length("the output gradient", dy.len(), conv.output().elements());
    check_length("the filter", w.len(), conv.filter().elements());
    let lists = views(conv, Pass::Data);
    if !is_finite(w) || !pays(conv, Pass::Data, &lists) {
        return reference::data_gradient(conv, dy, w);
    }
    gather(&of_pass(conv, Pass::Data, dy, w, Epilogue::NONE), &lists)
}

/// The weight gradient, with respect to the filters.
pub fn weight_gradient<T: Element>(conv: &Convolution, dy: &[T], x: &[T]) -> Vec<T> {
    let conv = &simpler(conv);
    check_length("the output gradient", dy.len(), conv.output().elements());
    check_length("the input", x.len(), conv.input().elements());
    if !is_finite(dy) || !pays(conv, Pass::Weight, &views(conv, Pass::Weight)) {
        return reference::weight_gradient(conv, dy, x);
    }
    depthwise::is_depthwise(conv)
        .then(|| depthwise::weight_gradient(conv, dy, x))
        .flatten()
        .unwrap_or_else(|| weight::weight_gradient(conv, dy, x))
}

/// The bias gradient: for each filter the sum of `dy`.
pub fn bias_gradient<T: Element>(conv: &Convolution, dy: &[T]) -> Vec<T> {
    check_length("the output gradient", dy.len(), conv.output().elements());
    bias::gradient(conv, dy)
}

/// The same convolution, in the layout that is computed faster if both layouts are the same in memory.
fn simpler(conv: &Convolution) -> Convolution {
    match (conv.input().channels(), conv.filter().count()) {
        (1, 1) => conv.with_layouts(Layout::ChannelsFirst, conv.filter_layout()),
        _ => *conv,
    }
}

/// The sum that a forward pass or a data gradient is.
fn of_pass<'a, T: Element>(
    conv: &Convolution,
    pass: Pass,
    source: &'a [T],
    weights: &'a [T],
    epilogue: Epilogue<'a, T>,
) -> Gather<'a, T> {
    let steps = conv.filter().strides(conv.filter_layout());
    let of_group = conv.filter().count() / conv.groups();
    let (source_shape, result_shape, weight) = match pass {
        Pass::Data => (conv.output(), conv.input(), WeightSteps::data(steps, of_group)),
        _ => (conv.input(), conv.output(), WeightSteps::forward(steps, of_group)),
    };
    let (layout, groups) = (conv.layout(), conv.groups());
    Gather { source, weights, source_shape, result_shape, layout, groups, weight, epilogue }
}

fn gather<T: Element>(sum: &Gather<'_, T>, lists: &[Vec<View>; 3]) -> Vec<T> {
    let shape = sum.result_shape;
    let is_depthwise = sum.inner() == 1 && sum.outer() == 1;
    let compute = |result: Shared<'_, T>| {
        for views in combinations(lists) {
            let plan = || depthwise::Plan::new::<T::Sum>(&views, sum.layout, shape.channels());
            // SAFETY: views of a result are disjoint, and one is computed after the other.
            unsafe {
                match is_depthwise.then(plan).flatten() {
                    Some(plan) => depthwise::gather(&plan, sum, &views, result),
                    None => dense::gather(sum, &views, result),
                }
            }
        }
    };
    let positions: usize = combinations(lists).map(|views| views.plane()).sum();
    if positions == shape.plane() {
        // SAFETY: the views are all positions of the result.
        return unsafe { written(shape.elements(), compute) };
    }
    let mut result = vec![T::ZERO; shape.elements()];
    compute(Shared::of(&mut result));
    result
}

/// Whether matrices can be used and pay off: a strided gradient may have so many small ones that preparing them takes longer than the
/// plain loops.
fn pays(conv: &Convolution, pass: Pass, lists: &[Vec<View>; 3]) -> bool {
    let views = lists.iter().fold(1, |product: usize, list| product.saturating_mul(list.len()));
    let filter = conv.filter();
    let products =
        conv.output().elements().saturating_mul(filter.taps().saturating_mul(filter.channels()));
    let few = pass != Pass::Data || views <= 256 || products / views >= 4096;
    few && have_products()
}

/// Whether no element is infinite or NaN.
fn is_finite<T: Element>(elements: &[T]) -> bool {
    let all = |elements: &[T]| elements.iter().fold(true, |all, x| all & x.is_finite());
    match elements.len() {
        0..=dense::SMALL => all(elements),
        len => {
            const CHUNK: usize = 1 << 14;
            let chunk = |i: usize| &elements[i * CHUNK..len.min((i + 1) * CHUNK)];
            parallel::find(len.div_ceil(CHUNK), |i| !all(chunk(i))).is_none()
        }
    }
}

#[track_caller]
fn check_length(what: &str, found: usize, expected: usize) {
    assert_eq!(found, expected, "{what} has {found} elements but its shape has {expected}");
}
