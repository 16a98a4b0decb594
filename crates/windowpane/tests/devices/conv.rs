use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::Index;
use windowpane::geometry::Change;
use windowpane::{
    Activation, Backend, Conv, ConvAlgorithm, ConvPlan, DType, Device, Element, Error,
    FilterLayout, Layout, Precision, Same, Tensor, TileOverrides, Tuned, Window,
};
use windowpane_reference::{Total, conv as reference};
use windowpane_testing::{
    ConvCase, Fill, Flavour, Role, assert_same, assert_totals, assert_totals_tf32, executed,
    on_every_device, on_one_type, proptest,
};

use crate::pool::{Check, devices, ok};

/// The choices that a plan is forced to make; it makes the others itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forced {
    pub(crate) algorithm: Option<ConvAlgorithm>,
    pub(crate) tiling: TileOverrides,
    pub(crate) precision: Precision,
    /// The number of parts of each sum (split-K).
    pub(crate) splits: Option<usize>,
    /// Whether the kernel computes in the other layout than that of the tensors.
    pub(crate) turned: bool,
    /// What else is done with the tensors first.
    pub(crate) change: Option<Change>,
}

impl Forced {
    /// Whether the kernel is forced to compute in another arrangement than the tensors have.
    fn rearranges(&self) -> bool {
        self.turned || self.change.is_some()
    }

    fn tf32() -> Self {
        Self { precision: Precision::Tf32, ..Self::default() }
    }

    pub(crate) fn conv(&self, case: &ConvCase) -> Conv {
        case.conv().algorithm(self.algorithm).tile(self.tiling).precision(self.precision)
    }

    /// The plan, or `None` if what is forced does not support this problem or device. A refusal comes when the plan is
    /// made, never later.
    pub(crate) fn planned(
        &self,
        plan: windowpane::Result<ConvPlan>,
    ) -> Result<Option<ConvPlan>, TestCaseError> {
        match plan {
            #[cfg(feature = "kernels")]
            Ok(mut plan) => {
                if self.rearranges() && !rearrange(&mut plan, *self) {
                    return Ok(None);
                }
                if let (Some(kernel), Some(splits)) = (plan.kernel_mut(), self.splits) {
                    kernel.splits = splits;
                }
                Ok(Some(plan))
            }
            // The host does not split sums.
            #[cfg(not(feature = "kernels"))]
            Ok(plan) => Ok((self.splits.is_none() && !self.rearranges()).then_some(plan)),
            Err(Error::NoKernel { .. } | Error::NoTile { .. }) => Ok(None),
            #[cfg(feature = "kernels")]
            Err(Error::Plan { .. }) if self.tiling != TileOverrides::default() => Ok(None),
            // A precision is never replaced silently: a device without it refuses.
            Err(Error::PrecisionUnsupported { precision, .. }) if precision == self.precision => {
                Ok(None)
            }
            // SEMANTICS 8: refused if the driver would end the loops early.
            Err(Error::LoopLimit { .. }) => Ok(None),
            Err(error) => Err(TestCaseError::fail(error.to_string())),
        }
    }

    /// SEMANTICS 7: within the bound of the requested precision.
    fn assert<T: Element>(&self, found: &[T], expected: &[Total]) -> Check {
        match self.precision {
            Precision::Tf32 => assert_totals_tf32(found, expected),
            _ => assert_totals(found, expected),
        }
    }
}

impl From<Option<ConvAlgorithm>> for Forced {
    fn from(algorithm: Option<ConvAlgorithm>) -> Self {
        Self { algorithm, ..Self::default() }
    }
}

/// Makes a plan compute in the forced form, if a kernel can.
#[cfg(feature = "kernels")]
fn rearrange(plan: &mut ConvPlan, forced: Forced) -> bool {
    use windowpane::kernels::Capabilities;
    use windowpane::kernels::conv::{Arrangement, Plan, PlanOptions, Request};
    let (pass, problem) = (plan.pass(), *plan.problem());
    let Some(client) = plan.device().client() else { return false };
    let capabilities = match plan.device().backend() {
        Backend::Wgpu => Capabilities::of_wgsl(client),
        _ => Capabilities::of(client),
    };
    let layout = match (forced.turned, problem.layout()) {
        (true, Layout::ChannelsFirst) => Layout::ChannelsLast,
        (true, Layout::ChannelsLast) => Layout::ChannelsFirst,
        (false, own) => own,
    };
    let request = Request { pass, dtype: plan.dtype(), precision: forced.precision };
    let options = PlanOptions {
        algorithm: forced.algorithm.and_then(ConvAlgorithm::kernel),
        arrangement: Some(Arrangement { layout, change: forced.change }),
        ..PlanOptions::default()
    };
    let rearranged = Plan::new(&problem, request, options, &capabilities);
    if let (Some(kernel), Ok(rearranged)) = (plan.kernel_mut(), rearranged) {
        *kernel = rearranged;
        return true;
    }
    false
}

/// The plan's own choice, and every algorithm that a device has.
fn algorithms(device: &Device) -> Vec<Forced> {
    these(device, &ConvAlgorithm::ALL)
}

/// The same in the other layout than that of the tensors; the host has one layout for each problem.
fn turned(device: &Device) -> Vec<Forced> {
    let turned = |forced| Forced { turned: true, ..forced };
    let forced = if device.backend() == Backend::Host { Vec::new() } else { algorithms(device) };
    forced.into_iter().map(turned).collect()
}

/// The same with another change of the tensors, in either layout; the host changes none.
fn changed(device: &Device, change: Change) -> Vec<Forced> {
    let forced = if device.backend() == Backend::Host { Vec::new() } else { algorithms(device) };
    let forms = forced.into_iter().flat_map(|forced| {
        [false, true].map(|turned| Forced { turned, change: Some(change), ..forced })
    });
    forms.collect()
}

/// The plan's own choice for every form without the pixels that windows skip; the host skips them as it is.
fn sampled(device: &Device) -> Vec<Forced> {
    let forms = if device.backend() == Backend::Host { &[][..] } else { &[false, true] };
    let sampled = |turned: &bool| Forced {
        turned: *turned,
        change: Some(Change::Sampled),
        ..Forced::default()
    };
    forms.iter().map(sampled).collect()
}

/// The plan's own choice, and the algorithms for groups of few channels that a device has.
fn special(device: &Device) -> Vec<Forced> {
    use ConvAlgorithm::{Depthwise, Grouped, GroupedMma};
    these(device, &[GroupedMma, Depthwise, Grouped])
}

fn these(device: &Device, algorithms: &[ConvAlgorithm]) -> Vec<Forced> {
    let had = algorithms.iter().copied().filter(|algorithm| has(device, *algorithm));
    [None].into_iter().chain(had.map(Some)).map(Forced::from).collect()
}

/// This algorithm, if the device has it.
fn only(device: &Device, algorithm: ConvAlgorithm) -> Vec<Forced> {
    has(device, algorithm).then(|| Some(algorithm).into()).into_iter().collect()
}

/// The tf32 precision, if the device has it.
fn tf32(device: &Device) -> Vec<Forced> {
    let conv = Conv::new([1, 1]).precision(Precision::Tf32);
    let plan = conv.plan(device, DType::F32, &[1, 8, 8, 16], &[16, 1, 1, 16]);
    plan.is_ok().then(Forced::tf32).into_iter().collect()
}

/// Whether a device has an algorithm: whether it can be planned for one of these problems.
pub(crate) fn has(device: &Device, algorithm: ConvAlgorithm) -> bool {
    let mut groups = [1, 8, 64].into_iter();
    groups.any(|groups| {
        let conv = Conv::new([3, 3]).padding([1, 1]).groups(groups).algorithm(algorithm);
        [DType::F32, DType::F16].into_iter().any(|dtype| {
            conv.plan(device, dtype, &[2, 28, 28, 64], &[64, 3, 3, 64 / groups]).is_ok()
        })
    })
}

