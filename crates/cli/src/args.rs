//! Arguments that several commands share, and how their values are spelled.

use std::fmt;

use clap::{ArgGroup, Args, ValueEnum};
use windowpane::geometry::LIMIT;
use windowpane::{
    AvgPool, Backend, DType, Device, Divisor, Exponent, Extents, IndexBase, Layout, LpPool,
    MaxPool, MinPool, ModePool, Padding, PoolAlgorithm, PoolPlan, Rank, RankPool, Rounding, Same,
    StochasticPool, Window,
};

use crate::failure::Failure;
use crate::layouts::{Layouts, layouts};

/// The device to run on.
#[derive(Args)]
pub(crate) struct On {
    /// cuda, hip, metal, vulkan, wgpu, cpu or host [default: the best available]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<Backend>,
    /// Index of the device within its backend [default: 0]
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) device: Option<usize>,
    /// Print only results: no progress, no parameters, no summary
    #[arg(long)]
    pub(crate) quiet: bool,
}

impl On {
    /// Opens the device.
    pub(crate) fn open(&self) -> Result<Device, Failure> {
        let backend = self.backend.unwrap_or_else(|| Device::best().backend());
        Ok(Device::new(backend, self.device.unwrap_or(0))?)
    }
}

/// How a command that prints one thing prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    // No help texts: they would make clap print every flag's help on separate lines.
    Table,
    Json,
}

/// How a window is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Op {
    // No help texts: they would make clap print every flag's help on separate lines.
    Max,
    Min,
    Avg,
    Sum,
    Lp,
    #[value(alias = "median")]
    Rank,
    Mode,
    Stochastic,
    StochasticMean,
}

/// Flags that replace the kernel and all of its options.
const FITTED: [&str; 2] = ["adaptive", "global"];

/// The window and the operator of `pool`, `pool-backward` and `plan pool`.
#[derive(Args)]
#[command(group = ArgGroup::new("window").args(["kernel", "adaptive", "global"]).required(true))]
pub(crate) struct PoolArgs {
    /// Reduction of each window; lp is the norm (Σ|x|^p)^(1/p), rank is the median unless --rank is
    /// given, mode is the most frequent number, stochastic draws a number with a probability
    /// proportional to it, and stochastic-mean is the mean of what it draws
    #[arg(long, value_enum, default_value = "max")]
    op: Op,
    /// Exponent of --op lp, at least 1 [default: 2]
    #[arg(long, value_name = "P", value_parser = exponent)]
    p: Option<Exponent>,
    /// Rank of --op rank: how many numbers of a window precede the result, or a fraction of them [default: 1/2]
    #[arg(long, value_name = "N|A/B")]
    rank: Option<Rank>,
    /// Seed of --op stochastic: the same seed draws the same numbers on every device [default: 0]
    #[arg(long, value_name = "S")]
    seed: Option<u32>,
    /// Window size: 1, 2 or 3 numbers, one per axis
    #[arg(long, value_name = "K,…", value_parser = positive)]
    kernel: Option<Extents>,
    /// Output size, in place of a kernel: the windows divide the input evenly
    #[arg(long, value_name = "O,…", value_parser = positive)]
    adaptive: Option<Extents>,
    /// One window over the whole input, in place of a kernel
    #[arg(long)]
    global: bool,
    /// Step between windows, one number per axis [default: the kernel]
    #[arg(long, value_name = "S,…", value_parser = positive, conflicts_with_all = FITTED)]
    stride: Option<Extents>,
    /// Padding per axis: 1,1, or 1:2,0:1 as before:after, or same-upper, same-lower, valid
    #[arg(long, value_name = "P,…", value_parser = padding, default_value = "valid",
        conflicts_with_all = FITTED)]
    padding: Padding,
    /// Step between the taps of a window, one number per axis [default: 1]
    #[arg(long, value_name = "D,…", value_parser = positive, conflicts_with_all = FITTED)]
    dilation: Option<Extents>,
    /// Round the output size up, keeping a last window that extends past the padding
    #[arg(long, conflicts_with_all = FITTED)]
    ceil: bool,
    /// Divisor of an average: padded (taps in the input or padding), valid (taps in the input), a fixed number N,
    /// or truncated:N, which rounds averages of integers towards zero [default: padded]
    #[arg(long, value_name = "padded|valid|[truncated:]N", value_parser = divisor)]
    divisor: Option<Divisor>,
    /// Memory layout: channels-last (N,…,C) or channels-first (N,C,…); also nhwc, nchw and so on
    #[arg(long, value_name = "LAYOUT", value_parser = layouts, default_value = "channels-last")]
    pub(crate) layout: Layouts,
    /// auto, direct (reads every tap of every window), sliding (cost independent of the window size),
    /// register_tile (neighbouring windows share loads), van_herk (what sliding means on every backend but host),
    /// block_reduce (many threads per window), stencil (3×3 averages share their sums), cpu_rows (CPU threads keep
    /// what neighbouring windows share); for gradients gather (reads every window over an input), gather_tile
    /// (neighbouring inputs share loads), gather_staged (windows in shared memory), scatter (windows that do not overlap)
    /// or segmented_scatter (many windows over an input); for norms lp; for ranks and modes rank; for stochastic pooling
    /// stochastic
    #[arg(long, value_parser = algorithm, default_value = "auto")]
    algorithm: Auto,
    /// Type to compute in: f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8 or bool [default: the file's, else f32]
    #[arg(long, value_name = "TYPE")]
    pub(crate) dtype: Option<DType>,
}

