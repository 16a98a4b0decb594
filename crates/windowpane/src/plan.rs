use core::fmt;
use core::str::FromStr;

use windowpane_geometry::{DType, Pooling};

use crate::pool::{Operator, run_again};
use crate::{Device, Result, Tensor};

/// A pooling algorithm, independent of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PoolAlgorithm {
    /// Reads every tap of every window. Applies to every problem; best for small windows.
    Direct,
    /// Neighbouring windows share partial results, at a cost that hardly grows with their size: on `host` along the
    /// axes where that is faster; elsewhere [`Self::VanHerk`].
    Sliding,
    /// Computes neighbouring windows together and reads shared taps once.
    RegisterTile,
    /// Combines suffixes and prefixes of blocks (van Herk–Gil–Werman) at a cost that does not grow with the window: one
    /// axis after the other, or on a GPU both axes of a plane in one launch.
    VanHerk,
    /// Many threads reduce one window together, for few windows with many taps as in global pooling; small planes of one
    /// channel are copied to shared memory.
    BlockReduce,
    /// Averages of 3×3 windows with stride 1, and their gradients: neighbouring windows share their sums.
    Stencil,
    /// A CPU thread moves along rows of outputs and keeps what neighbouring windows share.
    CpuRows,
    /// Gradients: reads every window over an input.
    Gather,
    /// Gradients: computes neighbouring inputs together and reads the windows over them once.
    GatherTile,
    /// Gradients of maxima: threads move along planes, with shared windows in shared memory.
    GatherStaged,
    /// Gradients of maxima of windows that do not overlap: writes zeros, and then each window's gradient.
    Scatter,
    /// Gradients of maxima: adds up segments of windows with the same winner, at a cost that does not grow with the
    /// window.
    SegmentedScatter,
    /// Norms and their gradients.
    Lp,
    /// Stochastic pooling: visits the taps of a window twice.
    Stochastic,
    /// Medians, other ranks and modes: pairs of taps are compared, or the result is found by passes over the window.
    Rank,
}

impl PoolAlgorithm {
    /// Every algorithm.
    pub const ALL: [Self; 15] = [
        Self::Direct,
        Self::Sliding,
        Self::RegisterTile,
        Self::VanHerk,
        Self::BlockReduce,
        Self::Stencil,
        Self::CpuRows,
        Self::Gather,
        Self::GatherTile,
        Self::GatherStaged,
        Self::Scatter,
        Self::SegmentedScatter,
        Self::Lp,
        Self::Stochastic,
        Self::Rank,
    ];

    /// The name as it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Sliding => "sliding",
            Self::RegisterTile => "register_tile",
            Self::VanHerk => "van_herk",
            Self::BlockReduce => "block_reduce",
            Self::Stencil => "stencil",
            Self::CpuRows => "cpu_rows",
            Self::Gather => "gather",
            Self::GatherTile => "gather_tile",
            Self::GatherStaged => "gather_staged",
            Self::Scatter => "scatter",
            Self::SegmentedScatter => "segmented_scatter",
            Self::Lp => "lp",
            Self::Stochastic => "stochastic",
            Self::Rank => "rank",
        }
    }
}

/// The kernels and the algorithm of each.
#[cfg(feature = "kernels")]
const KERNELS: [(PoolAlgorithm, windowpane_kernels::pool::Algorithm); 14] = {
    use windowpane_kernels::pool::Algorithm as Kernel;
    [
        (PoolAlgorithm::Direct, Kernel::Direct),
        (PoolAlgorithm::RegisterTile, Kernel::RegisterTile),
        (PoolAlgorithm::VanHerk, Kernel::VanHerk),
        (PoolAlgorithm::BlockReduce, Kernel::BlockReduce),
        (PoolAlgorithm::Stencil, Kernel::Stencil),
        (PoolAlgorithm::CpuRows, Kernel::CpuRows),
        (PoolAlgorithm::Gather, Kernel::Gather),
        (PoolAlgorithm::GatherTile, Kernel::GatherTile),
        (PoolAlgorithm::GatherStaged, Kernel::GatherStaged),
        (PoolAlgorithm::Scatter, Kernel::Scatter),
        (PoolAlgorithm::SegmentedScatter, Kernel::SegmentedScatter),
        (PoolAlgorithm::Lp, Kernel::Lp),
        (PoolAlgorithm::Stochastic, Kernel::Stochastic),
        (PoolAlgorithm::Rank, Kernel::Rank),
    ]
};