/// A tensor of the case, and its elements.
pub(crate) fn tensor<T: Element>(
    device: &Device,
    case: &ConvCase,
    role: Role,
) -> Result<(Tensor, Vec<T>), TestCaseError> {
    let elements = case.elements::<T>(role);
    Ok((ok(Tensor::from_slice(device, &elements, case.dims(role)))?, elements))
}

on_every_device! {
    /// SEMANTICS 6.1 to 6.4 and 7: the sum and its epilogue, within the derived bound.
    fn convolution_is_the_reference(device, case in (ConvCase::any(), any::<Index>()), forced in algorithms(device)) {
        let (case, pick) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_forward(&case, forced))
    }

    /// SEMANTICS 6.5 and 7: the data gradient.
    fn data_gradient_is_the_reference(device, case in (ConvCase::any(), any::<Index>()), forced in algorithms(device)) {
        let (case, pick) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_data(&case, forced))
    }

    /// SEMANTICS 6.5 and 7: the weight gradient and the bias gradient.
    fn weight_gradient_is_the_reference(device, case in (ConvCase::any(), any::<Index>()), forced in algorithms(device)) {
        let (case, pick) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_weight(&case, forced))
    }

    /// All passes with aligned channels, by every algorithm that supports them.
    fn aligned_channels_are_the_reference(device, case in (ConvCase::aligned(), any::<Index>(), 0..3), forced in algorithms(device)) {
        let (case, pick, pass) = case;
        on_one_type!(device, pick, [f32, f16, bf16], check_pass(&case, forced, pass))
    }

    /// Both passes that read filters, of filters with contiguous taps that are transposed in the same call.
    fn filters_with_contiguous_taps_are_transposed(device, case in (ConvCase::contiguous_taps(), any::<Index>(), 0..2), forced in changed(device, Change::FiltersLast)) {
        let (case, pick, pass) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_pass(&case, forced, pass))
    }

    /// All passes with windows of one tap that skip pixels, computed without these.
    fn skipped_pixels_are_left_out(device, case in (ConvCase::skipping(), any::<Index>(), 0..3), forced in sampled(device)) {
        let (case, pick, pass) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_pass(&case, forced, pass))
    }

    /// All passes with windows that are several pixels apart, which step over blocks of pixels. What is infinite reaches
    /// only the sums that it is a term of.
    fn pixels_become_blocks(device, case in (ConvCase::apart(), any::<Index>(), 0..3), forced in changed(device, Change::SpaceToDepth)) {
        let (case, pick, pass) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_pass(&case, forced, pass))
    }

    /// All passes with windows side by side along the last axis, whose pixels are merged.
    fn windows_side_by_side_are_the_reference(device, case in (ConvCase::side_by_side(), any::<Index>(), 0..3), forced in algorithms(device)) {
        let (case, pick, pass) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_pass(&case, forced, pass))
    }

    /// SEMANTICS 6.5 and 7: weight gradients in strict f32 whose factors are split into parts, with and without
    /// split-K, in every tile.
    fn weight_gradients_in_parts_are_the_reference(device, case in (ConvCase::many_windows(), warpgroups(), 1..=4usize), forced in only(device, ConvAlgorithm::Wgmma)) {
        let (case, tiling, splits) = case;
        check_weight::<f32>(device, &case, Forced { tiling, splits: Some(splits), ..forced })
    }

    /// All passes in groups of few channels, by the kernels for such groups.
    fn groups_of_few_channels_are_the_reference(device, case in (ConvCase::few_a_group(), any::<Index>(), 0..3), forced in special(device)) {
        let (case, pick, pass) = case;
        on_one_type!(device, pick, [f32, f16, bf16], check_pass(&case, forced, pass))
    }

    /// All passes in groups whose first channel need not be aligned, by every algorithm, in all layouts and types.
    fn odd_groups_are_the_reference(device, case in (ConvCase::odd_groups(), any::<Index>(), 0..3), forced in algorithms(device)) {
        let (case, pick, pass) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_pass(&case, forced, pass))
    }

    /// All passes computed in the other layout than that of the tensors, which are transposed in the same call.
    fn either_layout_is_computed_in_the_other(device, case in (ConvCase::any(), any::<Index>(), 0..3), forced in turned(device)) {
        let (case, pick, pass) = case;
        on_one_type!(device, pick, [f64, f32, f16, bf16], check_pass(&case, forced, pass))
    }

    /// SEMANTICS 6.3 and 7: aligned channels in tf32.
    fn aligned_channels_in_tf32_are_within_their_bound(device, case in (ConvCase::aligned(), 0..3), forced in tf32(device)) {
        let (case, pass) = case;
        check_pass::<f32>(device, &case, forced, pass)
    }

    /// SEMANTICS 6.3 and 7: tf32, if a device has it, within the bound of rounded factors.
    fn tf32_is_within_its_bound(device, case in (ConvCase::any(), 0..3), forced in tf32(device)) {
        let (case, pass) = case;
        check_pass::<f32>(device, &case, forced, pass)
    }

    /// Tiles of every shape that a device accepts compute the same sums.
    fn any_tile_is_right(device, case in (ConvCase::any(), tile()), forced in only(device, ConvAlgorithm::Simt)) {
        let (case, tiling) = case;
        check_forward::<f32>(device, &case, Forced { tiling, ..forced })
    }

    /// The same on matrix units, in every pass, if a device has them.
    fn any_tile_of_matrix_units_is_right(device, case in (fragmented(), any::<Index>(), fragments(), 0..3), forced in only(device, ConvAlgorithm::Mma)) {
        let (case, pick, tiling, pass) = case;
        let forced = Forced { tiling, ..forced };
        on_one_type!(device, pick, [f16, bf16], check_pass(&case, forced, pass))
    }

    /// The same with warpgroups, where the next tile is loaded while the last one is stored.
    fn any_tile_of_warpgroups_is_right(device, case in (ConvCase::aligned(), any::<Index>(), warpgroups(), 0..3), forced in only(device, ConvAlgorithm::Wgmma)) {
        let (case, pick, tiling, pass) = case;
        let forced = Forced { tiling, ..forced };
        on_one_type!(device, pick, [f16, bf16], check_pass(&case, forced, pass))
    }

    /// The same with banded matrices, for groups of few channels.
    fn any_tile_of_bands_is_right(device, case in (ConvCase::few_a_group(), any::<Index>(), bands(), 0..2), forced in only(device, ConvAlgorithm::GroupedMma)) {
        let (case, pick, bands, pass) = case;
        let forced = Forced { tiling: bands.tiling(&case), ..forced };
        on_one_type!(device, pick, [f16, bf16], check_pass(&case, forced, pass))
    }

    /// SEMANTICS 5.4: ⟨f(x, w), g⟩ = ⟨x, df/dx(g)⟩ = ⟨w, df/dw(g)⟩, exactly, on whole numbers.
    fn gradients_are_adjoint(device, case in ConvCase::any(), forced in algorithms(device)) {
        check_adjoint(device, &case, forced)
    }
}

/// A channels-first layer that is large enough to be transposed for a faster kernel, if a device has one.
#[test]
#[cfg(feature = "kernels")]
fn transposed_layers_are_the_reference() {
    let case = ConvCase {
        batch: 8,
        groups: 1,
        channels: 64,
        filters: 64,
        space: windowpane::Extents::from([28, 28]),
        window: Window::new([3, 3]).padding([1, 1]),
        layout: Layout::ChannelsFirst,
        filter_layout: FilterLayout::Fchw,
        activation: Activation::Relu,
        bias: true,
        residual: true,
        fill: Fill { flavour: Flavour::Mixed, seed: 1 },
    };
    for device in devices() {
        let (x, w) = (case.dims(Role::Input), case.dims(Role::Filter));
        let plan = case.conv().plan(&device, DType::F32, &x, &w);
        let Ok(mut plan) = plan else { continue };
        // Where nothing is transposed there is nothing to check, and the reference takes long.
        if plan.kernel_mut().is_none_or(|kernel| kernel.arrangement.layout == Layout::ChannelsFirst)
        {
            continue;
        }
        for pass in 0..3 {
            check_pass::<f32>(&device, &case, Forced::default(), pass).unwrap();
            check_pass::<bf16>(&device, &case, Forced::default(), pass).unwrap();
        }
    }
}

