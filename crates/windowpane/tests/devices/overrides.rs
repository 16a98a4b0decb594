//! Plans whose fields a caller overrides: a launch refuses them, or computes the right result and leaves the memory around
//! its tensors as it was.

use cubecl::client::Client;
use cubecl::server::Handle;
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use windowpane::kernels::conv::Pass;
use windowpane::kernels::device::profiles;
use windowpane::kernels::{Capabilities, PlanError, Target, conv, pool};
use windowpane::{
    Activation, Backend, DType, Device, Divisor, Element, Exponent, Extents, FilterLayout,
    IndexBase, Layout, Precision, Rank, Tensor, Window,
};
use windowpane_geometry::{Extremum, Pooling};
use windowpane_reference::pool::{
    Algorithm as Reference, backward, direct, extremum, extremum_with_indices, lp, mode, rank,
    stochastic, unpool,
};
use windowpane_reference::{Total, conv as reference};
use windowpane_testing::{
    ConvCase, Fill, Flavour, PoolCase, Role, assert_same, assert_totals, assert_totals_tf32,
    executed, on_every_device, proptest,
};

use crate::family::ranks;
use crate::pool::{self as pools, Check, index_base, ok, output_gradient};

/// Calls a check for the element type of this name.
macro_rules! of_its_type {
    ($dtype:expr, $check:ident($($argument:expr),*)) => {
        match $dtype {
            DType::F32 => $check::<f32>($($argument),*),
            DType::F16 => $check::<f16>($($argument),*),
            _ => $check::<bf16>($($argument),*),
        }
    };
}

on_every_device! {
    /// A pooling plan with any numbers in its fields gives the right result or is refused.
    fn pooling_plans_of_any_numbers_are_right_or_refused(device, case in (pooled(), operator(), numbers()); every asked in poolings(device)) {
        let (case, operator, numbers) = case;
        of_its_type!(asked.1, check_pooling(device, &case, operator, asked.0, &numbers))
    }

    /// The same for the gradients of poolings.
    fn gradient_plans_of_any_numbers_are_right_or_refused(device, case in (pooled(), operator(), numbers()); every asked in gradients(device)) {
        let (case, operator, numbers) = case;
        of_its_type!(asked.1, check_gradient(device, &case, operator, asked.0, &numbers))
    }

    /// The same for unpooling and its gradient.
    fn unpooling_plans_of_any_numbers_are_right_or_refused(device, case in (pooled(), index_base(), numbers()); every asked in unpoolings(device)) {
        let (case, base, numbers) = case;
        of_its_type!(asked.1, check_unpooling(device, &case, base, asked.0, &numbers))
    }

    /// The same for convolutions and their gradients.
    fn convolution_plans_of_any_numbers_are_right_or_refused(device, case in (convolved(), numbers()); every asked in convolutions(device)) {
        let ((case, numbers), (kernel, request)) = (case, asked);
        of_its_type!(request.dtype, check_convolution(device, &case, request, kernel, &numbers))
    }
}

/// Any problems, those for which most stencils are, and those by which a device shows its kernels.
fn pooled() -> impl Strategy<Value = PoolCase> {
    let typical = (select(typical_poolings()), Fill::any());
    let typical = typical.prop_map(|(case, fill)| PoolCase { fill, ..case });
    prop_oneof![2 => PoolCase::any(), 1 => pools::kept_planes(), 1 => typical]
}

/// Any problems, those with the channels that most kernels need, and those by which a device shows its kernels.
fn convolved() -> impl Strategy<Value = ConvCase> {
    let typical = (select(typical_convolutions()), Fill::any());
    let typical = typical.prop_map(|(case, fill)| ConvCase { fill, ..case });
    let (aligned, few) = (ConvCase::aligned(), ConvCase::few_a_group());
    prop_oneof![2 => ConvCase::any(), 1 => aligned, 1 => few, 1 => typical]
}

/// Problems that every kernel can compute one of.
fn typical_poolings() -> Vec<PoolCase> {
    let plane = |kernel: usize, stride, padding| {
        let window = Window::new([kernel; 2]).stride([stride; 2]).padding([padding; 2]);
        (32, Extents::from([20, 20]), window)
    };
    let volume = Window::new([3; 3]).stride([2; 3]).padding([1; 3]);
    let volume = (64, Extents::from([4, 6, 6]), volume);
    let all = [plane(3, 1, 1), plane(2, 2, 0), plane(15, 1, 7), plane(20, 20, 0), volume];
    let layouts = [Layout::ChannelsLast, Layout::ChannelsFirst].into_iter();
    let of_layout = |layout| {
        all.map(|(channels, space, window)| {
            let fill = Fill { flavour: Flavour::Mixed, seed: 1 };
            PoolCase { batch: 2, channels, space, window, layout, fill }
        })
    };
    layouts.flat_map(of_layout).collect()
}

