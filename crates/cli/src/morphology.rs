//! `windowpane morphology`: erosion, dilation and what is made of them.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use windowpane::{DType, Extents, Layout, Morphology as Operator, PaddingMode};

use crate::args::{On, check_dims, positive};
use crate::array;
use crate::failure::Failure;
use crate::layouts::{Layouts, layouts};
use crate::output::{Output, write_all};
use crate::progress::Progress;

const EXAMPLE: &str = "\
Example: remove bright specks of fewer than 15×15 pixels
  windowpane morphology picture.npy -o out.npy --op opening --kernel 15,15
Example: the outlines of shapes, by a disk, with the picture's mirror image past its edges
  windowpane morphology picture.npy -o out.npy --op gradient --disk 3 --padding-mode symmetric

Files are as for pool. A footprint is an array of one dimension per axis, in which what is not 0
counts.";

/// What is computed.
#[derive(Clone, Copy, ValueEnum)]
enum Op {
    /// The minimum under the structuring element
    Erosion,
    /// The maximum under its mirror image
    Dilation,
    /// Erosion, then dilation
    Opening,
    /// Dilation, then erosion
    Closing,
    /// Dilation less erosion
    Gradient,
    /// The input less its opening
    WhiteTopHat,
    /// The closing less the input
    BlackTopHat,
}

/// The arguments of `morphology`.
#[derive(Args)]
#[command(
    after_help = EXAMPLE,
    group = ArgGroup::new("element").args(["kernel", "footprint", "disk", "ball"]).required(true),
)]
pub(crate) struct Morphology {
    /// The array, with two more dimensions than the structuring element
    #[arg(value_name = "INPUT.npy")]
    input: PathBuf,
    /// File for the result
    #[arg(short, long, value_name = "OUT.npy")]
    output: PathBuf,
    /// What is computed
    #[arg(long, value_enum)]
    op: Op,
    /// A rectangle of this size: 1, 2 or 3 numbers, one per axis
    #[arg(long, value_name = "K,…", value_parser = positive)]
    kernel: Option<Extents>,
    /// The elements of an array that are not 0
    #[arg(long, value_name = "F.npy")]
    footprint: Option<PathBuf>,
    /// The pixels at most this far from the middle
    #[arg(long, value_name = "R")]
    disk: Option<usize>,
    /// The voxels at most this far from the middle
    #[arg(long, value_name = "R")]
    ball: Option<usize>,
    /// Where the origin is, counted from the middle: one number per axis [default: the middle]
    #[arg(long, value_name = "O,…", value_delimiter = ',', allow_hyphen_values = true)]
    origin: Vec<isize>,
    /// The number past the edges [default: nothing is there]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    constant: Option<f64>,
    /// Which elements are repeated past the edges: reflect, symmetric, replicate or circular; zeros for 0
    #[arg(long, value_name = "MODE", conflicts_with = "constant")]
    padding_mode: Option<PaddingMode>,
    /// Memory layout: channels-last (N,…,C) or channels-first (N,C,…); also nhwc, nchw and so on
    #[arg(long, value_name = "LAYOUT", value_parser = layouts, default_value = "channels-last")]
    layout: Layouts,
    /// Type to compute in [default: the file's]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<DType>,
    #[command(flatten)]
    on: On,
}

impl Morphology {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let (element, rank) = self.element()?;
        let layout = self.layout.check(rank)?.data;
        let operator = self.with_options(element, layout);
        let device = self.on.open()?;
        let output = Output::new(&self.output)?;

        let name = self.input.display().to_string();
        let progress = Progress::new(self.on.quiet, format!("reading {name}"));
        let file = array::read(&self.input)?;
        check_dims(&name, file.dims(), "the structuring element", rank, layout)?;
        let x = file.to_dtype(self.dtype.unwrap_or(file.dtype()))?.to_device(&device)?;

        progress.now(format!("computing on {device}"));
        let y = match self.op {
            Op::Erosion => operator.erosion(&x),
            Op::Dilation => operator.dilation(&x),
            Op::Opening => operator.opening(&x),
            Op::Closing => operator.closing(&x),
            Op::Gradient => operator.gradient(&x),
            Op::WhiteTopHat => operator.white_top_hat(&x),
            Op::BlackTopHat => operator.black_top_hat(&x),
        }?;
        let summary = format!("{} {:?} → {:?} on {device}", x.dtype(), x.dims(), y.dims());
        progress.now(format!("writing {}", self.output.display()));
        drop(progress);
        write_all(&[(output, y)], (!self.on.quiet).then_some(summary))
    }

    /// The structuring element and its number of axes.
    fn element(&self) -> Result<(Operator, usize), Failure> {
        Ok(match (self.kernel, &self.footprint, self.disk, self.ball) {
            (Some(kernel), ..) => (Operator::new(kernel), kernel.rank()),
            (None, Some(path), ..) => {
                let file = array::read(path)?;
                let extents = Extents::try_from(file.dims())
                    .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
                let taps = file.to_dtype(DType::Bool)?.to_vec::<bool>()?;
                (Operator::with_footprint(extents, &taps)?, extents.rank())
            }
            (None, None, Some(radius), _) => (Operator::disk(radius), 2),
            (None, None, None, radius) => (Operator::ball(radius.unwrap_or_default()), 3),
        })
    }

    fn with_options(&self, operator: Operator, layout: Layout) -> Operator {
        let operator = operator.layout(layout).origin(self.origin.clone());
        match (self.constant, self.padding_mode) {
            (Some(value), _) => operator.constant(value),
            (None, Some(mode)) => operator.padding_mode(mode),
            (None, None) => operator,
        }
    }
}
