//! Which kernel each problem gets, and which overrides are refused.

use windowpane_geometry::{
    Divisor, Exponent, Extents, LIMIT, Layout, Padding, Rank, Shape, Window,
};

use super::*;
use crate::device::profiles::{self, PLAIN_GPU, Profile};
use crate::error::NotApplicable;
use crate::pool::strips::form::reads;

const GPU: Capabilities = Capabilities { buffer_bytes: 1 << 32, ..PLAIN_GPU };
const PROCESSOR: Capabilities = Capabilities { buffer_bytes: 1 << 32, ..profiles::PROCESSOR };
const SHADING: Capabilities = Capabilities { buffer_bytes: 1 << 32, ..profiles::SHADING_GPU };

fn pooling(batch: usize, channels: usize, layout: Layout) -> Pooling {
    let shape = Shape::new(batch, channels, Extents::from([56, 56])).unwrap();
    Pooling::new(shape, &Window::new([3, 3]), layout).unwrap()
}

/// Refuses a plan that cannot run the problem's gradient.
fn check_backward(
    plan: &Plan,
    pooling: &Pooling,
    reduction: Reduction,
    dtype: DType,
    device: &Capabilities,
) -> Result<(), PlanError> {
    plan.task(Problem::new(pooling, reduction, dtype).backward(), device).map(drop)
}

/// The plan with strips of length `strip`.
fn in_strips(mut plan: Plan, strip: usize) -> Plan {
    match &mut plan.config {
        Config::RegisterTile(config) => config.strip = strip,
        Config::GatherTile(config) => config.strip = strip,
        Config::Stencil(config) => config.rows = strip,
        other => panic!("{other:?} has no strips"),
    }
    plan
}

/// The team size and the number of parts of a plan, and its workspace.
fn teams(plan: &Plan) -> (u32, usize, usize) {
    match plan.config {
        Config::BlockReduce(config) => (config.team, config.parts, plan.settings.workspace),
        other => panic!("{other:?} has no teams"),
    }
}

/// The plan with overridden settings.
fn with(mut plan: Plan, change: impl FnOnce(&mut Settings)) -> Plan {
    change(&mut plan.settings);
    plan
}

fn lanes(channels: usize, layout: Layout, dtype: DType, device: &Capabilities) -> usize {
    let max = Reduction::max(Output::Values);
    Plan::new(Problem::new(&pooling(1, channels, layout), max, dtype), device)
        .unwrap()
        .settings
        .lanes
}

#[test]
fn lanes_are_as_wide_as_loads_and_channels_allow() {
    assert_eq!(lanes(64, Layout::ChannelsLast, DType::F32, &GPU), 4);
    assert_eq!(lanes(64, Layout::ChannelsLast, DType::BF16, &GPU), 8);
    assert_eq!(lanes(64, Layout::ChannelsLast, DType::F32, &PROCESSOR), 16);
    assert_eq!(lanes(6, Layout::ChannelsLast, DType::F32, &GPU), 2);
    assert_eq!(lanes(3, Layout::ChannelsLast, DType::F32, &GPU), 1);
    // Lanes along the width, which is 56 in the input and 54 in the output.
    assert_eq!(lanes(64, Layout::ChannelsFirst, DType::F32, &GPU), 2);
}

/// Vectors that are read and vectors that are written each have as many lanes as divide their own rows.
#[test]
fn strips_read_and_write_in_lanes_of_their_own() {
    let max = Reduction::max(Output::Values);
    let plan = |extent: usize, kernel, padding, dtype, device: &Capabilities| {
        let shape = Shape::new(2, 3, Extents::from([extent; 2])).unwrap();
        let window = Window::new([kernel; 2]).stride([2; 2]).padding([padding; 2]);
        let pooling = Pooling::new(shape, &window, Layout::ChannelsFirst).unwrap();
        let plan = Plan::with(Algorithm::RegisterTile, Problem::new(&pooling, max, dtype), device)
            .unwrap();
        assert_eq!(plan.check(Problem::new(&pooling, max, dtype), device), Ok(()));
        let problem = Problem::new(&pooling, max, dtype);
        (plan.settings.lanes, reads(plan.task(problem, device).unwrap()))
    };
    // 56 columns become 28, and 112 become 56.
    assert_eq!(plan(56, 3, 1, DType::BF16, &GPU), (4, 8));
    assert_eq!(plan(56, 3, 1, DType::F32, &GPU), (4, 4));
    assert_eq!(plan(112, 3, 1, DType::BF16, &GPU), (8, 8));
    // 30 become 16: two lanes of bf16 are at most a word, two of f32 are more.
    assert_eq!(plan(30, 2, 1, DType::BF16, &GPU), (8, 2));
    assert_eq!(plan(30, 2, 1, DType::F32, &GPU), (2, 2));
    assert_eq!(plan(30, 3, 2, DType::BF16, &GPU), (2, 2));
    // A processor thread reads on where it stopped, so wider reads do not pay off.
    assert_eq!(plan(56, 3, 1, DType::BF16, &PROCESSOR), (4, 4));
}

/// The same limits apply to the gradient, whose kernel counts rows in 32 bits.
#[test]
fn a_unit_moves_down_some_rows_and_no_more_than_plans_may_have() {
    let shape = Shape::new(2, 8, Extents::from([35, 35])).unwrap();
    let window = Window::new([3, 3]).stride([1, 1]).padding([1, 1]);
    let pooling = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
    let (mean, dtype) = (Reduction::Average(Divisor::Valid), DType::BF16);
    let plan = Plan::with(Algorithm::Stencil, Problem::new(&pooling, mean, dtype).backward(), &GPU)
        .unwrap();
    assert_eq!(check_backward(&plan, &pooling, mean, dtype, &GPU), Ok(()));
    let blocks =
        Plan::with(Algorithm::RegisterTile, Problem::new(&pooling, mean, dtype).backward(), &GPU)
            .unwrap();
    assert_eq!(check_backward(&blocks, &pooling, mean, dtype, &GPU), Ok(()));
    for plan in [plan, blocks] {
        for strip in [0, 17, 1 << 31, 1 << 32] {
            let plan = in_strips(plan, strip);
            let refused = check_backward(&plan, &pooling, mean, dtype, &GPU);
            assert_eq!(refused, Err(PlanError::Strip { strip, limit: 16 }));
        }
    }
}

/// A norm's gradient is gathered tap by tap: its kernel does not support lanes along the width.
#[test]
fn a_norm_has_no_gradient_by_blocks() {
    let shape = Shape::new(1, 1, Extents::from([8, 512])).unwrap();
    let window = Window::new([3, 3]).stride([1, 1]).padding([1, 1]);
    let pooling = Pooling::new(shape, &window, Layout::ChannelsFirst).unwrap();
    let norm = Reduction::Norm(Exponent::new(1.0));
    let plan = Plan::new(Problem::new(&pooling, norm, DType::F32).backward(), &GPU).unwrap();
    assert_eq!((plan.algorithm(), plan.settings.along_width), (Algorithm::Lp, false));
    let algorithm = Algorithm::RegisterTile;
    let named = Plan::with(algorithm, Problem::new(&pooling, norm, DType::F32).backward(), &GPU);
    let reason = "it computes no gradients of norms";
    assert_eq!(
        named,
        Err(PlanError::NotApplicable { kernel: Algorithm::GatherTile.name(), reason })
    );
    let mean = Reduction::Average(Divisor::Valid);
    let blocks = Plan::with(algorithm, Problem::new(&pooling, mean, DType::F32).backward(), &GPU);
    let blocks = Plan { config: blocks.unwrap().config, ..plan };
    assert_eq!(blocks.algorithm(), Algorithm::GatherTile);
    assert!(check_backward(&blocks, &pooling, norm, DType::F32, &GPU).is_err());
}

