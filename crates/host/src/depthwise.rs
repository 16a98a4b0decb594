//! Depthwise convolution: one filter of one channel for each channel, in vectors.
//!
//! ```text
//! for each sample, vector of channels and tile of positions, in parallel:
//!     copy the patch of the source that the tile reads
//!     for each few positions: sums = 0; for each tap: sums += patch[position + tap] · weight[tap]
//!     bias, residual, activation, rounding
//! ```
//!
//! The weight gradient holds the sums of a few taps in registers while it goes over the positions of a tile.
#![allow(
    clippy::needless_range_loop,
    reason = "loops over several arrays of constant length, which are to become registers"
)]

use pulp::{Arch, Simd, WithSimd};
use windowpane_geometry::{Convolution, Layout, Pass};
use windowpane_reference::Scalar;

use crate::dense::{Gather, SMALL};
use crate::element::Element;
use crate::finish::store;
use crate::patch::Patches;
use crate::shared::{Shared, run};
use crate::sum::Sum;
use crate::view::{Views, combinations, views};

/// The vectors whose sums are in registers.
const VECTORS: usize = 8;
/// What reads of whole vectors may touch after a patch: no vector has more lanes than 64, and no line more than 4.
const SLACK: usize = 256;

/// The lanes of a vector on this processor.
fn lanes<S: Sum>() -> usize {
    struct Lanes<S>(core::marker::PhantomData<S>);
    impl<S: Sum> WithSimd for Lanes<S> {
        type Output = usize;

        #[inline(always)]
        fn with_simd<V: Simd>(self, _: V) -> usize {
            S::lanes::<V>()
        }
    }
    Arch::new().dispatch(Lanes(core::marker::PhantomData::<S>))
}

/// Whether a convolution has one filter of one channel for each channel, and so is computed in vectors instead of matrices.
pub fn is_depthwise(conv: &Convolution) -> bool {
    conv.filter().channels() == 1 && conv.groups() == conv.filter().count()
}

/// How a view is computed in vectors.
pub(crate) struct Plan {
    patches: Patches,
    /// The vectors along the lanes of a sum of `VECTORS`.
    along: usize,
    /// The blocks of channels.
    blocks: usize,
}

impl Plan {
    pub(crate) fn new<S: Sum>(views: &Views<'_>, layout: Layout, channels: usize) -> Option<Self> {
        let lanes = lanes::<S>();
        match layout {
            Layout::ChannelsLast => {
                let along = if channels.div_ceil(lanes).is_multiple_of(2) { 2 } else { 1 };
                let blocks = channels.div_ceil(along * lanes);
                let patches = Patches::new(views, layout, along * lanes)?;
                Some(Self { patches, along, blocks })
            }
            Layout::ChannelsFirst => {
                let patches = Patches::new(views, layout, 1)?;
                let along = match patches.tile[2].div_ceil(lanes) {
                    1 => 1,
                    2 => 2,
                    _ => 4,
                };
                Some(Self { patches, along, blocks: channels })
            }
        }
    }

    /// The elements of scratch memory of a task.
    pub(crate) fn scratch(&self) -> usize {
        self.patches.elements() + SLACK + VECTORS * 64
    }

    /// The elements of the packed weights.
    pub(crate) fn weights(&self) -> usize {
        self.blocks * self.patches.channels * self.patches.taps.len()
    }
}

/// Computes one view of the result.
///
/// # Safety
/// Nobody else uses the result meanwhile.
pub(crate) unsafe fn gather<T: Element>(
    plan: &Plan,
    gather: &Gather<'_, T>,
    views: &Views<'_>,
    result: Shared<'_, T>,
) {
    let channels = gather.result_shape.channels();
    let (of_block, taps) = (plan.patches.channels, plan.patches.taps.len());
    // Tap after tap, the channels of a block.
    let mut weights = vec![T::Sum::ZERO; plan.weights()];
    for tap in 0..taps {
        let offset = gather.tap_offset(views, tap);
        for c in 0..channels {
            let at = (c / of_block * taps + tap) * of_block + c % of_block;
            weights[at] = gather.weights[offset + c * gather.weight.group].widen();
        }
    }
    let (tiles, batch) = (plan.patches.tiles(), gather.result_shape.batch());
    let products = views.plane().saturating_mul(batch * channels).saturating_mul(taps);
    run::<T::Sum>(
        batch * plan.blocks * tiles,
        plan.scratch(),
        products < SMALL,
        |task, scratch| {
            let (tile, task) = (task % tiles, task / tiles);
            let tile = Tile {
                plan,
                gather,
                views,
                weights: &weights[task % plan.blocks * of_block * taps..],
                sample: task / plan.blocks,
                channel: task % plan.blocks * of_block,
                place: plan.patches.tile(tile),
                scratch,
                result,
            };
            Arch::new().dispatch(tile);
        },
    );
}

