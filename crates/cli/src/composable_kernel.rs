//! `windowpane pool2d` and `pool3d`: Composable Kernel's pooling example, with its own flags.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use windowpane::geometry::Extremum;
use windowpane::{
    AvgPool, DType, Device, Divisor, Exponent, Extents, IndexBase, Layout, LpPool, MaxPool,
    MinPool, ModePool, Padding, PoolPlan, Rank, RankPool, StochasticPool, Tensor, Window,
};
use windowpane_reference::Total;
use windowpane_reference::pool::{Algorithm, direct, extremum, lp, mode, rank, stochastic};

use crate::args::{On, Op, Operator, count, counted, natural, number};
use crate::element::{self, Comparable, with_element};
use crate::failure::Failure;
use crate::memory;
use crate::progress::{Progress, say};

/// Long flags with a single dash. Clap reads `-Sz` as several one-letter flags, so these flags
/// get a second dash before clap sees them, and lose it again in clap's messages.
const FLAGS: [&str; 23] = [
    "N", "D", "H", "W", "C", "Z", "Y", "X", "Sz", "Sy", "Sx", "Dz", "Dy", "Dx", "LeftPz", "LeftPy",
    "LeftPx", "RightPz", "RightPy", "RightPx", "v", "warmup", "repeat",
];

const EXAMPLE_2D: &str = "\
Example: 8 images of 112×112 with 64 channels, windows of 3×3
  windowpane pool2d -N 8 -H 112 -W 112 -C 64 -Y 3 -X 3 -warmup 5 -repeat 50";

const EXAMPLE_3D: &str = "\
Example: 64 volumes of 30×30×30 with 32 channels, averaged
  windowpane pool3d -N 64 -D 30 -H 30 -W 30 -C 32 --op avg -warmup 5 -repeat 50";

/// The arguments of `pool2d`.
#[derive(Args)]
#[command(after_help = EXAMPLE_2D)]
pub(crate) struct Pool2d {
    #[command(flatten)]
    plane: Plane,
    #[command(flatten)]
    run: Run,
}

/// The arguments of `pool3d`.
#[derive(Args)]
#[command(after_help = EXAMPLE_3D)]
pub(crate) struct Pool3d {
    #[command(flatten)]
    depth: Depth,
    #[command(flatten)]
    plane: Plane,
    #[command(flatten)]
    run: Run,
}

#[derive(Args)]
struct Plane {
    /// Samples
    #[arg(long = "N", value_name = "N", value_parser = number, default_value_t = 2)]
    samples: usize,
    /// Input height
    #[arg(long = "H", value_name = "N", value_parser = natural, default_value_t = 30)]
    height: usize,
    /// Input width
    #[arg(long = "W", value_name = "N", value_parser = natural, default_value_t = 30)]
    width: usize,
    /// Channels (the innermost dimension in memory)
    #[arg(long = "C", value_name = "N", value_parser = natural, default_value_t = 32)]
    channels: usize,
    /// Window height
    #[arg(long = "Y", value_name = "N", value_parser = natural, default_value_t = 2)]
    window_y: usize,
    /// Window width
    #[arg(long = "X", value_name = "N", value_parser = natural, default_value_t = 2)]
    window_x: usize,
    /// Step between windows along the height
    #[arg(long = "Sy", value_name = "N", value_parser = natural, default_value_t = 2)]
    stride_y: usize,
    /// Step between windows along the width
    #[arg(long = "Sx", value_name = "N", value_parser = natural, default_value_t = 2)]
    stride_x: usize,
    /// Step between taps along the height
    #[arg(long = "Dy", value_name = "N", value_parser = natural, default_value_t = 1)]
    dilation_y: usize,
    /// Step between taps along the width
    #[arg(long = "Dx", value_name = "N", value_parser = natural, default_value_t = 1)]
    dilation_x: usize,
    /// Padding above
    #[arg(long = "LeftPy", value_name = "N", value_parser = number, default_value_t = 1)]
    before_y: usize,
    /// Padding on the left
    #[arg(long = "LeftPx", value_name = "N", value_parser = number, default_value_t = 1)]
    before_x: usize,
    /// Padding below
    #[arg(long = "RightPy", value_name = "N", value_parser = number, default_value_t = 1)]
    after_y: usize,
    /// Padding on the right
    #[arg(long = "RightPx", value_name = "N", value_parser = number, default_value_t = 1)]
    after_x: usize,
}

