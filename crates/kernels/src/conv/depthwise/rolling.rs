//! The forward pass and the data gradient on a GPU. A unit walks down some lines of results and reads each line of pixels
//! once:
//!
//! ```text
//! for each piece of LINES lines of results, each run of neighbouring rows, each vector of channels:       one unit
//!     for each line of pixels that the piece reads:
//!         pixels ← those that the run reads on this line
//!         the loads of a later line are started
//!         for each line of results that reads this line:    sums[line mod SLOTS][row] += pixel · w[tap]
//!         the line of results whose last line of pixels this was is stored
//! ```
//!
//! `SLOTS` lines of results are unfinished at any time. The loop is unrolled `SLOTS` times, after which each line has the
//! same registers again. The weights are held in registers too, so the filters must be small.
//!
//! With channels last, neighbouring units compute neighbouring vectors of channels, and with channels first, neighbouring
//! runs of a line, each for one channel. Then the weights of a unit need not be beside those of others, and the filters are
//! read as they are. With channels last, they are read as they are too if the weights of neighbouring channels are beside each
//! other. Otherwise a cube of a small problem brings its weights to shared memory, and for large ones they are packed once.

use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::std::FastDivmod;
use windowpane_geometry::{AXES, Convolution, DType, Layout};

use super::config::Config;
use super::kernel::with_bias;
use super::walk::{MOST_AHEAD, Origin, Pixels, divisor, first_row, load_pixels, run, widened};
use crate::conv::common::{
    Arguments, Epilogue, EpilogueArgs, Gather, GatherArgs, MOST_TOGETHER, Packing, RunArgs,
    RunArgsLaunch, Sweep, WeightSteps, buffer, finish_with, optional, row_point, tap_point,
    weight_steps, widest_vector,
};
use crate::conv::problem::{Request, Task, operands, results};
use crate::cube::optional::Optional;
use crate::cube::{Registers, Widening, accumulator, elem, grid, numbers, zeros};

/// The most registers for the sums of unfinished lines, and for weights.
const MOST_SUMS: u32 = 112;
const MOST_WEIGHTS: u32 = 50;

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) pixels: Pixels,
    /// The taps along the height, and the lines of pixels from one line of results to the next.
    taps: u32,
    pub(super) step: u32,
    /// The lines whose loads are in flight while a line is multiplied.
    pub(super) ahead: u32,
    /// Whether later taps read earlier lines.
    up: bool,
    /// The lanes of a vector of results. With channels first, these are neighbouring rows.
    pub(super) stored: u32,
}

/// The units of a cube that brings its weights to shared memory, and the weights of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Staged {
    units: u32,
    weights: u32,
}

impl Form {
    /// The form of one product of a pass; none where sums and weights take too many registers. With channels last, a line of
    /// results reads each line of pixels up to the next one's first.
    pub(super) fn new(task: Task<'_>, config: Config, gather: &Gather) -> Option<Self> {
        let Task { conv, request: Request { dtype, .. }, device } = task;
        let [depth, height, width] = gather.axes;
        let across = conv.layout() == Layout::ChannelsFirst;
        let can_walk = device.cores.is_none()
            && (!across || config.lanes == 1)
            && conv.grid().rank() > 1
            && height.taps >= if across { 1 } else { height.step }
            && depth.taps == 1
            && width.taps > 0
            && height.tap_step.abs() == 1;
        let along = run(config, &width);
        let taps = height.taps as u32;
        let lanes = config.lanes.saturating_mul((accumulator(dtype).size() / 4) as u32);
        let weights = taps.saturating_mul(along.taps).saturating_mul(lanes);
        let widening = Widening::of_sums(dtype, false, device);
        let widest = widest_vector(dtype, device);
        let mut form = Self {
            pixels: match conv.layout() {
                Layout::ChannelsLast => Pixels::new(along, &width, widening),
                Layout::ChannelsFirst => Pixels::contiguous(along, &width, widest, widening),
            },
            taps,
            step: height.step as u32,
            ahead: 1,
            up: height.tap_step < 0,
            stored: config.lanes,
        };
        if across && width.out_step == 1 {
            let together = along.rows | width.rows as u32;
            form.stored = 1 << together.trailing_zeros().min(widest.ilog2());
        }
        form.ahead = divisor(form.slots().saturating_mul(form.step), MOST_AHEAD);
        let sums = form.slots().saturating_mul(along.rows).saturating_mul(lanes);
        (can_walk && sums <= MOST_SUMS && weights <= MOST_WEIGHTS).then_some(form)
    }

