//! The arguments that every launch receives.

use cubecl::client::Client;
use cubecl::server::Handle;
use windowpane_geometry::DType;

use super::epilogue::Epilogue;
use crate::conv::problem::Task;

/// The task, the settings that all plans have, and the tensors, already checked.
#[derive(Clone, Copy)]
pub(in crate::conv) struct Arguments<'a> {
    pub(in crate::conv) client: &'a Client,
    pub(in crate::conv) task: Task<'a>,
    /// The units of a cube.
    pub(in crate::conv) units: u32,
    /// Whether a unit computes a run of neighbouring outputs instead of every n-th output.
    pub(in crate::conv) contiguous: bool,
    /// The number of parts that each sum is split into.
    pub(in crate::conv) splits: usize,
    /// The type in which the kernel stores its results, or its partial sums where sums are split.
    pub(in crate::conv) stored: DType,
    /// The tensors that are multiplied. The first is the one that is read through windows.
    pub(in crate::conv) operands: [&'a Handle; 2],
    /// The results, or the partial sums where sums are split.
    pub(in crate::conv) out: &'a Handle,
    pub(in crate::conv) epilogue: Epilogue<'a>,
}
