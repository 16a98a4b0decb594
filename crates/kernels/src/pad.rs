//! Fills in the padding of a tensor: a number, or copies of its elements.
//!
//! ```text
//! pad:       y[n, o, c] = x[n, source(o), c]             one unit per vector of y, lanes along c
//! gradient:  dx[n, x, c] = Σ dy[n, o, c] over source(o) = x
//! ```
//!
//! The gradient is a gather in a fixed order, so that the same inputs give the same bits. On each axis the positions with
//! the same source are one or two arithmetic sequences, with `L` coordinates of which `before` are padding, and `P` in
//! all:
//!
//! ```text
//! zeros      x + before
//! replicate  x + before, at the ends also all of the padding
//! circular   x + before + i·L
//! reflect    x + before + i·2(L−1) and before − x + i·2(L−1)      the same at the ends
//! symmetric  x + before + i·2L and before − 1 − x + i·2L
//! ```

use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{Axis, DType, LIMIT, Layout, Padded, PaddingMode};

use crate::cube::buffers::{self, BufferError, Given};
use crate::cube::convert::{accumulator, elem, round};
use crate::cube::unit::{plain_grid, unit_position, widest_lanes};
use crate::device::{Capabilities, Target};
use crate::packed;

/// Pads a tensor of any type. With [`PaddingMode::Zeros`] the padding holds `value`, which the type must be able to hold; an
/// integer type's least or greatest number if it is beyond these.
///
/// The launch is asynchronous.
///
/// ```
/// # use cubecl::server::Handle;
/// use windowpane_geometry::{Extents, Layout, Padded, PaddingMode, Shape};
/// use windowpane_kernels::{BufferError, DType, Target, pad};
///
/// /// 8 images of 56 × 56 pixels and 64 channels, with two more pixels on every side.
/// fn mirrored(target: Target<'_>, x: &Handle) -> Result<Handle, BufferError> {
///     let images = Shape::new(8, 64, Extents::from([56, 56])).expect("it is small");
///     let padded = Padded::new(images, 2.into(), PaddingMode::Reflect, Layout::ChannelsLast);
///     let padded = padded.expect("it is small");
///     let y = target.client.empty(padded.output().elements() * size_of::<f32>());
///     pad(target, DType::F32, &padded, 0.0, x, &y)?;
///     Ok(y)
/// }
/// ```
pub fn pad(
    target: Target<'_>,
    dtype: DType,
    padded: &Padded,
    value: f64,
    from: &Handle,
    to: &Handle,
) -> Result<(), BufferError> {
    let (inputs, outputs) = (padded.input().elements(), padded.output().elements());
    check(target.device, dtype, [("the input", from, inputs), ("the padded tensor", to, outputs)])?;
    if outputs > 0 {
        let value =
            dtype.integers().map_or(value, |(least, most)| value.clamp(least as f64, most as f64));
        packed::computed(target, dtype, [(from, inputs), (to, outputs)], |dtype, from, to| {
            launch(target, dtype, padded, from, to, Some(value));
        });
    }
    Ok(())
}

/// The gradient of [`pad`] with respect to its input, for floating-point types.
///
/// The launch is asynchronous.
pub fn pad_gradient(
    target: Target<'_>,
    dtype: DType,
    padded: &Padded,
    dy: &Handle,
    dx: &Handle,
) -> Result<(), BufferError> {
    let (inputs, outputs) = (padded.input().elements(), padded.output().elements());
    let given = [("the padded gradient", dy, outputs), ("the gradient", dx, inputs)];
    check(target.device, dtype, given)?;
    if inputs > 0 {
        launch(target, dtype, padded, dy, dx, None);
    }
    Ok(())
}