/// The same for convolutions.
fn typical_convolutions() -> Vec<ConvCase> {
    let layouts = [Layout::ChannelsLast, Layout::ChannelsFirst].into_iter();
    let of_layout = |layout| {
        [1, 4, 8, 64].map(|groups| ConvCase {
            batch: 1,
            groups,
            channels: 64 / groups,
            filters: 64 / groups,
            space: [9, 16].into(),
            window: Window::new([3, 3]).padding([1, 1]),
            layout,
            filter_layout: FilterLayout::Fhwc,
            activation: Activation::Relu,
            bias: true,
            residual: true,
            fill: Fill { flavour: Flavour::Mixed, seed: 1 },
        })
    };
    layouts.flat_map(of_layout).collect()
}

/// What a device has: f32, and the first of these two types that it supports; nothing on `host`.
fn had<T>(
    device: &Device,
    halves: [DType; 2],
    list: impl Fn(&Capabilities, &[DType]) -> Vec<T>,
) -> Vec<T> {
    let Some((_, capabilities)) = target(device) else { return Vec::new() };
    let half = halves.into_iter().find(|dtype| device.supports(*dtype));
    let types: Vec<_> = [DType::F32].into_iter().chain(half).collect();
    list(&capabilities, &types)
}

fn poolings(device: &Device) -> Vec<(pool::Algorithm, DType)> {
    had(device, [DType::F16, DType::BF16], |device, types| pool_kernels(device, types, false))
}

fn gradients(device: &Device) -> Vec<(pool::Algorithm, DType)> {
    had(device, [DType::F16, DType::BF16], |device, types| pool_kernels(device, types, true))
}

/// Whether it is the gradient, and the type.
fn unpoolings(device: &Device) -> Vec<(bool, DType)> {
    had(device, [DType::F16, DType::BF16], |_, types| {
        types.iter().flat_map(|dtype| [(false, *dtype), (true, *dtype)]).collect()
    })
}

fn convolutions(device: &Device) -> Vec<(conv::Algorithm, conv::Request)> {
    had(device, [DType::BF16, DType::F16], conv_kernels)
}

/// The kernels that can compute a typical pooling, or its gradient.
fn pool_kernels(
    device: &Capabilities,
    types: &[DType],
    is_gradient: bool,
) -> Vec<(pool::Algorithm, DType)> {
    let operators = [
        Operator::Extremum(Extremum::Max, None),
        Operator::Extremum(Extremum::Max, Some(IndexBase::Plane)),
        Operator::Average(Divisor::Valid),
        Operator::Norm(2.0),
        Operator::Rank(Rank::MEDIAN),
        Operator::Mode,
        Operator::Drawn(1),
        Operator::MeanDrawn,
    ];
    let cases = typical_poolings();
    let has = |kernel, dtype| {
        let mut problems = cases.iter().flat_map(|case| operators.map(|operator| (case, operator)));
        problems.any(|(case, operator)| {
            let pooling = case.problem();
            let problem = match is_gradient {
                true => operator.gradient(&pooling, dtype),
                false => pool::Problem::new(&pooling, operator.reduction(), dtype),
            };
            let plan = pool::Plan::with(kernel, problem, device);
            // A gradient, or a norm, has a kernel of its own in place of the one that is named.
            plan.is_ok_and(|plan| plan.algorithm() == kernel)
        })
    };
    let all = pool::Algorithm::ALL.iter();
    let all = all.flat_map(|kernel| types.iter().map(move |dtype| (*kernel, *dtype)));
    all.filter(|(kernel, dtype)| has(*kernel, *dtype)).collect()
}

/// The kernels that can compute a pass of a typical convolution, in these types and in tf32.
fn conv_kernels(device: &Capabilities, types: &[DType]) -> Vec<(conv::Algorithm, conv::Request)> {
    let cases = typical_convolutions();
    let strict = types.iter().map(|dtype| (*dtype, Precision::Strict));
    let products: Vec<_> = strict.chain([(DType::F32, Precision::Tf32)]).collect();
    let passes = [Pass::Forward, Pass::Data, Pass::Weight, Pass::Bias];
    let requests = passes.into_iter().flat_map(|pass| {
        let request = move |(dtype, precision)| conv::Request { pass, dtype, precision };
        products.iter().copied().map(request)
    });
    let requests: Vec<_> = requests.collect();
    let all = conv::Algorithm::ALL.into_iter();
    let all = all.flat_map(|kernel| requests.iter().map(move |request| (kernel, *request)));
    let has = |(kernel, request): &_| {
        cases.iter().any(|case| conv_plan(case, *kernel, *request, device).is_some())
    };
    all.filter(has).collect()
}

