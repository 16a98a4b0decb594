//! Computes a problem in another arrangement than its tensors have: rearranges them before and after the kernel, in the
//! same call.
//!
//! * In another layout: a kernel that only reads channels-last tensors can then also compute channels-first ones. Where the
//!   sums are long, reading and writing the tensors once more takes little time compared with the time that the kernel
//!   saves.
//! * With the channels of filters last: where the taps of a filter are contiguous, its channels are loaded one by one.
//! * Sampled: windows of one tap skip pixels if they have a stride. Without the skipped pixels, the planes of
//!   channels-first samples are matrices, and other tensors are smaller where they are transposed.
//! * In blocks of pixels (space to depth): where pixels have few channels and windows have a stride, the pixels that a window
//!   moves by are one pixel of many channels. A data gradient is then one product with many columns, and not one with few
//!   for each phase of the stride; an embedding of patches is the product of two matrices.

use core::fmt;

use cubecl::server::Handle;
use windowpane_geometry::{
    AXES, Axis, Change, Convolution, DType, FilterLayout, LIMIT, Layout, Shape,
};

use super::problem::Pass;
use super::space_to_depth::Blocks;
use crate::cube::{accumulator, transpose};
use crate::device::{Capabilities, Target};
use crate::strided;

/// The arrangement in which a kernel computes a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrangement {
    /// The layout of the tensors. Those in another layout are transposed in the same call.
    pub layout: Layout,
    /// What else is done with them in the same call.
    pub change: Option<Change>,
}

/// Prints `channels-last`, or with another word `channels-first,sampled` and `channels-last,filters-last`.
impl fmt::Display for Arrangement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layout, change } = self;
        write!(f, "{layout}")?;
        change.map_or(Ok(()), |change| write!(f, ",{change}"))
    }
}

impl Arrangement {
    /// The arrangement that the tensors have.
    pub(super) fn own(conv: &Convolution) -> Self {
        Self { layout: conv.layout(), change: None }
    }

    /// The arrangements that a kernel may compute a problem in: the layout of the tensors first, then channels last, each
    /// as it is and with every change.
    pub(super) fn all(conv: &Convolution) -> impl Iterator<Item = Self> + use<> {
        let own = conv.layout();
        let layouts =
            [own].into_iter().chain((own != Layout::ChannelsLast).then_some(Layout::ChannelsLast));
        let applies = |change: &Change| match change {
            Change::Sampled => conv.sampled().is_some(),
            Change::FiltersLast => has_contiguous_taps(conv),
            Change::SpaceToDepth => blocked(conv).is_some(),
        };
        let changes = Change::ALL.into_iter().filter(applies).map(Some);
        let changes: Vec<_> = [None].into_iter().chain(changes).collect();
        layouts.flat_map(move |layout| {
            changes.clone().into_iter().map(move |change| Self { layout, change })
        })
    }

    /// The problem in this arrangement; none if it does not skip pixels that this arrangement removes, or has no filters to
    /// read that this arrangement transposes, or if blocks of pixels would give other sums or would not pay.
    ///
    /// A weight gradient whose taps are contiguous gets contiguous channels instead, because it is computed from
    /// channels-last pixels. Filters that are read keep their layout unless they are changed.
    ///
    /// Pixels of windows that lie side by side are merged, so that rows of several taps are one tap of more channels: fewer
    /// loads, and fuller ones. Pixels of few channels stay, because kernels read whole lines of these.
    pub(super) fn of(self, conv: &Convolution, pass: Pass) -> Option<Convolution> {
        let reads_filters = matches!(pass, Pass::Forward | Pass::Data);
        let (conv, filters_last) = match self.change {
            None => (*conv, false),
            Some(Change::Sampled) => (conv.sampled()?, false),
            Some(Change::FiltersLast) => {
                (reads_filters && has_contiguous_taps(conv)).then_some((*conv, true))?
            }
            Some(Change::SpaceToDepth) => {
                // The taps that complete a block are zeros, and what a window reads there may be infinite.
                let few = conv.input().channels() <= FEW_CHANNELS && pass != Pass::Forward;
                let stays = self.layout == Layout::ChannelsLast && pass != Pass::Bias;
                let stays = stays && (few || has_whole_blocks(conv));
                return blocked(conv).filter(|_| stays);
            }
        };
        let filter_layout = match (pass, self.layout, conv.filter_layout()) {
            _ if filters_last => FilterLayout::Fhwc,
            _ if self.layout == conv.layout() => conv.filter_layout(),
            (Pass::Weight, Layout::ChannelsLast, FilterLayout::Fchw) => FilterLayout::Fhwc,
            (_, _, own) => own,
        };
        let conv = conv.with_layouts(self.layout, filter_layout);
        Some(match conv.input().channels() >= CHANNELS_WORTH_MERGING {
            true => conv.merged().unwrap_or(conv),
            false => conv,
        })
    }
}

