//! Random problems of realistic sizes: those of networks and of pictures, and odd ones in between.
//!
//! [`Draws`] draws problems for one device, in turn for every kind, pass and type that the device supports. It draws
//! several candidates and takes the one whose kernels have run least, so that rarely applicable kernels run too.

use serde_json::{Value, json};
use windowpane::{DType, Device};

use super::case::Case;
use super::row::respelled;
use super::tally::Tally;
use super::{LARGEST_SLICE, kernels, weigh};
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

/// A problem, and the kernels that can compute it, the plan's choice first.
pub(super) struct Drawn {
    pub(super) case: Case,
    pub(super) kernels: Vec<&'static str>,
}

/// Draws problems for a device.
pub(super) struct Draws<'a> {
    device: &'a Device,
    sizes: Sizes,
    sorts: Vec<Sort>,
    seed: u64,
    dice: Dice,
    drawn: usize,
}

/// The candidates that are drawn for one problem.
const CANDIDATES: usize = 12;

/// The most draws for a candidate: some windows do not fit, and some problems exceed the device's limits.
const TRIES: usize = 64;

impl<'a> Draws<'a> {
    /// Draws for the kinds, passes and types whose path, as in conv/weight/f16, contains the filter.
    pub(super) fn new(device: &'a Device, sizes: Sizes, seed: u64, filter: &str) -> Self {
        let mut draws = Self { device, sizes, sorts: Vec::new(), seed, dice: Dice(seed), drawn: 0 };
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
    pub(super) fn next(&mut self, tally: &mut Tally) -> Option<Drawn> {
        // If no draw for a sort succeeds, the next sort takes its turn.
        (0..self.sorts.len()).find_map(|_| self.next_of_its_sort(tally))
    }

    fn next_of_its_sort(&mut self, tally: &mut Tally) -> Option<Drawn> {
        let sort = self.sorts.get(self.drawn % self.sorts.len())?.clone();
        self.drawn += 1;
        let mut dice = Dice(self.dice.roll());
        let mut best: Option<(usize, Drawn)> = None;
        for _ in 0..CANDIDATES {
            let found = (0..TRIES).find_map(|_| self.candidate(&sort, &mut dice));
            let Some(found) = found else { continue };
            // This also records kernels that could run and have not.
            let fewest = found.kernels.iter().map(|kernel| tally.seen(&found.case, kernel)).min();
            let fewest = fewest.unwrap_or(usize::MAX);
            if best.as_ref().is_none_or(|(least, _)| fewest < *least) {
                best = Some((fewest, found));
            }
        }
        let mut drawn = best?.1;
        drawn.case.name = format!("random-{}-{}", self.seed, self.drawn);
        Some(drawn)
    }

    fn candidate(&self, sort: &Sort, dice: &mut Dice) -> Option<Drawn> {
        let mut problem = Problem::draw(sort, self.sizes, dice);
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
            problem.shrink(dice)?;
        };
        let kernels = kernels(&case, self.device).ok()?;
        Some(Drawn { case, kernels })
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
        if !dtype.is_float() {
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
        ] {
            add(kind, pass, false, false);
        }
        for pass in ["fwd", "data", "weight", "bias"] {
            add("conv", pass, false, false);
            if dtype == DType::F32 && pass != "bias" {
                add("conv", pass, false, true);
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
    last: bool,
    ceil: bool,
    extra: Vec<(&'static str, Value)>,
}

/// An axis of a problem.
#[derive(Clone, Copy, Debug)]
struct Line {
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Problem {
    fn draw(sort: &Sort, sizes: Sizes, dice: &mut Dice) -> Self {
        let is_conv = sort.kind == "conv";
        let rank = dice.of(&[1, 2, 2, 2, 2, 3]);
        let longest = sizes.longest[rank - 1];
        let first = Line::draw(rank, longest, is_conv, dice);
        let axes = (0..rank).map(|_| match dice.chance(70) {
            true => first,
            false => Line::draw(rank, longest, is_conv, dice),
        });
        let mut axes: Vec<Line> = axes.collect();
        match dice.below(100) {
            // Global pooling.
            0..=5 if !is_conv => {
                for axis in &mut axes {
                    *axis = Line { kernel: axis.size, stride: 1, padding: 0, dilation: 1, ..*axis };
                }
            }
            // 3×3 windows with stride 1 and padding 1, which have special kernels.
            6..=25 => {
                for axis in &mut axes {
                    *axis = Line { kernel: 3, stride: 1, padding: 1, dilation: 1, ..*axis };
                }
            }
            _ => {}
        }
        let (groups, channels, filters) = match is_conv {
            true => groups(dice),
            false => (1, dice.channels(), 1),
        };
        let last = dice.chance(60);
        let mut extra = Vec::new();
        match sort.kind {
            "conv" => {
                let own = if last { "fhwc" } else { "fchw" };
                extra.push(("filters", json!(dice.of(&[own, own, "hwcf"]))));
            }
            "avgpool" => {
                let fixed = json!(1 + dice.below(64));
                extra.push(("divisor", dice.of(&[json!("padded"), json!("valid"), fixed])));
            }
            "lppool" => extra.push(("exponent", json!(dice.of(&[1.0, 2.0, 2.0, 3.0, 1.5])))),
            _ => extra.push(("indices", json!(sort.indices))),
        }
        let (batch, ceil) = (dice.up_to(64), !is_conv && dice.chance(25));
        Self { batch, groups, channels, filters, axes, last, ceil, extra }
    }

    /// Halves one of the problem's extents; none if all are minimal.
    fn shrink(&mut self, dice: &mut Dice) -> Option<()> {
        let long = self.axes.iter_mut().max_by_key(|axis| axis.size)?;
        let [batch, size, counts] = [self.batch > 1, long.size > 8, self.channels > 1];
        match dice.below(3) {
            0 if batch => self.batch = self.batch.div_ceil(2),
            1 if size => {
                long.kernel = if long.kernel == long.size { long.size / 2 } else { long.kernel };
                long.size /= 2;
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
            "n": self.batch, "c": self.groups * self.channels,
            "size": each(|axis| axis.size), "k": each(|axis| axis.kernel),
            "s": each(|axis| axis.stride), "p": each(|axis| axis.padding),
            "d": each(|axis| axis.dilation),
        });
        for (field, value) in &self.extra {
            line[field] = value.clone();
        }
        if self.ceil {
            line["ceil"] = json!(true);
        }
        if sort.kind == "conv" {
            line["cout"] = json!(self.groups * self.filters);
            line["groups"] = json!(self.groups);
        }
        if sort.tf32 {
            line["precision"] = json!("tf32");
        }
        serde_json::from_value(line).ok()
    }
}

impl Line {
    fn draw(rank: usize, longest: usize, is_conv: bool, dice: &mut Dice) -> Self {
        let size = match dice.chance(60) {
            true => dice.of(&[7, 8, 14, 28, 32, 56, 64, 112, 128, 224, 256, 512]),
            false => dice.up_to(longest),
        };
        let kernel = match dice.below(100) {
            0..=59 => dice.of(&[1, 2, 3, 3, 3]),
            60..=89 => dice.of(&[4, 5, 7]),
            _ => dice.up_to(if is_conv { [64, 13, 5] } else { [512, 31, 9] }[rank - 1]),
        };
        let dilation = if kernel > 1 && dice.chance(15) { 1 + dice.below(4) } else { 1 };
        let padding = match dice.below(100) {
            0..=59 => dilation * (kernel - 1) / 2,
            60..=84 => 0,
            _ => dice.below(kernel + 1),
        };
        let stride = match dice.below(100) {
            0..=54 => 1,
            55..=84 => 2,
            85..=92 => kernel,
            _ => 1 + dice.below(4),
        };
        Self { size: size.min(longest), kernel, stride, padding, dilation }
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
                let drawn = (0..120).filter_map(|_| draws.next(&mut tally));
                let lines = drawn.map(|drawn| {
                    let weight = weigh(&drawn.case).expect("a problem");
                    assert!(weight.bytes <= sizes.bytes && weight.work <= sizes.work);
                    assert!(!drawn.kernels.is_empty());
                    serde_json::to_string(&drawn.case).expect("a line")
                });
                lines.collect::<Vec<_>>()
            };
            let first = lines(7);
            assert_eq!(first.len(), 120);
            assert_eq!(first, lines(7));
            assert_ne!(first, lines(8));
            for word in [
                "maxpool", "minpool", "avgpool", "sumpool", "lppool", "weight", "bias", "hwcf",
                "nchw", "u8",
            ] {
                assert!(first.iter().any(|line| line.contains(word)), "no {word}: {first:?}");
            }
        }
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