/// The plan of a convolution by a kernel, if it can compute it.
fn conv_plan(
    case: &ConvCase,
    kernel: conv::Algorithm,
    request: conv::Request,
    device: &Capabilities,
) -> Option<conv::Plan> {
    let options = conv::PlanOptions { algorithm: Some(kernel), ..conv::PlanOptions::default() };
    conv::Plan::new(&case.problem(), request, options, device).ok()
}

/// A number that a caller may write into a field of a plan, or none, which keeps the plan's own.
type Number = Option<usize>;

fn numbers() -> impl Strategy<Value = [Number; 10]> {
    let sizes = vec![1, 2, 3, 4, 5, 7, 8, 16, 32, 64, 100, 128, 256];
    let extremes = vec![0, 4096, 1 << 31, usize::MAX / 2 + 1, usize::MAX];
    proptest::array::uniform10(prop_oneof![
        12 => Just(None),
        4 => select(sizes).prop_map(Some),
        1 => select(extremes).prop_map(Some)
    ])
}

fn is_even(number: Number, own: bool) -> bool {
    number.map_or(own, |number| number.is_multiple_of(2))
}

/// The client of a device, and its limits.
fn target(device: &Device) -> Option<(&Client, Capabilities)> {
    let client = device.client()?;
    Some(match device.backend() {
        Backend::Wgpu => (client, Capabilities::of_wgsl(client)),
        _ => (client, Capabilities::of(client)),
    })
}

/// A tensor in the middle of a larger buffer.
struct Fenced {
    device: Device,
    dtype: DType,
    /// The whole buffer, and what it held before the launch.
    whole: Handle,
    before: Vec<u8>,
    /// The part of the buffer in which the tensor lies.
    tensor: Handle,
    len: usize,
}

/// The bytes on either side of a tensor, a multiple of every device's alignment.
const MARGIN: usize = 4096;

/// The bytes outside tensors, and of a result that is not written. As numbers they are NaN, or no position, so that a
/// result which they contribute to is wrong.
const CANARY: u8 = 0xff;

impl Fenced {
    /// A tensor with these elements.
    fn holding<T: Element>(device: &Device, elements: &[T]) -> Result<Self, TestCaseError> {
        let host = Tensor::from_slice(&Device::host(), elements, [elements.len()]);
        Self::around(device, T::DTYPE, ok(ok(host)?.to_bytes())?)
    }

    /// A tensor of this length, to be written.
    fn empty(device: &Device, dtype: DType, len: usize) -> Result<Self, TestCaseError> {
        Self::around(device, dtype, vec![CANARY; len * dtype.size()])
    }

    fn around(device: &Device, dtype: DType, bytes: Vec<u8>) -> Result<Self, TestCaseError> {
        let client = device.client().expect("a device with kernels");
        let len = bytes.len();
        let after = len.next_multiple_of(MARGIN) + MARGIN - len;
        let mut before = vec![CANARY; MARGIN];
        before.extend(bytes);
        before.resize(before.len() + after, CANARY);
        let whole = client.create_from_slice(&before);
        // Buffers are bound in words.
        let end = (after - (len.next_multiple_of(4) - len)) as u64;
        let tensor = whole.clone().offset_start(MARGIN as u64).offset_end(end);
        Ok(Self { device: device.clone(), dtype, whole, before, tensor, len })
    }

    fn bytes(&self) -> Result<Vec<u8>, TestCaseError> {
        let words = [self.before.len() / 4];
        let whole = Tensor::from_handle(&self.device, DType::I32, self.whole.clone(), words);
        ok(ok(whole)?.to_bytes())
    }

    /// Checks that nothing in the buffer was written.
    fn is_captured(&self, name: &str) -> Check {
        let found = self.bytes()?;
        let changed = found.iter().zip(&self.before).position(|(found, before)| found != before);
        match changed {
            None => Ok(()),
            Some(at) => {
                let at = at as i64 - MARGIN as i64;
                let message = format!("{name} of {} bytes was written at byte {at}", self.len);
                Err(TestCaseError::fail(message))
            }
        }
    }

    /// The elements of a result; fails if anything around it was written.
    fn written<T: Element>(&self, name: &str) -> Result<Vec<T>, TestCaseError> {
        let found = self.bytes()?;
        let inside = MARGIN..MARGIN + self.len;
        if let Some(at) =
            found.iter().enumerate().position(|(at, byte)| !inside.contains(&at) && *byte != CANARY)
        {
            let at = at as i64 - MARGIN as i64;
            let message = format!("{name} of {} bytes was written at byte {at}", self.len);
            return Err(TestCaseError::fail(message));
        }
        let elements = self.len / self.dtype.size();
        let tensor = Tensor::from_bytes(&Device::host(), self.dtype, &found[inside], [elements]);
        ok(ok(tensor)?.to_vec())
    }
}

/// Canaries around and in the memory that a launch's scratch buffers get. An allocator that hands out freed memory
/// again puts them there; with another one this checks nothing.
struct Scratch([Handle; 2]);

