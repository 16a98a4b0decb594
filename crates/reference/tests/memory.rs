//! Checks that the bounds of `memory` are never less than the bytes that are allocated.

mod common;

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use proptest::prelude::*;
use windowpane_geometry::{
    Convolution, Divisor, Exponent, Extents, Filter, FilterLayout, Fractional, IndexBase, Layout,
    Padded, PaddingMode, Pass, Pooling, Rank, Shape, Window,
};
use windowpane_reference::memory::{self, Pooled};
use windowpane_reference::pool::{
    self, Algorithm, backward, deque, direct, fractional, lp, mode, prefix, rank, stochastic,
    unpool,
};
use windowpane_reference::{Scalar, conv, pad};

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

/// Compares every function of a pooling with the bound on its memory.
fn check_pooling<T: Scalar>(pooling: &Pooling) -> Result<(), TestCaseError> {
    let (x, dy) = (
        vec![T::from_f64(1.0); pooling.input().elements()],
        vec![T::from_f64(1.0); pooling.output().elements()],
    );
    let base = IndexBase::Plane;
    let (_, at) = direct::max_with_indices(pooling, base, &x);
    let p = Exponent::new(3);
    let divisor = Divisor::Valid;
    let check = |pooled, algorithm, work: &dyn Fn() -> Box<dyn std::any::Any>| {
        let (said, found) = (memory::pooling::<T>(pooled, algorithm, pooling), most(work));
        prop_assert!(
            found <= said,
            "{pooled:?} {algorithm}: {found} bytes, not {said}, {pooling:?}"
        );
        Ok(())
    };
    use Algorithm::{Direct, Sliding};
    let max = Pooled::Max { indices: false };
    let indexed = Pooled::Max { indices: true };
    check(max, Direct, &|| Box::new(direct::max(pooling, &x)))?;
    check(max, Sliding, &|| Box::new(deque::max(pooling, &x)))?;
    check(indexed, Direct, &|| Box::new(direct::max_with_indices(pooling, base, &x)))?;
    check(indexed, Sliding, &|| Box::new(deque::max_with_indices(pooling, base, &x)))?;
    check(Pooled::Average, Direct, &|| Box::new(direct::average(pooling, divisor, &x)))?;
    check(Pooled::Average, Sliding, &|| Box::new(prefix::average(pooling, divisor, &x)))?;
    check(Pooled::Norm, Direct, &|| Box::new(lp::norm(pooling, p, &x)))?;
    check(Pooled::Rank, Direct, &|| Box::new(rank::rank(pooling, Rank::MEDIAN, &x)))?;
    check(Pooled::Mode, Direct, &|| Box::new(mode::mode(pooling, &x)))?;
    check(Pooled::Drawn, Direct, &|| {
        Box::new(stochastic::drawn(pooling, 1, IndexBase::Plane, &x))
    })?;
    check(Pooled::MeanDrawn, Direct, &|| Box::new(stochastic::mean(pooling, &x)))?;
    check(Pooled::MaxBackward, Direct, &|| {
        Box::new(backward::max_backward(pooling, base, &dy, &at).expect("its own indices"))
    })?;
    check(Pooled::AverageBackward, Direct, &|| {
        Box::new(backward::average_backward(pooling, divisor, &dy))
    })?;
    check(Pooled::NormBackward, Direct, &|| Box::new(lp::norm_backward(pooling, p, &dy, &x)))?;
    check(Pooled::Unpool, Direct, &|| {
        Box::new(unpool::max_unpool(pooling, base, &dy, &at).expect("its own indices"))
    })?;
    check(Pooled::UnpoolBackward, Direct, &|| {
        Box::new(unpool::max_unpool_backward(pooling, base, &x, &at).expect("its own indices"))
    })
}

fn pooling(
    batch: usize,
    channels: usize,
    input: Extents,
    window: Window,
    layout: Layout,
) -> Pooling {
    Pooling::new(Shape::new(batch, channels, input).unwrap(), &window, layout).unwrap()
}

