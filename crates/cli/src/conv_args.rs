//! Arguments that the convolution commands share.

use std::path::{Path, PathBuf};

use clap::Args;
use windowpane::{
    Activation, Conv, ConvAlgorithm, DType, Device, Extents, FilterLayout, Layout, Padding,
    PaddingMode, Precision, Tensor, TileOverrides, Window,
};

use crate::args::{natural, padding, positive};
use crate::array::{self, Location};
use crate::failure::Failure;
use crate::layouts::{Layouts, layouts};
use crate::tuned;

/// The window, the layouts and the algorithm of a convolution.
#[derive(Args)]
pub(crate) struct ConvArgs {
    /// Step between windows, one number per axis [default: 1]
    #[arg(long, value_name = "S,…", value_parser = positive)]
    stride: Option<Extents>,
    /// Padding per axis: 1,1, or 1:2,0:1 as before:after, or same-upper, same-lower, valid
    #[arg(long, value_name = "P,…", value_parser = padding, default_value = "valid")]
    padding: Padding,
    /// What is outside the input: zeros, reflect, symmetric, replicate or circular
    #[arg(long, value_name = "MODE", default_value = "zeros")]
    padding_mode: PaddingMode,
    /// Step between the taps of a window, one number per axis [default: 1]
    #[arg(long, value_name = "D,…", value_parser = positive)]
    dilation: Option<Extents>,
    /// Number of groups that the channels and filters are divided into
    #[arg(long, value_name = "G", value_parser = natural, default_value = "1")]
    groups: usize,
    /// Memory layout: channels-last or channels-first, for data and filters, or a pair: nhwc_fhwc, nhwc_hwcf,
    /// nchw_fchw and so on; in 1-D nwc_fwc, in 3-D ndhwc_fdhwc
    #[arg(long, value_name = "LAYOUT", value_parser = layouts, default_value = "channels-last")]
    layout: Layouts,
    /// strict, or tf32 (f32 with factors rounded to 11 significant bits) if the device supports it
    #[arg(long, default_value = "strict")]
    precision: Precision,
    /// Tile sizes to override: any of block_m, block_n, block_k, ratio_m, ratio_n, elems_per_thread
    /// and stages, as in block_m=128,block_k=32
    #[arg(long, value_name = "NAME=NUMBER,…")]
    tile: Option<TileOverrides>,
    /// auto, or the name of a kernel as `plan conv` prints it
    #[arg(long, value_parser = algorithm, default_value = "auto")]
    algorithm: Auto,
    /// Use the choices in a file that `bench --tune` wrote
    #[arg(long, value_name = "FILE")]
    tuned: Option<PathBuf>,
    /// Type to compute in: f64, f32, f16 or bf16 [default: the file's, else f32]
    #[arg(long, value_name = "TYPE")]
    pub(crate) dtype: Option<DType>,
}

/// An algorithm, or `None` for the automatic choice.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Auto(Option<ConvAlgorithm>);

fn algorithm(text: &str) -> Result<Auto, String> {
    match text {
        "auto" => Ok(Auto(None)),
        name => match name.parse() {
            Ok(algorithm) => Ok(Auto(Some(algorithm))),
            Err(error) => Err(format!("{error}")),
        },
    }
}

impl ConvArgs {
    /// The operator over windows of size `kernel`, which comes from the filters, or from an argument
    /// when the filters' gradient is computed. Plans made afterwards use the tuned choices.
    pub(crate) fn operator(&self, kernel: Extents) -> Result<Conv, Failure> {
        self.tuned.as_deref().map_or(Ok(()), tuned::follow)?;
        let rank = kernel.rank();
        let padding = match self.padding {
            Padding::Explicit { before, .. } => Some(before),
            _ => None,
        };
        for (flag, extents) in
            [("stride", self.stride), ("padding", padding), ("dilation", self.dilation)]
        {
            if let Some(found) = extents.map(|extents| extents.rank()).filter(|n| *n != rank) {
                return Err(Failure::Arguments(format!(
                    "--{flag} has {found} numbers but the filters have {rank} axes; give one number per axis"
                )));
            }
        }
        let layouts = self.layouts(rank)?;
        let mut window = Window::new(kernel).padding(self.padding);
        if let Some(stride) = self.stride {
            window = window.stride(stride);
        }
        if let Some(dilation) = self.dilation {
            window = window.dilation(dilation);
        }
        Ok(Conv::with_window(window)
            .groups(self.groups)
            .layout(layouts.data)
            .filter_layout(layouts.filters)
            .padding_mode(self.padding_mode)
            .precision(self.precision)
            .tile(self.tile.unwrap_or_default())
            .algorithm(self.algorithm.0))
    }

