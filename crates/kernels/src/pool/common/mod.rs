//! Code that several pooling kernels share: how elements are handled, which taps a window reads, and how they are
//! reduced.

pub(super) mod blocks;
mod buffers;
mod cost;
pub(super) mod cover;
mod cubes;
mod kernel;
mod lanes;
pub(super) mod place;
mod reach;
pub(super) mod settings;
mod task;
mod tiles;
pub(super) mod window;

pub(super) use blocks::{Block, blocks_of, blocks_on_axes, check_blocks, window_lanes};
pub(super) use buffers::{Buffers, Tensor, optional};
pub(super) use cost::{PART_STORE, WARP, WORD, Work};
pub(super) use cubes::{CubePosition, Cubes, CubesArgs, Planes, cube_position};
pub(super) use kernel::{Kernel, no_config};
pub(super) use lanes::{
    UNROLLED_TAPS, divides_windows, lanes_along_width, lanes_written, widest_divisor, widest_load,
};
pub(super) use reach::{Reach, lanes_of};
pub(super) use settings::{MOST_UNROLLED_TAPS, Settings, check_strip, unrolls};
pub(super) use task::Task;
pub(super) use tiles::{Tiles, own_column, tiled, tiles_args};
