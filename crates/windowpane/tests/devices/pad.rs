//! Padding in memory, and convolutions with a padding mode, on every device.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use windowpane::{Conv, DType, Device, Element, Error, Pad, PaddingMode, Tensor, Window};
use windowpane_geometry::{Convolution, Padded, Padding};
use windowpane_reference::{conv, pad as reference};
use windowpane_testing::{
    ConvCase, Fill, Flavour, Role, assert_same, assert_totals, executed, on_every_device,
    on_one_type, proptest, rounded_sum,
};

use crate::conv::{inner, tensor};
use crate::pool::{Check, ok};

on_every_device! {
    /// SEMANTICS 1.7: identical bit for bit.
    fn padding_is_the_reference(
        device,
        case in (ConvCase::any(), mode(), select(vec![0.0, -3.3, 1e5, f64::INFINITY, -1e30]), any::<Index>())
    ) {
        let (case, mode, value, pick) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16, i64, i32, u32, i16, u16, i8, u8, bool], check_pad(&case, mode, value))
    }

    /// SEMANTICS 1.7, 5.3 and 7: each gradient is the sum of those of all copies.
    fn padding_gradient_is_the_reference(device, case in (ConvCase::any(), mode(), any::<Index>())) {
        let (case, mode, pick) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_gradient(&case, mode))
    }

    /// SEMANTICS 5.4: ⟨f(x), g⟩ = ⟨x, fᵀ(g)⟩, exactly, on whole numbers.
    fn padding_is_adjoint(device, case in (ConvCase::any(), mode())) {
        let (case, mode) = case;
        let case = ConvCase { fill: Fill { flavour: Flavour::Ties, ..case.fill }, ..case };
        let padded = padded(&case, mode);
        let (x, inputs) = tensor::<f32>(device, &case, Role::Input)?;
        let gradients = case.fill.elements::<f32>(padded.output().elements());
        let dims: Vec<usize> = padded.output().dims(case.layout).collect();
        let dy = ok(Tensor::from_slice(device, &gradients, dims))?;
        let y = ok(ok(pad(&case, mode).forward(&x))?.to_vec::<f32>())?;
        let dx = ok(ok(pad(&case, mode).backward(&dy, x.dims()))?.to_vec::<f32>())?;
        executed(mode, DType::F32);
        let (forward, backward) = (inner(&y, &gradients), inner(&inputs, &dx));
        prop_assert_eq!(forward, backward);
        Ok(())
    }

    /// SEMANTICS 6.7: a convolution with a padding mode is that of the padded input, in every pass.
    fn padded_convolution_is_the_reference(device, case in (ConvCase::any(), mode(), any::<Index>())) {
        let (case, mode, pick) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_conv(&case, mode))
    }
}

fn mode() -> impl Strategy<Value = PaddingMode> {
    select(PaddingMode::ALL.to_vec())
}

/// The padding of a convolution, as a problem of its own.
fn padded(case: &ConvCase, mode: PaddingMode) -> Padded {
    let problem = case.problem();
    Padded::new(problem.input(), problem.grid().padding(), mode, case.layout).unwrap()
}

fn pad(case: &ConvCase, mode: PaddingMode) -> Pad {
    Pad::new(case.problem().grid().padding()).mode(mode).layout(case.layout)
}

fn check_pad<T: Element>(device: &Device, case: &ConvCase, mode: PaddingMode, value: f64) -> Check {
    let (x, elements) = tensor::<T>(device, case, Role::Input)?;
    let y = ok(pad(case, mode).value(value).forward(&x))?;
    executed(mode, T::DTYPE);
    let padded = padded(case, mode);
    prop_assert_eq!(y.dims(), padded.output().dims(case.layout).collect::<Vec<_>>());
    assert_same(&ok(y.to_vec::<T>())?, &reference::pad(&padded, T::from_f64(value), &elements))
}

fn check_gradient<T: Element>(device: &Device, case: &ConvCase, mode: PaddingMode) -> Check {
    let padded = padded(case, mode);
    let elements = case.fill.elements::<T>(padded.output().elements());
    let dims: Vec<usize> = padded.output().dims(case.layout).collect();
    let dy = ok(Tensor::from_slice(device, &elements, dims))?;
    let run = || pad(case, mode).backward(&dy, &case.dims(Role::Input));
    let dx = ok(ok(run())?.to_vec::<T>())?;
    executed(mode, T::DTYPE);
    assert_totals(&dx, &reference::pad_gradient_totals(&padded, &elements))?;
    assert_same(&ok(ok(run())?.to_vec::<T>())?, &dx)
}

