use core::fmt;
use core::str::FromStr;

use windowpane_geometry::{
    Convolution, DType, Extents, Filter, FilterLayout, Precision, Shape, Tile, Tiling, Window,
};

use super::Conv;
use super::run::run_again;
use crate::{Device, Error, Result, Tensor};

/// What of a convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The output.
    Forward,
    /// The gradient with respect to the input.
    Data,
    /// The gradient with respect to the filters.
    Filter,
    /// The gradient with respect to the bias.
    Bias,
}

impl Pass {
    /// What is computed, in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "convolution",
            Self::Data => "convolution's data gradient",
            Self::Filter => "convolution's filter gradient",
            Self::Bias => "convolution's bias gradient",
        }
    }
}

/// A way to convolve, whatever the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConvAlgorithm {
    /// Every element of the result for itself: there for every problem, best for none but the
    /// smallest.
    Direct,
    /// Groups of few channels, or one, their filters as matrices of bands for matrix units.
    Banded,
    /// A filter a channel, a run of windows at a time.
    Depthwise,
    /// Groups of few channels, a run of windows by a vector of a group's filters at a time.
    Grouped,
    /// Blocks of windows by filters in shared memory, summed in registers.
    Tiled,
    /// The same, multiplied by matrix units.
    Matrix,
    /// The same on Hopper's warpgroups, fed by its tensor copy engine.
    Hopper,
    /// On a processor, a few windows by a few vectors of filters a thread.
    Wide,
}

impl ConvAlgorithm {
    /// Every algorithm.
    pub const ALL: [Self; 8] = [
        Self::Direct,
        Self::Banded,
        Self::Depthwise,
        Self::Grouped,
        Self::Tiled,
        Self::Matrix,
        Self::Hopper,
        Self::Wide,
    ];

    /// The name as it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Banded => "banded",
            Self::Depthwise => "depthwise",
            Self::Grouped => "grouped",
            Self::Tiled => "tiled",
            Self::Matrix => "matrix",
            Self::Hopper => "hopper",
            Self::Wide => "wide",
        }
    }
}

impl fmt::Display for ConvAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not that of a way to convolve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown algorithm `{0}`; use one of auto, {names}", names = names())]
pub struct UnknownConvAlgorithm(String);

fn names() -> String {
    ConvAlgorithm::ALL.map(ConvAlgorithm::name).join(", ")
}

impl FromStr for ConvAlgorithm {
    type Err = UnknownConvAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownConvAlgorithm> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| UnknownConvAlgorithm(name.into()))
    }
}

/// How a convolution or a gradient of it will run: the kernel, its tiling and its symbol table.
///
/// A plan is made before anything is launched, prints as a table, may be changed, and then runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvPlan {
    pub(super) device: Device,
    pub(super) pass: Pass,
    /// The options that it was made for.
    pub(super) conv: Conv,
    pub(super) problem: Convolution,
    pub(super) dtype: DType,
    pub(super) choice: Choice,
}

/// What a plan chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Choice {
    /// The scalar reference.
    Host,
    /// A kernel.
    #[cfg(feature = "kernels")]
    Kernel(windowpane_kernels::conv::Plan),
}

impl ConvPlan {
    /// The device that it was made for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What it computes.
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// The way it convolves.
    pub fn algorithm(&self) -> ConvAlgorithm {
        match &self.choice {
            Choice::Host => ConvAlgorithm::Direct,
            #[cfg(feature = "kernels")]
            Choice::Kernel(plan) => public(plan.algorithm),
        }
    }

    /// The problem. That of a bias's gradient is a convolution of one tap with the same output.
    pub fn problem(&self) -> &Convolution {
        &self.problem
    }

    /// The multiplications and additions that it takes, those with padding counted.
    pub fn operations(&self) -> u64 {
        let (output, filter) = (self.problem.output().elements() as u64, self.problem.filter());
        match self.pass {
            Pass::Bias => output,
            // A plan on `host` may be for more than there is memory for.
            _ => output.saturating_mul(2 * (filter.taps() * filter.channels()) as u64),
        }
    }