/// The type to compute in: the requested one, or that of the files, which must then agree.
pub(crate) fn common_type(
    asked: Option<DType>,
    (name, dtype): (&str, DType),
    others: impl IntoIterator<Item = (impl fmt::Display, DType)>,
) -> Result<DType, Failure> {
    if let Some(asked) = asked {
        return Ok(asked);
    }
    match others.into_iter().find(|(_, found)| *found != dtype) {
        None => Ok(dtype),
        Some((other, found)) => Err(Failure::Failed(format!(
            "{name} holds {dtype} but {other} holds {found}; choose the type to compute in with --dtype"
        ))),
    }
}

/// An operator with its options.
#[derive(Clone, Copy)]
pub(crate) enum Operator {
    Max {
        pool: MaxPool,
        with_indices: bool,
    },
    Min {
        pool: MinPool,
        with_indices: bool,
    },
    /// An average, or a sum, whose divisor is 1.
    Average(AvgPool, Divisor),
    Norm(LpPool, Exponent),
    Rank(RankPool, Rank),
    Mode(ModePool),
    Drawn {
        pool: StochasticPool,
        with_indices: bool,
    },
    MeanDrawn(StochasticPool),
}

impl Operator {
    /// Plans the forward pass.
    pub(crate) fn plan(
        &self,
        device: &Device,
        dtype: DType,
        dims: &[usize],
    ) -> windowpane::Result<PoolPlan> {
        match self {
            Self::Max { pool, with_indices: false } => pool.plan(device, dtype, dims),
            Self::Max { pool, with_indices: true } => pool.plan_with_indices(device, dtype, dims),
            Self::Min { pool, with_indices: false } => pool.plan(device, dtype, dims),
            Self::Min { pool, with_indices: true } => pool.plan_with_indices(device, dtype, dims),
            Self::Average(pool, _) => pool.plan(device, dtype, dims),
            Self::Norm(pool, _) => pool.plan(device, dtype, dims),
            Self::Rank(pool, _) => pool.plan(device, dtype, dims),
            Self::Mode(pool) => pool.plan(device, dtype, dims),
            Self::Drawn { pool, with_indices: false } => pool.plan(device, dtype, dims),
            Self::Drawn { pool, with_indices: true } => pool.plan_with_indices(device, dtype, dims),
            Self::MeanDrawn(pool) => pool.plan_mean(device, dtype, dims),
        }
    }

    /// Plans the gradient; `dims` are the dimensions of the input.
    pub(crate) fn plan_backward(
        &self,
        device: &Device,
        dtype: DType,
        dims: &[usize],
    ) -> Result<PoolPlan, Failure> {
        Ok(match self {
            Self::Max { pool, .. } => pool.plan_backward(device, dtype, dims)?,
            Self::Min { pool, .. } => pool.plan_backward(device, dtype, dims)?,
            Self::Average(pool, _) => pool.plan_backward(device, dtype, dims)?,
            Self::Norm(pool, _) => pool.plan_backward(device, dtype, dims)?,
            Self::Drawn { pool, .. } => pool.plan_backward(device, dtype, dims)?,
            Self::Rank(..) => return Err(no_gradient("rank")),
            Self::Mode(_) => return Err(no_gradient("mode")),
            Self::MeanDrawn(_) => return Err(no_gradient("stochastic-mean")),
        })
    }
}