#[cfg(feature = "kernels")]
impl PoolAlgorithm {
    /// The kernel for this algorithm, if there is one.
    pub(crate) fn kernel(self) -> Option<windowpane_kernels::pool::Algorithm> {
        let own = if self == Self::Sliding { Self::VanHerk } else { self };
        KERNELS.iter().find(|(algorithm, _)| *algorithm == own).map(|(_, kernel)| *kernel)
    }

    /// The algorithm of a kernel.
    fn of(kernel: windowpane_kernels::pool::Algorithm) -> Self {
        match KERNELS.iter().find(|(_, own)| *own == kernel) {
            Some((algorithm, _)) => *algorithm,
            None => unreachable!("{kernel} has no public name"),
        }
    }
}

impl fmt::Display for PoolAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

fn names() -> String {
    PoolAlgorithm::ALL.map(PoolAlgorithm::name).join(", ")
}

/// The error for an unknown algorithm name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown algorithm `{0}`; use one of auto, {names}", names = names())]
pub struct UnknownPoolAlgorithm(String);

/// Names from earlier versions, which case files and tables may still contain.
const FORMER: [(&str, PoolAlgorithm); 12] = [
    ("strip", PoolAlgorithm::RegisterTile),
    ("fused", PoolAlgorithm::VanHerk),
    ("van_herk_fused", PoolAlgorithm::VanHerk),
    ("van_herk_paired", PoolAlgorithm::VanHerk),
    ("reduce", PoolAlgorithm::BlockReduce),
    ("plane", PoolAlgorithm::BlockReduce),
    ("flat", PoolAlgorithm::Stencil),
    ("stencil_flat", PoolAlgorithm::Stencil),
    ("rolling", PoolAlgorithm::Stencil),
    ("stencil_rolling", PoolAlgorithm::Stencil),
    ("walk", PoolAlgorithm::CpuRows),
    ("staged", PoolAlgorithm::GatherStaged),
];

impl FromStr for PoolAlgorithm {
    type Err = UnknownPoolAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownPoolAlgorithm> {
        let named = Self::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        let former = || FORMER.iter().find(|former| former.0 == name).map(|former| former.1);
        named.or_else(former).ok_or_else(|| UnknownPoolAlgorithm(name.into()))
    }
}

/// How an operator will run: the kernel, its configuration and the problem.
///
/// A plan is made before anything is launched. It prints as a table, can be changed, and then runs.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolPlan {
    pub(crate) device: Device,
    pub(crate) operator: Operator,
    pub(crate) pooling: Pooling,
    pub(crate) dtype: DType,
    /// The algorithm that was asked for.
    pub(crate) asked: Option<PoolAlgorithm>,
    pub(crate) choice: Choice,
}

/// The choice of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Choice {
    /// An algorithm of `host`.
    Host(PoolAlgorithm),
    /// A kernel.
    #[cfg(feature = "kernels")]
    Kernel(windowpane_kernels::pool::Plan),
}

impl PoolPlan {
    /// The device that the plan was made for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The algorithm.
    pub fn algorithm(&self) -> PoolAlgorithm {
        match &self.choice {
            Choice::Host(algorithm) => *algorithm,
            #[cfg(feature = "kernels")]
            Choice::Kernel(plan) => PoolAlgorithm::of(plan.algorithm()),
        }
    }

    /// The problem.
    pub fn pooling(&self) -> &Pooling {
        &self.pooling
    }

    /// The least number of bytes it moves: every input read once, every output written once, indices
    /// included.
    pub fn bytes(&self) -> u64 {
        // A plan on `host` may describe a problem larger than memory.
        let bytes =
            |elements: usize, dtype: DType| (elements as u64).saturating_mul(dtype.size() as u64);
        let (input, output) = (self.pooling.input().elements(), self.pooling.output().elements());
        let indices = if self.operator.base().is_some() { bytes(output, DType::I32) } else { 0 };
        // The gradient of a norm also reads the input.
        let pooled = match self.operator {
            Operator::NormBackward(_) => bytes(input, self.dtype),
            _ => 0,
        };
        let ends = bytes(input, self.dtype).saturating_add(bytes(output, self.dtype));
        ends.saturating_add(indices).saturating_add(pooled)
    }

    /// Runs the plan and reuses the memory of the previous results: `results` holds those of the last
    /// run, or nothing, and receives the new ones. A result of which a clone exists is not overwritten;
    /// it gets new memory.
    ///
    /// `inputs` are what the operator reads: forward the input; backward the gradient with respect to
    /// the output, and for extrema the indices.
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

