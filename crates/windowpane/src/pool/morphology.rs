//! Grey and binary morphology: erosion, dilation, and the operators that are made of them.

use std::sync::Arc;

use windowpane_geometry::{
    self as geometry, Extents, Extremum, Footprint, Layout, Padded, Padding, PaddingMode, Pooling,
    Quantity, Shape, Window,
};
use windowpane_reference::Scalar;

use super::{MaxPool, MinPool};
use crate::element::{sealed::Sealed, with_element};
use crate::tensor::{count, element_slice};
use crate::{Result, Tensor, pad};

/// Erosion and dilation by a flat structuring element, of any shape, and the operators that are made of them.
///
/// With the offsets `b` of the structuring element's taps from its origin, erosion is `min x[i + b]` and dilation is
/// `max x[i − b]`, as in SciPy. Results have the size of the input. Elements past the edges do not count unless
/// [`constant`](Self::constant) or [`padding_mode`](Self::padding_mode) says what is there. Tensors of truth values, or of
/// 0 and 1, give binary morphology.
///
/// The time for a rectangle does not grow with it, and for another shape it grows with the number of its rows.
///
/// ```
/// use windowpane::{Device, Morphology, Tensor};
///
/// let picture = [0u8, 9, 0, 0, 7, 7, 7, 7];
/// let x = Tensor::from_slice(&Device::host(), &picture, [1, 8, 1])?;
/// let three = Morphology::new(3);
/// assert_eq!(three.dilation(&x)?.to_vec::<u8>()?, [9, 9, 9, 7, 7, 7, 7, 7]);
/// assert_eq!(three.opening(&x)?.to_vec::<u8>()?, [0, 0, 0, 0, 7, 7, 7, 7]);
/// assert_eq!(three.white_top_hat(&x)?.to_vec::<u8>()?, [0, 9, 0, 0, 0, 0, 0, 0]);
///
/// let pixels = Tensor::from_slice(&Device::host(), &[0u8, 0, 0, 0, 5, 0, 0, 0, 0], [1, 3, 3, 1])?;
/// assert_eq!(Morphology::disk(1).dilation(&pixels)?.to_vec::<u8>()?, [0, 5, 0, 5, 5, 5, 0, 5, 0]);
/// # Ok::<(), windowpane::Error>(())
/// ```
#[doc(alias(
    "grey_erosion",
    "grey_dilation",
    "grey_opening",
    "grey_closing",
    "morphological_gradient"
))]
#[doc(alias(
    "binary_erosion",
    "binary_dilation",
    "binary_opening",
    "binary_closing",
    "morphologyEx"
))]
#[doc(alias(
    "white_tophat",
    "black_tophat",
    "footprint",
    "structuring_element",
    "erode",
    "dilate"
))]
#[derive(Clone, Debug, PartialEq)]
pub struct Morphology {
    kernel: Extents,
    taps: Taps,
    /// The offset of the origin from the middle on each axis; none for the middle.
    origin: Vec<isize>,
    border: Border,
    layout: Layout,
}

/// The taps of the kernel that count.
#[derive(Clone, Debug, PartialEq)]
enum Taps {
    All,
    These(Arc<[bool]>),
    /// Those at most this far from the middle.
    Within(usize),
}

/// The most taps of a disk or a ball.
const MOST_TAPS: usize = 1 << 28;

/// What is past the edges.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Border {
    Nothing,
    Constant(f64),
    Copies(PaddingMode),
}

impl Morphology {
    /// A rectangle of the given size: one number per axis, or one for every axis.
    pub fn new(kernel: impl Into<Extents>) -> Self {
        Self {
            kernel: kernel.into(),
            taps: Taps::All,
            origin: Vec::new(),
            border: Border::Nothing,
            layout: Layout::default(),
        }
    }

