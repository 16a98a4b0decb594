//! Plans of convolutions: their contents, how they print, and how they run repeatedly.

use core::fmt;

use windowpane_geometry::{Convolution, DType, Padded, Pass, Tile};

#[cfg(feature = "kernels")]
use super::choice::{is_free, key};
use super::run::run_again;
use super::{Conv, ConvAlgorithm};
use crate::{Device, Result, Tensor};

/// The most plans that tuning measures, where the caller does not say.
const MOST_PLANS: usize = 160;

/// How a convolution or its gradient will run: the kernel, its tile sizes and its symbol table.
///
/// A plan is made before anything is launched. It prints as a table, can be changed, and then runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvPlan {
    pub(super) device: Device,
    pub(super) pass: Pass,
    /// The options that it was made for.
    pub(super) conv: Conv,
    pub(super) problem: Convolution,
    /// The padding that is filled in before, if it is not zeros.
    pub(super) padded: Option<Padded>,
    pub(super) dtype: DType,
    /// The type of the result, which only a quantized convolution has apart.
    pub(super) output: DType,
    pub(super) choice: Choice,
}

/// The choice of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Choice {
    /// `host`: depthwise in vectors, matrix products, or the plain loops of the reference.
    Host(ConvAlgorithm),
    /// A kernel.
    #[cfg(feature = "kernels")]
    Kernel(windowpane_kernels::conv::Plan),
}

impl ConvPlan {
    /// The device that the plan was made for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The pass that it computes.
    pub fn pass(&self) -> Pass {
        self.pass
    }

    /// The type of its tensors; of a quantized convolution, that of the input and the filters.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The type of its result.
    pub fn output_dtype(&self) -> DType {
        self.output
    }

    /// Whether it is that of a quantized convolution.
    pub(super) fn is_quantized(&self) -> bool {
        !self.dtype.is_float()
    }

    /// The algorithm.
    pub fn algorithm(&self) -> ConvAlgorithm {
        match &self.choice {
            Choice::Host(algorithm) => *algorithm,
            #[cfg(feature = "kernels")]
            Choice::Kernel(plan) => plan.algorithm().into(),
        }
    }

    /// The problem; for a bias gradient a convolution with one tap and the same output. With a padding mode other than
    /// zeros its input includes the padding.
    pub fn problem(&self) -> &Convolution {
        &self.problem
    }

    /// The number of multiplications and additions, including those with padding.
    pub fn operations(&self) -> u64 {
        let (output, filter) = (self.problem.output().elements() as u64, self.problem.filter());
        match self.pass {
            Pass::Bias => output,
            // A plan on `host` may describe a problem larger than memory.
            _ => output.saturating_mul(2 * (filter.taps() * filter.channels()) as u64),
        }
    }

    /// The least number of bytes it moves: every input read once, the output written once. Bias and
    /// residual are not counted.
    pub fn bytes(&self) -> u64 {
        let (input, output) = (self.problem.input(), self.problem.output());
        let filter = self.problem.filter();
        let parts = match self.pass {
            Pass::Bias => [output.elements(), filter.count(), 0],
            _ => [input.elements(), filter.elements(), output.elements()],
        };
        let sizes = [self.dtype, self.dtype, self.output].map(|dtype| dtype.size() as u64);
        let bytes = parts.into_iter().zip(sizes);
        let bytes = bytes.map(|(elements, size)| (elements as u64).saturating_mul(size));
        bytes.fold(0, u64::saturating_add)
    }

    /// The tile sizes; `None` if the kernel has none.
    pub fn tile(&self) -> Option<Tile> {
        match &self.choice {
            Choice::Host(_) => None,
            #[cfg(feature = "kernels")]
            Choice::Kernel(plan) => plan.tile(),
        }
    }

    /// Runs the plan and reuses the memory of the previous result: `results` holds that of the last run,
    /// or nothing, and receives the new one. A result of which a clone exists is not overwritten; it gets
    /// new memory.
    ///
    /// `inputs` are what the pass reads. Forward: the input and the filters, then optionally a bias and a residual; quantized:
    /// the input, the filters and the scale, then optionally a bias. Data gradient: `dy` and the filters. Weight gradient:
    /// `dy` and the input. Bias gradient: `dy`.
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

    /// Chooses kernel and tile by measuring on the device, which takes from a second to a minute. Later
    /// plans of the same problem in this process use the choice. A kernel or tile set by the options is
    /// kept, and the result is then not remembered.
    ///
    /// A plan without kernels, as on `host`, does not change. [`Tuned`](crate::Tuned) shows how to save
    /// the choices.
    #[doc(alias("benchmark", "autotune"))]
    pub fn tune(&self) -> Result<Self> {
        self.tune_at_most(MOST_PLANS)
    }

