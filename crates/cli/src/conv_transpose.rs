//! `windowpane conv-transpose`: one transposed convolution on files.

use std::path::PathBuf;

use clap::Args;
use windowpane::{Activation, Extents};

use crate::args::{On, common_type, counts};
use crate::conv_args::{ConvArgs, File, activation, axes_of, read_optional};
use crate::failure::Failure;
use crate::memory;
use crate::output::{Output, write_all};
use crate::progress::Progress;

const EXAMPLE: &str = "\
Example: images (N,H,W,C) of twice the size, by 4×4 filters (C,H,W,NF)
  windowpane conv-transpose images.npy filters.npy -o large.npy --stride 2,2 --padding 1,1

The filters are those of the convolution that turns the output into the input. PyTorch's weights of
ConvTranspose2d need --layout nchw_fchw. Files are as for conv.";

/// The arguments of `conv-transpose`.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct ConvTranspose {
    /// The array to convolve
    #[arg(value_name = "INPUT.npy")]
    input: PathBuf,
    /// The filters, as many as the input has channels; they determine the window size
    #[arg(value_name = "WEIGHT.npy")]
    weight: PathBuf,
    /// File for the result
    #[arg(short, long, value_name = "OUT.npy")]
    output: PathBuf,
    /// Bias: one number per channel of the output
    #[arg(long, value_name = "B.npy")]
    bias: Option<PathBuf>,
    /// How much longer the output is than the shortest one, per axis; less than the stride [default: 0]
    #[arg(long, value_name = "E,…", value_parser = counts)]
    output_padding: Option<Extents>,
    /// Activation, applied last: none, relu, relu6, gelu, silu, leaky or leaky:SLOPE
    #[arg(long, value_name = "NAME", value_parser = activation, default_value = "none")]
    activation: Activation,
    #[command(flatten)]
    conv: ConvArgs,
    #[command(flatten)]
    on: On,
}

impl ConvTranspose {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let device = self.on.open()?;
        let output = Output::new(&self.output)?;
        let progress = Progress::new(self.on.quiet, format!("reading {}", self.input.display()));
        let (x, w) = (File::read(&self.input)?, File::read(&self.weight)?);
        let bias = read_optional(self.bias.as_ref())?;

        axes_of(&x.name, x.dims())?;
        let kernel = self.conv.kernel(&w.name, w.dims())?;
        let conv = self.conv.operator(kernel)?.activation(self.activation);
        let conv = conv.transposed().output_padding(self.output_padding.unwrap_or(0.into()));
        let others = [Some(&w), bias.as_ref()].into_iter().flatten();
        let dtype = common_type(self.conv.dtype, x.typed(), others.map(File::typed))?;
        let plan = conv.plan(&device, dtype, x.dims(), w.dims())?;
        let result = plan.problem().input();
        if let Some(bias) = &bias {
            bias.expect(&[result.channels()], "a bias of this output has")?;
        }
        memory::check_results(result.elements(), dtype)?;

        progress.now(format!("convolving on {device}"));
        let (x, w) = (x.upload(dtype, &device)?, w.upload(dtype, &device)?);
        let bias = bias.map(|bias| bias.upload(dtype, &device)).transpose()?;
        let y = conv.forward_with_plan(&plan, &x, &w, bias.as_ref())?;
        let (dims, algorithm) = (y.dims(), plan.algorithm());
        let summary = format!("transposed convolution {dtype} → {dims:?} on {device}, {algorithm}");
        progress.now(format!("writing {}", self.output.display()));
        drop(progress);
        write_all(&[(output, y)], (!self.on.quiet).then_some(summary))
    }
}
