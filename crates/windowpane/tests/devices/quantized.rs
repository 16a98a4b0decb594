use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::Index;
use windowpane::geometry::Change;
use windowpane::{
    Activation, Backend, Conv, ConvAlgorithm, DType, Device, Element, Error, Layout, PaddingMode,
    QuantizedConv, Tensor, TileOverrides,
};
use windowpane_reference::Total;
use windowpane_reference::conv::{Scaling, activate_total, quantized};
use windowpane_testing::{
    ConvCase, Role, assert_same, assert_totals, executed, on_every_device, on_one_type,
};

use crate::conv::{Forced, fragmented, fragments, tensor, tile};
use crate::pool::{Check, devices, ok};

/// The plan's own choice, and every algorithm that a device has for integers, also in the other layout.
fn algorithms(device: &Device) -> Vec<Forced> {
    let is_host = device.backend() == Backend::Host;
    let all = ConvAlgorithm::ALL.into_iter().filter(|algorithm| has(device, *algorithm));
    let forced = [None].into_iter().chain(all.map(Some)).map(Forced::from);
    let turned = |forced: Forced| [false, true].map(|turned| Forced { turned, ..forced });
    forced.flat_map(turned).filter(|forced| !forced.turned || !is_host).collect()
}

/// The same over blocks of pixels.
fn over_blocks(device: &Device) -> Vec<Forced> {
    let forced = if device.backend() == Backend::Host { Vec::new() } else { algorithms(device) };
    let change = Some(Change::SpaceToDepth);
    forced.into_iter().map(|forced| Forced { change, ..forced }).collect()
}

/// Whether a device has an algorithm for integers.
fn has(device: &Device, algorithm: ConvAlgorithm) -> bool {
    [1, 64].into_iter().any(|groups| {
        let conv = QuantizedConv::new(3).padding(1).groups(groups).algorithm(algorithm);
        conv.plan(device, &[2, 28, 28, 64], &[64, 3, 3, 64 / groups]).is_ok()
    })
}

/// This algorithm, if the device has it for integers.
fn only(device: &Device, algorithm: ConvAlgorithm) -> Vec<Forced> {
    has(device, algorithm).then(|| Some(algorithm).into()).into_iter().collect()
}

/// How the scales and biases are drawn.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    /// Whether scales are powers of two, and biases multiples of 1/2, so that there are ties.
    ties: bool,
    /// The logarithm of the scales.
    size: i32,
}

fn numbers() -> impl Strategy<Value = Numbers> {
    (any::<bool>(), -10..=0).prop_map(|(ties, size)| Numbers { ties, size })
}

impl Numbers {
    /// Scales and biases. Results in `f16` are never subnormal: see SEMANTICS 7.2.
    fn elements(self, case: &ConvCase, dtype: DType) -> [Vec<f32>; 2] {
        let unit = 2f32.powi(self.size);
        let exact = self.ties || dtype == DType::F16;
        let scale = case.elements::<i8>(Role::Bias).into_iter().map(|x| match exact {
            true => unit * if x < 0 { -1.0 } else { 1.0 },
            false => unit * f32::from(x) / 77.0,
        });
        let bias = case.elements::<i8>(Role::OutputGradient).into_iter().map(|x| match exact {
            true => f32::from(x) / 2.0,
            false => f32::from(x) / 3.0,
        });
        let filters = case.problem().filter().count();
        [scale.collect(), bias.chain(std::iter::repeat(1.5)).take(filters).collect()]
    }
}

on_every_device! {
    /// SEMANTICS 6.9: sums are exact, and what follows is rounded as the reference rounds.
    fn quantized_convolution_is_the_reference(device, case in (ConvCase::any(), any::<Index>(), numbers()), forced in algorithms(device)) {
        let (case, pick, numbers) = case;
        on_one_type!(device, pick, [f32, f16, bf16, i8], check(&case, forced, numbers))
    }

    /// The same with aligned channels, whose elements are loaded as vectors.
    fn quantized_aligned_channels_are_the_reference(device, case in (ConvCase::aligned(), any::<Index>(), numbers()), forced in algorithms(device)) {
        let (case, pick, numbers) = case;
        on_one_type!(device, pick, [f32, f16, bf16, i8], check(&case, forced, numbers))
    }

    /// The same with windows that are several pixels apart, over blocks of these.
    fn quantized_pixels_become_blocks(device, case in (ConvCase::apart(), any::<Index>(), numbers()), forced in over_blocks(device)) {
        let (case, pick, numbers) = case;
        on_one_type!(device, pick, [f32, f16, bf16, i8], check(&case, forced, numbers))
    }

    /// The same with any tile, and with sums that are split into parts.
    fn quantized_sums_of_any_tile_are_the_reference(device, case in (ConvCase::any(), any::<Index>(), numbers(), tile(), 1..=3usize), forced in only(device, ConvAlgorithm::Simt)) {
        let (case, pick, numbers, tiling, splits) = case;
        let forced = Forced { tiling, splits: Some(splits), ..forced };
        on_one_type!(device, pick, [f32, f16, bf16, i8], check(&case, forced, numbers))
    }

    /// The same on matrix units, if a device has them for integers.
    fn quantized_sums_of_any_fragments_are_the_reference(device, case in (fragmented(), any::<Index>(), numbers(), fragments(), 1..=3usize), forced in only(device, ConvAlgorithm::Mma)) {
        let (case, pick, numbers, tiling, splits) = case;
        let forced = Forced { tiling, splits: Some(splits), ..forced };
        on_one_type!(device, pick, [f32, f16, bf16, i8], check(&case, forced, numbers))
    }
}

