//! Gradients, as steps of Burn's autodiff.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::{ActivationOps, FloatTensorOps};
use burn_backend::{DType, FloatDType, Shape, TensorMetadata};
use burn_cubecl::Cube;
use windowpane::{LpPool, MaxPool, MaxUnpool, MinPool, StochasticPool, SumPool, Window};

use super::fractional::Fractional;
use super::padded::PadOptions;
use super::primitive::Tracked;
use super::queue::{Operator, Queued, queue};

/// A pooling, or a padding, with its gradient.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    /// Computed if nobody needs the gradient.
    pub(super) forward: Operator,
    /// Computed in place of `forward` before a gradient: gives indices, if the gradient reads them.
    before: Operator,
    backward: Gradient,
    /// Whether the gradient reads the input.
    reads_input: bool,
}

/// How a gradient is computed.
#[derive(Clone, Copy, Debug)]
enum Gradient {
    /// By one operator.
    Of(Operator),
    /// By several: that of the mean of what stochastic pooling draws.
    OfMean(Window),
}

impl Pool {
    /// A pooling whose gradient reads `dy` only.
    fn of(forward: Operator, backward: Operator) -> Self {
        Self { forward, before: forward, backward: Gradient::Of(backward), reads_input: false }
    }

    /// A pooling that takes one number of each window.
    fn choice(forward: Operator, with_indices: Operator, backward: Operator) -> Self {
        Self { before: with_indices, ..Self::of(forward, backward) }
    }

    pub(super) fn norm(pool: LpPool) -> Self {
        let norm = Self::of(Operator::Norm(pool), Operator::NormBackward(pool));
        Self { reads_input: true, ..norm }
    }

    pub(super) fn sum(pool: SumPool) -> Self {
        Self::of(Operator::Sum(pool), Operator::SumBackward(pool))
    }

    pub(super) fn padding(options: PadOptions) -> Self {
        Self::of(Operator::Pad(options), Operator::PadBackward(options))
    }

    pub(super) fn max(pool: MaxPool) -> Self {
        use Operator::{Max, MaxBackward, MaxIndexed};
        Self::choice(Max(pool), MaxIndexed(pool), MaxBackward(pool))
    }

    pub(super) fn min(pool: MinPool) -> Self {
        use Operator::{Min, MinBackward, MinIndexed};
        Self::choice(Min(pool), MinIndexed(pool), MinBackward(pool))
    }

    pub(super) fn fractional(pool: Fractional) -> Self {
        use Operator::{Fractional, FractionalBackward, FractionalIndexed};
        Self::choice(Fractional(pool), FractionalIndexed(pool), FractionalBackward(pool))
    }

    pub(super) fn drawn(pool: StochasticPool) -> Self {
        use Operator::{Drawn, DrawnBackward, DrawnIndexed};
        Self::choice(Drawn(pool), DrawnIndexed(pool), DrawnBackward(pool))
    }

    pub(super) fn mean_drawn(window: Window) -> Self {
        let forward = Operator::MeanDrawn(StochasticPool::with_window(window));
        let backward = Gradient::OfMean(window);
        Self { forward, before: forward, backward, reads_input: true }
    }

    /// The same pooling, which gives indices also where no gradient needs them.
    pub(super) fn with_indices(self) -> Self {
        Self { forward: self.before, ..self }
    }

    /// Pools or pads, and gives the indices if there are any.
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
        let dx = match (pool.backward, x) {
            (Gradient::OfMean(window), Some(x)) => mean_backward(window, &shape, dy, x),
            (Gradient::OfMean(_), None) => unreachable!("the mean's gradient reads the input"),
            (Gradient::Of(backward), x) => {
                let inputs = [dy].into_iter().chain(x).chain(indices).collect();
                queue(backward, &shape, inputs).0
            }
        };
        gradients.register::<Cube>(parent.id, dx);
    }
}

/// The gradient of the mean `y = Σw²/Σw` with `w = max(x, 0)`: for `x > 0` the sum of `dy·(2w − y)/Σw` over the windows
/// with `x`, else 0. It is computed in f32, or f64 for f64.
fn mean_backward(window: Window, shape: &Shape, dy: Queued, x: Queued) -> Queued {
    let dtype = x.dtype;
    let wide = |numbers: Queued| match dtype {
        DType::F16 | DType::BF16 => Cube::float_cast(numbers, FloatDType::F32),
        _ => numbers,
    };
    let sum = SumPool::with_window(window);
    let mean = Operator::MeanDrawn(StochasticPool::with_window(window));
    let spread = |numbers| queue(Operator::SumBackward(sum), shape, vec![numbers]).0;

    let w = Cube::relu(wide(x));
    let y = queue(mean, shape, vec![w.clone()]).0;
    let total = queue(Operator::Sum(sum), shape, vec![w.clone()]).0;
    // A window with the total 0 has no positive `x`, so its quotient is not used.
    let share = Cube::float_div(wide(dy), Cube::float_clamp_min(total, f32::MIN_POSITIVE.into()));
    let twice = Cube::float_mul_scalar(Cube::float_mul(w.clone(), spread(share.clone())), 2.into());
    let dx = Cube::float_sub(twice, spread(Cube::float_mul(share, y)));
    let dx = Cube::relu_backward(w, dx);
    match dtype {
        DType::F16 | DType::BF16 => Cube::float_cast(dx, dtype.into()),
        _ => dx,
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
