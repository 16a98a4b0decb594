//! Code that several kernels of pooling share: how elements are handled, what a window reads, how its taps
//! are folded.
//!
//! * `kernel`: what the selection asks of a kernel.
//! * `settings`: what plans of all kernels have.
//! * `lanes`: how wide vectors are.
//! * `buffers`: tensors as arguments of kernels.
//! * `window`: a problem's numbers, where an output is, how its taps are folded and the result is written.
//! * `cover`: the same from an input's side: which windows read it.
//! * `runs`, `reach`: what neighbouring windows share along a line; where lanes along the width find taps.
//! * `strips`, `taps`, `tiles`: which rows and taps a strip of outputs reads, and which units are neighbours.
//! * `blocks`: which windows lie over a block of inputs.
//! * `van_herk`: the blocks that large windows are folded in.

pub(super) mod blocks;
pub(super) mod buffers;
pub(super) mod cover;
pub(super) mod kernel;
pub(super) mod lanes;
pub(super) mod reach;
pub(super) mod runs;
pub(super) mod settings;
pub(super) mod strips;
pub(super) mod taps;
pub(super) mod tiles;
pub(super) mod van_herk;
pub(super) mod window;