/// One tile of a result.
struct Tile<'a, T: Element> {
    plan: &'a Plan,
    gather: &'a Gather<'a, T>,
    views: &'a Views<'a>,
    weights: &'a [T::Sum],
    sample: usize,
    channel: usize,
    place: ([usize; 3], [usize; 3]),
    scratch: &'a mut [T::Sum],
    result: Shared<'a, T>,
}

impl<T: Element> WithSimd for Tile<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let channels =
            self.plan.patches.channels.min(self.gather.result_shape.channels() - self.channel);
        let strides = self.gather.source_shape.strides(self.gather.layout);
        let of = (self.sample, self.channel, channels);
        self.plan.patches.fill(self.gather.source, &strides, of, self.place, self.scratch);
        match (self.gather.layout, self.plan.along) {
            (Layout::ChannelsLast, 2) => self.pixels::<S, 4, 2>(simd, channels),
            (Layout::ChannelsLast, _) => self.pixels::<S, 8, 1>(simd, channels),
            (Layout::ChannelsFirst, 4) => self.lines::<S, 2, 4>(simd),
            (Layout::ChannelsFirst, 2) => self.lines::<S, 4, 2>(simd),
            (Layout::ChannelsFirst, _) => self.lines::<S, 8, 1>(simd),
        }
    }
}

