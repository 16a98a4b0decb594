//! Loops over the points of three nested ranges.

use cubecl::frontend::branch::for_expand;
use cubecl::prelude::*;
use cubecl::unexpanded;

/// A point of three axes.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Point {
    pub(crate) d: i32,
    pub(crate) h: i32,
    pub(crate) w: i32,
}

/// Three nested ranges: `for at in ranges` visits their points in row-major order.
#[derive(CubeType)]
pub(crate) struct Ranges {
    pub(crate) first: Point,
    #[allow(dead_code, reason = "read where kernels are expanded")]
    pub(crate) end: Point,
}

#[cube]
impl Ranges {
    /// As many points on each axis as `counts` says, from 0 on.
    pub(crate) fn of(#[comptime] counts: [u32; 3]) -> Ranges {
        let [d, h, w] = comptime!(counts.map(|count| count as i32));
        Ranges {
            first: Point { d: 0i32, h: 0i32, w: 0i32 },
            end: Point { d: d.runtime(), h: h.runtime(), w: w.runtime() },
        }
    }
}

impl IntoIterator for Ranges {
    type Item = Point;
    type IntoIter = std::vec::IntoIter<Point>;

    fn into_iter(self) -> Self::IntoIter {
        unexpanded!()
    }
}

impl Iterable for RangesExpand {
    type Item = PointExpand;

    fn expand(self, scope: &Scope, body: &mut dyn FnMut(&Scope, PointExpand)) {
        self.nest(scope, false, body);
    }

    fn expand_unroll(self, scope: &Scope, body: &mut dyn FnMut(&Scope, PointExpand)) {
        self.nest(scope, true, body);
    }
}

impl RangesExpand {
    fn nest(self, scope: &Scope, unroll: bool, body: &mut dyn FnMut(&Scope, PointExpand)) {
        let Self { first, end } = self;
        for_expand(scope, RangeExpand::new(first.d, end.d), unroll, |scope, d| {
            for_expand(scope, RangeExpand::new(first.h, end.h), unroll, |scope, h| {
                for_expand(scope, RangeExpand::new(first.w, end.w), unroll, |scope, w| {
                    body(scope, PointExpand { d, h, w });
                });
            });
        });
    }
}