/// The fewest channels of pixels that are merged: with those of two, they fill the widest load of a GPU in any type.
const CHANNELS_WORTH_MERGING: usize = 8;

/// The channels of a block are a multiple of this number, which fills the widest load of a GPU in any type.
const BLOCK_CHANNELS: usize = 8;

/// The most channels of pixels that become blocks although filters have to be completed for that. With more, pixels alone fill
/// half of the narrowest block of a matrix product, and no such layer was seen to gain.
const FEW_CHANNELS: usize = 16;

/// The fewest channels of channels-first pixels that are transposed before they become blocks, in which they lie together;
/// fewer are read one by one.
const CHANNELS_WORTH_TURNING: usize = 8;

/// The problem over blocks of pixels, if it has any.
fn blocked(conv: &Convolution) -> Option<Convolution> {
    // Positions, and those within a row with what is before it, are divided in 31 bits.
    let width = &conv.grid().axes()[AXES - 1];
    let row = (width.before() + width.input()).saturating_mul(conv.input().channels());
    let fits = |over: &Convolution| {
        [over.input().elements(), over.filter().elements(), row].iter().all(|of| *of <= LIMIT)
    };
    conv.space_to_depth(BLOCK_CHANNELS).filter(fits)
}

/// Whether windows consist of whole blocks.
fn has_whole_blocks(conv: &Convolution) -> bool {
    conv.grid().axes().iter().all(|axis: &Axis| axis.kernel().is_multiple_of(axis.stride()))
}

/// Matrices to transpose, which follow one another in memory: their number, their rows and their columns.
type Matrices = [usize; 3];

/// One change of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Sample(Sampling),
    Block(Box<Blocks>),
    Transpose(Matrices),
}

/// The changes that each tensor of a pass goes through before a kernel reads it, and back after a kernel wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rearrangement {
    input: Vec<Step>,
    output: Vec<Step>,
    filters: Vec<Step>,
    pass: Pass,
    /// Whether a data gradient over blocks may have NaN where it should have none.
    recomputes: bool,
}

/// The tensors of a launch in the kernel's arrangement.
pub(super) struct Rearranged {
    pub(super) factors: [Handle; 2],
    pub(super) residual: Option<Handle>,
    pub(super) out: Handle,
}

impl Rearrangement {
    /// What leads from the arrangement of a problem's tensors to that of a kernel, which the problem has.
    pub(super) fn new(conv: &Convolution, arrangement: Arrangement, pass: Pass) -> Self {
        let mut own =
            Self { input: vec![], output: vec![], filters: vec![], pass, recomputes: false };
        let Some(arranged) = arrangement.of(conv, pass) else { return own };
        let turned = arrangement.layout != conv.layout();
        let transposed =
            |shape: Shape| of_shape(&shape, conv.layout()).filter(|_| turned).map(Step::Transpose);
        own.output.extend(transposed(conv.output()));
        if arrangement.change == Some(Change::SpaceToDepth) {
            let is_turned = turned && conv.input().channels() >= CHANNELS_WORTH_TURNING;
            let layout = if is_turned { arrangement.layout } else { conv.layout() };
            own.input.extend(transposed(conv.input()).filter(|_| is_turned));
            own.input.push(Step::Block(Box::new(Blocks::of_input(conv, &arranged, layout))));
            let (layout, counts) = match conv.filter_layout() {
                FilterLayout::Fchw => (Layout::ChannelsFirst, None),
                FilterLayout::Fhwc => (Layout::ChannelsLast, None),
                FilterLayout::Hwcf => (Layout::ChannelsLast, of_counts(conv)),
            };
            own.filters.extend(counts.map(Step::Transpose));
            own.filters.push(Step::Block(Box::new(Blocks::of_filters(conv, &arranged, layout))));
            own.recomputes = pass == Pass::Data && !has_whole_blocks(conv);
            return own;
        }
        let sampling = conv.sampled().filter(|_| arrangement.change == Some(Change::Sampled));
        own.input.extend(sampling.map(|_| Step::Sample(Sampling::new(conv))));
        own.input.extend(transposed(sampling.as_ref().unwrap_or(conv).input()));
        let filters = of_filters(conv, arranged.filter_layout());
        own.filters.extend(filters.map(Step::Transpose));
        own
    }

