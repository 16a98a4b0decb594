//! Random problems of realistic sizes: those of networks and of pictures, and odd ones in between.
//!
//! [`Draws`] draws problems for one device, in turn for every kind, pass and type that the device supports. It draws
//! several candidates and takes the one whose kernels were drawn least. Every second problem is for the combination of
//! kernel, pass and type that has had the fewest so far: it varies a problem which that kernel is known to compute. So
//! rarely applicable kernels run often enough.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use windowpane::{Backend, DType, Device, PaddingMode};

use super::case::Case;
use super::row::respelled;
use super::tally::{Cell, Tally};
use super::{LARGEST_SLICE, conv, kernels, weigh};
use crate::element::splitmix;

/// How large problems may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The bytes of all tensors together.
    bytes: u64,
    /// The taps or multiplications of a launch.
    work: u64,
    /// The longest axis, by the number of axes.
    longest: [usize; 3],
}

impl Sizes {
    /// The limits of small problems, or of large ones, for a device.
    pub(super) fn new(large: bool, device: &Device) -> Self {
        // A CPU takes seconds for work that a GPU does in a moment.
        let is_slow = device.uses_host_memory() || device.is_emulated();
        match large {
            true => Self {
                bytes: 1 << 30,
                work: if is_slow { 1 << 28 } else { 1 << 36 },
                longest: [1 << 20, 2048, 256],
            },
            false => Self { bytes: 1 << 24, work: 1 << 24, longest: [2048, 64, 24] },
        }
    }

    /// The limits of problems for tools that slow a device down a hundred times.
    pub(super) fn tiny() -> Self {
        Self { bytes: 1 << 20, work: 1 << 20, longest: [512, 32, 12] }
    }
}

/// A kind, a pass and a type of problem.
#[derive(Clone, Debug)]
struct Sort {
    kind: &'static str,
    pass: &'static str,
    dtype: DType,
    /// Whether an extremum writes indices, and whether products are rounded to tf32.
    indices: bool,
    tf32: bool,
}

impl Sort {
    fn is_conv(&self) -> bool {
        conv::KINDS.contains(&self.kind)
    }
}

/// A problem, and the kernels that can compute it, the plan's choice first.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) case: Case,
    pub(super) kernels: Vec<&'static str>,
}

/// A problem that a kernel can compute.
#[derive(Clone, Debug)]
struct Known {
    sort: Sort,
    problem: Problem,
    /// How many problems of the kernel were drawn.
    drawn: usize,
}

/// Draws problems for a device.
pub(super) struct Draws<'a> {
    device: &'a Device,
    sizes: Sizes,
    sorts: Vec<Sort>,
    seed: u64,
    dice: Dice,
    drawn: usize,
    /// The turns that sorts have had.
    turns: usize,
    /// For each kernel, pass and type that has been drawn, the last problem.
    known: BTreeMap<Cell, Known>,
}

/// The candidates that are drawn for one problem.
const CANDIDATES: usize = 12;

/// The most draws for a candidate: some windows do not fit, and some problems exceed the device's limits.
const TRIES: usize = 64;

/// A kernel, pass and type with this many problems is not drawn for any longer.
const ENOUGH: usize = 40;

impl<'a> Draws<'a> {
    /// Draws for the kinds, passes and types whose path, as in conv/weight/f16, contains the filter.
    pub(super) fn new(device: &'a Device, sizes: Sizes, seed: u64, filter: &str) -> Self {
        let mut draws = Self {
            device,
            sizes,
            sorts: Vec::new(),
            seed,
            dice: Dice(seed),
            drawn: 0,
            turns: 0,
            known: BTreeMap::new(),
        };
        let filter = respelled(filter);
        let mut sorts = sorts(device);
        sorts.retain(|sort| {
            let mut dice = Dice(0);
            let path = format!("/{}/{}/{}/", sort.kind, sort.pass, sort.dtype);
            // A device may not support a sort at all, such as Lp pooling of f64.
            let mut tries = (0..TRIES).map(|_| draws.candidate(sort, &mut dice));
            path.contains(&filter) && tries.any(|found| found.is_some())
        });
        draws.sorts = sorts;
        draws
    }