impl Scratch {
    /// Scratch buffers of this many bytes together; none are made for more than a test's problem needs.
    fn new(client: &Client, bytes: usize) -> Option<Self> {
        let canaries = |len: usize| client.create_from_slice(&vec![CANARY; len]);
        (1..1 << 24).contains(&bytes).then(|| {
            let before = canaries(MARGIN);
            let inside = canaries(bytes);
            let after = canaries(MARGIN);
            drop(inside);
            Self([before, after])
        })
    }
}

trait Kept {
    /// Checks that nothing around the scratch buffers was written.
    fn is_captured(&self, client: &Client) -> Check;
}

impl Kept for Option<Scratch> {
    fn is_captured(&self, client: &Client) -> Check {
        for (handle, side) in self.iter().flat_map(|it| it.0.iter().zip(["before", "after"])) {
            let found = client.read_one_unchecked(handle.clone());
            if let Some(at) = found.iter().position(|byte| *byte != CANARY) {
                let message = format!("memory {side} the scratch buffers was written: byte {at}");
                return Err(TestCaseError::fail(message));
            }
        }
        Ok(())
    }
}

/// What a pooling computes of each window.
#[derive(Clone, Copy, Debug)]
enum Operator {
    Extremum(Extremum, Option<IndexBase>),
    Average(Divisor),
    Norm(f64),
    Rank(Rank),
    Mode,
    /// A number drawn by a seed, and its index.
    Drawn(u32),
    MeanDrawn,
}

fn operator() -> impl Strategy<Value = Operator> {
    let extremum = prop_oneof![Just(Extremum::Max), Just(Extremum::Min)];
    let extremum = (extremum, proptest::option::of(index_base()));
    prop_oneof![
        2 => extremum.prop_map(|(extremum, base)| Operator::Extremum(extremum, base)),
        1 => pools::divisor().prop_map(Operator::Average),
        1 => select(vec![1.0, 2.0, 3.0]).prop_map(Operator::Norm),
        1 => ranks().prop_map(Operator::Rank),
        1 => Just(Operator::Mode),
        1 => any::<u32>().prop_map(Operator::Drawn),
        1 => Just(Operator::MeanDrawn),
    ]
}

impl Operator {
    fn reduction(self) -> pool::Reduction {
        use pool::{Output, Reduction};
        match self {
            Self::Extremum(extremum, None) => Reduction::Extremum(extremum, Output::Values),
            Self::Extremum(extremum, Some(base)) => {
                Reduction::Extremum(extremum, Output::ValuesAndIndices(base))
            }
            Self::Average(divisor) => Reduction::Average(divisor),
            Self::Norm(p) => Reduction::Norm(Exponent::new(p)),
            Self::Rank(rank) => Reduction::Rank(rank),
            Self::Mode => Reduction::Mode,
            Self::Drawn(seed) => {
                Reduction::Drawn { seed, output: Output::ValuesAndIndices(IndexBase::Plane) }
            }
            Self::MeanDrawn => Reduction::MeanDrawn,
        }
    }

    fn gradient(self, pooling: &Pooling, dtype: DType) -> pool::Problem<'_> {
        match self {
            Self::Drawn(_) => pool::Gradient::Drawn(IndexBase::Plane).of(pooling, dtype),
            _ => pool::Problem::new(pooling, self.reduction(), dtype).backward(),
        }
    }

    fn has_indices(self) -> bool {
        matches!(self, Self::Extremum(_, Some(_)) | Self::Drawn(_))
    }

    /// The base of its indices, if it has any.
    fn base(self) -> IndexBase {
        match self {
            Self::Extremum(_, base) => base.unwrap_or_default(),
            _ => IndexBase::Plane,
        }
    }

    /// One that a kernel computes: norms, ranks and modes, and stochastic pooling have kernels of their own, which
    /// compute no other operator.
    fn by(self, kernel: pool::Algorithm) -> Self {
        match (kernel, self) {
            (pool::Algorithm::Stochastic, Self::Drawn(_) | Self::MeanDrawn) => self,
            (pool::Algorithm::Stochastic, _) => Self::Drawn(7),
            (pool::Algorithm::Lp, Self::Norm(_)) => self,
            (pool::Algorithm::Rank, Self::Rank(_) | Self::Mode) => self,
            (pool::Algorithm::Lp, _) => Self::Norm(2.0),
            (pool::Algorithm::Rank, _) => Self::Rank(Rank::MEDIAN),
            (_, Self::Norm(_)) => Self::Average(Divisor::Valid),
            (_, Self::Rank(_) | Self::Mode | Self::Drawn(_) | Self::MeanDrawn) => {
                Self::Extremum(Extremum::Min, Some(IndexBase::Plane))
            }
            _ => self,
        }
    }
}