    /// The lines of results that read the same line of pixels.
    fn slots(&self) -> u32 {
        self.taps.div_ceil(self.step)
    }

    /// The slot of the line that is `before` lines before the one in slot `i`.
    fn slot(&self, i: u32, before: u32) -> u32 {
        (i + self.slots() - before) % self.slots()
    }

    /// The steps of a walk down so many lines of results: unrolled iterations are whole.
    pub(super) fn steps(&self, lines: u32) -> u32 {
        (lines + self.slots() - 1).next_multiple_of(self.slots())
    }

    /// The products of a step, for each lane.
    pub(super) fn products(&self) -> u32 {
        self.taps * self.pixels.along.taps * self.pixels.along.rows
    }

    /// Whether units have one lane, and their registers would not hold the weights of two.
    pub(super) fn has_large_filters(&self, lanes: u32) -> bool {
        lanes == 1 && 2 * self.taps * self.pixels.along.taps > MOST_WEIGHTS
    }

    /// The registers that a unit needs. The numbers were fitted to those of 40 kernels for CUDA.
    pub(super) fn registers(&self, lanes: u32, dtype: DType) -> f64 {
        let words = |of: DType| (f64::from(lanes) * of.size() as f64 / 4.0).max(1.0);
        let along = self.pixels.along;
        let pixels = f64::from(self.pixels.pixels());
        let weights = f64::from(self.taps * along.taps) * words(accumulator(dtype));
        let sums = f64::from(self.slots() * along.rows) * words(accumulator(dtype));
        let loads = f64::from(self.ahead * self.pixels.count()) * words(dtype);
        6.0 + 2.1 * weights + 1.4 * sums + 1.2 * loads + 6.1 * pixels
    }

    /// The weight of tap `t` of a line of taps.
    fn weight(&self, tap: u32, t: u32) -> usize {
        (tap * self.pixels.along.taps + t) as usize
    }

    /// The sum of row `r` of the line in a slot.
    fn sum(&self, slot: u32, r: u32) -> usize {
        (slot * self.pixels.along.rows + r) as usize
    }
}

/// Whether a pass walks down lines: each of its products does that has any terms.
pub(super) fn walks(task: Task<'_>, config: Config) -> bool {
    let Task { conv, request, .. } = task;
    Gather::all(conv, request.pass)
        .filter(|gather| gather.terms(conv) > 0)
        .all(|gather| Form::new(task, config, &gather).is_some())
}

/// Where units read their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// In the filters as they are.
    Filters,
    /// In shared memory, to which each cube brings those of its channels.
    Shared,
    /// In packed filters: the weights of all channels beside each other, tap by tap.
    Packed,
}

/// The fastest source of the weights of all products of a pass, for cubes of `units_per_cube` units, and the seconds that it
/// takes before units can walk.
pub(super) fn source(
    task: Task<'_>,
    config: Config,
    units_per_cube: u32,
    gathers: &[Gather],
) -> (Source, f64) {
    let Task { conv, request: Request { pass, dtype, .. }, device } = task;
    let beside = weight_steps(conv, pass).group == 1;
    if beside || conv.layout() == Layout::ChannelsFirst {
        return (Source::Filters, 0.0);
    }
    let weights = weights_per_channel(conv) * config.lanes as usize;
    let bytes = weights.saturating_mul(units_per_cube as usize * dtype.size());
    let fits = weights <= MOST_STAGED && bytes <= MOST_SHARED.min(device.shared_bytes);
    let units = |gather: &Gather| Pieces::new(conv, config, gather.axes).units;
    let units = gathers.iter().map(units).sum::<usize>() as f64;
    let per_cycle = device.units_per_cycle() * device.multiprocessor_count() as f64;
    let staging = STAGING * weights as f64 * units / (per_cycle * device.clock());
    let packing = device.next_launch_seconds();
    match fits && staging < packing {
        true => (Source::Shared, staging),
        false => (Source::Packed, packing),
    }
}

/// The most weights of a unit that are brought to shared memory, and the most bytes of a cube's.
const MOST_STAGED: usize = 128;
const MOST_SHARED: usize = 16 << 10;

/// The instructions of a unit for each weight that it brings to shared memory and reads there.
const STAGING: f64 = 16.0;

fn weights_per_channel(conv: &Convolution) -> usize {
    conv.filter().elements() / conv.input().channels()
}

