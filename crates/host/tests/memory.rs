//! Checks that the bound on memory is never less than the bytes that are allocated.

mod common;
mod windows;

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::{Numbers, convolutions};
use proptest::prelude::*;
use windowpane_geometry::{
    Convolution, Divisor, Exponent, Extents, Extremum, Filter, FilterLayout, Footprint, IndexBase,
    Layout, Pass, Pooling, Shape, Window,
};
use windowpane_host::pool::{self, Poolable};
use windowpane_host::{Element, bias_gradient, bytes, data_gradient, forward, weight_gradient};
use windowpane_reference::conv::Epilogue;
use windowpane_reference::memory::Pooled;
use windowpane_reference::pool::Algorithm;
use windows::poolings;

/// The system's allocator, which also counts the bytes in use and their maximum.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        MOST.fetch_max(USED.fetch_add(memory.size(), SeqCst) + memory.size(), SeqCst);
        // SAFETY: the caller guarantees what the system's allocator requires.
        unsafe { System.alloc(memory) }
    }

    unsafe fn alloc_zeroed(&self, memory: Memory) -> *mut u8 {
        MOST.fetch_max(USED.fetch_add(memory.size(), SeqCst) + memory.size(), SeqCst);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(memory) }
    }

    unsafe fn dealloc(&self, place: *mut u8, memory: Memory) {
        USED.fetch_sub(memory.size(), SeqCst);
        // SAFETY: as above.
        unsafe { System.dealloc(place, memory) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `work` allocates in addition to those already in use.
fn most<R>(work: impl FnOnce() -> R) -> usize {
    let before = USED.load(SeqCst);
    MOST.store(before, SeqCst);
    let result = work();
    let most = MOST.load(SeqCst) - before;
    drop(result);
    most
}

fn check<T: Element>(conv: &Convolution) -> Result<(), TestCaseError> {
    let numbers = Numbers(5);
    let (x, w) =
        (numbers.of::<T>(1, conv.input().elements()), numbers.of::<T>(2, conv.filter().elements()));
    let dy = numbers.of::<T>(3, conv.output().elements());
    for (pass, found) in [
        (Pass::Forward, most(|| forward(conv, &x, &w, Epilogue::NONE))),
        (Pass::Data, most(|| data_gradient(conv, &dy, &w))),
        (Pass::Weight, most(|| weight_gradient(conv, &dy, &x))),
        (Pass::Bias, most(|| bias_gradient(conv, &dy))),
    ] {
        let said = bytes::<T>(pass, conv);
        prop_assert!(found <= said, "{pass}: {found} bytes, not {said}, {conv:?}");
    }
    Ok(())
}

fn check_pooling<T: Poolable>(pooling: &Pooling) -> Result<(), TestCaseError> {
    let base = IndexBase::Plane;
    let x = vec![T::LOWEST; pooling.input().elements()];
    let dy = vec![T::ZERO; pooling.output().elements()];
    for algorithm in [Algorithm::Direct, Algorithm::Sliding] {
        let which = Extremum::Min;
        let indexed = || pool::extremum_with_indices(which, algorithm, pooling, base, &x);
        let (_, indices) = indexed();
        let maximum = Pooled::Max { indices: false };
        for (pooled, found) in [
            (maximum, most(|| pool::extremum(which, algorithm, pooling, &x))),
            (Pooled::Max { indices: true }, most(indexed)),
            (Pooled::Average, most(|| pool::average(algorithm, pooling, Divisor::Valid, &x))),
            (Pooled::MaxBackward, most(|| pool::max_backward(pooling, base, &dy, &indices))),
            (
                Pooled::AverageBackward,
                most(|| pool::average_backward(pooling, Divisor::Padded, &dy)),
            ),
        ] {
            let said = pool::bytes::<T>(pooled, algorithm, pooling);
            prop_assert!(found <= said, "{pooled:?}: {found} bytes, not {said}, {pooling:?}");
        }
    }
    // The reference, which computes other norms, takes seconds for large problems.
    let few = pooling.output().elements().saturating_mul(pooling.grid().taps()) < 1 << 22;
    for p in [1, 2, 3][..if few { 3 } else { 2 }].iter().copied().map(Exponent::new) {
        let found = most(|| pool::norm(pooling, p, &x));
        let said = pool::norm_bytes::<T>(pooling, p);
        prop_assert!(found <= said, "norm {p:?}: {found} bytes, not {said}, {pooling:?}");
    }
    Ok(())
}

fn check_footprint<T: Poolable>() {
    let taps: Vec<bool> = (0..21 * 21).map(|tap| tap % 20 != 7).collect();
    let footprint = Footprint::new(Extents::from([21, 21]), &taps).unwrap();
    for (channels, space) in [(3, [21, 21]), (1, [300, 400]), (5, [22, 500])] {
        let shape = Shape::new(2, channels, Extents::from(space)).unwrap();
        let pooling = Pooling::new(shape, &Window::new([21, 21]), Layout::ChannelsLast).unwrap();
        let x = vec![T::ZERO; shape.elements()];
        let found = most(|| pool::extremum_under(Extremum::Min, &pooling, footprint, &x));
        let said = pool::extremum_under_bytes::<T>(&pooling, footprint);
        assert!(found <= said, "{found} bytes, not {said}, {pooling:?}");
    }
}

/// Problems whose rows or planes are large, so that what a thread needs counts.
fn large_poolings() -> impl Iterator<Item = Pooling> {
    let of = |channels, space: [usize; 2], window: Window, layout| {
        let shape = Shape::new(1, channels, Extents::from(space)).unwrap();
        Pooling::new(shape, &window, layout).unwrap()
    };
    let box_of = |k: usize| Window::new([k, k]).padding([k / 2, k / 2]);
    [Layout::ChannelsFirst, Layout::ChannelsLast].into_iter().flat_map(move |layout| {
        [
            of(1, [900, 700], box_of(15), layout),
            of(1, [30, 20_000], box_of(31), layout),
            of(700, [40, 30], box_of(3), layout),
            of(64, [50, 60], Window::adaptive(1), layout),
            of(64, [50, 60], Window::adaptive([7, 7]), layout),
            of(1, [400, 300], box_of(299), layout),
            of(1, [5, 4096], box_of(301), layout),
            of(2, [448, 448], Window::new([112, 112]).stride([112, 112]), layout),
        ]
    })
}

/// One test, because it counts the bytes of the whole program.
#[test]
fn memory_is_never_less_than_what_is_allocated() {
    for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
        let problem = |[channels, filters, groups]: [usize; 3],
                       space: [usize; 2],
                       window: Window| {
            let shape = Shape::new(2, channels, Extents::from(space)).unwrap();
            let filter = Filter::new(filters, channels / groups, window.kernel().unwrap()).unwrap();
            Convolution::new(shape, filter, &window, groups, layout, FilterLayout::Hwcf).unwrap()
        };
        let same = |k: usize| Window::new([k, k]).padding([k / 2, k / 2]);
        for conv in [
            problem([24, 16, 1], [64, 64], same(3)),
            problem([512, 512, 1], [7, 7], same(3)),
            problem([3, 64, 1], [90, 90], same(7).stride([2, 2])),
            problem([96, 96, 96], [50, 50], same(7)),
            problem([64, 64, 8], [40, 40], same(3).stride([3, 3])),
            problem([1, 700, 1], [30, 30], Window::new([1, 1])),
            problem([1, 1, 1], [300, 300], same(31)),
        ] {
            check::<f32>(&conv).unwrap();
            check::<f64>(&conv).unwrap();
            check::<half::f16>(&conv).unwrap();
        }
    }
    let runner = &mut proptest::test_runner::TestRunner::default();
    runner.run(&convolutions(30), |conv| check::<f32>(&conv)).unwrap();
    for pooling in large_poolings() {
        check_pooling::<f32>(&pooling).unwrap();
    }
    runner.run(&poolings(), |pooling| check_pooling::<f32>(&pooling)).unwrap();
    check_footprint::<half::f16>();
    check_footprint::<f64>();
    problems_without_memory_are_counted();
}

fn problems_without_memory_are_counted() {
    let line = |batch, channels| {
        let input = Shape::new(batch, channels, Extents::from([1 << 30])).unwrap();
        let filter = Filter::new(channels, channels, Extents::from([1])).unwrap();
        let (window, layout) = (Window::new([1]), Layout::ChannelsLast);
        Convolution::new(input, filter, &window, 1, layout, FilterLayout::Fhwc).unwrap()
    };
    assert!(bytes::<f64>(Pass::Forward, &line(1, 1)) >= 8 << 30);
    assert_eq!(bytes::<f64>(Pass::Data, &line(1 << 31, 1)), usize::MAX);
    let long = Filter::new(1, 1, Extents::from([1 << 30])).unwrap();
    let input = Shape::new(1, 1, Extents::from([1 << 30])).unwrap();
    let (window, layout) = (Window::new([1 << 30]), Layout::ChannelsLast);
    let conv = Convolution::new(input, long, &window, 1, layout, FilterLayout::Fhwc).unwrap();
    assert!(bytes::<f32>(Pass::Weight, &conv) >= 4 << 30);
    let pooling = Pooling::new(input, &Window::new([1]), layout).unwrap();
    let said = pool::bytes::<f64>(Pooled::Average, Algorithm::Direct, &pooling);
    assert!((8 << 30..usize::MAX).contains(&said));
}
