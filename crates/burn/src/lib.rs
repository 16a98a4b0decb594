//! windowpane's poolings and convolutions inside [Burn](https://burn.dev), on every CubeCL runtime.
//!
//! One line at the start of `main` is enough; the rest of the program stays as it is:
//!
//! ```
//! fn main() -> Result<(), windowpane_burn::TooLate> {
//!     windowpane_burn::install()?;
//!     // The program as before. At its end, to see what was replaced:
//!     println!("{}", windowpane_burn::counters());
//!     Ok(())
//! }
//! ```
//!
//! Burn queues the operations of a program and asks registered *fusers* what to do with them. The fuser of this crate
//! takes poolings and convolutions, forward and backward, together with the element-wise operations before them.
//! Tensors are shared: windowpane reads Burn's memory where it is, and Burn gets the memory of the results. Where
//! windowpane cannot compute an operation, Burn's own operator runs instead, and [`counters`] says why.
//!
//! Burn must be built with its feature `fusion`, which is on by default. This crate works with every backend of Burn
//! that is made with CubeCL, and has no features for them: the program chooses them in its dependency on Burn.
//!
//! Poolings that Burn lacks are modules and functions of [`nn`], which need no `install`.
//!
//! Where the results differ from Burn's:
//!
//! - A maximum over NaN is NaN; Burn ignores NaN.
//! - Convolutions of `f32` multiply in full precision; Burn may round the factors to tf32.
//! - Averages of `f16` and `bf16` are summed in `f32` and rounded once; Burn sums in the type itself.
//! - Gradients are the same bits in each run.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod counters;
mod fuser;
mod install;
mod memory;
pub mod nn;
mod operation;
mod run;

pub use counters::{Count, Counters, counters};
pub use install::{TooLate, install};
pub use windowpane::{Extents, Padding, Rank, Rounding, Same, Window};
