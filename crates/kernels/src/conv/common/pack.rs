//! Repacked filters, in the order group, tap, term, column. The columns of a group are contiguous and padded to
//! whole vectors.
//!
//! ```text
//! packed[g, t, k, n] = w[n of g, t, k of g], 0 where there is no column n
//! ```
//!
//! A processor's vectors run along the columns, whatever the original filter layout. For units that compute
//! neighbouring groups, the columns of several groups are contiguous. Where lanes are rows, a column is
//! repeated for each lane.

use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Convolution, DType};

use super::{Arguments, WeightSteps, buffer, columns, inner, weight_steps};
use crate::conv::problem::{Pass, Request, Task};
use crate::cube::{accumulator, elem, grid, numbers, unit_position};

/// A layout of repacked filters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    groups: usize,
    /// The number of neighbouring groups whose columns are contiguous.
    beside: usize,
    taps: [usize; AXES],
    inner: usize,
    columns: usize,
    lanes: usize,
    /// The layout of the original weights.
    source: WeightSteps,
}

impl Packing {
    /// Each group separately, its columns padded to whole vectors.
    pub(crate) fn new(conv: &Convolution, pass: Pass, lanes: usize) -> Self {
        Self {
            groups: conv.groups(),
            beside: 1,
            taps: conv.filter().kernel().three(1),
            inner: inner(conv, pass),
            columns: columns(conv, pass),
            lanes,
            source: weight_steps(conv, pass),
        }
    }

    /// The columns of `beside` neighbouring groups together; `beside` must divide the number of groups.
    pub(crate) fn beside(conv: &Convolution, pass: Pass, beside: usize) -> Self {
        Self { groups: conv.groups() / beside, beside, ..Self::new(conv, pass, 1) }
    }

    /// Groups of one column each, repeated `times` times.
    pub(crate) fn repeated(conv: &Convolution, pass: Pass, times: usize) -> Self {
        let source = WeightSteps { column: 0, ..weight_steps(conv, pass) };
        Self { columns: times, source, ..Self::new(conv, pass, 1) }
    }

    /// The number of contiguous columns, including padding.
    fn width(&self) -> usize {
        (self.beside * self.columns).next_multiple_of(self.lanes)
    }

    /// The elements of the packed filters.
    pub(crate) fn elements(&self) -> usize {
        self.groups * self.taps.iter().product::<usize>() * self.inner * self.width()
    }

    /// The bytes of the packed filters, whose type is the accumulator type of `dtype`.
    pub(crate) fn bytes(&self, dtype: DType) -> usize {
        self.elements() * accumulator(dtype).size()
    }

    /// The layout of the packed weights.
    pub(crate) fn steps(&self) -> WeightSteps {
        let tap = self.inner * self.width();
        let [depth, height, width] = self.taps;
        let kernel = [height * width * tap, width * tap, tap];
        WeightSteps { inner: self.width(), column: 1, group: depth * kernel[0], kernel }
    }

    /// Packs the filters and converts them to the accumulator type.
    pub(crate) fn pack(&self, arguments: &Arguments<'_>, w: &Handle) -> Handle {
        let Arguments { client, task, units, contiguous, .. } = *arguments;
        let Task { conv, request: Request { dtype, .. }, .. } = task;
        let elements = self.elements();
        let packed = client.empty(self.bytes(dtype));
        let [_, height, width] = self.taps;
        let (cubes, units) = grid(client, units, elements);
        // SAFETY: a unit past the last element terminates; padding reads the weight of column 0.
        unsafe {
            pack_weights::launch_unchecked(
                client,
                cubes,
                units,
                buffer(w, conv.filter().elements()),
                buffer(&packed, elements),
                numbers! { PackArgsLaunch {
                    elements, columns: self.beside * self.columns, columns_per_group: self.columns,
                    beside: self.beside, columns_whole: self.width(), inner: self.inner,
                    taps: self.taps.iter().product::<usize>(), width, height,
                    inner_step: self.source.inner, column_step: self.source.column,
                    group_step: self.source.group, depth_step: self.source.kernel[0],
                    height_step: self.source.kernel[1], width_step: self.source.kernel[2],
                } },
                contiguous,
                elem(dtype),
                elem(accumulator(dtype)),
            )
        };
        packed
    }
}

/// The parameters of a packing, as run-time values.
#[derive(CubeType, CubeLaunch)]
struct PackArgs {
    elements: u32,
    /// The contiguous columns, those that belong to one group, the number of groups they come from, and the
    /// columns including padding.
    columns: u32,
    columns_per_group: FastDivmod<u32>,
    beside: u32,
    columns_whole: FastDivmod<u32>,
    /// The number of terms per tap, of taps, and of taps along the width and the height.
    inner: FastDivmod<u32>,
    taps: FastDivmod<u32>,
    width: FastDivmod<u32>,
    height: FastDivmod<u32>,
    /// The memory steps of the original weights.
    inner_step: u32,
    column_step: u32,
    group_step: u32,
    depth_step: u32,
    height_step: u32,
    width_step: u32,
}

#[cube(launch_unchecked)]
fn pack_weights<S: Float, A: Float>(
    w: &[S],
    packed: &mut [A],
    args: &PackArgs,
    #[comptime] contiguous: bool,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let i = unit_position(contiguous);
    if i >= args.elements {
        terminate!();
    }
    let (rest, column) = args.columns_whole.div_mod(i);
    let (rest, term) = args.inner.div_mod(rest);
    let (group, tap) = args.taps.div_mod(rest);
    let (tap, tw) = args.width.div_mod(tap);
    let (td, th) = args.height.div_mod(tap);
    let there = column < args.columns;
    let (further, column) = args.columns_per_group.div_mod(select(there, column, 0u32));
    let at = column * args.column_step
        + term * args.inner_step
        + (group * args.beside + further) * args.group_step
        + td * args.depth_step
        + th * args.height_step
        + tw * args.width_step;
    packed[i as usize] = select(there, A::cast_from(w[at as usize]), A::from_int(0));
}