    /// The changes of the two operands of a pass, and of its result.
    fn changes(&self) -> ([&[Step]; 2], &[Step]) {
        let Self { input, output, filters, .. } = self;
        match self.pass {
            Pass::Data => ([output, filters], input),
            Pass::Weight => ([input, output], filters),
            Pass::Bias => ([output, &[]], &[]),
            Pass::Forward => ([input, filters], output),
        }
    }

    /// Each change, with the type of its tensor and whether it is read. A residual is not counted, which a plan does not
    /// know about. Integers have results of other types, of which the largest is counted.
    fn each(&self, dtype: DType) -> impl Iterator<Item = (&Step, DType, bool)> {
        let ([first, second], out) = self.changes();
        let result = if dtype.is_float() { dtype } else { accumulator(dtype) };
        let read = first.iter().chain(second).map(move |step| (step, dtype, true));
        read.chain(out.iter().map(move |step| (step, result, false)))
    }

    /// The bytes of each rearranged tensor.
    fn sizes(&self, dtype: DType) -> impl Iterator<Item = usize> {
        let each = self.each(dtype);
        each.map(|(step, dtype, _)| step.elements().saturating_mul(dtype.size()))
    }

    /// The bytes of the rearranged tensors.
    pub(super) fn bytes(&self, dtype: DType) -> usize {
        self.sizes(dtype).fold(0, usize::saturating_add)
    }

    /// The bytes of the largest of them.
    pub(super) fn largest(&self, dtype: DType) -> usize {
        self.sizes(dtype).max().unwrap_or(0)
    }

    /// The estimated seconds of the rearrangement, before or after another launch.
    pub(super) fn seconds(&self, dtype: DType, device: &Capabilities) -> f64 {
        self.each(dtype).map(|(step, dtype, is_read)| step.seconds(dtype, is_read, device)).sum()
    }

    /// Rearranges the tensors that a kernel reads, and allocates the tensor that it writes, each with its type.
    pub(super) fn before(
        &self,
        target: Target<'_>,
        [dtype, stored]: [DType; 2],
        factors: [&Handle; 2],
        residual: Option<&Handle>,
        out: &Handle,
    ) -> Rearranged {
        let ([first, second], written) = self.changes();
        let changed = |handle: &Handle, steps: &[Step]| {
            steps.iter().fold(handle.clone(), |from, step| {
                let to = room(target, dtype, step.elements());
                step.apply(target, dtype, &from, &to);
                to
            })
        };
        let last = written.last();
        Rearranged {
            factors: [changed(factors[0], first), changed(factors[1], second)],
            residual: residual.map(|residual| changed(residual, &self.output)),
            out: last.map_or_else(|| out.clone(), |step| room(target, stored, step.elements())),
        }
    }

    /// Rearranges the kernel's result to the caller's arrangement. The factors are the caller's.
    pub(super) fn after(
        &self,
        target: Target<'_>,
        dtype: DType,
        factors: [&Handle; 2],
        written: &Handle,
        out: &Handle,
    ) {
        let (_, steps) = self.changes();
        let mut from = written.clone();
        for nth in (0..steps.len()).rev() {
            let to = match nth {
                0 => out.clone(),
                _ => room(target, dtype, steps[nth - 1].elements()),
            };
            steps[nth].undo(target, dtype, self.recomputes.then_some(factors), &from, &to);
            from = to;
        }
    }
}

impl Step {
    /// The elements of the changed tensor.
    fn elements(&self) -> usize {
        match self {
            Self::Sample(sampling) => sampling.elements(),
            Self::Block(blocks) => blocks.elements(),
            Self::Transpose(matrices) => matrices.iter().copied().fold(1, usize::saturating_mul),
        }
    }