fn no_gradient(op: &str) -> Failure {
    let others = "use --op max, min, avg, sum, lp or stochastic";
    Failure::Arguments(format!("--op {op} has no gradient; {others}"))
}

/// Calls the constructor that fits the requested window.
macro_rules! pool_over {
    ($pool:ident $(, $p:expr)?; $window:expr) => {
        match $window {
            Some(window) => $pool::with_window($($p,)? window),
            None => $pool::global($($p)?),
        }
    };
}

impl PoolArgs {
    /// The operator that the arguments describe. `indices` is the index base if indices are wanted.
    pub(crate) fn operator(&self, indices: Option<IndexBase>) -> Result<Operator, Failure> {
        let window = self.window()?;
        let (layout, algorithm) = (self.layout.data, self.algorithm.0);
        let only_for = |is_set: bool, flag: &str, ops: &[Op], names: &str| match is_set
            && !ops.contains(&self.op)
        {
            true => Err(Failure::Arguments(format!(
                "--{flag} applies only to --op {names}; leave it out"
            ))),
            false => Ok(()),
        };
        only_for(self.divisor.is_some(), "divisor", &[Op::Avg], "avg")?;
        let indexed = [Op::Max, Op::Min, Op::Stochastic];
        only_for(indices.is_some(), "indices", &indexed, "max, min or stochastic")?;
        only_for(self.seed.is_some(), "seed", &[Op::Stochastic], "stochastic")?;
        only_for(self.p.is_some(), "p", &[Op::Lp], "lp")?;
        only_for(self.rank.is_some(), "rank", &[Op::Rank], "rank")?;
        let (base, with_indices) = (indices.unwrap_or_default(), indices.is_some());
        Ok(match self.op {
            Op::Max => {
                let pool = pool_over!(MaxPool; window).layout(layout).algorithm(algorithm);
                Operator::Max { pool: pool.index_base(base), with_indices }
            }
            Op::Min => {
                let pool = pool_over!(MinPool; window).layout(layout).algorithm(algorithm);
                Operator::Min { pool: pool.index_base(base), with_indices }
            }
            Op::Avg | Op::Sum => {
                let pool = pool_over!(AvgPool; window).layout(layout).algorithm(algorithm);
                let divisor = match self.op {
                    Op::Sum => Divisor::Fixed(1),
                    _ => self.divisor.unwrap_or_default(),
                };
                Operator::Average(pool.divisor(divisor), divisor)
            }
            Op::Lp => {
                let p = self.p.unwrap_or(Exponent::new(2));
                let pool = pool_over!(LpPool, p.get(); window).layout(layout).algorithm(algorithm);
                Operator::Norm(pool, p)
            }
            Op::Rank => {
                let rank = self.rank.unwrap_or(Rank::MEDIAN);
                let pool = pool_over!(RankPool, rank; window).layout(layout).algorithm(algorithm);
                Operator::Rank(pool, rank)
            }
            Op::Mode => {
                let pool = pool_over!(ModePool; window).layout(layout).algorithm(algorithm);
                Operator::Mode(pool)
            }
            Op::Stochastic | Op::StochasticMean => {
                let pool = pool_over!(StochasticPool; window).layout(layout).algorithm(algorithm);
                let pool = pool.seed(self.seed.unwrap_or_default()).index_base(base);
                match self.op {
                    Op::Stochastic => Operator::Drawn { pool, with_indices },
                    _ => Operator::MeanDrawn(pool),
                }
            }
        })
    }

    /// The window that the arguments describe; `None` for a global one, whose rank is the input's.
    fn window(&self) -> Result<Option<Window>, Failure> {
        if let Some(output) = self.adaptive {
            return Ok(Some(Window::adaptive(output)));
        }
        let Some(kernel) = self.kernel else { return Ok(None) };
        for (flag, extents) in [("stride", self.stride), ("dilation", self.dilation)] {
            self.check_rank(flag, extents)?;
        }
        if let Padding::Explicit { before, .. } = self.padding {
            self.check_rank("padding", Some(before))?;
        }
        let rounding = if self.ceil { Rounding::Ceil } else { Rounding::Floor };
        let window = Window::new(kernel)
            .stride(self.stride.unwrap_or(kernel))
            .padding(self.padding)
            .rounding(rounding);
        Ok(Some(match self.dilation {
            Some(dilation) => window.dilation(dilation),
            None => window,
        }))
    }