/// A plan with these numbers in its fields; none if that is the plan's own, which other properties are about.
fn changed(
    own: Result<pool::Plan, PlanError>,
    problem: &Pooling,
    numbers: &[Number; 10],
) -> Option<pool::Plan> {
    let own = own.ok()?;
    let mut plan = own;
    change(&mut plan, problem.grid().taps(), numbers);
    (plan != own).then_some(plan)
}

/// Writes numbers into the fields of the plan for windows of so many taps.
fn change(plan: &mut pool::Plan, taps: usize, numbers: &[Number; 10]) {
    use pool::Config;
    let [lanes, units, workspace, unrolled, contiguous, first, second, third, ..] = *numbers;
    let own = &mut plan.settings;
    own.lanes = lanes.unwrap_or(own.lanes);
    own.units = units.map_or(own.units, |units| units as u32);
    own.workspace = workspace.unwrap_or(own.workspace);
    // Drivers take a minute to compile hundreds of taps in a row.
    own.unrolled = is_even(unrolled.filter(|_| taps <= 64), own.unrolled);
    own.contiguous = is_even(contiguous, own.contiguous);
    match &mut plan.config {
        Config::BlockReduce(own) => {
            own.team = first.map_or(own.team, |team| team as u32);
            own.parts = second.unwrap_or(own.parts);
            own.planes = third.unwrap_or(own.planes);
        }
        Config::CpuRows(own) => own.strip = first.unwrap_or(own.strip),
        Config::RegisterTile(own) => {
            own.strip = first.unwrap_or(own.strip);
            own.columns = second.unwrap_or(own.columns);
        }
        Config::GatherTile(own) => own.strip = first.unwrap_or(own.strip),
        Config::Stencil(own) => own.rows = first.unwrap_or(own.rows),
        Config::VanHerk(own) => {
            use pool::van_herk::Config::{Fused, Separate, Turned};
            *own = first.map_or(*own, |number| [Fused, Separate, Turned][number % 3]);
        }
        _ => {}
    }
}

/// Names the plan that failed.
fn by<P: std::fmt::Debug>(plan: &P, check: Check) -> Check {
    check.map_err(|error| TestCaseError::fail(format!("{error}\n{plan:?}")))
}

fn check_pooling<T: Element>(
    device: &Device,
    case: &PoolCase,
    operator: Operator,
    kernel: pool::Algorithm,
    numbers: &[Number; 10],
) -> Check {
    let Some((client, capabilities)) = target(device) else { return Ok(()) };
    let (problem, operator) = (case.problem(), operator.by(kernel));
    let (reduction, dtype) = (operator.reduction(), T::DTYPE);
    let forward = pool::Problem::new(&problem, reduction, dtype);
    let own = pool::Plan::with(kernel, forward, &capabilities);
    let Some(plan) = changed(own, &problem, numbers) else { return Ok(()) };
    let (elements, len) = (case.elements::<T>(), problem.output().elements());
    let x = Fenced::holding(device, &elements)?;
    let (y, winners) =
        (Fenced::empty(device, dtype, len)?, Fenced::empty(device, DType::I32, len)?);
    let indices = operator.has_indices().then_some(&winners.tensor);
    let tensors = pool::Tensors { indices, ..pool::Tensors::new(&x.tensor, &y.tensor) };
    let target = Target { client, device: &capabilities };
    let scratch = Scratch::new(client, plan.settings.workspace);
    if pool::launch(target, forward, &plan, tensors).is_err() {
        return Ok(());
    }
    executed(kernel.name(), dtype);
    let check = || {
        scratch.is_captured(client)?;
        x.is_captured("the input")?;
        let found = y.written::<T>("the output")?;
        match operator {
            Operator::Extremum(which, None) => {
                winners.is_captured("memory without a tensor")?;
                assert_same(&found, &extremum(which, Reference::Direct, &problem, &elements))
            }
            Operator::Extremum(which, Some(base)) => {
                let direct = Reference::Direct;
                let (values, positions) =
                    extremum_with_indices(which, direct, &problem, base, &elements);
                assert_same(&found, &values)?;
                assert_same(&winners.written::<i32>("the indices")?, &positions)
            }
            Operator::Average(divisor) => {
                assert_totals(&found, &direct::average_totals(&problem, divisor, &elements))
            }
            Operator::Norm(p) => {
                assert_totals(&found, &lp::norm_totals(&problem, Exponent::new(p), &elements))
            }
            Operator::Rank(wanted) => assert_same(&found, &rank::rank(&problem, wanted, &elements)),
            Operator::Mode => assert_same(&found, &mode::mode(&problem, &elements)),
            Operator::Drawn(seed) => {
                let (values, positions) =
                    stochastic::drawn(&problem, seed, IndexBase::Plane, &elements);
                assert_same(&found, &values)?;
                assert_same(&winners.written::<i32>("the indices")?, &positions)
            }
            Operator::MeanDrawn => {
                assert_totals(&found, &stochastic::mean_totals(&problem, &elements))
            }
        }
    };
    by(&plan, check())
}