    /// The next problem; none if the device supports none.
    ///
    /// Sorts take turns. Once each had one, every second problem is drawn for the kernel, pass and type with the fewest
    /// problems, because some kernels apply to one problem in thousands.
    pub(super) fn next(&mut self, tally: &mut Tally) -> Option<Drawn> {
        self.drawn += 1;
        let mut dice = Dice(self.dice.roll());
        let is_aimed = self.turns >= self.sorts.len() && self.drawn.is_multiple_of(2);
        let aimed = if is_aimed { self.for_the_fewest(&mut dice) } else { None };
        // If no draw for a sort succeeds, the next sort takes its turn.
        let in_turn =
            || (0..self.sorts.len()).find_map(|_| self.next_of_its_sort(tally, &mut dice));
        let mut drawn = aimed.or_else(in_turn)?;
        for kernel in &drawn.kernels {
            if let Some(known) = self.known.get_mut(&Cell::of(&drawn.case, kernel)) {
                known.drawn += 1;
            }
        }
        drawn.case.name = format!("random-{}-{}", self.seed, self.drawn);
        Some(drawn)
    }

    fn next_of_its_sort(&mut self, tally: &mut Tally, dice: &mut Dice) -> Option<Drawn> {
        let sort = self.sorts.get(self.turns % self.sorts.len())?.clone();
        self.turns += 1;
        let mut best: Option<(usize, Drawn)> = None;
        for _ in 0..CANDIDATES {
            let found = (0..TRIES).find_map(|_| self.candidate(&sort, dice));
            let Some((found, problem)) = found else { continue };
            // The table also lists kernels that could run and have not.
            for kernel in &found.kernels {
                tally.seen(&found.case, kernel);
            }
            self.remember(&sort, &problem, &found);
            let known = |kernel: &&str| self.known.get(&Cell::of(&found.case, kernel));
            let fewest = found.kernels.iter().filter_map(known).map(|known| known.drawn).min();
            let fewest = fewest.unwrap_or(usize::MAX);
            if best.as_ref().is_none_or(|(least, _)| fewest < *least) {
                best = Some((fewest, found));
            }
        }
        best.map(|(_, drawn)| drawn)
    }

    /// A variation of a problem that the kernel with the fewest problems can compute; none if all kernels have enough.
    fn for_the_fewest(&mut self, dice: &mut Dice) -> Option<Drawn> {
        let fewest = self.known.iter().min_by_key(|(_, known)| known.drawn);
        let (cell, known) = fewest.filter(|(_, known)| known.drawn < ENOUGH)?;
        let (kernel, Known { sort, problem, .. }) = (cell.algorithm.clone(), known.clone());
        let variation = (0..TRIES).find_map(|_| {
            let mut varied = problem.clone();
            varied.vary(&sort, self.sizes, dice);
            let found = self.fit(&sort, varied, dice)?;
            found.0.kernels.contains(&&*kernel).then_some(found)
        });
        let again = || self.fit(&sort, problem.clone(), dice);
        let (drawn, problem) = variation.or_else(again)?;
        self.remember(&sort, &problem, &drawn);
        Some(drawn)
    }

    /// Keeps a problem for each of its kernels, in place of an earlier one.
    fn remember(&mut self, sort: &Sort, problem: &Problem, drawn: &Drawn) {
        for kernel in &drawn.kernels {
            let (sort, problem) = (sort.clone(), problem.clone());
            let known = self.known.entry(Cell::of(&drawn.case, kernel));
            let known = known.or_insert(Known { sort, problem: problem.clone(), drawn: 0 });
            known.problem = problem;
        }
    }