#[derive(Args)]
struct Depth {
    /// Input depth
    #[arg(long = "D", value_name = "N", value_parser = natural, default_value_t = 30)]
    depth: usize,
    /// Window depth
    #[arg(long = "Z", value_name = "N", value_parser = natural, default_value_t = 2)]
    window: usize,
    /// Step between windows along the depth
    #[arg(long = "Sz", value_name = "N", value_parser = natural, default_value_t = 2)]
    stride: usize,
    /// Step between taps along the depth
    #[arg(long = "Dz", value_name = "N", value_parser = natural, default_value_t = 1)]
    dilation: usize,
    /// Padding in front
    #[arg(long = "LeftPz", value_name = "N", value_parser = number, default_value_t = 1)]
    before: usize,
    /// Padding behind
    #[arg(long = "RightPz", value_name = "N", value_parser = number, default_value_t = 1)]
    after: usize,
}

/// How to run the problem.
#[derive(Args)]
struct Run {
    /// 1 compares the result with the scalar reference, 0 does not
    #[arg(long = "v", value_name = "0|1", default_value = "1", value_parser = zero_or_one,
        action = clap::ArgAction::Set)]
    validate: bool,
    /// Untimed launches before the timed ones, after the one that compiles the kernel
    #[arg(long = "warmup", value_name = "N", value_parser = count, default_value_t = 0)]
    warmup: u32,
    /// Timed launches; the printed time is the mean of one launch
    #[arg(long = "repeat", value_name = "N", value_parser = counted, default_value_t = 1)]
    repeat: u32,
    /// Reduction of each window; lp is the square root of the sum of squares, rank the median
    #[arg(long, value_enum, default_value = "max")]
    op: Op,
    /// Type to compute in: f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8 or bool
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: DType,
    #[command(flatten)]
    on: On,
}

/// `1` for yes, `0` for no.
fn zero_or_one(text: &str) -> Result<bool, String> {
    match text.trim() {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(format!("`{other}` is neither 0 nor 1")),
    }
}

/// The numbers of a problem.
struct Problem {
    samples: usize,
    channels: usize,
    input: Extents,
    kernel: Extents,
    stride: Extents,
    dilation: Extents,
    before: Extents,
    after: Extents,
}

impl Pool2d {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let plane = &self.plane;
        self.run.run(&Problem {
            samples: plane.samples,
            channels: plane.channels,
            input: [plane.height, plane.width].into(),
            kernel: [plane.window_y, plane.window_x].into(),
            stride: [plane.stride_y, plane.stride_x].into(),
            dilation: [plane.dilation_y, plane.dilation_x].into(),
            before: [plane.before_y, plane.before_x].into(),
            after: [plane.after_y, plane.after_x].into(),
        })
    }
}

impl Pool3d {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let (depth, plane) = (&self.depth, &self.plane);
        self.run.run(&Problem {
            samples: plane.samples,
            channels: plane.channels,
            input: [depth.depth, plane.height, plane.width].into(),
            kernel: [depth.window, plane.window_y, plane.window_x].into(),
            stride: [depth.stride, plane.stride_y, plane.stride_x].into(),
            dilation: [depth.dilation, plane.dilation_y, plane.dilation_x].into(),
            before: [depth.before, plane.before_y, plane.before_x].into(),
            after: [depth.after, plane.after_y, plane.after_x].into(),
        })
    }
}

impl Run {
    fn run(&self, problem: &Problem) -> Result<(), Failure> {
        let device = self.on.open()?;
        let operator = self.operator(problem);
        let plan = operator.plan(&device, self.dtype, &problem.dims())?;
        // The reference's sums take more memory than its input.
        memory::check_pooling(plan.pooling(), 2 * self.dtype.size() + size_of::<Total>())?;
        if !self.on.quiet {
            say(problem.describe(&plan, self.dtype))?;
        }
        let progress = Progress::new(self.on.quiet, "filling the input");
        with_element!(self.dtype, T => self.measure::<T>(&device, operator, &plan, progress))
    }

