//! Computes a problem in another arrangement than its tensors have: rearranges them before and after the kernel, in the
//! same call.
//!
//! * In another layout: a kernel that only reads channels-last tensors can then also compute channels-first ones. Where the
//!   sums are long, reading and writing the tensors once more takes little time compared with the time that the kernel
//!   saves.
//! * With the channels of filters last: where the taps of a filter are contiguous, its channels are loaded one by one.
//! * Sampled: windows of one tap skip pixels if they have a stride. Without the skipped pixels, the planes of
//!   channels-first samples are matrices, and other tensors are smaller where they are transposed.

use core::fmt;

use cubecl::server::Handle;
use windowpane_geometry::{Convolution, DType, FilterLayout, Layout, Shape};

use super::problem::Pass;
use crate::cube::{accumulator, transpose};
use crate::device::{Capabilities, Target};
use crate::strided;

/// The arrangement in which a kernel computes a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrangement {
    /// The layout of the tensors. Those in another layout are transposed in the same call.
    pub layout: Layout,
    /// Whether the pixels that windows of one tap skip are removed first, or inserted as zeros at the end.
    pub sampled: bool,
    /// Whether filters that are read are transposed first, so that their channels are contiguous and not their taps.
    pub filters_last: bool,
}

/// Prints `channels-last`, or with more words `channels-first,sampled` and `channels-last,filters-last`.
impl fmt::Display for Arrangement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sampled = if self.sampled { ",sampled" } else { "" };
        let filters_last = if self.filters_last { ",filters-last" } else { "" };
        write!(f, "{}{sampled}{filters_last}", self.layout)
    }
}

impl Arrangement {
    /// The arrangement that the tensors have.
    pub(super) fn own(conv: &Convolution) -> Self {
        Self { layout: conv.layout(), sampled: false, filters_last: false }
    }

    /// The forms that a kernel may compute a problem in: the layout of the tensors first, then channels last, each as it is
    /// and with the pixels sampled or the filters transposed.
    pub(super) fn all(conv: &Convolution) -> impl Iterator<Item = Self> + use<> {
        let own = Self::own(conv);
        let turned = Self { layout: Layout::ChannelsLast, ..own };
        // Only windows of one tap skip pixels, and their filters are the same in both layouts.
        let changed = match (conv.sampled(), has_contiguous_taps(conv)) {
            (Some(_), _) => Some(Self { sampled: true, ..own }),
            (None, true) => Some(Self { filters_last: true, ..own }),
            (None, false) => None,
        };
        let layouts = [own].into_iter().chain((own != turned).then_some(turned));
        layouts.flat_map(move |Self { layout, .. }| {
            [own].into_iter().chain(changed).map(move |form| Self { layout, ..form })
        })
    }

