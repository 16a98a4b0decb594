//! `windowpane pool`: one pooling on a file.

use std::path::{Path, PathBuf};

use clap::Args;
use windowpane::{DType, IndexBase, PoolPlan};

use crate::args::{On, Operator, PoolArgs, index_base};
use crate::array;
use crate::failure::Failure;
use crate::memory;
use crate::output::{Output, write_all};
use crate::progress::Progress;

const EXAMPLE: &str = "\
Example: the maxima of an image batch (N,H,W,C), and their positions
  windowpane pool images.npy -o pooled.npy --kernel 3,3 --stride 2,2 --padding 1,1 --indices at.npy
Example: average pooling to 7×7 outputs, whatever the size of the images
  windowpane pool images.npy -o pooled.npy --op avg --adaptive 7,7
Example: the median of each pixel's neighbours, which removes outliers
  windowpane pool images.npy -o clean.npy --op median --kernel 3,3 --stride 1,1 --padding 1,1
Example: a volume of labels (N,D,H,W,C) at half the resolution, by the most frequent label
  windowpane pool labels.npy -o smaller.npy --op mode --kernel 2,2,2 --ceil

Files may hold float64, 32, 16, int64, 32, 16, 8, uint32, 16, 8 or bool; a .npy file holds bf16 as
float32, for --dtype bf16. A file is .npy or .safetensors, where x.safetensors#NAME is one of
several tensors, or - for standard input or output, as .npy. Output files appear complete or not
at all.";

/// The arguments of `pool`.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Pool {
    /// The array to pool, with two more dimensions than the window
    #[arg(value_name = "INPUT.npy")]
    input: PathBuf,
    /// File for the result
    #[arg(short, long, value_name = "OUT.npy")]
    output: PathBuf,
    /// File for the indices of the maxima, the minima or the drawn numbers, as int32
    #[arg(long, value_name = "IDX.npy")]
    indices: Option<PathBuf>,
    /// What an index counts: plane (PyTorch), tensor (ONNX) or memory (elements in the file)
    #[arg(long, value_parser = index_base, requires = "indices", default_value = "plane")]
    index_base: IndexBase,
    #[command(flatten)]
    pool: PoolArgs,
    #[command(flatten)]
    on: On,
}

impl Pool {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let operator = self.pool.operator(self.indices.as_ref().map(|_| self.index_base))?;
        let device = self.on.open()?;
        let outputs = outputs(&self.output, self.indices.as_deref())?;

        let name = self.input.display().to_string();
        let progress = Progress::new(self.on.quiet, format!("reading {name}"));
        let file = array::read(&self.input)?;
        self.pool.check_dims(&name, file.dims())?;
        let dtype = self.pool.dtype.unwrap_or(file.dtype());
        let plan = operator.plan(&device, dtype, file.dims())?;
        memory::check_pooling(plan.pooling(), 2 * dtype.size() + size_of::<i32>())?;

        progress.now(format!("pooling on {device}"));
        let x = file.to_dtype(dtype)?.to_device(&device)?;
        let results = match operator {
            Operator::Max { pool, with_indices: false } => vec![pool.forward_with_plan(&plan, &x)?],
            Operator::Max { pool, with_indices: true } => {
                let (y, indices) = pool.forward_with_indices_with_plan(&plan, &x)?;
                vec![y, indices]
            }
            Operator::Min { pool, with_indices: false } => vec![pool.forward_with_plan(&plan, &x)?],
            Operator::Min { pool, with_indices: true } => {
                let (y, indices) = pool.forward_with_indices_with_plan(&plan, &x)?;
                vec![y, indices]
            }
            Operator::Average(pool, _) => vec![pool.forward_with_plan(&plan, &x)?],
            Operator::Norm(pool, _) => vec![pool.forward_with_plan(&plan, &x)?],
            Operator::Rank(pool, _) => vec![pool.forward_with_plan(&plan, &x)?],
            Operator::Mode(pool) => vec![pool.forward_with_plan(&plan, &x)?],
            Operator::Drawn { pool, with_indices: false } => {
                vec![pool.forward_with_plan(&plan, &x)?]
            }
            Operator::Drawn { pool, with_indices: true } => {
                let (y, indices) = pool.forward_with_indices_with_plan(&plan, &x)?;
                vec![y, indices]
            }
            Operator::MeanDrawn(pool) => vec![pool.mean_with_plan(&plan, &x)?],
        };

        let summary = summary(&plan, [x.dims(), results[0].dims()], dtype);
        progress.now(format!("writing {}", self.output.display()));
        drop(progress);
        write_all(
            &outputs.into_iter().zip(results).collect::<Vec<_>>(),
            (!self.on.quiet).then_some(summary),
        )
    }
}

/// The files to write, checked before any work is done.
pub(crate) fn outputs(output: &Path, indices: Option<&Path>) -> Result<Vec<Output>, Failure> {
    let mut outputs = vec![Output::new(output)?];
    if let Some(indices) = indices {
        let indices = Output::new(indices)?;
        if indices.is(&outputs[0]) {
            let reason = "--output and --indices name the same file; use two files";
            return Err(Failure::Arguments(reason.into()));
        }
        outputs.push(indices);
    }
    Ok(outputs)
}

/// One line that says what was done: operator, dimensions, device and algorithm.
pub(crate) fn summary(plan: &PoolPlan, [from, to]: [&[usize]; 2], dtype: DType) -> String {
    format!(
        "{} {dtype} {from:?} → {to:?} on {}, {}",
        plan.rows().first().map_or("pooling", |(_, operator)| operator),
        plan.device(),
        plan.algorithm(),
    )
}