impl<T: Element> Tile<'_, T> {
    /// `R` neighbouring positions at a time, whose lanes are channels.
    #[inline(always)]
    fn pixels<S: Simd, const R: usize, const V: usize>(&mut self, simd: S, channels: usize) {
        let [depth, height, width] = self.place.1;
        let patches = &self.plan.patches;
        for d in 0..depth {
            for h in 0..height {
                let mut w = 0;
                while w < width {
                    let start = d * patches.step(0) + h * patches.step(1) + w * patches.step(2);
                    let several = width - w >= R;
                    if several {
                        self.sum::<S, R, V, true>(simd, start, patches.step(2));
                    } else {
                        self.sum::<S, 1, V, true>(simd, start, 0);
                    }
                    let count = if several { R } else { 1 };
                    for i in 0..count {
                        self.store([d, h, w + i], 1, i * patches.channels, channels);
                    }
                    w += count;
                }
            }
        }
    }

    /// `R` lines at a time, whose lanes are positions.
    #[inline(always)]
    fn lines<S: Simd, const R: usize, const V: usize>(&mut self, simd: S) {
        let [depth, height, width] = self.place.1;
        let patches = &self.plan.patches;
        let lanes = V * T::Sum::lanes::<S>();
        for d in 0..depth {
            let mut h = 0;
            while h < height {
                let several = height - h >= R;
                let count = if several { R } else { 1 };
                for w in (0..width).step_by(lanes) {
                    let start = d * patches.step(0) + h * patches.step(1) + w;
                    if several {
                        self.sum::<S, R, V, false>(simd, start, patches.step(1));
                    } else {
                        self.sum::<S, 1, V, false>(simd, start, 0);
                    }
                    for i in 0..count {
                        self.store([d, h + i, w], 0, i * lanes, lanes.min(width - w));
                    }
                }
                h += count;
            }
        }
    }

    /// The sums of `R` times `V` vectors, `apart` from each other and side by side, to the end of the scratch memory.
    #[inline(always)]
    fn sum<S: Simd, const R: usize, const V: usize, const LANES_HAVE_WEIGHTS: bool>(
        &mut self,
        simd: S,
        start: usize,
        apart: usize,
    ) {
        let lanes = T::Sum::lanes::<S>();
        let patches = &self.plan.patches;
        let (patch, sums) = self.scratch.split_at_mut(patches.elements() + SLACK);
        let last = start + (R - 1) * apart + V * lanes;
        let reach = patches.taps.iter().copied().max().unwrap_or(0);
        debug_assert!(last + reach <= patch.len());
        debug_assert!(R * V * lanes <= sums.len());
        let (patch, weights) = (patch.as_ptr(), self.weights.as_ptr());
        let mut totals = [[T::Sum::splat(simd, T::Sum::ZERO); V]; R];
        for (i, tap) in patches.taps.iter().enumerate() {
            let mut weight = [T::Sum::splat(simd, T::Sum::ZERO); V];
            for v in 0..V {
                // SAFETY: each tap has a weight for every channel of the patch.
                weight[v] = unsafe {
                    if LANES_HAVE_WEIGHTS {
                        T::Sum::load::<S>(weights.add((i * V + v) * lanes))
                    } else {
                        T::Sum::splat(simd, *weights.add(i))
                    }
                };
            }
            for r in 0..R {
                for v in 0..V {
                    // SAFETY: taps of positions of the tile are in its patch, and unused lanes in the slack after it.
                    let x = unsafe {
                        T::Sum::load::<S>(patch.add(start + tap + r * apart + v * lanes))
                    };
                    totals[r][v] = T::Sum::multiply_add(simd, x, weight[v], totals[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                // SAFETY: the sums have room for these vectors.
                unsafe {
                    T::Sum::store::<S>(sums.as_mut_ptr().add((r * V + v) * lanes), totals[r][v]);
                }
            }
        }
    }

    /// Completes and stores sums of neighbours, from a position of the tile on.
    #[inline(always)]
    fn store(&mut self, position: [usize; 3], step: usize, from: usize, len: usize) {
        let strides = self.gather.result_shape.strides(self.gather.layout);
        let axes = self.views.axes;
        let at = |axis: usize| {
            axes[axis].first + (self.place.0[axis] + position[axis]) * axes[axis].result_step
        };
        let start = strides.offset(self.sample, self.channel, [at(0), at(1), at(2)]);
        let apart = if step == 1 { 1 } else { axes[2].result_step };
        let sums = self.plan.patches.elements() + SLACK + from;
        let sums = &mut self.scratch[sums..sums + len];
        // SAFETY: no other task has this tile of these channels.
        unsafe {
            store(&self.gather.epilogue, sums, (self.channel, step), (start, apart), self.result);
        }
    }
}

/// The weight gradient, whose output gradients are finite; `None` if the patches would be too large.
pub(crate) fn weight_gradient<T: Element>(conv: &Convolution, dy: &[T], x: &[T]) -> Option<Vec<T>> {
    let lists = views(conv, Pass::Weight);
    let views = combinations(&lists).next()?;
    let plan = FilterPlan::new::<T::Sum>(&views, conv.layout())?;
    let mut dw = vec![T::ZERO; conv.filter().elements()];
    let result = Shared::of(&mut dw);
    let products = (conv.output().elements()).saturating_mul(views.taps());
    let blocks = conv.filter().count().div_ceil(plan.patches.channels);
    run::<T::Sum>(blocks, plan.scratch(), products < SMALL, |block, scratch| {
        let channel = block * plan.patches.channels;
        let work =
            Correlation { conv, plan: &plan, views: &views, dy, x, channel, scratch, result };
        Arch::new().dispatch(work);
    });
    Some(dw)
}

/// How the weight gradient is computed in vectors.
pub(crate) struct FilterPlan {
    patches: Patches,
    lanes: usize,
}

impl FilterPlan {
    pub(crate) fn new<S: Sum>(views: &Views<'_>, layout: Layout) -> Option<Self> {
        let lanes = lanes::<S>();
        let channels = if layout == Layout::ChannelsLast { lanes } else { 1 };
        Some(Self { patches: Patches::new(views, layout, channels)?, lanes })
    }

    /// The elements of scratch memory of a task: a patch, the output gradients of a tile, and a vector for each tap.
    pub(crate) fn scratch(&self) -> usize {
        let [patch, gradients] = self.parts();
        patch + gradients + self.patches.taps.len() * self.lanes
    }

    fn parts(&self) -> [usize; 2] {
        let positions: usize = self.patches.tile.iter().product();
        [self.patches.elements() + SLACK, positions * self.patches.channels]
    }
}

/// The weight gradient of some channels.
struct Correlation<'a, T: Element> {
    conv: &'a Convolution,
    plan: &'a FilterPlan,
    views: &'a Views<'a>,
    dy: &'a [T],
    x: &'a [T],
    channel: usize,
    scratch: &'a mut [T::Sum],
    result: Shared<'a, T>,
}

impl<T: Element> WithSimd for Correlation<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { conv, plan, views, dy, x, channel, scratch, result } = self;
        let (layout, patches) = (conv.layout(), &plan.patches);
        let channels = patches.channels.min(conv.filter().count() - channel);
        let [patch_len, gradients_len] = plan.parts();
        let (patch, rest) = scratch.split_at_mut(patch_len);
        let (gradients, sums) = rest.split_at_mut(gradients_len);
        sums.fill(T::Sum::ZERO);
        let (x_steps, dy_steps) = (conv.input().strides(layout), conv.output().strides(layout));
        for sample in 0..conv.input().batch() {
            for tile in 0..patches.tiles() {
                let place = patches.tile(tile);
                patches.fill(x, &x_steps, (sample, channel, channels), place, patch);
                let ([d0, h0, w0], [depth, height, width]) = place;
                for d in 0..depth {
                    for h in 0..height {
                        let start = dy_steps.offset(sample, channel, [d0 + d, h0 + h, w0]);
                        let line = (d * height + h) * width * patches.channels;
                        let line = &mut gradients[line..][..width * patches.channels];
                        if layout == Layout::ChannelsFirst {
                            T::widen_all(&dy[start..start + width], line);
                            continue;
                        }
                        for (w, pixel) in line.chunks_mut(patches.channels).enumerate() {
                            let from = &dy[start + w * dy_steps.space[2]..][..channels];
                            T::widen_all(from, &mut pixel[..channels]);
                            pixel[channels..].fill(T::Sum::ZERO);
                        }
                    }
                }
                let lanes = T::Sum::lanes::<S>();
                let groups = patches.taps.chunks(VECTORS).zip(sums.chunks_mut(VECTORS * lanes));
                for (taps, sums) in groups {
                    match taps.len() {
                        VECTORS => {
                            correlate::<S, T::Sum, VECTORS>(
                                simd, patches, place.1, patch, gradients, taps, sums,
                            );
                        }
                        _ => {
                            for (tap, sum) in taps.chunks(1).zip(sums.chunks_mut(lanes)) {
                                correlate::<S, T::Sum, 1>(
                                    simd, patches, place.1, patch, gradients, tap, sum,
                                );
                            }
                        }
                    }
                }
            }
        }
        let steps = conv.filter().strides(conv.filter_layout());
        for (i, sums) in sums.chunks(plan.lanes).enumerate() {
            let at = steps.offset(channel, 0, views.tap(i).map(|tap| tap.number));
            // SAFETY: no other task has these channels.
            unsafe {
                if layout == Layout::ChannelsFirst {
                    let sum = sums.iter().fold(T::Sum::ZERO, |sum, lane| sum + *lane);
                    result.write(at, T::narrow(sum));
                    continue;
                }
                for (c, sum) in sums[..channels].iter().enumerate() {
                    result.write(at + c * steps.count, T::narrow(*sum));
                }
            }
        }
    }
}