/// A layer of each form that `wgmma` or `depthwise` treats in its own way. Random problems seldom have these forms.
#[test]
fn layers_of_every_form_are_the_reference() {
    let layer =
        |[groups, channels, filters]: [usize; 3], space: &[usize], window, layout| ConvCase {
            batch: 3,
            groups,
            channels,
            filters,
            space: space.try_into().unwrap(),
            window,
            layout,
            filter_layout: FilterLayout::Fchw,
            activation: Activation::Silu,
            bias: true,
            residual: true,
            fill: Fill { flavour: Flavour::Mixed, seed: 1 },
        };
    let same = |kernel: [usize; 2]| Window::new(kernel).padding(kernel.map(|k| k / 2));
    let (last, first) = (Layout::ChannelsLast, Layout::ChannelsFirst);
    let layers = [
        // One tap: planes of channels-first tensors are matrices.
        layer([1, 48, 72], &[8, 10], Window::new([1, 1]), first),
        layer([1, 72, 30], &[2, 6, 8], Window::new([1, 1, 1]), first),
        // Groups that are multiplied together.
        layer([4, 12, 12], &[9, 8], same([3, 3]), last),
        layer([8, 8, 16], &[7, 9], same([3, 1]).stride([2, 1]), first),
        layer([16, 2, 1], &[6, 9], same([3, 3]), last),
        // Numbers of channels and filters that fill no chunk.
        layer([1, 21, 37], &[9, 8], same([3, 3]).stride([2, 2]), last),
        layer([1, 70, 20], &[11, 7], same([1, 3]), last),
        // Few channels: the taps of a line, or of several lines, are together.
        layer([1, 3, 24], &[17, 19], same([7, 7]).stride([2, 2]), last),
        layer([1, 1, 16], &[5, 9, 8], Window::new([3, 3, 3]).padding([1, 1, 1]), last),
        layer([1, 5, 16], &[12, 20], same([5, 3]).dilation([1, 3]), last),
        // Windows side by side: pixels are merged.
        layer([1, 32, 64], &[6, 8, 10], Window::new([2, 2, 2]).stride([2, 2, 2]), last),
        layer([1, 24, 40], &[9, 12], Window::new([3, 4]).stride([1, 4]).padding([1, 0]), last),
        // One filter a channel: walks down lines, whose depth may be outside, and larger filters.
        layer([44, 1, 1], &[9, 15], same([3, 3]), last),
        layer([22, 1, 1], &[19, 16], same([3, 3]).stride([2, 1]), last),
        layer([6, 1, 1], &[2, 17, 9], Window::new([1, 3, 2]).padding([1, 1, 1]), last),
        layer([44, 1, 1], &[9, 15], same([5, 3]), last),
        // Its data gradients are more products than one launch has, or products of different vectors.
        layer([6, 1, 1], &[13, 14], same([5, 5]).stride([4, 4]), last),
        layer([12, 1, 1], &[8, 14], same([3, 3]).stride([2, 2]), first),
        layer([12, 1, 1], &[7, 9], same([3, 3]).stride([2, 2]), first),
        // Its data gradient has too many weights for shared memory.
        layer([10, 1, 1], &[19, 20], same([9, 9]).stride([3, 3]), last),
        // Some coordinates of its data gradient have no terms.
        layer([12, 1, 1], &[9, 14], same([3, 3]).stride([2, 2]).dilation([2, 2]), last),
        layer([24, 1, 1], &[5, 7, 8], Window::new([3, 3, 3]).padding([1, 1, 1]), first),
        layer([20, 1, 1], &[33], Window::new([9]).padding([4]).stride([2]), last),
    ];
    let [one_tap, .., depthwise] = layers;
    let hwcf =
        [one_tap, depthwise].map(|case| ConvCase { filter_layout: FilterLayout::Hwcf, ..case });
    for device in devices() {
        for case in layers.iter().chain(&hwcf) {
            for algorithm in [ConvAlgorithm::Wgmma, ConvAlgorithm::Depthwise].map(Some) {
                let forced = Forced { algorithm, ..Forced::default() };
                for pass in 0..3 {
                    let checked = check_pass::<f32>(&device, case, forced, pass);
                    assert!(checked.is_ok(), "{device}, {pass}, {forced:?}, {case:?}: {checked:?}");
                    if device.supports(DType::F16) {
                        let checked = check_pass::<f16>(&device, case, forced, pass);
                        assert!(
                            checked.is_ok(),
                            "{device}, {pass}, {forced:?}, {case:?}: {checked:?}"
                        );
                    }
                }
            }
        }
    }
}

/// One of the three passes.
fn check_pass<T: Element>(device: &Device, case: &ConvCase, forced: Forced, pass: i32) -> Check {
    match pass {
        0 => check_forward::<T>(device, case, forced),
        1 => check_data::<T>(device, case, forced),
        _ => check_weight::<T>(device, case, forced),
    }
}

fn check_forward<T: Element>(device: &Device, case: &ConvCase, forced: Forced) -> Check {
    let conv = forced.conv(case);
    let dims = [case.dims(Role::Input), case.dims(Role::Filter)];
    let Some(plan) = forced.planned(conv.plan(device, T::DTYPE, &dims[0], &dims[1]))? else {
        return Ok(());
    };
    executed(plan.algorithm(), T::DTYPE);
    let (x, inputs) = tensor::<T>(device, case, Role::Input)?;
    let (w, weights) = tensor::<T>(device, case, Role::Filter)?;
    let (bias, biases) = tensor::<T>(device, case, Role::Bias)?;
    let (residual, residuals) = tensor::<T>(device, case, Role::Residual)?;
    let (bias, residual) = (case.bias.then_some(&bias), case.residual.then_some(&residual));
    let run = || conv.forward_with_plan(&plan, &x, &w, bias, residual);
    let y = ok(ok(run())?.to_vec::<T>())?;
    let epilogue = reference::Epilogue {
        bias: case.bias.then_some(&*biases),
        residual: case.residual.then_some(&*residuals),
        activation: case.activation,
    };
    forced.assert(&y, &reference::forward_totals(&case.problem(), &inputs, &weights, epilogue))?;
    // SEMANTICS 5.3: the same bits again.
    assert_same(&ok(ok(run())?.to_vec::<T>())?, &y)
}

fn check_data<T: Element>(device: &Device, case: &ConvCase, forced: Forced) -> Check {
    let conv = forced.conv(case);
    let (x, w) = (case.dims(Role::Input), case.dims(Role::Filter));
    let plan = conv.plan_backward_data(device, T::DTYPE, &x, &w);
    let Some(plan) = forced.planned(plan)? else { return Ok(()) };
    executed(plan.algorithm(), T::DTYPE);
    let (dy, gradients) = tensor::<T>(device, case, Role::OutputGradient)?;
    let (w, weights) = tensor::<T>(device, case, Role::Filter)?;
    let run = || conv.backward_data_with_plan(&plan, &dy, &w);
    let dx = ok(ok(run())?.to_vec::<T>())?;
    forced.assert(&dx, &reference::data_gradient_totals(&case.problem(), &gradients, &weights))?;
    // SEMANTICS 5.3: the same bits again.
    assert_same(&ok(ok(run())?.to_vec::<T>())?, &dx)
}

