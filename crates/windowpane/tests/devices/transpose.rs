//! Transposed convolution on every device.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::Index;
use windowpane::{
    Activation, Conv, ConvTranspose, DType, Device, Element, Error, Extents, FilterLayout, Layout,
    MaxPool, PaddingMode, Same, Tensor, Window,
};
use windowpane_reference::{Total, conv as reference};
use windowpane_testing::{
    ConvCase, Fill, Flavour, Role, assert_same, assert_totals, executed, on_every_device,
    on_one_type, proptest, rounded_sum,
};

use crate::conv::{inner, tensor};
use crate::pool::{Check, ok};

on_every_device! {
    /// SEMANTICS 6.8 and 7: the sum, then bias and activation.
    fn transposed_convolution_is_the_reference(device, case in (ConvCase::any(), any::<Index>())) {
        let (case, pick) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check(&case))
    }

    /// SEMANTICS 5.4: ⟨f(x, w), g⟩ = ⟨x, df/dx(g)⟩ = ⟨w, df/dw(g)⟩, exactly, on whole numbers.
    fn transposed_gradients_are_adjoint(device, case in ConvCase::any()) {
        check_adjoint(device, &case)
    }
}

/// The operator that turns the output of a case's convolution into its input.
fn operator(case: &ConvCase) -> ConvTranspose {
    let problem = case.problem();
    // With `Same`, the size of the input would follow from that of the output.
    let window = case.window.padding(problem.grid().padding());
    let rank = problem.grid().rank();
    let extra = (0..rank).map(|i| {
        let axis = problem.grid().axis(i);
        let effective = axis.dilation() * (axis.kernel() - 1) + 1;
        (axis.input() + axis.before() + axis.after() - effective) % axis.stride()
    });
    let extra: Vec<usize> = extra.collect();
    ConvTranspose::with_window(window)
        .output_padding(Extents::try_from(&*extra).unwrap())
        .groups(case.groups)
        .layout(case.layout)
        .filter_layout(case.filter_layout)
        .activation(case.activation)
}

fn check<T: Element>(device: &Device, case: &ConvCase) -> Check {
    let operator = operator(case);
    let (x, inputs) = tensor::<T>(device, case, Role::OutputGradient)?;
    let (w, weights) = tensor::<T>(device, case, Role::Filter)?;
    let finite = match case.fill.flavour {
        Flavour::Special => Flavour::Ties,
        flavour => flavour,
    };
    let biases = Fill { flavour: finite, ..case.fill };
    let channels = case.groups * case.channels;
    let biases: Vec<T> = biases.elements(if case.bias { channels } else { 0 });
    let bias = match case.bias {
        true => Some(ok(Tensor::from_slice(device, &biases, [channels]))?),
        false => None,
    };
    let plan = match operator.plan(device, T::DTYPE, x.dims(), w.dims()) {
        // SEMANTICS 8: refused if the driver would end the loops early.
        Err(Error::LoopLimit { .. }) => return Ok(()),
        plan => ok(plan)?,
    };
    executed(plan.algorithm(), T::DTYPE);
    let run = || operator.forward_with_plan(&plan, &x, &w, bias.as_ref());
    let y = ok(run())?;
    prop_assert_eq!(y.dims(), case.dims(Role::Input));
    let y = ok(y.to_vec::<T>())?;
    let totals = reference::data_gradient_totals(&case.problem(), &inputs, &weights);
    if bias.is_none() && case.activation == Activation::None {
        assert_totals(&y, &totals)?;
    } else {
        let shape = case.problem().input();
        let plane = shape.plane();
        let channel = |i: usize| match case.layout {
            Layout::ChannelsLast => i % channels,
            Layout::ChannelsFirst => i / plane % channels,
        };
        let ended = totals.into_iter().enumerate().map(|(i, total)| {
            let bias = biases.get(channel(i)).map(|bias| {
                let value = bias.to_f64();
                Total { value, magnitude: value.abs(), terms: 1 }
            });
            reference::activate_total(
                case.activation,
                rounded_sum::<T>([total].into_iter().chain(bias)),
            )
        });
        assert_totals(&y, &ended.collect::<Vec<_>>())?;
    }
    // SEMANTICS 5.3: the same bits again.
    assert_same(&ok(ok(run())?.to_vec::<T>())?, &y)
}