    /// The problem in this arrangement; none if it does not skip pixels that this arrangement removes, or has no filters to
    /// read that this arrangement transposes.
    ///
    /// A weight gradient whose taps are contiguous gets contiguous channels instead, because it is computed from
    /// channels-last pixels. Filters that are read keep their layout unless `filters_last`.
    ///
    /// Pixels of windows that lie side by side are merged, so that rows of several taps are one tap of more channels: fewer
    /// loads, and fuller ones. Pixels of few channels stay, because kernels read whole lines of these.
    pub(super) fn of(self, conv: &Convolution, pass: Pass) -> Option<Convolution> {
        let reads_filters = matches!(pass, Pass::Forward | Pass::Data);
        if self.filters_last && !(reads_filters && has_contiguous_taps(conv)) {
            return None;
        }
        let conv = if self.sampled { conv.sampled()? } else { *conv };
        let filter_layout = match (pass, self.layout, conv.filter_layout()) {
            _ if self.filters_last => FilterLayout::Fhwc,
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

/// Matrices to transpose, which follow one another in memory: their number, their rows and their columns.
type Matrices = [usize; 3];

/// The tensors that a pass rearranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rearrangement {
    /// The sampling of the input, before it is transposed.
    sampled: Option<Sampling>,
    /// The transposes; none where a tensor is the same in both layouts.
    input: Option<Matrices>,
    output: Option<Matrices>,
    filters: Option<Matrices>,
    pass: Pass,
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
        let sampling = arrangement.sampled.then(|| conv.sampled()).flatten();
        let read = sampling.as_ref().unwrap_or(conv);
        let sampled = sampling.map(|_| Sampling::new(conv));
        let arranged = arrangement.of(conv, pass);
        let turned = arranged.is_some() && arrangement.layout != conv.layout();
        let transposed = |shape: Shape| of_shape(&shape, conv.layout()).filter(|_| turned);
        let filters = arranged.and_then(|arranged| of_filters(conv, arranged.filter_layout()));
        let (input, output) = (transposed(read.input()), transposed(read.output()));
        Self { sampled, input, output, filters, pass }
    }

    /// The transposes of the two operands of a pass, and of its result.
    fn transposes(&self) -> ([Option<Matrices>; 2], Option<Matrices>) {
        match self.pass {
            Pass::Data => ([self.output, self.filters], self.input),
            Pass::Weight => ([self.input, self.output], self.filters),
            Pass::Bias => ([self.output, None], None),
            Pass::Forward => ([self.input, self.filters], self.output),
        }
    }

    /// The sampling of an input that is read, and that of one that is written.
    fn samplings(&self) -> [Option<&Sampling>; 2] {
        let sampled = self.sampled.as_ref();
        match self.pass {
            Pass::Data => [None, sampled],
            Pass::Bias => [None, None],
            Pass::Forward | Pass::Weight => [sampled, None],
        }
    }

    /// The bytes of each transposed tensor, without a residual, which a plan does not know about. Integers have results of
    /// other types, of which the largest is counted.
    fn each(&self, dtype: DType) -> impl Iterator<Item = usize> + use<> {
        let ([first, second], out) = self.transposes();
        let result = if dtype.is_float() { dtype } else { accumulator(dtype) };
        let bytes = |matrices: Option<Matrices>, dtype: DType| {
            matrices.map(|all| all.into_iter().fold(dtype.size(), usize::saturating_mul))
        };
        let all = [bytes(first, dtype), bytes(second, dtype), bytes(out, result)];
        all.into_iter().flatten()
    }

    /// The bytes of the rearranged tensors.
    pub(super) fn bytes(&self, dtype: DType) -> usize {
        let sampled = self.samplings().into_iter().flatten();
        let sampled = sampled.map(|sampling| sampling.elements() * dtype.size());
        self.each(dtype).chain(sampled).fold(0, usize::saturating_add)
    }

    /// The estimated seconds of the rearrangement, before or after another launch.
    pub(super) fn seconds(&self, dtype: DType, device: &Capabilities) -> f64 {
        let transposes: f64 = self.each(dtype).map(|bytes| transpose::seconds(bytes, device)).sum();
        let [read, written] = self.samplings();
        let read = read.map(|sampling| sampling.read() + sampling.elements());
        let written = written.map(|sampling| sampling.written() + sampling.elements());
        let sample = |elements: usize| {
            device.next_launch_seconds() + device.copy_seconds((elements * dtype.size()) as f64)
        };
        transposes + [read, written].into_iter().flatten().map(sample).sum::<f64>()
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
        let ([first, second], result) = self.transposes();
        let transposed = |handle: &Handle, matrices: Option<Matrices>| {
            let Some(matrices) = matrices else { return handle.clone() };
            let room = room(target, dtype, matrices.into_iter().product());
            transpose::launch(target, dtype, handle, &room, matrices);
            room
        };
        let [read, written] = self.samplings();
        let sampled = read.map(|sampling| sampling.sample(target, dtype, factors[0]));
        let out = match (result, written) {
            (Some(matrices), _) => room(target, stored, matrices.into_iter().product()),
            (None, Some(sampling)) => room(target, stored, sampling.elements()),
            (None, None) => out.clone(),
        };
        Rearranged {
            factors: [
                transposed(sampled.as_ref().unwrap_or(factors[0]), first),
                transposed(factors[1], second),
            ],
            residual: residual.map(|residual| transposed(residual, self.output)),
            out,
        }
    }

    /// Rearranges the kernel's result to the caller's arrangement.
    pub(super) fn after(&self, target: Target<'_>, dtype: DType, written: &Handle, out: &Handle) {
        let (_, result) = self.transposes();
        let [_, sampling] = self.samplings();
        let turned = result.map(|[matrices, rows, columns]| {
            let back = [matrices, columns, rows];
            let room = sampling.map(|sampling| room(target, dtype, sampling.elements()));
            transpose::launch(target, dtype, written, room.as_ref().unwrap_or(out), back);
            room
        });
        if let Some(sampling) = sampling {
            let turned = turned.flatten();
            sampling.spread(target, dtype, turned.as_ref().unwrap_or(written), out);
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

    /// A copy of the pixels that windows read.
    fn sample(&self, target: Target<'_>, dtype: DType, from: &Handle) -> Handle {
        let to = room(target, dtype, self.elements());
        strided::sample(target, dtype, from, &to, &self.axes);
        to
    }

    /// Writes these pixels to their positions, and zeros between them.
    fn spread(&self, target: Target<'_>, dtype: DType, from: &Handle, to: &Handle) {
        strided::spread(target, dtype, from, to, &self.axes);
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

/// Whether the taps of a filter follow one another in memory, and not its channels.
fn has_contiguous_taps(conv: &Convolution) -> bool {
    conv.filter_layout() == FilterLayout::Fchw && of_filters(conv, FilterLayout::Fhwc).is_some()
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{Extents, Filter, Window};

    use super::*;

    const FIRST: Arrangement =
        Arrangement { layout: Layout::ChannelsFirst, sampled: false, filters_last: false };
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
        let filters_last = |own: Arrangement| Arrangement { filters_last: true, ..own };
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
        let sampled = |own: Arrangement| Arrangement { sampled: true, ..own };
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
        assert_eq!(all(conv(3, 2, Layout::ChannelsLast, FilterLayout::Fhwc)), [LAST]);
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
}
