//! Computes an operation of Burn with windowpane, or says why not.
//!
//! Sizes and memory layouts are known only here. Nothing is given to Burn before everything has been launched, so a
//! refusal leaves the operation to Burn's own operator.

use burn_cubecl::fusion::CubeFusionHandle;
use burn_fusion::stream::Context;
use windowpane::geometry::Change;
use windowpane::kernels::conv::Arrangement;
use windowpane::{
    AvgPool, Conv, ConvPlan, ConvTranspose, DType, Device, Divisor, Extents, FilterLayout, Layout,
    MaxPool, Pass, Window,
};

use crate::memory::{
    Made, Operand, Refusal, device, dims, give, layout_of, real, refusal, to_dtype,
};
use crate::operation::{ConvOptions, Operator, Windows};

pub(crate) fn run(
    operator: &Operator<'_>,
    context: &mut Context<CubeFusionHandle>,
) -> Result<(), Refusal> {
    match operator {
        Operator::Conv { options, x, weight, bias, out } => {
            let (x, weight) = (Operand::of(context, x)?, Operand::of(context, weight)?);
            let bias = bias.map(|bias| Operand::of(context, bias)).transpose()?;
            let on = device(x.client());
            let shapes = [&*x.shape, &*weight.shape];
            let planned = Planned::new(options, Pass::Forward, &on, &[&x, &weight], shapes)?;
            let Planned { conv, plan, layout } = planned;
            let bias = bias.map(|bias| bias.flat(&on)).transpose()?;
            let (xs, weights) = (x.tensor(&on, layout)?, weight.tensor(&on, layout)?);
            let y = conv
                .forward_with_plan(&plan, &xs, &weights, bias.as_ref(), None)
                .map_err(refusal)?;
            give(context, &x, vec![Made { tensor: y, layout, out }])
        }
        Operator::ConvData { options, grad, weight, out } => {
            let (grad, weight) = (Operand::of(context, grad)?, Operand::of(context, weight)?);
            let shape = real(context, out)?.shape.to_vec();
            let on = device(grad.client());
            let shapes = [&*shape, &*weight.shape];
            let planned = Planned::new(options, Pass::Data, &on, &[&grad, &weight], shapes)?;
            let Planned { conv, plan, layout } = planned;
            let (dy, w) = (grad.tensor(&on, layout)?, weight.tensor(&on, layout)?);
            let dx = conv.backward_data_with_plan(&plan, &dy, &w).map_err(refusal)?;
            give(context, &grad, vec![Made { tensor: dx, layout, out }])
        }
        Operator::ConvTranspose { options, x, weight, bias, out } => {
            let (x, weight) = (Operand::of(context, x)?, Operand::of(context, weight)?);
            let bias = bias.map(|bias| Operand::of(context, bias)).transpose()?;
            let shape = real(context, out)?.shape.to_vec();
            let on = device(x.client());
            let shapes = [&*shape, &*weight.shape];
            let planned = Planned::new(options, Pass::Data, &on, &[&x, &weight], shapes)?;
            let Planned { conv, plan, layout } = planned;
            let bias = bias.map(|bias| bias.flat(&on)).transpose()?;
            let (xs, weights) = (x.tensor(&on, layout)?, weight.tensor(&on, layout)?);
            let y = ConvTranspose::from(conv)
                .forward_with_plan(&plan, &xs, &weights, bias.as_ref())
                .map_err(refusal)?;
            give(context, &x, vec![Made { tensor: y, layout, out }])
        }
        Operator::ConvWeight { options, grad, x, out } => {
            let (grad, x) = (Operand::of(context, grad)?, Operand::of(context, x)?);
            let shape = real(context, out)?.shape.to_vec();
            let on = device(x.client());
            let shapes = [&*x.shape, &*shape];
            let planned = Planned::new(options, Pass::Weight, &on, &[&x, &grad], shapes)?;
            let Planned { conv, plan, layout } = planned;
            let (dy, xs) = (grad.tensor(&on, layout)?, x.tensor(&on, layout)?);
            let dw = conv.backward_weight_with_plan(&plan, &dy, &xs).map_err(refusal)?;
            give(context, &grad, vec![Made { tensor: dw, layout, out }])
        }
        Operator::ConvBias { grad, out } => {
            let grad = Operand::of(context, grad)?;
            let (on, layout) = (device(grad.client()), layout_of(&[&grad]));
            let one = vec![1; grad.shape.len() - 2];
            let conv = Conv::new(extents(&one)?).layout(layout);
            let db = conv.backward_bias(&grad.tensor(&on, layout)?).map_err(refusal)?;
            give(context, &grad, vec![Made { tensor: db, layout, out }])
        }
        Operator::MaxPool { window, x, out, indices } => {
            let x = Operand::of(context, x)?;
            let (on, layout) = (device(x.client()), layout_of(&[&x]));
            let pool = MaxPool::with_window(*window).layout(layout);
            let Some(indices) = indices else {
                let y = pool.forward(&x.tensor(&on, layout)?).map_err(refusal)?;
                return give(context, &x, vec![Made { tensor: y, layout, out }]);
            };
            expect_i32(to_dtype(real(context, indices)?.dtype)?)?;
            let made = pool.forward_with_indices(&x.tensor(&on, layout)?);
            let (y, winners) = made.map_err(refusal)?;
            let y = Made { tensor: y, layout, out };
            give(context, &x, vec![y, Made { tensor: winners, layout, out: indices }])
        }
        Operator::MaxPoolBackward { window, grad, indices, out } => {
            let (grad, indices) = (Operand::of(context, grad)?, Operand::of(context, indices)?);
            expect_i32(indices.dtype())?;
            let (on, layout) = (device(grad.client()), layout_of(&[&indices, &grad]));
            let shape = dims(&real(context, out)?.shape, layout);
            let (dy, winners) = (grad.tensor(&on, layout)?, indices.tensor(&on, layout)?);
            let pool = MaxPool::with_window(*window).layout(layout);
            let dx = pool.backward(&dy, &winners, &shape).map_err(refusal)?;
            give(context, &grad, vec![Made { tensor: dx, layout, out }])
        }
        Operator::AvgPool { windows, x, out } => {
            let x = Operand::of(context, x)?;
            let (on, layout) = (device(x.client()), layout_of(&[&x]));
            let pool = average(windows, &real(context, out)?.shape)?.layout(layout);
            let y = pool.forward(&x.tensor(&on, layout)?).map_err(refusal)?;
            give(context, &x, vec![Made { tensor: y, layout, out }])
        }
        Operator::AvgPoolBackward { windows, grad, out } => {
            let grad = Operand::of(context, grad)?;
            let (on, layout) = (device(grad.client()), layout_of(&[&grad]));
            let shape = dims(&real(context, out)?.shape, layout);
            let pool = average(windows, &grad.shape)?.layout(layout);
            let dx = pool.backward(&grad.tensor(&on, layout)?, &shape).map_err(refusal)?;
            give(context, &grad, vec![Made { tensor: dx, layout, out }])
        }
    }
}

