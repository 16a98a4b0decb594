//! Which kernel is chosen for a problem and a device, and which requests are rejected.

use windowpane_geometry::{
    Change, DType, Error, Extents, Filter, FilterLayout, LIMIT, Layout, Precision, Quantity, Shape,
    Window,
};

use super::*;
use crate::device::profiles::{self, PLAIN_GPU, PROCESSOR, Profile, SHADING_GPU};
use crate::error::Verdict;

/// A GPU with matrix units.
pub(super) const GPU: Capabilities =
    Capabilities { matrix: profiles::H200.capabilities.matrix, mma_registers: true, ..PLAIN_GPU };
/// As much shared memory as the largest GPUs have.
const LARGE: Capabilities = Capabilities { shared_bytes: 227 << 10, ..GPU };
/// One H200.
const HOPPER: Capabilities = Capabilities {
    wgmma: true,
    multiprocessors: Some(132),
    cache_bytes: profiles::H200.capabilities.cache_bytes,
    speeds: profiles::H200.capabilities.speeds,
    ..LARGE
};
const PLAIN: Capabilities = PLAIN_GPU;

const F32: Request =
    Request { pass: Pass::Forward, dtype: DType::F32, precision: Precision::Strict };
const BF16: Request = Request { dtype: DType::BF16, ..F32 };
const TF32: Request = Request { precision: Precision::Tf32, ..F32 };
const INT8: Request = Request { dtype: DType::I8, ..F32 };

/// A layer of 3 by 3 taps on 28 by 28 pixels.
pub(super) fn conv(batch: usize, channels: usize, filters: usize, groups: usize) -> Convolution {
    let shape = Shape::new(batch, channels, Extents::from([28, 28])).unwrap();
    let filter = Filter::new(filters, channels / groups, Extents::from([3, 3])).unwrap();
    let window = Window::new([3, 3]).padding([1, 1]);
    let layout = FilterLayout::Fhwc;
    Convolution::new(shape, filter, &window, groups, Layout::ChannelsLast, layout).unwrap()
}

fn plan(conv: &Convolution, request: Request, device: &Capabilities) -> Result<Plan, PlanError> {
    Plan::new(conv, request, PlanOptions::default(), device)
}

fn algorithm(conv: &Convolution, request: Request, device: &Capabilities) -> Algorithm {
    plan(conv, request, device).unwrap().algorithm()
}

#[test]
fn each_device_has_its_kernel() {
    let dense = conv(8, 64, 128, 1);
    assert_eq!(algorithm(&dense, F32, &GPU), Algorithm::Simt);
    assert_eq!(algorithm(&dense, BF16, &GPU), Algorithm::Mma);
    assert_eq!(algorithm(&dense, TF32, &GPU), Algorithm::Mma);
    assert_eq!(algorithm(&dense, BF16, &PLAIN), Algorithm::Simt);
    assert_eq!(
        algorithm(&dense, BF16, &Capabilities { shared_bytes: 0, ..PLAIN }),
        Algorithm::Direct
    );
    assert_eq!(algorithm(&dense, F32, &PROCESSOR), Algorithm::Cpu);
    for device in [GPU, PROCESSOR] {
        assert_eq!(algorithm(&conv(8, 64, 64, 64), F32, &device), Algorithm::Depthwise);
    }
    // Matrix units are faster except for groups with very few channels.
    let [few, more] = [conv(8, 256, 256, 32), conv(8, 256, 256, 16)];
    assert_eq!(algorithm(&few, F32, &GPU), Algorithm::Grouped);
    assert_eq!(algorithm(&few, BF16, &GPU), Algorithm::GroupedMma);
    assert_eq!(algorithm(&few, BF16, &PLAIN), Algorithm::Grouped);
    // A walk of matrix units is 56 windows wide, most of which would be outside these small images.
    assert_eq!(algorithm(&conv(64, 64, 64, 64), BF16, &GPU), Algorithm::Depthwise);
    assert_eq!(algorithm(&more, F32, &GPU), Algorithm::Grouped);
    assert_eq!(algorithm(&more, BF16, &GPU), Algorithm::Mma);
    assert_eq!(algorithm(&few, F32, &PROCESSOR), Algorithm::Cpu);
}

/// A quantized convolution is planned as one of integers: by matrix units that have them, and in 32 bits, with room for
/// the copies, where kernels have no integers of 8 bits.
#[test]
fn quantized_convolutions_are_planned() {
    let dense = conv(8, 64, 128, 1);
    assert_eq!(algorithm(&dense, INT8, &GPU), Algorithm::Mma);
    assert_eq!(algorithm(&dense, INT8, &PLAIN), Algorithm::Simt);
    for device in [GPU, PLAIN, PROCESSOR, SHADING_GPU] {
        for groups in [1, 8, 64] {
            let conv = conv(2, 64, 64, groups);
            let plan = plan(&conv, INT8, &device).unwrap();
            assert_eq!(plan.check(&conv, INT8, &device), Ok(()));
            explain(&conv, INT8, &device).unwrap();
        }
    }
    assert_eq!(algorithm(&dense, INT8, &PROCESSOR), Algorithm::Direct);

    let packing = Capabilities { int8: false, ..SHADING_GPU };
    let packed = plan(&dense, INT8, &packing).unwrap();
    assert_eq!(packed.check(&dense, INT8, &packing), Ok(()));
    let elements = [dense.input(), dense.output()].map(|it| it.elements()).iter().sum::<usize>();
    let copies = 4 * (elements + dense.filter().elements());
    assert!(packed.workspace(&dense, INT8, &packing) >= copies);
    let unpacked = plan(&dense, INT8, &SHADING_GPU).unwrap();
    assert!(unpacked.workspace(&dense, INT8, &SHADING_GPU) < copies);

    for pass in [Pass::Data, Pass::Weight, Pass::Bias] {
        let refused = plan(&dense, Request { pass, ..INT8 }, &GPU);
        let dtype = DType::I8;
        assert_eq!(refused, Err(PlanError::FloatsOnly { operator: "convolution", dtype }));
    }
    let dtype = DType::U8;
    let refused = plan(&dense, Request { dtype, ..INT8 }, &GPU);
    assert_eq!(refused, Err(PlanError::FloatsOnly { operator: "convolution", dtype }));
    let refused = plan(&conv(1, 14_564, 1, 1), INT8, &GPU);
    let (axis, what, asked) = (None, Quantity::Terms, Some(9 * 14_564));
    let error = Error::TooLarge { axis, what, asked, limit: 131_071 };
    assert_eq!(refused, Err(PlanError::Geometry(error)));
    assert!(plan(&conv(1, 14_563, 1, 1), INT8, &GPU).is_ok());
}