/// The filters as they are read.
pub(super) struct Filters {
    handle: Handle,
    elements: usize,
    dtype: DType,
    steps: WeightSteps,
    /// The elements from one channel's weights to the next one's.
    channel: usize,
    /// The weights of a channel that a cube brings to shared memory; 0 if it does not.
    staged_per_channel: usize,
}

impl Filters {
    pub(super) fn new(arguments: &Arguments<'_>, w: &Handle, source: Source) -> Self {
        let Task { conv, request: Request { pass, dtype, .. }, .. } = arguments.task;
        if source == Source::Packed {
            let packing = Packing::beside(conv, pass, conv.input().channels());
            return Self {
                handle: packing.pack(arguments, w),
                elements: packing.elements(),
                dtype: accumulator(dtype),
                steps: packing.steps(),
                channel: 1,
                staged_per_channel: 0,
            };
        }
        let steps = weight_steps(conv, pass);
        let is_staged = source == Source::Shared;
        Self {
            handle: w.clone(),
            elements: conv.filter().elements(),
            dtype,
            steps,
            channel: steps.group,
            staged_per_channel: if is_staged { weights_per_channel(conv) } else { 0 },
        }
    }
}

/// The units of a cube. There are few, because each uses many registers.
pub(super) const UNITS: u32 = 64;

/// The pieces of a product: the number of units, of vectors of channels, of runs along a line and of pieces of lines.
pub(super) struct Pieces {
    pub(super) units: usize,
    vectors: usize,
    runs: usize,
    pieces: usize,
}

impl Pieces {
    pub(super) fn new(
        conv: &Convolution,
        config: Config,
        [depth, height, width]: [Sweep; AXES],
    ) -> Self {
        let vectors = conv.input().channels() / config.lanes as usize;
        let runs = width.rows.div_ceil(run(config, &width).rows as usize);
        let pieces = height.rows.div_ceil(config.lines as usize);
        let units = conv.input().batch() * depth.rows * pieces * runs * vectors;
        Self { units, vectors, runs, pieces }
    }
}

/// One of the products of a launch.
#[derive(CubeType, CubeLaunch)]
struct WalkArgs {
    gather: GatherArgs,
    run: RunArgs,
    /// Its first unit in the launch.
    first: u32,
    #[cube(comptime)]
    form: Form,
}

/// The numbers of a launch, besides those of its products.
#[derive(CubeType, CubeLaunch)]
struct RollingArgs {
    vectors: FastDivmod<u32>,
    /// The lines of a piece.
    lines: u32,
    /// The elements from one channel's weights to the next one's, and those of all filters.
    filter: u32,
    filter_elements: FastDivmod<u32>,
}

/// Launches the products of a pass, those with the same vectors together.
pub(super) fn launch(
    arguments: &Arguments<'_>,
    config: Config,
    mut products: Vec<(Gather, Form)>,
    filters: &Filters,
) {
    let vectors = |(_, form): &(Gather, Form)| (form.pixels.lanes, form.stored);
    products.sort_by_key(vectors);
    for alike in products.chunk_by(|one, other| vectors(one) == vectors(other)) {
        for together in alike.chunks(MOST_TOGETHER) {
            launch_together(arguments, config, together, filters);
        }
    }
}

