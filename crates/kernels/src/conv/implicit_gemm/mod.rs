//! Convolution as one product of matrices, an implicit GEMM: M = N·SZ_OUT windows by K = HF·WF·C taps and
//! channels, times K by NF filters. The first matrix is never built: index arithmetic stands for it.
//!
//! Three mainloops multiply the blocks of it: [`simt`] on every GPU, [`mma`] by fragments of matrix units,
//! and [`wgmma`] by Hopper's warpgroups, which its tensor copy engine feeds. The first two share how blocks
//! are read and stored (`blocks`) and how long sums are cut into parts (`split_k`).

pub(super) mod blocks;
pub mod mma;
pub(super) mod rules;
pub mod simt;
pub(super) mod split_k;
pub mod wgmma;
