//! The plan as a value: what it says of itself, how it is printed, and how it runs again.

use core::fmt;

use windowpane_geometry::{Convolution, DType, Pass, Tile};

#[cfg(feature = "kernels")]
use super::choice::{is_free, key};
use super::run::run_again;
use super::{Conv, ConvAlgorithm};
use crate::{Device, Result, Tensor};

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
            Choice::Kernel(plan) => plan.algorithm.into(),
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

    /// What is asked of the kernels.
    #[cfg(feature = "kernels")]
    pub(super) fn request(&self) -> windowpane_kernels::conv::Request {
        let (pass, dtype, precision) = (self.pass, self.dtype, self.conv.precision);
        windowpane_kernels::conv::Request { pass, dtype, precision }
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
