//! The kernels of windowpane, written once in CubeCL, and the plans that choose them.
//!
//! This crate links no runtime: it launches on the [`Client`](cubecl::client::Client) and the
//! buffers that its caller holds. Framework authors start here; everybody else uses `windowpane`.
//!
//! Each operator has a room ([`pool`], [`conv`]) with the same furniture: the room's own page states the
//! formula and the ladder of kernels; `plan` chooses among them, as a pure function of the
//! problem and the device's [`Limits`]; then a file a kernel, or a room.

mod axis;
pub mod conv;
mod copy;
mod dtype;
mod limits;
pub mod pool;
mod random;
mod registers;
mod unit;

pub use copy::copy;
pub use limits::{Fragment, Fragments, Limits, Target, has_powers, supports};
pub use random::fill_random;
pub use windowpane_geometry::DType;
