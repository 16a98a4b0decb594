//! `windowpane pool-backward`: the gradient of one pooling, on files.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use windowpane::{Extents, IndexBase, Layout, Pooling, Tensor};
use windowpane_reference::pool::backward::check_indices;

use crate::args::{On, Operator, PoolArgs, common_type, index_base, positive};
use crate::array;
use crate::failure::Failure;
use crate::memory;
use crate::output::{Output, write_all};
use crate::pool::summary;
use crate::progress::Progress;
use crate::unpool::read_indices;

const EXAMPLE: &str = "\
Example: the gradient of max pooling; the maxima are located again in its input
  windowpane pool-backward grad.npy --input images.npy -o out.npy --kernel 3,3 --stride 2,2
Example: the same from the indices that pool wrote, without the input
  windowpane pool-backward grad.npy --input-size 112,112 --indices at.npy -o out.npy --kernel 3,3 \\
    --stride 2,2

Files are as for pool.";

/// The arguments of `pool-backward`.
#[derive(Args)]
#[command(
    after_help = EXAMPLE,
    group = ArgGroup::new("pooled").args(["input", "input_size"]).required(true),
)]
pub(crate) struct PoolBackward {
    /// The gradient with respect to the output
    #[arg(value_name = "GRAD.npy")]
    gradient: PathBuf,
    /// The input of the pooling
    #[arg(long, value_name = "X.npy")]
    input: Option<PathBuf>,
    /// The input's spatial extents, in place of it: enough for averages and sums, or with --indices
    #[arg(long, value_name = "L,…", value_parser = positive)]
    input_size: Option<Extents>,
    /// File for the result
    #[arg(short, long, value_name = "OUT.npy")]
    output: PathBuf,
    /// The indices of the maxima, minima or drawn numbers, as pool wrote them [default: extrema are
    /// located in --input]
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

impl PoolBackward {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let operator = self.pool.operator(self.indices.as_ref().map(|_| self.index_base))?;
        self.check_sources(operator)?;
        let device = self.on.open()?;
        let output = Output::new(&self.output)?;

        let name = self.gradient.display().to_string();
        let progress = Progress::new(self.on.quiet, format!("reading {name}"));
        let gradient = array::read(&self.gradient)?;
        self.pool.check_dims(&name, gradient.dims())?;
        let (input, dims) = self.input(gradient.dims())?;
        let input_type = input.iter().zip(&self.input).map(|(x, path)| (path.display(), x.dtype()));
        let dtype = common_type(self.pool.dtype, (&name, gradient.dtype()), input_type)?;
        let plan = operator.plan_backward(&device, dtype, &dims)?;
        let pooled: Vec<usize> = plan.pooling().output().dims(self.pool.layout.data).collect();
        if gradient.dims() != pooled {
            return Err(Failure::Failed(format!(
                "{name} has the dimensions {:?} but the output of this pooling has {pooled:?}; use the \
                 gradient of that output",
                gradient.dims(),
            )));
        }
        memory::check_pooling(plan.pooling(), 2 * dtype.size() + size_of::<i32>())?;
        let winners = match &self.indices {
            Some(path) => {
                let winners = checked_indices(path, &name, plan.pooling(), self.index_base)?;
                Some(winners.to_device(&device)?)
            }
            None => None,
        };

        progress.now(format!("computing the gradient on {device}"));
        let dy = gradient.to_dtype(dtype)?.to_device(&device)?;
        let x = match input {
            Some(input) => Some(input.to_dtype(dtype)?.to_device(&device)?),
            None => None,
        };
        let dx = match (operator, &winners, &x) {
            (Operator::Max { pool, .. }, Some(winners), _) => {
                pool.backward_with_plan(&plan, &dy, winners)
            }
            (Operator::Max { pool, .. }, None, Some(x)) => pool.backward_from_input(&dy, x),
            (Operator::Min { pool, .. }, Some(winners), _) => {
                pool.backward_with_plan(&plan, &dy, winners)
            }
            (Operator::Min { pool, .. }, None, Some(x)) => pool.backward_from_input(&dy, x),
            (Operator::Drawn { pool, .. }, Some(drawn), _) => {
                pool.backward_with_plan(&plan, &dy, drawn)
            }
            (Operator::Norm(pool, _), _, Some(x)) => pool.backward_with_plan(&plan, &dy, x),
            (Operator::Average(pool, _), _, _) => pool.backward_with_plan(&plan, &dy),
            (Operator::Rank(..) | Operator::Mode(_) | Operator::MeanDrawn(_), _, _) => {
                unreachable!("`plan_backward` refused what has no gradient")
            }
            (
                Operator::Max { .. }
                | Operator::Min { .. }
                | Operator::Norm(..)
                | Operator::Drawn { .. },
                _,
                _,
            ) => {
                unreachable!("`check_sources` refused a gradient without its sources")
            }
        }?;

        let summary = summary(&plan, [dy.dims(), dx.dims()], dtype);
        progress.now(format!("writing {}", self.output.display()));
        drop(progress);
        write_all(&[(output, dx)], (!self.on.quiet).then_some(summary))
    }

    /// Refuses a gradient whose sources are missing.
    fn check_sources(&self, operator: Operator) -> Result<(), Failure> {
        let missing = match operator {
            // What was drawn cannot be found again in the input.
            Operator::Drawn { with_indices: false, .. } => "--op stochastic needs --indices",
            _ if self.input.is_some() => return Ok(()),
            Operator::Max { with_indices: false, .. } => "--op max needs --indices or --input",
            Operator::Min { with_indices: false, .. } => "--op min needs --indices or --input",
            Operator::Norm(..) => "--op lp needs --input",
            _ => return Ok(()),
        };
        Err(Failure::Arguments(format!("the gradient of {missing}; --input-size is not enough")))
    }

    /// The input, if given, and its dimensions.
    fn input(&self, gradient: &[usize]) -> Result<(Option<Tensor>, Vec<usize>), Failure> {
        if let Some(path) = &self.input {
            let input = array::read(path)?;
            self.pool.check_dims(&path.display().to_string(), input.dims())?;
            let dims = input.dims().to_vec();
            return Ok((Some(input), dims));
        }
        let size = self.input_size.map(|size| size.as_slice().to_vec()).unwrap_or_default();
        if size.len() + 2 != gradient.len() {
            return Err(Failure::Failed(format!(
                "{} has {} dimensions but --input-size has {} numbers; give one number per spatial axis",
                self.gradient.display(),
                gradient.len(),
                size.len(),
            )));
        }
        Ok((None, with_space(gradient, &size, self.pool.layout.data)))
    }
}

/// Reads the indices of a pooling's results, whose gradient is the file `whose`. Devices gather and would ignore an index
/// that names no element.
pub(crate) fn checked_indices(
    path: &Path,
    whose: &str,
    pooling: &Pooling,
    base: IndexBase,
) -> Result<Tensor, Failure> {
    let dims: Vec<usize> = pooling.output().dims(pooling.layout()).collect();
    let indices = read_indices(path, whose, &dims)?;
    check_indices(pooling, base, &indices.to_vec::<i32>()?)
        .map_err(|wrong| Failure::Failed(format!("{}: {wrong}", path.display())))?;
    Ok(indices)
}

/// The dimensions with the same batch and channels and other spatial extents.
pub(crate) fn with_space(dims: &[usize], space: &[usize], layout: Layout) -> Vec<usize> {
    let mut dims = dims.to_vec();
    let first = match layout {
        Layout::ChannelsLast => 1,
        Layout::ChannelsFirst => 2,
    };
    dims[first..first + space.len()].copy_from_slice(space);
    dims
}