fn check_weight<T: Element>(device: &Device, case: &ConvCase, forced: Forced) -> Check {
    let conv = forced.conv(case);
    let (x, w) = (case.dims(Role::Input), case.dims(Role::Filter));
    let plan = conv.plan_backward_weight(device, T::DTYPE, &x, &w);
    let Some(plan) = forced.planned(plan)? else { return Ok(()) };
    executed(plan.algorithm(), T::DTYPE);
    let (x, inputs) = tensor::<T>(device, case, Role::Input)?;
    // The weight gradient may multiply it by the zeros of the padding: see `ConvCase::elements`.
    let finite = match case.fill.flavour {
        Flavour::Special => Fill { flavour: Flavour::Ties, ..case.fill },
        _ => case.fill,
    };
    let finite = ConvCase { fill: finite, ..*case };
    let (dy, gradients) = tensor::<T>(device, &finite, Role::OutputGradient)?;
    let dw = ok(ok(conv.backward_weight_with_plan(&plan, &dy, &x))?.to_vec::<T>())?;
    forced.assert(&dw, &reference::weight_gradient_totals(&case.problem(), &gradients, &inputs))?;
    // SEMANTICS 5.3: the same bits again.
    let again = ok(ok(conv.backward_weight_with_plan(&plan, &dy, &x))?.to_vec::<T>())?;
    assert_same(&again, &dw)?;

    let (dy, gradients) = tensor::<T>(device, case, Role::OutputGradient)?;
    let db = ok(ok(conv.backward_bias(&dy))?.to_vec::<T>())?;
    assert_totals(&db, &reference::bias_gradient_totals(&case.problem(), &gradients))
}

/// A number of a tile, or `None` for the plan's own.
type Number = Option<u32>;

/// A tiling with the numbers that were drawn: blocks, ratios, and the rest.
fn tiling(
    (block_m, block_n, ratio_m, ratio_n, rest): (
        Number,
        Number,
        Number,
        Number,
        (Number, Number, Number),
    ),
) -> TileOverrides {
    let (block_k, elems_per_thread, stages) = rest;
    TileOverrides { block_m, block_n, block_k, ratio_m, ratio_n, elems_per_thread, stages }
}

/// Some numbers of a tile, small enough that few devices refuse them.
pub(crate) fn tile() -> impl Strategy<Value = TileOverrides> {
    use proptest::option::of;
    use proptest::sample::select;
    let block = || of(select(vec![16u32, 32, 48, 64, 128]));
    let ratio = || of(1..=4u32);
    let rest = (of(select(vec![8u32, 16, 32])), of(select(vec![1u32, 2, 4])), of(1..=2u32));
    (block(), block(), ratio(), ratio(), rest).prop_map(tiling)
}

/// Problems with aligned channels, and others, whose elements are loaded one by one.
pub(crate) fn fragmented() -> impl Strategy<Value = ConvCase> {
    prop_oneof![3 => ConvCase::aligned(), 1 => ConvCase::any()]
}

/// Some numbers of a tile on matrix units, including the largest that are supported.
pub(crate) fn fragments() -> impl Strategy<Value = TileOverrides> {
    use proptest::option::weighted;
    use proptest::sample::select;
    let block = || weighted(0.8, select(vec![32u32, 64, 128, 256]));
    let ratio = || weighted(0.8, select(vec![1u32, 2, 4]));
    let rest = (
        weighted(0.8, select(vec![16u32, 32, 48, 64])),
        weighted(0.5, select(vec![1u32, 4, 8])),
        weighted(0.5, 1..=2u32),
    );
    (block(), block(), ratio(), ratio(), rest).prop_map(tiling)
}

/// A tile of two or three warpgroups, or the plan's own, and sometimes the number of stages.
fn warpgroups() -> impl Strategy<Value = TileOverrides> {
    use proptest::option::weighted;
    use proptest::sample::select;
    let blocks = select(vec![
        (128u32, 64u32, 1u32),
        (128, 128, 1),
        (128, 224, 1),
        (192, 64, 1),
        (256, 64, 2),
        (256, 128, 2),
    ]);
    (weighted(0.7, blocks), weighted(0.2, Just(2u32))).prop_map(|(blocks, stages)| TileOverrides {
        block_m: blocks.map(|it| it.0),
        block_n: blocks.map(|it| it.1),
        ratio_m: blocks.map(|it| it.2),
        stages,
        ..TileOverrides::default()
    })
}

/// The parts of a banded tile, whatever the number of channels in a group.
#[derive(Clone, Copy, Debug)]
struct Bands {
    lines: u32,
    walks: u32,
    chunks: u32,
    members: u32,
}

impl Bands {
    fn tiling(self, case: &ConvCase) -> TileOverrides {
        let Self { lines, walks, chunks, members } = self;
        let windows = 8 / case.channels as u32;
        TileOverrides {
            block_m: Some(14 * windows * lines * walks),
            block_n: Some(8 * chunks),
            ratio_m: Some(lines),
            ratio_n: Some(members),
            ..TileOverrides::default()
        }
    }
}

fn bands() -> impl Strategy<Value = Bands> {
    let lines = proptest::sample::select(vec![4u32, 7, 14]);
    (lines, 1..=3u32, 1..=4u32, 1..=4u32).prop_map(|(lines, walks, chunks, members)| Bands {
        lines,
        walks,
        chunks,
        members,
    })
}

fn check_adjoint(device: &Device, case: &ConvCase, forced: Forced) -> Check {
    let fill = Fill { flavour: Flavour::Ties, ..case.fill };
    let case = ConvCase { fill, activation: Activation::None, ..*case };
    let conv = forced.conv(&case);
    let (x, inputs) = tensor::<f32>(device, &case, Role::Input)?;
    let (w, weights) = tensor::<f32>(device, &case, Role::Filter)?;
    let (dy, gradients) = tensor::<f32>(device, &case, Role::OutputGradient)?;
    let results = [
        conv.forward(&x, &w, None),
        conv.backward_data(&dy, &w, x.dims()),
        conv.backward_weight(&dy, &x),
    ];
    // Not every pass supports the forced algorithm; those that do agree.
    let mut products = vec![];
    for (result, other) in results.into_iter().zip([&gradients, &inputs, &weights]) {
        match result {
            Err(Error::NoKernel { .. } | Error::LoopLimit { .. }) => {}
            result => products.push(inner(&ok(ok(result)?.to_vec::<f32>())?, other)),
        }
    }
    if products.len() > 1 {
        executed(forced.algorithm.map_or("the plan's own", ConvAlgorithm::name), DType::F32);
    }
    match products.iter().all(|product| *product == products[0]) {
        true => Ok(()),
        false => Err(TestCaseError::fail(format!("the inner products are {products:?}"))),
    }
}