fn check<T: Element>(device: &Device, case: &ConvCase, forced: Forced, numbers: Numbers) -> Check {
    let activation = match (T::DTYPE, case.activation) {
        (DType::I8, Activation::Relu6 | Activation::Gelu | Activation::Silu) => Activation::Relu,
        (_, other) => other,
    };
    let conv = forced.conv(case).activation(activation).quantized().output(T::DTYPE);
    let (x, w) = (case.dims(Role::Input), case.dims(Role::Filter));
    let Some(plan) = forced.planned(conv.plan(device, &x, &w))? else { return Ok(()) };
    let (x, inputs) = tensor::<i8>(device, case, Role::Input)?;
    let (w, weights) = tensor::<i8>(device, case, Role::Filter)?;
    let [scales, biases] = numbers.elements(case, T::DTYPE);
    let vector = |numbers: &[f32]| ok(Tensor::from_slice(device, numbers, [numbers.len()]));
    let (scale, bias) = (vector(&scales)?, vector(&biases)?);
    let bias = case.bias.then_some(&bias);
    let y = match conv.forward_with_plan(&plan, &x, &w, &scale, bias) {
        // The problem has fewer terms than parts.
        #[cfg(feature = "kernels")]
        Err(Error::Plan { .. }) if forced.splits.is_some() => return Ok(()),
        y => ok(ok(y)?.to_vec::<T>())?,
    };
    executed(plan.algorithm(), T::DTYPE);
    let bias = case.bias.then_some(&*biases);
    let scaling = Scaling { scale: &scales, bias, activation };
    if !matches!(activation, Activation::Gelu | Activation::Silu) {
        return assert_same(&y, &quantized::<T>(&case.problem(), &inputs, &weights, scaling));
    }
    // Only the evaluation of these activations is not exact.
    let scaling = Scaling { activation: Activation::None, ..scaling };
    let exact = quantized::<f32>(&case.problem(), &inputs, &weights, scaling).into_iter();
    let total = |value: f32| Total { value: value.into(), magnitude: 0.0, terms: 1 };
    let totals: Vec<_> = exact.map(|value| activate_total(activation, total(value))).collect();
    assert_totals(&y, &totals)
}

/// Sums that an `f32` cannot hold are rounded to nearest, and the largest that are allowed do not wrap around.
#[test]
fn quantized_sums_past_24_bits_are_rounded_once() {
    for device in devices() {
        for (terms, x, w) in [(40_001, 127, 127), (40_003, -128, 127), (131_071, -128, -128)] {
            let scalar = |value: i8, dims: [usize; 3]| {
                let elements = vec![value; dims.iter().product()];
                Tensor::from_slice(&device, &elements, dims).unwrap()
            };
            let (x_tensor, w_tensor) = (scalar(x, [2, 1, terms]), scalar(w, [3, 1, terms]));
            let scale = Tensor::from_slice(&device, &[1.0f32, 0.7, -3.0], [3]).unwrap();
            let conv = QuantizedConv::new(1);
            let y = match conv.forward(&x_tensor, &w_tensor, &scale, None) {
                // SEMANTICS 8: refused if the driver would end the loops early.
                Err(Error::LoopLimit { .. }) => continue,
                y => y.unwrap().to_vec::<f32>().unwrap(),
            };
            let sum = (i32::from(x) * i32::from(w) * terms as i32) as f32;
            let expected = [sum, sum * 0.7, sum * -3.0];
            assert_eq!(y, [expected, expected].concat(), "{device}: {terms} terms");
        }
    }
}

/// Ties go to the even integer on both sides of 0, numbers past the limits saturate, and NaN gives 0.
#[test]
fn quantized_outputs_are_the_nearest_integers() {
    let scales = [0.5f32, -0.5, 1.0, -1.0, f32::NAN, 1e30, f32::INFINITY];
    for device in devices() {
        let inputs: Vec<i8> = (-128..=127).collect();
        let x = Tensor::from_slice(&device, &inputs, [1, 256, 1]).unwrap();
        let w = Tensor::from_slice(&device, &[1i8; 7], [7, 1, 1]).unwrap();
        let scale = Tensor::from_slice(&device, &scales, [7]).unwrap();
        let y = QuantizedConv::new(1).output(DType::I8).forward(&x, &w, &scale, None);
        let y = y.unwrap().to_vec::<i8>().unwrap();
        for (x, y) in inputs.iter().zip(y.chunks(7)) {
            // Infinity times 0 is NaN, which gives 0 too.
            let expected = scales.map(|scale| (f32::from(*x) * scale).round_ties_even() as i8);
            assert_eq!(y, expected, "{device}: {x}");
        }
    }
}

