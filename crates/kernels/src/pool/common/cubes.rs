//! How planes are distributed to cubes: groups of channels, tiles of columns, and pieces of rows, so that few large
//! planes keep a whole GPU busy.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;

use crate::cube::numbers;
use crate::pool::common::Task;

/// The planes of a problem, seen from cubes that each walk down a tile of columns, block of rows by block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes {
    /// The number of planes, or of groups of planes that a cube walks down together.
    pub(crate) count: usize,
    /// The number of groups of a pixel's channels, each for cubes of its own.
    pub(crate) groups: usize,
    /// The number of columns of a plane, and of a tile.
    pub(crate) columns: usize,
    pub(crate) tile: usize,
    /// The number of blocks of rows of a plane, and of those before a piece that reach into it.
    pub(crate) blocks: usize,
    pub(crate) halo: usize,
}

/// The cubes that walk down planes. The rows of a plane are cut into pieces, each for cubes of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cubes {
    /// The number of cubes.
    pub(crate) count: usize,
    planes: Planes,
    /// The number of tiles of a row, of pieces of a plane, and of blocks of rows in a piece.
    tiles: usize,
    pieces: usize,
    pub(crate) piece_blocks: usize,
}

/// The most cubes that a multiprocessor gets by cutting planes.
const MOST_CUBES: usize = 8;

impl Planes {
    /// The cubes that end first. A piece takes the time of its share of a plane's blocks, and of those that reach into
    /// it. `busy` units keep a multiprocessor busy: beyond them, twice as many take twice as long.
    pub(crate) fn cubes(self, task: Task<'_>, busy: usize) -> Cubes {
        let Self { count, groups, columns, tile, blocks, halo } = self;
        let tiles = columns.div_ceil(tile);
        let cubes = count * groups * tiles;
        let multiprocessors = task.device.multiprocessor_count();
        let time = |&pieces: &usize| {
            let each = (cubes * pieces).div_ceil(multiprocessors) * task.settings.units as usize;
            each.max(busy) * (blocks.div_ceil(pieces) + halo)
        };
        let most = (MOST_CUBES * multiprocessors / cubes.max(1)).clamp(1, blocks.max(1));
        let pieces = (1..=most).min_by_key(time).unwrap_or(1);
        // Without samples there may be no blocks.
        let piece_blocks = blocks.div_ceil(pieces).max(1);
        let pieces = blocks.div_ceil(piece_blocks);
        Cubes { count: cubes * pieces, planes: self, tiles, pieces, piece_blocks }
    }
}

/// The numbers of planes and their cubes.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct CubesArgs {
    /// The number of all cubes, of groups of channels, and of tiles of a row.
    pub(crate) count: u32,
    groups: FastDivmod<u32>,
    tiles: FastDivmod<u32>,
    /// The number of columns in a tile.
    pub(crate) tile: u32,
    /// The number of pieces of a plane, and of blocks of rows in a piece and in a plane.
    pieces: FastDivmod<u32>,
    piece_blocks: u32,
    blocks: u32,
}

impl Cubes {
    pub(crate) fn args(&self) -> CubesArgsLaunch {
        numbers! { CubesArgsLaunch {
            count: self.count, groups: self.planes.groups, tiles: self.tiles,
            tile: self.planes.tile, pieces: self.pieces, piece_blocks: self.piece_blocks,
            blocks: self.planes.blocks,
        } }
    }
}

/// What a cube walks down.
#[derive(CubeType)]
pub(crate) struct CubePosition {
    /// The plane, and the group of its channels.
    pub(crate) plane: u32,
    pub(crate) group: u32,
    /// The first column.
    pub(crate) column: u32,
    /// The first block of rows of the piece, and the end of its blocks.
    pub(crate) block: u32,
    pub(crate) end: u32,
}

/// Cubes with the same pixels are neighbours, so that they read them at about the same time.
#[cube]
pub(crate) fn cube_position(args: &CubesArgs, #[comptime] grouped: bool) -> CubePosition {
    let cube = CUBE_POS as u32;
    let (rest, group) =
        if comptime!(grouped) { args.groups.div_mod(cube) } else { (cube, 0u32.runtime()) };
    let (rest, tile) = args.tiles.div_mod(rest);
    let (plane, piece) = args.pieces.div_mod(rest);
    let block = piece * args.piece_blocks;
    let end = min(block + args.piece_blocks, args.blocks);
    CubePosition { plane, group, column: tile * args.tile, block, end }
}
