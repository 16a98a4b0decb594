//! `windowpane plan conv`: how a convolution would run.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use windowpane::DType;

use crate::args::{Format, On, Shape, filters, shape};
use crate::conv_args::{ConvArgs, File, axes_of};
use crate::failure::Failure;
use crate::plan::json;
use crate::progress::say;
use crate::table;

const EXAMPLE: &str = "\
Example: 64 filters of 3×3 over 8 images of 56×56 with 64 channels
  windowpane plan conv --shape 8,56,56,64 --weight-shape 64,3,3,64 --padding 1,1";

/// The arguments of `plan conv`.
#[derive(Args)]
#[command(
    after_help = EXAMPLE,
    group = ArgGroup::new("array").args(["input", "shape"]).required(true),
    group = ArgGroup::new("filters").args(["weight", "weight_shape"]).required(true),
)]
pub(crate) struct PlanConv {
    /// An array; only its dimensions and type are used
    #[arg(value_name = "INPUT.npy", requires = "weight")]
    input: Option<PathBuf>,
    /// The filters; only their dimensions are used
    #[arg(value_name = "WEIGHT.npy", requires = "input")]
    weight: Option<PathBuf>,
    /// The array's dimensions in memory order, in place of a file
    #[arg(long, value_name = "N,…", value_parser = shape, requires = "weight_shape")]
    shape: Option<Shape>,
    /// The filters' dimensions in memory order
    #[arg(long, value_name = "NF,…", value_parser = filters, requires = "shape")]
    weight_shape: Option<Shape>,
    /// Pass: forward, data (gradient with respect to the input) or weight (to the filters)
    #[arg(long, value_enum, default_value = "forward")]
    pass: Pass,
    /// List every kernel, with its estimated time or the reason why it does not apply
    #[arg(long)]
    why: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    #[command(flatten)]
    conv: ConvArgs,
    #[command(flatten)]
    on: On,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pass {
    // No help texts: they would make clap print every flag's help on separate lines.
    Forward,
    Data,
    Weight,
}

impl PlanConv {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let (x, dtype) = dims(self.input.as_ref(), self.shape.as_ref())?;
        let (w, _) = dims(self.weight.as_ref(), self.weight_shape.as_ref())?;
        axes_of("the input", &x)?;
        let conv = self.conv.operator(self.conv.kernel("the filter", &w)?)?;
        let device = self.on.open()?;
        let dtype = self.conv.dtype.unwrap_or(dtype);
        let plan = match self.pass {
            Pass::Forward if dtype == DType::I8 => conv.quantized().plan(&device, &x, &w)?,
            Pass::Forward => conv.plan(&device, dtype, &x, &w)?,
            Pass::Data => conv.plan_backward_data(&device, dtype, &x, &w)?,
            Pass::Weight => conv.plan_backward_weight(&device, dtype, &x, &w)?,
        };
        if self.format == Format::Json {
            return say(json(plan.rows(), self.why.then(|| plan.why())));
        }
        let mut table = table::new();
        for (name, value) in plan.rows() {
            table.add_row([name, &value]);
        }
        if !self.why {
            return say(table);
        }
        let mut reasons = table::new();
        for (name, reason) in plan.why() {
            reasons.add_row([name, &reason]);
        }
        say(format!("{table}\n\n{reasons}"))
    }
}

/// Dimensions from a file or an argument, and the file's type.
fn dims(file: Option<&PathBuf>, shape: Option<&Shape>) -> Result<(Vec<usize>, DType), Failure> {
    match (file, shape) {
        (Some(path), _) => {
            let file = File::read(path)?;
            Ok((file.dims().to_vec(), file.tensor.dtype()))
        }
        (None, shape) => {
            Ok((shape.map(|Shape(dims)| dims.clone()).unwrap_or_default(), DType::F32))
        }
    }
}