pub(crate) fn inner(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// SEMANTICS 6.3: strict f32 on matrix units is as accurate as multiply-add: its error against f64 is at most twice
/// that of a loop of multiply-adds, for random factors, for factors of very different scales, and where sums cancel.
#[test]
fn strict_f32_in_parts_errs_as_multiply_add_does() {
    const CHANNELS: usize = 640;
    const FILTERS: usize = 32;
    let forced = Forced::from(Some(ConvAlgorithm::Wgmma));
    let conv = Conv::new([3, 3]).padding([1, 1]).algorithm(forced.algorithm);
    let (x_dims, w_dims) = ([1, 6, 6, CHANNELS], [FILTERS, 3, 3, CHANNELS]);
    let elements = |dims: [usize; 4], flavour, seed| {
        Fill { flavour, seed }.elements::<f32>(dims.iter().product())
    };
    let random = |dims, seed| elements(dims, Flavour::Mixed, seed);
    // The second half of the channels cancels the sum of the first, all but a little.
    let (mut cancelling, mut pairs) = (random(x_dims, 5), random(w_dims, 6));
    for pixel in cancelling.chunks_exact_mut(CHANNELS) {
        let (first, second) = pixel.split_at_mut(CHANNELS / 2);
        first.iter().zip(second).for_each(|(x, negative)| *negative = -x * (1.0 + 3e-4));
    }
    for tap in pairs.chunks_exact_mut(CHANNELS) {
        let (first, second) = tap.split_at_mut(CHANNELS / 2);
        second.copy_from_slice(first);
    }
    for (name, x, w) in [
        ("random", random(x_dims, 1), random(w_dims, 2)),
        ("scales", elements(x_dims, Flavour::Scales, 3), elements(w_dims, Flavour::Scales, 4)),
        ("cancelling", cancelling, pairs),
    ] {
        for device in devices() {
            let plan = conv.plan(&device, DType::F32, &x_dims, &w_dims);
            let Some(plan) = forced.planned(plan).unwrap() else { continue };
            let tensor = |elements: &[f32], dims: [usize; 4]| {
                Tensor::from_slice(&device, elements, dims).unwrap()
            };
            let y =
                conv.forward_with_plan(&plan, &tensor(&x, x_dims), &tensor(&w, w_dims), None, None);
            let y = y.unwrap().to_vec::<f32>().unwrap();
            let none = reference::Epilogue::NONE;
            let expected = reference::forward_totals(plan.problem(), &x, &w, none);
            assert_totals(&y, &expected).unwrap();
            let plain = multiply_add(&x, &w, CHANNELS, FILTERS);
            let (ours, plain) = (error(&y, &expected), error(&plain, &expected));
            println!("{device}, {name}: {:.3e} of the terms, a loop {:.3e}", ours, plain);
            assert!(ours <= 2.0 * plain, "{device}, {name}: {ours:e} and {plain:e}");
        }
    }
}

/// The same for the weight gradient of a 1×1 convolution over this many pixels. Where sums cancel, the second half of
/// the pixels cancels the sum of the first.
#[test]
fn strict_f32_weight_gradients_err_as_multiply_add_does() {
    const PIXELS: usize = 1152;
    let [channels, filters] = [64, 32];
    let forced = Forced::from(Some(ConvAlgorithm::Wgmma));
    let conv = Conv::new([1, 1]).algorithm(forced.algorithm);
    let (x_dims, dy_dims) = ([1, 48, 24, channels], [1, 48, 24, filters]);
    let elements =
        |channels: usize, flavour, seed| Fill { flavour, seed }.elements::<f32>(PIXELS * channels);
    let random = |channels, seed| elements(channels, Flavour::Mixed, seed);
    let (mut cancelling, mut pairs) = (random(channels, 5), random(filters, 6));
    let (first, second) = cancelling.split_at_mut(PIXELS / 2 * channels);
    first.iter().zip(second).for_each(|(x, negative)| *negative = -x * (1.0 + 3e-4));
    let (first, second) = pairs.split_at_mut(PIXELS / 2 * filters);
    second.copy_from_slice(first);
    let scales = |channels, seed| elements(channels, Flavour::Scales, seed);
    for (name, x, dy) in [
        ("random", random(channels, 1), random(filters, 2)),
        ("scales", scales(channels, 3), scales(filters, 4)),
        ("cancelling", cancelling, pairs),
    ] {
        for device in devices() {
            let w_dims = [filters, 1, 1, channels];
            let plan = conv.plan_backward_weight(&device, DType::F32, &x_dims, &w_dims);
            let Some(plan) = forced.planned(plan).unwrap() else { continue };
            let tensor = |elements: &[f32], dims: [usize; 4]| {
                Tensor::from_slice(&device, elements, dims).unwrap()
            };
            let dw =
                conv.backward_weight_with_plan(&plan, &tensor(&dy, dy_dims), &tensor(&x, x_dims));
            let dw = dw.unwrap().to_vec::<f32>().unwrap();
            let expected = reference::weight_gradient_totals(plan.problem(), &dy, &x);
            assert_totals(&dw, &expected).unwrap();
            let mut plain = vec![0.0f32; filters * channels];
            for (pixel, gradients) in x.chunks_exact(channels).zip(dy.chunks_exact(filters)) {
                for (sums, gradient) in plain.chunks_exact_mut(channels).zip(gradients) {
                    let pairs = sums.iter_mut().zip(pixel);
                    pairs.for_each(|(sum, x)| *sum = x.mul_add(*gradient, *sum));
                }
            }
            let (ours, plain) = (error(&dw, &expected), error(&plain, &expected));
            println!("{device}, {name}: {:.3e} of the terms, a loop {:.3e}", ours, plain);
            assert!(ours <= 2.0 * plain, "{device}, {name}: {ours:e} and {plain:e}");
        }
    }
}

/// Enough tiles that a cube has several, and that warpgroups share those of the last wave: 148 tiles where an H200
/// holds 132 cubes, or 294 tiles of half the rows where it holds 264.
#[test]
fn tiles_that_follow_one_another_are_the_reference() {
    let case = |batch, window: [usize; 2], channels| ConvCase {
        batch,
        groups: 1,
        channels,
        filters: 8,
        space: [133, 141].into(),
        window: Window::new(window),
        layout: Layout::ChannelsLast,
        filter_layout: FilterLayout::Fhwc,
        activation: Activation::None,
        bias: true,
        residual: true,
        fill: Fill { flavour: Flavour::Mixed, seed: 1 },
    };
    let forced = |tiling: &str| Forced {
        tiling: tiling.parse().unwrap(),
        ..Some(ConvAlgorithm::Wgmma).into()
    };
    let large = forced("block_m=256,block_n=128,ratio_m=2");
    let small = forced("block_m=128,block_n=256,ratio_m=1");
    // With one tap and few channels, columns stay in shared memory; a multiprocessor holds two cubes with these tiles.
    let half = forced("block_m=64,block_n=256,ratio_m=1");
    for device in devices().into_iter().filter(|device| device.supports(DType::BF16)) {
        check_forward::<bf16>(&device, &case(2, [1, 3], 8), large).unwrap();
        check_forward::<f16>(&device, &case(1, [1, 1], 16), small).unwrap();
        check_forward::<bf16>(&device, &case(1, [1, 1], 64), half).unwrap();
        check_data::<f16>(&device, &case(1, [1, 1], 16), half).unwrap();
        check_data::<bf16>(&device, &case(1, [1, 3], 8), small).unwrap();
        check_forward::<f32>(&device, &case(1, [1, 3], 24), forced("block_m=128,block_n=128"))
            .unwrap();
    }
}

/// With one tap, columns stay in shared memory: warps rearrange several panels of their rows at once. The last group
/// may have fewer and narrower panels.
#[test]
fn rows_that_are_turned_over_at_once_are_the_reference() {
    let case = |filters| ConvCase {
        batch: 3,
        groups: 1,
        channels: 24,
        filters,
        space: [11, 13].into(),
        window: Window::new([1, 1]),
        layout: Layout::ChannelsLast,
        filter_layout: FilterLayout::Fhwc,
        activation: Activation::None,
        bias: true,
        residual: true,
        fill: Fill { flavour: Flavour::Mixed, seed: 1 },
    };
    let forced = |block_n: u32| Forced {
        tiling: format!("block_m=64,block_n={block_n},ratio_m=1").parse().unwrap(),
        ..Some(ConvAlgorithm::Wgmma).into()
    };
    for device in devices().into_iter().filter(|device| device.supports(DType::BF16)) {
        for (filters, block_n) in [(248, 256), (216, 224), (96, 96), (40, 64), (32, 32)] {
            let forced = forced(block_n);
            check_forward::<bf16>(&device, &case(filters), forced).unwrap();
            // With 32-bit results a row has more panels.
            let tf32 = Forced { precision: Precision::Tf32, ..forced };
            check_forward::<f32>(&device, &case(filters), tf32).unwrap();
        }
    }
}

/// SEMANTICS 7: factors that cannot be split into parts, because they are not finite, too large or too small, give the
/// right weight gradient with every algorithm.
#[test]
fn weight_gradients_of_any_factors_are_the_reference() {
    check_any_factors(1, 40, 57);
    // Pixels of windows that two runs of a line share are infinite.
    check_any_factors(72, 72, 59);
}

/// The same for a number of groups and of filters, with such numbers at every `step`-th pixel.
fn check_any_factors(groups: usize, filters: usize, step: usize) {
    let case = ConvCase {
        batch: 3,
        groups,
        channels: 72,
        filters,
        space: [12, 11].into(),
        window: Window::new([3, 2]),
        layout: Layout::ChannelsLast,
        filter_layout: FilterLayout::Hwcf,
        activation: Activation::None,
        bias: false,
        residual: false,
        fill: Fill { flavour: Flavour::Mixed, seed: 1 },
    };
    let [mut inputs, mut gradients] =
        [Role::Input, Role::OutputGradient].map(|role| case.elements::<f32>(role));
    // Each is in a channel of its own; one channel has only tiny numbers.
    inputs.iter_mut().skip(5).step_by(72).for_each(|x| *x *= 1e-33);
    let none = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-35, -1e-40, 3.395e38];
    for (i, x) in none.into_iter().enumerate() {
        inputs[(step * i + 30) * 72 + 7 * i + 10] = x;
        gradients[(41 * i + 25) * filters + 5 * i + 3] = x;
    }
    for device in devices() {
        let x = Tensor::from_slice(&device, &inputs, case.dims(Role::Input)).unwrap();
        let dy = Tensor::from_slice(&device, &gradients, case.dims(Role::OutputGradient)).unwrap();
        let expected = reference::weight_gradient_totals(&case.problem(), &gradients, &inputs);
        let cut = Forced { splits: Some(3), ..Some(ConvAlgorithm::Wgmma).into() };
        let whole = Forced { splits: Some(1), ..cut };
        let others = ConvAlgorithm::ALL.map(|algorithm| Some(algorithm).into());
        for forced in others.into_iter().chain([whole, cut]) {
            let conv = forced.conv(&case);
            let w = case.dims(Role::Filter);
            let plan = conv.plan_backward_weight(&device, DType::F32, x.dims(), &w);
            let Some(plan) = forced.planned(plan).unwrap() else { continue };
            let dw =
                conv.backward_weight_with_plan(&plan, &dy, &x).unwrap().to_vec::<f32>().unwrap();
            let checked = assert_totals(&dw, &expected);
            assert!(checked.is_ok(), "{device}, {forced:?}: {checked:?}");
        }
    }
}