fn launch_together(
    arguments: &Arguments<'_>,
    config: Config,
    together: &[(Gather, Form)],
    filters: &Filters,
) {
    let Arguments { client, epilogue, .. } = *arguments;
    let Task { conv, request: Request { pass, dtype, .. }, .. } = arguments.task;
    let ([a, _], out) = (arguments.operands, arguments.out);
    let (lanes, channels) = (config.lanes as usize, conv.input().channels());
    let ([inputs, _], results) = (operands(conv, pass), results(conv, pass));
    let (mut products, mut units) = (Vec::new(), 0);
    for (gather, form) in together {
        let pieces = Pieces::new(conv, config, gather.axes);
        let [_, height, width] = gather.axes;
        let run = numbers! { RunArgsLaunch {
            units: pieces.units, lines: pieces.pieces, runs: pieces.runs, chunks: pieces.vectors,
            height: height.rows, width: width.rows,
        } };
        products.push(numbers! { WalkArgsLaunch {
            gather: gather.args(conv, &filters.steps), run, first: units, form: *form,
        } });
        units += pieces.units.next_multiple_of(arguments.units as usize);
    }
    let (_, Form { pixels, stored, .. }) = together[0];
    let (read, stored) = (lanes.max(pixels.lanes as usize), stored as usize);
    let (cubes, dim) = grid(client, arguments.units, units);
    let weights = (filters.staged_per_channel * lanes) as u32;
    let staged = (weights > 0).then_some(Staged { units: arguments.units, weights });
    let loaded = if staged.is_some() { 1 } else { lanes };
    // SAFETY: all units have a vector of channels whose weights are read, runs end with the line, reads of pixels that may be
    // outside are moved inside, and lines after the piece are not stored. The units of two runs that have rows in common store
    // the same bits: each row is the same sums in the same order.
    unsafe {
        depthwise_rolling::launch_unchecked(
            client,
            cubes,
            dim,
            read,
            lanes,
            loaded,
            stored,
            buffer(a, inputs / read),
            buffer(&filters.handle, filters.elements / loaded),
            optional(epilogue.bias, channels / lanes),
            Epilogue { bias: None, ..epilogue }.args(channels, results, stored, dtype),
            buffer(out, results / stored),
            products.into_iter().collect(),
            numbers! { RollingArgsLaunch {
                vectors: channels / lanes, lines: config.lines, filter: filters.channel,
                filter_elements: filters.elements,
            } },
            staged,
            elem(dtype),
            elem(filters.dtype),
            elem(accumulator(dtype)),
        )
    }
}

/// What a unit reads and where.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Column {
    pixels: Origin,
    /// The number of lines of the image; none if the depth is outside.
    extent: u32,
    /// The lines of results, the first of which has its first result at `first`.
    lines: u32,
    first: u32,
    vector: u32,
}

#[cube(launch_unchecked)]
fn depthwise_rolling<S: Float, W: Float, A: Float, P: Size, N: Size, L: Size, O: Size>(
    a: &[Vector<S, P>],
    filters: &[Vector<W, L>],
    bias: Optional<Box<[Vector<S, N>]>>,
    epilogue: &EpilogueArgs<S, O>,
    out: &mut [Vector<S, O>],
    products: &Sequence<WalkArgs>,
    args: &RollingArgs,
    #[comptime] staged: Option<Staged>,
    #[define(S)] _stored: ElemType,
    #[define(W)] _weight: ElemType,
    #[define(A)] _accumulator: ElemType,
) {
    // All units of a cube have the same product: the last one that begins before it.
    let mut first = 0u32;
    #[unroll]
    for p in 1..products.len() {
        let start = products.index(p).first;
        if CUBE_POS as u32 * CUBE_DIM >= start {
            first = start;
        }
    }
    let i = ABSOLUTE_POS as u32 - first;
    let mut shared = Sequence::<Shared<[W]>>::new();
    if comptime!(staged.is_some()) {
        let (units, own) = comptime!(staged.map_or((0, 0), |it| (it.units, it.weights)));
        shared.push(bring::<W, L>(filters, args, i, units, own));
    }
    #[unroll]
    for p in 0..products.len() {
        let product = products.index(p);
        let form = comptime!(product.form);
        // Units past the last one have helped to bring weights.
        if (comptime!(products.len() == 1) || first == product.first) && i < product.run.units {
            let (column, channel) = column_of::<P, N>(product, args, i);
            let weights = if comptime!(staged.is_some()) {
                let own = comptime!(staged.map_or(0, |it| it.weights));
                staged_weights::<W, A, N>(shared.index(0usize), &product.gather, args, own, form)
            } else {
                weights_of::<W, A, N, L>(filters, &product.gather, channel * args.filter, form)
            };
            walk::<S, A, P, N, O>(
                a,
                &weights,
                &bias,
                epilogue,
                out,
                &product.gather,
                &column,
                form,
            );
        }
    }
}