fn check_adjoint(device: &Device, case: &ConvCase) -> Check {
    let fill = Fill { flavour: Flavour::Ties, ..case.fill };
    let case = ConvCase { fill, activation: Activation::None, ..*case };
    let operator = operator(&case);
    let (x, inputs) = tensor::<f32>(device, &case, Role::OutputGradient)?;
    let (w, weights) = tensor::<f32>(device, &case, Role::Filter)?;
    let (dy, gradients) = tensor::<f32>(device, &case, Role::Input)?;
    let results = [
        operator.forward(&x, &w, None),
        operator.backward_data(&dy, &w),
        operator.backward_weight(&dy, &x),
    ];
    let mut products = vec![];
    for (result, other) in results.into_iter().zip([&gradients, &inputs, &weights]) {
        match result {
            Err(Error::LoopLimit { .. }) => return Ok(()),
            result => products.push(inner(&ok(ok(result)?.to_vec::<f32>())?, other)),
        }
    }
    executed("transposed", DType::F32);
    prop_assert!(products.iter().all(|product| *product == products[0]), "{:?}", products);
    let db = ok(ok(operator.backward_bias(&dy))?.to_vec::<f32>())?;
    prop_assert_eq!(
        f64::from(db.iter().sum::<f32>()),
        inner(&gradients, &vec![1.0; gradients.len()])
    );
    Ok(())
}

/// Two groups, two samples, an output padding, a bias and an activation, computed by hand.
#[test]
fn a_small_example_is_as_by_hand() {
    for device in crate::pool::devices() {
        let tensor =
            |elements: &[f32], dims: &[usize]| Tensor::from_slice(&device, elements, dims).unwrap();
        // Channels first: N, C, W, and C, output channels of a group, WF, as in PyTorch.
        let x = tensor(&[1.0, 2.0, 3.0, 4.0, -1.0, 0.0, 5.0, -6.0], &[2, 2, 2]);
        let w = tensor(&[1.0, -1.0, 2.0, 10.0], &[2, 1, 2]);
        let up = ConvTranspose::new(2)
            .stride(3)
            .output_padding(1)
            .groups(2)
            .layout(Layout::ChannelsFirst)
            .filter_layout(FilterLayout::Fchw);
        let sums = up.forward(&x, &w, None).unwrap();
        assert_eq!(sums.dims(), [2, 2, 6]);
        let expected = [
            [1.0, -1.0, 0.0, 2.0, -2.0, 0.0, 6.0, 30.0, 0.0, 8.0, 40.0, 0.0],
            [-1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 10.0, 50.0, 0.0, -12.0, -60.0, 0.0],
        ];
        assert_eq!(sums.to_vec::<f32>().unwrap(), expected.concat());
        let bias = tensor(&[0.5, -20.0], &[2]);
        let y = up.activation(Activation::Relu).forward(&x, &w, Some(&bias)).unwrap();
        let expected: Vec<f32> = expected
            .concat()
            .iter()
            .enumerate()
            .map(|(i, v)| (v + if i / 6 % 2 == 0 { 0.5 } else { -20.0 }).max(0.0))
            .collect();
        assert_eq!(y.to_vec::<f32>().unwrap(), expected, "{device}");
        let empty = tensor(&[], &[0, 2, 2]);
        assert_eq!(up.forward(&empty, &w, Some(&bias)).unwrap().dims(), [0, 2, 6]);
    }
}

#[test]
fn sizes_follow_from_the_padding() {
    let dims = |up: ConvTranspose| up.output_dims(&[1, 5, 7, 2], &[2, 3, 3, 4]);
    let up = ConvTranspose::new(3).stride(2);
    assert_eq!(dims(up).unwrap(), [1, 11, 15, 4]);
    assert_eq!(dims(up.padding(1).output_padding([0, 1])).unwrap(), [1, 9, 14, 4]);
    assert_eq!(dims(up.padding(Same::Upper)).unwrap(), [1, 10, 14, 4]);
    assert_eq!(dims(up.dilation(3)).unwrap(), [1, 15, 19, 4]);
    assert_eq!(Conv::new(3).stride(2).transposed(), up);
    assert_eq!(up.convolution(), Conv::new(3).stride(2));
}

