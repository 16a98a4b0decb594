//! Queues operators in Burn, and computes them when Burn runs its queue.

use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn_backend::{DType as BurnType, ExecutionError, Shape, StreamId};
use burn_cubecl::Cube;
use burn_cubecl::fusion::{CubeFusionHandle, FusionCubeRuntime};
use burn_fusion::FusionTensor;
use burn_fusion::stream::Operation;
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};
use windowpane::{
    DType, Device, Error, Layout, LpPool, MaxPool, MaxUnpool, MedianPool, MinPool, ModePool,
    PoolPlan, RankPool, StochasticPool, SumPool, Tensor, geometry,
};

use super::fractional::{Fractional, FractionalPlan};
use super::padded::{PadOptions, PadPlan};
use super::refuse;
use crate::memory::{Made, Operand, Refusal, device, dims, layout_of, refusal, register, to_dtype};

/// A tensor of Burn on a CubeCL device, without its gradient: of floats or of integers.
pub(super) type Queued = FusionTensor<FusionCubeRuntime>;

/// An operator with its options; what it reads and gives.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operator {
    /// `x` → `y`
    Norm(LpPool),
    /// `dy`, `x` → `dx`
    NormBackward(LpPool),
    /// `x` → `y`
    Sum(SumPool),
    /// `dy` → `dx`
    SumBackward(SumPool),
    /// `x` → `y`
    Max(MaxPool),
    /// `x` → `y`, indices
    MaxIndexed(MaxPool),
    /// `dy`, indices → `dx`
    MaxBackward(MaxPool),
    /// `x` → `y`
    Min(MinPool),
    /// `x` → `y`, indices
    MinIndexed(MinPool),
    /// `dy`, indices → `dx`
    MinBackward(MinPool),
    /// `x` → `y`
    Fractional(Fractional),
    /// `x` → `y`, indices
    FractionalIndexed(Fractional),
    /// `dy`, indices → `dx`
    FractionalBackward(Fractional),
    /// `x` → `y`
    Drawn(StochasticPool),
    /// `x` → `y`, indices
    DrawnIndexed(StochasticPool),
    /// `dy`, indices → `dx`
    DrawnBackward(StochasticPool),
    /// `x` → `y`
    MeanDrawn(StochasticPool),
    /// `x` → `y`
    Median(MedianPool),
    /// `x` → `y`
    Rank(RankPool),
    /// `x` → `y`
    Mode(ModePool),
    /// `y`, indices → `x`
    Unpool(MaxUnpool),
    /// `dx`, indices → `dy`
    UnpoolBackward(MaxUnpool),
    /// `x` → `y`
    Pad(PadOptions),
    /// `dy` → `dx`
    PadBackward(PadOptions),
}