    /// The fewest bytes that it moves: every input read once, the output written once. A bias
    /// and a residual are not counted.
    pub fn bytes(&self) -> u64 {
        let (input, output) = (self.problem.input(), self.problem.output());
        let filter = self.problem.filter();
        let parts: &[usize] = match self.pass {
            Pass::Bias => &[output.elements(), filter.count()],
            _ => &[input.elements(), filter.elements(), output.elements()],
        };
        let size = self.dtype.size() as u64;
        let bytes = parts.iter().map(|elements| (*elements as u64).saturating_mul(size));
        bytes.fold(0, u64::saturating_add)
    }

    /// How its product of matrices is cut up; none where it is no such product.
    pub fn tile(&self) -> Option<Tile> {
        match &self.choice {
            Choice::Host => None,
            #[cfg(feature = "kernels")]
            Choice::Kernel(plan) => plan.tile,
        }
    }

    /// Runs as planned, again and again with no new memory: `results` is that of the last run, or
    /// none, and becomes that of this one. A result that a clone holds is left alone and has new
    /// memory in its place.
    ///
    /// `inputs` are what the pass reads: forward the input and the filters, then a bias and then a
    /// residual where they are wanted; backward the output's gradient, and of input and filters
    /// the one that the gradient is not of.
    ///
    /// ```
    /// use windowpane::{Conv, DType, Device, Tensor};
    ///
    /// let host = Device::host();
    /// let w = Tensor::from_slice(&host, &[1.0f32, -1.0], [1, 2, 1])?;
    /// let plan = Conv::new([2]).plan(&host, DType::F32, &[1, 3, 1], w.dims())?;
    /// let mut results = Vec::new();
    /// for frame in [[1.0f32, 5.0, 2.0], [7.0, 0.0, 3.0]] {
    ///     plan.run(&[&Tensor::from_slice(&host, &frame, [1, 3, 1])?, &w], &mut results)?;
    /// }
    /// assert_eq!(results[0].to_vec::<f32>()?, [7.0, -3.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn run(&self, inputs: &[&Tensor], results: &mut Vec<Tensor>) -> Result<()> {
        run_again(self, inputs, results)
    }

    /// Picks kernel and tile by measuring on the device, which takes from a second to a minute,
    /// and remembers them: later plans of the same problem follow. What the options ask for stays
    /// as it is, and is then not remembered.
    ///
    /// A plan without kernels, as on `host`, stays what it is. [`Tuned`](crate::Tuned) shows how to
    /// keep what was found.
    pub fn tune(&self) -> Result<Self> {
        #[cfg(feature = "kernels")]
        return super::tune::tune(self);
        #[cfg(not(feature = "kernels"))]
        Ok(self.clone())
    }

    /// Whether kernel and tile are the plan's own choice.
    #[cfg(feature = "kernels")]
    pub(super) fn is_free(&self) -> bool {
        is_free(&self.conv)
    }

    /// The problem in words, by which it is remembered.
    #[cfg(feature = "kernels")]
    pub(super) fn key(&self) -> String {
        key(self.pass, self.dtype, self.conv.precision, &self.problem)
    }

    /// The bytes of device memory that it needs beside its tensors.
    pub fn workspace(&self) -> usize {
        match &self.choice {
            Choice::Host => 0,
            #[cfg(feature = "kernels")]
            Choice::Kernel(plan) => plan.workspace(&self.problem, self.request()),
        }
    }

    /// The kernel's own plan, to override field by field; none on `host`.
    ///
    /// A value that cannot be run is refused when the plan is used.
    #[cfg(feature = "kernels")]
    pub fn kernel_mut(&mut self) -> Option<&mut windowpane_kernels::conv::Plan> {
        match &mut self.choice {
            Choice::Kernel(plan) => Some(plan),
            Choice::Host => None,
        }
    }

    #[cfg(feature = "kernels")]
    pub(super) fn request(&self) -> windowpane_kernels::conv::Request {
        request(self.pass, self.dtype, self.conv.precision)
    }

    /// The choices, and then the symbols of the problem: a name and a value each.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let layouts = format!("{} {}", self.problem.layout(), self.problem.filter_layout());
        let mut rows = vec![
            ("operator", self.pass.name().into()),
            ("device", format!("{} ({})", self.device, self.device.name())),
            ("algorithm", self.algorithm().to_string()),
            ("dtype", self.dtype.to_string()),
            ("precision", self.conv.precision.to_string()),
            ("layouts", layouts),
        ];
        match &self.choice {
            Choice::Host => {}
            #[cfg(feature = "kernels")]
            Choice::Kernel(plan) => rows.extend([
                ("factors", plan.factors(&self.problem, self.request()).into()),
                ("units", plan.units.to_string()),
                ("unit's outputs", if plan.runs { "a run" } else { "strided" }.into()),
                ("splits", plan.splits.to_string()),
            ]),
        }
        rows.push(("workspace", format!("{} B", self.workspace())));
        rows.extend(self.symbols().into_iter().map(|(name, value)| (name, value.to_string())));
        rows
    }

    /// The symbol table: the problem in the letters of its formula, and the tile that computes it.
    ///
    /// M, NF and K are those of the implicit product of matrices, for the forward pass:
    /// M = N·SZ_OUT windows by K = HF·WF·C taps and channels by NF filters.
    pub fn symbols(&self) -> Vec<(&'static str, usize)> {
        let (input, output) = (self.problem.input(), self.problem.output());
        let filter = self.problem.filter();
        let axes = self.problem.grid().axes();
        let names = [["D", "DF", "D_OUT"], ["H", "HF", "H_OUT"], ["W", "WF", "W_OUT"]];
        let own = names.iter().zip(axes).skip(names.len() - self.problem.grid().rank());
        let mut symbols = vec![("N", input.batch()), ("C", input.channels())];
        symbols.extend(own.clone().map(|(name, axis)| (name[0], axis.input())));
        symbols.extend(own.clone().map(|(name, axis)| (name[1], axis.kernel())));
        symbols.push(("NF", filter.count()));
        symbols.extend(own.map(|(name, axis)| (name[2], axis.output())));
        symbols.extend([
            ("SZ_OUT", output.plane()),
            ("GROUPS", self.problem.groups()),
            ("M", output.batch() * output.plane()),
            ("K", filter.taps() * filter.channels()),
        ]);
        #[cfg(feature = "kernels")]
        if let Choice::Kernel(windowpane_kernels::conv::Plan { tile: Some(tile), .. }) =
            &self.choice
        {
            let names = [
                "BLOCK_M",
                "BLOCK_N",
                "BLOCK_K",
                "RATIO_M",
                "RATIO_N",
                "ELEMS_PER_THREAD",
                "STAGES",
            ];
            let fields = tile.fields().map(|(_, value)| value as usize);
            symbols.extend(names.into_iter().zip(fields));
        }
        symbols
    }
}