/// The problems are large enough that their own memory exceeds the constant part of the bound.
#[test]
fn memory_is_never_less_than_what_is_allocated() {
    // The first call starts the workers, which allocate their own stacks and lists.
    pool::max(
        &pooling(64, 64, Extents::from([64]), Window::new([2]), Layout::ChannelsLast),
        &[0.5f32; 64 * 64 * 64],
    );
    for layout in [Layout::ChannelsLast, Layout::ChannelsFirst] {
        let line = Extents::from([1 << 13]);
        let plane = Extents::from([60, 140]);
        let windows = [
            (line, Window::adaptive([1])),
            (line, Window::adaptive([1000])),
            (line, Window::new([60]).stride([1]).padding([59])),
            (line, Window::new([3]).stride([1]).dilation([1000]).padding([1 << 13])),
            (plane, Window::new([3, 3]).stride([2, 2]).padding([1, 1])),
            (plane, Window::new([1, 50]).stride([1, 1])),
            (plane, Window::new([20, 2]).stride([1, 1]).padding([19, 1])),
            (Extents::from([4, 4]), Window::new([2, 2]).stride([1, 1]).padding([150, 150])),
        ];
        for (input, window) in windows {
            for (batch, channels) in [(1, 1), (3, 1), (1, 40)] {
                let pooling = pooling(batch, channels, input, window, layout);
                check_pooling::<f32>(&pooling).unwrap();
            }
            check_pooling::<u8>(&pooling(2, 1, input, window, layout)).unwrap();
            check_pooling::<f64>(&pooling(2, 1, input, window, layout)).unwrap();
        }
    }
    let runner = &mut proptest::test_runner::TestRunner::default();
    runner.run(&common::poolings(), |pooling| check_pooling::<f32>(&pooling)).unwrap();
    check_fractional();
    check_convolutions();
}

fn check_fractional() {
    let planes = Shape::new(2, 3, Extents::from([300, 200])).unwrap();
    let (kernel, output) = (Extents::from(2), Extents::from([250, 190]));
    let problem = Fractional::new(planes, kernel, output, Layout::ChannelsLast).unwrap();
    let x = vec![1f32; planes.elements()];
    let found = most(|| {
        let samples: Vec<f32> = problem.samples(1).collect();
        fractional::max_with_indices(&problem, &samples, IndexBase::Plane, &x)
    });
    let said = memory::fractional::<f32>(&problem);
    assert!(found <= said, "fractional: {found} bytes, not {said}");
}

fn check_convolutions() {
    let image = Shape::new(4, 24, Extents::from([64, 64])).unwrap();
    let filter = Filter::new(16, 24, Extents::from([3, 3])).unwrap();
    let window = Window::new([3, 3]).padding([1, 1]);
    let conv =
        Convolution::new(image, filter, &window, 1, Layout::ChannelsLast, FilterLayout::Fhwc)
            .unwrap();
    let of = |elements: usize| vec![1f32; elements];
    let (x, w) = (of(conv.input().elements()), of(conv.filter().elements()));
    let dy = of(conv.output().elements());
    for (pass, found) in [
        (Pass::Forward, most(|| conv::forward(&conv, &x, &w, conv::Epilogue::NONE))),
        (Pass::Data, most(|| conv::data_gradient(&conv, &dy, &w))),
        (Pass::Weight, most(|| conv::weight_gradient(&conv, &dy, &x))),
        (Pass::Bias, most(|| conv::bias_gradient(&conv, &dy))),
    ] {
        let said = memory::convolution::<f32>(pass, &conv);
        assert!(found <= said, "{pass}: {found} bytes, not {said}");
    }
    let padded = Padded::new(image, 40.into(), PaddingMode::Reflect, Layout::ChannelsLast).unwrap();
    let dy = of(padded.output().elements());
    for (gradient, found) in [
        (false, most(|| pad::pad(&padded, 0.0, &x))),
        (true, most(|| pad::pad_gradient(&padded, &dy))),
    ] {
        let said = memory::padded::<f32>(&padded, gradient);
        assert!(found <= said, "padding, gradient {gradient}: {found} bytes, not {said}");
    }
}

/// A global window over a long line holds no list of its taps.
#[test]
fn long_windows_take_no_more_memory_than_their_results() {
    let line = pooling(1, 1, Extents::from([1 << 30]), Window::adaptive([1]), Layout::ChannelsLast);
    for pooled in [Pooled::Max { indices: true }, Pooled::Average, Pooled::Norm] {
        assert!(memory::pooling::<f32>(pooled, Algorithm::Direct, &line) < 64 << 20, "{pooled:?}");
    }
}

#[test]
fn bytes_that_cannot_be_counted_are_the_most() {
    let line = |batch| {
        let input = Shape::new(batch, 1, Extents::from([1 << 30])).unwrap();
        Pooling::new(input, &Window::new([1]), Layout::ChannelsLast).unwrap()
    };
    let bytes =
        |batch| memory::pooling::<f64>(Pooled::AverageBackward, Algorithm::Direct, &line(batch));
    assert!(bytes(1) > 32 << 30);
    assert_eq!(bytes(1 << 31), usize::MAX);
}
