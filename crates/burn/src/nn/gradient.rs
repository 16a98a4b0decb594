//! Gradients, as steps of Burn's autodiff.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn_backend::{Shape, TensorMetadata};
use burn_cubecl::Cube;
use windowpane::{LpPool, MaxPool, MaxUnpool, MinPool, SumPool};

use super::primitive::Tracked;
use super::queue::{Operator, Queued, queue};

/// A pooling with its gradient.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    /// Computed if nobody needs the gradient.
    pub(super) forward: Operator,
    /// Computed in place of `forward` before a gradient: gives indices, if the gradient reads them.
    before: Operator,
    backward: Operator,
    /// Whether the gradient reads the input.
    reads_input: bool,
}

impl Pool {
    pub(super) fn norm(pool: LpPool) -> Self {
        let (forward, backward) = (Operator::Norm(pool), Operator::NormBackward(pool));
        Self { forward, before: forward, backward, reads_input: true }
    }

    pub(super) fn sum(pool: SumPool) -> Self {
        let (forward, backward) = (Operator::Sum(pool), Operator::SumBackward(pool));
        Self { forward, before: forward, backward, reads_input: false }
    }

    pub(super) fn max(pool: MaxPool) -> Self {
        let (forward, backward) = (Operator::Max(pool), Operator::MaxBackward(pool));
        Self { forward, before: Operator::MaxIndexed(pool), backward, reads_input: false }
    }

    pub(super) fn min(pool: MinPool) -> Self {
        let (forward, backward) = (Operator::Min(pool), Operator::MinBackward(pool));
        Self { forward, before: Operator::MinIndexed(pool), backward, reads_input: false }
    }

    /// The same pooling of an extremum, which gives indices also where no gradient needs them.
    pub(super) fn with_indices(self) -> Self {
        Self { forward: self.before, ..self }
    }

    /// Pools, and gives the indices if there are any.
    pub(super) fn pool<C: CheckpointStrategy>(self, x: Tracked) -> (Tracked, Option<Queued>) {
        let shape = x.shape();
        match PoolStep.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prepared) => {
                let input = self.reads_input.then(|| prepared.checkpoint(&x));
                let (y, indices) = queue(self.before, &shape, vec![x.into_primitive()]);
                let saved = Saved { pool: self, shape, input, indices: indices.clone() };
                (prepared.finish(saved, y), indices)
            }
            OpsKind::UnTracked(prepared) => {
                let (y, indices) = queue(self.forward, &shape, vec![x.into_primitive()]);
                (prepared.finish(y), indices)
            }
        }
    }
}

/// Kept by a pooling for its gradient.
#[derive(Clone, Debug)]
struct Saved {
    pool: Pool,
    /// Of the input.
    shape: Shape,
    input: Option<NodeId>,
    indices: Option<Queued>,
}

#[derive(Debug)]
struct PoolStep;

impl Backward<Cube, 1> for PoolStep {
    type State = Saved;

    fn backward(
        self,
        ops: Ops<Saved, 1>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let dy = gradients.consume::<Cube>(&ops.node);
        let Saved { pool, shape, input, indices } = ops.state;
        // It is counted how often a saved input is read, so it is read even if nobody needs the gradient.
        let x: Option<Queued> = input.map(|node| checkpointer.retrieve_node_output(node));
        let [Some(parent)] = ops.parents else { return };
        let inputs = [dy].into_iter().chain(x).chain(indices).collect();
        let (dx, _) = queue(pool.backward, &shape, inputs);
        gradients.register::<Cube>(parent.id, dx);
    }
}

/// Unpools.
pub(super) fn unpool<C: CheckpointStrategy>(
    unpool: MaxUnpool,
    y: Tracked,
    indices: Queued,
) -> Tracked {
    let shape = y.shape();
    let forward = |y: Tracked, indices| {
        queue(Operator::Unpool(unpool), &shape, vec![y.into_primitive(), indices]).0
    };
    match UnpoolStep.prepare::<C>([y.node()]).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            let x = forward(y, indices.clone());
            prepared.finish((unpool, shape, indices), x)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(forward(y, indices)),
    }
}

#[derive(Debug)]
struct UnpoolStep;

impl Backward<Cube, 1> for UnpoolStep {
    /// With the shape of the pooled tensor, and the indices.
    type State = (MaxUnpool, Shape, Queued);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dx = gradients.consume::<Cube>(&ops.node);
        let (unpool, shape, indices) = ops.state;
        let [Some(parent)] = ops.parents else { return };
        let (dy, _) = queue(Operator::UnpoolBackward(unpool), &shape, vec![dx, indices]);
        gradients.register::<Cube>(parent.id, dy);
    }
}