/// The root mean square error. Errors are relative to the sum of the terms' magnitudes, so that no output outweighs the
/// others.
fn error(found: &[f32], expected: &[Total]) -> f64 {
    let pairs = found.iter().zip(expected);
    let squares =
        pairs.map(|(found, total)| ((f64::from(*found) - total.value) / total.magnitude).powi(2));
    (squares.sum::<f64>() / expected.len() as f64).sqrt()
}

/// A 3×3 convolution of one 6×6 image with padding 1, as a loop of multiply-adds.
fn multiply_add(x: &[f32], w: &[f32], channels: usize, filters: usize) -> Vec<f32> {
    let mut y = Vec::new();
    for (oh, ow) in (0..36).map(|o| (o / 6, o % 6)) {
        for filter in w.chunks_exact(9 * channels).take(filters) {
            let mut sum = 0.0f32;
            for (tap, weights) in filter.chunks_exact(channels).enumerate() {
                let (h, w) = (oh + tap / 3, ow + tap % 3);
                if (1..=6).contains(&h) && (1..=6).contains(&w) {
                    let pixel = &x[((h - 1) * 6 + w - 1) * channels..][..channels];
                    sum = pixel.iter().zip(weights).fold(sum, |sum, (x, w)| x.mul_add(*w, sum));
                }
            }
            y.push(sum);
        }
    }
    y
}

/// A tensor of random numbers, and its elements.
fn filled(device: &Device, dims: &[usize], seed: u64) -> (Tensor, Vec<f32>) {
    let fill = Fill { flavour: Flavour::Mixed, seed };
    let elements = fill.elements::<f32>(dims.iter().product());
    (Tensor::from_slice(device, &elements, dims).unwrap(), elements)
}

/// Split-K in the forward pass and the data gradient: few windows of many channels. The epilogue comes after the parts
/// are added.
#[test]
fn few_long_sums_are_added_in_parts() {
    for device in devices() {
        for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
            let case = ConvCase {
                batch: 1,
                groups: 1,
                channels: 288,
                filters: 288,
                space: [7, 6].into(),
                window: Window::new([3, 3]).padding([1, 1]),
                layout,
                filter_layout: FilterLayout::Fhwc,
                activation: Activation::Silu,
                bias: true,
                residual: true,
                fill: Fill { flavour: Flavour::Mixed, seed: 1 },
            };
            for dtype in [DType::F32, DType::BF16].into_iter().filter(|it| device.supports(*it)) {
                #[cfg(feature = "kernels")]
                {
                    let (x, w) = (case.dims(Role::Input), case.dims(Role::Filter));
                    let mut plan = case.conv().plan(&device, dtype, &x, &w).unwrap();
                    // Warpgroups recompute some sums of split factors, which must then be whole.
                    let splits = match plan.algorithm().name() {
                        "simt" | "mma" => true,
                        "wgmma" => dtype == DType::BF16,
                        _ => false,
                    };
                    if let Some(kernel) = plan.kernel_mut() {
                        assert_eq!(kernel.splits > 1, splits, "{device}: {kernel:?}");
                    }
                }
                for pass in 0..2 {
                    let check = match dtype {
                        DType::F32 => check_pass::<f32>,
                        _ => check_pass::<bf16>,
                    };
                    let checked = check(&device, &case, Forced::default(), pass);
                    assert!(checked.is_ok(), "{device}, {dtype}, {layout:?}: {checked:?}");
                }
            }
        }
    }
}

/// Split-K in the weight gradient: few weights and many windows.
#[test]
fn long_sums_are_added_in_parts() {
    for device in devices() {
        let (x, inputs) = filled(&device, &[3, 41, 29, 3], 1);
        let (dy, gradients) = filled(&device, &[3, 41, 29, 5], 2);
        let conv = Conv::new([3, 2]).padding(Same::Upper);
        let plan = conv.plan_backward_weight(&device, DType::F32, x.dims(), &[5, 3, 2, 3]).unwrap();
        #[cfg(feature = "kernels")]
        if let Some(kernel) = plan.clone().kernel_mut() {
            // A CPU has few threads, and enough sums for them.
            assert!(kernel.splits > 1 || kernel.contiguous, "{device}: {kernel:?}");
        }
        let dw = conv.backward_weight_with_plan(&plan, &dy, &x).unwrap().to_vec::<f32>().unwrap();
        let expected = reference::weight_gradient_totals(plan.problem(), &gradients, &inputs);
        assert_totals(&dw, &expected).unwrap();
        let db = conv.backward_bias(&dy).unwrap().to_vec::<f32>().unwrap();
        let expected = reference::bias_gradient_totals(plan.problem(), &gradients);
        assert_totals(&db, &expected).unwrap();
    }
}

/// SEMANTICS 8: all terms of a long sum are counted, or it is refused if the driver would end the loop early.
#[test]
fn no_term_of_a_long_sum_is_left_out() {
    const MANY: usize = 66_000;
    for device in devices() {
        let ones = |dims: [usize; 3]| {
            Tensor::from_slice(&device, &vec![1.0f32; dims.iter().product()], dims).unwrap()
        };
        let whole = |y: windowpane::Result<Tensor>| match y {
            Ok(y) => {
                let y = y.to_vec::<f32>().unwrap();
                assert!(y.iter().all(|y| *y == MANY as f32), "{device}: {y:?}");
            }
            Err(error) => assert!(matches!(error, Error::LoopLimit { .. }), "{error}"),
        };
        let conv = Conv::new([1]);
        whole(conv.forward(&ones([1, 1, MANY]), &ones([1, 1, MANY]), None));
        whole(conv.backward_data(&ones([1, 2, MANY]), &ones([MANY, 1, 1]), &[1, 2, 1]));
        whole(conv.backward_weight(&ones([1, MANY, 1]), &ones([1, MANY, 1])));
        whole(conv.backward_bias(&ones([1, MANY, 1])));
    }
}