fn check_gradient<T: Element>(
    device: &Device,
    case: &PoolCase,
    operator: Operator,
    kernel: pool::Algorithm,
    numbers: &[Number; 10],
) -> Check {
    let Some((client, capabilities)) = target(device) else { return Ok(()) };
    let (problem, dtype) = (case.problem(), T::DTYPE);
    let operator = match operator {
        // The gradient of what was drawn has the kernels of the gradient of extrema.
        Operator::Drawn(_) if kernel != pool::Algorithm::Lp => operator,
        _ => match operator.by(kernel) {
            Operator::Extremum(which, None) => Operator::Extremum(which, Some(IndexBase::Plane)),
            operator => operator,
        },
    };
    let gradient = operator.gradient(&problem, dtype);
    let own = pool::Plan::with(kernel, gradient, &capabilities);
    let Some(plan) = changed(own, &problem, numbers) else { return Ok(()) };
    let (elements, (gradients, _)) = (case.elements::<T>(), output_gradient::<T>(case));
    let (x, dy) = (Fenced::holding(device, &elements)?, Fenced::holding(device, &gradients)?);
    let dx = Fenced::empty(device, dtype, elements.len())?;
    let target = Target { client, device: &capabilities };
    let positions = match operator {
        Operator::Extremum(which, Some(base)) => {
            extremum_with_indices(which, Reference::Direct, &problem, base, &elements).1
        }
        Operator::Drawn(seed) => stochastic::drawn(&problem, seed, IndexBase::Plane, &elements).1,
        _ => Vec::new(),
    };
    let winners = Fenced::holding(device, &positions)?;
    let indices =
        matches!(operator, Operator::Extremum(..) | Operator::Drawn(_)).then_some(&winners.tensor);
    let pooled = matches!(operator, Operator::Norm(_)).then_some(&x.tensor);
    let tensors = pool::Tensors { read: &dy.tensor, written: &dx.tensor, indices, pooled };
    let scratch = Scratch::new(client, plan.settings.workspace);
    let launched = pool::launch(target, gradient, &plan, tensors);
    if launched.is_err() {
        return Ok(());
    }
    executed(kernel.name(), dtype);
    let check = || {
        scratch.is_captured(client)?;
        x.is_captured("the input")?;
        dy.is_captured("the output's gradient")?;
        winners.is_captured("the indices")?;
        let totals = match operator {
            Operator::Extremum(..) | Operator::Drawn(_) => {
                backward::max_backward_totals(&problem, operator.base(), &gradients, &positions)
                    .map_err(|error| TestCaseError::fail(error.to_string()))?
            }
            Operator::Average(divisor) => {
                backward::average_backward_totals(&problem, divisor, &gradients)
            }
            Operator::Norm(p) => {
                lp::norm_backward_totals(&problem, Exponent::new(p), &gradients, &elements)
            }
            Operator::Rank(_) | Operator::Mode | Operator::MeanDrawn => {
                unreachable!("it has no gradient, and so no plan of one")
            }
        };
        assert_totals(&dx.written::<T>("the input's gradient")?, &totals)
    };
    by(&plan, check())
}

fn check_unpooling<T: Element>(
    device: &Device,
    case: &PoolCase,
    base: IndexBase,
    is_gradient: bool,
    numbers: &[Number; 10],
) -> Check {
    let Some((client, capabilities)) = target(device) else { return Ok(()) };
    let (problem, dtype) = (case.problem(), T::DTYPE);
    let own = pool::Plan::unpool(&problem, base, dtype, &capabilities);
    let Some(plan) = changed(own, &problem, numbers) else { return Ok(()) };
    let elements = case.elements::<T>();
    let (direct, max) = (Reference::Direct, Extremum::Max);
    let (values, positions) = extremum_with_indices(max, direct, &problem, base, &elements);
    let given = if is_gradient { &elements } else { &values };
    let expected = match is_gradient {
        false => unpool::max_unpool(&problem, base, &values, &positions),
        true => unpool::max_unpool_backward(&problem, base, &elements, &positions),
    };
    let expected = expected.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let (from, winners) = (Fenced::holding(device, given)?, Fenced::holding(device, &positions)?);
    let to = Fenced::empty(device, dtype, expected.len())?;
    let target = Target { client, device: &capabilities };
    let buffers = [&from.tensor, &winners.tensor, &to.tensor];
    let scratch = Scratch::new(client, plan.settings.workspace);
    let launched = pool::launch_unpool(target, &problem, base, dtype, &plan, is_gradient, buffers);
    if launched.is_err() {
        return Ok(());
    }
    executed(if is_gradient { "unpool's gradient" } else { "unpool" }, dtype);
    let check = || {
        scratch.is_captured(client)?;
        from.is_captured("the input")?;
        winners.is_captured("the indices")?;
        assert_same(&to.written::<T>("the output")?, &expected)
    };
    by(&plan, check())
}