    /// Chooses the kernel by timing those that can compute the problem, which takes from a moment to some seconds. Later plans
    /// of the same problem in this process use the choice, unless they ask for a kernel.
    ///
    /// A plan that asked for a kernel, or has none, as on `host`, does not change. [`Tuned`](crate::Tuned) shows how to save
    /// the choices.
    #[doc(alias("benchmark", "autotune"))]
    pub fn tune(&self) -> Result<Self> {
        #[cfg(feature = "kernels")]
        return crate::pool::tune(self);
        #[cfg(not(feature = "kernels"))]
        Ok(self.clone())
    }

    /// The bytes of scratch memory that it needs on the device.
    pub fn workspace(&self) -> usize {
        match &self.choice {
            Choice::Host(_) => 0,
            #[cfg(feature = "kernels")]
            Choice::Kernel(plan) => match self.device.capabilities() {
                Some(device) => plan.workspace(&self.pooling, self.dtype, device),
                None => 0,
            },
        }
    }

    /// The plan of the kernel, whose fields can be overridden; `None` on `host`.
    ///
    /// An invalid value is refused when the plan is used.
    #[cfg(feature = "kernels")]
    pub fn kernel_mut(&mut self) -> Option<&mut windowpane_kernels::pool::Plan> {
        match &mut self.choice {
            Choice::Kernel(plan) => Some(plan),
            Choice::Host(_) => None,
        }
    }

    /// The choices, then the symbols of the problem, each as a name and a value.
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
            Choice::Kernel(windowpane_kernels::pool::Plan { config, settings, .. }) => {
                rows.extend([
                    ("configuration", config.to_string()),
                    ("lanes", settings.lanes.to_string()),
                    (
                        "lanes along",
                        if settings.along_width { "the width" } else { "channels" }.into(),
                    ),
                    ("threads per block", settings.units.to_string()),
                    ("taps unrolled", if settings.unrolled { "yes" } else { "no" }.into()),
                    (
                        "a thread's outputs",
                        if settings.contiguous { "contiguous" } else { "strided" }.into(),
                    ),
                ]);
                if self.device.packs(self.dtype) {
                    rows.push((
                        "computed in",
                        "i32, unpacked before the kernel and packed after it".into(),
                    ));
                }
            }
        }
        rows.push(("workspace", format!("{} B", self.workspace())));
        rows.extend(self.symbols().into_iter().map(|(name, value)| (name, value.to_string())));
        rows
    }

    /// The verdict on every kernel under the automatic choice: which one is chosen, and why the others are not. Empty
    /// on `host`, which has no kernels, and for unpooling, which has one.
    pub fn why(&self) -> Vec<(&'static str, String)> {
        #[cfg(feature = "kernels")]
        if let Some(capabilities) = self.device.capabilities() {
            use windowpane_kernels::{Verdict, pool};
            if let Operator::Unpool(_) | Operator::UnpoolBackward(_) = self.operator {
                return Vec::new();
            }
            let problem = self.operator.problem(&self.pooling, self.dtype);
            let verdicts = pool::Plan::explain(problem, capabilities);
            let own = match &self.choice {
                Choice::Kernel(plan) => Some(plan.algorithm()),
                Choice::Host(_) => None,
            };
            let row = |(kernel, verdict): (pool::Algorithm, Verdict)| match verdict {
                Verdict::NotChosen { nanoseconds } if own == Some(kernel) => {
                    (kernel.name(), Verdict::Overrides { nanoseconds }.to_string())
                }
                verdict => (kernel.name(), verdict.to_string()),
            };
            return verdicts.map_or_else(|_| Vec::new(), |it| it.into_iter().map(row).collect());
        }
        Vec::new()
    }

    /// The sizes of the problem, by the letters that formulas use: `N`, `C`, `H`, `Y`, `H_OUT`, …
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

impl fmt::Display for PoolPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.rows() {
            writeln!(f, "{name:<20}{value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        for algorithm in PoolAlgorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
        }
        for (name, algorithm) in FORMER {
            assert_eq!(name.parse(), Ok(algorithm));
        }
    }

    #[test]
    #[cfg(feature = "kernels")]
    fn every_kernel_is_an_algorithm_of_its_name() {
        for &kernel in windowpane_kernels::pool::Algorithm::ALL {
            assert_eq!(PoolAlgorithm::of(kernel).name(), kernel.name());
            assert_eq!(PoolAlgorithm::of(kernel).kernel(), Some(kernel));
        }
    }
}