impl fmt::Display for ConvPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.rows() {
            writeln!(f, "{name:<16}{value}")?;
        }
        Ok(())
    }
}

pub(super) fn plan(
    conv: &Conv,
    pass: Pass,
    device: &Device,
    dtype: DType,
    x: &[usize],
    w: &[usize],
) -> Result<ConvPlan> {
    let problem = problem(conv, x, w)?;
    choose(conv, pass, device, dtype, problem)
}

/// The bias's gradient is that of any convolution with this output: of one tap, say.
pub(super) fn plan_bias(
    conv: &Conv,
    device: &Device,
    dtype: DType,
    dy: &[usize],
) -> Result<ConvPlan> {
    let output = Shape::from_dims(dy, conv.layout)?;
    let one = match output.space().rank() {
        1 => Extents::from([1]),
        2 => Extents::from([1, 1]),
        _ => Extents::from([1, 1, 1]),
    };
    let channels = output.channels();
    let filter = Filter::new(channels, 1, one)?;
    let window = Window::new(one);
    let problem =
        Convolution::new(output, filter, &window, channels, conv.layout, conv.filter_layout)?;
    // Whatever kernel and tile are asked for, they are those of products of matrices.
    let conv = conv.algorithm(None).tile(Tiling::default());
    choose(&conv, Pass::Bias, device, dtype, problem)
}

