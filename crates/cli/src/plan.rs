//! `windowpane plan`: how an operator would run, without running it.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Map, Value, json};
use windowpane::{DType, IndexBase};

use crate::args::{Format, On, PoolArgs, Shape, index_base, shape};
use crate::array::{self, Location};
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
    /// Include the indices of the maxima or minima
    #[arg(long)]
    indices: bool,
    /// What an index counts: plane, tensor or memory
    #[arg(long, value_parser = index_base, requires = "indices", default_value = "plane")]
    index_base: IndexBase,
    /// List every kernel, with its estimated time or the reason why it does not apply
    #[arg(long)]
    why: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
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
                let file = array::read(path)?;
                (Location::of(path).to_string(), file.dims().to_vec(), file.dtype())
            }
            (None, shape) => {
                let Shape(dims) = shape.clone().unwrap_or(Shape(Vec::new()));
                ("--shape".into(), dims, DType::F32)
            }
        };
        self.pool.check_dims(&whose, &dims)?;
        let plan = operator.plan(&device, self.pool.dtype.unwrap_or(dtype), &dims)?;
        if self.format == Format::Json {
            return say(json(plan.rows(), self.why.then(|| plan.why())));
        }
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

/// The rows of a plan as one JSON object, with numbers as numbers, and the reasons for its kernel as a list.
pub(crate) fn json(
    rows: Vec<(&'static str, String)>,
    why: Option<Vec<(&'static str, String)>>,
) -> Value {
    let value = |text: String| text.parse::<u64>().map_or(Value::from(text), Value::from);
    let mut object: Map<String, Value> =
        rows.into_iter().map(|(name, text)| (name.into(), value(text))).collect();
    if let Some(why) = why {
        let reasons = why.into_iter();
        let reasons: Vec<_> =
            reasons.map(|(kernel, reason)| json!({"kernel": kernel, "reason": reason})).collect();
        object.insert("why".into(), reasons.into());
    }
    object.into()
}
