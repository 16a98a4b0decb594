//! `windowpane pool-fractional` and its gradient: fractional max pooling.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use windowpane::geometry::{self, Fractional, Shape};
use windowpane::{DType, Device, Extents, FractionalMaxPool, IndexBase, Layout, Tensor};

use crate::args::{On, check_dims, count, index_base, positive};
use crate::array;
use crate::backward::{checked_indices, with_space};
use crate::failure::Failure;
use crate::layouts::{Layouts, layouts};
use crate::memory;
use crate::output::{Output, write_all};
use crate::pool::outputs;
use crate::progress::Progress;

const EXAMPLE: &str = "\
Example: images at 0.7 times their size, by maxima of 2×2 windows at pseudo-random positions
  windowpane pool-fractional images.npy -o smaller.npy --kernel 2,2 --ratio 0.7 --seed 1
Example: the same for the gradient, from the indices that the command wrote
  windowpane pool-fractional images.npy -o y.npy --kernel 2,2 --output-size 19,19 --indices at.npy
  windowpane pool-fractional-backward grad.npy -o dx.npy --kernel 2,2 --input-size 28,28 \\
    --indices at.npy

Files are as for pool.";

/// The windows, as the commands for forward and gradient share them.
#[derive(Args)]
struct Windows {
    /// Window size: 1, 2 or 3 numbers, one per axis
    #[arg(long, value_name = "K,…", value_parser = positive)]
    kernel: Extents,
    /// Seed of the window positions: the same seed gives the same positions on every device
    #[arg(long, value_name = "S", value_parser = count, default_value = "0")]
    seed: u32,
    /// Numbers from 0 to 1, 1 excluded, in place of a seed: float32 of the dimensions N,C,axes
    #[arg(long, value_name = "R.npy", conflicts_with = "seed")]
    samples: Option<PathBuf>,
    /// What an index counts: plane (PyTorch), tensor (ONNX) or memory (elements in the file)
    #[arg(long, value_parser = index_base, default_value = "plane")]
    index_base: IndexBase,
    /// Memory layout: channels-last (N,…,C) or channels-first (N,C,…); also nhwc, nchw and so on
    #[arg(long, value_name = "LAYOUT", value_parser = layouts, default_value = "channels-last")]
    layout: Layouts,
    /// Type to compute in: f64, f32, f16 or bf16 [default: the file's]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<DType>,
    #[command(flatten)]
    on: On,
}

impl Windows {
    /// The layout, which must have as many axes as the windows.
    fn layout(&self) -> Result<Layout, Failure> {
        Ok(self.layout.check(self.kernel.rank())?.data)
    }

    /// The operator with what forward and gradient share.
    fn finish(
        &self,
        pool: FractionalMaxPool,
        device: &Device,
    ) -> Result<FractionalMaxPool, Failure> {
        let pool = pool.layout(self.layout()?).index_base(self.index_base);
        Ok(match &self.samples {
            Some(path) => pool.samples(&array::read(path)?.to_device(device)?),
            None => pool.seed(self.seed),
        })
    }

    fn check_rank(&self, flag: &str, extents: Extents) -> Result<(), Failure> {
        let (asked, rank) = (extents.rank(), self.kernel.rank());
        match asked == rank {
            true => Ok(()),
            false => Err(Failure::Arguments(format!(
                "--{flag} has {asked} numbers but --kernel has {rank}; give one number per axis"
            ))),
        }
    }

    /// Reads the array to compute with, and refuses one of another rank.
    fn read(&self, path: &Path, device: &Device) -> Result<Tensor, Failure> {
        let (name, file) = (path.display().to_string(), array::read(path)?);
        check_dims(&name, file.dims(), "--kernel", self.kernel.rank(), self.layout()?)?;
        Ok(file.to_dtype(self.dtype.unwrap_or(file.dtype()))?.to_device(device)?)
    }
}

/// The arguments of `pool-fractional`.
#[derive(Args)]
#[command(
    after_help = EXAMPLE,
    group = ArgGroup::new("size").args(["output_size", "ratio"]).required(true),
)]
pub(crate) struct PoolFractional {
    /// The array to pool, with two more dimensions than the window
    #[arg(value_name = "INPUT.npy")]
    input: PathBuf,
    /// File for the result
    #[arg(short, long, value_name = "OUT.npy")]
    output: PathBuf,
    /// Spatial extents of the result
    #[arg(long, value_name = "O,…", value_parser = positive)]
    output_size: Option<Extents>,
    /// Output extents as a fraction of the input's, rounded down, as PyTorch's output_ratio
    #[arg(long, value_name = "R", value_parser = ratio)]
    ratio: Option<f64>,
    /// File for the indices of the maxima, as int32
    #[arg(long, value_name = "IDX.npy")]
    indices: Option<PathBuf>,
    #[command(flatten)]
    windows: Windows,
}

