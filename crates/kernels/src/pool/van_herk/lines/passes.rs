//! The passes of a problem: their axes, lines and vectors.

use windowpane_geometry::{AXES, Axis, DType, Pooling};

use crate::pool::common::{Task, widest_divisor};
use crate::pool::problem::Reduction;
use crate::pool::van_herk::axes::{block, windowed};

/// A pass along one axis, and the tensors that it reads and writes.
pub(in crate::pool::van_herk) struct AxisPass {
    pub(super) axis: usize,
    /// The lines are `outer × inner`; neighbours in memory lie along `inner`.
    pub(super) outer: usize,
    pub(super) inner: usize,
    /// Whether the outputs of one line are adjacent in memory, instead of those of neighbouring lines.
    pub(super) transposes: bool,
    /// Whether the lines are rows of planes, which are transposed before the pass and after it.
    pub(in crate::pool::van_herk) turned: bool,
    pub(super) last: bool,
    /// The lanes of the vectors that are read, and of those that are written.
    pub(super) lanes: [usize; 2],
    /// The types that are read and written.
    pub(super) dtypes: [DType; 2],
    pub(super) indexed: bool,
    pub(super) outputs: usize,
    /// The number of output blocks that a unit walks.
    pub(super) piece_blocks: usize,
}

impl AxisPass {
    /// The number of output blocks in a line.
    pub(super) fn blocks(&self, axis: &Axis) -> usize {
        (self.outputs * axis.stride()).div_ceil(block(axis))
    }

    /// The number of units, each of which walks a piece of a line.
    pub(super) fn units(&self, axis: &Axis) -> usize {
        self.outer * self.blocks(axis).div_ceil(self.piece_blocks) * self.inner / self.lanes[0]
    }

    /// The number of elements that the pass reads.
    pub(super) fn read(&self, pooling: &Pooling) -> usize {
        self.outer * pooling.grid().axes()[self.axis].input() * self.inner
    }

    /// The number of elements that the pass writes.
    pub(super) fn written(&self) -> usize {
        self.outer * self.outputs * self.inner
    }

    /// The most elements of a tensor that the pass, or a transpose, writes.
    pub(in crate::pool::van_herk) fn moved(&self, pooling: &Pooling) -> usize {
        self.written().max(if self.turned { self.read(pooling) } else { 0 })
    }

    /// The bytes of the transposed tensors: values and positions that are read, and those that are written.
    pub(in crate::pool::van_herk) fn turned_bytes(&self, pooling: &Pooling) -> [usize; 4] {
        let position = if self.indexed { DType::I32.size() } else { 0 };
        let [read, write] = self.dtypes.map(DType::size);
        let (inputs, outputs) = (self.read(pooling), self.written());
        let bytes = [inputs * read, inputs * position, outputs * write, outputs * position];
        bytes.map(|bytes| if self.turned { bytes } else { 0 })
    }

    /// The bytes of the values and of the positions that the pass writes to scratch buffers: 0 if it writes the result.
    pub(in crate::pool::van_herk) fn scratch(&self) -> [usize; 2] {
        let bytes = |dtype: DType| if self.last { 0 } else { self.written() * dtype.size() };
        [bytes(self.dtypes[1]), if self.indexed { bytes(DType::I32) } else { 0 }]
    }
}

/// The most bytes that the units of a cube keep; with more, few cubes fit on a multiprocessor.
const KEPT_BYTES: usize = 72 << 10;

/// Whether the units of a pass keep what they have read in shared memory until the windows that start there end. If
/// lines are long, it would have left all caches before it is read again.
pub(super) fn keeps(task: Task<'_>, axis_pass: &AxisPass, units: u32) -> bool {
    let (axis, device) = (&task.axes()[axis_pass.axis], task.device);
    let block = block(axis);
    let blocks = (axis.kernel() - 1) / block + 2;
    let unit = blocks * block * axis_pass.lanes[0] * axis_pass.dtypes[0].size();
    let room = units as usize * unit <= device.shared_bytes.min(KEPT_BYTES);
    // Without `shared_vectors`, nothing is kept: graphics drivers leave room for few cubes if shared memory is held for
    // long, and not all of them can share narrow types.
    device.shared_vectors && room && !axis_pass.indexed && !task.settings.contiguous
}

/// With fewer units than this, lines are cut into pieces, although each piece then reads one window more.
const ENOUGH_UNITS: usize = 1 << 17;

/// The type of the values between two passes.
pub(in crate::pool::van_herk) fn between(task: Task<'_>) -> DType {
    match task.reduction() {
        Reduction::Average(_) => task.settings.accumulator,
        _ => task.dtype(),
    }
}