/// Where the `i`-th unit of a product reads, and its first channel.
#[cube]
fn column_of<P: Size, N: Size>(product: &WalkArgs, args: &RollingArgs, i: u32) -> (Column, u32) {
    let (gather, run, form) = (&product.gather, &product.run, comptime!(product.form));
    let (outer, piece, along, vector) = if comptime!(form.pixels.across) {
        let (rest, along) = run.runs.div_mod(i);
        let (rest, piece) = run.lines.div_mod(rest);
        let (outer, vector) = run.chunks.div_mod(rest);
        (outer, piece, along, vector)
    } else {
        let (rest, vector) = run.chunks.div_mod(i);
        let (rest, along) = run.runs.div_mod(rest);
        let (outer, piece) = run.lines.div_mod(rest);
        (outer, piece, along, vector)
    };
    let channel = vector * N::value() as u32;
    let line = piece * args.lines;
    let rows = comptime!(form.pixels.along.rows);
    let along = first_row(along * rows, run.width, rows);
    let row = row_point(gather, (outer * run.height + line) * run.width + along);
    let reach = if comptime!(form.up) { comptime!(form.taps as i32 - 1) } else { 0 };
    let inside = row.depth >= 0 && row.depth < gather.depth.extent;
    let depth = select(inside, row.depth, 0i32) * gather.depth.a_step;
    let column = Column {
        pixels: Origin {
            plane: (row.a + channel * gather.a_group + depth as u32) / P::value() as u32,
            top: row.height - reach,
            start: (row.width + comptime!(form.pixels.first()))
                / comptime!(form.pixels.lanes as i32),
        },
        extent: select(inside, gather.height.extent, 0i32) as u32,
        lines: min(args.lines, run.height - line),
        first: row.other + channel * gather.out_group,
        vector,
    };
    (column, channel)
}

/// Computes the results of a unit.
#[cube]
fn walk<S: Float, A: Float, P: Size, N: Size, O: Size>(
    a: &[Vector<S, P>],
    weights: &Sequence<Vector<A, N>>,
    bias: &Optional<Box<[Vector<S, N>]>>,
    epilogue: &EpilogueArgs<S, O>,
    out: &mut [Vector<S, O>],
    gather: &GatherArgs,
    column: &Column,
    #[comptime] form: Form,
) {
    let sums = zeros::<A, N>(comptime!(form.slots() * form.pixels.along.rows));
    let ahead = zeros::<S, P>(comptime!(form.ahead * form.pixels.count()));
    #[unroll]
    for y in 0..form.ahead {
        load_pixels::<S, P>(a, gather, &column.pixels, y.runtime(), &ahead, y, form.pixels);
    }
    let end = column.lines + comptime!(form.slots() - 1);
    let mut newest = 0u32;
    while newest < end {
        #[unroll]
        for i in 0..form.slots() {
            // Line `newest + i` of the results begins here.
            let line = newest + i;
            #[unroll]
            for j in 0..form.step {
                let y = line * comptime!(form.step) + j;
                let buffer = comptime!((i * form.step + j) % form.ahead);
                // As an unsigned number, a negative coordinate is larger than every extent.
                let inside = ((column.pixels.top + y as i32) as u32) < column.extent;
                let pixels = widened::<S, A, P, N>(
                    &ahead,
                    gather,
                    &column.pixels,
                    inside,
                    buffer,
                    form.pixels,
                );
                let later = y + comptime!(form.ahead);
                load_pixels::<S, P>(a, gather, &column.pixels, later, &ahead, buffer, form.pixels);
                add_line::<A, N>(weights, &pixels, &sums, i, j, form);
            }
            // The first lines that end are those before the piece, which as unsigned numbers are larger than it.
            let ended = line - comptime!(form.slots() - 1);
            if ended < column.lines {
                store::<S, A, N, O>(bias, epilogue, out, gather, column, &sums, ended, i, form);
            }
        }
        newest += comptime!(form.slots());
    }
}

/// The weights, line of taps by line of taps in the order in which a line of results reads lines of pixels. Those of the
/// unit's channels begin at `first`.
#[cube]
fn weights_of<W: Float, A: Float, N: Size, L: Size>(
    filters: &[Vector<W, L>],
    gather: &GatherArgs,
    first: u32,
    #[comptime] form: Form,
) -> Sequence<Vector<A, N>> {
    let mut weights = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for tap in 0..form.taps {
        #[unroll]
        for t in 0..form.pixels.along.taps {
            let at = (first + tap_of(gather, tap, t, form)) / N::value() as u32;
            weights.push(Vector::cast_from(filters[at as usize]));
        }
    }
    weights
}

/// Brings the weights of a cube's channels to shared memory, `own` for each of its units.
#[cube]
fn bring<W: Float, L: Size>(
    filters: &[Vector<W, L>],
    args: &RollingArgs,
    unit: u32,
    #[comptime] units: u32,
    #[comptime] own: u32,
) -> Shared<[W]> {
    let mut shared = Shared::<[W]>::new_slice(comptime!((units * own) as usize));
    // The units of a cube have consecutive vectors of channels, and after the last one the first.
    let first = args.vectors.modulo(unit - UNIT_POS) * own + UNIT_POS;
    #[unroll]
    for n in 0..own {
        let weight = filters[args.filter_elements.modulo(first + n * units) as usize];
        shared[(n * units + UNIT_POS) as usize] = weight.extract(0usize);
    }
    sync_cube();
    shared
}