impl PoolFractional {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        self.windows.layout()?;
        let kernel = self.windows.kernel;
        let pool = match (self.output_size, self.ratio) {
            (Some(output), _) => {
                self.windows.check_rank("output-size", output)?;
                FractionalMaxPool::new(kernel, output)
            }
            (None, ratio) => FractionalMaxPool::with_ratio(kernel, ratio.unwrap_or_default()),
        };
        let device = self.windows.on.open()?;
        let outputs = outputs(&self.output, self.indices.as_deref())?;

        let quiet = self.windows.on.quiet;
        let progress = Progress::new(quiet, format!("reading {}", self.input.display()));
        let x = self.windows.read(&self.input, &device)?;
        let pool = self.windows.finish(pool, &device)?;

        progress.now(format!("pooling on {device}"));
        let results = match &self.indices {
            Some(_) => <[Tensor; 2]>::from(pool.forward_with_indices(&x)?).to_vec(),
            None => vec![pool.forward(&x)?],
        };
        let summary = summary("fractional max pooling", &x, &results[0]);
        progress.now(format!("writing {}", self.output.display()));
        drop(progress);
        write_all(
            &outputs.into_iter().zip(results).collect::<Vec<_>>(),
            (!quiet).then_some(summary),
        )
    }
}

/// The arguments of `pool-fractional-backward`: those of `pool-fractional`, with the size of the input.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct PoolFractionalBackward {
    /// The gradient with respect to the output
    #[arg(value_name = "GRAD.npy")]
    gradient: PathBuf,
    /// The indices of the maxima, as pool-fractional wrote them
    #[arg(long, value_name = "IDX.npy")]
    indices: PathBuf,
    /// Spatial extents of the input of the pooling
    #[arg(long, value_name = "L,…", value_parser = positive)]
    input_size: Extents,
    /// File for the result
    #[arg(short, long, value_name = "OUT.npy")]
    output: PathBuf,
    #[command(flatten)]
    windows: Windows,
}

impl PoolFractionalBackward {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        self.windows.check_rank("input-size", self.input_size)?;
        let (kernel, layout) = (self.windows.kernel, self.windows.layout()?);
        let device = self.windows.on.open()?;
        let output = Output::new(&self.output)?;

        let name = self.gradient.display().to_string();
        let progress = Progress::new(self.windows.on.quiet, format!("reading {name}"));
        let dy = self.windows.read(&self.gradient, &device)?;
        let dims = with_space(dy.dims(), self.input_size.as_slice(), layout);
        let in_words = |wrong: geometry::Error| Failure::Failed(wrong.to_string());
        let shape = |dims| Shape::from_dims(dims, layout).map_err(in_words);
        let size = shape(dy.dims())?.space();
        let problem = Fractional::new(shape(&dims)?, kernel, size, layout).map_err(in_words)?;
        let pooling = problem.pooling();
        memory::check_pooling(pooling, 2 * dy.dtype().size() + size_of::<i32>())?;
        let winners = checked_indices(&self.indices, &name, pooling, self.windows.index_base)?;
        let pool = self.windows.finish(FractionalMaxPool::new(kernel, size), &device)?;

        progress.now(format!("computing the gradient on {device}"));
        let dx = pool.backward(&dy, &winners.to_device(&device)?, &dims)?;
        let summary = summary("fractional max pooling's gradient", &dy, &dx);
        progress.now(format!("writing {}", self.output.display()));
        drop(progress);
        write_all(&[(output, dx)], (!self.windows.on.quiet).then_some(summary))
    }
}

/// One line that says what was done.
fn summary(what: &str, from: &Tensor, to: &Tensor) -> String {
    let (dtype, device) = (from.dtype(), from.device());
    format!("{what} {dtype} {:?} → {:?} on {device}", from.dims(), to.dims())
}

/// A part of the input: more than 0 and less than 1.
fn ratio(text: &str) -> Result<f64, String> {
    match text.trim().parse() {
        Ok(ratio) if 0.0 < ratio && ratio < 1.0 => Ok(ratio),
        _ => Err(format!("`{text}` is not a number between 0 and 1")),
    }
}