/// Whether rows of planes are walked after another axis on a GPU, and a pixel is one element. Units of neighbouring rows
/// would then read elements that are a row apart.
pub(in crate::pool::van_herk) fn can_turn(task: Task<'_>) -> bool {
    let walked: Vec<_> = windowed(task.pooling()).collect();
    let after_others = walked.len() > 1 && walked.last() == Some(&(AXES - 1));
    after_others && task.pixel() == 1 && !task.settings.contiguous
}

/// One pass for every axis that has a window. The first reads elements of type `source`. If `turned`, the rows of planes
/// are transposed for theirs.
pub(in crate::pool::van_herk) fn all_axes(
    task: Task<'_>,
    source: DType,
    turned: bool,
) -> Vec<AxisPass> {
    let walked: Vec<_> = windowed(task.pooling()).collect();
    // Transposing each axis restores the order only if the windowed axes are the last ones.
    let order = match () {
        _ if turned => Order::Turned,
        _ if can_turn(task) && walked[0] + walked.len() == AXES => Order::Transposing,
        _ => Order::Straight,
    };
    passes(task, source, &walked, order, true)
}

/// Where passes find the elements of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Where the tensor has them.
    Straight,
    /// Each pass moves its axis to the last place.
    Transposing,
    /// Where the tensor has them, but for rows, which are transposed.
    Turned,
}

/// The pass along the depth before a pass over planes; `None` if the depth has no window.
pub(in crate::pool::van_herk) fn depth(task: Task<'_>, source: DType) -> Option<AxisPass> {
    let has_window = task.axes()[0].kernel() > 1;
    let axes = if has_window { &[0][..] } else { &[] };
    passes(task, source, axes, Order::Straight, false).pop()
}

/// The passes along the axes `walked`. If `ends`, the last of them writes the result.
fn passes(
    task: Task<'_>,
    source: DType,
    walked: &[usize],
    order: Order,
    ends: bool,
) -> Vec<AxisPass> {
    let (axes, channels, dtype, contiguous) =
        (task.axes(), task.pixel(), task.dtype(), task.settings.contiguous);
    let indexed = task.reduction().has_indices();
    let between = between(task);
    let mut extents = axes.each_ref().map(Axis::input);
    let samples = task.inputs() / channels / extents.iter().product::<usize>();
    let mut passes = Vec::new();
    for (n, &axis) in walked.iter().enumerate() {
        let (first, last) = (n == 0, ends && n + 1 == walked.len());
        let before: usize = extents[..axis].iter().product();
        let after: usize = extents[axis + 1..].iter().product();
        extents[axis] = axes[axis].output();
        let transposes = order == Order::Transposing;
        let turned = order == Order::Turned && axis == AXES - 1;
        let (outer, inner) = match () {
            // Axes that earlier passes transposed now lie behind those that are still to be walked.
            _ if transposes => (
                samples * extents[..walked[0]].iter().product::<usize>(),
                extents[walked[0]..axis].iter().product::<usize>() * after,
            ),
            _ if turned => (samples, before),
            _ => (samples * before, after * channels),
        };
        let outputs = axes[axis].output();
        let dtypes = [if first { source } else { between }, if last { dtype } else { between }];
        // With positions, the lanes of a vector must be channels of one pixel.
        let neighbours = if indexed { channels } else { inner };
        let outputs_of_block = block(&axes[axis]) / axes[axis].stride();
        let lanes = lanes(neighbours, outputs, outputs_of_block, dtypes, transposes, contiguous);
        let blocks = (outputs * axes[axis].stride()).div_ceil(block(&axes[axis]));
        let lines = outer * inner / lanes[0];
        let pieces = (ENOUGH_UNITS / lines.max(1)).clamp(1, blocks);
        let piece_blocks = if contiguous { blocks } else { blocks.div_ceil(pieces) };
        passes.push(AxisPass {
            axis,
            outer,
            inner,
            transposes,
            turned,
            last,
            lanes,
            dtypes,
            indexed,
            outputs,
            piece_blocks,
        });
    }
    passes
}

/// The lanes that a pass reads and writes: one word on a GPU, where registers are scarce; a full load on a processor. So
/// sums, which are at least a word, have one lane there, and each unit has one row and its divisors.
fn lanes(
    inner: usize,
    outputs: usize,
    outputs_of_block: usize,
    dtypes: [DType; 2],
    transposes: bool,
    contiguous: bool,
) -> [usize; 2] {
    if transposes {
        let most = (16 / dtypes[1].size()).min(4);
        return [1, widest_divisor(outputs, most).min(widest_divisor(outputs_of_block, most))];
    }
    let widest = dtypes[0].size().max(dtypes[1].size());
    let most = if contiguous { (64 / widest).min(16) } else { (4 / dtypes[0].size()).max(1) };
    [widest_divisor(inner, most.max(1)); 2]
}
