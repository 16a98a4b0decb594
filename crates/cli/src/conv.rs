//! `windowpane conv`: one convolution on files.

use std::path::PathBuf;

use clap::Args;
use windowpane::{Activation, DType, Device, QuantizedConv, Tensor};

use crate::args::{On, common_type};
use crate::conv_args::{ConvArgs, File, activation, axes_of, output_dims, read_optional, summary};
use crate::failure::Failure;
use crate::memory;
use crate::output::{Output, write_all};
use crate::progress::Progress;

const EXAMPLE: &str = "\
Example: 3×3 filters (NF,H,W,C) over an image batch (N,H,W,C), a bias and a ReLU
  windowpane conv images.npy filters.npy -o out.npy --padding 1,1 --bias b.npy --activation relu

Example: 8-bit integers (int8 files), with one scale per filter and an int8 result
  windowpane conv x.npy w.npy -o out.npy --scale s.npy --bias b.npy --output-dtype i8

Files may hold float64, float32 or float16; a .npy file holds bf16 as float32, for --dtype bf16. A
file is .npy or .safetensors, where x.safetensors#NAME is one of several tensors, or - for standard
input or output, as .npy. The output file appears complete or not at all.";

/// The arguments of `conv`.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Conv {
    /// The array to convolve
    #[arg(value_name = "INPUT.npy")]
    input: PathBuf,
    /// The filters; they determine the window size
    #[arg(value_name = "WEIGHT.npy")]
    weight: PathBuf,
    /// File for the result
    #[arg(short, long, value_name = "OUT.npy")]
    output: PathBuf,
    /// Bias: one number per filter, added to its sums
    #[arg(long, value_name = "B.npy")]
    bias: Option<PathBuf>,
    /// Scale: one number per filter, by which the exact sums of int8 files are multiplied before the bias is added
    #[arg(long, value_name = "S.npy", conflicts_with_all = ["residual", "dtype"])]
    scale: Option<PathBuf>,
    /// Type of a result with a scale: f32, f16, bf16 or i8
    #[arg(long, value_name = "TYPE", requires = "scale", default_value = "f32")]
    output_dtype: DType,
    /// Residual: an array with the output's dimensions, added after the bias
    #[arg(long, value_name = "R.npy")]
    residual: Option<PathBuf>,
    /// Activation, applied last: none, relu, relu6, gelu, silu, leaky or leaky:SLOPE
    #[arg(long, value_name = "NAME", value_parser = activation, default_value = "none")]
    activation: Activation,
    #[command(flatten)]
    conv: ConvArgs,
    #[command(flatten)]
    on: On,
}

impl Conv {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let device = self.on.open()?;
        let output = Output::new(&self.output)?;
        let progress = Progress::new(self.on.quiet, format!("reading {}", self.input.display()));
        let (x, w) = (File::read(&self.input)?, File::read(&self.weight)?);
        let bias = read_optional(self.bias.as_ref())?;
        let residual = read_optional(self.residual.as_ref())?;

        axes_of(&x.name, x.dims())?;
        let kernel = self.conv.kernel(&w.name, w.dims())?;
        let conv = self.conv.operator(kernel)?.activation(self.activation);
        if let Some(scale) = read_optional(self.scale.as_ref())? {
            let files = Quantized { x, w, scale, bias };
            let (y, summary) =
                files.convolved(conv.quantized().output(self.output_dtype), &device)?;
            progress.now(format!("writing {}", self.output.display()));
            drop(progress);
            return write_all(&[(output, y)], (!self.on.quiet).then_some(summary));
        }
        let others = [Some(&w), bias.as_ref(), residual.as_ref()].into_iter().flatten();
        let dtype = common_type(self.conv.dtype, x.typed(), others.map(File::typed))?;
        let plan = conv.plan(&device, dtype, x.dims(), w.dims())?;
        if let Some(bias) = &bias {
            bias.expect(&[plan.problem().filter().count()], "a bias of these filters has")?;
        }
        if let Some(residual) = &residual {
            residual.expect(&output_dims(&plan), "a residual, like the output, has")?;
        }
        memory::check_results(plan.problem().output().elements(), dtype)?;

        progress.now(format!("convolving on {device}"));
        let (x, w) = (x.upload(dtype, &device)?, w.upload(dtype, &device)?);
        let bias = bias.map(|bias| bias.upload(dtype, &device)).transpose()?;
        let residual = residual.map(|residual| residual.upload(dtype, &device)).transpose()?;
        let y = conv.forward_with_plan(&plan, &x, &w, bias.as_ref(), residual.as_ref())?;
        let summary = summary(&plan, dtype, &y);
        progress.now(format!("writing {}", self.output.display()));
        drop(progress);
        write_all(&[(output, y)], (!self.on.quiet).then_some(summary))
    }
}

/// The files of a quantized convolution.
struct Quantized {
    x: File,
    w: File,
    scale: File,
    bias: Option<File>,
}

impl Quantized {
    /// The result, and one line that says what was done.
    fn convolved(self, conv: QuantizedConv, device: &Device) -> Result<(Tensor, String), Failure> {
        let Self { x, w, scale, bias } = self;
        for file in [&x, &w] {
            let (name, found) = file.typed();
            if found != DType::I8 {
                return Err(Failure::Failed(format!(
                    "{name} holds {found}, and a convolution with a scale multiplies i8; quantize it first"
                )));
            }
        }
        let plan = conv.plan(device, x.dims(), w.dims())?;
        let filters = [plan.problem().filter().count()];
        scale.expect(&filters, "a scale of these filters has")?;
        if let Some(bias) = &bias {
            bias.expect(&filters, "a bias of these filters has")?;
        }
        memory::check_results(plan.problem().output().elements(), plan.output_dtype())?;
        let (x, w) = (x.upload(DType::I8, device)?, w.upload(DType::I8, device)?);
        let scale = scale.upload(DType::F32, device)?;
        let bias = bias.map(|bias| bias.upload(DType::F32, device)).transpose()?;
        let y = conv.forward_with_plan(&plan, &x, &w, &scale, bias.as_ref())?;
        let summary = summary(&plan, plan.dtype(), &y);
        Ok((y, summary))
    }
}
