use core::fmt;
use core::str::FromStr;

use windowpane_geometry::{DType, Pooling};

use crate::pool::{Operator, run_again};
use crate::{Device, Result, Tensor};

/// A way to pool, whatever the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every tap of every window is read: best for small windows, and there for every problem.
    Direct,
    /// Neighbouring windows are computed together, and what they share is read once.
    Strip,
    /// The window slides, at a cost that does not grow with its size: a monotone deque for
    /// maxima, prefix sums for averages.
    Sliding,
    /// Many units share the taps of one window: few windows of many taps, as in global pooling.
    Reduce,
    /// Small planes of one channel are kept whole in fast memory while they are pooled.
    Plane,
    /// All planes are one run of elements, wherever their rows end.
    Flat,
    /// Units walk down the rows of planes that keep their extents, and keep what the next windows share.
    Rolling,
    /// Gradients of maxima: units walk along planes with the windows that they share in fast memory.
    Staged,
    /// The window slides along both axes of a plane at once, with nothing kept in memory between.
    Fused,
    /// A thread of a processor walks along rows of outputs, and keeps what neighbours share.
    Walk,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 10] = [
        Self::Direct,
        Self::Strip,
        Self::Sliding,
        Self::Reduce,
        Self::Plane,
        Self::Flat,
        Self::Rolling,
        Self::Staged,
        Self::Fused,
        Self::Walk,
    ];

    /// The name as it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Strip => "strip",
            Self::Sliding => "sliding",
            Self::Reduce => "reduce",
            Self::Plane => "plane",
            Self::Flat => "flat",
            Self::Rolling => "rolling",
            Self::Staged => "staged",
            Self::Fused => "fused",
            Self::Walk => "walk",
        }
    }
}

#[cfg(feature = "kernels")]
impl Algorithm {
    /// The kernel that is this algorithm, if there is one.
    pub(crate) fn kernel(self) -> Option<windowpane_kernels::pool::Algorithm> {
        use windowpane_kernels::pool;
        match self {
            Self::Direct => Some(pool::Algorithm::Direct),
            Self::Strip => Some(pool::Algorithm::Strip),
            Self::Sliding => Some(pool::Algorithm::Sliding),
            Self::Reduce => Some(pool::Algorithm::Reduce),
            Self::Plane => Some(pool::Algorithm::Plane),
            Self::Flat => Some(pool::Algorithm::Flat),
            Self::Rolling => Some(pool::Algorithm::Rolling),
            Self::Staged => Some(pool::Algorithm::Staged),
            Self::Fused => Some(pool::Algorithm::Fused),
            Self::Walk => Some(pool::Algorithm::Walk),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

fn names() -> String {
    Algorithm::ALL.map(Algorithm::name).join(", ")
}

/// A name that is not that of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown algorithm `{0}`; use one of auto, {names}", names = names())]
pub struct UnknownAlgorithm(String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or_else(|| UnknownAlgorithm(name.into()))
    }
}

/// How an operator will run: the kernel, its tiling and the numbers of the problem.
///
/// A plan is made before anything is launched, prints as a table, may be changed, and then runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub(crate) device: Device,
    pub(crate) operator: Operator,
    pub(crate) pooling: Pooling,
    pub(crate) dtype: DType,
    pub(crate) choice: Choice,
}

/// What a plan chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Choice {
    /// The scalar reference.
    Host(Algorithm),
    /// A kernel.
    #[cfg(feature = "kernels")]
    Kernel(windowpane_kernels::pool::Plan),
}

impl Plan {
    /// The device that it was made for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The way it pools.
    pub fn algorithm(&self) -> Algorithm {
        match &self.choice {
            Choice::Host(algorithm) => *algorithm,
            #[cfg(feature = "kernels")]
            Choice::Kernel(plan) => match plan.algorithm {
                windowpane_kernels::pool::Algorithm::Direct => Algorithm::Direct,
                windowpane_kernels::pool::Algorithm::Strip => Algorithm::Strip,
                windowpane_kernels::pool::Algorithm::Sliding => Algorithm::Sliding,
                windowpane_kernels::pool::Algorithm::Reduce => Algorithm::Reduce,
                windowpane_kernels::pool::Algorithm::Plane => Algorithm::Plane,
                windowpane_kernels::pool::Algorithm::Flat => Algorithm::Flat,
                windowpane_kernels::pool::Algorithm::Rolling => Algorithm::Rolling,
                windowpane_kernels::pool::Algorithm::Staged => Algorithm::Staged,
                windowpane_kernels::pool::Algorithm::Fused => Algorithm::Fused,
                windowpane_kernels::pool::Algorithm::Walk => Algorithm::Walk,
                other => unreachable!("{other} has no public name"),
            },
        }
    }

    /// The problem.
    pub fn pooling(&self) -> &Pooling {
        &self.pooling
    }