/// Narrowing the vectors of inputs may leave the vectors of windows as wide; both must divide their rows.
#[test]
fn lanes_of_a_gradient_divide_its_windows_too() {
    let shape = Shape::new(1, 1, Extents::from([12, 12])).unwrap();
    let window = Window::new([4, 4]).stride([4, 4]);
    let pooling = Pooling::new(shape, &window, Layout::ChannelsFirst).unwrap();
    let max = Reduction::max(Output::Values);
    let algorithm = Algorithm::GatherTile;
    let plan =
        Plan::with(algorithm, Problem::new(&pooling, max, DType::F32).backward(), &GPU).unwrap();
    assert_eq!(plan.settings.lanes, 4);
    let check = |lanes| {
        let plan = with(plan, |settings| settings.lanes = lanes);
        check_backward(&plan, &pooling, max, DType::F32, &GPU)
    };
    assert_eq!([check(4), check(1)], [Ok(()), Ok(())]);
    assert!(matches!(check(2), Err(PlanError::Lanes { lanes: 2, .. })), "two windows of three");
}

/// The error says what to do, also where no lanes can lie along the width.
#[test]
fn refused_lanes_have_a_reason() {
    let error = |neighbours| PlanError::Lanes { lanes: 3, neighbours, widest: 4 }.to_string();
    let divisor = "3 lanes were requested; use a power of two, at most 4, that divides the 8 adjacent elements";
    let none =
        "lanes along the width are not possible for this problem; leave `along_width` as planned";
    assert_eq!([error(8), error(0)], [divisor, none]);
}

/// Vectors of one element; 32 bits cannot count the last one plus a row.
#[test]
fn a_sequence_that_32_bits_do_not_count_is_refused() {
    let mean = Reduction::Average(Divisor::Valid);
    let plan = |width| {
        let shape = Shape::new(1, 1, Extents::from([3, width])).unwrap();
        let window = Window::new([3, 3]).stride([1, 1]).padding([1, 1]);
        let pooling = Pooling::new(shape, &window, Layout::ChannelsFirst).unwrap();
        let device = Capabilities { buffer_bytes: 1 << 40, ..GPU };
        Plan::with(Algorithm::Stencil, Problem::new(&pooling, mean, DType::F32), &device)
            .map(|plan| plan.settings.lanes)
    };
    assert_eq!(plan(536_870_901), Ok(1));
    assert_eq!(plan(715_827_880), Ok(4));
    assert!(matches!(plan(715_827_881), Err(PlanError::Lanes { lanes: 1, .. })));
}

/// A tile has a unit for every column that its windows read.
#[test]
fn a_tile_has_units_for_its_columns() {
    let shape = Shape::new(1, 4, Extents::from([64, 8])).unwrap();
    let window = Window::new([57, 57]).stride([1, 1]).padding([28, 28]);
    let pooling = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
    let (max, device) =
        (Reduction::max(Output::Values), Capabilities { shared_bytes: 1 << 18, ..GPU });
    let plan =
        Plan::with(Algorithm::VanHerk, Problem::new(&pooling, max, DType::F32), &device).unwrap();
    assert_eq!(plan.config, Config::VanHerk(van_herk::Config::Fused));
    assert_eq!(plan.check(Problem::new(&pooling, max, DType::F32), &device), Ok(()));
    let few = with(plan, |settings| settings.units = 16)
        .check(Problem::new(&pooling, max, DType::F32), &device);
    let reason = "a tile of columns needs more units than a cube has";
    assert_eq!(few, Err(PlanError::NotApplicable { kernel: Algorithm::VanHerk.name(), reason }));
}

#[test]
fn teams_share_windows_of_many_taps() {
    let mean = Reduction::Average(Divisor::Valid);
    let plan = |batch, channels, extent: usize, layout| {
        let shape = Shape::new(batch, channels, Extents::from([extent; 2])).unwrap();
        let pooling = Pooling::new(shape, &Window::new([extent; 2]), layout).unwrap();
        let plan = Plan::new(Problem::new(&pooling, mean, DType::F32), &GPU).unwrap();
        assert_eq!(plan.check(Problem::new(&pooling, mean, DType::F32), &GPU), Ok(()));
        plan
    };
    // Units are neighbours along the plane, in vectors if they divide it.
    let deep = plan(256, 2048, 14, Layout::ChannelsFirst);
    assert_eq!(
        (deep.algorithm(), deep.settings.lanes, deep.settings.along_width),
        (Algorithm::BlockReduce, 4, true)
    );
    assert_eq!(teams(&deep), (8, 1, 0));
    // Planes that no vector divides are copied to shared memory together.
    let odd = plan(256, 2048, 7, Layout::ChannelsFirst);
    assert_eq!((odd.algorithm(), odd.settings.lanes), (Algorithm::BlockReduce, 4));
    assert!(matches!(odd.config, Config::BlockReduce(own) if own.planes == 80), "{odd:?}");
    // There are enough units, so each has a window of its own.
    assert_ne!(plan(256, 2048, 7, Layout::ChannelsLast).algorithm(), Algorithm::BlockReduce);
    // One unit loads few taps at once, even if there are few units.
    assert_ne!(plan(1, 64, 7, Layout::ChannelsLast).algorithm(), Algorithm::BlockReduce);
    // The channels of one sample are too few units; with one channel there is a single window.
    let few = plan(1, 64, 256, Layout::ChannelsLast);
    assert_eq!((few.algorithm(), few.settings.lanes), (Algorithm::BlockReduce, 4));
    assert_eq!(teams(&few), (8, 128, 128 * 64 * 4));
    let one = plan(1, 1, 1024, Layout::ChannelsLast);
    assert!(one.settings.along_width && teams(&one).0 == 128 && teams(&one).1 == 128, "{one:?}");
}

#[test]
fn columns_that_share_most_of_their_taps_are_one_units() {
    let mean = Reduction::Average(Divisor::Valid);
    let columns = |kernel: usize, stride, channels, layout, device: &Capabilities| {
        let shape = Shape::new(8, channels, Extents::from([20; 2])).unwrap();
        let window = Window::new([kernel; 2]).stride([stride; 2]).padding([kernel / 2; 2]);
        let pooling = Pooling::new(shape, &window, layout).unwrap();
        let plan =
            Plan::with(Algorithm::RegisterTile, Problem::new(&pooling, mean, DType::F32), device)
                .unwrap();
        assert_eq!(plan.check(Problem::new(&pooling, mean, DType::F32), device), Ok(()));
        match plan.config {
            Config::RegisterTile(config) => config.columns,
            other => panic!("{other:?} has no columns"),
        }
    };
    let (first, last) = (Layout::ChannelsFirst, Layout::ChannelsLast);
    assert_eq!(columns(3, 1, 64, last, &GPU), 2);
    assert_eq!(columns(5, 1, 64, last, &GPU), 2);
    // Too little is shared; one vector is all channels; lanes are columns; threads have no warp.
    assert_eq!(columns(3, 2, 64, last, &GPU), 1);
    assert_eq!(columns(3, 1, 4, last, &GPU), 1);
    assert_eq!(columns(3, 1, 64, first, &GPU), 1);
    assert_eq!(columns(3, 1, 64, last, &PROCESSOR), 1);
}

