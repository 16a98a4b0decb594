//! The values that several commands take, and how they are spelled.

use std::fmt;

use clap::{Args, ValueEnum};
use windowpane::{
    Algorithm, AvgPool, Backend, DType, Device, Divisor, Extents, IndexBase, Layout, MaxPool,
    Padding, Plan, Rounding, Same, Window,
};

use crate::failure::Failure;

/// Where the work is done.
#[derive(Args)]
pub(crate) struct On {
    /// cuda, hip, metal, vulkan, wgpu, cpu or host [default: the best of this build and machine]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<Backend>,
    /// The device's number among those of its backend [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<usize>,
    /// Print results only: no progress, no parameters, no summary
    #[arg(long)]
    pub(crate) quiet: bool,
}

impl On {
    /// Opens the device.
    pub(crate) fn open(&self) -> Result<Device, Failure> {
        Ok(match (self.backend, self.device) {
            (None, None) => Device::best(),
            (None, Some(index)) => Device::new(Device::best().backend(), index)?,
            (Some(backend), index) => Device::new(backend, index.unwrap_or(0))?,
        })
    }
}

/// What becomes of a window's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Op {
    // No help texts: with them clap sets every flag's help on lines of its own.
    Max,
    Avg,
}

/// The window and the operator of `pool` and `plan pool`.
#[derive(Args)]
pub(crate) struct PoolArgs {
    /// What becomes of a window's numbers
    #[arg(long, value_enum, default_value = "max")]
    op: Op,
    /// The window's extents: 1, 2 or 3 numbers, which set the rank
    #[arg(long, value_name = "K,…", value_parser = positive)]
    kernel: Extents,
    /// The step between windows, a number an axis [default: the kernel]
    #[arg(long, value_name = "S,…", value_parser = positive)]
    stride: Option<Extents>,
    /// 1,1 or 1:2,0:1 for before:after on each axis, or same-upper, same-lower, valid
    #[arg(long, value_name = "P,…", value_parser = padding, default_value = "valid")]
    padding: Padding,
    /// The step between the taps of a window, a number an axis [default: 1]
    #[arg(long, value_name = "D,…", value_parser = positive)]
    dilation: Option<Extents>,
    /// Round the output's extents up, keeping a last window that overhangs
    #[arg(long)]
    ceil: bool,
    /// What an average divides by: padded (taps in input or padding), valid (in input) or a number
    /// [default: padded]
    #[arg(long, value_name = "padded|valid|N", value_parser = divisor)]
    divisor: Option<Divisor>,
    /// Where the array's channels are: channels-last (N,…,C) or channels-first (N,C,…)
    #[arg(long, value_parser = layout, default_value = "channels-last")]
    layout: Layout,
    /// auto, direct (every tap of every window) or sliding (cost independent of the window)
    #[arg(long, value_parser = algorithm, default_value = "auto")]
    algorithm: Auto,
    /// Compute in f64, f32, f16, bf16, i32, i8 or u8 [default: the file's type, else f32]
    #[arg(long, value_name = "TYPE")]
    pub(crate) dtype: Option<DType>,
}

/// An operator with its options.
#[derive(Clone, Copy)]
pub(crate) enum Operator {
    Max { pool: MaxPool, with_indices: bool },
    Average(AvgPool),
}

impl Operator {
    /// Says how it would run.
    pub(crate) fn plan(
        &self,
        device: &Device,
        dtype: DType,
        dims: &[usize],
    ) -> windowpane::Result<Plan> {
        match self {
            Self::Max { pool, with_indices: false } => pool.plan(device, dtype, dims),
            Self::Max { pool, with_indices: true } => pool.plan_with_indices(device, dtype, dims),
            Self::Average(pool) => pool.plan(device, dtype, dims),
        }
    }
}

impl PoolArgs {
    /// The operator that the arguments ask for. `indices` is their base, where they are wanted.
    pub(crate) fn operator(&self, indices: Option<IndexBase>) -> Result<Operator, Failure> {
        for (flag, extents) in [("stride", self.stride), ("dilation", self.dilation)] {
            self.check_rank(flag, extents)?;
        }
        if let Padding::Explicit { before, .. } = self.padding {
            self.check_rank("padding", Some(before))?;
        }
        let rounding = if self.ceil { Rounding::Ceil } else { Rounding::Floor };
        let mut window = Window::new(self.kernel)
            .stride(self.stride.unwrap_or(self.kernel))
            .padding(self.padding)
            .rounding(rounding);
        if let Some(dilation) = self.dilation {
            window = window.dilation(dilation);
        }
        match self.op {
            Op::Max if self.divisor.is_some() => {
                Err(Failure::Arguments("--divisor is for --op avg; leave it out".into()))
            }
            Op::Max => {
                let pool = MaxPool::over(window).layout(self.layout).algorithm(self.algorithm.0);
                let pool = pool.index_base(indices.unwrap_or_default());
                Ok(Operator::Max { pool, with_indices: indices.is_some() })
            }
            Op::Avg if indices.is_some() => {
                Err(Failure::Arguments("--indices is for --op max; leave it out".into()))
            }
            Op::Avg => {
                let pool = AvgPool::over(window).layout(self.layout).algorithm(self.algorithm.0);
                Ok(Operator::Average(pool.divisor(self.divisor.unwrap_or_default())))
            }
        }
    }

    fn check_rank(&self, flag: &str, extents: Option<Extents>) -> Result<(), Failure> {
        let (asked, rank) = (extents.map(|extents| extents.rank()), self.kernel.rank());
        if asked.is_none_or(|asked| asked == rank) {
            return Ok(());
        }
        Err(Failure::Arguments(format!(
            "--{flag} has {} numbers and --kernel has {rank}; give one an axis",
            asked.unwrap_or_default(),
        )))
    }

