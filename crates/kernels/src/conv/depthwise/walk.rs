//! The lines of pixels that a unit reads while it walks down an image.

use cubecl::prelude::*;

use crate::conv::common::gather::GatherArgs;
use crate::conv::common::run::Run;
use crate::cube::convert::{Widening, widen};
use crate::cube::registers::Registers;

/// What a unit reads and where.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Walk {
    /// The offset of the sample's channels.
    pub(super) plane: u32,
    /// The first line and the first pixel that are read, and the number of lines.
    pub(super) top: i32,
    pub(super) start: i32,
    pub(super) read: u32,
    /// The number of lines of the image; none if the depth is outside.
    pub(super) extent: u32,
}

/// Whether line `y` of a walk is inside the image.
#[cube]
pub(super) fn is_inside(walk: &Walk, y: u32) -> bool {
    // As an unsigned number, a negative coordinate is larger than every extent.
    ((walk.top + y as i32) as u32) < walk.extent
}

/// Starts the loads of the pixels of line `y` of a walk into registers, from `first` on; zeros for those outside.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a kernel's parts share its state")]
pub(super) fn load<S: Float, N: Size>(
    a: &[Vector<S, N>],
    gather: &GatherArgs,
    walk: &Walk,
    y: u32,
    pixels: &Registers<S, N>,
    #[comptime] first: u32,
    #[comptime] clipped: bool,
    #[comptime] run: Run,
) {
    #[unroll]
    for p in 0..comptime!(run.pixels().1) {
        pixels.index(comptime!((first + p) as usize)).store(Vector::new(S::from_int(0)));
    }
    if is_inside(walk, y) && y < walk.read {
        let lanes = N::value() as u32;
        let step = gather.width.a_step as u32 / lanes;
        // The first pixel may lie before the line; then the sum wraps, and those before the line are not read.
        let line = walk.plane + ((walk.top + y as i32) * gather.height.a_step) as u32 / lanes;
        let line = line + walk.start as u32 * step;
        #[unroll]
        for p in 0..comptime!(run.pixels().1) {
            if comptime!(run.is_read(p)) {
                let x = walk.start + p as i32;
                if comptime!(!clipped) || (x as u32) < gather.width.extent as u32 {
                    let pixel = a[(line + p * step) as usize];
                    pixels.index(comptime!((first + p) as usize)).store(pixel);
                }
            }
        }
    }
}

/// `count` loaded vectors, from register `first` on, in the type of the sums.
#[cube]
pub(super) fn widened<S: Float, A: Float, N: Size>(
    loaded: &Registers<S, N>,
    #[comptime] first: u32,
    #[comptime] count: u32,
    #[comptime] widening: Widening,
) -> Sequence<Vector<A, N>> {
    let mut vectors = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for i in 0..count {
        let vector = loaded.index(comptime!((first + i) as usize)).read();
        vectors.push(widen::<S, A, N>(vector, widening));
    }
    vectors
}