/// Averages of 3×3 with channels last; in strips where that kernel does not apply.
#[test]
fn rows_are_walked_down_in_wide_vectors() {
    let mean = Reduction::Average(Divisor::Valid);
    let algorithms = |samples, channels, dtype, device: &Capabilities| {
        let shape = Shape::new(samples, channels, Extents::from([35; 2])).unwrap();
        let window = Window::new([3; 2]).stride([1, 1]).padding([1; 2]);
        let pooling = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
        let forward = Plan::new(Problem::new(&pooling, mean, dtype), device).unwrap();
        assert_eq!(forward.check(Problem::new(&pooling, mean, dtype), device), Ok(()));
        let gradient = Plan::new(Problem::new(&pooling, mean, dtype).backward(), device).unwrap();
        assert_eq!(check_backward(&gradient, &pooling, mean, dtype, device), Ok(()));
        [forward, gradient].map(|plan| plan.algorithm())
    };
    for (samples, dtype, device) in [
        (64, DType::BF16, &GPU),
        (64, DType::F32, &GPU),
        (1, DType::F16, &GPU),
        (64, DType::F16, &SHADING),
    ] {
        assert_eq!(algorithms(samples, 288, dtype, device), [Algorithm::Stencil; 2]);
    }
    // A type that the kernel does not compute, a processor: strips, which use another kernel for the gradient.
    let strips = [Algorithm::RegisterTile, Algorithm::GatherTile];
    assert_eq!(algorithms(64, 288, DType::F64, &GPU), strips);
    assert_eq!(algorithms(64, 288, DType::BF16, &PROCESSOR), strips);
}

/// With channels last and many of them; otherwise one unit per block.
#[test]
fn windows_over_volumes_are_staged_where_there_are_many() {
    let max = Reduction::max(Output::ValuesAndIndices(IndexBase::Plane));
    let algorithm = |samples, channels, stride: usize, dtype, device: &Capabilities| {
        let shape = Shape::new(samples, channels, Extents::from([32, 56, 56])).unwrap();
        let window = Window::new([3; 3]).stride([stride; 3]).padding([1; 3]);
        let pooling = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
        let plan = Plan::new(Problem::new(&pooling, max, dtype).backward(), device).unwrap();
        assert_eq!(check_backward(&plan, &pooling, max, dtype, device), Ok(()));
        plan.algorithm()
    };
    let weak = SHADING;
    assert_eq!(algorithm(8, 192, 2, DType::BF16, &GPU), Algorithm::GatherStaged);
    assert_eq!(algorithm(8, 192, 2, DType::F16, &GPU), Algorithm::GatherStaged);
    assert_eq!(algorithm(8, 192, 2, DType::F32, &GPU), Algorithm::GatherStaged);
    // Wide type, channels not a multiple of a cube's, another compiler, a processor.
    assert_eq!(algorithm(8, 192, 2, DType::F64, &GPU), Algorithm::GatherTile);
    assert_eq!(algorithm(8, 200, 2, DType::BF16, &GPU), Algorithm::GatherTile);
    assert_eq!(algorithm(8, 192, 2, DType::F16, &weak), Algorithm::GatherTile);
    assert_eq!(algorithm(8, 192, 2, DType::BF16, &PROCESSOR), Algorithm::GatherTile);
}

#[test]
fn planes_that_no_vector_divides_are_one_sequence() {
    let mean = Reduction::Average(Divisor::Valid);
    let pooling = |extent: usize, kernel: usize, padding: usize| {
        let shape = Shape::new(8, 288, Extents::from([extent; 2])).unwrap();
        let window = Window::new([kernel; 2]).stride([1, 1]).padding([padding; 2]);
        Pooling::new(shape, &window, Layout::ChannelsFirst).unwrap()
    };
    let (inception, shrinking) = (pooling(35, 3, 1), pooling(35, 3, 0));
    for (dtype, lanes) in [(DType::F32, 4), (DType::BF16, 8)] {
        let plan = Plan::new(Problem::new(&inception, mean, dtype), &GPU).unwrap();
        assert_eq!((plan.algorithm(), plan.settings.lanes), (Algorithm::Stencil, lanes));
        assert_eq!(plan.check(Problem::new(&inception, mean, dtype), &GPU), Ok(()));
        let plan = Plan::new(Problem::new(&inception, mean, dtype).backward(), &GPU).unwrap();
        assert_eq!((plan.algorithm(), plan.settings.lanes), (Algorithm::Stencil, lanes));
    }
    let algorithm = |pooling: &Pooling, device: &Capabilities| {
        Plan::new(Problem::new(pooling, mean, DType::F32), device).unwrap().algorithm()
    };
    assert_eq!(algorithm(&pooling(56, 3, 1), &GPU), Algorithm::Stencil);
    // Rows are long; planes do not keep their extents; a processor has another kernel.
    assert_eq!(algorithm(&pooling(512, 3, 1), &GPU), Algorithm::RegisterTile);
    assert_eq!(algorithm(&shrinking, &GPU), Algorithm::RegisterTile);
    assert_eq!(algorithm(&inception, &PROCESSOR), Algorithm::RegisterTile);
}

#[test]
fn both_axes_of_large_windows_are_walked_at_once() {
    let huge = |kernel: usize, layout| {
        let shape = Shape::new(8, 64, Extents::from([256; 2])).unwrap();
        let window = Window::new([kernel; 2]).stride([1, 1]).padding([kernel / 2; 2]);
        Pooling::new(shape, &window, layout).unwrap()
    };
    let max = Reduction::max(Output::Values);
    let plan = |kernel, reduction, layout, device: &Capabilities| {
        let pooling = huge(kernel, layout);
        let plan = Plan::new(Problem::new(&pooling, reduction, DType::BF16), device).unwrap();
        assert_eq!(plan.check(Problem::new(&pooling, reduction, DType::BF16), device), Ok(()));
        plan
    };
    let [fused, separate] =
        [van_herk::Config::Fused, van_herk::Config::Separate].map(Config::VanHerk);
    // One tile of 256 columns: with two-byte types, one unit per two columns, however long the window.
    for kernel in [31, 63, 127] {
        let plan = plan(kernel, max, Layout::ChannelsFirst, &GPU);
        assert_eq!((plan.config, plan.settings.units, plan.settings.workspace), (fused, 128, 0));
    }
    // Averages with channels last, if shared memory holds a tile wider than a window.
    let mean = Reduction::Average(Divisor::Valid);
    let large = Capabilities { shared_bytes: 227 << 10, ..GPU };
    for (layout, units) in [(Layout::ChannelsFirst, 128), (Layout::ChannelsLast, 768)] {
        let plan = plan(31, mean, layout, &large);
        assert_eq!((plan.config, plan.settings.units, plan.settings.workspace), (fused, units, 0));
    }
    for (kernel, device) in [(31, &GPU), (127, &large)] {
        let last = plan(kernel, mean, Layout::ChannelsLast, device);
        assert_eq!(last.config, separate);
    }
    let sliding = |reduction, layout, device| {
        assert_eq!(plan(31, reduction, layout, device).config, separate);
    };
    // With indices, planes are transposed before and after the pass along the rows.
    let indexed = Reduction::max(Output::ValuesAndIndices(IndexBase::Plane));
    let turned = Config::VanHerk(van_herk::Config::Turned);
    assert_eq!(plan(31, indexed, Layout::ChannelsFirst, &GPU).config, turned);
    sliding(indexed, Layout::ChannelsLast, &GPU);
    sliding(max, Layout::ChannelsLast, &GPU);
    sliding(max, Layout::ChannelsFirst, &PROCESSOR);
    sliding(max, Layout::ChannelsFirst, &Capabilities { shared_bytes: 0, ..GPU });
}