    fn candidate(&self, sort: &Sort, dice: &mut Dice) -> Option<(Drawn, Problem)> {
        self.fit(sort, Problem::draw(sort, self.sizes, dice), dice)
    }

    /// Shrinks a problem until it is small enough; none if it is invalid.
    fn fit(&self, sort: &Sort, mut problem: Problem, dice: &mut Dice) -> Option<(Drawn, Problem)> {
        // The largest problems take longest, so most are smaller.
        let [bytes, work, slice] =
            [self.sizes.bytes, self.sizes.work, LARGEST_SLICE].map(|most| most >> dice.below(8));
        let case = loop {
            let case = problem.case(sort)?;
            let weight = weigh(&case).ok()?;
            let is_fit = weight.bytes <= bytes && weight.work <= work && weight.slice <= slice;
            if is_fit {
                break case;
            }
            problem.shrink(sort, dice)?;
        };
        let kernels = kernels(&case, self.device).ok()?;
        Some((Drawn { case, kernels }, problem))
    }
}

/// The sorts of problems in all types of a device.
fn sorts(device: &Device) -> Vec<Sort> {
    let mut sorts = Vec::new();
    for dtype in device.dtypes() {
        let mut add = |kind, pass, indices, tf32| {
            sorts.push(Sort { kind, pass, dtype, indices, tf32 });
        };
        for kind in ["maxpool", "minpool"] {
            add(kind, "fwd", false, false);
            add(kind, "fwd", true, false);
        }
        add("rankpool", "fwd", false, false);
        add("modepool", "fwd", false, false);
        add("maxunpool", "fwd", false, false);
        add("pad", "fwd", false, false);
        if !dtype.is_float() {
            if dtype == DType::I8 {
                add("conv", "fwd", false, false);
            }
            // SEMANTICS 3.5: kernels sum 32-bit integers in 64 bits.
            let sums = match dtype {
                DType::I64 => device.backend() == Backend::Host,
                DType::I32 | DType::U32 => device.supports(DType::I64),
                dtype => dtype != DType::Bool,
            };
            if sums {
                add("avgpool", "fwd", false, false);
                add("sumpool", "fwd", false, false);
            }
            continue;
        }
        for (kind, pass) in [
            ("maxpool", "bwd"),
            ("minpool", "bwd"),
            ("avgpool", "fwd"),
            ("avgpool", "bwd"),
            ("sumpool", "fwd"),
            ("sumpool", "bwd"),
            ("lppool", "fwd"),
            ("lppool", "bwd"),
            ("maxunpool", "bwd"),
            ("pad", "bwd"),
        ] {
            add(kind, pass, false, false);
        }
        for (kind, pass) in conv::KINDS
            .iter()
            .flat_map(|kind| ["fwd", "data", "weight", "bias"].map(|it| (*kind, it)))
        {
            add(kind, pass, false, false);
            if dtype == DType::F32 && pass != "bias" {
                add(kind, pass, false, true);
            }
        }
    }
    sorts
}