    /// As [`tune`](Self::tune), but measures at most this many plans instead of 160, this one included. Each must be
    /// compiled, which takes most of the time. The default plans of the other kernels come first.
    #[cfg_attr(
        not(feature = "kernels"),
        expect(unused_variables, reason = "nothing to choose from")
    )]
    pub fn tune_at_most(&self, plans: usize) -> Result<Self> {
        #[cfg(feature = "kernels")]
        return super::tune::tune(self, plans);
        #[cfg(not(feature = "kernels"))]
        Ok(self.clone())
    }

    /// Whether kernel and tile were chosen automatically.
    #[cfg(feature = "kernels")]
    pub(super) fn is_free(&self) -> bool {
        is_free(&self.conv)
    }

    /// The problem as text, the key of tuned choices.
    #[cfg(feature = "kernels")]
    pub(super) fn key(&self) -> String {
        key(self.pass, self.dtype, self.conv.precision, &self.problem)
    }

    /// The bytes of scratch memory that it needs on the device; 0 for a plan that was overridden with values that
    /// cannot run.
    pub fn workspace(&self) -> usize {
        #[cfg(feature = "kernels")]
        if let (Choice::Kernel(plan), Some(device)) = (&self.choice, self.device.capabilities())
            && plan.check(&self.problem, self.request(), device).is_ok()
        {
            let padded = self.padded.map_or(0, |padded| padded.output().elements());
            return plan.workspace(&self.problem, self.request(), device)
                + padded * self.dtype.size();
        }
        0
    }

    /// Why its kernel was chosen, and why each of the others was not: names, and reasons or estimated times.
    pub fn why(&self) -> Vec<(&'static str, String)> {
        #[cfg(feature = "kernels")]
        if let (Choice::Kernel(plan), Some(device)) = (&self.choice, self.device.capabilities()) {
            use windowpane_kernels::{Verdict, conv::explain};
            let verdicts = explain(&self.problem, self.request(), device).unwrap_or_default();
            let actual = |algorithm, verdict| match verdict {
                Verdict::NotChosen { nanoseconds } if algorithm == plan.algorithm() => {
                    Verdict::Overrides { nanoseconds }
                }
                verdict => verdict,
            };
            let rows = verdicts.into_iter();
            return rows
                .map(|(kernel, verdict)| (kernel.name(), actual(kernel, verdict).to_string()))
                .collect();
        }
        let own = self.algorithm();
        let loops =
            (ConvAlgorithm::Direct.name(), "not chosen: it is slow, for comparisons".into());
        let reason = match self.conv.algorithm {
            Some(_) => "asked for",
            None => "chosen: this device has no faster one",
        };
        let rows = [(own.name(), reason.into()), loops];
        rows.into_iter().take(if own == ConvAlgorithm::Direct { 1 } else { 2 }).collect()
    }

    /// The plan of the kernel, whose fields can be overridden; `None` on `host`.
    ///
    /// An invalid value is refused when the plan is used.
    #[cfg(feature = "kernels")]
    pub fn kernel_mut(&mut self) -> Option<&mut windowpane_kernels::conv::Plan> {
        match &mut self.choice {
            Choice::Kernel(plan) => Some(plan),
            Choice::Host(_) => None,
        }
    }

    /// The request to the kernels.
    #[cfg(feature = "kernels")]
    pub(super) fn request(&self) -> windowpane_kernels::conv::Request {
        let (pass, dtype, precision) = (self.pass, self.dtype, self.conv.precision);
        windowpane_kernels::conv::Request { pass, dtype, precision }
    }

    /// The choices, then the symbols of the problem, each as a name and a value.
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
        if self.is_quantized() {
            rows.push(("output dtype", self.output.to_string()));
        }
        if let Some(padded) = &self.padded {
            let (from, to) = (padded.input().space(), padded.output().space());
            rows.push(("padding", format!("{}, from {from} to {to}", padded.mode())));
        }
        match &self.choice {
            Choice::Host(_) => {}
            #[cfg(feature = "kernels")]
            Choice::Kernel(plan) => rows.extend([
                ("computed in", plan.arrangement.to_string()),
                ("operands", plan.factors(&self.problem, self.request()).into()),
                ("threads per block", plan.units.to_string()),
                (
                    "a thread's outputs",
                    if plan.contiguous { "contiguous" } else { "strided" }.into(),
                ),
                ("split-K", plan.splits.to_string()),
            ]),
        }
        rows.push(("workspace", format!("{} B", self.workspace())));
        rows.extend(self.symbols().into_iter().map(|(name, value)| (name, value.to_string())));
        rows
    }

    /// The symbol table: the problem in the letters of the formula, and the tile sizes.
    ///
    /// M, NF and K are the sizes of the implicit GEMM of the forward pass:
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
        if let Some(tile) = self.tile() {
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
            writeln!(f, "{name:<20}{value}")?;
        }
        Ok(())
    }
}
