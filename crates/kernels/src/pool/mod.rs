//! Pooling: every window of every channel reduced to one number.
//!
//! ```text
//! y[n, o, c] = reduce over the taps t inside the input of  x[n, o·s − before + t·d, c]
//! ```
//!
//! Seen as Composable Kernel's example sees it, a matrix of M = N·Dₒ·Hₒ·Wₒ·C rows (the outputs) by
//! K = Z·Y·X columns (the taps) is reduced row by row; the matrix is never built. The ladder:
//!
//! * [`direct`]: one unit an output vector reads every tap of its window. Right for every problem, and
//!   chosen where no other kernel is: few taps far apart, and what the others do not compute.
//! * [`strip`]: one unit a strip of outputs, for windows of few taps. What overlapping windows share is
//!   loaded and reduced once; with channels first, lanes lie along the width. Of values alone, without
//!   positions, the taps are folded in the order that costs least.
//! * [`walk`]: the same on a processor with channels first: a thread walks along the rows of a strip and
//!   keeps what neighbours share.
//! * [`sliding`]: windows of many taps, one axis after the other, at a cost that does not grow with them.
//! * [`fused`]: the same for planes, both axes in one launch: on a GPU with channels first.
//! * `paired`: what `fused` is, for numbers of two bytes: two neighbours a unit, and averages with channels last
//!   too.
//! * [`plane`]: small planes, whole in a GPU's shared memory: channels-first images whose rows no vector
//!   divides, and the gradients of averages there.
//! * [`flat`]: averages of three by three there, and their gradients, without shared memory: all planes as
//!   one run.
//! * [`rolling`]: the same averages with channels last, where there are many: units walk down the rows, and keep what
//!   the next windows share.
//! * [`reduce`]: a team of units a window, on a GPU, for few windows of many taps: global pooling.
//! * [`backward`]: the gradients, as gathers: one unit an input vector. Right for every problem.
//! * [`backward_strip`]: one unit a block of inputs, the windows over which are read once, where they are
//!   few.
//! * [`staged`]: the same of maxima with channels last, where there are many: cubes walk along the planes, with their
//!   windows in shared memory.
//! * [`lp`], [`lp_backward`]: the norm, whose taps are visited twice, and its gradient.
//! * [`unpool`]: maxima back to where they were, the last of several.
//!
//! [`plan`] says which of them a problem gets. What they have in common is `window`: a problem's numbers,
//! where an output is, how taps are folded. `runs` folds once what neighbouring windows share, `reach` says
//! where lanes along the width find their taps.
//!
//! Channels-first is channels-last with one channel a pixel and N·C samples: one kernel serves
//! both, the lanes of a vector lying along the channels where there are several.

pub mod backward;
pub mod backward_strip;
mod bits;
pub mod direct;
pub mod flat;
pub mod fused;
mod launch;
pub mod lp;
pub mod lp_backward;
mod paired;
pub mod plan;
pub mod plane;
mod reach;
pub mod reduce;
pub mod rolling;
mod runs;
pub mod sliding;
pub mod staged;
pub mod strip;
pub mod unpool;
pub mod walk;
mod window;

pub use backward::{Gradient, launch_backward};
pub use launch::launch;
pub use lp_backward::launch_lp_backward;
pub use plan::{Algorithm, Output, Plan, PlanError, Reduction};
pub use unpool::{launch_unpool, launch_unpool_backward};