    /// The fewest bytes that it moves: every input read once, every output written once, indices
    /// among them.
    pub fn bytes(&self) -> u64 {
        // A plan on `host` may be for more than there is memory for.
        let bytes =
            |elements: usize, dtype: DType| (elements as u64).saturating_mul(dtype.size() as u64);
        let (input, output) = (self.pooling.input().elements(), self.pooling.output().elements());
        let indices = if self.operator.base().is_some() { bytes(output, DType::I32) } else { 0 };
        // A norm's gradient takes what was pooled too.
        let pooled = match self.operator {
            Operator::NormBackward(_) => bytes(input, self.dtype),
            _ => 0,
        };
        let ends = bytes(input, self.dtype).saturating_add(bytes(output, self.dtype));
        ends.saturating_add(indices).saturating_add(pooled)
    }

    /// Runs as planned, again and again with no new memory: `results` are those of the last run,
    /// or none, and become those of this one. A result that a clone holds is left alone and has
    /// new memory in its place.
    ///
    /// `inputs` are what the operator reads: the input forward; backward the output's gradient,
    /// and a maximum's winners.
    ///
    /// ```
    /// use windowpane::{DType, Device, MaxPool, Tensor};
    ///
    /// let host = Device::host();
    /// let plan = MaxPool::new([2]).plan_with_indices(&host, DType::F32, &[1, 4, 1])?;
    /// let mut results = Vec::new();
    /// for frame in [[1.0f32, 5.0, 2.0, 4.0], [7.0, 0.0, 3.0, 6.0]] {
    ///     plan.run(&[&Tensor::from_slice(&host, &frame, [1, 4, 1])?], &mut results)?;
    /// }
    /// assert_eq!(results[0].to_vec::<f32>()?, [7.0, 6.0]);
    /// assert_eq!(results[1].to_vec::<i32>()?, [0, 3]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn run(&self, inputs: &[&Tensor], results: &mut Vec<Tensor>) -> Result<()> {
        run_again(self, inputs, results)
    }

    /// The bytes of device memory that it needs beside its tensors.
    pub fn workspace(&self) -> usize {
        match &self.choice {
            Choice::Host(_) => 0,
            #[cfg(feature = "kernels")]
            Choice::Kernel(plan) => plan.workspace,
        }
    }

    /// The kernel's own plan, to override field by field; none on `host`.
    ///
    /// A value that cannot be run is refused when the plan is used.
    #[cfg(feature = "kernels")]
    pub fn kernel_mut(&mut self) -> Option<&mut windowpane_kernels::pool::Plan> {
        match &mut self.choice {
            Choice::Kernel(plan) => Some(plan),
            Choice::Host(_) => None,
        }
    }

    /// The choices, and then the symbols of the problem: a name and a value each.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![
            ("operator", self.operator.name().into()),
            ("device", format!("{} ({})", self.device, self.device.name())),
            ("algorithm", self.algorithm().to_string()),
            ("dtype", self.dtype.to_string()),
            ("layout", self.pooling.layout().to_string()),
        ];
        match &self.choice {
            Choice::Host(_) => {}
            #[cfg(feature = "kernels")]
            Choice::Kernel(plan) => rows.extend([
                ("lanes", plan.lanes.to_string()),
                ("lanes along", if plan.across { "the width" } else { "channels" }.into()),
                ("strip", plan.strip.to_string()),
                ("team", plan.team.to_string()),
                ("parts", plan.parts.to_string()),
                ("units", plan.units.to_string()),
                ("taps unrolled", if plan.unrolled { "yes" } else { "no" }.into()),
                ("unit's outputs", if plan.runs { "a run" } else { "strided" }.into()),
            ]),
        }
        rows.push(("workspace", format!("{} B", self.workspace())));
        rows.extend(self.symbols().into_iter().map(|(name, value)| (name, value.to_string())));
        rows
    }

    /// The symbol table: the problem in the letters of its formula.
    pub fn symbols(&self) -> Vec<(&'static str, usize)> {
        let (input, output) = (self.pooling.input(), self.pooling.output());
        let axes = self.pooling.grid().axes();
        let names = [["D", "Z", "D_OUT"], ["H", "Y", "H_OUT"], ["W", "X", "W_OUT"]];
        let own = names.iter().zip(axes).skip(names.len() - self.pooling.grid().rank());
        let mut symbols = vec![("N", input.batch()), ("C", input.channels())];
        symbols.extend(own.clone().map(|(name, axis)| (name[0], axis.input())));
        symbols.extend(own.clone().map(|(name, axis)| (name[1], axis.kernel())));
        symbols.extend(own.map(|(name, axis)| (name[2], axis.output())));
        symbols.extend([("M", output.elements()), ("K", self.pooling.grid().taps())]);
        symbols
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.rows() {
            writeln!(f, "{name:<16}{value}")?;
        }
        Ok(())
    }
}