    fn layouts(&self, rank: usize) -> Result<Layouts, Failure> {
        self.layout.check(rank)
    }

    /// The kernel size of filters with these dimensions.
    pub(crate) fn kernel(&self, whose: &str, dims: &[usize]) -> Result<Extents, Failure> {
        let rank = axes_of(whose, dims)?;
        let first = match self.layouts(rank)?.filters {
            FilterLayout::Fhwc => 1,
            FilterLayout::Hwcf => 0,
            FilterLayout::Fchw => 2,
        };
        Extents::try_from(&dims[first..first + rank]).map_err(|error| Failure::Work(error.into()))
    }

    /// The dimensions of an input with spatial extents `size`, from those of the output and the
    /// filters.
    pub(crate) fn input_dims(
        &self,
        output: &[usize],
        filters: &[usize],
        size: Extents,
    ) -> Result<Vec<usize>, Failure> {
        let layouts = self.layouts(size.rank())?;
        let channels = match layouts.filters {
            FilterLayout::Fhwc => filters[filters.len() - 1],
            FilterLayout::Hwcf => filters[filters.len() - 2],
            FilterLayout::Fchw => filters[1],
        };
        let channels = channels.saturating_mul(self.groups);
        let mut dims = vec![output[0]];
        dims.extend(size.as_slice());
        match layouts.data {
            Layout::ChannelsLast => dims.push(channels),
            Layout::ChannelsFirst => dims.insert(1, channels),
        }
        Ok(dims)
    }
}

/// The number of spatial axes of an array.
pub(crate) fn axes_of(whose: &str, dims: &[usize]) -> Result<usize, Failure> {
    match dims.len() {
        3..=5 => Ok(dims.len() - 2),
        n => Err(Failure::Failed(format!(
            "{whose} has {n} dimensions, {dims:?}; a convolution has 3, 4 or 5"
        ))),
    }
}

/// An array from a file, and the file's name.
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) tensor: Tensor,
}

impl File {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let tensor = array::read(path)?;
        Ok(Self { name: Location::of(path).to_string(), tensor })
    }

    pub(crate) fn dims(&self) -> &[usize] {
        self.tensor.dims()
    }

    /// Refuses dimensions that do not fit the other files.
    pub(crate) fn expect(&self, dims: &[usize], whose: &str) -> Result<(), Failure> {
        if self.dims() == dims {
            return Ok(());
        }
        let (name, found) = (&self.name, self.dims());
        Err(Failure::Failed(format!(
            "{name} has the dimensions {found:?} but {whose} {dims:?}; use files and options that \
             belong together"
        )))
    }

    /// The file's name and the type of its elements.
    pub(crate) fn typed(&self) -> (&str, DType) {
        (&self.name, self.tensor.dtype())
    }

    /// The array converted to `dtype`, on the device.
    pub(crate) fn upload(&self, dtype: DType, device: &Device) -> Result<Tensor, Failure> {
        Ok(self.tensor.to_dtype(dtype)?.to_device(device)?)
    }
}

/// The dimensions of the convolution's output.
pub(crate) fn output_dims(plan: &windowpane::ConvPlan) -> Vec<usize> {
    plan.problem().output().dims(plan.problem().layout()).collect()
}

/// An optional array from a file.
pub(crate) fn read_optional(path: Option<&PathBuf>) -> Result<Option<File>, Failure> {
    path.map(|path| File::read(path)).transpose()
}

/// One line that says what was done.
pub(crate) fn summary(plan: &windowpane::ConvPlan, dtype: DType, result: &Tensor) -> String {
    format!(
        "{} {dtype} → {:?} on {}, {}",
        plan.pass().name(),
        result.dims(),
        plan.device(),
        plan.algorithm(),
    )
}

/// An activation, its name checked by its own parser.
pub(crate) fn activation(text: &str) -> Result<Activation, String> {
    text.parse().map_err(|error| format!("{error}"))
}
