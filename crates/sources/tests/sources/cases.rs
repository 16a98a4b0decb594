//! Problems that together need every kernel, each forced through every algorithm that applies.

use std::collections::BTreeSet;

use cubecl::server::Handle;
use windowpane_kernels::conv::{self, Operands, PlanOptions, Request};
use windowpane_kernels::pool::fractional::Draws;
use windowpane_kernels::pool::{self, Gradient, Output, Problem, Reduction, Tensors};
use windowpane_kernels::{
    Activation, Capabilities, Convolution, DType, Divisor, Exponent, Extents, Extremum, Filter,
    FilterLayout, Footprint, Fractional, IndexBase, Layout, Padded, PaddingMode, Pass, Pooling,
    Precision, Rank, Shape, Target, Window, can_cast, cast, copy, difference, fill_random, pad,
    pad_gradient, strided, transpose,
};

use crate::devices::Device;

const BASE: IndexBase = IndexBase::Plane;
const BATCH: usize = 8;
const CHANNELS: usize = 64;
/// The pixels of a row, and the rows of a plane.
const SIDE: usize = 56;

/// Launches all cases on a device. Returns the operators and the algorithms that it launched, as `conv simt: data`.
pub(crate) fn launch_all(device: &Device, capabilities: &Capabilities) -> BTreeSet<String> {
    let target = Target { client: &device.client, device: capabilities };
    let mut dtypes = vec![DType::F32, device.half, DType::U8, DType::U32, DType::Bool];
    dtypes.extend(capabilities.int64.then_some(DType::I64));
    let mut reached = BTreeSet::new();
    for output in [DType::F32, DType::I8] {
        let layout = Layout::ChannelsLast;
        let mut cases = Cases { target, dtype: DType::I8, layout, reached: &mut reached };
        cases.quantized([128, CHANNELS, 1], output);
        cases.quantized([CHANNELS, 1, CHANNELS], output);
    }
    let first = [(DType::F32, Layout::ChannelsFirst)];
    let last = dtypes.iter().map(|dtype| (*dtype, Layout::ChannelsLast));
    for (dtype, layout) in first.into_iter().chain(last) {
        let mut cases = Cases { target, dtype, layout, reached: &mut reached };
        cases.poolings();
        if dtype.is_float() {
            cases.convolutions();
            cases.fractional();
        }
        cases.footprint();
        if layout == Layout::ChannelsLast {
            cases.padding();
            cases.rest(&dtypes);
        }
    }
    reached
}

/// The cases of one type and layout.
struct Cases<'a> {
    target: Target<'a>,
    dtype: DType,
    layout: Layout,
    reached: &'a mut BTreeSet<String>,
}

