//! Fractional max pooling in Burn's queue.
//!
//! windowpane has no plan of it, so a problem is checked here, with the messages of windowpane.

use windowpane::geometry::{Fractional as Problem, Shape};
use windowpane::{
    DType, Device, Extents, FractionalMaxPool, IndexBase, Layout, Pooling, Result, Tensor,
};

use super::queue::require;

/// The options of a fractional max pooling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fractional {
    pub(super) kernel: Extents,
    pub(super) output: Extents,
    pub(super) seed: u32,
}

impl Fractional {
    /// `dims` are those of the input, also for the gradient.
    pub(super) fn plan(
        self,
        device: &Device,
        dtype: DType,
        dims: &[usize],
        layout: Layout,
    ) -> Result<FractionalPlan> {
        require(device, dtype)?;
        let input = Shape::from_dims(dims, layout)?;
        let problem = Problem::new(input, self.kernel, self.output, layout)?;
        problem.pooling().check_indices(IndexBase::Plane)?;
        let pool = FractionalMaxPool::new(self.kernel, self.output).seed(self.seed).layout(layout);
        Ok(FractionalPlan { problem, pool, dims: dims.to_vec() })
    }
}

/// A fractional max pooling of a problem that is checked.
pub(super) struct FractionalPlan {
    problem: Problem,
    pool: FractionalMaxPool,
    /// Of the input.
    dims: Vec<usize>,
}

impl FractionalPlan {
    pub(super) fn pooling(&self) -> &Pooling {
        self.problem.pooling()
    }

    /// Pools one tensor, with or without indices; of two, `dy` and the indices, it gives the gradient.
    pub(super) fn run(&self, inputs: &[&Tensor], with_indices: bool) -> Result<Vec<Tensor>> {
        match inputs {
            [dy, indices] => Ok(vec![self.pool.backward(dy, indices, &self.dims)?]),
            [x] if with_indices => {
                let (y, indices) = self.pool.forward_with_indices(x)?;
                Ok(vec![y, indices])
            }
            [x] => Ok(vec![self.pool.forward(x)?]),
            _ => unreachable!("the operator reads one tensor, its gradient two"),
        }
    }
}
