//! `windowpane unpool`: writes the maxima in a file back to their positions.

use std::path::{Path, PathBuf};

use clap::Args;
use windowpane::{DType, Extents, IndexBase, MaxUnpool, Tensor};

use crate::args::{On, check_dims, index_base, positive};
use crate::array;
use crate::failure::Failure;
use crate::layouts::{Layouts, layouts};
use crate::memory;
use crate::output::{Output, write_all};
use crate::pool::summary;
use crate::progress::Progress;

const EXAMPLE: &str = "\
Example: the maxima of 8×8 images, written back to their positions
  windowpane pool images.npy -o pooled.npy --kernel 2,2 --indices at.npy
  windowpane unpool pooled.npy --indices at.npy --output-size 8,8 -o images-again.npy

An index of -1 is ignored; if several indices name one position, the last one wins. File types are
those of pool.";

/// The arguments of `unpool`.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Unpool {
    /// The pooled array
    #[arg(value_name = "INPUT.npy")]
    input: PathBuf,
    /// The indices of its elements, as pool wrote them
    #[arg(long, value_name = "IDX.npy")]
    indices: PathBuf,
    /// Spatial extents of the original input: 1, 2 or 3 numbers
    #[arg(long, value_name = "L,…", value_parser = positive)]
    output_size: Extents,
    /// File for the result
    #[arg(short, long, value_name = "OUT.npy")]
    output: PathBuf,
    /// What an index counts: plane (PyTorch), tensor (ONNX) or memory (elements in the file)
    #[arg(long, value_parser = index_base, default_value = "plane")]
    index_base: IndexBase,
    /// Memory layout: channels-last (N,…,C) or channels-first (N,C,…); also nhwc, nchw and so on
    #[arg(long, value_name = "LAYOUT", value_parser = layouts, default_value = "channels-last")]
    layout: Layouts,
    /// Type to compute in: f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8 or bool [default: the file's]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<DType>,
    #[command(flatten)]
    on: On,
}

impl Unpool {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let layout = self.layout.check(self.output_size.rank())?.data;
        let unpool = MaxUnpool::new(self.output_size).layout(layout).index_base(self.index_base);
        let device = self.on.open()?;
        let output = Output::new(&self.output)?;

        let name = self.input.display().to_string();
        let progress = Progress::new(self.on.quiet, format!("reading {name}"));
        let file = array::read(&self.input)?;
        check_dims(&name, file.dims(), "--output-size", self.output_size.rank(), layout)?;
        let indices = read_indices(&self.indices, &name, file.dims())?.to_device(&device)?;
        let dtype = self.dtype.unwrap_or(file.dtype());
        let plan = unpool.plan(&device, dtype, file.dims())?;
        memory::check_pooling(plan.pooling(), 2 * dtype.size() + size_of::<i32>())?;

        progress.now(format!("unpooling on {device}"));
        let y = file.to_dtype(dtype)?.to_device(&device)?;
        let x = unpool.forward_with_plan(&plan, &y, &indices)?;

        let summary = summary(&plan, [y.dims(), x.dims()], dtype);
        progress.now(format!("writing {}", self.output.display()));
        drop(progress);
        write_all(&[(output, x)], (!self.on.quiet).then_some(summary))
    }
}

/// Reads the indices of the elements of the file `whose`, which has these dimensions.
pub(crate) fn read_indices(path: &Path, whose: &str, dims: &[usize]) -> Result<Tensor, Failure> {
    let indices = array::read(path)?;
    let name = path.display();
    if indices.dtype() != DType::I32 {
        let found = indices.dtype();
        return Err(Failure::Failed(format!(
            "{name} holds {found}, but indices must be int32; use the file that pool wrote"
        )));
    }
    if indices.dims() != dims {
        return Err(Failure::Failed(format!(
            "{name} has the dimensions {:?} but {whose} has {dims:?}; use the indices that pool wrote \
             with it",
            indices.dims(),
        )));
    }
    Ok(indices)
}