fn check_convolution<T: Element>(
    device: &Device,
    case: &ConvCase,
    request: conv::Request,
    kernel: conv::Algorithm,
    numbers: &[Number; 10],
) -> Check {
    let Some((client, capabilities)) = target(device) else { return Ok(()) };
    let conv::Request { pass, dtype, precision } = request;
    let problem = case.problem();
    let Some(own) = conv_plan(case, kernel, request, &capabilities) else { return Ok(()) };
    let mut plan = own;
    let [units, splits, contiguous, numbers @ ..] = *numbers;
    plan.units = units.map_or(plan.units, |units| units as u32);
    plan.splits = splits.unwrap_or(plan.splits);
    plan.contiguous = is_even(contiguous, plan.contiguous);
    for (field, number) in tile_numbers(&mut plan.config).into_iter().zip(numbers) {
        *field = number.map_or(*field, |number| number as u32);
    }
    if plan == own || plan.check(&problem, request, &capabilities).is_err() {
        return Ok(());
    }
    // The weight gradient may multiply it by the zeros of the padding: see `ConvCase::elements`.
    let finite = match case.fill.flavour {
        Flavour::Special => Fill { flavour: Flavour::Ties, ..case.fill },
        _ => case.fill,
    };
    let case = ConvCase { fill: finite, ..*case };
    let (first, second, result) = match pass {
        Pass::Forward => (Role::Input, Role::Filter, Role::OutputGradient),
        Pass::Data => (Role::OutputGradient, Role::Filter, Role::Input),
        Pass::Bias => (Role::OutputGradient, Role::Input, Role::Bias),
        _ => (Role::OutputGradient, Role::Input, Role::Filter),
    };
    let [a, b, biases, residuals] =
        [first, second, Role::Bias, Role::Residual].map(|role| case.elements::<T>(role));
    let held = |elements: &[T]| Fenced::holding(device, elements);
    let inputs = [held(&a)?, held(&b)?, held(&biases)?, held(&residuals)?];
    let out = Fenced::empty(device, dtype, case.dims(result).iter().product())?;
    let [x, w, bias, residual] = inputs.each_ref().map(|fenced| &fenced.tensor);
    let operands = match pass {
        Pass::Forward => conv::Operands::Forward {
            x,
            w,
            bias: case.bias.then_some(bias),
            residual: case.residual.then_some(residual),
            activation: case.activation,
            y: &out.tensor,
        },
        Pass::Data => conv::Operands::Data { dy: x, w, dx: &out.tensor },
        Pass::Bias => conv::Operands::Bias { dy: x, db: &out.tensor },
        _ => conv::Operands::Weight { dy: x, x: w, dw: &out.tensor },
    };
    let target = Target { client, device: &capabilities };
    let scratch = Scratch::new(client, plan.workspace(&problem, request, &capabilities));
    if conv::launch(target, &problem, dtype, precision, &plan, operands).is_err() {
        return Ok(());
    }
    executed(format!("{kernel} {pass} {precision}"), dtype);
    let check = || {
        scratch.is_captured(client)?;
        let names = ["the first input", "the second input", "the bias", "the residual"];
        for (fenced, name) in inputs.iter().zip(names) {
            fenced.is_captured(name)?;
        }
        let totals: Vec<Total> = match pass {
            Pass::Forward => {
                let epilogue = reference::Epilogue {
                    bias: case.bias.then_some(&*biases),
                    residual: case.residual.then_some(&*residuals),
                    activation: case.activation,
                };
                reference::forward_totals(&problem, &a, &b, epilogue)
            }
            Pass::Data => reference::data_gradient_totals(&problem, &a, &b),
            Pass::Bias => reference::bias_gradient_totals(&problem, &a),
            _ => reference::weight_gradient_totals(&problem, &a, &b),
        };
        let found = out.written::<T>("the result")?;
        match precision {
            Precision::Tf32 => assert_totals_tf32(&found, &totals),
            _ => assert_totals(&found, &totals),
        }
    };
    by(&plan, check())
}