/// The weights of a unit, of which `own` are in shared memory.
#[cube]
fn staged_weights<W: Float, A: Float, N: Size>(
    shared: &Shared<[W]>,
    gather: &GatherArgs,
    args: &RollingArgs,
    #[comptime] own: u32,
    #[comptime] form: Form,
) -> Sequence<Vector<A, N>> {
    let mut weights = Sequence::<Vector<A, N>>::new();
    #[unroll]
    for tap in 0..form.taps {
        #[unroll]
        for t in 0..form.pixels.along.taps {
            let at = UNIT_POS * own + tap_of(gather, tap, t, form);
            let mut weight = Vector::<A, N>::empty();
            #[unroll]
            for lane in 0..N::value() {
                let at = at + lane as u32 * args.filter;
                weight.insert(lane, A::cast_from(shared[at as usize]));
            }
            weights.push(weight);
        }
    }
    weights
}

/// Where the weight of a tap is after the first one of its channel.
#[cube]
fn tap_of(
    gather: &GatherArgs,
    #[comptime] tap: u32,
    #[comptime] t: u32,
    #[comptime] form: Form,
) -> u32 {
    let th = comptime!(if form.up { form.taps - 1 - tap } else { tap });
    tap_point(gather, 0u32, th.runtime(), t.runtime()).other
}

/// Adds the products of a line of pixels: the `j`-th of those at which the line of results in slot `i` begins. Lines
/// before and after the piece are computed too, and not stored.
#[cube]
fn add_line<A: Float, N: Size>(
    weights: &Sequence<Vector<A, N>>,
    pixels: &Sequence<Vector<A, N>>,
    sums: &Registers<A, N>,
    #[comptime] i: u32,
    #[comptime] j: u32,
    #[comptime] form: Form,
) {
    #[unroll]
    for p in 0..form.pixels.pixels() {
        if comptime!(form.pixels.along.is_read(p)) {
            let pixel = *pixels.index(comptime!(p as usize));
            #[unroll]
            for before in 0..form.slots() {
                #[unroll]
                for t in 0..form.pixels.along.taps {
                    #[unroll]
                    for r in 0..form.pixels.along.rows {
                        let tap = comptime!(before * form.step + j);
                        if comptime!(tap < form.taps && form.pixels.along.pixel(r, t) == p) {
                            let sum = sums.index(comptime!(form.sum(form.slot(i, before), r)));
                            let weight = *weights.index(comptime!(form.weight(tap, t)));
                            if comptime!(tap == 0 && form.pixels.along.is_first(r, p)) {
                                sum.store(fma(pixel, weight, Vector::new(A::from_int(0))));
                            } else {
                                sum.store(fma(pixel, weight, sum.read()));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Stores line `line` of the results, which is finished and in the slot after `i`.
#[cube]
fn store<S: Float, A: Float, N: Size, O: Size>(
    bias: &Optional<Box<[Vector<S, N>]>>,
    epilogue: &EpilogueArgs<S, O>,
    out: &mut [Vector<S, O>],
    gather: &GatherArgs,
    column: &Column,
    sums: &Registers<A, N>,
    line: u32,
    #[comptime] i: u32,
    #[comptime] form: Form,
) {
    let lanes = O::value() as u32;
    let first = (column.first + line * gather.height.out_step) / lanes;
    let slot = comptime!(form.slot(i, form.slots() - 1));
    let rows = comptime!(if form.pixels.across { form.stored } else { 1 });
    #[unroll]
    for v in 0..comptime!(form.pixels.along.rows / rows) {
        let sum = sums.index(comptime!(form.sum(slot, v * rows))).read();
        let mut vector = Vector::<A, O>::cast_from(sum);
        if comptime!(rows > 1) {
            #[unroll]
            for r in 0..rows {
                let sum = sums.index(comptime!(form.sum(slot, v * rows + r))).read();
                vector.insert(comptime!(r as usize), sum.extract(0usize));
            }
        }
        let vector =
            with_bias::<S, A, O, N>(bias, vector, column.vector, comptime!(form.pixels.across));
        let at = first + v * (rows * gather.width.out_step / lanes);
        out[at as usize] = finish_with::<S, A, O>(epilogue, vector, at);
    }
}