/// The numbers of a problem.
#[derive(Clone, Debug)]
struct Problem {
    batch: usize,
    groups: usize,
    /// The channels and the filters of a group.
    channels: usize,
    filters: usize,
    axes: Vec<Line>,
    windows: Windows,
    last: bool,
    extra: Vec<(&'static str, Value)>,
}

/// How the windows of a problem are given.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Windows {
    /// With padding, and with extents rounded up or down.
    Padded { ceil: bool },
    /// With the padding that keeps the extents: `upper` or `lower`.
    Same(&'static str),
    /// By their number.
    Adaptive,
}

/// An axis of a problem.
#[derive(Clone, Copy, Debug)]
struct Line {
    size: usize,
    kernel: usize,
    stride: usize,
    /// The padding before and after.
    sides: [usize; 2],
    dilation: usize,
    /// The number of adaptive windows.
    outputs: usize,
    /// The output padding of a transposed convolution, which is less than the stride.
    longer: usize,
}

impl Problem {
    fn draw(sort: &Sort, sizes: Sizes, dice: &mut Dice) -> Self {
        let rank = dice.of(&[1, 2, 2, 2, 2, 3]);
        let first = Line::draw(rank, sort, sizes, dice);
        let axes = (0..rank).map(|_| match dice.chance(70) {
            true => first,
            false => Line::draw(rank, sort, sizes, dice),
        });
        let mut axes: Vec<Line> = axes.collect();
        match dice.below(100) {
            // Global pooling.
            0..=5 if !sort.is_conv() => {
                for axis in &mut axes {
                    *axis =
                        Line { kernel: axis.size, stride: 1, sides: [0; 2], dilation: 1, ..*axis };
                }
            }
            // 3×3 windows with stride 1 and padding 1, which have special kernels.
            6..=25 if sort.kind != "pad" => {
                for axis in &mut axes {
                    *axis = Line { kernel: 3, stride: 1, sides: [1; 2], dilation: 1, ..*axis };
                }
            }
            _ => {}
        }
        let (groups, channels, filters) = match sort.is_conv() {
            true => groups(dice),
            false => (1, dice.channels(), 1),
        };
        let (last, windows) = (dice.chance(60), Windows::draw(sort, dice));
        let extra = extra(sort, last, dice);
        Self { batch: dice.up_to(64), groups, channels, filters, axes, windows, last, extra }
    }

    /// Changes some of the numbers.
    fn vary(&mut self, sort: &Sort, sizes: Sizes, dice: &mut Dice) {
        let (rank, is_conv) = (self.axes.len(), sort.is_conv());
        let counts = |own: usize, dice: &mut Dice| match dice.below(4) {
            0 => 2 * own,
            1 => own.div_ceil(2),
            2 => own + 1 + dice.below(8),
            _ => dice.channels(),
        };
        for _ in 0..1 + dice.below(3) {
            let i = dice.below(rank);
            match dice.below(10) {
                0 | 1 => self.batch = dice.up_to(64),
                2 => self.channels = counts(self.channels, dice),
                3 if is_conv => self.filters = counts(self.filters, dice),
                4 if is_conv => self.groups = counts(self.groups, dice),
                5 | 6 => self.axes[i].size = Line::draw(rank, sort, sizes, dice).size,
                7 => self.axes[i] = Line::draw(rank, sort, sizes, dice),
                8 => self.windows = Windows::draw(sort, dice),
                _ => {
                    self.last ^= dice.chance(20);
                    self.extra = extra(sort, self.last, dice);
                }
            }
        }
    }

    /// Halves one of the problem's extents; none if all are minimal.
    fn shrink(&mut self, sort: &Sort, dice: &mut Dice) -> Option<()> {
        let long = self.axes.iter_mut().max_by_key(|axis| axis.size)?;
        let [batch, size, counts] = [self.batch > 1, long.size > 8, self.channels > 1];
        match dice.below(3) {
            0 if batch => self.batch = self.batch.div_ceil(2),
            1 if size => {
                long.kernel = if long.kernel == long.size { long.size / 2 } else { long.kernel };
                long.size /= 2;
                if sort.kind == "pad" {
                    long.sides = long.sides.map(|side| side / 2);
                }
            }
            _ if counts && dice.chance(50) => self.channels /= 2,
            _ if self.filters > 1 => self.filters /= 2,
            _ if self.groups > 1 => self.groups /= 2,
            _ if batch => self.batch = self.batch.div_ceil(2),
            _ if size => long.size /= 2,
            _ if counts => self.channels /= 2,
            _ => return None,
        }
        Some(())
    }