/// Adds the products of a tile's output gradients with what `N` taps read to the sums of those taps.
#[inline(always)]
fn correlate<S: Simd, A: Sum, const N: usize>(
    simd: S,
    patches: &Patches,
    [depth, height, width]: [usize; 3],
    patch: &[A],
    gradients: &[A],
    taps: &[usize],
    sums: &mut [A],
) {
    let lanes = A::lanes::<S>();
    let (taps, sums) = (&taps[..N], &mut sums[..N * lanes]);
    // Lanes are the channels of a position, or positions.
    let (vectors, rest, step) = match patches.have_channels() {
        true => (width, 0, patches.step(2)),
        false => (width / lanes, width % lanes, lanes),
    };
    let mut totals = [A::splat(simd, A::ZERO); N];
    for i in 0..N {
        // SAFETY: there is a vector for each tap.
        totals[i] = unsafe { A::load::<S>(sums.as_ptr().add(i * lanes)) };
    }
    for line in 0..depth * height {
        let start = line / height * patches.step(0) + line % height * patches.step(1);
        let gradients = &gradients[line * width * patches.channels..][..width * patches.channels];
        for v in 0..vectors {
            // SAFETY: the line has this vector, and the taps of its positions are in the patch.
            unsafe {
                let g = A::load::<S>(gradients.as_ptr().add(v * lanes));
                for i in 0..N {
                    let x = A::load::<S>(patch.as_ptr().add(start + v * step + taps[i]));
                    totals[i] = A::multiply_add(simd, g, x, totals[i]);
                }
            }
        }
        if rest > 0 {
            let g = A::load_some(simd, &gradients[vectors * lanes..]);
            for i in 0..N {
                // Not what follows in the patch: it may be infinite, and times 0 it would be NaN.
                let x = A::load_some(simd, &patch[start + vectors * step + taps[i]..][..rest]);
                totals[i] = A::multiply_add(simd, g, x, totals[i]);
            }
        }
    }
    for i in 0..N {
        // SAFETY: there is a vector for each tap.
        unsafe { A::store::<S>(sums.as_mut_ptr().add(i * lanes), totals[i]) };
    }
}