fn choose(
    conv: &Conv,
    pass: Pass,
    device: &Device,
    dtype: DType,
    problem: Convolution,
) -> Result<ConvPlan> {
    device.require(dtype)?;
    if !dtype.is_float() {
        return Err(Error::NotForIntegers { operator: pass.name(), dtype });
    }
    let choice = choice(conv, pass, device, dtype, &problem)?;
    Ok(ConvPlan { device: device.clone(), pass, conv: *conv, problem, dtype, choice })
}

fn choice(
    conv: &Conv,
    pass: Pass,
    device: &Device,
    dtype: DType,
    problem: &Convolution,
) -> Result<Choice> {
    #[cfg(feature = "kernels")]
    if let Some(limits) = device.limits() {
        use windowpane_kernels::conv as kernels;
        let request = request(pass, dtype, conv.precision);
        if is_free(conv)
            && let Some(found) =
                super::tuned::recall(device, || key(pass, dtype, conv.precision, problem))
            && let Some(plan) = follow(&found, problem, request, &limits)
        {
            return Ok(Choice::Kernel(plan));
        }
        let wish = kernels::Wish { algorithm: conv.algorithm.map(kernel), tiling: conv.tiling };
        let plan = match kernels::Plan::new(problem, request, wish, &limits) {
            Err(kernels::PlanError::NoKernel { .. }) => return Err(no_kernel(conv, device)),
            Err(kernels::PlanError::NoTf32) => return Err(no_precision(conv, device, dtype)),
            plan => plan.map_err(|reason| device.refuses_conv(reason))?,
        };
        crate::turns::check_convolution(device, pass, problem, &plan)?;
        return Ok(Choice::Kernel(plan));
    }
    let _ = (pass, dtype, problem);
    if conv.precision != Precision::Strict {
        return Err(no_precision(conv, device, dtype));
    }
    match conv.algorithm {
        None | Some(ConvAlgorithm::Direct) if conv.tiling == Tiling::default() => Ok(Choice::Host),
        _ => Err(no_kernel(conv, device)),
    }
}

/// The plan that was found by measuring, unless this device cannot run it: the table may be of
/// another version or driver.
#[cfg(feature = "kernels")]
fn follow(
    found: &super::tuned::Found,
    problem: &Convolution,
    request: windowpane_kernels::conv::Request,
    limits: &windowpane_kernels::Limits,
) -> Option<windowpane_kernels::conv::Plan> {
    use windowpane_kernels::conv::{Plan, Wish};
    let tiling = found.tile.map_or(Tiling::default(), Tiling::from);
    let wish = Wish { algorithm: Some(kernel(found.algorithm)), tiling };
    let mut plan = Plan::new(problem, request, wish, limits).ok()?;
    plan.splits = found.splits;
    plan.check(problem, request, limits).ok()?;
    Some(plan)
}

/// Whether the choice of kernel and tile is left to the plan.
#[cfg(feature = "kernels")]
fn is_free(conv: &Conv) -> bool {
    conv.algorithm.is_none() && conv.tiling == Tiling::default()
}

/// A problem in words: all that a choice depends on.
#[cfg(feature = "kernels")]
fn key(pass: Pass, dtype: DType, precision: Precision, problem: &Convolution) -> String {
    let pass = match pass {
        Pass::Forward => "forward",
        Pass::Data => "data",
        Pass::Filter => "filter",
        Pass::Bias => "bias",
    };
    let (input, filter, grid) = (problem.input(), problem.filter(), problem.grid());
    let axes = || grid.axes().iter().skip(grid.axes().len() - grid.rank());
    let each =
        |of: fn(&windowpane_geometry::Axis) -> String| axes().map(of).collect::<Vec<_>>().join(",");
    format!(
        "{pass} {dtype} {precision} {} {} n={} c={} filters={} groups={} size={} k={} s={} d={} p={}",
        problem.layout(),
        problem.filter_layout(),
        input.batch(),
        input.channels(),
        filter.count(),
        problem.groups(),
        each(|axis| axis.input().to_string()),
        each(|axis| axis.kernel().to_string()),
        each(|axis| axis.stride().to_string()),
        each(|axis| axis.dilation().to_string()),
        each(|axis| format!("{}:{}", axis.before(), axis.after())),
    )
}