/// Refuses buffers that kernels cannot read and write, and more elements than they divide in 32 bits.
fn check(
    device: &Capabilities,
    dtype: DType,
    given: [(&'static str, &Handle, usize); 2],
) -> Result<(), BufferError> {
    for (name, _, elements) in given {
        if elements > LIMIT {
            return Err(BufferError::TooMany { name, elements, limit: LIMIT });
        }
    }
    let [from, to] = given.map(|(name, handle, elements)| Given { name, handle, dtype, elements });
    buffers::check(device, &[from], &[to])
}

/// Launches either kernel on checked buffers with at least one element: with a value for the padding, or the gradient.
fn launch(
    target: Target<'_>,
    dtype: DType,
    padded: &Padded,
    from: &Handle,
    to: &Handle,
    value: Option<f64>,
) {
    let Target { client, device } = target;
    let gradient = value.is_none();
    let channels = match padded.layout() {
        Layout::ChannelsLast => padded.input().channels(),
        Layout::ChannelsFirst => 1,
    };
    let lanes = widest_lanes(device, dtype.size(), channels);
    let (inputs, outputs) = (padded.input().elements(), padded.output().elements());
    let (read, written) = if gradient { (outputs, inputs) } else { (inputs, outputs) };
    let vectors = written / lanes;
    let (cubes, units) = plain_grid(target, vectors);
    let [depth, height, width] =
        padded.axes().each_ref().map(|axis| line(axis, padded.mode(), gradient));
    let form = Form {
        mode: padded.mode(),
        contiguous: device.cores.is_some(),
        rounds: dtype == DType::BF16 && !device.rounds_bf16,
    };
    let pixel = (channels / lanes) as u32;
    let plane = PlaneLaunch::new(vectors as u32, pixel, pixel, depth, height, width);
    // SAFETY: a unit past the last vector ends, and every other access is inside the tensors by the arithmetic of
    // `Padded`, which the tests on every device check.
    unsafe {
        let from = BufferArg::from_raw_parts(from.clone(), read / lanes);
        let to = BufferArg::from_raw_parts(to.clone(), vectors);
        match value {
            None => {
                let types = [elem(dtype), elem(accumulator(dtype))];
                gathered::launch_unchecked(
                    client, cubes, units, lanes, from, to, plane, form, types,
                );
            }
            Some(value) => filled::launch_unchecked(
                client,
                cubes,
                units,
                lanes,
                from,
                to,
                number(value, dtype),
                plane,
                form,
                elem(dtype),
            ),
        }
    }
}

/// A number that a type holds, or the nearest that an integer type holds, as a launch argument.
fn number(value: f64, dtype: DType) -> InputScalar {
    if dtype.is_float() {
        InputScalar::new(value, elem(dtype))
    } else {
        // The nearest 64-bit integer, of which 2⁶³ is none.
        InputScalar::new(value as i64, elem(dtype))
    }
}

/// The parameters that change a kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    mode: PaddingMode,
    contiguous: bool,
    rounds: bool,
}

/// The axes of both tensors, whose extents may change without a new kernel.
#[derive(CubeType, CubeLaunch)]
struct Plane {
    /// The vectors that are written, and those of a pixel.
    vectors: u32,
    channels: u32,
    pixel: FastDivmod<u32>,
    depth: Line,
    height: Line,
    width: Line,
}

/// One axis.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Line {
    input: u32,
    output: u32,
    before: u32,
    /// The coordinates of the tensor that is written.
    written: FastDivmod<u32>,
    /// The coordinates after which the padding repeats.
    period: FastDivmod<u32>,
    turn: u32,
    /// The distance between copies of a coordinate.
    step: u32,
    /// What makes the first coordinate a multiple of the period, when added.
    shift: u32,
}

fn line(axis: &Axis, mode: PaddingMode, gradient: bool) -> LineLaunch {
    let (input, output, before) = (axis.input(), axis.output(), axis.before());
    let turn = match mode {
        PaddingMode::Circular => input,
        PaddingMode::Reflect => (2 * (input - 1)).max(1),
        PaddingMode::Symmetric => 2 * input,
        _ => 1,
    };
    let shift = (turn - before % turn) % turn;
    LineLaunch::new(
        input as u32,
        output as u32,
        before as u32,
        if gradient { input } else { output } as u32,
        // `FastDivmod` is exact for 31 bits. No coordinate reaches the limit, so a longer period is as good as this one.
        turn.min(LIMIT) as u32,
        turn as u32,
        // The next position after a long step must not wrap around.
        turn.min(output) as u32,
        shift as u32,
    )
}

#[cube(launch_unchecked)]
fn filled<S: Numeric, N: Size>(
    x: &[Vector<S, N>],
    y: &mut [Vector<S, N>],
    padding: InputScalar,
    plane: &Plane,
    #[comptime] form: Form,
    #[define(S)] _stored: ElemType,
) {
    let vector = unit_position(form.contiguous);
    if vector >= plane.vectors {
        terminate!();
    }
    let (rest, channel) = plane.pixel.div_mod(vector);
    let (rest, w) = plane.width.written.div_mod(rest);
    let (rest, h) = plane.height.written.div_mod(rest);
    let (sample, d) = plane.depth.written.div_mod(rest);
    let depth = source(&plane.depth, d, form.mode);
    let height = source(&plane.height, h, form.mode);
    let width = source(&plane.width, w, form.mode);
    let at = (sample * plane.depth.input + depth) * plane.height.input + height;
    let at = (at * plane.width.input + width) * plane.channels + channel;
    let value = x[at as usize];
    y[vector as usize] = if comptime!(form.mode == PaddingMode::Zeros) {
        let inside =
            is_inside(&plane.depth, d) && is_inside(&plane.height, h) && is_inside(&plane.width, w);
        select(inside, value, Vector::new(padding.get::<S>()))
    } else {
        value
    };
}