impl Cases<'_> {
    fn poolings(&mut self) {
        let shape = shape();
        let pooling = |window: Window| Pooling::new(shape, &window, self.layout).unwrap();
        let strided = pooling(Window::new([3, 3]).stride([2, 2]).padding([1, 1]));
        let overlapping = pooling(Window::new([3, 3]).stride([1, 1]).padding([1, 1]));
        let large = pooling(Window::new([9, 9]).stride([1, 1]).padding([4, 4]));
        let whole = pooling(Window::new([SIDE, SIDE]));
        let (values, indices) = (Output::Values, Output::ValuesAndIndices(BASE));
        let average = Reduction::Average(Divisor::Valid);
        for reduction in [
            Reduction::max(values),
            Reduction::max(indices),
            average,
            Reduction::Norm(Exponent::new(2.0)),
            Reduction::Norm(Exponent::new(3.0)),
            Reduction::Rank(Rank::MEDIAN),
            Reduction::Mode,
            Reduction::Drawn { seed: 1, output: indices },
            Reduction::MeanDrawn,
        ] {
            self.reduction(&strided, reduction);
        }
        self.reduction(&overlapping, average);
        self.reduction(&large, Reduction::max(indices));
        self.reduction(&whole, average);
        let of_average = Gradient::Average(Divisor::Valid);
        for gradient in [Gradient::Extremum(BASE), Gradient::Drawn(BASE), of_average] {
            self.gradient(&strided, gradient);
        }
        self.gradient(&overlapping, of_average);
        self.gradient(&large, Gradient::Extremum(BASE));
        self.gradient(&whole, Gradient::Extremum(BASE));
        let window = Window::new([3, 3, 3]).stride([2, 2, 2]).padding([1, 1, 1]);
        // With more channels, the gradient by walks takes more shared memory than WebGPU guarantees.
        let shape = Shape::new(BATCH, 8, Extents::from([8, 28, 28])).unwrap();
        let volumes = Pooling::new(shape, &window, self.layout).unwrap();
        self.gradient(&volumes, Gradient::Extremum(BASE));
        self.unpooling(&strided);
    }

    /// A pooling, and the gradient of a norm, which reads the input.
    fn reduction(&mut self, pooling: &Pooling, reduction: Reduction) {
        let (target, dtype) = (self.target, self.dtype);
        let [x, y, i] = self.pooled(pooling);
        let indices = reduction.has_indices().then_some(&i);
        let problem = Problem::new(pooling, reduction, dtype);
        for plan in self.plans(problem) {
            let tensors = Tensors { indices, ..Tensors::new(&x, &y) };
            pool::launch(target, problem, &plan, tensors).unwrap();
            self.reach(format!("pool {}: forward", plan.algorithm()));
        }
        if !matches!(reduction, Reduction::Norm(_)) {
            return;
        }
        for plan in self.plans(problem.backward()) {
            let dx = self.empty(pooling.input().elements());
            let tensors = Tensors { pooled: Some(&x), ..Tensors::new(&y, &dx) };
            pool::launch(target, problem.backward(), &plan, tensors).unwrap();
            self.reach(format!("pool {}: gradient", plan.algorithm()));
        }
    }

    fn gradient(&mut self, pooling: &Pooling, gradient: Gradient) {
        let (target, dtype) = (self.target, self.dtype);
        let [dx, dy, i] = self.pooled(pooling);
        let indices = (!matches!(gradient, Gradient::Average(_))).then_some(&i);
        let problem = gradient.of(pooling, dtype);
        for plan in self.plans(problem) {
            let tensors = Tensors { indices, ..Tensors::new(&dy, &dx) };
            pool::launch(target, problem, &plan, tensors).unwrap();
            self.reach(format!("pool {}: gradient", plan.algorithm()));
        }
    }

    fn unpooling(&mut self, pooling: &Pooling) {
        let (target, dtype) = (self.target, self.dtype);
        let [x, y, i] = self.pooled(pooling);
        let plan = pool::Plan::unpool(pooling, BASE, dtype, target.device).unwrap();
        for (gradient, tensors) in [(false, [&y, &i, &x]), (true, [&x, &i, &y])] {
            pool::launch_unpool(target, pooling, BASE, dtype, &plan, gradient, tensors).unwrap();
        }
    }

    fn fractional(&mut self) {
        let (target, dtype) = (self.target, self.dtype);
        let shape = shape();
        let outputs = Extents::from([30, 30]);
        let problem = Fractional::new(shape, Extents::from([2, 2]), outputs, self.layout).unwrap();
        let outputs = BATCH * CHANNELS * 30 * 30;
        let (x, y, i) = (self.empty(shape.elements()), self.empty(outputs), self.indices(outputs));
        let samples = target.client.empty(problem.sample_count() * size_of::<f32>());
        let (seed, samples) = (Draws::Seed(1), Draws::Samples(&samples));
        let (forward, gradient) = (Tensors::new(&x, &y), Tensors::new(&y, &x));
        for (is_gradient, draws, tensors) in [
            (false, seed, Tensors { indices: Some(&i), ..forward }),
            (false, samples, forward),
            (true, seed, Tensors { indices: Some(&i), ..gradient }),
        ] {
            pool::launch_fractional(target, &problem, BASE, dtype, draws, is_gradient, tensors)
                .unwrap();
        }
    }

    /// A disk, whose longest run is in level 2.
    fn footprint(&mut self) {
        let (target, dtype) = (self.target, self.dtype);
        let within = |tap: usize| (tap / 5).abs_diff(2).pow(2) + (tap % 5).abs_diff(2).pow(2) <= 4;
        let taps: Vec<bool> = (0..25).map(within).collect();
        let disk = Footprint::new(Extents::from([5, 5]), &taps).unwrap();
        let pooling = Pooling::new(shape(), &Window::new([5, 5]), self.layout).unwrap();
        let [x, y] = [pooling.input(), pooling.output()].map(|it| self.empty(it.elements()));
        for extremum in [Extremum::Max, Extremum::Min] {
            let reduction = Reduction::Extremum(extremum, Output::Values);
            let problem = Problem::new(&pooling, reduction, dtype);
            pool::launch_footprint(target, problem, disk, [&x, &y]).unwrap();
        }
        let elements = pooling.output().elements();
        let other = self.empty(elements);
        difference(target, dtype, elements, [&x, &y, &other]).unwrap();
    }

    fn padding(&mut self) {
        let (target, dtype) = (self.target, self.dtype);
        for mode in PaddingMode::ALL.into_iter().filter(|mode| *mode != PaddingMode::Zeros) {
            let shape = shape();
            let padded = Padded::new(shape, 2.into(), mode, self.layout).unwrap();
            let [x, y] = [padded.input(), padded.output()].map(|it| self.empty(it.elements()));
            pad(target, dtype, &padded, 0.0, &x, &y).unwrap();
            if dtype.is_float() {
                pad_gradient(target, dtype, &padded, &y, &x).unwrap();
            }
        }
    }

    fn convolutions(&mut self) {
        let window = |side: usize| Window::new([side, side]).padding([side / 2, side / 2]);
        // Filters, channels of each, and groups: dense and depthwise, then pointwise and grouped.
        self.convolution([128, CHANNELS, 1], 3, window(3).stride([2, 2]));
        self.convolution([CHANNELS, 1, CHANNELS], 3, window(3).stride([2, 2]));
        // Too many weights for units that walk down lines.
        self.convolution([CHANNELS, 1, CHANNELS], 9, window(9).stride([2, 2]));
        if self.layout == Layout::ChannelsLast {
            self.convolution([CHANNELS, CHANNELS, 1], 1, window(1));
            self.convolution([CHANNELS, 4, CHANNELS / 4], 3, window(3));
        }
        if self.target.device.wgmma {
            // Hopper's kernels store results whose channels are no multiple of 8 in other ways, and repack tensors.
            self.convolution([100, 60, 1], 1, window(1));
            self.convolution([44, 100, 1], 3, window(3));
            self.convolution([CHANNELS, 16, CHANNELS / 16], 3, window(3));
        }
    }

    fn convolution(&mut self, filters: [usize; 3], side: usize, window: Window) {
        let [count, channels, groups] = filters;
        let (dtype, precision) = (self.dtype, Precision::Strict);
        let filter = Filter::new(count, channels, Extents::from([side, side])).unwrap();
        let order = match self.layout {
            Layout::ChannelsFirst => FilterLayout::Fchw,
            Layout::ChannelsLast => FilterLayout::Fhwc,
        };
        let shape = Shape::new(BATCH, channels * groups, shape().space()).unwrap();
        let conv = Convolution::new(shape, filter, &window, groups, self.layout, order).unwrap();
        let [x, y, residual] =
            [conv.input(), conv.output(), conv.output()].map(|it| self.empty(it.elements()));
        let [w, b] = [conv.filter().elements(), count].map(|it| self.empty(it));
        let (bias, residual, activation) = (Some(&b), Some(&residual), Activation::Relu);
        let forward =
            |bias, residual| Operands::Forward { x: &x, w: &w, bias, residual, activation, y: &y };
        let mut passes = vec![
            forward(bias, residual),
            Operands::Data { dy: &y, w: &w, dx: &x },
            Operands::Weight { dy: &y, x: &x, dw: &w },
            Operands::Bias { dy: &y, db: &b },
        ];
        // Kernels with as many buffers, which must not be taken for each other.
        if dtype == DType::F32 {
            passes.extend([forward(bias, None), forward(None, residual)]);
        }
        for operands in passes {
            let pass = operands.pass();
            for algorithm in conv::Algorithm::ALL {
                let request = Request { pass, dtype, precision };
                let options = PlanOptions { algorithm: Some(algorithm), ..Default::default() };
                let plan = conv::Plan::new(&conv, request, options, self.target.device);
                let Ok(plan) = plan else { continue };
                conv::launch(self.target, &conv, dtype, precision, &plan, operands).unwrap();
                self.reach(format!("conv {algorithm}: {pass:?}").to_lowercase());
            }
        }
    }

    /// A convolution of 8-bit integers with a result of this type.
    fn quantized(&mut self, [count, channels, groups]: [usize; 3], output: DType) {
        let (dtype, pass, precision) = (self.dtype, Pass::Forward, Precision::Strict);
        let filter = Filter::new(count, channels, Extents::from([3, 3])).unwrap();
        let (window, order) = (Window::new([3, 3]).padding([1, 1]), FilterLayout::Fhwc);
        let conv = Convolution::new(shape(), filter, &window, groups, self.layout, order).unwrap();
        let [x, w] = [conv.input().elements(), filter.elements()].map(|it| self.empty(it));
        let Target { client, device } = self.target;
        let [scale, bias] = [0; 2].map(|_| client.empty(count * size_of::<f32>()));
        let y = client.empty(device.buffer_size(output, conv.output().elements()));
        let (bias, activation) = (Some(&bias), Activation::Relu);
        let (x, w, scale, y) = (&x, &w, &scale, &y);
        for algorithm in conv::Algorithm::ALL {
            let request = Request { pass, dtype, precision };
            let options = PlanOptions { algorithm: Some(algorithm), ..Default::default() };
            let Ok(plan) = conv::Plan::new(&conv, request, options, device) else { continue };
            let operands = Operands::Quantized { x, w, scale, bias, activation, output, y };
            conv::launch(self.target, &conv, dtype, precision, &plan, operands).unwrap();
            self.reach(format!("conv {algorithm}: quantized"));
        }
    }

    /// The kernels that are no pooling or convolution.
    fn rest(&mut self, dtypes: &[DType]) {
        let (target, dtype) = (self.target, self.dtype);
        let (rows, columns) = (96, 128);
        let elements = rows * columns;
        let [from, to] = [self.empty(elements), self.empty(elements)];
        copy(target, dtype, &from, &to, elements).unwrap();
        fill_random(target, dtype, &to, elements, 1).unwrap();
        strided::copy(target, dtype, &from, &to, &[[columns, 1], [rows, columns]]).unwrap();
        strided::copy(target, dtype, &from, &to, &[[rows / 2, 2 * columns], [columns, 1]]).unwrap();
        transpose(target, dtype, &from, &to, [1, rows, columns]).unwrap();
        for &other in dtypes {
            if can_cast([dtype, other]) {
                let to = target.client.empty(target.device.buffer_size(other, elements));
                cast(target, [dtype, other], &from, &to, elements).unwrap();
            }
        }
    }

    /// The plans of all algorithms that can compute the problem.
    fn plans(&self, problem: Problem<'_>) -> Vec<pool::Plan> {
        let plan = |&algorithm| pool::Plan::with(algorithm, problem, self.target.device).ok();
        pool::Algorithm::ALL.iter().filter_map(plan).collect()
    }

    fn reach(&mut self, name: String) {
        self.reached.insert(name);
    }

    /// The buffers of a pooling: its input, its output and its indices.
    fn pooled(&self, pooling: &Pooling) -> [Handle; 3] {
        let (inputs, outputs) = (pooling.input().elements(), pooling.output().elements());
        [self.empty(inputs), self.empty(outputs), self.indices(outputs)]
    }

    fn indices(&self, elements: usize) -> Handle {
        self.target.client.empty(elements * size_of::<i32>())
    }

    fn empty(&self, elements: usize) -> Handle {
        let Target { client, device } = self.target;
        client.empty(device.buffer_size(self.dtype, elements))
    }
}

/// The shape of most inputs.
fn shape() -> Shape {
    Shape::new(BATCH, CHANNELS, Extents::from([SIDE, SIDE])).unwrap()
}