    fn operator(&self, problem: &Problem) -> Operator {
        let window = Window::new(problem.kernel)
            .stride(problem.stride)
            .dilation(problem.dilation)
            .padding(Padding::Explicit { before: problem.before, after: problem.after });
        let layout = Layout::ChannelsLast;
        match self.op {
            Op::Max => Operator::Max {
                pool: MaxPool::with_window(window).layout(layout),
                with_indices: false,
            },
            Op::Min => Operator::Min {
                pool: MinPool::with_window(window).layout(layout),
                with_indices: false,
            },
            Op::Avg | Op::Sum => {
                let divisor =
                    if self.op == Op::Sum { Divisor::Fixed(1) } else { Divisor::default() };
                Operator::Average(
                    AvgPool::with_window(window).layout(layout).divisor(divisor),
                    divisor,
                )
            }
            Op::Lp => {
                let p = Exponent::new(2);
                Operator::Norm(LpPool::with_window(p.get(), window).layout(layout), p)
            }
            Op::Rank => {
                let rank = Rank::MEDIAN;
                Operator::Rank(RankPool::with_window(rank, window).layout(layout), rank)
            }
            Op::Mode => Operator::Mode(ModePool::with_window(window).layout(layout)),
            Op::Stochastic => Operator::Drawn {
                pool: StochasticPool::with_window(window).layout(layout),
                with_indices: false,
            },
            Op::StochasticMean => {
                Operator::MeanDrawn(StochasticPool::with_window(window).layout(layout))
            }
        }
    }

    fn measure<T: Comparable>(
        &self,
        device: &Device,
        operator: Operator,
        plan: &PoolPlan,
        progress: Progress,
    ) -> Result<(), Failure> {
        let x = element::input::<T>(device, plan.pooling())?;
        let launch = || match operator {
            Operator::Max { pool, .. } => pool.forward_with_plan(plan, &x),
            Operator::Min { pool, .. } => pool.forward_with_plan(plan, &x),
            Operator::Average(pool, _) => pool.forward_with_plan(plan, &x),
            Operator::Norm(pool, _) => pool.forward_with_plan(plan, &x),
            Operator::Rank(pool, _) => pool.forward_with_plan(plan, &x),
            Operator::Mode(pool) => pool.forward_with_plan(plan, &x),
            Operator::Drawn { pool, .. } => pool.forward_with_plan(plan, &x),
            Operator::MeanDrawn(pool) => pool.mean_with_plan(plan, &x),
        };

        progress.now(format!("running on {device}"));
        // The first launch compiles the kernel and is not timed.
        let mut y = launch()?;
        for _ in 0..self.warmup {
            y = launch()?;
        }
        y.wait()?;
        device.wait()?;
        if !y.is_empty() {
            let (last, time) = device.time(|| {
                for _ in 1..self.repeat {
                    launch()?;
                }
                launch()
            })?;
            y = last;
            y.wait()?;
            progress.say(perf(plan, time / self.repeat))?;
        }
        if !self.validate {
            return Ok(());
        }

        progress.now("checking against the reference");
        let difference = difference::<T>(operator, plan, &x, &y)?;
        drop(progress);
        match difference {
            None => say("valid:y"),
            Some(difference) => {
                say("valid:n")?;
                let on = format!("the result on {device} differs from the reference");
                Err(Failure::Failed(format!("{on}: {difference}")))
            }
        }
    }
}

/// The first difference from the reference, if any.
fn difference<T: Comparable>(
    operator: Operator,
    plan: &PoolPlan,
    x: &Tensor,
    y: &Tensor,
) -> Result<Option<String>, Failure> {
    let (pooling, x, y) = (plan.pooling(), x.to_vec::<T>()?, y.to_vec::<T>()?);
    Ok(match operator {
        Operator::Max { .. } => element::first_other(&y, &direct::max(pooling, &x)),
        Operator::Min { .. } => {
            let expected = extremum(Extremum::Min, Algorithm::Direct, pooling, &x);
            element::first_other(&y, &expected)
        }
        Operator::Average(_, divisor) if !T::DTYPE.is_float() => {
            element::first_other(&y, &direct::average(pooling, divisor, &x))
        }
        Operator::Average(_, divisor) => {
            element::first_far(&y, &direct::average_totals(pooling, divisor, &x))
        }
        Operator::Norm(_, p) => element::first_far(&y, &lp::norm_totals(pooling, p, &x)),
        Operator::Rank(_, wanted) => element::first_other(&y, &rank::rank(pooling, wanted, &x)),
        Operator::Mode(_) => element::first_other(&y, &mode::mode(pooling, &x)),
        Operator::Drawn { .. } => {
            let (expected, _) = stochastic::drawn(pooling, 0, IndexBase::Plane, &x);
            element::first_other(&y, &expected)
        }
        Operator::MeanDrawn(_) => element::first_far(&y, &stochastic::mean_totals(pooling, &x)),
    })
}