/// Whether the padding is a mirror image.
fn mirrors(mode: PaddingMode) -> bool {
    matches!(mode, PaddingMode::Reflect | PaddingMode::Symmetric)
}

/// The number of coordinates at the edge that the mirror image repeats.
fn repeated(mode: PaddingMode) -> u32 {
    u32::from(mode == PaddingMode::Symmetric)
}

/// The coordinate of the input that position `o` has the value of; if that is 0, the nearest coordinate.
#[cube]
fn source(line: &Line, o: u32, #[comptime] mode: PaddingMode) -> u32 {
    if comptime!(mode == PaddingMode::Circular) {
        let (_, place) = line.period.div_mod(o);
        let place = place + line.shift;
        select(place >= line.turn, place - min(place, line.turn), place)
    } else if comptime!(mirrors(mode)) {
        // Both sides of the first coordinate, or of the edge before it, are the same.
        let edge = comptime!(repeated(mode));
        let (ahead, behind) = (line.before - min(o + edge, line.before), o - min(o, line.before));
        let (_, place) = line.period.div_mod(select(o < line.before, ahead, behind));
        select(place < line.input, place, line.turn - edge - place)
    } else {
        min(max(o, line.before) - line.before, line.input - 1)
    }
}

#[cube]
fn is_inside(line: &Line, o: u32) -> bool {
    o >= line.before && o < line.before + line.input
}

#[cube(launch_unchecked)]
fn gathered<S: Float, A: Float, N: Size>(
    dy: &[Vector<S, N>],
    dx: &mut [Vector<S, N>],
    plane: &Plane,
    #[comptime] form: Form,
    #[define(S, A)] _types: [ElemType; 2],
) {
    let vector = unit_position(form.contiguous);
    if vector >= plane.vectors {
        terminate!();
    }
    let (rest, channel) = plane.pixel.div_mod(vector);
    let (rest, w) = plane.width.written.div_mod(rest);
    let (rest, h) = plane.height.written.div_mod(rest);
    let (sample, d) = plane.depth.written.div_mod(rest);
    let sides = comptime!(if mirrors(form.mode) { 2u32 } else { 1u32 });
    let mut sum = Vector::<A, N>::new(A::from_int(0));
    for side_d in 0..sides {
        let depth = copies(&plane.depth, d, side_d, form.mode);
        let mut od = depth.first;
        while od < depth.end {
            for side_h in 0..sides {
                let height = copies(&plane.height, h, side_h, form.mode);
                let mut oh = height.first;
                while oh < height.end {
                    for side_w in 0..sides {
                        let width = copies(&plane.width, w, side_w, form.mode);
                        let mut ow = width.first;
                        while ow < width.end {
                            let at = (sample * plane.depth.output + od) * plane.height.output + oh;
                            let at = (at * plane.width.output + ow) * plane.channels + channel;
                            sum += Vector::cast_from(dy[at as usize]);
                            ow += plane.width.step;
                        }
                    }
                    oh += plane.height.step;
                }
            }
            od += plane.depth.step;
        }
    }
    dx[vector as usize] = round::<A, S, N>(sum, form.rounds);
}

/// Positions with the same source: from the first, step by step, up to the end.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Copies {
    first: u32,
    end: u32,
}

/// The positions that have the value of coordinate `x`; with reflections, those of one of its two sides.
#[cube]
fn copies(line: &Line, x: u32, side: u32, #[comptime] mode: PaddingMode) -> Copies {
    let here = x + line.before;
    if comptime!(mode == PaddingMode::Circular) {
        let (_, first) = line.period.div_mod(here);
        Copies { first, end: line.output }
    } else if comptime!(mirrors(mode)) {
        let (_, first) = line.period.div_mod(here);
        // The image of `x` about the edge is that of the coordinate after it about the first one.
        let at = x + comptime!(repeated(mode));
        let (_, below) = line.period.div_mod(max(line.before, at) - at);
        let above = line.turn - (at - min(line.before, at));
        let image = select(line.before >= at, below, above);
        let first = select(side == 0, first, image);
        if comptime!(mode == PaddingMode::Reflect) {
            // The ends have one side.
            let none = side == 1 && (x == 0 || x + 1 == line.input);
            Copies { first, end: select(none, 0u32, line.output) }
        } else {
            Copies { first, end: line.output }
        }
    } else if comptime!(mode == PaddingMode::Replicate) {
        let first = select(x == 0, 0u32, here);
        Copies { first, end: select(x + 1 == line.input, line.output, here + 1) }
    } else {
        Copies { first: here, end: here + 1 }
    }
}
