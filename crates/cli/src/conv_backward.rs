//! `windowpane conv-backward`: the gradients of a convolution, from files.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use windowpane::Extents;

use crate::args::{On, common_type, positive};
use crate::conv_args::{ConvArgs, File, axes_of, output_dims, summary};
use crate::failure::Failure;
use crate::memory;
use crate::output::{Output, write_all};
use crate::progress::Progress;

const DATA_EXAMPLE: &str = "\
Example: the data gradient of `windowpane conv x.npy w.npy -o y.npy --padding 1,1`
  windowpane conv-backward data dy.npy w.npy --input-size 32,32 -o dx.npy --padding 1,1";

const WEIGHT_EXAMPLE: &str = "\
Example: the weight gradient of `windowpane conv x.npy w.npy -o y.npy --padding 1,1`
  windowpane conv-backward weight dy.npy x.npy --kernel 3,3 -o dw.npy --padding 1,1";

/// The arguments of `conv-backward`.
#[derive(Args)]
pub(crate) struct ConvBackward {
    #[command(subcommand)]
    with_respect_to: WithRespectTo,
}

#[derive(Subcommand)]
enum WithRespectTo {
    /// Compute the gradient with respect to the input.
    #[command(after_help = DATA_EXAMPLE)]
    Data(Data),
    /// Compute the gradient with respect to the filters.
    #[command(after_help = WEIGHT_EXAMPLE)]
    Weight(Weight),
}

#[derive(Args)]
struct Data {
    /// The gradient with respect to the output
    #[arg(value_name = "GRAD.npy")]
    gradient: PathBuf,
    /// The filters
    #[arg(value_name = "WEIGHT.npy")]
    weight: PathBuf,
    /// Spatial extents of the input; with a stride several inputs have the same output size
    #[arg(long, value_name = "L,…", value_parser = positive)]
    input_size: Extents,
    /// File for the data gradient
    #[arg(short, long, value_name = "DX.npy")]
    output: PathBuf,
    #[command(flatten)]
    conv: ConvArgs,
    #[command(flatten)]
    on: On,
}

#[derive(Args)]
struct Weight {
    /// The gradient with respect to the output
    #[arg(value_name = "GRAD.npy")]
    gradient: PathBuf,
    /// The input
    #[arg(value_name = "INPUT.npy")]
    input: PathBuf,
    /// Kernel size: 1, 2 or 3 numbers
    #[arg(long, value_name = "K,…", value_parser = positive)]
    kernel: Extents,
    /// File for the weight gradient
    #[arg(short, long, value_name = "DW.npy")]
    output: PathBuf,
    #[command(flatten)]
    conv: ConvArgs,
    #[command(flatten)]
    on: On,
}

impl ConvBackward {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.with_respect_to {
            WithRespectTo::Data(data) => data.run(),
            WithRespectTo::Weight(weight) => weight.run(),
        }
    }
}

impl Data {
    fn run(&self) -> Result<(), Failure> {
        let device = self.on.open()?;
        let output = Output::new(&self.output)?;
        let progress = Progress::new(self.on.quiet, "reading");
        let (dy, w) = (File::read(&self.gradient)?, File::read(&self.weight)?);
        let rank = axes_of(&dy.name, dy.dims())?;
        check_rank("--input-size", self.input_size, rank)?;
        let kernel = self.conv.kernel(&w.name, w.dims())?;
        check_same_rank(&w, kernel.rank(), rank)?;
        let conv = self.conv.operator(kernel)?;
        let x = self.conv.input_dims(dy.dims(), w.dims(), self.input_size)?;
        let dtype = common_type(self.conv.dtype, dy.typed(), [w.typed()])?;
        let plan = conv.plan_backward_data(&device, dtype, &x, w.dims())?;
        dy.expect(&output_dims(&plan), "the output for --input-size has")?;
        memory::check_results(plan.problem().input().elements(), dtype)?;

        progress.now(format!("working on {device}"));
        let (dy, w) = (dy.upload(dtype, &device)?, w.upload(dtype, &device)?);
        let dx = conv.backward_data_with_plan(&plan, &dy, &w)?;
        let summary = summary(&plan, dtype, &dx);
        drop(progress);
        write_all(&[(output, dx)], (!self.on.quiet).then_some(summary))
    }
}

impl Weight {
    fn run(&self) -> Result<(), Failure> {
        let device = self.on.open()?;
        let output = Output::new(&self.output)?;
        let progress = Progress::new(self.on.quiet, "reading");
        let (dy, x) = (File::read(&self.gradient)?, File::read(&self.input)?);
        let rank = axes_of(&dy.name, dy.dims())?;
        check_rank("--kernel", self.kernel, rank)?;
        check_same_rank(&x, axes_of(&x.name, x.dims())?, rank)?;
        let conv = self.conv.operator(self.kernel)?;
        let dtype = common_type(self.conv.dtype, dy.typed(), [x.typed()])?;
        let w = conv.filter_dims(dy.dims(), x.dims())?;
        let plan = conv.plan_backward_weight(&device, dtype, x.dims(), &w)?;
        dy.expect(&output_dims(&plan), "the output for --kernel and this input has")?;
        memory::check_results(plan.problem().filter().elements(), dtype)?;

        progress.now(format!("working on {device}"));
        let (dy, x) = (dy.upload(dtype, &device)?, x.upload(dtype, &device)?);
        let dw = conv.backward_weight_with_plan(&plan, &dy, &x)?;
        let summary = summary(&plan, dtype, &dw);
        drop(progress);
        write_all(&[(output, dw)], (!self.on.quiet).then_some(summary))
    }
}

fn check_rank(flag: &str, extents: Extents, rank: usize) -> Result<(), Failure> {
    match extents.rank() {
        found if found == rank => Ok(()),
        found => Err(Failure::Arguments(format!(
            "{flag} has {found} numbers but the gradient has {rank} axes; give one number per axis"
        ))),
    }
}

fn check_same_rank(file: &File, found: usize, rank: usize) -> Result<(), Failure> {
    if found == rank {
        return Ok(());
    }
    let (name, dims) = (&file.name, file.dims());
    Err(Failure::Failed(format!(
        "{name} has {found} axes, {dims:?}, but the gradient has {rank}; use files that belong together"
    )))
}