fn no_kernel(conv: &Conv, device: &Device) -> Error {
    let wish = match conv.algorithm {
        Some(algorithm) => algorithm.name(),
        None => "tiled",
    };
    Error::NoConvKernel { wish, device: device.clone() }
}

fn no_precision(conv: &Conv, device: &Device, dtype: DType) -> Error {
    let (precision, device) = (conv.precision, device.clone());
    Error::PrecisionUnsupported { precision, dtype, device }
}

#[cfg(feature = "kernels")]
fn request(pass: Pass, dtype: DType, precision: Precision) -> windowpane_kernels::conv::Request {
    use windowpane_kernels::conv;
    let pass = match pass {
        Pass::Forward => conv::Pass::Forward,
        Pass::Data => conv::Pass::Data,
        Pass::Filter => conv::Pass::Filter,
        Pass::Bias => conv::Pass::Bias,
    };
    conv::Request { pass, dtype, precision }
}

#[cfg(feature = "kernels")]
fn public(algorithm: windowpane_kernels::conv::Algorithm) -> ConvAlgorithm {
    use windowpane_kernels::conv::Algorithm;
    match algorithm {
        Algorithm::Direct => ConvAlgorithm::Direct,
        Algorithm::Banded => ConvAlgorithm::Banded,
        Algorithm::Depthwise => ConvAlgorithm::Depthwise,
        Algorithm::Grouped => ConvAlgorithm::Grouped,
        Algorithm::Hopper => ConvAlgorithm::Hopper,
        Algorithm::Matrix => ConvAlgorithm::Matrix,
        Algorithm::Tiled => ConvAlgorithm::Tiled,
        Algorithm::Wide => ConvAlgorithm::Wide,
        other => unreachable!("{other} has no public name"),
    }
}

#[cfg(feature = "kernels")]
fn kernel(algorithm: ConvAlgorithm) -> windowpane_kernels::conv::Algorithm {
    use windowpane_kernels::conv::Algorithm;
    match algorithm {
        ConvAlgorithm::Direct => Algorithm::Direct,
        ConvAlgorithm::Banded => Algorithm::Banded,
        ConvAlgorithm::Depthwise => Algorithm::Depthwise,
        ConvAlgorithm::Grouped => Algorithm::Grouped,
        ConvAlgorithm::Hopper => Algorithm::Hopper,
        ConvAlgorithm::Matrix => Algorithm::Matrix,
        ConvAlgorithm::Tiled => Algorithm::Tiled,
        ConvAlgorithm::Wide => Algorithm::Wide,
    }
}

/// The problem of tensors with these dimensions.
pub(super) fn problem(conv: &Conv, x: &[usize], w: &[usize]) -> Result<Convolution> {
    let input = Shape::from_dims(x, conv.layout)?;
    let filter = Filter::from_dims(w, conv.filter_layout)?;
    let Conv { window, groups, layout, filter_layout, .. } = *conv;
    Ok(Convolution::new(input, filter, &window, groups, layout, filter_layout)?)
}

/// The dimensions of the filters that made an output of one from an input.
pub(super) fn filter_dims(conv: &Conv, dy: &[usize], x: &[usize]) -> Result<Vec<usize>> {
    let output = Shape::from_dims(dy, conv.layout)?;
    let input = Shape::from_dims(x, conv.layout)?;
    // Where groups do not divide the channels, the problem says so.
    let channels = input.channels() / conv.groups.max(1);
    let kernel = conv.window.kernel().ok_or(windowpane_geometry::Error::NoKernel)?;
    let filter = Filter::new(output.channels(), channels.max(1), kernel)?;
    Ok(dims(&filter, conv.filter_layout))
}

pub(super) fn dims(filter: &Filter, layout: FilterLayout) -> Vec<usize> {
    filter.dims(layout).collect()
}