    /// The estimated seconds of the change of a tensor that is read, or back of one that is written.
    fn seconds(&self, dtype: DType, is_read: bool, device: &Capabilities) -> f64 {
        let elements = self.elements();
        let others = match self {
            Self::Sample(sampling) if is_read => sampling.read(),
            Self::Sample(sampling) => sampling.written(),
            Self::Block(blocks) => return blocks.seconds(dtype, device),
            Self::Transpose(_) => return transpose::seconds(elements * dtype.size(), device),
        };
        let bytes = (others + elements) as f64 * dtype.size() as f64;
        device.next_launch_seconds() + device.copy_seconds(bytes)
    }

    fn apply(&self, target: Target<'_>, dtype: DType, from: &Handle, to: &Handle) {
        match self {
            Self::Sample(sampling) => strided::sample(target, dtype, from, to, &sampling.axes),
            Self::Block(blocks) => blocks.gather(target, dtype, from, to),
            Self::Transpose(matrices) => transpose::launch(target, dtype, from, to, *matrices),
        }
    }

    /// The reverse. Factors are those of a data gradient whose sums over blocks may be NaN where they should not.
    fn undo(
        &self,
        target: Target<'_>,
        dtype: DType,
        factors: Option<[&Handle; 2]>,
        from: &Handle,
        to: &Handle,
    ) {
        match self {
            // Zeros between the pixels.
            Self::Sample(sampling) => strided::spread(target, dtype, from, to, &sampling.axes),
            Self::Block(blocks) => blocks.scatter(target, dtype, from, to, factors),
            Self::Transpose([matrices, rows, columns]) => {
                transpose::launch(target, dtype, from, to, [*matrices, *columns, *rows]);
            }
        }
    }
}

fn room(target: Target<'_>, dtype: DType, elements: usize) -> Handle {
    target.client.empty(elements * dtype.size())
}

/// The pixels of an input that windows of one tap read: those at every stride-th position.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sampling {
    /// The axes of the input in the order of memory, the outermost first: their extents, how many positions of each are
    /// read, and the steps between these.
    axes: Vec<[usize; 3]>,
}

impl Sampling {
    fn new(conv: &Convolution) -> Self {
        let (batch, channels) = (conv.input().batch(), conv.input().channels());
        let axes = conv.grid().axes();
        let space = axes.iter().map(|axis| [axis.input(), axis.output(), axis.stride()]);
        let all = |count: usize| [count, count, 1];
        let axes = match conv.layout() {
            Layout::ChannelsFirst => [all(batch * channels)].into_iter().chain(space).collect(),
            Layout::ChannelsLast => {
                [all(batch)].into_iter().chain(space).chain([all(channels)]).collect()
            }
        };
        Self { axes }
    }

    /// The number of elements that windows read.
    fn elements(&self) -> usize {
        self.axes.iter().map(|[_, kept, _]| kept).product()
    }

    /// The number of elements of the input.
    fn written(&self) -> usize {
        self.axes.iter().map(|[extent, ..]| extent).product()
    }

    /// The number of elements that are loaded, because memory is loaded in lines: of the innermost axis all.
    fn read(&self) -> usize {
        self.axes.last().map_or(0, |[extent, kept, _]| self.elements() / kept.max(&1) * extent)
    }
}

/// A sample is a matrix of channels by positions, or of positions by channels.
fn of_shape(shape: &Shape, layout: Layout) -> Option<Matrices> {
    let (channels, plane) = (shape.channels(), shape.plane());
    (channels > 1 && plane > 1).then_some(match layout {
        Layout::ChannelsFirst => [shape.batch(), channels, plane],
        Layout::ChannelsLast => [shape.batch(), plane, channels],
    })
}

/// A filter is a matrix of channels by taps.
fn of_filters(conv: &Convolution, to: FilterLayout) -> Option<Matrices> {
    let filter = conv.filter();
    let (channels, taps) = (filter.channels(), filter.taps());
    let differs = conv.filter_layout() != to && channels > 1 && taps > 1;
    differs.then_some([filter.count(), channels, taps])
}

/// Filters whose counts are innermost are a matrix of taps and channels by counts.
fn of_counts(conv: &Convolution) -> Option<Matrices> {
    let (count, each) = (conv.filter().count(), conv.filter().channels() * conv.filter().taps());
    (count > 1 && each > 1).then_some([1, each, count])
}