impl Operator {
    /// Its name in Burn's queue and logs.
    fn name(self) -> &'static str {
        match self {
            Self::Norm(_) => "windowpane::lp_pool",
            Self::NormBackward(_) => "windowpane::lp_pool_backward",
            Self::Sum(_) => "windowpane::sum_pool",
            Self::SumBackward(_) => "windowpane::sum_pool_backward",
            Self::Max(_) => "windowpane::max_pool",
            Self::MaxIndexed(_) => "windowpane::max_pool_with_indices",
            Self::MaxBackward(_) => "windowpane::max_pool_backward",
            Self::Min(_) => "windowpane::min_pool",
            Self::MinIndexed(_) => "windowpane::min_pool_with_indices",
            Self::MinBackward(_) => "windowpane::min_pool_backward",
            Self::Fractional(_) => "windowpane::fractional_max_pool",
            Self::FractionalIndexed(_) => "windowpane::fractional_max_pool_with_indices",
            Self::FractionalBackward(_) => "windowpane::fractional_max_pool_backward",
            Self::Drawn(_) => "windowpane::stochastic_pool",
            Self::DrawnIndexed(_) => "windowpane::stochastic_pool_with_indices",
            Self::DrawnBackward(_) => "windowpane::stochastic_pool_backward",
            Self::MeanDrawn(_) => "windowpane::stochastic_mean",
            Self::Median(_) => "windowpane::median_pool",
            Self::Rank(_) => "windowpane::rank_pool",
            Self::Mode(_) => "windowpane::mode_pool",
            Self::Unpool(_) => "windowpane::max_unpool",
            Self::UnpoolBackward(_) => "windowpane::max_unpool_backward",
            Self::Pad(_) => "windowpane::pad",
            Self::PadBackward(_) => "windowpane::pad_backward",
        }
    }

    /// The plan; `dims` are those of the input of a pooling or padding, and of the pooled tensor of an unpooling, also
    /// for gradients.
    fn plan(
        self,
        device: &Device,
        dtype: DType,
        dims: &[usize],
        layout: Layout,
    ) -> windowpane::Result<Plan> {
        let plan = match self {
            Self::Norm(pool) => pool.layout(layout).plan(device, dtype, dims),
            Self::NormBackward(pool) => pool.layout(layout).plan_backward(device, dtype, dims),
            Self::Sum(pool) => pool.layout(layout).plan(device, dtype, dims),
            Self::SumBackward(pool) => pool.layout(layout).plan_backward(device, dtype, dims),
            Self::Max(pool) => pool.layout(layout).plan(device, dtype, dims),
            Self::MaxIndexed(pool) => pool.layout(layout).plan_with_indices(device, dtype, dims),
            Self::MaxBackward(pool) => pool.layout(layout).plan_backward(device, dtype, dims),
            Self::Min(pool) => pool.layout(layout).plan(device, dtype, dims),
            Self::MinIndexed(pool) => pool.layout(layout).plan_with_indices(device, dtype, dims),
            Self::MinBackward(pool) => pool.layout(layout).plan_backward(device, dtype, dims),
            Self::Fractional(pool)
            | Self::FractionalIndexed(pool)
            | Self::FractionalBackward(pool) => {
                return pool
                    .plan(device, dtype, dims, layout)
                    .map(|plan| Plan::Fractional(plan.into()));
            }
            Self::Drawn(pool) => pool.layout(layout).plan(device, dtype, dims),
            Self::DrawnIndexed(pool) => pool.layout(layout).plan_with_indices(device, dtype, dims),
            Self::DrawnBackward(pool) => pool.layout(layout).plan_backward(device, dtype, dims),
            Self::MeanDrawn(pool) => pool.layout(layout).plan_mean(device, dtype, dims),
            Self::Median(pool) => pool.layout(layout).plan(device, dtype, dims),
            Self::Rank(pool) => pool.layout(layout).plan(device, dtype, dims),
            Self::Mode(pool) => pool.layout(layout).plan(device, dtype, dims),
            Self::Unpool(pool) => pool.layout(layout).plan(device, dtype, dims),
            Self::UnpoolBackward(pool) => pool.layout(layout).plan_backward(device, dtype, dims),
            Self::Pad(options) | Self::PadBackward(options) => {
                let plan = PadPlan::new(options, device, dtype, dims, layout);
                return plan.map(|plan| Plan::Pad(plan.into()));
            }
        };
        plan.map(|plan| Plan::Window(plan.into()))
    }

    /// The shape of its result, in Burn's order of the axes.
    fn result(self, plan: &Plan) -> Shape {
        let [input, output] = plan.shapes();
        let shape = match self {
            Self::NormBackward(_)
            | Self::SumBackward(_)
            | Self::MaxBackward(_)
            | Self::MinBackward(_)
            | Self::FractionalBackward(_)
            | Self::DrawnBackward(_)
            | Self::PadBackward(_)
            | Self::Unpool(_) => input,
            _ => output,
        };
        shape.dims(Layout::ChannelsFirst).collect::<Vec<_>>().into()
    }

    fn gives_indices(self) -> bool {
        matches!(
            self,
            Self::MaxIndexed(_)
                | Self::MinIndexed(_)
                | Self::FractionalIndexed(_)
                | Self::DrawnIndexed(_)
        )
    }

    /// Computes; gives the result, then indices if the operator gives them.
    fn run(self, plan: &Plan, inputs: &[&Tensor]) -> windowpane::Result<Vec<Tensor>> {
        match plan {
            Plan::Window(plan) => {
                let mut results = Vec::new();
                plan.run(inputs, &mut results)?;
                Ok(results)
            }
            Plan::Fractional(plan) => plan.run(inputs, self.gives_indices()),
            Plan::Pad(plan) => {
                let [from] = inputs else { unreachable!("a padding reads one tensor") };
                let made = match self {
                    Self::PadBackward(_) => plan.backward(from),
                    _ => plan.forward(from),
                };
                Ok(vec![made?])
            }
        }
    }
}

/// How an operator will run.
enum Plan {
    Window(Box<PoolPlan>),
    Fractional(Box<FractionalPlan>),
    Pad(Box<PadPlan>),
}

impl Plan {
    /// The shapes of the input and the output of the pooling or padding.
    fn shapes(&self) -> [geometry::Shape; 2] {
        let pooling = match self {
            Self::Window(plan) => plan.pooling(),
            Self::Fractional(plan) => plan.pooling(),
            Self::Pad(plan) => return [plan.problem().input(), plan.problem().output()],
        };
        [pooling.input(), pooling.output()]
    }
}

