//! One axis of a sweep: an axis of the pooling, or several that one window covers whole, as one.

use windowpane_geometry::{AXES, Axis};

/// An axis.
#[derive(Clone, Copy)]
pub(super) enum Line {
    Of(Axis),
    /// One window over this many coordinates.
    Whole(usize),
}

/// The coordinates that a window reads: the first one, their number, and the distance between neighbours.
#[derive(Clone, Copy)]
pub(super) struct Taps {
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) step: usize,
}

impl Taps {
    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |i| self.first + i * self.step)
    }
}

impl Line {
    /// The coordinates.
    pub(super) fn input(&self) -> usize {
        match self {
            Self::Of(axis) => axis.input(),
            Self::Whole(extent) => *extent,
        }
    }

    /// The windows.
    pub(super) fn output(&self) -> usize {
        match self {
            Self::Of(axis) => axis.output(),
            Self::Whole(_) => 1,
        }
    }

    /// The taps of a window; on an uneven axis those of the longest.
    pub(super) fn kernel(&self) -> usize {
        match self {
            Self::Of(axis) => axis.kernel(),
            Self::Whole(extent) => *extent,
        }
    }

    pub(super) fn stride(&self) -> usize {
        match self {
            Self::Of(axis) => axis.stride(),
            Self::Whole(_) => 1,
        }
    }

    pub(super) fn dilation(&self) -> usize {
        match self {
            Self::Of(axis) => axis.dilation(),
            Self::Whole(_) => 1,
        }
    }

    /// Whether windows differ in length or step.
    pub(super) fn is_uneven(&self) -> bool {
        matches!(self, Self::Of(axis) if axis.is_uneven())
    }

    /// The coordinate of the first tap of a window; negative in the padding.
    pub(super) fn start(&self, o: usize) -> i64 {
        match self {
            Self::Of(axis) => axis.start(o),
            Self::Whole(_) => 0,
        }
    }

    /// What a window reads.
    pub(super) fn taps(&self, o: usize) -> Taps {
        match self {
            Self::Of(axis) => {
                let inside = axis.inside(o);
                // Without inside taps there is no first coordinate.
                let first = axis.coordinate(o, inside.start).max(0) as usize;
                Taps { first, count: inside.len(), step: axis.dilation() }
            }
            Self::Whole(extent) => Taps { first: 0, count: *extent, step: 1 },
        }
    }

    /// The most coordinates from the first tap to the last of this many neighbouring windows, padding included.
    pub(super) fn span(&self, windows: usize) -> usize {
        if self.is_uneven() {
            return self.input();
        }
        (windows - 1) * self.stride() + (self.kernel() - 1) * self.dilation() + 1
    }

    /// Whether one window covers every coordinate.
    fn is_whole(&self) -> bool {
        match self {
            Self::Of(axis) => {
                let covers = axis.inside(0).len() == axis.kernel() && axis.kernel() == axis.input();
                axis.output() == 1 && covers && (axis.dilation() == 1 || axis.input() == 1)
            }
            Self::Whole(_) => true,
        }
    }
}

/// The axes of a pooling. Where one window covers the last ones whole they are one axis: of rows if there are many
/// lanes, and of columns if there is only one.
pub(super) fn lines(axes: &[Axis; AXES], lanes: usize) -> [Line; AXES] {
    /// The most columns of one lane that are worth a row of their own.
    const MOST: usize = 1 << 12;
    /// The least lanes that are worth it.
    const FEW: usize = 32;
    let [depth, height, width] = axes.each_ref().map(|axis| Line::Of(*axis));
    if !width.is_whole() || !height.is_whole() {
        return [depth, height, width];
    }
    let (depth, all) = match depth.is_whole() {
        true => (Line::Whole(1), depth.input() * height.input() * width.input()),
        false => (depth, height.input() * width.input()),
    };
    match lanes {
        1 if all <= MOST => [depth, Line::Whole(1), Line::Whole(all)],
        FEW.. => [depth, Line::Whole(all), Line::Whole(1)],
        _ => axes.each_ref().map(|axis| Line::Of(*axis)),
    }
}
