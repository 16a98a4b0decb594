//! The pooling operators: their names, their inputs, and the types they are not defined for.

use windowpane_geometry::{DType, Divisor, Exponent, Extremum, IndexBase, Pooling, Rank};

use crate::{Error, Result};

/// An operator of the pooling family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operator {
    /// The extremum and its index.
    Extremum(Extremum, Option<IndexBase>),
    Average(Divisor),
    ExtremumBackward(Extremum, IndexBase),
    AverageBackward(Divisor),
    Norm(Exponent),
    Rank(Rank),
    /// The most frequent number.
    Mode,
    /// A number drawn by a seed, and its index.
    Drawn(u32, Option<IndexBase>),
    DrawnBackward(IndexBase),
    /// The mean of what is drawn.
    MeanDrawn,
    NormBackward(Exponent),
    Unpool(IndexBase),
    UnpoolBackward(IndexBase),
}

impl Operator {
    pub(crate) fn name(self) -> &'static str {
        use Extremum::{Max, Min};
        match self {
            Self::Extremum(Max, None) => "max pooling",
            Self::Extremum(Max, Some(_)) => "max pooling with indices",
            Self::Extremum(Min, None) => "min pooling",
            Self::Extremum(Min, Some(_)) => "min pooling with indices",
            Self::ExtremumBackward(Max, _) => "max pooling's gradient",
            Self::ExtremumBackward(Min, _) => "min pooling's gradient",
            Self::Average(Divisor::Fixed(1)) => "sum pooling",
            Self::AverageBackward(Divisor::Fixed(1)) => "sum pooling's gradient",
            Self::Average(_) => "average pooling",
            Self::AverageBackward(_) => "average pooling's gradient",
            Self::Norm(_) => "Lp pooling",
            Self::Rank(Rank::MEDIAN) => "median pooling",
            Self::Rank(_) => "rank pooling",
            Self::Mode => "mode pooling",
            Self::Drawn(_, None) => "stochastic pooling",
            Self::Drawn(_, Some(_)) => "stochastic pooling with indices",
            Self::DrawnBackward(_) => "stochastic pooling's gradient",
            Self::MeanDrawn => "the mean of stochastic pooling",
            Self::NormBackward(_) => "Lp pooling's gradient",
            Self::Unpool(_) => "max unpooling",
            Self::UnpoolBackward(_) => "max unpooling's gradient",
        }
    }

    /// The names of its inputs, for error messages.
    pub(super) fn reads(self) -> &'static str {
        match self {
            Self::Extremum(..)
            | Self::Average(_)
            | Self::Norm(_)
            | Self::Rank(_)
            | Self::Mode
            | Self::Drawn(..)
            | Self::MeanDrawn => "the input",
            Self::ExtremumBackward(..) | Self::DrawnBackward(_) => {
                "the output's gradient and the winners"
            }
            Self::AverageBackward(_) => "the output's gradient",
            Self::NormBackward(_) => "the output's gradient and the input",
            Self::Unpool(_) => "the maxima and their indices",
            Self::UnpoolBackward(_) => "the unpooled gradient and the indices",
        }
    }

    /// The base of the indices that it reads or writes, if any.
    pub(crate) fn base(self) -> Option<IndexBase> {
        match self {
            Self::Extremum(_, base) | Self::Drawn(_, base) => base,
            Self::ExtremumBackward(_, base)
            | Self::DrawnBackward(base)
            | Self::Unpool(base)
            | Self::UnpoolBackward(base) => Some(base),
            _ => None,
        }
    }

    /// The operator as far as a plan depends on it: any seed has the same plan.
    #[cfg(feature = "kernels")]
    pub(super) fn without_seed(self) -> Self {
        match self {
            Self::Drawn(_, base) => Self::Drawn(0, base),
            _ => self,
        }
    }

    /// Refuses types for which the operator is not defined.
    pub(super) fn check(self, pooling: &Pooling, dtype: DType) -> Result<()> {
        if let Some(base) = self.base() {
            pooling.check_indices(base)?;
        }
        if let Self::Average(divisor) | Self::AverageBackward(divisor) = self {
            divisor.check()?;
        }
        if let Self::Norm(p) | Self::NormBackward(p) = self {
            p.check()?;
        }
        if let Self::Rank(rank) = self {
            rank.check()?;
        }
        let takes = match self {
            Self::Extremum(..) | Self::Rank(_) | Self::Mode | Self::Unpool(_) => true,
            Self::Average(_) => dtype != DType::Bool,
            _ => dtype.is_float(),
        };
        if !takes {
            return Err(Error::FloatsOnly { operator: self.name(), dtype });
        }
        Ok(())
    }

    /// Whether `host` has a sliding algorithm for it.
    pub(super) fn slides(self) -> bool {
        matches!(self, Self::Extremum(..) | Self::Average(_))
    }

    #[cfg(feature = "kernels")]
    pub(crate) fn reduction(self) -> windowpane_kernels::pool::Reduction {
        use windowpane_kernels::pool::{Output, Reduction};
        let results =
            |base: Option<IndexBase>| base.map_or(Output::Values, Output::ValuesAndIndices);
        match self {
            Self::Extremum(extremum, base) => Reduction::Extremum(extremum, results(base)),
            // Indices are moved alike, whichever extremum they are of.
            Self::ExtremumBackward(_, base)
            | Self::DrawnBackward(base)
            | Self::Unpool(base)
            | Self::UnpoolBackward(base) => Reduction::max(Output::ValuesAndIndices(base)),
            Self::Norm(p) | Self::NormBackward(p) => Reduction::Norm(p),
            Self::Rank(rank) => Reduction::Rank(rank),
            Self::Mode => Reduction::Mode,
            Self::Drawn(seed, base) => Reduction::Drawn { seed, output: results(base) },
            Self::MeanDrawn => Reduction::MeanDrawn,
            Self::Average(divisor) | Self::AverageBackward(divisor) => Reduction::Average(divisor),
        }
    }

    /// The problem of the kernels, which is a gradient for the operators that are.
    #[cfg(feature = "kernels")]
    pub(crate) fn problem(
        self,
        pooling: &Pooling,
        dtype: DType,
    ) -> windowpane_kernels::pool::Problem<'_> {
        use windowpane_kernels::pool::{Gradient, Problem};
        let problem = Problem::new(pooling, self.reduction(), dtype);
        match self {
            Self::DrawnBackward(base) => Gradient::Drawn(base).of(pooling, dtype),
            Self::ExtremumBackward(..) | Self::AverageBackward(_) | Self::NormBackward(_) => {
                problem.backward()
            }
            _ => problem,
        }
    }
}