#[test]
fn what_cannot_be_transposed_is_refused() {
    let message = |up: ConvTranspose| {
        up.plan(&Device::host(), DType::F32, &[1, 5, 1], &[1, 3, 1]).unwrap_err().to_string()
    };
    let up = ConvTranspose::new(3).stride(2);
    assert!(message(up.output_padding(2)).contains("is 2; it must be less than 2, the stride"));
    assert!(message(up.padding(Same::Lower).output_padding(1)).contains("less than 1"));
    assert!(message(up.padding(6)).contains("cover 11"));
    assert!(message(ConvTranspose::with_window(Window::adaptive(2))).contains("adaptive"));
    let mirrored = Conv::new(3).padding(1).padding_mode(PaddingMode::Reflect).transposed();
    assert!(message(mirrored).contains("cannot pad with reflect"));
    let (y, w) = ([1.0f32; 5], [1.0f32; 3]);
    let tensor = |elements: &[f32], dims: &[usize]| {
        Tensor::from_slice(&Device::host(), elements, dims).unwrap()
    };
    let (y, w) = (tensor(&y, &[1, 5, 1]), tensor(&w, &[1, 3, 1]));
    for gradient in [mirrored.backward_data(&y, &w), mirrored.backward_weight(&y, &y)] {
        assert!(matches!(gradient, Err(Error::PaddingMode { .. })), "{gradient:?}");
    }
    assert!(message(ConvTranspose::new([3, 3])).contains("axes"));
    assert!(message(up.stride(usize::MAX)).contains("stride"));
    assert!(message(up.dilation(usize::MAX)).contains("largest allowed"));
}

/// One number is for every axis, whatever their number.
#[test]
fn one_number_is_for_every_axis() {
    let host = Device::host();
    let pool = MaxPool::new(3).stride(2).padding(1);
    let plan = |pool: MaxPool, dims: &[usize]| {
        pool.plan(&host, DType::F32, dims).map(|plan| *plan.pooling())
    };
    let line = plan(pool, &[1, 9, 2]).unwrap();
    assert_eq!(line, plan(MaxPool::new([3]).stride([2]).padding([1]), &[1, 9, 2]).unwrap());
    let image = plan(pool, &[1, 9, 8, 2]).unwrap();
    let each = MaxPool::new([3, 3]).stride([2, 2]).padding([1, 1]);
    assert_eq!(image, plan(each, &[1, 9, 8, 2]).unwrap());
    assert_eq!(image, plan(MaxPool::new([3, 3]).stride(2).padding([1, 1]), &[1, 9, 8, 2]).unwrap());
    let volume = plan(pool, &[1, 9, 8, 7, 2]).unwrap();
    assert_eq!(volume.output().space(), Extents::from([5, 4, 4]));
    assert!(plan(MaxPool::new(3).stride([2, 2]), &[1, 9, 2]).is_err());
    assert!(plan(MaxPool::new([3, 3]), &[1, 9, 2]).is_err());
    let squares = plan(MaxPool::adaptive(2), &[1, 9, 8, 2]).unwrap();
    assert_eq!(squares.output().space(), Extents::from([2, 2]));
    let conv = Conv::new(3).padding(Same::Upper);
    assert_eq!(conv.filter_dims(&[1, 4, 4, 8], &[1, 4, 4, 2]).unwrap(), [8, 3, 3, 2]);
    let plan = conv.plan(&host, DType::F32, &[1, 4, 4, 2], &[8, 3, 3, 2]).unwrap();
    assert_eq!(plan.problem().grid().kernel(), Extents::from([3, 3]));
    let error = conv.plan(&host, DType::F32, &[1, 4, 4, 2], &[8, 3, 1, 2]).unwrap_err();
    assert!(error.to_string().contains("kernel extent of 3 on the width axis"), "{error}");
}