/// Many windows over an input are summed at a cost that does not grow with the window; few are read one by one.
#[test]
fn gradients_of_large_windows_do_not_read_every_window() {
    let algorithm = |kernel: usize, reduction, layout, device: &Capabilities| {
        let shape = Shape::new(8, 64, Extents::from([56; 2])).unwrap();
        let window = Window::new([kernel; 2]).stride([1; 2]).padding([kernel / 2; 2]);
        let pooling = Pooling::new(shape, &window, layout).unwrap();
        let plan =
            Plan::new(Problem::new(&pooling, reduction, DType::F32).backward(), device).unwrap();
        assert_eq!(check_backward(&plan, &pooling, reduction, DType::F32, device), Ok(()));
        plan.algorithm()
    };
    let max = Reduction::max(Output::ValuesAndIndices(IndexBase::Plane));
    let mean = Reduction::Average(Divisor::Valid);
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        assert_eq!(algorithm(3, max, layout, &GPU), Algorithm::GatherTile);
        assert_eq!(algorithm(13, max, layout, &GPU), Algorithm::SegmentedScatter);
        assert_eq!(algorithm(13, mean, layout, &GPU), Algorithm::VanHerk);
        assert_eq!(algorithm(13, max, layout, &PROCESSOR), Algorithm::Gather);
        assert_eq!(algorithm(13, mean, layout, &PROCESSOR), Algorithm::VanHerk);
    }
}

/// Planes too large for one launch, and volumes, are divided by their windows' divisors in a launch of their own.
#[test]
fn gradients_of_averages_do_not_read_every_window() {
    let mean = Reduction::Average(Divisor::Valid);
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        for (extents, kernel, padding) in
            [([1, 512, 512], [1, 51, 51], [0, 25, 25]), ([64, 64, 64], [7; 3], [3; 3])]
        {
            let shape = Shape::new(4, 16, Extents::from(extents)).unwrap();
            let window = Window::new(kernel).stride([1; 3]).padding(padding);
            let pooling = Pooling::new(shape, &window, layout).unwrap();
            let problem = Problem::new(&pooling, mean, DType::F32).backward();
            for device in [GPU, profiles::H200.capabilities] {
                let plan = Plan::new(problem, &device).unwrap();
                assert_eq!(plan.algorithm(), Algorithm::VanHerk, "{layout:?} {extents:?}");
                let fused = plan.config == Config::VanHerk(van_herk::Config::Fused);
                let divided = plan.settings.workspace >= pooling.output().elements() * 4;
                assert!(divided || (fused && kernel[0] == 1), "{layout:?} {plan:?}");
            }
        }
    }
}

/// The size of an adaptive window follows from the input, so other extents must not compile another kernel.
#[test]
fn an_adaptive_window_keeps_its_kernel() {
    let indexed = Reduction::max(Output::ValuesAndIndices(IndexBase::Plane));
    let mean = Reduction::Average(Divisor::Valid);
    for (outputs, layout, device) in [1, 7].into_iter().flat_map(|outputs| {
        let layouts = [Layout::ChannelsFirst, Layout::ChannelsLast];
        layouts.into_iter().flat_map(move |it| [GPU, PROCESSOR].map(|device| (outputs, it, device)))
    }) {
        for (reduction, gradient) in
            [(indexed, false), (mean, false), (indexed, true), (mean, true)]
        {
            let kernels = [7, 14, 23, 64, 70].map(|extent| {
                let shape = Shape::new(extent, 64, Extents::from([extent; 2])).unwrap();
                let window = Window::adaptive([outputs; 2]);
                let pooling = Pooling::new(shape, &window, layout).unwrap();
                let problem = Problem { gradient, ..Problem::new(&pooling, reduction, DType::F32) };
                Plan::new(problem, &device).unwrap().algorithm()
            });
            assert!(kernels.iter().all(|kernel| *kernel == kernels[0]), "{outputs}: {kernels:?}");
        }
    }
}

/// Windows along the width, of which a GPU's units would each read a stretch far from their neighbours'.
#[test]
fn rows_are_walked_in_tiles() {
    let plan = |kernel: usize, layout| {
        let shape = Shape::new(16, 96, Extents::from([24_000])).unwrap();
        let pooling = Pooling::new(shape, &Window::new([kernel]).stride([1]), layout).unwrap();
        let plan =
            Plan::new(Problem::new(&pooling, Reduction::max(Output::Values), DType::F32), &GPU)
                .unwrap();
        plan.config
    };
    let [fused, separate] =
        [van_herk::Config::Fused, van_herk::Config::Separate].map(Config::VanHerk);
    assert_eq!(plan(31, Layout::ChannelsFirst), fused);
    assert_eq!(plan(31, Layout::ChannelsLast), separate);
    assert_eq!(plan(5, Layout::ChannelsLast).algorithm(), Algorithm::RegisterTile);
}

#[test]
fn threads_of_a_processor_walk_along_rows() {
    let max = Reduction::max(Output::Values);
    let mean = Reduction::Average(Divisor::Valid);
    let indexed = Reduction::max(Output::ValuesAndIndices(IndexBase::Plane));
    let plan = |kernel: usize, stride, reduction, layout, device: &Capabilities| {
        let shape = Shape::new(8, 64, Extents::from([56; 2])).unwrap();
        let window = Window::new([kernel; 2]).stride([stride; 2]).padding([kernel / 2; 2]);
        let pooling = Pooling::new(shape, &window, layout).unwrap();
        let plan = Plan::new(Problem::new(&pooling, reduction, DType::F32), device).unwrap();
        assert_eq!(plan.check(Problem::new(&pooling, reduction, DType::F32), device), Ok(()));
        plan
    };
    let (first, last) = (Layout::ChannelsFirst, Layout::ChannelsLast);
    for (kernel, stride, reduction, lanes) in [(3, 2, max, 4), (3, 1, mean, 8), (13, 1, max, 8)] {
        let plan = plan(kernel, stride, reduction, first, &PROCESSOR);
        assert_eq!(
            (plan.algorithm(), plan.settings.lanes, plan.config.to_string()),
            (Algorithm::CpuRows, lanes, "strips of 4 rows".into())
        );
    }
    // Indices need rows before columns; channels are adjacent; a GPU's units are neighbours; long windows cost less
    // with van Herk's algorithm.
    for (kernel, reduction, layout, device, algorithm) in [
        (3, indexed, first, &PROCESSOR, Algorithm::RegisterTile),
        (3, max, last, &PROCESSOR, Algorithm::RegisterTile),
        (3, max, first, &GPU, Algorithm::RegisterTile),
        (31, max, first, &PROCESSOR, Algorithm::VanHerk),
    ] {
        assert_eq!(plan(kernel, 1, reduction, layout, device).algorithm(), algorithm);
    }
}