/// Every plan passes its own check, for all passes, types and sizes.
#[test]
fn what_is_planned_can_run() {
    for (channels, filters, groups) in
        [(3, 64, 1), (64, 256, 1), (256, 256, 32), (7, 7, 7), (1, 1, 1), (96, 20, 4), (8, 40, 8)]
    {
        for batch in [1, 8, 512] {
            let conv = conv(batch, channels, filters, groups);
            for pass in [Pass::Forward, Pass::Data, Pass::Weight, Pass::Bias] {
                for request in [F32, BF16, Request { dtype: DType::F64, ..F32 }, TF32] {
                    let small = Capabilities { shared_bytes: 16384, ..GPU };
                    for device in [GPU, LARGE, PLAIN, PROCESSOR, HOPPER, small] {
                        let request = Request { pass, ..request };
                        match plan(&conv, request, &device) {
                            Ok(plan) => assert_eq!(plan.check(&conv, request, &device), Ok(())),
                            Err(error) => {
                                let expected = (Precision::Tf32, PlanError::NoTf32);
                                assert_eq!((request.precision, error), expected);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The tile, on which a kernel's code depends, is the same for every batch that fills the device.
#[test]
fn a_tile_does_not_depend_on_a_large_batch() {
    for request in [F32, BF16] {
        for pass in [Pass::Forward, Pass::Data, Pass::Weight] {
            for device in [GPU, LARGE, PROCESSOR] {
                for (channels, filters) in [(48, 80), (256, 512)] {
                    let request = Request { pass, ..request };
                    let conv = |batch| conv(batch, channels, filters, 1);
                    let tile = |batch| plan(&conv(batch), request, &device).unwrap().tile();
                    assert_eq!(tile(64), tile(300), "{request:?} {channels} {filters}");
                }
            }
        }
    }
}

/// Blocks are few enough for a launch, also where smaller ones would take less time.
#[test]
fn blocks_are_no_more_than_cubes() {
    let shape = Shape::new(500, 168, Extents::from([1])).unwrap();
    let filter = Filter::new(28, 168, Extents::from([1])).unwrap();
    let (window, layout) = (Window::new([1]), FilterLayout::Fhwc);
    let conv = Convolution::new(shape, filter, &window, 1, Layout::ChannelsLast, layout).unwrap();
    for (request, algorithm) in [(F32, Algorithm::Simt), (BF16, Algorithm::Mma)] {
        let options = PlanOptions { algorithm: Some(algorithm), ..PlanOptions::default() };
        let rows = |cubes| {
            let device = Capabilities { cubes, ..HOPPER };
            let plan = Plan::new(&conv, request, options, &device).unwrap();
            plan.tile().unwrap().block_m
        };
        assert_eq!(rows(HOPPER.cubes), 32);
        assert!(rows(8) >= 64);
    }
}

/// A product of few rows or columns has blocks that it fills, or its sums are split, so that most multiprocessors have
/// work.
#[test]
fn products_of_few_rows_have_small_blocks() {
    let layer = |batch, channels, filters, size: usize| {
        let shape = Shape::new(batch, channels, Extents::from([size; 2])).unwrap();
        let filter = Filter::new(filters, channels, Extents::from([1, 1])).unwrap();
        let window = Window::new([1, 1]);
        let layout = FilterLayout::Fhwc;
        Convolution::new(shape, filter, &window, 1, Layout::ChannelsLast, layout).unwrap()
    };
    let few = [layer(32, 512, 1000, 1), layer(1, 512, 256, 7), layer(32, 1512, 144, 1)];
    for (conv, pass) in few.iter().flat_map(|conv| [(conv, Pass::Forward), (conv, Pass::Data)]) {
        for (request, algorithm) in [(F32, Algorithm::Simt), (BF16, Algorithm::Mma)] {
            let request = Request { pass, ..request };
            let options = PlanOptions { algorithm: Some(algorithm), ..PlanOptions::default() };
            let plan = Plan::new(conv, request, options, &HOPPER).unwrap();
            let tile = plan.tile().unwrap();
            let rows = conv.output().batch() * conv.output().plane();
            assert!(tile.block_m as usize <= rows.next_power_of_two().max(32), "{plan}");
            let columns = if pass == Pass::Forward {
                conv.filter().count()
            } else {
                conv.filter().channels()
            };
            let blocks =
                rows.div_ceil(tile.block_m as usize) * columns.div_ceil(tile.block_n as usize);
            assert!(blocks * plan.splits >= 16, "{plan}");
        }
    }
}

/// The largest blocks are used for 16-bit factors with whole loads through LLVM, if they fit.
#[test]
fn blocks_of_matrix_units_are_as_large_as_they_can_be() {
    let blocks = |channels, filters, request, device: &Capabilities| {
        let options = PlanOptions { algorithm: Some(Algorithm::Mma), ..PlanOptions::default() };
        let plan = Plan::new(&conv(8, channels, filters, 1), request, options, device);
        let tile = plan.unwrap().tile().unwrap();
        [tile.block_m, tile.block_n, tile.block_k, tile.ratio_m, tile.ratio_n]
    };
    assert_eq!(blocks(256, 256, BF16, &LARGE), [128, 256, 64, 4, 4]);
    assert_eq!(blocks(256, 256, BF16, &GPU), [128, 128, 32, 4, 4]);
    assert_eq!(blocks(256, 128, BF16, &LARGE), [128, 128, 32, 4, 4]);
    let shading = Capabilities { matrix: GPU.matrix, ..profiles::SHADING_GPU };
    assert_eq!(blocks(256, 256, BF16, &shading), [128, 128, 32, 4, 2]);
    assert_eq!(blocks(3, 256, BF16, &LARGE), [128, 128, 32, 4, 2]);
    assert_eq!(blocks(256, 256, TF32, &LARGE), [128, 128, 16, 4, 2]);
    assert_eq!(blocks(256, 64, BF16, &LARGE), [128, 64, 32, 2, 2]);
}

#[test]
fn an_impossible_tile_is_refused_by_its_limit() {
    let conv = conv(8, 64, 128, 1);
    let refused = |text: &str, request: Request, device: &Capabilities| {
        let options = PlanOptions { tile: text.parse().unwrap(), ..PlanOptions::default() };
        Plan::new(&conv, request, options, device).unwrap_err().to_string()
    };
    for request in [F32, BF16, TF32] {
        assert!(refused("block_m=100", request, &GPU).contains("block_m=100 was requested"));
        assert!(refused("block_n=4096", request, &GPU).contains("block_n=4096 was requested"));
        assert!(refused("block_k=5", request, &GPU).contains("block_k=5 was requested"));
        assert!(refused("ratio_m=64", request, &GPU).contains("accumulators per thread"));
        assert!(refused("stages=3", request, &GPU).contains("stages=3 was requested"));
        assert!(
            refused("elems_per_thread=3", request, &GPU)
                .contains("elems_per_thread=3 was requested")
        );
        assert!(refused("elems_per_thread=64", request, &GPU).contains("power of two"));
        assert!(refused("block_m=256,block_n=256,block_k=128", request, &GPU).contains("49152"));
    }
    let units = refused("ratio_m=1,ratio_n=1,block_m=256,block_n=256,block_k=8", F32, &GPU);
    assert!(units.contains("4096 threads per block were requested"), "{units}");
    assert!(refused("block_m=7", F32, &PROCESSOR).contains("block_m=7 was requested"));
    // Numbers that follow from others need not be requested.
    let rows = |text: &str| {
        let options = PlanOptions {
            tile: text.parse().unwrap(),
            algorithm: Some(Algorithm::Cpu),
            arrangement: None,
        };
        Plan::new(&conv, F32, options, &PROCESSOR).map(|plan| plan.tile().unwrap().block_m)
    };
    assert_eq!([rows("ratio_m=3"), rows("ratio_m=3,block_m=3")], [Ok(3), Ok(3)]);
    assert!(refused("ratio_m=3,block_m=6", F32, &PROCESSOR).contains("block_m=6 was requested"));
    assert!(refused("ratio_m=1000", F32, &PROCESSOR).contains("accumulators per thread"));
    // The error names the quantity that a number must divide.
    let bands = |text: &str| {
        let algorithm = Some(Algorithm::GroupedMma);
        let options = PlanOptions { tile: text.parse().unwrap(), algorithm, arrangement: None };
        Plan::new(&self::conv(8, 96, 96, 24), BF16, options, &GPU).unwrap_err().to_string()
    };
    assert!(bands("ratio_n=3").contains("ratio_n=3 was requested, which does not divide"));
    assert!(
        bands("block_n=64").contains("block_n=64 was requested, which does not divide 96 channels")
    );
    assert!(refused("block_k=2", F32, &PROCESSOR).contains("block_k=2 was requested"));
}

/// The channels that a cube computes in a depthwise weight gradient are a number of its tile.
#[test]
fn depthwise_weight_gradients_have_the_requested_channels() {
    let conv = conv(8, 64, 64, 64);
    let config = |pass, text: &str| {
        let algorithm = Some(Algorithm::Depthwise);
        let options = PlanOptions { tile: text.parse().unwrap(), algorithm, arrangement: None };
        let plan = Plan::new(&conv, Request { pass, ..BF16 }, options, &GPU);
        plan.map_or_else(|error| error.to_string(), |plan| plan.config.to_string())
    };
    assert!(config(Pass::Weight, "block_n=48").ends_with("lines=3,lanes=2,vectors=8"));
    for (pass, text) in [
        (Pass::Weight, "block_n=8"),
        (Pass::Weight, "block_n=1024"),
        (Pass::Forward, "ratio_n=1,block_n=32"),
    ] {
        let refused = config(pass, text);
        assert!(refused.contains("was requested; the rest of the tile takes"), "{refused}");
    }
}

/// A search may halve a number of the tile to zero.
#[test]
fn a_tile_of_nothing_is_refused_by_every_kernel() {
    let (conv, none, all) = (conv(8, 64, 128, 1), Some(0), TileOverrides::default());
    let tiles = [
        TileOverrides { block_m: none, ..all },
        TileOverrides { block_n: none, ..all },
        TileOverrides { block_k: none, ..all },
        TileOverrides { ratio_m: none, ..all },
        TileOverrides { ratio_n: none, ..all },
        TileOverrides { stages: none, ..all },
    ];
    for pass in [Pass::Forward, Pass::Data, Pass::Weight] {
        for (device, algorithm) in [GPU, PROCESSOR, HOPPER]
            .into_iter()
            .flat_map(|device| Algorithm::ALL.map(|algorithm| (device, algorithm)))
        {
            for tile in tiles {
                let options = PlanOptions { algorithm: Some(algorithm), tile, arrangement: None };
                let plan = Plan::new(&conv, Request { pass, ..BF16 }, options, &device);
                assert!(plan.is_err(), "{pass} {algorithm} {tile:?}: {plan:?}");
            }
        }
    }
}

/// Strict f32 is multiplied in parts where sums are long enough for their error bound, and where there is enough work
/// for repacking to pay off; images with three channels are repacked too.
#[test]
fn wgmma_is_chosen_where_repacking_pays() {
    let large = conv(128, 64, 64, 1);
    assert_eq!(algorithm(&large, F32, &HOPPER), Algorithm::Wgmma);
    assert_eq!(algorithm(&large, BF16, &HOPPER), Algorithm::Wgmma);
    assert_eq!(algorithm(&conv(1, 64, 64, 1), F32, &HOPPER), Algorithm::Simt);
    assert_eq!(algorithm(&conv(1, 64, 64, 1), BF16, &HOPPER), Algorithm::Wgmma);
    assert_eq!(algorithm(&conv(128, 3, 64, 1), BF16, &HOPPER), Algorithm::Wgmma);
    // With little work nothing is repacked, and single factors are loaded for plain units.
    assert_eq!(algorithm(&conv(1, 3, 64, 1), BF16, &HOPPER), Algorithm::Simt);
    assert_ne!(algorithm(&conv(1, 3, 128, 1), BF16, &HOPPER), Algorithm::Wgmma);
    let options = PlanOptions { algorithm: Some(Algorithm::Wgmma), ..PlanOptions::default() };
    let forced = |channels| Plan::new(&conv(1, channels, 64, 1), F32, options, &HOPPER);
    // 63 and 72 terms, and 32 at a corner.
    assert!(forced(7).is_err() && forced(8).is_ok());
    // The workspace shows whether operands are repacked.
    assert!(plan(&large, F32, &HOPPER).unwrap().workspace(&large, F32, &HOPPER) > 0);
    assert_eq!(plan(&large, BF16, &HOPPER).unwrap().workspace(&large, BF16, &HOPPER), 0);
}

fn channels_first(conv: Convolution) -> Convolution {
    conv.with_layouts(Layout::ChannelsFirst, FilterLayout::Fchw)
}

/// Tensors are transposed in all passes where that pays off: for warpgroups, and for other matrix units too. Small
/// tensors, and those that are read along the width, stay in their own layout.
#[test]
fn channels_first_tensors_are_transposed_where_it_pays() {
    let large = channels_first(conv(128, 64, 64, 1));
    let elements = large.input().elements() + large.output().elements();
    for pass in [Pass::Forward, Pass::Data, Pass::Weight] {
        for request in [BF16, F32, TF32].map(|request| Request { pass, ..request }) {
            if pass == Pass::Weight && request.precision == Precision::Tf32 {
                continue;
            }
            let chosen = plan(&large, request, &HOPPER).unwrap();
            let found = (chosen.algorithm(), chosen.arrangement.layout);
            assert_eq!(found, (Algorithm::Wgmma, Layout::ChannelsLast), "{request:?}");
            assert_eq!(chosen.check(&large, request, &HOPPER), Ok(()));
            // Both tensors once more, in addition to the kernel's own memory, and a result in the filters' own layout.
            let result = if pass == Pass::Weight { large.filter().elements() } else { 0 };
            let read = large.with_layouts(
                Layout::ChannelsLast,
                match pass {
                    Pass::Weight => FilterLayout::Fhwc,
                    _ => FilterLayout::Fchw,
                },
            );
            assert_eq!(
                chosen.workspace(&large, request, &HOPPER),
                chosen.workspace(&read, request, &HOPPER)
                    + request.dtype.size() * (elements + result)
            );
            let near = chosen.neighbours(&large, request, &HOPPER);
            assert!(near.iter().all(|other| other.arrangement == chosen.arrangement), "{near:?}");
            // Where the kernel's own memory is too large, another kernel is chosen.
            let own = chosen.workspace(&read, request, &HOPPER) as u64;
            let buffer_bytes = (large.input().elements() * request.dtype.size()) as u64;
            let little = Capabilities { buffer_bytes, ..HOPPER };
            if pass == Pass::Forward && own > buffer_bytes {
                let other = plan(&large, request, &little).unwrap();
                assert_ne!(other.algorithm(), Algorithm::Wgmma, "{request:?}");
                assert_eq!(other.check(&large, request, &little), Ok(()));
            }
        }
        let request = Request { pass, ..BF16 };
        // The weight gradient of a depthwise convolution is only computed with channels last.
        let not_filter = match pass {
            Pass::Weight => Layout::ChannelsLast,
            _ => Layout::ChannelsFirst,
        };
        for (conv, device, layout) in [
            (large, GPU, Layout::ChannelsLast),
            (channels_first(conv(1, 8, 8, 1)), HOPPER, Layout::ChannelsFirst),
            (channels_first(conv(128, 64, 64, 64)), HOPPER, not_filter),
        ] {
            let chosen = plan(&conv, request, &device).unwrap();
            assert_eq!(chosen.arrangement.layout, layout, "{pass} {chosen}");
        }
    }
    let bias = Request { pass: Pass::Bias, ..BF16 };
    assert_eq!(plan(&large, bias, &HOPPER).unwrap().arrangement.layout, Layout::ChannelsFirst);
    // A tile that only another kernel supports selects that kernel.
    let tile = TileOverrides { block_k: Some(32), ..TileOverrides::default() };
    let tiled =
        Plan::new(&large, BF16, PlanOptions { tile, ..PlanOptions::default() }, &HOPPER).unwrap();
    assert_eq!(tiled.algorithm(), Algorithm::Mma);
    // A search tries both layouts.
    let tried = Plan::starting_points(&large, F32, &PROCESSOR);
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        assert!(tried.iter().any(|plan| plan.arrangement.layout == layout), "{tried:?}");
    }
    // Tensors of one pixel are the same in both layouts.
    let shape = Shape::new(32, 512, Extents::from([1, 1])).unwrap();
    let (filter, window) =
        (Filter::new(256, 512, Extents::from([1, 1])).unwrap(), Window::new([1, 1]));
    let (first, fchw) = (Layout::ChannelsFirst, FilterLayout::Fchw);
    let pixel = Convolution::new(shape, filter, &window, 1, first, fchw).unwrap();
    let chosen = plan(&pixel, BF16, &HOPPER).unwrap();
    assert_eq!(
        (chosen.arrangement.layout, chosen.algorithm()),
        (Layout::ChannelsLast, Algorithm::Wgmma)
    );
    // A layout other than the tensors' own can be requested.
    let arrangement =
        Some(Arrangement { layout: Layout::ChannelsLast, ..Arrangement::own(&large) });
    let options = PlanOptions { arrangement, ..PlanOptions::default() };
    let asked = Plan::new(&large, F32, options, &PROCESSOR).unwrap();
    assert_eq!(
        (asked.arrangement.layout, asked.algorithm()),
        (Layout::ChannelsLast, Algorithm::Cpu)
    );
    assert_eq!(asked.check(&large, F32, &PROCESSOR), Ok(()));
}

/// Matrix units get filters with contiguous channels, which they load several at once.
#[test]
fn filters_with_contiguous_taps_are_transposed_where_it_pays() {
    let large = channels_first(conv(128, 64, 64, 1));
    for pass in [Pass::Forward, Pass::Data] {
        let chosen = plan(&large, Request { pass, ..BF16 }, &GPU).unwrap();
        assert_eq!(chosen.arrangement.change, Some(Change::FiltersLast), "{pass} {chosen}");
    }
    let arrangement =
        Some(Arrangement { change: Some(Change::FiltersLast), ..Arrangement::own(&large) });
    let algorithm = Some(Algorithm::Simt);
    let options = PlanOptions { algorithm, arrangement, ..PlanOptions::default() };
    let refused = Plan::new(&large, Request { pass: Pass::Weight, ..F32 }, options, &GPU);
    let reason = refused.expect_err("no filters are read").to_string();
    assert!(reason.contains("whose taps are contiguous"), "{reason}");
}

/// The weight gradient is multiplied in 16-bit parts, where its shortest sums are long enough and there is enough work.
#[test]
fn wgmma_computes_weight_gradients_where_repacking_pays() {
    let filter = Request { pass: Pass::Weight, ..F32 };
    let large = conv(128, 64, 64, 1);
    let chosen = plan(&large, filter, &HOPPER).unwrap();
    assert_eq!(chosen.algorithm(), Algorithm::Wgmma);
    assert_eq!(chosen.factors(&large, filter), "three bf16 each, six products");
    // Three parts of two bytes each, the partial sums, and flags.
    let factors = large.input().elements() + large.output().elements();
    let sums = chosen.splits * large.filter().elements();
    let most = 6 * factors + 5 * sums;
    let bytes = chosen.workspace(&large, filter, &HOPPER);
    assert!((6 * factors + 4 * sums..most).contains(&bytes), "{bytes} of {most}");
    // With another number of parts, there are flags for each of them.
    let cut = Plan { splits: 2 * chosen.splits, ..chosen };
    assert!(cut.workspace(&large, filter, &HOPPER) > bytes + 4 * sums);
    // There is little work, or most of a tile is padding.
    for (batch, channels, filters) in [(1, 64, 64), (128, 32, 32), (128, 16, 128)] {
        let small = conv(batch, channels, filters, 1);
        assert_eq!(algorithm(&small, filter, &HOPPER), Algorithm::Simt);
    }
    let options = PlanOptions { algorithm: Some(Algorithm::Wgmma), ..PlanOptions::default() };
    let forced = |conv: &Convolution| Plan::new(conv, filter, options, &HOPPER);
    assert!(forced(&conv(1, 64, 64, 1)).is_ok());
    assert!(forced(&conv(1, 64, 60, 1)).is_err(), "120 bytes are no whole chunks");
    let tiny = |side: usize| {
        let shape = Shape::new(1, 64, Extents::from([side, side])).unwrap();
        let filter = Filter::new(64, 64, Extents::from([3, 3])).unwrap();
        let window = Window::new([3, 3]).padding([1, 1]);
        let layouts = (Layout::ChannelsLast, FilterLayout::Fhwc);
        Convolution::new(shape, filter, &window, 1, layouts.0, layouts.1).unwrap()
    };
    // The taps of the corners read 49 and 64 pixels.
    assert!(forced(&tiny(8)).is_err() && forced(&tiny(9)).is_ok());
}

/// Hopper's copy engine must start at whole chunks of 16 bytes; otherwise the device is lost. So groups that start
/// elsewhere are multiplied together, computed by other kernels, or have their filters packed.
#[test]
fn wgmma_copies_start_at_whole_chunks() {
    let grouped = |groups: usize, channels: usize, filters: usize, layout: FilterLayout| {
        let shape = Shape::new(64, groups * channels, Extents::from([56, 56])).unwrap();
        let filter = Filter::new(groups * filters, channels, Extents::from([3, 3])).unwrap();
        let window = Window::new([3, 3]).padding([1, 1]);
        Convolution::new(shape, filter, &window, groups, Layout::ChannelsLast, layout).unwrap()
    };
    let options = PlanOptions { algorithm: Some(Algorithm::Wgmma), ..PlanOptions::default() };
    let can = |conv: &Convolution, pass, request: Request| {
        Plan::new(conv, Request { pass, ..request }, options, &HOPPER).is_ok()
    };
    for layout in [FilterLayout::Fhwc, FilterLayout::Hwcf] {
        for (groups, channels, filters) in
            [(96, 1, 1), (32, 2, 2), (32, 4, 4), (16, 8, 4), (16, 4, 8), (4, 20, 20), (2, 64, 4)]
        {
            let conv = grouped(groups, channels, filters, layout);
            assert!(can(&conv, Pass::Weight, BF16), "{groups} × {channels}, {filters}");
            assert!(!can(&conv, Pass::Weight, F32), "{groups} × {channels}, {filters}");
            let plan = plan(&conv, Request { pass: Pass::Weight, ..F32 }, &HOPPER);
            assert_ne!(plan.unwrap().algorithm(), Algorithm::Wgmma);
        }
        for (groups, channels) in [(16, 8), (4, 24), (2, 112)] {
            assert!(can(&grouped(groups, channels, channels, layout), Pass::Weight, BF16));
        }
        // Filters of a group that start inside a chunk are packed; others are not.
        let packs = |filters| {
            let conv = grouped(2, 64, filters, layout);
            assert!(can(&conv, Pass::Forward, BF16));
            Plan::new(&conv, BF16, options, &HOPPER).unwrap().workspace(&conv, BF16, &HOPPER) > 0
        };
        assert!(!packs(8));
        assert_eq!(packs(4), layout == FilterLayout::Hwcf);
    }
}

#[test]
fn long_sums_are_cut_and_short_ones_are_not() {
    let filter = Request { pass: Pass::Weight, ..F32 };
    assert!(plan(&conv(128, 64, 64, 1), filter, &GPU).unwrap().splits > 8);
    assert_eq!(
        plan(&conv(1, 4, 4, 1), Request { pass: Pass::Data, ..F32 }, &GPU).unwrap().splits,
        1
    );
    let bias = Request { pass: Pass::Bias, ..F32 };
    let plan = plan(&conv(128, 64, 64, 1), bias, &GPU).unwrap();
    assert!(plan.splits > 8 && plan.workspace(&conv(128, 64, 64, 1), bias, &GPU) > 0, "{plan:?}");
}

/// A plan is only valid for the kernel and the type that it was made for.
#[test]
fn what_a_plan_was_made_for_stays() {
    let conv = conv(8, 64, 128, 1);
    let options = PlanOptions { algorithm: Some(Algorithm::Simt), ..PlanOptions::default() };
    let f16 = Request { dtype: DType::F16, ..F32 };
    let simt = Plan::new(&conv, f16, options, &GPU).unwrap();
    assert_eq!(simt.check(&conv, f16, &GPU), Ok(()));
    let matrix = plan(&conv, f16, &GPU).unwrap();
    assert_eq!(matrix.algorithm(), Algorithm::Mma);
    let other = Plan { config: matrix.config, ..simt };
    assert!(other.check(&conv, F32, &GPU).is_err(), "f32 has no matrix units");
    let wrong = Plan { units: simt.units / 2, ..simt };
    let (units, expected) = (wrong.units, simt.units);
    assert_eq!(wrong.check(&conv, f16, &GPU), Err(PlanError::UnitsOfTile { units, expected }));
    let matrix = plan(&conv, BF16, &GPU).unwrap();
    assert_eq!(matrix.check(&conv, BF16, &GPU), Ok(()));
    let other = Capabilities { plane: Some(64), ..GPU };
    assert!(matrix.check(&conv, BF16, &other).is_err(), "its planes are of 32");
}

/// Products with more lines than the device has cubes for are not computed in blocks.
#[test]
fn long_products_are_blocks_where_cubes_are_many() {
    let long = {
        let shape = Shape::new(1, 4, Extents::from([3000, 3000])).unwrap();
        let filter = Filter::new(4, 4, Extents::from([1, 1])).unwrap();
        let (layout, fhwc) = (Layout::ChannelsLast, FilterLayout::Fhwc);
        Convolution::new(shape, filter, &Window::new([1, 1]), 1, layout, fhwc).unwrap()
    };
    assert_eq!(algorithm(&long, F32, &PLAIN), Algorithm::Direct);
    assert_eq!(algorithm(&long, F32, &Capabilities { cubes: u32::MAX, ..PLAIN }), Algorithm::Simt);
    let simt = plan(&long, F32, &Capabilities { cubes: u32::MAX, ..PLAIN }).unwrap();
    assert!(simt.check(&long, F32, &PLAIN).is_err());
}

/// Windows or taps that are far apart are not unrolled in runs.
#[test]
fn far_steps_are_not_for_runs() {
    let depthwise = |stride, dilation| {
        let shape = Shape::new(1, 32, Extents::from([1, 4096])).unwrap();
        let filter = Filter::new(32, 1, Extents::from([1, 3])).unwrap();
        let window = Window::new([1, 3]).stride([1, stride]).dilation([1, dilation]);
        let (layout, fhwc) = (Layout::ChannelsLast, FilterLayout::Fhwc);
        let conv = Convolution::new(shape, filter, &window, 32, layout, fhwc).unwrap();
        algorithm(&conv, F32, &PLAIN)
    };
    assert_eq!(depthwise(1, 1), Algorithm::Depthwise);
    assert_ne!(depthwise(1 << 29, 1), Algorithm::Depthwise);
    assert_ne!(depthwise(1, 1000), Algorithm::Depthwise);
}

#[test]
fn tf32_is_of_f32_and_of_matrix_units() {
    let conv = conv(1, 8, 8, 1);
    let of_bf16 = Request { dtype: DType::BF16, ..TF32 };
    assert!(matches!(plan(&conv, of_bf16, &GPU), Err(PlanError::Tf32OfOther { .. })));
    assert_eq!(plan(&conv, TF32, &PLAIN), Err(PlanError::NoTf32));
    let options = PlanOptions { algorithm: Some(Algorithm::Simt), ..PlanOptions::default() };
    assert!(Plan::new(&conv, TF32, options, &GPU).is_err());
}

/// `check` returns a result for any values in the fields of a plan, and an accepted plan has a workspace that the
/// device can bind.
#[test]
fn any_numbers_are_checked() {
    const NUMBERS: [u32; 11] = [0, 1, 2, 3, 4, 16, 64, 256, 65_536, 1 << 31, u32::MAX];
    let numbers: [fn(&mut TileOverrides) -> &mut Option<u32>; 7] = [
        |overrides| &mut overrides.block_m,
        |overrides| &mut overrides.block_n,
        |overrides| &mut overrides.block_k,
        |overrides| &mut overrides.ratio_m,
        |overrides| &mut overrides.ratio_n,
        |overrides| &mut overrides.elems_per_thread,
        |overrides| &mut overrides.stages,
    ];
    let (mut checked, mut accepted) = (0, 0);
    let mut check = |plan: &Plan, conv: &Convolution, request, device: &Capabilities| {
        checked += 1;
        if plan.check(conv, request, device).is_ok() {
            accepted += 1;
            assert!(
                plan.workspace(conv, request, device) as u64 <= device.buffer_bytes,
                "{plan:?}"
            );
        }
    };
    for conv in [conv(2, 64, 64, 1), conv(2, 64, 64, 64), conv(2, 64, 64, 16), conv(1, 3, 5, 1)] {
        for device in [GPU, HOPPER, PLAIN, PROCESSOR] {
            for pass in [Pass::Forward, Pass::Data, Pass::Weight, Pass::Bias] {
                for (algorithm, request) in
                    Algorithm::ALL.iter().zip([F32, BF16, TF32].iter().cycle())
                {
                    let request = Request { pass, ..*request };
                    let options =
                        PlanOptions { algorithm: Some(*algorithm), ..PlanOptions::default() };
                    let Ok(own) = Plan::new(&conv, request, options, &device) else { continue };
                    for (n, m) in NUMBERS.iter().flat_map(|n| NUMBERS.map(|m| (*n, m))) {
                        let splits = if m == u32::MAX { usize::MAX } else { m as usize };
                        check(&Plan { units: n, splits, ..own }, &conv, request, &device);
                        for (i, first) in numbers.iter().enumerate() {
                            for second in &numbers[i..] {
                                let mut options = options;
                                *first(&mut options.tile) = Some(n);
                                *second(&mut options.tile) = Some(m);
                                if let Ok(plan) = Plan::new(&conv, request, options, &device) {
                                    check(&plan, &conv, request, &device);
                                    check(&Plan { splits, ..plan }, &conv, request, &device);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(checked > 10_000 && accepted > 1_000, "{checked} checked, {accepted} accepted");
}

/// Problems of any size have an estimated time, or are refused: no count on the way to it wraps around.
#[test]
fn any_problem_has_an_estimate() {
    let mut planned = 0;
    let sizes = [(1, 1), (1, 1 << 20), (7, LIMIT), (1 << 16, 1 << 15), (LIMIT, LIMIT)];
    let windows = [1, 3, 31, 4097].into_iter().flat_map(|k| [1, 2, LIMIT].map(|s| (k, s)));
    let filters = [(1, 1, 1), (3, 64, 1), (4096, 1 << 16, 1), (1 << 20, 1 << 20, 1 << 20)];
    for (batch, (height, width)) in [1, 65_537].into_iter().flat_map(|n| sizes.map(|it| (n, it))) {
        for ((k, stride), (channels, filters, groups)) in
            windows.clone().flat_map(|window| filters.map(|it| (window, it)))
        {
            let Ok(input) = Shape::new(batch, channels, Extents::from([height, width])) else {
                continue;
            };
            let filter = Filter::new(filters, channels / groups, Extents::from([1, k])).unwrap();
            let window = Window::new([1, k]).stride([stride, stride]).padding([0, k / 2]);
            for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
                let conv =
                    Convolution::new(input, filter, &window, groups, layout, FilterLayout::Fhwc);
                let Ok(conv) = conv else { continue };
                for pass in [Pass::Forward, Pass::Data, Pass::Weight, Pass::Bias] {
                    for (request, device) in [F32, BF16].into_iter().flat_map(|request| {
                        [HOPPER, PLAIN, PROCESSOR].map(|device| (request, device))
                    }) {
                        let request = Request { pass, ..request };
                        let Ok(plan) = plan(&conv, request, &device) else { continue };
                        let seconds = plan.seconds(Task { conv: &conv, request, device: &device });
                        assert!(seconds.is_finite() && seconds > 0.0, "{seconds}: {plan:?}");
                        planned += 1;
                    }
                }
            }
        }
    }
    assert!(planned > 1_000, "{planned}");
}

/// Exactly one kernel is chosen, the plan's; every other one has a reason.
#[test]
fn every_kernel_has_a_verdict() {
    let reason = |found: &[(Algorithm, Verdict)], kernel: Algorithm| {
        let found = found.iter().find(|(algorithm, _)| *algorithm == kernel);
        found.map(|(_, verdict)| verdict.to_string()).unwrap_or_default()
    };
    for (conv, request, device) in [
        (conv(8, 64, 128, 1), F32, GPU),
        (conv(8, 64, 128, 1), TF32, GPU),
        (conv(128, 64, 64, 1), BF16, HOPPER),
        (conv(8, 64, 64, 64), F32, PROCESSOR),
        (conv(8, 64, 64, 64), Request { pass: Pass::Bias, ..BF16 }, PLAIN),
        (channels_first(conv(128, 64, 64, 1)), BF16, HOPPER),
        (channels_first(conv(1, 8, 8, 1)), BF16, HOPPER),
        (channels_first(conv(1, 8, 8, 1)), Request { pass: Pass::Bias, ..BF16 }, HOPPER),
    ] {
        let found = explain(&conv, request, &device).unwrap();
        assert_eq!(found.len(), Algorithm::ALL.len());
        let chosen: Vec<_> =
            found.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Chosen { .. })).collect();
        assert_eq!(chosen.len(), 1, "{found:?}");
        assert_eq!(chosen[0].0, algorithm(&conv, request, &device));
        for (kernel, verdict) in &found {
            let options = PlanOptions { algorithm: Some(*kernel), ..PlanOptions::default() };
            let can = Plan::new(&conv, request, options, &device).is_ok();
            let does = !matches!(verdict, Verdict::DoesNotApply(_) | Verdict::CannotRun(_));
            assert_eq!(can, does, "{kernel}: {verdict}");
        }
    }
    let dense = explain(&conv(8, 64, 128, 1), BF16, &GPU).unwrap();
    let starts = |kernel, text: &str| reason(&dense, kernel).starts_with(text);
    assert!(starts(Algorithm::Mma, "chosen: estimated "), "{dense:?}");
    assert!(starts(Algorithm::Simt, "not chosen: estimated "), "{dense:?}");
    let wgmma = "does not apply: the device has no warpgroup products (wgmma)";
    assert_eq!(reason(&dense, Algorithm::Wgmma), wgmma);
    assert_eq!(reason(&dense, Algorithm::Cpu), "does not apply: it is for CPUs");
}

/// Checks that a plan is within the limits of a device.
pub(super) fn check_limits(name: &str, plan: &Plan, Task { conv, request, device }: Task<'_>) {
    assert_eq!(plan.check(conv, request, device), Ok(()), "{name}: {plan:?}");
    assert!(plan.units <= device.units_per_cube, "{name}: {plan:?}");
    let bytes = plan.workspace(conv, request, device) as u64;
    assert!(bytes <= device.buffer_bytes, "{name}: {plan:?}");
}

/// Every device with a profile has a plan within its limits for each problem. It uses matrix units if the device has
/// them and the problem fills them.
#[test]
fn known_devices_have_plans_within_their_limits() {
    for Profile { name, capabilities: device } in profiles::PROFILES {
        for (channels, filters, groups) in
            [(3, 64, 1), (64, 256, 1), (512, 512, 1), (96, 96, 96), (256, 256, 32), (20, 12, 4)]
        {
            for batch in [1, 32] {
                let conv = conv(batch, channels, filters, groups);
                for (pass, request) in [Pass::Forward, Pass::Data, Pass::Weight, Pass::Bias]
                    .into_iter()
                    .flat_map(|pass| [F32, BF16].map(|request| (pass, Request { pass, ..request })))
                {
                    let plan = plan(&conv, request, &device).unwrap();
                    check_limits(name, &plan, Task { conv: &conv, request, device: &device });
                    let large = batch > 1 || channels > 64;
                    let fills = groups == 1 && channels >= 64 && large && pass != Pass::Bias;
                    if fills && request.dtype == DType::BF16 && device.matrix.bf16.is_some() {
                        let units = [Algorithm::Mma, Algorithm::Wgmma];
                        assert!(units.contains(&plan.algorithm()), "{name}: {plan:?}");
                    }
                }
            }
        }
    }
}

/// The partial sums of a weight gradient over blocks include those of the taps and channels that fill the blocks.
#[test]
fn partial_sums_over_blocks_are_counted() {
    let shape = Shape::new(32, 3, Extents::from([224, 224])).unwrap();
    let filter = Filter::new(48, 3, Extents::from([3, 3])).unwrap();
    let window = Window::new([3, 3]).stride([2, 2]).padding([1, 1]);
    let layout = Layout::ChannelsLast;
    let conv = Convolution::new(shape, filter, &window, 1, layout, FilterLayout::Fhwc).unwrap();
    let arrangement = Arrangement { change: Some(Change::SpaceToDepth), ..Arrangement::own(&conv) };
    let options = PlanOptions { arrangement: Some(arrangement), ..PlanOptions::default() };
    let request = Request { pass: Pass::Weight, ..BF16 };
    let mut plan = Plan::new(&conv, request, options, &HOPPER).expect("a plan");
    plan.splits = 7;
    // Two by two blocks of four pixels of three channels, with four more.
    let part = 48 * 2 * 2 * 16 * size_of::<f32>();
    assert!(plan.workspace(&conv, request, &HOPPER) >= 7 * part);
}
