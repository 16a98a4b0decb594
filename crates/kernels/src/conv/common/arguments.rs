//! The arguments of every launch.

use cubecl::client::Client;
use cubecl::server::Handle;
use windowpane_geometry::{Convolution, DType};

use super::epilogue::Epilogue;
use crate::conv::problem::Request;
use crate::device::Capabilities;

/// The problem, what all plans have in common, and the tensors, which were checked.
#[derive(Clone, Copy)]
pub(in crate::conv) struct Arguments<'a> {
    pub(in crate::conv) client: &'a Client,
    pub(in crate::conv) device: &'a Capabilities,
    pub(in crate::conv) conv: &'a Convolution,
    pub(in crate::conv) request: Request,
    /// The units of a cube.
    pub(in crate::conv) units: u32,
    /// Whether a unit takes a run of neighbouring outputs, or else every n-th one.
    pub(in crate::conv) runs: bool,
    /// The parts that each sum is cut into.
    pub(in crate::conv) splits: usize,
    /// The type in which sums leave the kernel.
    pub(in crate::conv) stored: DType,
    /// The tensors that are multiplied: first the one that is read through windows.
    pub(in crate::conv) operands: [&'a Handle; 2],
    /// The results, or the parts of their sums where these are cut.
    pub(in crate::conv) out: &'a Handle,
    pub(in crate::conv) epilogue: Epilogue<'a>,
}