/// SEMANTICS 8: a sum with more terms than a driver's loop may have iterations is split if a kernel can do that, even
/// if there are enough blocks without splitting; other kernels refuse it.
#[test]
fn sums_longer_than_loops_are_cut_or_refused() {
    const MANY: usize = 2 * 65_535;
    // More blocks than half of those that a device has room for, so the plan would not split their sums.
    let (groups, host) = (65, Device::host());
    for device in devices().into_iter().filter(|device| *device != host) {
        let ones = |dims: [usize; 3]| {
            Tensor::from_slice(&device, &vec![1.0f32; dims.iter().product()], dims).unwrap()
        };
        let conv = Conv::new([1]).groups(groups);
        let (wide, many) = ([1, 1, groups * MANY], [groups * MANY, 1, 1]);
        let sums = [
            conv.forward(&ones(wide), &ones([groups, 1, MANY]), None),
            conv.backward_data(&ones(wide), &ones(many), &[1, 1, groups]),
        ];
        for sum in sums {
            match sum {
                Ok(y) => assert_eq!(y.to_vec::<f32>().unwrap(), [MANY as f32; 65], "{device}"),
                Err(Error::LoopLimit { .. }) if device.backend() == Backend::Vulkan => {}
                Err(error) => panic!("{device}: {error}"),
            }
        }
    }
}

/// SEMANTICS 8: kernels that cannot split sums refuse a problem that needs more loop iterations than a driver allows.
/// This does not fail the properties that draw such a problem.
#[test]
fn kernels_that_refuse_long_sums_do_not_fail() {
    let case = ConvCase {
        batch: 1,
        groups: 1,
        channels: 136,
        filters: 8,
        space: [13, 13, 3].into(),
        window: Window::new([13, 13, 3]),
        layout: Layout::ChannelsLast,
        filter_layout: FilterLayout::Fhwc,
        activation: Activation::None,
        bias: false,
        residual: false,
        fill: Fill { flavour: Flavour::Mixed, seed: 1 },
    };
    for device in devices() {
        for algorithm in [None, Some(ConvAlgorithm::Direct), Some(ConvAlgorithm::Simt)] {
            check_forward::<f32>(&device, &case, algorithm.into()).unwrap();
        }
    }
}

/// The search goes beyond the default plan of each kernel, but does not take minutes where compiling is slow.
const TUNED_PLANS: usize = 24;

/// A tuned plan gives the right result. Later plans of its problem follow it; plans of other problems do not.
#[test]
fn tuned_plans_are_right_and_are_followed() {
    for device in devices() {
        // No other test uses these dimensions, because the process remembers tuned plans.
        let (x, inputs) = filled(&device, &[1, 9, 7, 4], 1);
        let (w, weights) = filled(&device, &[8, 3, 3, 4], 2);
        let conv = Conv::new([3, 3]).padding(Same::Upper);
        let plan = |x: &[usize]| conv.plan(&device, DType::F32, x, w.dims()).unwrap();
        let other = plan(&[1, 9, 8, 4]);
        let tuned = plan(x.dims()).tune_at_most(TUNED_PLANS).unwrap();
        assert_eq!(plan(x.dims()), tuned, "{device}");
        assert_eq!(plan(&[1, 9, 8, 4]), other, "{device}");
        let y = conv.forward(&x, &w, None).unwrap().to_vec::<f32>().unwrap();
        let none = reference::Epilogue::NONE;
        let expected = reference::forward_totals(tuned.problem(), &inputs, &weights, none);
        assert_totals(&y, &expected).unwrap();
        let forced = conv.algorithm(ConvAlgorithm::Direct);
        let forced = forced.plan(&device, DType::F32, x.dims(), w.dims()).unwrap();
        let forced = forced.tune_at_most(TUNED_PLANS).unwrap();
        assert_eq!(forced.algorithm(), ConvAlgorithm::Direct);
        assert_eq!(plan(x.dims()), tuned, "{device}: what was forced is not remembered");

        // The entries of another table are followed, except those that no kernel can run.
        let table = Tuned::all().to_string();
        let Some((section, kept)) = line_of(&table, &device, "size=9,7") else {
            assert_eq!(device, Device::host());
            continue;
        };
        let problem = kept.split(" = ").next().unwrap();
        let title = table.lines().next().unwrap();
        let follow = |how: &str| {
            let text = format!("{title}\n{section}\n{problem} = {how}\n");
            text.parse::<Tuned>().unwrap().apply();
            plan(x.dims())
        };
        assert_eq!(follow("direct splits=1").algorithm(), ConvAlgorithm::Direct, "{device}");
        #[cfg(feature = "kernels")]
        {
            let mut turned = follow("direct splits=1 layout=channels-first");
            let layout = turned.kernel_mut().map(|kernel| kernel.arrangement.layout);
            assert_eq!(layout, Some(Layout::ChannelsFirst), "{device}");
            let y = conv.forward(&x, &w, None).unwrap().to_vec::<f32>().unwrap();
            assert_totals(&y, &expected).unwrap();
        }
        let own = conv.plan(&device, DType::F32, &[2, 9, 7, 4], w.dims()).unwrap();
        assert_eq!(follow("direct splits=99999999").algorithm(), own.algorithm(), "{device}");
    }
}

/// Tuned plans of gradients give the right results too, and are kept next to that of the forward pass.
#[test]
fn tuned_gradients_are_right_and_are_followed() {
    for device in devices() {
        // No other test uses these dimensions, because the process remembers tuned plans.
        let (x, inputs) = filled(&device, &[2, 7, 11, 4], 1);
        let (w, weights) = filled(&device, &[8, 3, 2, 4], 2);
        let (dy, gradients) = filled(&device, &[2, 7, 11, 8], 3);
        let conv = Conv::new([3, 2]).padding(Same::Upper);

        let data = || conv.plan_backward_data(&device, DType::F32, x.dims(), w.dims()).unwrap();
        let tuned = data().tune_at_most(TUNED_PLANS).unwrap();
        assert_eq!(data(), tuned, "{device}");
        let dx = conv.backward_data(&dy, &w, x.dims()).unwrap().to_vec::<f32>().unwrap();
        let expected = reference::data_gradient_totals(tuned.problem(), &gradients, &weights);
        assert_totals(&dx, &expected).unwrap();

        let filter = || conv.plan_backward_weight(&device, DType::F32, x.dims(), w.dims()).unwrap();
        let tuned = filter().tune_at_most(TUNED_PLANS).unwrap();
        assert_eq!(filter(), tuned, "{device}");
        let dw = conv.backward_weight(&dy, &x).unwrap().to_vec::<f32>().unwrap();
        let expected = reference::weight_gradient_totals(tuned.problem(), &gradients, &inputs);
        assert_totals(&dw, &expected).unwrap();

        let table = Tuned::all().to_string();
        for pass in ["data", "filter"] {
            let own = |line: &str| line.starts_with(pass) && line.contains("size=7,11");
            assert!(table.lines().any(own) || device == Device::host(), "{device}: {table}");
        }
    }
}

/// The header of a device's section in a table, and its line with this word.
fn line_of<'a>(table: &'a str, device: &Device, word: &str) -> Option<(&'a str, &'a str)> {
    let head = format!("[{} {}]", device.backend(), device.name());
    let mut lines = table.lines().skip_while(|line| *line != head);
    let section = lines.next()?;
    let line = lines.take_while(|line| !line.starts_with('[')).find(|line| line.contains(word))?;
    Some((section, line))
}