/// Refuses a type that the device lacks, as windowpane's plans do.
pub(super) fn require(device: &Device, dtype: DType) -> windowpane::Result<()> {
    if device.supports(dtype) {
        return Ok(());
    }
    let available: Vec<_> = device.dtypes().map(DType::name).collect();
    let (device, available) = (device.clone(), available.join(", "));
    Err(Error::DTypeUnsupported { device, dtype, available })
}

/// Whether an operation of Burn's queue was queued here.
pub(crate) fn is_queued(operation: &OperationIr) -> bool {
    matches!(operation, OperationIr::Custom(custom) if custom.id.starts_with("windowpane::"))
}

/// Queues an operator; `planned` is the shape that its plan is made for. Gives the result, and indices if the operator
/// gives them.
///
/// It panics if the operator cannot be computed.
pub(super) fn queue(
    operator: Operator,
    planned: &Shape,
    inputs: Vec<Queued>,
) -> (Queued, Option<Queued>) {
    match try_queue(operator, planned, inputs) {
        Ok(results) => results,
        Err(reason) => refuse(reason),
    }
}

fn try_queue(
    operator: Operator,
    planned: &Shape,
    inputs: Vec<Queued>,
) -> Result<(Queued, Option<Queued>), Refusal> {
    let first = inputs.first().ok_or("the operator has no input")?;
    let (client, dtype) = (first.client.clone(), first.dtype);
    // Burn's memory may have the other layout, which is known only when the queue runs. If only that one is refused,
    // the error appears where the result is read.
    let on = device(&client.device().client());
    let layout = Layout::ChannelsFirst;
    let plan = operator.plan(&on, to_dtype(dtype)?, planned, layout).map_err(refusal)?;
    let shape = operator.result(&plan);
    if shape.num_elements() == 0 {
        let indices = operator
            .gives_indices()
            .then(|| Cube::int_zeros(shape.clone(), client.device(), burn_backend::IntDType::I32));
        return Ok((Cube::float_zeros(shape, client.device(), dtype.into()), indices));
    }

    let output = |dtype| TensorIr::uninit(client.create_empty_handle(), shape.clone(), dtype);
    let mut outputs = vec![output(dtype)];
    outputs.extend(operator.gives_indices().then(|| output(BurnType::I32)));
    let inputs: Vec<_> = inputs.into_iter().map(Queued::into_ir).collect();
    let description = CustomOpIr::new(operator.name(), &inputs, &outputs);
    let pending = Pending { operator, planned: planned.clone(), inputs, outputs };
    let results = client.register(StreamId::current(), OperationIr::Custom(description), pending);
    let mut results = results.into_iter();
    let result = results.next().ok_or("Burn gave no tensor for the result")?;
    Ok((result, results.next()))
}

/// An operator in Burn's queue.
#[derive(Debug)]
struct Pending {
    operator: Operator,
    planned: Shape,
    inputs: Vec<TensorIr>,
    outputs: Vec<TensorIr>,
}

impl Operation<FusionCubeRuntime> for Pending {
    fn execute(
        &self,
        handles: &mut HandleContainer<CubeFusionHandle>,
    ) -> Result<(), ExecutionError> {
        self.run(handles).map_err(|reason| {
            ExecutionError::generic(format!("{}: {reason}", self.operator.name()))
        })
    }
}

impl Pending {
    fn run(&self, handles: &mut HandleContainer<CubeFusionHandle>) -> Result<(), Refusal> {
        let operands: Result<Vec<_>, _> =
            self.inputs.iter().map(|input| Operand::new(handles, input)).collect();
        let operands: Vec<Operand> = operands?;
        let like = operands.first().ok_or("the operator has no input")?;
        let layout = layout_of(&operands.iter().collect::<Vec<_>>());
        let on = device(like.client());
        let tensors: Result<Vec<_>, _> =
            operands.iter().map(|operand| operand.tensor(&on, layout)).collect();
        let tensors = tensors?;
        let planned = dims(&self.planned, layout);
        let plan = self.operator.plan(&on, like.dtype(), &planned, layout).map_err(refusal)?;
        let inputs: Vec<_> = tensors.iter().collect();
        let results = self.operator.run(&plan, &inputs).map_err(refusal)?;
        let made = results.into_iter().zip(&self.outputs);
        let made = made.map(|(tensor, out)| Made { tensor, layout, out }).collect();
        register(handles, like, made)
    }
}
