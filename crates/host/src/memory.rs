//! An upper bound on the memory that a convolution needs, known before it is computed, because Rust aborts the program
//! when an allocation fails.

use gemm_common::cache::CACHE_INFO;
use windowpane_geometry::{Convolution, Pass};
use windowpane_reference::memory;

use crate::dense::Cut;
use crate::depthwise::{FilterPlan, Plan, is_depthwise};
use crate::element::Element;
use crate::view::{Views, combinations, views};
use crate::{bias, simpler, weight};

/// The bytes that rayon and small lists need for any problem.
const ROOM: usize = 1 << 18;

/// The most bytes that a convolution, or one of its gradients, allocates at any time, including its result but not its
/// arguments; `usize::MAX` if they cannot be counted. The bound grows with the number of cores.
///
/// ```
/// use windowpane_geometry::{Convolution, Extents, Filter, FilterLayout, Layout, Pass, Shape, Window};
///
/// let image = Shape::new(1, 3, Extents::from([500, 500]))?;
/// let filter = Filter::new(8, 3, Extents::from([3, 3]))?;
/// let (window, layout) = (Window::new([3, 3]).padding([1, 1]), Layout::ChannelsLast);
/// let conv = Convolution::new(image, filter, &window, 1, layout, FilterLayout::Fhwc)?;
/// assert!(windowpane_host::bytes::<f32>(Pass::Forward, &conv) >= 500 * 500 * 8 * 4);
/// # Ok::<(), windowpane_geometry::Error>(())
/// ```
pub fn bytes<T: Element>(pass: Pass, conv: &Convolution) -> usize {
    let conv = &simpler(conv);
    let of_sums = |sums: usize| sums.saturating_mul(size_of::<T::Sum>());
    if pass == Pass::Bias {
        let filters = conv.filter().count();
        let sums = filters.saturating_mul(8 * bias::parts(conv) + size_of::<T>());
        return sums.saturating_add(ROOM);
    }
    let shape = if pass == Pass::Data { conv.input() } else { conv.output() };
    let elements = if pass == Pass::Weight { conv.filter().elements() } else { shape.elements() };
    let taps: usize = conv.grid().axes().iter().map(|axis| axis.kernel()).sum();
    // The lists of taps and views, while they grow, and the places of all taps.
    let lists = taps.saturating_mul(512).saturating_add(conv.filter().taps().saturating_mul(16));
    // Not to be listed themselves if there is no memory for them.
    if lists > memory::convolution::<T>(pass, conv).saturating_add(1 << 30) {
        return usize::MAX;
    }
    let all = views(conv, pass);
    let most = combinations(&all).map(|views| match pass {
        Pass::Weight => of_sums(weight_sums::<T>(conv, &views)),
        _ => of_sums(gather_sums::<T>(conv, pass, &views)),
    });
    let most = most.max().unwrap_or(0);
    let packing = CACHE_INFO[1].cache_bytes.saturating_mul(rayon::current_num_threads());
    let result = elements.saturating_mul(size_of::<T>());
    let own = [result, lists, most, packing, ROOM];
    let own = own.into_iter().fold(0, usize::saturating_add);
    // Where numbers are not finite, the reference runs.
    own.max(memory::convolution::<T>(pass, conv))
}

/// Tasks that run at the same time, each with this much.
fn at_once(tasks: usize, each: usize) -> usize {
    tasks.min(rayon::current_num_threads()).max(1).saturating_mul(each)
}

/// What a matrix product packs: both factors, with room for whole tiles.
fn packed([m, n, k]: [usize; 3]) -> usize {
    const TILES: usize = 2048;
    (m.max(TILES) + n.max(TILES)) * k
}

/// The sums of a view of a forward pass or a data gradient.
fn gather_sums<T: Element>(conv: &Convolution, pass: Pass, views: &Views<'_>) -> usize {
    let groups = conv.groups();
    let (channels, filters) = (conv.filter().channels(), conv.filter().count() / groups);
    let (inner, outer, shape) = match pass {
        Pass::Data => (filters, channels, conv.input()),
        _ => (channels, filters, conv.output()),
    };
    if is_depthwise(conv)
        && let Some(plan) = Plan::new::<T::Sum>(views, conv.layout(), shape.channels())
    {
        return plan.weights().saturating_add(at_once(usize::MAX, plan.scratch()));
    }
    let columns = views.taps() * inner;
    let cut = Cut::new(views, shape.batch(), [columns, outer, groups], conv.layout());
    let tasks = cut.blocks.count() * cut.chunks * groups;
    let scratch = cut.scratch().iter().sum::<usize>();
    let each = scratch + packed([cut.blocks.rows, cut.filters, cut.columns]);
    at_once(tasks, each).saturating_add(columns * outer * groups)
}

/// The sums of a weight gradient.
fn weight_sums<T: Element>(conv: &Convolution, views: &Views<'_>) -> usize {
    if is_depthwise(conv)
        && let Some(plan) = FilterPlan::new::<T::Sum>(views, conv.layout())
    {
        return at_once(usize::MAX, plan.scratch());
    }
    let cut = weight::Cut::new(conv, views);
    let scratch = cut.scratch().iter().sum::<usize>();
    let each = scratch + packed(cut.product()) + conv.filter().count();
    at_once(usize::MAX, each).saturating_add(cut.parts.saturating_mul(cut.sums))
}