/// A plan runs again into the memory of its last result, with bias and residual, and does not change what a clone
/// holds.
#[test]
fn plans_run_again_over_their_results() {
    for device in devices() {
        let conv = Conv::new([3]).activation(Activation::Relu);
        let (w, _) = filled(&device, &[2, 3, 4], 2);
        let (bias, residual) = (filled(&device, &[2], 3).0, filled(&device, &[1, 5, 2], 4).0);
        let plan = conv.plan(&device, DType::F32, &[1, 7, 4], w.dims()).unwrap();
        let mut results = Vec::new();
        let mut held: Vec<(Tensor, Vec<f32>)> = Vec::new();
        for seed in 5..8 {
            let (x, _) = filled(&device, &[1, 7, 4], seed);
            plan.run(&[&x, &w, &bias, &residual], &mut results).unwrap();
            let y = conv.forward_with_residual(&x, &w, Some(&bias), &residual).unwrap();
            assert_same(&results[0].to_vec::<f32>().unwrap(), &y.to_vec().unwrap()).unwrap();
            held.push((results[0].clone(), y.to_vec().unwrap()));
        }
        for (result, expected) in &held {
            assert_same(&result.to_vec::<f32>().unwrap(), expected).unwrap();
        }
        let refused = plan.run(&[&w], &mut results);
        assert!(matches!(refused, Err(Error::PlanMismatch { .. })), "{device}: {refused:?}");
        let dy = &held[0].0;
        let plan = conv.plan_backward_data(&device, DType::F32, &[1, 7, 4], w.dims()).unwrap();
        plan.run(&[dy, &w], &mut results).unwrap();
        let dx = conv.backward_data(dy, &w, &[1, 7, 4]).unwrap();
        assert_same(&results[0].to_vec::<f32>().unwrap(), &dx.to_vec().unwrap()).unwrap();
    }
}

/// A plan runs only the problem that it was made for.
#[test]
fn a_plan_for_something_else_is_refused() {
    for device in devices() {
        let (x, _) = filled(&device, &[1, 7, 6, 2], 1);
        let (w, _) = filled(&device, &[3, 3, 3, 2], 2);
        let conv = Conv::new([3, 3]);
        let plan = conv.plan(&device, DType::F32, x.dims(), w.dims()).unwrap();
        let y = conv.forward_with_plan(&plan, &x, &w, None, None).unwrap();
        let refused = |result: windowpane::Result<Tensor>| {
            assert!(matches!(result, Err(Error::PlanMismatch { .. })), "{device}: {result:?}");
        };
        refused(conv.stride([2, 2]).forward_with_plan(&plan, &x, &w, None, None));
        refused(conv.layout(Layout::ChannelsFirst).forward_with_plan(&plan, &x, &w, None, None));
        refused(conv.backward_data_with_plan(&plan, &y, &w));
        refused(conv.backward_bias_with_plan(&plan, &y));
        refused(conv.forward_with_plan(&plan, &y, &w, None, None));
        refused(conv.forward_with_plan(&plan, &x, &w, Some(&x), None));
        refused(conv.forward_with_plan(&plan, &x, &w, None, Some(&x)));
    }
}

/// Impossible requests are refused with a one-line error that names the numbers.
#[test]
fn what_cannot_be_done_is_refused() {
    for device in devices() {
        let (x, _) = filled(&device, &[1, 5, 4, 6], 1);
        let (w, _) = filled(&device, &[4, 3, 3, 2], 2);
        let error = |result: windowpane::Result<Tensor>| {
            let line = result.expect_err("refused").to_string();
            assert_eq!(line.lines().count(), 1, "{line}");
            line
        };
        let conv = Conv::new([3, 3]);
        assert!(
            error(conv.forward(&x, &w, None)).contains("2 channels but 6 channels with groups = 1")
        );
        assert!(error(conv.groups(4).forward(&x, &w, None)).contains("6, which 4 groups"));
        assert!(error(Conv::new([3, 2]).groups(3).forward(&x, &w, None)).contains("width"));
        assert!(error(conv.groups(0).forward(&x, &w, None)).contains("groups is 0"));
        let tf32 = Conv::new([3, 3]).precision(Precision::Tf32);
        for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::F32) {
            let plan = tf32.plan(&device, dtype, &[1, 5, 4, 6], &[4, 3, 3, 6]);
            assert!(plan.is_err(), "{device} {dtype}: {plan:?}");
        }
        let integers = conv.plan(&device, DType::I32, &[1, 5, 4, 6], &[4, 3, 3, 6]);
        assert!(integers.is_err_and(|error| error.to_string().contains("i32")), "{device}");
    }
}

/// Another batch or image size compiles no new kernel.
///
/// All launches of the process are counted, so the test runs in a process of its own.
#[cfg(feature = "kernels")]
#[test]
fn new_sizes_compile_nothing_new() {
    if !crate::is_alone("conv::new_sizes_compile_nothing_new") {
        return;
    }
    for device in devices().into_iter().filter(|device| device.client().is_some()) {
        for algorithm in ConvAlgorithm::ALL {
            let conv = Conv::new([3, 3]).stride([1, 2]).padding([1, 1]).algorithm(algorithm);
            let convolve = |[n, h, w]: [usize; 3]| {
                let (x, _) = filled(&device, &[n, h, w, 8], 1);
                let (weights, _) = filled(&device, &[16, 3, 3, 8], 2);
                match conv.forward(&x, &weights, None) {
                    Err(Error::NoKernel { .. }) => {}
                    y => y.unwrap().wait().unwrap(),
                }
            };
            let all = cubecl::launched::LaunchedKernels::new();
            let one = cubecl::launched::LaunchedKernels::new();
            convolve([1, 8, 8]);
            let one = one.finish();
            for size in [[5, 8, 8], [2, 31, 17], [1, 64, 9], [7, 20, 3]] {
                convolve(size);
            }
            assert_eq!(all.finish(), one, "{device} {algorithm}: another size, another kernel");
        }
    }
}

/// The properties draw cases only for the algorithms that a device has; this test checks which ones it has.
#[test]
fn every_algorithm_plans_what_it_is_for() {
    for device in devices() {
        let found: Vec<_> = ConvAlgorithm::ALL.into_iter().filter(|it| has(&device, *it)).collect();
        use ConvAlgorithm::{Cpu, Depthwise, Direct, Grouped, GroupedMma, Mma, Simt, Wgmma};
        let expected: &[ConvAlgorithm] = match (device.backend(), device.name()) {
            (Backend::Host, _) => &[Direct],
            (Backend::Cpu, _) => &[Direct, Depthwise, Cpu],
            (Backend::Cuda, name) if name.contains("NVIDIA H") => {
                &[Direct, GroupedMma, Depthwise, Grouped, Simt, Mma, Wgmma]
            }
            // Mesa's software Vulkan is unreliable with shared memory in SPIR-V, so such kernels are not used on it.
            (Backend::Vulkan, _) if device.is_emulated() => &[Direct, Depthwise, Grouped],
            (Backend::Wgpu, _) => &[Direct, Depthwise, Grouped, Simt],
            // Other GPUs may have more.
            _ => &[Direct, Depthwise, Grouped, Simt],
        };
        assert!(expected.iter().all(|it| found.contains(it)), "{device}: {found:?}");
    }
}

/// The shapes of the tutorial that this operator started from, in its layouts and with its strides; and images that are
/// not square, for which the tutorial's own reference is wrong.
#[test]
fn shapes_of_the_tutorial() {
    for device in devices() {
        for (layout, filter_layout) in [
            (Layout::ChannelsLast, FilterLayout::Hwcf),
            (Layout::ChannelsFirst, FilterLayout::Fchw),
        ] {
            for (size, stride) in [([5, 5], 1), ([5, 5], 2), ([5, 9], 1), ([11, 6], 2)] {
                let case = ConvCase {
                    batch: 1,
                    groups: 1,
                    channels: 10,
                    filters: 2,
                    space: size.into(),
                    window: Window::new([3, 3]).stride([stride; 2]),
                    layout,
                    filter_layout,
                    activation: Activation::None,
                    bias: false,
                    residual: false,
                    fill: Fill { flavour: Flavour::Mixed, seed: 1 },
                };
                for algorithm in ConvAlgorithm::ALL.map(Some).into_iter().chain([None]) {
                    for pass in 0..3 {
                        let checked = check_pass::<f32>(&device, &case, algorithm.into(), pass);
                        assert!(checked.is_ok(), "{device}, {case:?}, {algorithm:?}: {checked:?}");
                    }
                }
            }
        }
    }
}