fn check_conv<T: Element>(device: &Device, case: &ConvCase, mode: PaddingMode) -> Check {
    let operator = case.conv().padding_mode(mode);
    let (x, inputs) = tensor::<T>(device, case, Role::Input)?;
    let (w, weights) = tensor::<T>(device, case, Role::Filter)?;
    let (bias, biases) = tensor::<T>(device, case, Role::Bias)?;
    // SEMANTICS 6.6: zeros of the padding are multiplied or skipped.
    let fill = match case.fill.flavour {
        Flavour::Special if mode == PaddingMode::Zeros => Flavour::Ties,
        flavour => flavour,
    };
    let finite = ConvCase { fill: Fill { flavour: fill, ..case.fill }, ..*case };
    let (dy, gradients) = tensor::<T>(device, &finite, Role::OutputGradient)?;

    let padded = padded(case, mode);
    let problem = case.problem();
    let window = case.window.padding(Padding::Valid);
    let (filter, groups) = (problem.filter(), problem.groups());
    let layouts = (problem.layout(), problem.filter_layout());
    let problem =
        Convolution::new(padded.output(), filter, &window, groups, layouts.0, layouts.1).unwrap();
    let filled = reference::pad(&padded, T::ZERO, &inputs);

    // SEMANTICS 8: refused if the driver would end the loops early.
    let y = match operator.forward(&x, &w, Some(&bias)) {
        Err(Error::LoopLimit { .. }) => return Ok(()),
        y => ok(ok(y)?.to_vec::<T>())?,
    };
    executed(mode, T::DTYPE);
    let epilogue =
        conv::Epilogue { bias: Some(&*biases), residual: None, activation: case.activation };
    assert_totals(&y, &conv::forward_totals(&problem, &filled, &weights, epilogue))?;

    let dw = ok(ok(operator.backward_weight(&dy, &x))?.to_vec::<T>())?;
    assert_totals(&dw, &conv::weight_gradient_totals(&problem, &gradients, &filled))?;

    let dx = ok(ok(operator.backward_data(&dy, &w, x.dims()))?.to_vec::<T>())?;
    let totals = conv::data_gradient_totals(&problem, &gradients, &weights);
    let copies = reference::copies(&padded);
    let summed = copies.iter().map(|copies| rounded_sum::<T>(copies.iter().map(|o| totals[*o])));
    assert_totals(&dx, &summed.collect::<Vec<_>>())
}

/// A plan with a padding mode says what it fills in, and counts the memory for it.
#[test]
fn plans_say_what_they_fill_in() {
    for device in crate::pool::devices() {
        let conv = Conv::new(3).padding(1);
        let plan = |conv: Conv| conv.plan(&device, DType::F32, &[1, 8, 6, 4], &[2, 3, 3, 4]);
        let zeros = plan(conv).unwrap();
        let mirrored = plan(conv.padding_mode(PaddingMode::Reflect)).unwrap();
        assert!(mirrored.to_string().contains("reflect, from 8×6 to 10×8"), "{mirrored}");
        assert!(!zeros.to_string().contains("from 8×6"), "{zeros}");
        if device.backend() != windowpane::Backend::Host {
            assert!(mirrored.workspace() >= 10 * 8 * 4 * 4, "{mirrored}");
        }
        // Nothing is filled in where there is no padding.
        let none = plan(Conv::new(3).padding_mode(PaddingMode::Circular)).unwrap();
        assert!(!none.to_string().contains("circular"), "{none}");
        // A plan for one mode is not one for another.
        let x = Tensor::random(&device, DType::F32, [1, 8, 6, 4], 1).unwrap();
        let w = Tensor::random(&device, DType::F32, [2, 3, 3, 4], 2).unwrap();
        assert!(conv.forward_with_plan(&mirrored, &x, &w, None, None).is_err());
        // A plan that runs again uses its memory again, and gives the same.
        for pass in [mirrored, conv_data(&device)] {
            let mut results = Vec::new();
            let inputs = match pass.pass() {
                windowpane::Pass::Forward => [x.clone(), w.clone()],
                _ => [Tensor::random(&device, DType::F32, [1, 8, 6, 2], 3).unwrap(), w.clone()],
            };
            let inputs: Vec<_> = inputs.iter().collect();
            pass.run(&inputs, &mut results).unwrap();
            let first = results[0].to_vec::<f32>().unwrap();
            pass.run(&inputs, &mut results).unwrap();
            assert_eq!(results[0].to_vec::<f32>().unwrap(), first, "{device}");
        }
    }
}

fn conv_data(device: &Device) -> windowpane::ConvPlan {
    let conv = Conv::new(3).padding(1).padding_mode(PaddingMode::Circular);
    conv.plan_backward_data(device, DType::F32, &[1, 8, 6, 4], &[2, 3, 3, 4]).unwrap()
}

#[test]
fn wrong_paddings_are_refused() {
    let host = Device::host();
    let x = Tensor::from_slice(&host, &[1i32, 2, 3], [1, 3, 1]).unwrap();
    let pad = Pad::new([(1, 0)]).mode(PaddingMode::Reflect);
    assert_eq!(pad.forward(&x).unwrap().to_vec::<i32>().unwrap(), [2, 1, 2, 3]);
    let dy = Tensor::from_slice(&host, &[1.0f32; 3], [1, 3, 1]).unwrap();
    let message = |result: windowpane::Result<Tensor>| result.unwrap_err().to_string();
    assert!(message(pad.backward(&dy, &[1, 3, 1])).contains("[1, 4, 1]"));
    let whole = Tensor::from_slice(&host, &[1i32; 4], [1, 4, 1]).unwrap();
    assert!(message(pad.backward(&whole, &[1, 3, 1])).contains("is not defined for i32"));
    assert!(message(Pad::new([1, 1]).forward(&x)).contains("axes"));
    let windows = Conv::with_window(Window::adaptive(1)).padding_mode(PaddingMode::Reflect);
    assert!(windows.plan(&host, DType::F32, &[1, 3, 1], &[1, 1, 1]).is_err());
}