    /// Refuses dimensions of another rank than the kernel's; `whose` they are begins the message.
    pub(crate) fn check_dims(&self, whose: &str, dims: &[usize]) -> Result<(), Failure> {
        let rank = self.kernel.rank();
        if dims.len() == rank + 2 {
            return Ok(());
        }
        let axes = &["D", "H", "W"][3 - rank..];
        let order = match self.layout {
            Layout::ChannelsLast => format!("N,{},C", axes.join(",")),
            Layout::ChannelsFirst => format!("N,C,{}", axes.join(",")),
        };
        let message = format!(
            "{whose} has {} dimensions, {dims:?}, and a --kernel of {rank} needs {}: {order}",
            dims.len(),
            rank + 2,
        );
        // Two arguments that do not fit, or a file that does not.
        Err(match whose {
            "--shape" => Failure::Arguments(message),
            _ => Failure::Failed(message),
        })
    }
}

/// An algorithm, or the plan's own choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Auto(Option<Algorithm>);

fn algorithm(text: &str) -> Result<Auto, String> {
    match text {
        "auto" => Ok(Auto(None)),
        name => name.parse().map(|algorithm| Auto(Some(algorithm))).map_err(in_words),
    }
}

fn in_words(error: impl fmt::Display) -> String {
    error.to_string()
}

/// `channels-last` or `channels-first`.
fn layout(text: &str) -> Result<Layout, String> {
    let known =
        [("channels-last", Layout::ChannelsLast), ("channels-first", Layout::ChannelsFirst)];
    one_of(text, "layout", &known)
}

/// `plane`, `tensor` or `memory`.
pub(crate) fn index_base(text: &str) -> Result<IndexBase, String> {
    let known =
        [("plane", IndexBase::Plane), ("tensor", IndexBase::Tensor), ("memory", IndexBase::Memory)];
    one_of(text, "index base", &known)
}

fn one_of<T: Copy>(text: &str, what: &str, known: &[(&str, T)]) -> Result<T, String> {
    known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        format!("unknown {what}; use one of {}", names.join(", "))
    })
}

/// `padded`, `valid`, or a number from 1.
fn divisor(text: &str) -> Result<Divisor, String> {
    match text {
        "padded" => Ok(Divisor::Padded),
        "valid" => Ok(Divisor::Valid),
        number => match number.parse() {
            Ok(n) if n >= 1 => Ok(Divisor::Fixed(n)),
            _ => Err(format!("use padded, valid, or a whole number from 1 to {}", u32::MAX)),
        },
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
    let of = |side: &[usize]| Extents::try_from(side).map_err(in_words);
    Ok(Padding::Explicit { before: of(&before)?, after: of(&after)? })
}

/// 1, 2 or 3 numbers from 1, with commas.
pub(crate) fn positive(text: &str) -> Result<Extents, String> {
    let extents = Extents::try_from(&*numbers(text)?).map_err(in_words)?;
    match extents.three(1).iter().position(|&extent| extent == 0) {
        Some(axis) => {
            let name = ["depth", "height", "width"][axis];
            Err(format!("it is 0 on the {name} axis and must be at least 1"))
        }
        None => Ok(extents),
    }
}

/// The dimensions of an array, with commas.
pub(crate) fn shape(text: &str) -> Result<Shape, String> {
    numbers(text).map(Shape)
}

/// The dimensions of an array, in the order of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape(pub(crate) Vec<usize>);

fn numbers(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').map(number).collect()
}

/// A number from 1.
pub(crate) fn natural(text: &str) -> Result<usize, String> {
    match number(text)? {
        0 => Err("it must be at least 1".into()),
        number => Ok(number),
    }
}

/// A number from 0.
pub(crate) fn number(text: &str) -> Result<usize, String> {
    let text = text.trim();
    // `parse` takes a sign, which no extent has.
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
        for bad in ["", "same", "1:", ":1", "1:2:3", "-1", "1;2", "1,1,1,1", "nan"] {
            assert!(padding(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_are_known_or_listed() {
        assert_eq!(divisor("padded"), Ok(Divisor::Padded));
        assert_eq!(divisor("valid"), Ok(Divisor::Valid));
        assert_eq!(divisor("9"), Ok(Divisor::Fixed(9)));
        for bad in ["0", "-1", "4294967296", "pad", "", "1.5"] {
            assert!(divisor(bad).is_err(), "{bad}");
        }
        assert_eq!(layout("channels-first"), Ok(Layout::ChannelsFirst));
        assert!(layout("NHWC").unwrap_err().contains("channels-last"));
        assert_eq!(index_base("tensor"), Ok(IndexBase::Tensor));
        assert!(index_base("onnx").is_err());
        assert_eq!(algorithm("auto"), Ok(Auto(None)));
        assert_eq!(algorithm("sliding"), Ok(Auto(Some(Algorithm::Sliding))));
        assert!(algorithm("fast").unwrap_err().contains("sliding"));
    }

    #[test]
    fn a_zero_is_named_by_its_axis() {
        assert!(positive("1,0,1").unwrap_err().contains("height"));
        assert!(positive("0").unwrap_err().contains("width"));
        assert_eq!((natural("7"), number("0")), (Ok(7), Ok(0)));
        assert!(natural("0").is_err());
    }

    #[test]
    fn shapes_are_numbers() {
        assert_eq!(shape("8,112,112,64"), Ok(Shape(vec![8, 112, 112, 64])));
        assert_eq!(shape("0,4,1"), Ok(Shape(vec![0, 4, 1])));
        assert!(shape("8x112").is_err());
    }
}