    /// The taps of a rectangle that are true, in row-major order.
    ///
    /// ```
    /// use windowpane::{Device, Morphology, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 2.0, 3.0, 4.0, 5.0], [1, 5, 1])?;
    /// let ends = Morphology::with_footprint([3], &[true, false, true])?;
    /// assert_eq!(ends.erosion(&x)?.to_vec::<f32>()?, [2.0, 1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn with_footprint(kernel: impl Into<Extents>, taps: &[bool]) -> Result<Self> {
        let kernel = kernel.into();
        let footprint = Footprint::new(kernel, taps)?;
        let taps = if footprint.is_whole() { Taps::All } else { Taps::These(taps.into()) };
        Ok(Self { taps, ..Self::new(kernel) })
    }

    /// The pixels whose centres are at most `radius` from the middle one's.
    pub fn disk(radius: usize) -> Self {
        Self { taps: Taps::Within(radius), ..Self::new([side(radius); 2]) }
    }

    /// The voxels whose centres are at most `radius` from the middle one's.
    pub fn ball(radius: usize) -> Self {
        Self { taps: Taps::Within(radius), ..Self::new([side(radius); 3]) }
    }

    /// Moves the origin from the middle of the structuring element, towards its end if the number is positive.
    pub fn origin(mut self, origin: impl Into<Vec<isize>>) -> Self {
        self.origin = origin.into();
        self
    }

    /// Sets the number past the edges, rounded to the type of the elements.
    pub fn constant(mut self, value: f64) -> Self {
        self.border = Border::Constant(value);
        self
    }

    /// Sets which elements are repeated past the edges; [`PaddingMode::Zeros`] is the constant 0.
    pub fn padding_mode(mut self, mode: PaddingMode) -> Self {
        self.border = match mode {
            PaddingMode::Zeros => Border::Constant(0.0),
            copies => Border::Copies(copies),
        };
        self
    }

    /// Sets the layout of input and output; channels-last by default.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// The minimum of the elements that the structuring element is over.
    pub fn erosion(&self, x: &Tensor) -> Result<Tensor> {
        self.extremum(Extremum::Min, x)
    }

    /// The maximum of the elements whose structuring element is over this one.
    pub fn dilation(&self, x: &Tensor) -> Result<Tensor> {
        self.extremum(Extremum::Max, x)
    }

    /// Erosion, then dilation: removes what is bright and smaller than the structuring element.
    pub fn opening(&self, x: &Tensor) -> Result<Tensor> {
        self.dilation(&self.erosion(x)?)
    }

    /// Dilation, then erosion: removes what is dark and smaller than the structuring element.
    pub fn closing(&self, x: &Tensor) -> Result<Tensor> {
        self.erosion(&self.dilation(x)?)
    }

    /// Dilation less erosion. Differences that an integer type does not have become its least or greatest number.
    pub fn gradient(&self, x: &Tensor) -> Result<Tensor> {
        difference(&self.dilation(x)?, &self.erosion(x)?)
    }

    /// The input less its [`opening`](Self::opening).
    pub fn white_top_hat(&self, x: &Tensor) -> Result<Tensor> {
        difference(x, &self.opening(x)?)
    }

    /// The [`closing`](Self::closing) less the input.
    pub fn black_top_hat(&self, x: &Tensor) -> Result<Tensor> {
        difference(&self.closing(x)?, x)
    }

    fn extremum(&self, extremum: Extremum, x: &Tensor) -> Result<Tensor> {
        x.device().require_alive()?;
        let input = Shape::from_dims(x.dims(), self.layout)?;
        let kernel = self.kernel.of_rank(input.space().rank())?;
        let origin = match self.origin.is_empty() {
            true => vec![0; kernel.rank()],
            false => self.origin.clone(),
        };
        let Padding::Explicit { mut before, mut after } = Padding::around(kernel, &origin)? else {
            unreachable!("it is one number for each side")
        };
        if extremum == Extremum::Max {
            // A dilation's window is the mirror image of an erosion's.
            (before, after) = (after, before);
        }
        let padding = Padding::Explicit { before, after };
        let Some(taps) = self.taps.listed(kernel)? else {
            // The copies past an edge are elements that such a window contains.
            let contained =
                matches!(self.border, Border::Copies(mode) if mode != PaddingMode::Circular);
            if self.border == Border::Nothing || contained && before == after {
                return self.rectangle(extremum, kernel, padding, x);
            }
            let x = self.padded(extremum, input, padding, x)?;
            return self.rectangle(extremum, kernel, Padding::Valid, &x);
        };
        let reversed: Vec<bool>;
        let footprint = match extremum {
            Extremum::Min => Footprint::new(kernel, &taps)?,
            Extremum::Max => {
                reversed = taps.iter().rev().copied().collect();
                Footprint::new(kernel, &reversed)?
            }
        };
        let x = self.padded(extremum, input, padding, x)?;
        let input = Shape::from_dims(x.dims(), self.layout)?;
        let pooling = Pooling::new(input, &Window::new(kernel), self.layout)?;
        under(extremum, &pooling, footprint, &x)
    }

    /// The extremum of the elements in a rectangle that is moved by one element.
    fn rectangle(
        &self,
        extremum: Extremum,
        kernel: Extents,
        padding: Padding,
        x: &Tensor,
    ) -> Result<Tensor> {
        let window = Window::new(kernel).padding(padding);
        match extremum {
            Extremum::Min => MinPool::with_window(window).layout(self.layout).forward(x),
            Extremum::Max => MaxPool::with_window(window).layout(self.layout).forward(x),
        }
    }

    /// The input with what is past its edges. Where that is nothing, it is the number that never is the extremum.
    fn padded(
        &self,
        extremum: Extremum,
        input: Shape,
        padding: Padding,
        x: &Tensor,
    ) -> Result<Tensor> {
        let (mode, value) = match self.border {
            Border::Nothing => {
                let never = with_element!(x.dtype(), T => match extremum {
                    Extremum::Min => T::HIGHEST.to_f64(),
                    Extremum::Max => T::LOWEST.to_f64(),
                });
                (PaddingMode::Zeros, never)
            }
            Border::Constant(value) => (PaddingMode::Zeros, value),
            Border::Copies(mode) => (mode, 0.0),
        };
        pad::forward(&Padded::new(input, padding, mode, self.layout)?, value, x)
    }
}

