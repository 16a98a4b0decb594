//! Why there is no plan: the request, the limit or value found, and what to do instead.

use windowpane_geometry::DType;

use crate::cube::buffers::BufferError;

/// Why a problem has no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Convolutions only support floating-point types.
    #[error("a convolution of {dtype} was asked for; convert to f64, f32, f16 or bf16 first")]
    Integers {
        /// The requested type.
        dtype: DType,
    },
    /// The device's matrix units do not support tf32.
    #[error("tf32 was asked for and this device has none; leave the precision strict")]
    NoTf32,
    /// Only f32 has a lower precision.
    #[error("tf32 was asked for with {dtype}; it is a precision of f32, leave it strict")]
    Tf32OfOther {
        /// The requested type.
        dtype: DType,
    },
    /// A tensor has more elements than a kernel can index.
    #[error("a tensor has {elements} elements, a kernel counts to {limit}; split the batch")]
    TooManyElements {
        /// The number of elements.
        elements: usize,
        /// The most elements that can be indexed.
        limit: usize,
    },
    /// A tensor is larger than the largest buffer that the device can bind.
    #[error("a tensor takes {bytes} bytes, this device binds {limit} at most; split the batch")]
    BufferTooLarge {
        /// The size in bytes.
        bytes: u64,
        /// The largest size that can be bound.
        limit: u64,
    },
    /// The kernel cannot use one of the buffers.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// The batch is empty, so that a gradient would sum over no windows.
    #[error("the batch is empty and so is the sum; make a tensor of zeros")]
    NoWindows,
    /// No kernel, or not the requested one, supports the problem on this device.
    #[error("{}", match kernel {
        Some(kernel) => {
            format!("this device has no {kernel} kernel for this; leave the choice to the plan")
        }
        None => "a tile was asked for and this device has no kernel with tiles for this; leave it to the \
                 plan".into(),
    })]
    NoKernel {
        /// The requested kernel; none where only a tile was requested.
        kernel: Option<&'static str>,
    },
    /// A tile was requested for a kernel that has no tile.
    #[error("a tile was asked for and the {kernel} kernel has none; leave the tile to the plan")]
    Untiled {
        /// The kernel.
        kernel: &'static str,
    },
    /// A number of a tile does not fit the others.
    #[error(
        "{name}={found} was asked for and the rest of the tile needs {expected}; ask for that, or \
         leave {name} to the plan"
    )]
    Tile {
        /// The name of the number.
        name: &'static str,
        /// Its value.
        found: u32,
        /// The value that it must have.
        expected: u32,
    },
    /// The number of elements per load is too large, or not a power of two.
    #[error(
        "elems_per_thread={lanes} was asked for and this device loads a power of two, {widest} at \
         most; ask for one of these, or leave it to the plan"
    )]
    Lanes {
        /// The requested number of elements.
        lanes: u32,
        /// The most elements that the device loads at once.
        widest: u32,
    },
    /// A number does not divide the quantity that it must divide.
    #[error(
        "{name}={found} was asked for, which does not divide {whole} {of}; ask for a divisor, or \
         leave {name} to the plan"
    )]
    Divisor {
        /// The name of the number.
        name: &'static str,
        /// Its value.
        found: u32,
        /// The quantity that it must divide.
        whole: usize,
        /// The name of that quantity.
        of: &'static str,
    },
    /// A block is not a multiple of its pieces, or too large.
    #[error(
        "{name}={block} was asked for and the rest of the tile takes a multiple of {of}, {limit} at \
         most; ask for one, or leave {name} to the plan"
    )]
    Block {
        /// The name of the block's extent.
        name: &'static str,
        /// Its value.
        block: u32,
        /// The number that it must be a multiple of.
        of: u32,
        /// The largest possible value.
        limit: u32,
    },
    /// The kernel only supports one or two stages.
    #[error("stages={stages} was asked for and this kernel has 1 or 2; ask for one of these")]
    Stages {
        /// The requested number of stages.
        stages: u32,
    },
    /// The ring of pipeline stages has too few stages, or more than shared memory holds.
    #[error(
        "stages={stages} was asked for and shared memory has room for 2 to {most} blocks of this \
         size; ask for as many, or shrink a block"
    )]
    Ring {
        /// The requested number of stages.
        stages: u32,
        /// The most stages that fit.
        most: u32,
    },
    /// The blocks of a tile do not fit in shared memory.
    #[error(
        "the tile takes {bytes} bytes of shared memory, this device has {limit}; shrink a block"
    )]
    Shared {
        /// The bytes that the tile needs.
        bytes: usize,
        /// The bytes that a cube can use.
        limit: usize,
    },
    /// A unit has too many accumulators, or none.
    #[error(
        "ratio_m by ratio_n ask for {sums} pieces a unit and its registers take 1 to {limit}; change \
         one of the two"
    )]
    Sums {
        /// The requested number of pieces.
        sums: u32,
        /// The most pieces per unit.
        limit: u32,
    },
    /// The plan was made for another type, precision, kernel or device.
    #[error("the plan was made for another kernel, type, precision or device; plan again")]
    Foreign,
    /// The tile determines the units of a cube, and another number was requested.
    #[error(
        "{units} units per cube were asked for and this tile has {expected}; ask for these, or for \
         another tile"
    )]
    UnitsOfTile {
        /// The requested number of units.
        units: u32,
        /// The number of units of the tile.
        expected: u32,
    },
    /// A cube would have no units, or more than the device supports.
    #[error(
        "{units} units per cube were asked for and this device has 1 to {limit}; shrink a block, or \
         enlarge ratio_m or ratio_n"
    )]
    Units {
        /// The requested number of units.
        units: u32,
        /// The most units that the device supports.
        limit: u32,
    },
    /// A launch would have too many cubes.
    #[error(
        "{cubes} cubes are needed for the lines of the product, this device launches {limit}; \
         enlarge block_m, or split the batch"
    )]
    Cubes {
        /// The number of cubes needed.
        cubes: usize,
        /// The most cubes that the device launches along an axis.
        limit: u32,
    },
    /// The workspace of a kernel is larger than the largest buffer that the device can bind.
    #[error(
        "{bytes} bytes of workspace are needed, this device binds {limit}; ask for fewer splits, or \
         split the batch"
    )]
    Workspace {
        /// The size in bytes.
        bytes: u64,
        /// The largest size that can be bound.
        limit: u64,
    },
    /// The number of parts of a sum is zero, or larger than the most possible.
    #[error("{splits} splits were asked for and this problem has 1 to {most}; ask for fewer")]
    Splits {
        /// The requested number of parts.
        splits: usize,
        /// The largest possible number of parts.
        most: usize,
    },
}

/// The reason why a kernel does not apply to a problem on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotApplicable(pub &'static str);

/// Returns `reason` as an error if a kernel's condition does not hold.
pub(super) fn require(holds: bool, reason: &'static str) -> Result<(), NotApplicable> {
    if holds { Ok(()) } else { Err(NotApplicable(reason)) }
}
