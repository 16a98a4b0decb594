//! The kernels of windowpane, written once in CubeCL, and the plans that choose them.
//!
//! This crate links no runtime: it launches on the [`Client`](cubecl::client::Client) and the
//! buffers that its caller holds. Framework authors start here; everybody else uses `windowpane`.
//!
//! Each operator has a module ([`pool`], [`conv`]) of the same shape: its page states the formula and lists the
//! kernels; `problem` is the problem as plain data, `common` what several kernels share, then one folder per
//! kernel, and `select`, which chooses among them as a pure function of the problem and the device's
//! [`Capabilities`].

mod cast;
pub mod conv;
mod copy;
mod cube;
pub mod device;
mod error;
mod packed;
mod pad;
pub mod pool;
mod random;
pub mod strided;
mod transpose;

pub use cast::{can_cast, cast};
pub use copy::copy;
pub use cube::buffers::{BufferError, check_buffer};
pub use device::{
    Capabilities, Fragment, Fragments, Speeds, Target, can_rank, has_powers, supports,
};
pub use error::{NotApplicable, PlanError, Verdict};
pub use pad::{pad, pad_gradient};
pub use random::fill_random;
pub use transpose::transpose;
pub use windowpane_geometry::DType;
