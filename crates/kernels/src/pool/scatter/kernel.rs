//! The kernels: zeros, and the gradients at their positions.

use cubecl::prelude::*;
use cubecl::std::FastDivmod;

use crate::cube::axis::AxisArgs;
use crate::cube::unit::unit_position;
use crate::pool::common::place::{PlaceArgs, memory_of, position_of};
use crate::pool::common::window::ProblemArgs;

/// The windows and the planes that they read.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Windows {
    problem: ProblemArgs,
    place: PlaceArgs,
    /// The rows of a plane that is read, and the positions of a row.
    height: FastDivmod<u32>,
    width: FastDivmod<u32>,
}

#[cube(launch_unchecked)]
pub(super) fn zeros<S: Float, N: Size>(
    dx: &mut [Vector<S, N>],
    vectors: u32,
    #[comptime] contiguous: bool,
    #[define(S)] _stored: ElemType,
) {
    let at = unit_position(contiguous);
    if at >= vectors {
        terminate!();
    }
    dx[at as usize] = Vector::new(S::from_int(0));
}

#[cube(launch_unchecked)]
pub(super) fn scatter<S: Float, A: Float>(
    dy: &[S],
    winners: &[i32],
    dx: &mut [S],
    args: &Windows,
    #[comptime] contiguous: bool,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let at = unit_position(contiguous);
    if at >= args.place.outputs {
        terminate!();
    }
    let (pixel, lane) = args.place.lanes.div_mod(at);
    let (outer, window) = args.place.windows.div_mod(pixel);
    let position = position_of(&args.place, outer, lane, winners[at as usize]);
    let problem = &args.problem;
    let there = max(position, 0i32) as u32;
    let (rest, w) = args.width.div_mod(there);
    let (d, h) = args.height.div_mod(rest);
    let (rest, ow) = problem.width.output.div_mod(window);
    let (od, oh) = problem.height.output.div_mod(rest);
    let reads = reads(&problem.depth, d, od)
        && reads(&problem.height, h, oh)
        && reads(&problem.width, w, ow);
    if position >= 0 && reads {
        // Added to 0, as by the kernels that gather, so that −0 becomes 0.
        let sum = A::from_int(0) + A::cast_from(dy[at as usize]);
        dx[memory_of(&args.place, outer, lane, there) as usize] = S::cast_from(sum);
    }
}

/// Whether window `o` has a tap on coordinate `x`.
#[cube]
fn reads(axis: &AxisArgs, x: u32, o: u32) -> bool {
    let beyond = x as i32 + axis.before - o as i32 * axis.stride;
    let within = beyond >= 0 && beyond <= (axis.kernel - 1) * axis.dilation;
    within && beyond % axis.dilation == 0
}
