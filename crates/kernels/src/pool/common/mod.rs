//! Code that several pooling kernels share: how elements are handled, which taps a window reads, and how they are
//! reduced.
//!
//! * `kernel`: the interface between a kernel and the selection.
//! * `settings`: the settings that all plans have.
//! * `task`: a problem on a device with its settings, which most functions take.
//! * `cost`: the estimated time of a launch.
//! * `lanes`: the width of vectors.
//! * `buffers`: tensors as kernel arguments.
//! * `window`: a problem's numbers, the position of an output, how its taps are reduced and the result is written.
//! * `cover`: the same from an input's side: which windows read it.
//! * `runs`, `reach`: what neighbouring windows share along a line; where lanes along the width find their taps.
//! * `pieces`: how rows of planes are cut, so that few large planes keep a GPU busy.
//! * `strips`, `taps`, `tiles`: which rows and taps a strip of outputs reads, and which units are neighbours.
//! * `blocks`: the windows over a block of inputs.

pub(super) mod blocks;
pub(super) mod buffers;
pub(super) mod cost;
pub(super) mod cover;
pub(super) mod kernel;
pub(super) mod lanes;
pub(super) mod pieces;
pub(super) mod reach;
pub(super) mod runs;
pub(super) mod settings;
pub(super) mod strips;
pub(super) mod taps;
pub(super) mod task;
pub(super) mod tiles;
pub(super) mod window;