/// The numbers in a convolution's configuration.
pub(crate) fn tile_numbers(config: &mut conv::Config) -> Vec<&mut u32> {
    match config {
        conv::Config::Cpu(own) => vec![&mut own.rows, &mut own.vectors, &mut own.lanes],
        conv::Config::Depthwise(own) => {
            vec![&mut own.rows, &mut own.lines, &mut own.lanes, &mut own.vectors]
        }
        conv::Config::Grouped(own) => vec![&mut own.rows],
        conv::Config::GroupedMma(conv::grouped_mma::Config { tile, .. })
        | conv::Config::Wgmma(conv::implicit_gemm::wgmma::Config { tile, .. })
        | conv::Config::Mma(conv::implicit_gemm::mma::Config { tile, .. })
        | conv::Config::Simt(conv::implicit_gemm::simt::Config { tile, .. }) => {
            vec![
                &mut tile.block_m,
                &mut tile.block_n,
                &mut tile.block_k,
                &mut tile.ratio_m,
                &mut tile.ratio_n,
                &mut tile.elems_per_thread,
                &mut tile.stages,
            ]
        }
        _ => vec![],
    }
}

/// The typical problems show every kernel: those of a processor, and those of the GPU with the most.
#[test]
fn typical_problems_are_for_every_kernel() {
    let processor = Device::new(Backend::Cpu, 0).ok();
    let processor = processor.as_ref().and_then(target).map(|(_, capabilities)| capabilities);
    let types = [DType::F32, DType::BF16];
    let gpus = [profiles::H200, profiles::APPLE_M3].map(|profile| profile.capabilities);
    let devices: Vec<_> = gpus.into_iter().chain(processor).collect();
    for kernel in pool::Algorithm::ALL {
        let is_shown = devices.iter().any(|device| {
            let both = [false, true].map(|is_gradient| pool_kernels(device, &types, is_gradient));
            both.concat().iter().any(|(shown, _)| shown == kernel)
        });
        assert!(is_shown || *kernel == pool::Algorithm::CpuRows && processor.is_none(), "{kernel}");
    }
    for kernel in conv::Algorithm::ALL {
        let is_shown = devices
            .iter()
            .any(|device| conv_kernels(device, &types).iter().any(|(shown, ..)| *shown == kernel));
        assert!(is_shown || kernel == conv::Algorithm::Cpu && processor.is_none(), "{kernel}");
    }
}

/// Fences find a write and a read outside a tensor, a write beside scratch buffers, and an element that is not written.
#[test]
fn fences_find_what_is_wrong() {
    for device in pools::devices() {
        let Some((client, capabilities)) = target(&device) else { continue };
        let case = PoolCase {
            batch: 1,
            channels: 4,
            space: [8].into(),
            window: windowpane::Window::new([2]).stride([2]),
            layout: windowpane::Layout::ChannelsLast,
            fill: Fill { flavour: Flavour::Mixed, seed: 1 },
        };
        let (problem, elements) = (case.problem(), case.elements::<f32>());
        let reduction = Operator::Average(Divisor::Valid).reduction();
        let forward = pool::Problem::new(&problem, reduction, DType::F32);
        let plan = pool::Plan::new(forward, &capabilities).unwrap();
        let expected = direct::average_totals(&problem, Divisor::Valid, &elements);
        // Of each buffer whether the launch is given all of it, from its start.
        let run = |is_early: [bool; 2]| {
            let x = Fenced::holding(&device, &elements).unwrap();
            let y = Fenced::empty(&device, DType::F32, 16).unwrap();
            let target = Target { client, device: &capabilities };
            let [from, to] = [(&x, is_early[0]), (&y, is_early[1])]
                .map(|(fenced, early)| if early { &fenced.whole } else { &fenced.tensor });
            pool::launch(target, forward, &plan, pool::Tensors::new(from, to)).unwrap();
            x.is_captured("the input").unwrap();
            let found = y.written::<f32>("the output")?;
            assert_totals(&found, &expected)
        };
        assert!(run([false, false]).is_ok(), "{device}");
        let read = run([true, false]).expect_err("canaries are read").to_string();
        assert!(read.contains("NaN"), "{device}: {read}");
        let written = run([false, true]).expect_err("canaries are written").to_string();
        assert!(written.contains("the output of 64 bytes was written at byte -4096"), "{written}");
        // Scratch buffers get the canaries' memory, and a write beside them is found. On CUDA the allocator returns
        // other memory, so the first is not checked there.
        let scratch = Scratch::new(client, 5000);
        let inside = client.read_one_unchecked(client.empty(5000));
        let is_canaries = inside.iter().all(|byte| *byte == CANARY);
        assert!(is_canaries || device.backend() == Backend::Cuda, "{device}");
        scratch.is_captured(client).unwrap();
        for side in &scratch.as_ref().unwrap().0 {
            let target = Target { client, device: &capabilities };
            windowpane::kernels::fill_random(target, DType::F32, side, 4, 1).unwrap();
            assert!(scratch.is_captured(client).is_err(), "{device}");
        }
        let unwritten = Fenced::empty(&device, DType::F32, 16).unwrap();
        let unwritten = assert_totals(&unwritten.written::<f32>("it").unwrap(), &expected);
        assert!(unwritten.is_err(), "{device}");
    }
}