    fn case(&self, sort: &Sort) -> Option<Case> {
        let each = |of: fn(&Line) -> usize| self.axes.iter().map(of).collect::<Vec<_>>();
        let mut line = json!({
            "name": "", "kind": sort.kind, "pass": sort.pass, "dtype": sort.dtype.name(),
            "layout": if self.last { "nhwc" } else { "nchw" },
            "n": self.batch, "c": self.groups * self.channels, "size": each(|axis| axis.size),
        });
        if sort.kind != "pad" && self.windows != Windows::Adaptive {
            line["k"] = json!(each(|axis| axis.kernel));
            line["s"] = json!(each(|axis| axis.stride));
            line["d"] = json!(each(|axis| axis.dilation));
        }
        match self.windows {
            Windows::Padded { ceil } => {
                let sides = self.axes.iter().map(|axis| match axis.sides {
                    [before, after] if before == after => json!(before),
                    sides => json!(sides),
                });
                line["p"] = json!(sides.collect::<Vec<_>>());
                if ceil {
                    line["ceil"] = json!(true);
                }
            }
            Windows::Same(same) => line["same"] = json!(same),
            Windows::Adaptive => line["adaptive"] = json!(each(|axis| axis.outputs)),
        }
        for (field, value) in &self.extra {
            line[field] = value.clone();
        }
        if sort.is_conv() {
            line["cout"] = json!(self.groups * self.filters);
            line["groups"] = json!(self.groups);
        }
        if sort.kind == "convtranspose" && matches!(self.windows, Windows::Padded { .. }) {
            line["output_padding"] = json!(each(|axis| axis.longer % axis.stride.max(1)));
        }
        if sort.tf32 {
            line["precision"] = json!("tf32");
        }
        serde_json::from_value(line).ok()
    }
}

impl Windows {
    fn draw(sort: &Sort, dice: &mut Dice) -> Self {
        let is_conv = sort.is_conv();
        match dice.below(100) {
            _ if sort.kind == "pad" => Self::Padded { ceil: false },
            0..=11 => Self::Same(dice.of(&["upper", "lower"])),
            12..=23 if !is_conv => Self::Adaptive,
            _ => Self::Padded { ceil: !is_conv && dice.chance(30) },
        }
    }
}

/// The fields that only some kinds have.
fn extra(sort: &Sort, last: bool, dice: &mut Dice) -> Vec<(&'static str, Value)> {
    let mut extra = Vec::new();
    let is_extremum = matches!(sort.kind, "maxpool" | "minpool");
    if sort.indices || sort.kind == "maxunpool" || is_extremum && sort.pass == "bwd" {
        extra.push(("index_base", json!(dice.of(&["plane", "plane", "tensor", "memory"]))));
    }
    let modes = PaddingMode::ALL.map(PaddingMode::name);
    match sort.kind {
        "conv" | "convtranspose" => {
            let own = if last { "fhwc" } else { "fchw" };
            extra.push(("filters", json!(dice.of(&[own, own, "hwcf"]))));
            if sort.pass == "fwd" && dice.chance(50) {
                let is_float = sort.dtype.is_float();
                let activations = ["none", "relu", "relu6", "gelu", "silu", "leaky:0.1"];
                let activation = match is_float {
                    true => dice.of(&activations),
                    false => dice.of(&["none", "relu", "leaky:0.1"]),
                };
                extra.push(("activation", json!(activation)));
                extra.push(("bias", json!(dice.chance(60))));
                if sort.kind == "conv" && is_float {
                    extra.push(("residual", json!(dice.chance(40))));
                }
            }
            if sort.kind == "conv" && sort.pass != "bias" && dice.chance(20) {
                extra.push(("padding_mode", json!(dice.of(&modes))));
            }
        }
        "avgpool" => {
            let fixed = json!(1 + dice.below(64));
            extra.push(("divisor", dice.of(&[json!("padded"), json!("valid"), fixed])));
        }
        "rankpool" => {
            let ranks = [json!("1/2"), json!("1/2"), json!("9/10"), json!(0), json!(3), json!(20)];
            extra.push(("rank", ranks[dice.below(ranks.len())].clone()));
        }
        "lppool" => extra.push(("exponent", json!(dice.of(&[1.0, 2.0, 2.0, 3.0, 1.5])))),
        "maxpool" | "minpool" => extra.push(("indices", json!(sort.indices))),
        "pad" => extra.push(("padding_mode", json!(dice.of(&modes)))),
        _ => {}
    }
    extra
}

impl Line {
    fn draw(rank: usize, sort: &Sort, sizes: Sizes, dice: &mut Dice) -> Self {
        let longest = sizes.longest[rank - 1];
        let size = match dice.chance(60) {
            true => dice.of(&[7, 8, 14, 28, 32, 56, 64, 112, 128, 224, 256, 512]),
            false => dice.up_to(longest),
        };
        let size = size.min(longest);
        let most = if sort.is_conv() { [64, 13, 5] } else { [512, 31, 9] }[rank - 1];
        let kernel = match dice.below(100) {
            0..=59 => dice.of(&[1, 2, 3, 3, 3]),
            60..=89 => dice.of(&[4, 5, 7]),
            _ => dice.up_to(most),
        };
        let dilation = if kernel > 1 && dice.chance(15) { 1 + dice.below(4) } else { 1 };
        let sides = match dice.below(100) {
            _ if sort.kind == "pad" => [(); 2].map(|()| match dice.chance(80) {
                true => dice.below(5),
                false => dice.up_to(2 * size) - 1,
            }),
            0..=54 => [dilation * (kernel - 1) / 2; 2],
            55..=74 => [0; 2],
            75..=84 => [dice.below(kernel + 1); 2],
            _ => [(); 2].map(|()| dice.below(kernel + 1)),
        };
        let stride = match dice.below(100) {
            0..=54 => 1,
            55..=84 => 2,
            85..=92 => kernel,
            _ => 1 + dice.below(4),
        };
        let outputs = match dice.below(100) {
            0..=39 => dice.of(&[1, 2, 6, 7]),
            40..=59 => size.div_ceil(1 + dice.below(4)),
            60..=95 => dice.up_to(size),
            // More windows than coordinates.
            _ => size + 1 + dice.below(3),
        };
        Self { size, kernel, stride, sides, dilation, outputs, longer: dice.below(4) }
    }
}

/// The groups, and the channels and filters of each: dense, depthwise, a few channels per group, or many.
fn groups(dice: &mut Dice) -> (usize, usize, usize) {
    match dice.below(100) {
        0..=44 => (1, dice.channels(), dice.channels()),
        45..=59 => (dice.channels(), 1, dice.of(&[1, 1, 1, 2])),
        60..=84 => {
            let few = [1, 2, 2, 3, 4, 4, 6, 8, 12, 16, 20];
            let channels = dice.of(&few);
            // Mostly as many filters as channels.
            let filters = if dice.chance(70) { channels } else { dice.of(&few) };
            (dice.of(&[2, 3, 4, 8, 16, 24, 32, 64]), channels, filters)
        }
        _ => (dice.of(&[2, 3, 4, 8]), dice.channels().min(512), dice.channels().min(512)),
    }
}

/// A random number generator with a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        splitmix(&mut self.0)
    }

    /// A number below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        (self.roll() % end as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// A number from 1 to `most`, log-uniform.
    fn up_to(&mut self, most: usize) -> usize {
        let unit = (self.roll() >> 11) as f64 / (1u64 << 53) as f64;
        ((most as f64).powf(unit).round() as usize).clamp(1, most)
    }

    /// Channels from 1 to 2048, mostly as in networks.
    fn channels(&mut self) -> usize {
        match self.chance(70) {
            true => {
                self.of(&[3, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048])
            }
            false => self.up_to(2048),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Problems respect the size limits, have a kernel, and repeat with the same seed; every sort is drawn.
    #[test]
    fn problems_repeat_and_are_of_all_sorts() {
        let host = Device::host();
        for large in [false, true] {
            let sizes = Sizes::new(large, &host);
            let lines = |seed| {
                let mut draws = Draws::new(&host, sizes, seed, "");
                let mut tally = Tally::default();
                let drawn = (0..320).filter_map(|_| draws.next(&mut tally));
                let lines = drawn.map(|drawn| {
                    let weight = weigh(&drawn.case).expect("a problem");
                    assert!(weight.bytes <= sizes.bytes && weight.work <= sizes.work);
                    assert!(!drawn.kernels.is_empty());
                    let line = serde_json::to_string(&drawn.case).expect("a line");
                    // `--cases` reads it, and it has the same kernels.
                    let again = &Case::parse("lines", &line).expect("a case")[0];
                    assert_eq!(kernels(again, &host).expect("kernels"), drawn.kernels, "{line}");
                    line
                });
                lines.collect::<Vec<_>>()
            };
            let first = lines(7);
            assert_eq!(first.len(), 320);
            assert_eq!(first, lines(7));
            assert_ne!(first, lines(8));
            for word in [
                "maxpool",
                "minpool",
                "avgpool",
                "sumpool",
                "lppool",
                "rankpool",
                "modepool",
                "weight",
                "bias",
                "hwcf",
                "nchw",
                "u8",
                "maxunpool",
                "convtranspose",
                "\"pad\"",
                "adaptive",
                "\"same\":\"upper",
                "\"same\":\"lower",
                "\"p\":[[",
                "\"bias\":true",
                "\"residual\":true",
                "relu",
                "reflect",
                "symmetric",
                "replicate",
                "circular",
                "output_padding",
                "\"index_base\":\"tensor",
                "\"index_base\":\"memory",
            ] {
                assert!(first.iter().any(|line| line.contains(word)), "no {word}: {first:?}");
            }
        }
    }

    /// A kernel that applies to few problems has as many as the others in the end.
    #[test]
    fn seldom_kernels_are_drawn_often_enough() {
        let host = Device::host();
        let mut draws = Draws::new(&host, Sizes::new(false, &host), 3, "conv/weight/f32");
        let mut drawn = BTreeMap::new();
        for _ in 0..80 {
            for kernel in draws.next(&mut Tally::default()).expect("a problem").kernels {
                *drawn.entry(kernel).or_insert(0) += 1;
            }
        }
        assert_eq!(drawn.len(), 3, "{drawn:?}");
        assert!(drawn.values().all(|drawn| (30..=80).contains(drawn)), "{drawn:?}");
        // Problems of one kernel differ.
        let known = draws.known.iter().find(|(cell, _)| cell.algorithm == "depthwise");
        let Known { sort, problem, .. } = known.expect("it was drawn").1;
        let mut dice = Dice(1);
        let lines = (0..9).map(|_| {
            let mut varied = problem.clone();
            varied.vary(sort, draws.sizes, &mut dice);
            let case = varied.case(sort).expect("a case");
            serde_json::to_string(&case).expect("a line")
        });
        let lines: BTreeSet<String> = lines.collect();
        assert!(lines.len() > 6, "{lines:?}");
    }

    #[test]
    fn draws_are_of_what_is_asked_for() {
        let host = Device::host();
        let draw = |filter| {
            let mut draws = Draws::new(&host, Sizes::new(false, &host), 1, filter);
            let drawn = (0..9).filter_map(|_| draws.next(&mut Tally::default()));
            drawn.map(|drawn| drawn.case.path()).collect::<Vec<_>>()
        };
        for filter in ["conv/weight", "conv/wgrad"] {
            let paths = draw(filter);
            assert!(paths.len() == 9 && paths.iter().all(|path| path.contains("/conv/weight/")));
        }
        assert!(draw("lstm").is_empty());
    }

    #[test]
    fn numbers_reach_from_one_to_the_most() {
        let mut dice = Dice(1);
        let numbers: Vec<usize> = (0..2000).map(|_| dice.up_to(512)).collect();
        assert!(numbers.contains(&1) && numbers.iter().all(|n| (1..=512).contains(n)));
        assert!(numbers.iter().filter(|n| **n > 400).count() > 10);
    }
}
