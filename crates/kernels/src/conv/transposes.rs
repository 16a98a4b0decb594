//! Computes in another layout than the tensors have: transposes them before and after the kernel, in the same call.
//!
//! A kernel that only reads channels-last tensors can then also compute channels-first ones. Where the sums are long,
//! reading and writing the tensors once more takes little time compared with the time that the kernel saves.

use cubecl::server::Handle;
use windowpane_geometry::{Convolution, DType, Filter, FilterLayout, Layout, Shape};

use super::problem::{Pass, in_layout};
use crate::device::{Capabilities, Target};
use crate::transpose;

/// The time of a transpose relative to that of a plain copy.
const TRANSPOSE: f64 = 1.7;

/// Matrices to transpose, which follow one another in memory: their number, their rows and their columns.
type Matrices = [usize; 3];

/// The tensors that a pass transposes; none where a tensor is the same in both layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transposes {
    input: Option<Matrices>,
    output: Option<Matrices>,
    filters: Option<Matrices>,
    pass: Pass,
}

/// The tensors of a launch in the kernel's layout.
pub(super) struct Transposed {
    pub(super) factors: [Handle; 2],
    pub(super) residual: Option<Handle>,
    pub(super) out: Handle,
}

impl Transposes {
    /// The transposes from the layout of a problem's tensors to that of a kernel.
    pub(super) fn new(conv: &Convolution, layout: Layout, pass: Pass) -> Self {
        if layout == conv.layout() {
            return Self { input: None, output: None, filters: None, pass };
        }
        let turned = in_layout(conv, pass, layout);
        Self {
            input: of_shape(&conv.input(), conv.layout()),
            output: of_shape(&conv.output(), conv.layout()),
            filters: of_filters(&conv.filter(), conv.filter_layout(), turned.filter_layout()),
            pass,
        }
    }

    /// The transposes of the two operands of a pass, and of its result.
    fn tensors(&self) -> ([Option<Matrices>; 2], Option<Matrices>) {
        match self.pass {
            Pass::Data => ([self.output, self.filters], self.input),
            Pass::Weight => ([self.input, self.output], self.filters),
            Pass::Bias => ([self.output, None], None),
            Pass::Forward => ([self.input, self.filters], self.output),
        }
    }

    /// The bytes of each transposed tensor, without a residual, which a plan does not know about.
    fn each(&self, dtype: DType) -> impl Iterator<Item = usize> + use<> {
        let ([first, second], out) = self.tensors();
        let bytes = move |matrices: Matrices| {
            matrices.into_iter().fold(dtype.size(), usize::saturating_mul)
        };
        [first, second, out].into_iter().flatten().map(bytes)
    }

    /// The bytes of the transposed tensors.
    pub(super) fn bytes(&self, dtype: DType) -> usize {
        self.each(dtype).fold(0, usize::saturating_add)
    }

    /// The estimated seconds of the transposes, before or after another launch.
    pub(super) fn seconds(&self, dtype: DType, device: &Capabilities) -> f64 {
        let seconds =
            |bytes: usize| device.waiting() + TRANSPOSE * device.moving(2.0 * bytes as f64);
        self.each(dtype).map(seconds).sum()
    }

    /// Transposes the tensors that a kernel reads, and allocates the tensor that it writes.
    pub(super) fn before(
        &self,
        target: Target<'_>,
        dtype: DType,
        factors: [&Handle; 2],
        residual: Option<&Handle>,
        out: &Handle,
    ) -> Transposed {
        let ([first, second], result) = self.tensors();
        let transposed = |handle: &Handle, matrices: Option<Matrices>| {
            let Some(matrices) = matrices else { return handle.clone() };
            let room = room(target, dtype, matrices);
            transpose::launch(target, dtype, handle, &room, matrices);
            room
        };
        Transposed {
            factors: [transposed(factors[0], first), transposed(factors[1], second)],
            residual: residual.map(|residual| transposed(residual, self.output)),
            out: result.map_or_else(|| out.clone(), |matrices| room(target, dtype, matrices)),
        }
    }

    /// Transposes the kernel's result to the caller's layout.
    pub(super) fn after(&self, target: Target<'_>, dtype: DType, written: &Handle, out: &Handle) {
        if let (_, Some([matrices, rows, columns])) = self.tensors() {
            let back = [matrices, columns, rows];
            transpose::launch(target, dtype, written, out, back);
        }
    }
}

fn room(target: Target<'_>, dtype: DType, matrices: Matrices) -> Handle {
    target.client.empty(matrices.into_iter().product::<usize>() * dtype.size())
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
fn of_filters(filter: &Filter, from: FilterLayout, to: FilterLayout) -> Option<Matrices> {
    let (channels, taps) = (filter.channels(), filter.taps());
    (from != to && channels > 1 && taps > 1).then_some([filter.count(), channels, taps])
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{Extents, Window};

    use super::*;

    fn conv(kernel: usize, layout: Layout, filter_layout: FilterLayout) -> Convolution {
        let shape = Shape::new(2, 6, Extents::from([9, 8])).unwrap();
        let filter = Filter::new(10, 3, Extents::from([kernel, kernel])).unwrap();
        let window = Window::new([kernel, kernel]);
        Convolution::new(shape, filter, &window, 2, layout, filter_layout).unwrap()
    }

    #[test]
    fn tensors_in_the_kernels_layout_stay() {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let conv = conv(3, layout, FilterLayout::Fchw);
            for pass in [Pass::Forward, Pass::Data, Pass::Weight, Pass::Bias] {
                assert_eq!(Transposes::new(&conv, layout, pass).bytes(DType::F32), 0);
            }
        }
    }

    #[test]
    fn each_pass_transposes_what_it_touches() {
        let first = conv(3, Layout::ChannelsFirst, FilterLayout::Fchw);
        let bytes = |conv: &Convolution, pass| {
            Transposes::new(conv, Layout::ChannelsLast, pass).bytes(DType::F16)
        };
        let [x, y, w] = [2 * 6 * 72, 2 * 10 * 42, 10 * 3 * 9];
        assert_eq!(bytes(&first, Pass::Forward), 2 * (x + y));
        assert_eq!(bytes(&first, Pass::Data), 2 * (x + y));
        // The result is transposed as well.
        assert_eq!(bytes(&first, Pass::Weight), 2 * (x + w + y));
        assert_eq!(bytes(&first, Pass::Bias), 2 * y);
        // Filters of one tap, and filters in other layouts, are not transposed.
        let points = conv(1, Layout::ChannelsFirst, FilterLayout::Fchw);
        assert_eq!(bytes(&points, Pass::Weight), 2 * (x + 2 * 10 * 72));
        let inner = conv(3, Layout::ChannelsFirst, FilterLayout::Hwcf);
        assert_eq!(bytes(&inner, Pass::Weight), 2 * (x + y));
    }
}