/// A convolution with its plan, and the layout of its tensors.
struct Planned {
    conv: Conv,
    plan: ConvPlan,
    layout: Layout,
}

impl Planned {
    /// Plans a pass in the layout that its kernel computes in. The tensors may have another one; then they are transposed
    /// once, and the next operation finds its input in the layout that kernels prefer.
    ///
    /// `shapes` are those of the input and of the filters.
    fn new(
        options: &ConvOptions,
        pass: Pass,
        device: &Device,
        operands: &[&Operand],
        shapes: [&[usize]; 2],
    ) -> Result<Self, Refusal> {
        let first = operands.first().ok_or("the convolution has no tensors")?;
        let layout = layout_of(operands);
        let mut planned = Self::in_layout(options, pass, device, first.dtype(), shapes, layout)?;
        // Blocks of pixels are copied from either layout.
        let preferred = planned.plan.kernel_mut().map_or(layout, |kernel| {
            let Arrangement { layout: preferred, change } = kernel.arrangement;
            if change == Some(Change::SpaceToDepth) { layout } else { preferred }
        });
        match preferred == layout {
            true => Ok(planned),
            false => Self::in_layout(options, pass, device, first.dtype(), shapes, preferred),
        }
    }

    fn in_layout(
        options: &ConvOptions,
        pass: Pass,
        device: &Device,
        dtype: DType,
        [x, weight]: [&[usize]; 2],
        layout: Layout,
    ) -> Result<Self, Refusal> {
        let kernel = weight.get(2..).ok_or("the filters have no axes")?;
        let window = Window::new(extents(kernel)?)
            .stride(options.stride)
            .padding(options.padding)
            .dilation(options.dilation);
        // The two layouts of tensors, with filters in place of samples.
        let filter_layout = match layout {
            Layout::ChannelsFirst => FilterLayout::Fchw,
            Layout::ChannelsLast => FilterLayout::Fhwc,
        };
        let conv = Conv::with_window(window)
            .groups(options.groups)
            .layout(layout)
            .filter_layout(filter_layout);
        let (x, weight) = (dims(x, layout), dims(weight, layout));
        let plan = match pass {
            Pass::Data => conv.plan_backward_data(device, dtype, &x, &weight),
            Pass::Weight => conv.plan_backward_weight(device, dtype, &x, &weight),
            _ => conv.plan(device, dtype, &x, &weight),
        };
        Ok(Self { conv, plan: plan.map_err(refusal)?, layout })
    }
}

/// The average of these windows; `out` is the shape of its output.
fn average(windows: &Windows, out: &[usize]) -> Result<AvgPool, Refusal> {
    Ok(match windows {
        Windows::Given(window, divisor) => AvgPool::with_window(*window).divisor(*divisor),
        Windows::Adaptive => {
            let axes = out.get(2..).ok_or("the output has no axes")?;
            AvgPool::adaptive(extents(axes)?).divisor(Divisor::default())
        }
    })
}

fn extents(axes: &[usize]) -> Result<Extents, Refusal> {
    Extents::try_from(axes).map_err(|error| error.to_string())
}

/// Burn's indices may have any integer type, and those of windowpane are `i32`.
fn expect_i32(dtype: DType) -> Result<(), Refusal> {
    match dtype {
        DType::I32 => Ok(()),
        dtype => Err(format!("the indices are {dtype}, and windowpane's are i32")),
    }
}