/// One line with the time of one launch and its throughput.
fn perf(plan: &PoolPlan, time: Duration) -> String {
    let seconds = time.max(Duration::from_nanos(1)).as_secs_f64();
    format!("Perf: {:.4} ms, {:.2} GB/s", seconds * 1e3, plan.bytes() as f64 / seconds / 1e9)
}

impl Problem {
    /// The input's dimensions, in memory order.
    fn dims(&self) -> Vec<usize> {
        let mut dims = vec![self.samples];
        dims.extend(self.input.as_slice());
        dims.push(self.channels);
        dims
    }

    fn describe(&self, plan: &PoolPlan, dtype: DType) -> String {
        let rows = plan.rows();
        let operator = rows.first().map_or("pooling", |(_, operator)| operator);
        let output = plan.pooling().output();
        let space = &["D", "H", "W"][3 - self.input.rank()..];
        let shape = |input: Extents| {
            let named = space.iter().zip(input.as_slice()).map(|(name, n)| format!("{name} {n}, "));
            format!("N {}, {}C {}", self.samples, named.collect::<String>(), self.channels)
        };
        format!(
            "{operator} of {dtype} on {} ({}), {}\n\
             input     {}\n\
             window    {}\n\
             stride    {}\n\
             dilation  {}\n\
             padding   {} before, {} after\n\
             output    {}",
            plan.device(),
            plan.device().name(),
            plan.algorithm(),
            shape(self.input),
            self.kernel,
            self.stride,
            self.dilation,
            self.before,
            self.after,
            shape(output.space()),
        )
    }
}

/// Adds a second dash to the flags of [`FLAGS`], if the command has them.
pub(crate) fn double_dashes(mut arguments: Vec<OsString>) -> Vec<OsString> {
    // Flags of the program itself, as `-v`, stand before the command.
    let is_flag = |argument: &OsString| argument.to_str().is_some_and(|text| text.starts_with('-'));
    let at = 1 + arguments.iter().skip(1).take_while(|argument| is_flag(argument)).count();
    if !arguments.get(at).is_some_and(|command| command == "pool2d" || command == "pool3d") {
        return arguments;
    }
    for argument in arguments.iter_mut().skip(at + 1) {
        let flag = argument.to_str().and_then(|text| text.strip_prefix('-'));
        let name = flag.map(|flag| flag.split('=').next().unwrap_or(flag));
        if name.is_some_and(|name| FLAGS.contains(&name)) {
            let mut longer = OsString::from("-");
            longer.push(&*argument);
            *argument = longer;
        }
    }
    arguments
}

/// Replaces the two dashes of the flags of [`FLAGS`] in clap's text by `dash`, as users write them.
pub(crate) fn single_dashes(text: &str, dash: &str) -> String {
    let mut pieces = text.split("--");
    let mut result = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let name: &str =
            piece.split(|c: char| !c.is_alphanumeric() && c != '-').next().unwrap_or_default();
        result.push_str(if FLAGS.contains(&name) { dash } else { "--" });
        result.push_str(piece);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(arguments: &[&str]) -> Vec<String> {
        let arguments = arguments.iter().map(OsString::from).collect();
        let spelled = double_dashes(arguments).into_iter();
        spelled.map(|argument| argument.into_string().unwrap()).collect()
    }

    #[test]
    fn the_flags_of_the_example_gain_a_dash() {
        assert_eq!(
            spelled(&["windowpane", "pool3d", "-N", "64", "-Sz=2", "-v", "0", "--op", "avg", "-h"]),
            ["windowpane", "pool3d", "--N", "64", "--Sz=2", "--v", "0", "--op", "avg", "-h"]
        );
        assert_eq!(
            spelled(&["windowpane", "-v", "pool2d", "-v=1"])[1..],
            ["-v", "pool2d", "--v=1"]
        );
        // Only whole names, and only of these commands.
        assert_eq!(spelled(&["windowpane", "pool3d", "-Szz"])[2], "-Szz");
        assert_eq!(spelled(&["windowpane", "pool", "-N"])[2], "-N");
    }

    #[test]
    fn and_lose_it_again() {
        let text = "  --D <N> --Dz=1 --device --version --v '--N' --X\n";
        assert_eq!(single_dashes(text, "-"), "  -D <N> -Dz=1 --device --version -v '-N' -X\n");
    }
}
