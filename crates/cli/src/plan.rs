//! `windowpane plan`: how an operator would run, without running it.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use windowpane::{DType, Device, IndexBase, Tensor};

use crate::args::{On, PoolArgs, Shape, index_base, shape};
use crate::conv_plan::PlanConv;
use crate::failure::Failure;
use crate::progress::say;
use crate::table;

const EXAMPLE: &str = "\
Example: max pooling of 8 images of 112×112 with 64 channels
  windowpane plan pool --shape 8,112,112,64 --kernel 3,3 --stride 2,2 --padding 1,1";

/// The arguments of `plan`.
#[derive(Args)]
pub(crate) struct Plan {
    #[command(subcommand)]
    operator: Operator,
}

#[derive(Subcommand)]
enum Operator {
    /// Show how a pooling would run.
    Pool(PlanPool),
    /// Show how a convolution would run, and its symbol table.
    Conv(PlanConv),
}

#[derive(Args)]
#[command(
    after_help = EXAMPLE,
    group = ArgGroup::new("array").args(["input", "shape"]).required(true),
)]
struct PlanPool {
    /// An array; only its dimensions and type are used
    #[arg(value_name = "INPUT.npy")]
    input: Option<PathBuf>,
    /// The array's dimensions in memory order, in place of a file
    #[arg(long, value_name = "N,…", value_parser = shape)]
    shape: Option<Shape>,
    /// Include the indices of the maxima
    #[arg(long)]
    indices: bool,
    /// What an index counts: plane, tensor or memory
    #[arg(long, value_parser = index_base, requires = "indices", default_value = "plane")]
    index_base: IndexBase,
    /// Print every kernel too: whether it is chosen, or why not
    #[arg(long)]
    why: bool,
    #[command(flatten)]
    pool: PoolArgs,
    #[command(flatten)]
    on: On,
}

impl Plan {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.operator {
            Operator::Pool(plan) => plan.run(),
            Operator::Conv(plan) => plan.run(),
        }
    }
}

impl PlanPool {
    fn run(&self) -> Result<(), Failure> {
        let operator = self.pool.operator(self.indices.then_some(self.index_base))?;
        let device = self.on.open()?;
        let (whose, dims, dtype) = match (&self.input, &self.shape) {
            (Some(path), _) => {
                let file = Tensor::read_npy(&Device::host(), path)?;
                (path.display().to_string(), file.dims().to_vec(), file.dtype())
            }
            (None, shape) => {
                let Shape(dims) = shape.clone().unwrap_or(Shape(Vec::new()));
                ("--shape".into(), dims, DType::F32)
            }
        };
        self.pool.check_dims(&whose, &dims)?;
        let plan = operator.plan(&device, self.pool.dtype.unwrap_or(dtype), &dims)?;
        let mut table = table::new();
        for (name, value) in plan.rows() {
            table.add_row([name, &value]);
        }
        if self.why {
            for (kernel, verdict) in plan.why() {
                table.add_row([kernel, &verdict]);
            }
        }
        say(table)
    }
}