#[test]
fn a_problem_that_no_kernel_can_hold_is_refused() {
    let max = Reduction::max(Output::Values);
    let large = pooling(1 << 20, 64, Layout::ChannelsLast);
    let plan = Plan::new(Problem::new(&large, max, DType::I8), &GPU);
    assert!(matches!(plan, Err(PlanError::TooManyElements { .. })), "{plan:?}");
    let small = Capabilities { buffer_bytes: 1 << 20, ..GPU };
    let plan =
        Plan::new(Problem::new(&pooling(8, 64, Layout::ChannelsLast), max, DType::F32), &small);
    assert!(matches!(plan, Err(PlanError::BufferTooLarge { .. })), "{plan:?}");
    let mean = Reduction::Average(Divisor::Padded);
    let few = pooling(8, 64, Layout::ChannelsLast);
    let mean = |dtype, device| Plan::new(Problem::new(&few, mean, dtype), device).map(drop);
    let refused = Err(PlanError::FloatsOnly { operator: "average pooling", dtype: DType::Bool });
    assert_eq!(mean(DType::Bool, &GPU), refused);
    // Sums of 32-bit integers have 64 bits, and those of 64-bit integers none that kernels have.
    let lacking = Capabilities { int64: false, ..GPU };
    for dtype in [DType::I32, DType::U32] {
        assert_eq!(mean(dtype, &GPU), Ok(()));
        assert_eq!(mean(dtype, &lacking), Err(PlanError::NoSums { dtype }));
    }
    assert_eq!(mean(DType::I64, &GPU), Err(PlanError::NoSums { dtype: DType::I64 }));
}

/// Three rows of padding and a stride of two give as many outputs as inputs, but not the same positions.
#[test]
fn strides_over_padding_do_not_slide() {
    let shape = Shape::new(3, 8, Extents::from([4, 2])).unwrap();
    let window = Window::new([1, 2]).stride([2, 1]).padding([(1, 2), (0, 0)]);
    let pooling = Pooling::new(shape, &window, Layout::ChannelsFirst).unwrap();
    let max = Reduction::max(Output::Values);
    let plan = Plan::with(Algorithm::VanHerk, Problem::new(&pooling, max, DType::F64), &GPU);
    assert!(matches!(plan, Err(PlanError::NotApplicable { .. })), "{plan:?}");
}

#[test]
fn an_override_that_cannot_run_is_refused() {
    let pooling = pooling(1, 6, Layout::ChannelsLast);
    let max = Reduction::max(Output::Values);
    let plan = Plan::new(Problem::new(&pooling, max, DType::F32), &GPU).unwrap();
    assert_eq!(plan.check(Problem::new(&pooling, max, DType::F32), &GPU), Ok(()));
    for lanes in [0, 3, 4] {
        assert!(
            with(plan, |settings| settings.lanes = lanes)
                .check(Problem::new(&pooling, max, DType::F32), &GPU)
                .is_err(),
            "{lanes} lanes"
        );
    }
    for units in [0, 1025] {
        assert!(
            with(plan, |settings| settings.units = units)
                .check(Problem::new(&pooling, max, DType::F32), &GPU)
                .is_err(),
            "{units} units"
        );
    }
}

/// A value that the kernel's code depends on cannot be taken from a plan for another kernel or type.
#[test]
fn what_a_plan_was_made_for_stays() {
    let pooling = pooling(1, 8, Layout::ChannelsLast);
    let (max, mean) = (Reduction::max(Output::Values), Reduction::Average(Divisor::Valid));
    let of =
        |algorithm| Plan::with(algorithm, Problem::new(&pooling, max, DType::F32), &GPU).unwrap();
    let check = |plan: Plan, dtype| plan.check(Problem::new(&pooling, max, dtype), &GPU);
    for algorithm in [Algorithm::Direct, Algorithm::RegisterTile] {
        let plan = of(algorithm);
        let fixed = |name| Err(PlanError::Fixed { name, kernel: algorithm.name() });
        assert_eq!(check(plan, DType::F32), Ok(()));
        assert_eq!(
            check(with(plan, |settings| settings.along_width = true), DType::F32),
            fixed("along_width")
        );
        assert_eq!(check(plan, DType::BF16), Err(PlanError::Foreign));
        let backward = check_backward(&plan, &pooling, mean, DType::BF16, &GPU);
        let kernel = algorithm.name();
        let reason = "it computes no gradients";
        assert_eq!(backward, Err(PlanError::NotApplicable { kernel, reason }));
        let rolled = check(with(plan, |settings| settings.unrolled = false), DType::F32);
        assert_eq!(
            rolled,
            if algorithm == Algorithm::RegisterTile { fixed("unrolled") } else { Ok(()) }
        );
    }
}

/// Long steps are not unrolled: neither the vectors between taps along the width, nor the rows of a strip.
#[test]
fn far_steps_are_not_unrolled() {
    let shape = Shape::new(1, 2, Extents::from([8, 1 << 16])).unwrap();
    let window = Window::new([2, 2]).stride([2, 4096]);
    let far = Pooling::new(shape, &window, Layout::ChannelsFirst).unwrap();
    let max = Reduction::max(Output::Values);
    assert_eq!(Plan::new(Problem::new(&far, max, DType::F32), &GPU).unwrap().settings.lanes, 1);
    let shape = Shape::new(1, 4, Extents::from([1 << 13, 8])).unwrap();
    let window = Window::new([2, 2]).stride([512, 1]);
    let tall = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
    let plan =
        Plan::with(Algorithm::RegisterTile, Problem::new(&tall, max, DType::F32), &GPU).unwrap();
    assert_eq!(plan.check(Problem::new(&tall, max, DType::F32), &GPU), Ok(()));
    assert!(in_strips(plan, 2).check(Problem::new(&tall, max, DType::F32), &GPU).is_err());
}

/// The workspace between passes is at most what kernels can count and the device can bind.
#[test]
fn passes_that_write_too_much_between_them_are_not_chosen() {
    let mean = Reduction::Average(Divisor::Valid);
    let shape = Shape::new(1, 16384, Extents::from([1, 4096])).unwrap();
    let window = Window::new([64, 64]).stride([1, 16]).padding([(63, 63), (0, 0)]);
    let pooling = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
    let device = Capabilities { buffer_bytes: 1 << 40, ..GPU };
    let plan = Plan::with(Algorithm::VanHerk, Problem::new(&pooling, mean, DType::BF16), &device);
    assert!(matches!(plan, Err(PlanError::TooManyElements { .. })), "2 to the 32nd elements");
    let chosen = Plan::new(Problem::new(&pooling, mean, DType::BF16), &device).unwrap();
    assert_eq!(chosen.algorithm(), Algorithm::Direct);
}

