//! The arguments that every launch receives.

use cubecl::client::Client;
use cubecl::server::Handle;
use windowpane_geometry::DType;

use super::Epilogue;
use crate::conv::problem::Task;

/// The task, the settings that all plans have, and the tensors, already checked.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'a> {
    pub(crate) client: &'a Client,
    pub(crate) task: Task<'a>,
    /// The units of a cube.
    pub(crate) units: u32,
    /// Whether a unit computes a run of neighbouring outputs instead of every n-th output.
    pub(crate) contiguous: bool,
    /// The number of parts that each sum is split into.
    pub(crate) splits: usize,
    /// The type in which the kernel stores its results, or its partial sums where sums are split.
    pub(crate) stored: DType,
    /// The tensors that are multiplied. The first is the one that is read through windows.
    pub(crate) operands: [&'a Handle; 2],
    /// The results, or the partial sums where sums are split.
    pub(crate) out: &'a Handle,
    pub(crate) epilogue: Epilogue<'a>,
}
