//! Repacked filters: group, tap, term, column, with the columns of a group contiguous and padded to whole
//! vectors.
//!
//! ```text
//! packed[g, t, k, n] = w[n of g, t, k of g], 0 where there is no such column
//! ```
//!
//! A processor's vectors run along the columns, whatever layout the filters came in. For units that compute
//! neighbouring groups the columns of several groups are contiguous; where lanes are rows, one column is
//! repeated for each lane.

use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Convolution, DType};

use crate::conv::common::arguments::Arguments;
use crate::conv::common::buffer::buffer;
use crate::conv::common::gather::{WeightSteps, columns, inner, weight_steps};
use crate::conv::problem::{Pass, Request};
use crate::cube::convert::{accumulator, elem};
use crate::cube::unit::{grid, unit_position};

/// A layout of repacked filters.
#[derive(Clone, Copy, Debug)]
pub(in crate::conv) struct Packing {
    groups: usize,
    /// The groups whose columns lie side by side.
    beside: usize,
    taps: [usize; AXES],
    inner: usize,
    columns: usize,
    lanes: usize,
    /// Where the weights lie as they were given.
    source: WeightSteps,
}

impl Packing {
    /// The columns of each group for themselves, in whole vectors.
    pub(in crate::conv) fn new(conv: &Convolution, pass: Pass, lanes: usize) -> Self {
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

    /// The columns of `beside` groups together, a number that divides the groups.
    pub(in crate::conv) fn beside(conv: &Convolution, pass: Pass, beside: usize) -> Self {
        Self { groups: conv.groups() / beside, beside, ..Self::new(conv, pass, 1) }
    }

    /// Groups of one column each, which is repeated.
    pub(in crate::conv) fn repeated(conv: &Convolution, pass: Pass, times: usize) -> Self {
        let source = WeightSteps { column: 0, ..weight_steps(conv, pass) };
        Self { columns: times, source, ..Self::new(conv, pass, 1) }
    }

    /// The columns, and zeros, that lie side by side.
    fn width(&self) -> usize {
        (self.beside * self.columns).next_multiple_of(self.lanes)
    }

    /// The elements of packed filters.
    pub(in crate::conv) fn elements(&self) -> usize {
        self.groups * self.taps.iter().product::<usize>() * self.inner * self.width()
    }

    /// The bytes of packed filters, which have the type that sums of such elements have.
    pub(in crate::conv) fn bytes(&self, dtype: DType) -> usize {
        self.elements() * accumulator(dtype).size()
    }

    /// Where packed weights lie.
    pub(in crate::conv) fn steps(&self) -> WeightSteps {
        let tap = self.inner * self.width();
        let [depth, height, width] = self.taps;
        let kernel = [height * width * tap, width * tap, tap];
        WeightSteps { inner: self.width(), column: 1, group: depth * kernel[0], kernel }
    }

    /// Packs filters, in the type that sums have.
    pub(in crate::conv) fn pack(&self, arguments: &Arguments<'_>, w: &Handle) -> Handle {
        let Arguments { client, conv, units, runs, request: Request { dtype, .. }, .. } =
            *arguments;
        let elements = self.elements();
        let packed = client.empty(self.bytes(dtype));
        let [_, height, width] = self.taps;
        let (cubes, units) = grid(client, units, elements);
        // SAFETY: a unit past the last element ends; a weight is read where there is one.
        unsafe {
            pack_weights::launch_unchecked(
                client,
                cubes,
                units,
                buffer(w, conv.filter().elements()),
                buffer(&packed, elements),
                PackArgsLaunch::new(
                    elements as u32,
                    (self.beside * self.columns) as u32,
                    self.columns as u32,
                    self.beside as u32,
                    self.width() as u32,
                    self.inner as u32,
                    self.taps.iter().product::<usize>() as u32,
                    width as u32,
                    height as u32,
                    self.source.inner as u32,
                    self.source.column as u32,
                    self.source.group as u32,
                    self.source.kernel[0] as u32,
                    self.source.kernel[1] as u32,
                    self.source.kernel[2] as u32,
                ),
                runs,
                elem(dtype),
                elem(accumulator(dtype)),
            )
        };
        packed
    }
}

/// A packing, which may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct PackArgs {
    elements: u32,
    /// The columns side by side, those of them that are one group's, the groups that they are of, and the
    /// columns with zeros.
    columns: u32,
    columns_a_group: FastDivmod<u32>,
    beside: u32,
    columns_whole: FastDivmod<u32>,
    /// The terms of a tap, the taps, and those along the width and the height.
    inner: FastDivmod<u32>,
    taps: FastDivmod<u32>,
    width: FastDivmod<u32>,
    height: FastDivmod<u32>,
    /// The steps in memory of what was given.
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
    #[comptime] runs: bool,
    #[define(S)] _stored: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    let i = unit_position(runs);
    if i >= args.elements {
        terminate!();
    }
    let (rest, column) = args.columns_whole.div_mod(i);
    let (rest, term) = args.inner.div_mod(rest);
    let (group, tap) = args.taps.div_mod(rest);
    let (tap, tw) = args.width.div_mod(tap);
    let (td, th) = args.height.div_mod(tap);
    let there = column < args.columns;
    let (further, column) = args.columns_a_group.div_mod(select(there, column, 0u32));
    let at = column * args.column_step
        + term * args.inner_step
        + (group * args.beside + further) * args.group_step
        + td * args.depth_step
        + th * args.height_step
        + tw * args.width_step;
    packed[i as usize] = select(there, A::cast_from(w[at as usize]), A::from_int(0));
}
