//! The parts that several kernels share: launch arguments, the index arithmetic that finds operands in memory,
//! the epilogue, the checks of a configuration, and what estimates of the time have in common.

pub(super) mod arguments;
pub(super) mod buffer;
pub(super) mod cost;
pub(super) mod epilogue;
pub(super) mod gather;
pub(super) mod kernel;
pub(super) mod pack;
pub(super) mod rules;
pub(super) mod run;
pub(super) mod split_k;
pub(super) mod tensor;