/// An empty batch gets the same plans as any other.
#[test]
fn no_samples_are_planned_as_some_are() {
    let padded = Window::new([3, 3]).stride([1, 1]).padding([1, 1]);
    let average = Reduction::Average(Divisor::Valid);
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        for &algorithm in Algorithm::ALL {
            let plan = |samples| {
                let shape = Shape::new(samples, 8, Extents::from([35, 35])).unwrap();
                let pooling = Pooling::new(shape, &padded, layout).unwrap();
                Plan::with(algorithm, Problem::new(&pooling, average, DType::F32), &GPU)
            };
            assert_eq!(plan(2).is_ok(), plan(0).is_ok(), "{algorithm:?} {layout}");
        }
    }
}

/// A plan for maxima may compare elements in a type in which no sum can be computed, nor the gradient of a maximum.
#[test]
fn a_plan_of_another_reduction_is_refused() {
    let weak = SHADING;
    let (max, average) = (Reduction::max(Output::Values), Reduction::Average(Divisor::Valid));
    let indexed = Reduction::max(Output::ValuesAndIndices(IndexBase::Plane));
    let pooling = pooling(2, 8, Layout::ChannelsLast);
    for (device, dtype) in [(&weak, DType::F32), (&weak, DType::BF16), (&GPU, DType::BF16)] {
        for max in [max, indexed] {
            let plan =
                Plan::with(Algorithm::RegisterTile, Problem::new(&pooling, max, dtype), device)
                    .unwrap();
            assert!(plan.check(Problem::new(&pooling, max, dtype), device).is_ok(), "{dtype}");
            assert!(plan.check(Problem::new(&pooling, average, dtype), device).is_err(), "{dtype}");
            assert!(check_backward(&plan, &pooling, indexed, dtype, device).is_err(), "{dtype}");
        }
        for algorithm in [Algorithm::Direct, Algorithm::RegisterTile] {
            let plan =
                Plan::with(algorithm, Problem::new(&pooling, indexed, dtype).backward(), device)
                    .unwrap();
            assert!(check_backward(&plan, &pooling, indexed, dtype, device).is_ok(), "{dtype}");
        }
    }
}

/// A processor's vectors are wider than a GPU's.
#[test]
fn runs_are_of_the_device() {
    let (pooling, max) = (pooling(2, 16, Layout::ChannelsLast), Reduction::max(Output::Values));
    let mut refused = 0;
    for device in [GPU, PROCESSOR] {
        for &algorithm in Algorithm::ALL {
            let Ok(plan) = Plan::with(algorithm, Problem::new(&pooling, max, DType::F32), &device)
            else {
                continue;
            };
            let plan = with(plan, |settings| settings.contiguous = !settings.contiguous);
            let answer = plan.check(Problem::new(&pooling, max, DType::F32), &device);
            if algorithm == Algorithm::Direct {
                assert_eq!(answer, Ok(()));
            } else {
                let kernel = plan.algorithm().name();
                assert_eq!(answer, Err(PlanError::Fixed { name: "contiguous", kernel }));
                refused += 1;
            }
        }
    }
    assert!(refused >= 3, "{refused}");
}

