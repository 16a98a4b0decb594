//! The kernels of windowpane, written once in CubeCL, and the plans that choose them.
//!
//! This crate links no runtime: it launches on the [`Client`](cubecl::client::Client) and the
//! buffers that its caller holds. Framework authors start here; everybody else uses `windowpane`.
//!
//! A launch needs a problem, a plan for the device, and buffers that the caller allocates:
//!
//! ```
//! use cubecl::client::Client;
//! use cubecl::server::Handle;
//! use windowpane_kernels::pool::{Output, Plan, Problem, Reduction, Tensors, launch};
//! use windowpane_kernels::{Capabilities, DType, Layout, PlanError, Pooling, Shape, Target, Window};
//!
//! /// Max pooling of 8×112×112×64 numbers in f32, with 3×3 windows and a stride of 2.
//! fn max_pool(client: &Client, x: &Handle) -> Result<Handle, PlanError> {
//!     // The device and the plans are the same for every call, so a program keeps them.
//!     let device = Capabilities::of(client);
//!     let layout = Layout::ChannelsLast;
//!     let window = Window::new([3, 3]).stride([2, 2]).padding([1, 1]);
//!     let pooling = Pooling::new(Shape::from_dims(&[8, 112, 112, 64], layout)?, &window, layout)?;
//!     let problem = Problem::new(&pooling, Reduction::max(Output::Values), DType::F32);
//!     let plan = Plan::new(problem, &device)?;
//!     let y = client.empty(device.buffer_size(DType::F32, pooling.output().elements()));
//!     let target = Target { client, device: &device };
//!     launch(target, problem, &plan, Tensors::new(x, &y))?;
//!     Ok(y)
//! }
//! ```
//!
//! The launch checks the plan and the sizes of the buffers, allocates the scratch buffers that
//! [`Plan::workspace`](pool::Plan::workspace) counts, and does not wait for the device. In a program that includes
//! SPIR-V, a client that compiles to WGSL takes [`Capabilities::of_wgsl`] instead. The types that describe problems
//! come from the crate [`geometry`].
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
mod difference;
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
pub use difference::difference;
pub use error::{NotApplicable, PlanError, Verdict};
pub use pad::{pad, pad_gradient};
pub use random::fill_random;
pub use transpose::transpose;
/// The crate that describes problems: windows, shapes, layouts, and errors for invalid ones.
pub use windowpane_geometry as geometry;
pub use windowpane_geometry::{
    Activation, Change, Convolution, DType, Divisor, Exponent, Extents, Extremum, Filter,
    FilterLayout, Footprint, Fractional, IndexBase, Layout, Padded, Padding, PaddingMode, Pass,
    Pooling, Precision, Rank, Rounding, Same, Shape, Tile, TileOverrides, Window,
};