/// The extent of a disk or a ball.
fn side(radius: usize) -> usize {
    radius.saturating_mul(2).saturating_add(1)
}

impl Taps {
    /// Of each tap of the kernel in row-major order, whether it counts; none if all do.
    fn listed(&self, kernel: Extents) -> Result<Option<Arc<[bool]>>> {
        let radius = match self {
            Self::All | Self::Within(0) => return Ok(None),
            Self::These(taps) => return Ok(Some(taps.clone())),
            Self::Within(radius) => *radius,
        };
        let (side, rank) = (side(radius), kernel.rank() as u32);
        let asked = side.checked_pow(rank);
        let Some(count) = asked.filter(|count| *count <= MOST_TAPS) else {
            let (axis, what, limit) = (None, Quantity::Taps, MOST_TAPS);
            return Err(geometry::Error::TooLarge { axis, what, asked, limit }.into());
        };
        let is_within = |tap: usize| {
            let along = |axis| (tap / side.pow(axis) % side).abs_diff(radius).pow(2);
            (0..rank).map(along).sum::<usize>() <= radius * radius
        };
        Ok(Some((0..count).map(is_within).collect()))
    }
}

const NAME: &str = "morphology";

/// The extremum under a footprint.
fn under(
    extremum: Extremum,
    pooling: &Pooling,
    footprint: Footprint<'_>,
    x: &Tensor,
) -> Result<Tensor> {
    let dims: Vec<usize> = pooling.output().dims(pooling.layout()).collect();
    count(&dims)?;
    #[cfg(feature = "kernels")]
    if let (Some((_, from)), Some(target)) = (x.memory(), x.device().target()) {
        use windowpane_kernels::pool::{Output, Problem, Reduction, launch_footprint};
        let to = crate::tensor::memory(x.device(), target, x.dtype(), count(&dims)?)?;
        let problem =
            Problem::new(pooling, Reduction::Extremum(extremum, Output::Values), x.dtype());
        launch_footprint(target, problem, footprint, [from, &to])
            .map_err(|reason| x.device().refuses(reason))?;
        let work = format!("{NAME} of {} {dims:?}", x.dtype());
        return Ok(Tensor::on_device(x.device(), x.dtype(), dims, to, work).doubted_with(&[x]));
    }
    use windowpane_host::pool::{extremum_under, extremum_under_bytes};
    let y = with_element!(x.dtype(), T => {
        x.device().require_memory(extremum_under_bytes::<T>(pooling, footprint), NAME)?;
        T::into_host(extremum_under(extremum, pooling, footprint, element_slice::<T>(&x.read()?)))
    });
    Ok(Tensor::on_host(x.device(), dims, y))
}

/// The difference of two tensors of the same device, type and dimensions.
fn difference(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (device, dtype, dims) = (a.device(), a.dtype(), a.dims().to_vec());
    #[cfg(feature = "kernels")]
    if let (Some((_, first)), Some((_, second)), Some(target)) =
        (a.memory(), b.memory(), device.target())
    {
        let elements = count(&dims)?;
        let y = crate::tensor::memory(device, target, dtype, elements)?;
        windowpane_kernels::difference(target, dtype, elements, [first, second, &y])
            .map_err(|reason| device.refuses(reason.into()))?;
        let work = format!("a difference of {dtype} {dims:?}");
        return Ok(Tensor::on_device(device, dtype, dims, y, work).doubted_with(&[a, b]));
    }
    let y = with_element!(dtype, T => {
        let bytes = count(&dims)?.saturating_mul(size_of::<T>());
        device.require_memory(bytes, NAME)?;
        let (a, b) = (a.read()?, b.read()?);
        let pairs = element_slice::<T>(&a).iter().zip(element_slice::<T>(&b));
        T::into_host(pairs.map(|(a, b)| a.minus(*b)).collect())
    });
    Ok(Tensor::on_host(device, dims, y))
}
