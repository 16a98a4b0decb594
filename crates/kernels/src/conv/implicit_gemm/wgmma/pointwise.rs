//! Convolutions with one tap over channels-first tensors, without transposing them. The plane of a sample is a matrix
//! of channels by pixels, so that each pass is a product of matrices as they are stored:
//!
//! ```text
//! forward   y[n]  = w · x[n]              a product for each sample; its columns are pixels
//! data      dx[n] = wᵀ · dy[n]
//! weight    dw    = Σ dy[n] · x[n]ᵀ        one product; its terms are the pixels of all samples
//! ```
//!
//! The kernel sees a channels-last convolution: its image has the rows as pixels and the terms as channels. Filters whose
//! rows are contiguous are read as an image with these exchanged, and multiplied as they are. For the weight gradient, the
//! samples take the place of taps.

use windowpane_geometry::{
    AXES, Convolution, DType, Extents, Filter, FilterLayout, Layout, Precision, Shape, Window,
};

use super::tile::{CHUNK_BYTES, LINE};
use crate::conv::common::{Gather, Sweep};
use crate::conv::implicit_gemm::rules::windows_are_pixels;
use crate::conv::problem::{Pass, Request};
use crate::cube::SECTOR;

/// The fewest pixels of a plane. With fewer, most of a tile would be empty.
const LEAST_PIXELS: usize = 64;

/// A pass as products of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointwise {
    pub(super) samples: usize,
    /// Whether the samples are terms of one product. Otherwise each has a product of its own.
    pub(super) sums_samples: bool,
    /// Whether the rows are those of the pass's second operand.
    pub(super) swaps: bool,
    /// Whether the rows are contiguous in memory, instead of the terms of a sum.
    pub(super) rows_mn_major: bool,
    /// The rows, the terms of a sample's sums, and the columns.
    pub(super) rows: usize,
    pub(super) terms: usize,
    pub(super) columns: usize,
    /// The elements from one line of the matrix with the rows to the next.
    pub(super) pitch: usize,
}

impl Pointwise {
    /// None if the pass is not one product of matrices for each sample, or the copy engine cannot read them, even with padded
    /// filters.
    pub(super) fn new(
        conv: &Convolution,
        Request { pass, dtype, precision }: Request,
    ) -> Option<Self> {
        let (filters, channels) = (conv.filter().count(), conv.filter().channels());
        let pixels = conv.input().plane();
        let whole = |elements: usize| (elements * dtype.size()).is_multiple_of(CHUNK_BYTES);
        let last = conv.filter_layout() == FilterLayout::Hwcf;
        let (rows, terms, columns) = match pass {
            Pass::Forward => (filters, channels, pixels),
            Pass::Data => (channels, filters, pixels),
            Pass::Weight if last => (channels, pixels, filters),
            Pass::Weight => (filters, pixels, channels),
            Pass::Bias => return None,
        };
        let is_weight = pass == Pass::Weight;
        let rows_mn_major = !is_weight && last != (pass == Pass::Data);
        let pitch = if rows_mn_major { rows } else { terms };
        let can = conv.layout() == Layout::ChannelsFirst
            && matches!(dtype, DType::F16 | DType::BF16)
            && precision == Precision::Strict
            && conv.groups() == 1
            && windows_are_pixels(conv)
            && pixels >= LEAST_PIXELS
            && whole(pixels)
            // Biases are read in pairs.
            && (pass != Pass::Forward || rows.is_multiple_of(2));
        can.then_some(Self {
            samples: conv.input().batch(),
            sums_samples: is_weight,
            swaps: !is_weight || !last,
            rows_mn_major,
            rows,
            terms,
            columns,
            pitch,
        })
    }

    /// Whether the copy engine can read the matrix with the rows as it is.
    pub(super) fn is_readable(&self, size: usize) -> bool {
        (self.pitch * size).is_multiple_of(CHUNK_BYTES)
    }

    /// The same with the lines of the filters padded to whole lines of memory; none in a weight gradient, and if they begin
    /// at whole sectors of memory. Padding those took as long as it saved (480 → 80 channels); padding others saved a tenth
    /// to a third.
    pub(super) fn padded(self, size: usize) -> Option<Self> {
        let bytes = self.pitch * size;
        let can = !self.sums_samples && !bytes.is_multiple_of(SECTOR);
        can.then(|| Self { pitch: bytes.next_multiple_of(LINE as usize) / size, ..self })
    }

    /// The number of lines of the matrix with the rows.
    pub(super) fn lines(&self) -> usize {
        if self.rows_mn_major { self.terms } else { self.rows }
    }

    /// The convolution that the kernel sees, for one sample.
    pub(super) fn convolution(&self) -> Option<Convolution> {
        let image = Shape::new(1, self.terms, Extents::from([self.rows])).ok()?;
        let filter = Filter::new(self.columns, self.terms, Extents::from([1])).ok()?;
        let layouts = (Layout::ChannelsLast, FilterLayout::Fhwc);
        Convolution::new(image, filter, &Window::new([1]), 1, layouts.0, layouts.1).ok()
    }

    /// The flat operand: for each sample its terms and columns, outermost first.
    pub(super) fn dimensions(&self) -> [usize; 3] {
        match self.sums_samples {
            true => [self.samples, self.columns, self.terms],
            false => [self.samples, self.terms, self.columns],
        }
    }

    /// The product with samples in the place of taps, if they are summed.
    pub(super) fn over(&self, gather: Gather) -> Gather {
        let mut gather = gather;
        if self.sums_samples {
            let along = &mut gather.axes[AXES - 1];
            *along = Sweep { taps: self.samples, tap_step: 0, ..*along };
        }
        gather
    }
}
