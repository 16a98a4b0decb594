//! Convolution as one matrix product, an implicit GEMM: M = N·SZ_OUT windows by K = HF·WF·C taps and channels,
//! times K by NF filters. The first matrix is never built: index arithmetic replaces it.
//!
//! Three mainloops multiply its blocks: [`simt`] on every GPU, [`mma`] with fragments on matrix units, and [`wgmma`]
//! on Hopper's warpgroups, which the tensor copy engine feeds. The first two share the code that loads and stores
//! blocks (`blocks`, `staging`), the search for a tile (`search`), and the estimate of their
//! time (`cost`).

pub(super) mod blocks;
pub(super) mod cost;
pub mod mma;
pub(super) mod rules;
pub(super) mod search;
pub mod simt;
mod staging;
pub mod wgmma;