/// The check returns an answer for any values in the fields of a plan.
#[test]
fn any_numbers_are_checked() {
    const NUMBERS: [usize; 11] =
        [0, 1, 2, 3, 4, 8, 128, 1 << 20, 1 << 31, usize::MAX / 2 + 1, usize::MAX];
    let fields: [fn(&mut Plan, usize); 9] = [
        |plan, n| plan.settings.lanes = n,
        |plan, n| plan.settings.along_width = n.is_multiple_of(2),
        |plan, n| plan.settings.units = n as u32,
        |plan, n| plan.settings.unrolled = n.is_multiple_of(2),
        |plan, n| plan.settings.contiguous = n.is_multiple_of(2),
        |plan, n| plan.settings.workspace = n,
        |plan, n| match &mut plan.config {
            Config::BlockReduce(own) => own.team = n as u32,
            Config::CpuRows(own) => own.strip = n,
            Config::RegisterTile(own) => own.strip = n,
            Config::GatherTile(own) => own.strip = n,
            Config::Stencil(own) => own.rows = n,
            _ => {}
        },
        |plan, n| match &mut plan.config {
            Config::BlockReduce(own) => own.parts = n,
            Config::RegisterTile(own) => own.columns = n,
            _ => {}
        },
        |plan, n| {
            if let Config::BlockReduce(own) = &mut plan.config {
                own.planes = n;
            }
        },
    ];
    let global = Shape::new(2, 8, Extents::from([56, 56])).unwrap();
    let global = |layout| Pooling::new(global, &Window::adaptive([1, 1]), layout).unwrap();
    let poolings = [Layout::ChannelsLast, Layout::ChannelsFirst]
        .map(|layout| [pooling(2, 8, layout), pooling(2, 3, layout), global(layout)]);
    let reductions = [
        Reduction::max(Output::Values),
        Reduction::max(Output::ValuesAndIndices(IndexBase::Plane)),
        Reduction::Average(Divisor::Padded),
    ];
    let (mut checked, mut accepted) = (0, 0);
    for pooling in poolings.as_flattened() {
        for (reduction, dtype) in reductions.into_iter().zip([DType::F32, DType::BF16, DType::F16])
        {
            for (device, &algorithm) in
                [GPU, PROCESSOR].iter().flat_map(|it| Algorithm::ALL.iter().map(move |a| (it, a)))
            {
                for gradient in [false, true] {
                    let problem = Problem { gradient, ..Problem::new(pooling, reduction, dtype) };
                    let Ok(own) = algorithm.plan(problem, device) else { continue };
                    for (i, first) in fields.iter().enumerate() {
                        for second in &fields[i..] {
                            for (n, m) in NUMBERS.iter().flat_map(|n| NUMBERS.map(|m| (*n, m))) {
                                let mut plan = own;
                                first(&mut plan, n);
                                second(&mut plan, m);
                                checked += 1;
                                accepted += usize::from(plan.task(problem, device).is_ok());
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(checked > 100_000 && accepted > 1_000, "{checked} checked, {accepted} accepted");
}

/// Poolings of any size have an estimated time, or are refused: no count on the way to it wraps around.
#[test]
fn any_problem_has_an_estimate() {
    let mut planned = 0;
    let sizes = [(1, 1), (1, 1 << 20), (7, LIMIT), (1 << 16, 1 << 15), (LIMIT, LIMIT)];
    let windows = [1, 3, 31, 4097].into_iter().flat_map(|k| [1, 2, LIMIT].map(|s| (k, s)));
    let samples = [(1, 1), (1, 64), (3, 1 << 20), (65_537, 64), (LIMIT, 3)];
    let reductions = [
        Reduction::max(Output::Values),
        Reduction::max(Output::ValuesAndIndices(IndexBase::Plane)),
        Reduction::Average(Divisor::Valid),
        Reduction::Norm(Exponent::new(2.0)),
        Reduction::Rank(Rank::MEDIAN),
        Reduction::Mode,
    ];
    for ((batch, channels), (height, width)) in
        samples.into_iter().flat_map(|n| sizes.map(|it| (n, it)))
    {
        let Ok(shape) = Shape::new(batch, channels, Extents::from([height, width])) else {
            continue;
        };
        for ((k, stride), layout) in windows.clone().flat_map(|window| {
            [Layout::ChannelsLast, Layout::ChannelsFirst].map(|layout| (window, layout))
        }) {
            let high = k.min(height);
            let window = Window::new([high, k]).stride([stride, stride]).padding([0, k / 2]);
            let Ok(pooling) = Pooling::new(shape, &window, layout) else { continue };
            for (reduction, dtype) in
                reductions.iter().flat_map(|it| [DType::F32, DType::BF16].map(|of| (*it, of)))
            {
                for (gradient, device) in [false, true]
                    .into_iter()
                    .flat_map(|it| [GPU, PROCESSOR, SHADING].map(|device| (it, device)))
                {
                    let problem = Problem { gradient, ..Problem::new(&pooling, reduction, dtype) };
                    let Ok(plan) = Plan::new(problem, &device) else { continue };
                    let seconds = plan.seconds(problem, &device);
                    assert!(seconds.is_finite() && seconds > 0.0, "{seconds}: {plan:?}");
                    planned += 1;
                }
            }
        }
    }
    assert!(planned > 1_000, "{planned}");
}

/// Every kernel has one verdict, and the chosen one is the plan's.
#[test]
fn every_kernel_is_explained() {
    let max = Reduction::max(Output::Values);
    let indexed = Reduction::max(Output::ValuesAndIndices(IndexBase::Plane));
    let (mean, norm) = (Reduction::Average(Divisor::Valid), Reduction::Norm(Exponent::new(2.0)));
    for (reduction, gradient) in
        [(max, false), (indexed, true), (mean, false), (mean, true), (norm, false), (norm, true)]
    {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            for device in [&GPU, &PROCESSOR, &SHADING] {
                let pooling = pooling(4, 6, layout);
                let problem = Problem { gradient, ..Problem::new(&pooling, reduction, DType::F32) };
                let verdicts = Plan::explain(problem, device).unwrap();
                for algorithm in Algorithm::ALL {
                    let of = verdicts.iter().filter(|(named, _)| named == algorithm);
                    assert_eq!(of.count(), 1, "{algorithm}");
                }
                let is_chosen = |verdict: &Verdict| matches!(verdict, Verdict::Chosen { .. });
                let chosen = verdicts.iter().filter(|(_, verdict)| is_chosen(verdict));
                let chosen: Vec<_> = chosen.map(|(algorithm, _)| *algorithm).collect();
                let plan = Plan::new(problem, device).unwrap();
                assert_eq!(chosen, [plan.algorithm()], "{reduction} {layout}");
            }
        }
    }
}

/// Every kernel has an estimate, or refuses, for no samples and for the smallest inputs.
#[test]
fn empty_and_tiny_problems_have_plans() {
    let reductions = [
        Reduction::max(Output::Values),
        Reduction::max(Output::ValuesAndIndices(IndexBase::Plane)),
        Reduction::Average(Divisor::Padded),
        Reduction::Rank(Rank::MEDIAN),
    ];
    let layouts = [Layout::ChannelsLast, Layout::ChannelsFirst];
    let [few, more, most] = [[1, 1, 1], [1, 2, 3], [3, 5, 1]];
    for Profile { name, capabilities: device } in profiles::PROFILES {
        for (batch, channels, input) in
            [few, more, most].iter().flat_map(|input| [(0, 1, input), (0, 8, input), (1, 1, input)])
        {
            for (kernel, layout) in
                [1, 2, 4, 31].iter().flat_map(|kernel| layouts.map(|layout| (*kernel, layout)))
            {
                for rank in 1..=3 {
                    let extents = |three: &[usize]| Extents::try_from(&three[3 - rank..]).unwrap();
                    let shape = Shape::new(batch, channels, extents(input)).unwrap();
                    let (before, after) =
                        (extents(&[kernel / 2; 3]), extents(&[(kernel - 1) / 2; 3]));
                    let window = Window::new(extents(&[kernel; 3]));
                    let window = window.padding(Padding::Explicit { before, after });
                    let pooling = Pooling::new(shape, &window, layout).unwrap();
                    for (reduction, dtype) in reductions
                        .iter()
                        .flat_map(|it| [DType::F32, DType::F16].map(|dtype| (*it, dtype)))
                    {
                        let problem = Problem::new(&pooling, reduction, dtype);
                        for gradient in [false, !matches!(reduction, Reduction::Rank(_))] {
                            let problem = Problem { gradient, ..problem };
                            let plan = Plan::explain(problem, &device);
                            assert!(plan.is_ok(), "{name}: {problem:?}: {plan:?}");
                        }
                    }
                }
            }
        }
    }
}

/// A kernel that does not compute a problem has a printable reason.
#[test]
fn a_kernel_that_does_not_apply_has_a_reason() {
    let values = Reduction::max(Output::Values);
    let indexed = Reduction::max(Output::ValuesAndIndices(IndexBase::Plane));
    let (mean, norm) = (Reduction::Average(Divisor::Valid), Reduction::Norm(Exponent::new(2.0)));
    let small = Window::new([3, 3]).stride([2, 2]).padding([1, 1]);
    let large = Window::new([31, 31]).stride([1, 1]).padding([15, 15]);
    let global = Window::adaptive([1, 1]);
    let verdicts = |window: &Window, reduction, gradient, layout, device: &Capabilities| {
        let shape = Shape::new(2, 8, Extents::from([56, 56])).unwrap();
        let pooling = Pooling::new(shape, window, layout).unwrap();
        let problem = Problem { gradient, ..Problem::new(&pooling, reduction, DType::F32) };
        Plan::explain(problem, device).unwrap()
    };
    for (window, reduction, gradient) in [
        (&small, values, false),
        (&small, indexed, true),
        (&global, mean, false),
        (&large, values, false),
        (&small, norm, false),
        (&small, norm, true),
    ] {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            for device in [&GPU, &PROCESSOR] {
                let mut refused = 0;
                for (algorithm, verdict) in verdicts(window, reduction, gradient, layout, device) {
                    let Verdict::DoesNotApply(NotApplicable(reason)) = verdict else { continue };
                    assert!(!reason.is_empty(), "{algorithm}: {reduction} {layout}");
                    assert_eq!(verdict.to_string(), format!("does not apply: {reason}"));
                    refused += 1;
                }
                assert!(refused > 0, "{reduction} {layout}");
            }
        }
    }
    let of = |algorithm: Algorithm, window, reduction, gradient, device| {
        let all = verdicts(window, reduction, gradient, Layout::ChannelsFirst, device);
        let (_, verdict) = all.into_iter().find(|(named, _)| *named == algorithm).unwrap();
        verdict.to_string()
    };
    assert_eq!(
        of(Algorithm::CpuRows, &small, values, false, &GPU),
        "does not apply: it is for CPUs"
    );
    assert_eq!(
        of(Algorithm::SegmentedScatter, &small, indexed, true, &PROCESSOR),
        "does not apply: it is for GPUs"
    );
    assert_eq!(
        of(Algorithm::Stencil, &small, values, false, &GPU),
        "does not apply: it only computes averages"
    );
    assert_eq!(
        of(Algorithm::RegisterTile, &large, values, false, &GPU),
        "does not apply: windows have too many taps to unroll"
    );
    assert_eq!(
        of(Algorithm::RegisterTile, &global, mean, false, &GPU),
        "does not apply: window sizes follow from the input"
    );
    assert_eq!(
        of(Algorithm::GatherTile, &small, norm, true, &GPU),
        "does not apply: it computes no gradients of norms"
    );
}

/// Checks that a plan is within the limits of a device.
pub(super) fn check_limits(name: &str, plan: &Plan, problem: Problem<'_>, device: &Capabilities) {
    assert_eq!(plan.check(problem, device), Ok(()), "{name}: {plan:?}");
    let Settings { units, lanes, workspace, .. } = plan.settings;
    assert!(units <= device.units_per_cube, "{name}: {plan:?}");
    assert!(lanes * problem.dtype.size() <= device.load_bytes, "{name}: {plan:?}");
    assert!(workspace as u64 <= device.buffer_bytes, "{name}: {plan:?}");
}

/// Every known device has a plan within its limits for each problem and for its gradient.
#[test]
fn known_devices_have_plans_within_their_limits() {
    let windows = [
        Window::new([3, 3]).stride([2, 2]).padding([1, 1]),
        Window::new([3, 3]).stride([1, 1]).padding([1, 1]),
        Window::new([31, 31]).stride([1, 1]).padding([15, 15]),
        Window::adaptive([1, 1]),
    ];
    let reductions = [
        Reduction::max(Output::ValuesAndIndices(IndexBase::Plane)),
        Reduction::Average(Divisor::Valid),
        Reduction::Norm(Exponent::new(2.0)),
    ];
    for Profile { name, capabilities: device } in profiles::PROFILES {
        for (extent, channels) in [(35, 288), (112, 64), (7, 3)] {
            for (window, layout) in windows.iter().flat_map(|window| {
                [Layout::ChannelsLast, Layout::ChannelsFirst].map(|layout| (window, layout))
            }) {
                let shape = Shape::new(8, channels, Extents::from([extent, extent])).unwrap();
                let Ok(pooling) = Pooling::new(shape, window, layout) else { continue };
                for (reduction, dtype) in
                    reductions.iter().flat_map(|it| [DType::F32, DType::BF16].map(|of| (*it, of)))
                {
                    for gradient in [false, true] {
                        let problem =
                            Problem { gradient, ..Problem::new(&pooling, reduction, dtype) };
                        let plan = Plan::new(problem, &device).unwrap();
                        check_limits(name, &plan, problem, &device);
                    }
                }
            }
        }
    }
}

/// A rank or a mode has one kernel, also by the name of the one that reads every tap, and no gradient; vectors are narrow where a
/// unit keeps many taps.
#[test]
fn ranks_have_a_kernel_of_their_own() {
    let shape = Shape::new(2, 16, Extents::from([56, 56])).unwrap();
    let median = Reduction::Rank(Rank::MEDIAN);
    for device in [&GPU, &PROCESSOR, &SHADING] {
        for (extent, unrolled) in [(3, true), (5, true), (7, true), (9, false)] {
            let window = Window::new([extent; 2]).stride([1, 1]).padding([1, 1]);
            let pooling = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
            let types = [
                DType::F64,
                DType::F32,
                DType::BF16,
                DType::I64,
                DType::I32,
                DType::U32,
                DType::U8,
                DType::Bool,
            ];
            let both = |dtype| [(median, dtype), (Reduction::Mode, dtype)];
            for (reduction, dtype) in types.into_iter().flat_map(both) {
                let problem = Problem::new(&pooling, reduction, dtype);
                let plan = Plan::new(problem, device).unwrap();
                assert_eq!(plan.algorithm(), Algorithm::Rank);
                assert_eq!(plan.check(problem, device), Ok(()));
                assert_eq!(plan.settings.unrolled, unrolled);
                let named = Plan::with(Algorithm::Direct, problem, device);
                assert_eq!(named, Ok(plan));
                let wide = Plan { settings: Settings { unrolled: true, ..plan.settings }, ..plan };
                let taps = extent * extent;
                let kept = match unrolled {
                    true => Ok(()),
                    false => Err(PlanError::Unrolled { taps, limit: 49 }),
                };
                assert_eq!(wide.check(problem, device), kept);
                let refused = Plan::new(problem.backward(), device);
                assert!(matches!(refused, Err(PlanError::NotApplicable { kernel: "rank", .. })));
            }
        }
        let lanes = |extent: usize| {
            let window = Window::new([extent; 2]).stride([1, 1]);
            let pooling = Pooling::new(shape, &window, Layout::ChannelsLast).unwrap();
            Plan::new(Problem::new(&pooling, median, DType::F32), device).unwrap().settings.lanes
        };
        match device.cores {
            None => assert_eq!([lanes(3), lanes(5), lanes(7)], [4, 2, 1]),
            Some(_) => assert_eq!(lanes(7), device.load_bytes.min(64) / 4),
        }
    }
    let long = Shape::new(1, 1, Extents::from([1 << 20])).unwrap();
    let pooling = Pooling::new(long, &Window::adaptive([1]), Layout::ChannelsLast).unwrap();
    let fraction = Reduction::Rank(Rank::Fraction { part: 3000, whole: 4000 });
    let (taps, limit) = (1 << 20, LIMIT / 3000);
    let refused = Plan::new(Problem::new(&pooling, fraction, DType::F32), &GPU);
    assert_eq!(refused, Err(PlanError::TooManyTaps { taps, limit }));
    // A mode may take a pass over the window for each of its numbers.
    let mode = |dtype| Plan::new(Problem::new(&pooling, Reduction::Mode, dtype), &GPU).map(drop);
    assert_eq!(mode(DType::U8), Ok(()));
    let limit = LIMIT.isqrt();
    assert_eq!(mode(DType::I32), Err(PlanError::TooManyTaps { taps, limit }));
    let part = Reduction::Rank(Rank::Fraction { part: 3, whole: 2 });
    assert!(matches!(
        Plan::new(Problem::new(&pooling, part, DType::F32), &GPU),
        Err(PlanError::Geometry(_))
    ));
}

/// A window's planes have room in shared memory, for as few units as a cube may have.
#[test]
fn rings_of_planes_have_room() {
    let small = Capabilities { shared_bytes: 16 << 10, ..GPU };
    let plan = |planes: usize| {
        let shape = Shape::new(1, 8, Extents::from([300, 8, 8])).unwrap();
        let pooling = Pooling::new(shape, &Window::new([planes, 3, 3]), Layout::ChannelsLast);
        let (pooling, max) = (pooling.unwrap(), Reduction::max(Output::Values));
        let problem = Problem::new(&pooling, max, DType::F32).backward();
        Plan::with(Algorithm::SegmentedScatter, problem, &small).map(drop)
    };
    assert_eq!(plan(256), Ok(()));
    let refused = plan(257).unwrap_err().to_string();
    assert!(refused.contains("a ring of planes does not fit in a cube"), "{refused}");
}