/// The padding modes are those of `Pad`.
#[test]
fn quantized_padding_is_filled_in() {
    for device in devices() {
        let x = Tensor::from_slice(&device, &[1i8, 2, 3, 100], [1, 4, 1]).unwrap();
        let w = Tensor::from_slice(&device, &[1i8, 0, -1], [1, 3, 1]).unwrap();
        let scale = Tensor::from_slice(&device, &[1.0f32], [1]).unwrap();
        for (mode, expected) in [
            (PaddingMode::Zeros, [-2.0, -2.0, -98.0, 3.0]),
            (PaddingMode::Circular, [98.0, -2.0, -98.0, 2.0]),
        ] {
            let conv = Conv::new(3).padding(1).padding_mode(mode).quantized();
            let y = conv.forward(&x, &w, &scale, None).unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), expected, "{device}: {mode}");
        }
    }
}

/// What is refused, with the reason; and plans and tensors that do not belong together.
#[test]
fn quantized_convolutions_that_do_not_exist_are_refused() {
    for device in devices() {
        let x = Tensor::from_slice(&device, &[1i8, 2, 3, 4], [1, 4, 1]).unwrap();
        let w = Tensor::from_slice(&device, &[1i8, 0, -1], [1, 3, 1]).unwrap();
        let floats = w.to_dtype(DType::F32).unwrap();
        let scale = Tensor::from_slice(&device, &[1.0f32], [1]).unwrap();
        let conv = QuantizedConv::new(3);
        let refused = |result: windowpane::Result<Tensor>, part: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(part), "{device}: {error}");
        };
        let run = |conv: QuantizedConv| conv.forward(&x, &w, &scale, None);
        refused(run(conv.output(DType::I32)), "no output of i32");
        refused(run(conv.output(DType::I8).activation(Activation::Gelu)), "unit of its numbers");
        refused(conv.forward(&floats, &w, &scale, None), "input i8 [1, 3, 1]");
        refused(conv.forward(&x, &w, &w, None), "scale f32 [1]");
        refused(conv.forward(&x, &w, &scale, Some(&floats)), "bias f32 [1]");
        refused(Conv::new(3).forward(&x, &w, None), "not defined for i8");
        let plan = conv.plan(&device, x.dims(), w.dims()).unwrap();
        refused(conv.output(DType::I8).forward_with_plan(&plan, &x, &w, &scale, None), "to i8");
        refused(Conv::new(3).forward_with_plan(&plan, &x, &w, None, None), "quantized, to f32");
        let long = QuantizedConv::new(1).plan(&device, &[1, 1, 131_072], &[1, 1, 131_072]);
        let error = long.unwrap_err();
        assert!(error.to_string().contains("131072"), "{device}: {error}");
        // The tile of a kernel that the device may not have.
        let tile = TileOverrides { block_m: Some(7), ..TileOverrides::default() };
        assert!(conv.tile(tile).plan(&device, x.dims(), w.dims()).is_err());
    }
}

/// An empty batch gives an empty output of the right type, and a plan runs again in the same memory.
#[test]
fn quantized_plans_run_again() {
    for device in devices() {
        let w = Tensor::from_slice(&device, &[1i8, -1], [1, 2, 1]).unwrap();
        let scale = Tensor::from_slice(&device, &[2.0f32], [1]).unwrap();
        let bias = Tensor::from_slice(&device, &[0.5f32], [1]).unwrap();
        let conv = QuantizedConv::new(2).output(DType::I8).layout(Layout::ChannelsFirst);
        let empty = Tensor::from_slice(&device, &[] as &[i8], [0, 1, 5]).unwrap();
        let y = conv.forward(&empty, &w, &scale, None).unwrap();
        assert_eq!((y.dims(), y.dtype()), (&[0, 1, 4][..], DType::I8), "{device}");
        let plan = conv.plan(&device, &[1, 1, 5], w.dims()).unwrap();
        assert_eq!(plan.output_dtype(), DType::I8);
        let mut results = Vec::new();
        for elements in [[1i8, 2, 4, 8, 16], [-100, 100, 0, 3, 3]] {
            let x = Tensor::from_slice(&device, &elements, [1, 1, 5]).unwrap();
            plan.run(&[&x, &w, &scale, &bias], &mut results).unwrap();
            let expected: Vec<_> = elements
                .windows(2)
                .map(|pair| {
                    let sum = f32::from(pair[0]) - f32::from(pair[1]);
                    (sum * 2.0 + 0.5).round_ties_even() as i8
                })
                .collect();
            assert_eq!(results[0].to_vec::<i8>().unwrap(), expected, "{device}");
        }
        assert!(plan.run(&[&w, &w], &mut results).is_err());
    }
}
