//! Every property that a device must have, on every device: one binary, so that it can be carried
//! whole to a machine with a GPU.

mod conv;
#[macro_use]
mod pool;
mod family;
mod tensor;