    /// The flag that sets the number of axes, and the number; `None` if any number is accepted.
    fn axes(&self) -> Option<(&str, usize)> {
        let kernel = self.kernel.map(|kernel| ("--kernel", kernel.rank()));
        kernel.or(self.adaptive.map(|output| ("--adaptive", output.rank())))
    }

    fn check_rank(&self, flag: &str, extents: Option<Extents>) -> Result<(), Failure> {
        let asked = extents.map(|extents| extents.rank());
        match (asked, self.axes()) {
            (Some(asked), Some((by, rank))) if asked != rank => Err(Failure::Arguments(format!(
                "--{flag} has {asked} numbers but {by} has {rank}; give one number per axis"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses dimensions whose rank differs from the window's or the layout's; the message begins with `whose`.
    pub(crate) fn check_dims(&self, whose: &str, dims: &[usize]) -> Result<(), Failure> {
        let layout = self.layout.data;
        if let Some((by, rank)) = self.axes() {
            check_dims(whose, dims, by, rank, layout)?;
        }
        // The library reports a rank other than 1, 2 or 3.
        self.layout.check(dims.len().saturating_sub(2)).map(drop)
    }
}

/// Refuses dimensions whose rank differs from that of the flag `by`; the message begins with `whose`.
pub(crate) fn check_dims(
    whose: &str,
    dims: &[usize],
    by: &str,
    rank: usize,
    layout: Layout,
) -> Result<(), Failure> {
    if dims.len() == rank + 2 {
        return Ok(());
    }
    let axes = &["D", "H", "W"][3 - rank..];
    let order = match layout {
        Layout::ChannelsLast => format!("N,{},C", axes.join(",")),
        Layout::ChannelsFirst => format!("N,C,{}", axes.join(",")),
    };
    let found = dims.len();
    let mend = match found {
        3..=5 => format!("give {by} one number per spatial axis, or use an array of that rank"),
        _ => "use an array of that rank".into(),
    };
    let message = format!(
        "{whose} has {found} dimensions, {dims:?}, but {by} with {rank} numbers needs {}: {order}; {mend}",
        rank + 2,
    );
    // Either two arguments disagree, or an argument and a file.
    Err(match whose {
        "--shape" => Failure::Arguments(message),
        _ => Failure::Failed(message),
    })
}

/// An algorithm, or `None` for the automatic choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Auto(Option<PoolAlgorithm>);

fn algorithm(text: &str) -> Result<Auto, String> {
    match text {
        "auto" => Ok(Auto(None)),
        name => name.parse().map(|algorithm| Auto(Some(algorithm))).map_err(in_words),
    }
}

fn in_words(error: impl fmt::Display) -> String {
    error.to_string()
}

/// `plane`, `tensor` or `memory`.
pub(crate) fn index_base(text: &str) -> Result<IndexBase, String> {
    match text {
        "plane" => Ok(IndexBase::Plane),
        "tensor" => Ok(IndexBase::Tensor),
        "memory" => Ok(IndexBase::Memory),
        _ => Err("unknown index base; use one of plane, tensor, memory".into()),
    }
}

/// A finite number of at least 1.
pub(crate) fn exponent(text: &str) -> Result<Exponent, String> {
    let number: f64 = text.trim().parse().map_err(|_| format!("`{text}` is not a number"))?;
    let exponent = Exponent::new(number);
    exponent.check().map_err(in_words)?;
    Ok(exponent)
}

/// `padded`, `valid`, a number of at least 1, or `truncated:` before one.
fn divisor(text: &str) -> Result<Divisor, String> {
    match text {
        "padded" => Ok(Divisor::Padded),
        "valid" => Ok(Divisor::Valid),
        number => {
            let (number, divisor) = match number.strip_prefix("truncated:") {
                Some(number) => (number, Divisor::Truncated as fn(u32) -> Divisor),
                None => (number, Divisor::Fixed as fn(u32) -> Divisor),
            };
            match number.parse() {
                Ok(n) if n >= 1 => Ok(divisor(n)),
                _ => Err(format!(
                    "use padded, valid, or a whole number from 1 to {}, which `truncated:` may precede",
                    u32::MAX
                )),
            }
        }
    }
}

/// `same-upper`, `same-lower`, `valid`, or `1,1`, or `1:2,0:1` for before:after on each axis.
pub(crate) fn padding(text: &str) -> Result<Padding, String> {
    match text {
        "valid" => return Ok(Padding::Valid),
        "same-upper" => return Ok(Padding::Same(Same::Upper)),
        "same-lower" => return Ok(Padding::Same(Same::Lower)),
        _ => {}
    }
    let sides = text.split(',').map(|axis| {
        let (before, after) = axis.split_once(':').unwrap_or((axis, axis));
        Ok((number(before)?, number(after)?))
    });
    let words = |reason: String| format!("{reason}; or use same-upper, same-lower or valid");
    let sides = sides.collect::<Result<Vec<_>, String>>().map_err(words)?;
    let (before, after): (Vec<_>, Vec<_>) = sides.into_iter().unzip();
    let of = |side: &[usize]| extents(side, 0);
    Ok(Padding::Explicit { before: of(&before)?, after: of(&after)? })
}

/// 1, 2 or 3 numbers of at least 1, separated by commas.
pub(crate) fn positive(text: &str) -> Result<Extents, String> {
    extents(&numbers(text)?, 1)
}

/// 1, 2 or 3 numbers of at least 0, separated by commas.
pub(crate) fn counts(text: &str) -> Result<Extents, String> {
    extents(&numbers(text)?, 0)
}

/// 1, 2 or 3 numbers, each at least `least` and at most the largest supported extent.
fn extents(numbers: &[usize], least: usize) -> Result<Extents, String> {
    let extents = Extents::try_from(numbers).map_err(in_words)?;
    for (number, axis) in extents.three(least).into_iter().zip(["depth", "height", "width"]) {
        let bound = match number {
            number if number < least => format!("at least {least}"),
            number if number > LIMIT => format!("at most {LIMIT}"),
            _ => continue,
        };
        return Err(format!("it is {number} on the {axis} axis and must be {bound}"));
    }
    Ok(extents)
}

/// The dimensions of an array, separated by commas; only the first, the batch, may be 0.
pub(crate) fn shape(text: &str) -> Result<Shape, String> {
    let dims = numbers(text)?;
    match dims.split_first() {
        Some((batch, rest)) if (2..=4).contains(&rest.len()) => {
            held(rest.iter().copied().chain([(*batch).max(1)]))?;
        }
        _ => return Err(format!("it has {} dimensions; an array has 3, 4 or 5", dims.len())),
    }
    Ok(Shape(dims))
}

/// The dimensions of filters, separated by commas; none may be 0.
pub(crate) fn filters(text: &str) -> Result<Shape, String> {
    let Shape(dims) = shape(text)?;
    held(dims.iter().copied())?;
    Ok(Shape(dims))
}

/// Refuses dimensions of 0, and more elements than can be counted.
fn held(dims: impl Iterator<Item = usize>) -> Result<(), String> {
    let mut elements = 1usize;
    for dim in dims {
        elements = match elements.checked_mul(dim) {
            Some(0) => return Err("it has a dimension of 0; make it at least 1".into()),
            Some(elements) if elements <= isize::MAX as usize => elements,
            _ => return Err(format!("it has more than {} elements; make it smaller", isize::MAX)),
        };
    }
    Ok(())
}

/// The dimensions of an array, in memory order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape(pub(crate) Vec<usize>);

fn numbers(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').map(number).collect()
}

/// A number of at least 1.
pub(crate) fn natural(text: &str) -> Result<usize, String> {
    match number(text)? {
        0 => Err("it must be at least 1".into()),
        number => Ok(number),
    }
}

/// A count from 0 that fits in 32 bits.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    let count = number(text).ok().and_then(|number| u32::try_from(number).ok());
    count.ok_or_else(|| format!("`{text}` is not a whole number from 0 to {}", u32::MAX))
}

/// A count from 1 that fits in 32 bits.
pub(crate) fn counted(text: &str) -> Result<u32, String> {
    match count(text)? {
        0 => Err("it must be at least 1".into()),
        count => Ok(count),
    }
}

/// A number of at least 0.
pub(crate) fn number(text: &str) -> Result<usize, String> {
    let text = text.trim();
    // `parse` accepts a sign, which an extent must not have.
    let number = if text.starts_with('+') { None } else { text.parse().ok() };
    number.ok_or_else(|| format!("`{text}` is not a whole number from 0 to {}", usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_one_to_three_numbers_from_one() {
        assert_eq!(positive("3"), Ok([3].into()));
        assert_eq!(positive("3, 2"), Ok([3, 2].into()));
        assert_eq!(positive("3,2,1"), Ok([3, 2, 1].into()));
        for bad in ["", ",", "3,", "0", "3,0", "1,1,1,1", "-1", "+1", "NaN", "1e3", "2.5", "∞"] {
            assert!(positive(bad).is_err(), "{bad}");
        }
        assert!(positive("18446744073709551616").is_err());
        assert_eq!(positive("2147483647"), Ok([LIMIT].into()));
        let error = positive("1,2147483648,1").unwrap_err();
        assert_eq!(error, "it is 2147483648 on the height axis and must be at most 2147483647");
    }

    #[test]
    fn padding_is_numbers_pairs_or_a_word() {
        assert_eq!(padding("1,2"), Ok([1, 2].into()));
        assert_eq!(padding("1:2,0:1"), Ok([(1, 2), (0, 1)].into()));
        assert_eq!(padding("1,0:1"), Ok([(1, 1), (0, 1)].into()));
        assert_eq!(padding("0"), Ok([0].into()));
        assert_eq!(padding("same-upper"), Ok(Padding::Same(Same::Upper)));
        assert_eq!(padding("same-lower"), Ok(Padding::Same(Same::Lower)));
        assert_eq!(padding("valid"), Ok(Padding::Valid));
        for bad in ["", "same", "1:", ":1", "1:2:3", "-1", "1;2", "1,1,1,1", "nan", "1:2147483648"]
        {
            assert!(padding(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_are_known_or_listed() {
        assert_eq!(divisor("padded"), Ok(Divisor::Padded));
        assert_eq!(divisor("valid"), Ok(Divisor::Valid));
        assert_eq!(divisor("9"), Ok(Divisor::Fixed(9)));
        assert_eq!(divisor("truncated:9"), Ok(Divisor::Truncated(9)));
        assert!(divisor("truncated:0").is_err() && divisor("truncated").is_err());
        for bad in ["0", "-1", "4294967296", "pad", "", "1.5"] {
            assert!(divisor(bad).is_err(), "{bad}");
        }
        assert_eq!(index_base("tensor"), Ok(IndexBase::Tensor));
        assert!(index_base("onnx").is_err());
        assert_eq!(algorithm("auto"), Ok(Auto(None)));
        assert_eq!(algorithm("sliding"), Ok(Auto(Some(PoolAlgorithm::Sliding))));
        assert!(algorithm("fast").unwrap_err().contains("sliding"));
    }

    #[test]
    fn exponents_are_finite_numbers_from_one() {
        assert_eq!(
            (exponent("2"), exponent("1.5")),
            (Ok(Exponent::new(2)), Ok(Exponent::new(1.5)))
        );
        for bad in ["0", "0.99", "-2", "inf", "NaN", "two", ""] {
            assert!(exponent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_zero_is_named_by_its_axis() {
        assert!(positive("1,0,1").unwrap_err().contains("height"));
        assert!(positive("0").unwrap_err().contains("width"));
        assert_eq!((natural("7"), number("0")), (Ok(7), Ok(0)));
        assert!(natural("0").is_err());
        assert_eq!((counted("7"), count("0")), (Ok(7), Ok(0)));
        for bad in ["-1", "4294967296", "many", "1.5", ""] {
            assert!(count(bad).unwrap_err().contains("from 0 to 4294967295"), "{bad}");
        }
        assert!(counted("0").is_err());
    }

    #[test]
    fn shapes_are_numbers() {
        assert_eq!(shape("8,112,112,64"), Ok(Shape(vec![8, 112, 112, 64])));
        assert_eq!(shape("0,4,1"), Ok(Shape(vec![0, 4, 1])));
        for bad in ["8x112", "8,112", "1,2,3,4,5,6", "1,0,1", "1,4,0", "1,9999999999,9999999999"] {
            assert!(shape(bad).is_err(), "{bad}");
        }
        assert_eq!(filters("4,3,1"), Ok(Shape(vec![4, 3, 1])));
        assert!(filters("0,4,1").unwrap_err().contains("dimension of 0"));
    }
}