/// Whether the taps of a filter follow one another in memory, and not its channels.
fn has_contiguous_taps(conv: &Convolution) -> bool {
    conv.filter_layout() == FilterLayout::Fchw && of_filters(conv, FilterLayout::Fhwc).is_some()
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{Extents, Filter, Window};

    use super::*;

    const FIRST: Arrangement = Arrangement { layout: Layout::ChannelsFirst, change: None };
    const LAST: Arrangement = Arrangement { layout: Layout::ChannelsLast, ..FIRST };

    fn conv(kernel: usize, stride: usize, own: Layout, filter_layout: FilterLayout) -> Convolution {
        let shape = Shape::new(2, 6, Extents::from([9, 8])).unwrap();
        let filter = Filter::new(10, 3, Extents::from([kernel, kernel])).unwrap();
        let window = Window::new([kernel, kernel]).stride([stride, stride]);
        Convolution::new(shape, filter, &window, 2, own, filter_layout).unwrap()
    }

    fn bytes(conv: &Convolution, arrangement: Arrangement, pass: Pass) -> usize {
        Rearrangement::new(conv, arrangement, pass).bytes(DType::F16)
    }

    #[test]
    fn tensors_in_the_kernels_form_stay() {
        for own in [FIRST, LAST] {
            let conv = conv(3, 1, own.layout, FilterLayout::Fchw);
            for pass in [Pass::Forward, Pass::Data, Pass::Weight, Pass::Bias] {
                assert_eq!(bytes(&conv, own, pass), 0);
            }
        }
    }

    #[test]
    fn each_pass_transposes_what_it_touches() {
        let first = conv(3, 1, Layout::ChannelsFirst, FilterLayout::Fchw);
        let [x, y, w] = [2 * 6 * 72, 2 * 10 * 42, 10 * 3 * 9];
        assert_eq!(bytes(&first, LAST, Pass::Forward), 2 * (x + y));
        assert_eq!(bytes(&first, LAST, Pass::Data), 2 * (x + y));
        // The result is transposed as well.
        assert_eq!(bytes(&first, LAST, Pass::Weight), 2 * (x + w + y));
        assert_eq!(bytes(&first, LAST, Pass::Bias), 2 * y);
        // Filters of one tap, and filters in other layouts, are not transposed.
        let points = conv(1, 1, Layout::ChannelsFirst, FilterLayout::Fchw);
        assert_eq!(bytes(&points, LAST, Pass::Weight), 2 * (x + 2 * 10 * 72));
        let inner = conv(3, 1, Layout::ChannelsFirst, FilterLayout::Hwcf);
        assert_eq!(bytes(&inner, LAST, Pass::Weight), 2 * (x + y));
    }

    #[test]
    fn filters_are_transposed_where_they_are_read_and_their_taps_are_contiguous() {
        let filters_last =
            |own: Arrangement| Arrangement { change: Some(Change::FiltersLast), ..own };
        let [x, y, w] = [2 * 6 * 72, 2 * 10 * 42, 10 * 3 * 9];
        let first = conv(3, 1, Layout::ChannelsFirst, FilterLayout::Fchw);
        for pass in [Pass::Forward, Pass::Data] {
            assert_eq!(bytes(&first, filters_last(FIRST), pass), 2 * w, "{pass}");
            assert_eq!(bytes(&first, filters_last(LAST), pass), 2 * (x + y + w), "{pass}");
            let read = filters_last(FIRST).of(&first, pass).expect("there are filters");
            assert_eq!(read, first.with_layouts(Layout::ChannelsFirst, FilterLayout::Fhwc));
        }
        for pass in [Pass::Weight, Pass::Bias] {
            assert_eq!(filters_last(FIRST).of(&first, pass), None);
        }
        let all = |conv| Arrangement::all(&conv).collect::<Vec<_>>();
        assert_eq!(all(first), [FIRST, filters_last(FIRST), LAST, filters_last(LAST)]);
        let last = conv(3, 1, Layout::ChannelsLast, FilterLayout::Fchw);
        assert_eq!(all(last), [LAST, filters_last(LAST)]);
        // Filters of one tap are the same in both layouts.
        let points = conv(1, 1, Layout::ChannelsFirst, FilterLayout::Fchw);
        assert_eq!(filters_last(FIRST).of(&points, Pass::Forward), None);
    }

    #[test]
    fn skipped_pixels_are_removed_before_a_transpose() {
        let sampled = |own: Arrangement| Arrangement { change: Some(Change::Sampled), ..own };
        let points = conv(1, 2, Layout::ChannelsFirst, FilterLayout::Fchw);
        let [x, y] = [2 * 6 * 20, 2 * 10 * 20];
        for pass in [Pass::Forward, Pass::Data, Pass::Weight] {
            assert_eq!(bytes(&points, sampled(FIRST), pass), 2 * x, "{pass}");
            assert_eq!(bytes(&points, sampled(LAST), pass), 2 * (2 * x + y), "{pass}");
            let read = sampled(FIRST).of(&points, pass).expect("pixels are skipped");
            assert_eq!(read.input().space(), points.output().space());
            assert_eq!(read.output(), points.output());
        }
        let all = |conv| Arrangement::all(&conv).collect::<Vec<_>>();
        assert_eq!(all(points), [FIRST, sampled(FIRST), LAST, sampled(LAST)]);
        assert_eq!(all(conv(1, 1, Layout::ChannelsFirst, FilterLayout::Fchw)), [FIRST, LAST]);
        assert_eq!(all(conv(3, 1, Layout::ChannelsLast, FilterLayout::Fhwc)), [LAST]);
        assert_eq!(
            sampled(FIRST).of(&conv(3, 2, FIRST.layout, FilterLayout::Fchw), Pass::Data),
            None
        );
    }

    /// Lines of memory are loaded whole: the rows of channels-first planes, and pixels channels last.
    #[test]
    fn lines_of_memory_are_loaded_whole() {
        let read = |own| Sampling::new(&conv(1, 2, own, FilterLayout::Fchw)).read();
        assert_eq!(read(Layout::ChannelsFirst), 2 * 6 * 5 * 8);
        assert_eq!(read(Layout::ChannelsLast), 2 * 6 * 5 * 4);
    }

    /// Filters of 4×4 are whole blocks of 2×2 pixels, and filters of 3×3 are not: their forward pass would multiply what it
    /// does not read.
    #[test]
    fn pixels_become_blocks() {
        let over_blocks = Arrangement { change: Some(Change::SpaceToDepth), ..LAST };
        let conv = |kernel: usize, layout| {
            let shape = Shape::new(2, 3, Extents::from([9, 8])).unwrap();
            let filter = Filter::new(10, 3, Extents::from([kernel, kernel])).unwrap();
            let window = Window::new([kernel, kernel]).stride([2, 2]).padding([1, 1]);
            Convolution::new(shape, filter, &window, 1, layout, FilterLayout::Fchw).unwrap()
        };
        for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
            for (kernel, forward) in [(4, true), (3, false)] {
                let own = conv(kernel, layout);
                assert_eq!(over_blocks.of(&own, Pass::Forward).is_some(), forward);
                assert!(Arrangement::all(&own).any(|arrangement| arrangement == over_blocks));
                let blocked = over_blocks.of(&own, Pass::Data).expect("blocks");
                // Blocks of 4 pixels of 3 channels, with 4 more.
                let [x, w] = [blocked.input().elements(), blocked.filter().elements()];
                assert_eq!((blocked.input().channels(), w), (16, 10 * 2 * 2 * 16));
                let y = if layout == Layout::ChannelsFirst { own.output().elements() } else { 0 };
                for pass in [Pass::Data, Pass::Weight] {
                    assert_eq!(bytes(&own, over_blocks, pass), 2 * (x + w + y));
                    let recomputes = Rearrangement::new(&own, over_blocks, pass).recomputes;
                    assert_eq!(recomputes, pass == Pass::Data && !forward);
                }
            }
        }
        // Skipped pixels, and pixels that windows do not step over.
        for other in [
            conv(1, Layout::ChannelsLast),
            super::tests::conv(3, 1, LAST.layout, FilterLayout::Fhwc),
        ] {
            assert_eq!(over_blocks.of(&other, Pass::Data), None);
        }
    }

    /// Channels are filled up to eight, so that blocks of one channel have four times the elements.
    #[test]
    fn blocks_of_too_many_elements_are_not_considered() {
        for (extent, fits) in [(1_200_000_000, false), (400_000_000, true)] {
            let shape = Shape::new(1, 1, Extents::from([extent])).unwrap();
            let filter = Filter::new(1, 1, Extents::from([2])).unwrap();
            let window = Window::new([2]).stride([2]);
            let layout = Layout::ChannelsLast;
            let conv = Convolution::new(shape, filter, &window, 1, layout, FilterLayout::Fhwc);
            let has_blocks = Arrangement::all(&conv.unwrap())
                .any(|arrangement| arrangement.change == Some(Change::SpaceToDepth));
            assert_eq!(has_blocks, fits);
        }
    }
}
