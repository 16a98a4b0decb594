//! cubek-pool: 2-D max and average pooling, one strategy each.

use cubek_pool::definition::{AvgPoolOptions, MaxPoolOptions, PoolMode};
use cubek_pool::{pool2d, pool2d_backward, pool2d_with_indices, pool2d_with_indices_backward};
use windowpane::{AvgPool, DType, Device, Divisor, MaxPool, PoolPlan, Tensor};

use crate::case::Case;
use crate::contest::{Candidate, Contest, Expected, Memory};
use crate::{Result, text};

pub(crate) fn contest(case: &Case, device: &Device) -> Result<Contest> {
    if case.size.len() != 2 {
        return Err("cubek-pool supports only two dimensions".into());
    }
    let (plan, inputs) = ours(case, device)?;
    let mut results = Vec::new();
    plan.run(&inputs.iter().collect::<Vec<_>>(), &mut results).map_err(text)?;
    let expected = Expected::of(&results[0])?;
    let space: Vec<usize> =
        plan.pooling().output().dims(windowpane::Layout::ChannelsLast).collect();
    let (input, dtype) = (case.input(), case.dtype()?);
    let written = if case.pass == "bwd" { &input } else { &space };
    let output = Memory::new(device, dtype, written)?;
    let x = Memory::random(device, dtype, &input, 1)?;
    let candidate = match &*case.pass {
        "fwd" => forward(case, device, x, output.clone(), &space)?,
        _ => backward(case, device, x, output.clone(), &space)?,
    };
    Ok(Contest {
        bytes: plan.bytes(),
        operations: None,
        output,
        expected,
        candidates: vec![candidate],
    })
}

/// Our result and its inputs.
fn ours(case: &Case, device: &Device) -> Result<(PoolPlan, Vec<Tensor>)> {
    let (dtype, input, window) = (case.dtype()?, case.input(), case.window()?);
    let max = MaxPool::with_window(window);
    let average = AvgPool::with_window(window).divisor(Divisor::Valid);
    let random = |dims: &[usize], seed| Tensor::random(device, dtype, dims, seed);
    let made = match (&*case.kind, &*case.pass) {
        ("maxpool", "fwd") if case.indices => max
            .plan_with_indices(device, dtype, &input)
            .and_then(|plan| Ok((plan, vec![random(&input, 1)?]))),
        ("maxpool", "fwd") => {
            max.plan(device, dtype, &input).and_then(|plan| Ok((plan, vec![random(&input, 1)?])))
        }
        ("maxpool", "bwd") => max.plan_backward(device, dtype, &input).and_then(|plan| {
            let (y, winners) = max.forward_with_indices(&random(&input, 1)?)?;
            Ok((plan, vec![random(y.dims(), 2)?, winners]))
        }),
        ("avgpool", "fwd") => average
            .plan(device, dtype, &input)
            .and_then(|plan| Ok((plan, vec![random(&input, 1)?]))),
        ("avgpool", "bwd") => average.plan_backward(device, dtype, &input).and_then(|plan| {
            let output = plan.pooling().output().dims(windowpane::Layout::ChannelsLast);
            let output: Vec<usize> = output.collect();
            Ok((plan, vec![random(&output, 2)?]))
        }),
        (kind, pass) => return Err(format!("{kind} has no pass `{pass}`")),
    };
    made.map_err(text)
}

fn mode(case: &Case) -> Result<PoolMode<2>> {
    let axes = |numbers: &[usize]| case.axes(numbers);
    let (k, s, p, d) = (axes(&case.k)?, axes(&case.s)?, axes(&case.p)?, axes(&case.d)?);
    Ok(match &*case.kind {
        "maxpool" => MaxPoolOptions::new(k, s, p, d, false).into(),
        _ => AvgPoolOptions::new(k, s, p, false, false).with_dilation(d).into(),
    })
}

fn forward(
    case: &Case,
    device: &Device,
    x: Memory,
    y: Memory,
    space: &[usize],
) -> Result<Candidate> {
    let (mode, client) = (mode(case)?, device.client().ok_or("no kernels")?.clone());
    if !case.indices {
        return Ok(Candidate::new("pool2d", move || {
            pool2d(&client, x.binding(), y.binding(), mode.clone(), x.elem()).map_err(text)
        }));
    }
    let winners = Memory::new(device, DType::I32, space)?;
    Ok(Candidate::new("pool2d_with_indices", move || {
        let (x_, y_, winners) = (x.binding(), y.binding(), winners.binding());
        pool2d_with_indices(&client, x_, y_, winners, mode.clone(), x.elem()).map_err(text)
    }))
}

fn backward(
    case: &Case,
    device: &Device,
    x: Memory,
    dx: Memory,
    space: &[usize],
) -> Result<Candidate> {
    let (mode, client) = (mode(case)?, device.client().ok_or("no kernels")?.clone());
    let dtype = case.dtype()?;
    let dy = Memory::random(device, dtype, space, 2)?;
    if case.kind == "avgpool" {
        return Ok(Candidate::new("pool2d_backward", move || {
            let (x_, dy, dx) = (x.binding(), dy.binding(), dx.binding());
            pool2d_backward(&client, x_, dy, dx, mode.clone(), x.elem()).map_err(text)
        }));
    }
    let (y, winners) =
        (Memory::new(device, dtype, space)?, Memory::new(device, DType::I32, space)?);
    let (x_, y_, out) = (x.binding(), y.binding(), winners.binding());
    pool2d_with_indices(&client, x_, y_, out, mode.clone(), x.elem()).map_err(text)?;
    Ok(Candidate::new("pool2d_with_indices_backward", move || {
        let (x_, dy, dx) = (x.binding(), dy.binding(), dx.binding());
        let (at, mode) = (winners.binding(), mode.clone());
        pool2d_with_indices_backward(&client, x_, dy, at, dx, mode, x.elem(), winners.elem())
            .map_err(text)
    }))
}
