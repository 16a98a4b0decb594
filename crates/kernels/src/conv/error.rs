//! Why there is no plan: what was asked, what was found, what to do.

use windowpane_geometry::DType;

use crate::cube::buffers::BufferError;

/// Why a problem has no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Convolutions are of floating-point numbers.
    #[error("a convolution of {dtype} was asked for; convert to f64, f32, f16 or bf16 first")]
    Integers {
        /// The type asked for.
        dtype: DType,
    },
    /// The device has no matrix units that round to tf32.
    #[error("tf32 was asked for and this device has none; leave the precision strict")]
    NoTf32,
    /// Only f32 has a coarser precision.
    #[error("tf32 was asked for with {dtype}; it is a precision of f32, leave it strict")]
    Tf32OfOther {
        /// The type asked for.
        dtype: DType,
    },
    /// A tensor has more elements than a kernel can count.
    #[error("a tensor has {elements} elements, a kernel counts to {limit}; split the batch")]
    TooManyElements {
        /// The elements.
        elements: usize,
        /// The most that are counted.
        limit: usize,
    },
    /// A tensor is larger than the device can bind.
    #[error("a tensor takes {bytes} bytes, this device binds {limit} at most; split the batch")]
    BufferTooLarge {
        /// The bytes.
        bytes: u64,
        /// The most that can be bound.
        limit: u64,
    },
    /// A buffer cannot be the kernel's.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// A gradient is a sum over the windows of no sample.
    #[error("the batch is empty and so is the sum; make a tensor of zeros")]
    NoWindows,
    /// No kernel, or not the one asked for, can do it on this device.
    #[error("{}", match kernel {
        Some(kernel) => {
            format!("this device has no {kernel} kernel for this; leave the choice to the plan")
        }
        None => "a tile was asked for and this device has no kernel with tiles for this; leave it to the \
                 plan".into(),
    })]
    NoKernel {
        /// The kernel asked for; none where a tile was.
        kernel: Option<&'static str>,
    },
    /// A tile was given to a kernel that has none.
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
        /// The number's name.
        name: &'static str,
        /// What it is.
        found: u32,
        /// What it must be.
        expected: u32,
    },
    /// The elements of a load are too many, or no power of two.
    #[error(
        "elems_per_thread={lanes} was asked for and this device loads a power of two, {widest} at \
         most; ask for one of these, or leave it to the plan"
    )]
    Lanes {
        /// The elements asked for.
        lanes: u32,
        /// The most that the device loads at once.
        widest: u32,
    },
    /// A number does not divide what it cuts up.
    #[error(
        "{name}={found} was asked for, which does not divide {whole} {of}; ask for a divisor, or \
         leave {name} to the plan"
    )]
    Divisor {
        /// The number's name.
        name: &'static str,
        /// What it is.
        found: u32,
        /// How many there are of what it must divide.
        whole: usize,
        /// What it must divide.
        of: &'static str,
    },
    /// A block is no multiple of its pieces, or too large.
    #[error(
        "{name}={block} was asked for and the rest of the tile takes a multiple of {of}, {limit} at \
         most; ask for one, or leave {name} to the plan"
    )]
    Block {
        /// The number's name.
        name: &'static str,
        /// What it is.
        block: u32,
        /// What it must be a multiple of.
        of: u32,
        /// The largest block.
        limit: u32,
    },
    /// A block is kept once or twice.
    #[error("stages={stages} was asked for and this kernel has 1 or 2; ask for one of these")]
    Stages {
        /// The stages asked for.
        stages: u32,
    },
    /// The ring of a producer has too few stages, or more than shared memory holds.
    #[error(
        "stages={stages} was asked for and shared memory has room for 2 to {most} blocks of this \
         size; ask for as many, or shrink a block"
    )]
    Ring {
        /// The stages asked for.
        stages: u32,
        /// The most that there are.
        most: u32,
    },
    /// A tile's blocks do not fit in shared memory.
    #[error(
        "the tile takes {bytes} bytes of shared memory, this device has {limit}; shrink a block"
    )]
    Shared {
        /// The bytes of the tile.
        bytes: usize,
        /// The bytes that a cube has.
        limit: usize,
    },
    /// A unit has too many sums, or none.
    #[error(
        "ratio_m by ratio_n ask for {sums} pieces a unit and its registers take 1 to {limit}; change \
         one of the two"
    )]
    Sums {
        /// The pieces asked for.
        sums: u32,
        /// The most that a unit has.
        limit: u32,
    },
    /// The plan is one of another type, precision, kernel or device.
    #[error("the plan was made for another kernel, type, precision or device; plan again")]
    Foreign,
    /// The units of a cube follow from the tile.
    #[error(
        "{units} units a cube were asked for and this tile has {expected}; ask for these, or for \
         another tile"
    )]
    UnitsOfTile {
        /// The units asked for.
        units: u32,
        /// The units of the tile.
        expected: u32,
    },
    /// The units of a cube are none, or more than the device has.
    #[error(
        "{units} units a cube were asked for and this device has 1 to {limit}; shrink a block, or \
         enlarge ratio_m or ratio_n"
    )]
    Units {
        /// The units asked for.
        units: u32,
        /// The most that the device has.
        limit: u32,
    },
    /// A launch would have too many cubes.
    #[error(
        "{cubes} cubes are needed for the lines of the product, this device launches {limit}; \
         enlarge block_m, or split the batch"
    )]
    Cubes {
        /// The cubes needed.
        cubes: usize,
        /// The most that the device launches along an axis.
        limit: u32,
    },
    /// The workspace of a kernel is larger than the device can bind.
    #[error(
        "{bytes} bytes of workspace are needed, this device binds {limit}; ask for fewer splits, or \
         split the batch"
    )]
    Workspace {
        /// The bytes.
        bytes: u64,
        /// The most that can be bound.
        limit: u64,
    },
    /// The parts of a sum are none, or more than it has terms.
    #[error("{splits} splits were asked for and this problem has 1 to {most}; ask for fewer")]
    Splits {
        /// The parts asked for.
        splits: usize,
        /// The most that there are.
        most: usize,
    },
}

/// Why a kernel does not apply to a problem on a device, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotApplicable(pub &'static str);

/// Gives the reason where a condition of a kernel does not hold.
pub(super) fn require(holds: bool, reason: &'static str) -> Result<(), NotApplicable> {
    if holds { Ok(()) } else { Err(NotApplicable(reason)) }
}
