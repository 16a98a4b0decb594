//! The plans that tuning measures: the starting points of a search, and the neighbours of a plan. Both are pure
//! functions, like the selection.

use windowpane_geometry::{Convolution, Tile};

use super::{Algorithm, Plan, PlanOptions};
use crate::conv::arrangement::Arrangement;
use crate::conv::problem::Request;
use crate::device::Capabilities;

impl Plan {
    /// The plan of every kernel that can compute a problem, starting with the planner's own choice.
    pub fn starting_points(
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Vec<Self> {
        let all_options = Algorithm::ALL.into_iter().flat_map(|algorithm| {
            let own = PlanOptions { algorithm: Some(algorithm), ..PlanOptions::default() };
            let forms = Arrangement::all(conv).map(Some);
            forms.map(move |arrangement| PlanOptions { arrangement, ..own })
        });
        let all_options = [PlanOptions::default()].into_iter().chain(all_options);
        let mut plans: Vec<Self> = Vec::new();
        for plan in all_options.filter_map(|options| Self::new(conv, request, options, device).ok())
        {
            if !plans.contains(&plan) {
                plans.push(plan);
            }
        }
        plans
    }

    /// The plans that are one step away and can run. A step doubles or halves one number of the tile, or two related
    /// ones, or the number of parts of a sum; or it makes a block or the number of stages slightly larger or smaller,
    /// for kernels that do not need powers of two.
    pub fn neighbours(
        &self,
        conv: &Convolution,
        request: Request,
        device: &Capabilities,
    ) -> Vec<Self> {
        let tiles = self.tile().into_iter().flat_map(steps).filter_map(|tile| {
            let (algorithm, arrangement) = (Some(self.algorithm()), Some(self.arrangement));
            let options = PlanOptions { algorithm, arrangement, tile: tile.into() };
            Self::new(conv, request, options, device).ok()
        });
        let splits = [self.splits * 2, self.splits / 2].map(|splits| Self { splits, ..*self });
        let splits = splits.into_iter().filter(|plan| plan.check(conv, request, device).is_ok());
        tiles.chain(splits).filter(|plan| plan != self).collect()
    }
}

/// The tiles that are one step away, whether or not a kernel supports them.
fn steps(tile: Tile) -> impl Iterator<Item = Tile> {
    let alone: [fn(&mut Tile) -> [&mut u32; 1]; 7] = [
        |tile| [&mut tile.block_m],
        |tile| [&mut tile.block_n],
        |tile| [&mut tile.block_k],
        |tile| [&mut tile.ratio_m],
        |tile| [&mut tile.ratio_n],
        |tile| [&mut tile.elems_per_thread],
        |tile| [&mut tile.stages],
    ];
    // Doubling a block either adds units with the same work, or, with its ratio, gives the same units more work.
    let together: [fn(&mut Tile) -> [&mut u32; 2]; 3] = [
        |tile| [&mut tile.block_m, &mut tile.block_n],
        |tile| [&mut tile.block_m, &mut tile.ratio_m],
        |tile| [&mut tile.block_n, &mut tile.ratio_n],
    ];
    let alone = alone.into_iter().flat_map(move |numbers| stepped(tile, numbers));
    let together = together.into_iter().flat_map(move |numbers| stepped(tile, numbers));
    let little: [(Number, u32); 3] = [
        (|tile| &mut tile.block_m, 64),
        (|tile| &mut tile.block_n, 32),
        (|tile| &mut tile.stages, 1),
    ];
    let shifted = little.into_iter().flat_map(move |(number, by)| {
        let (mut more, mut less) = (tile, tile);
        *number(&mut more) = number(&mut more).saturating_add(by);
        *number(&mut less) = number(&mut less).saturating_sub(by);
        [more, less]
    });
    alone.chain(together).chain(shifted)
}

/// A number of a tile.
type Number = fn(&mut Tile) -> &mut u32;

/// The tile with some numbers doubled, and the tile with them halved, where possible.
fn stepped<const N: usize>(
    tile: Tile,
    numbers: fn(&mut Tile) -> [&mut u32; N],
) -> impl Iterator<Item = Tile> {
    let (mut doubled, mut halved) = (tile, tile);
    let can_double = numbers(&mut doubled).into_iter().all(|number| {
        let twice = number.checked_mul(2);
        *number = twice.unwrap_or(*number);
        twice.is_some()
    });
    let can_halve = numbers(&mut halved).into_iter().all(|number| {
        let is_even = number.is_multiple_of(2);
        *number /= 2;
        is_even
    });
    can_double.then_some(doubled).into_iter().chain(can_halve.then_some(halved))
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{DType, Precision};

    use super::super::tests::{GPU, conv};
    use super::*;
    use crate::conv::problem::Pass;

    #[test]
    fn a_search_begins_with_the_planners_choice_and_every_kernel() {
        let (conv, device) = (conv(8, 64, 128, 1), GPU);
        let request =
            Request { pass: Pass::Forward, dtype: DType::F16, precision: Precision::Strict };
        let plans = Plan::starting_points(&conv, request, &device);
        assert_eq!(Ok(plans[0]), Plan::new(&conv, request, PlanOptions::default(), &device));
        let kernels: Vec<_> = plans.iter().map(|plan| plan.algorithm()).collect();
        for kernel in [Algorithm::Mma, Algorithm::Simt, Algorithm::Direct] {
            assert!(kernels.contains(&kernel), "{kernel} is not in {kernels:?}");
        }
    }

    #[test]
    fn neighbours_can_run_and_are_a_step_away() {
        let (conv, device) = (conv(8, 64, 128, 1), GPU);
        for pass in [Pass::Forward, Pass::Data, Pass::Weight] {
            let request = Request { pass, dtype: DType::F32, precision: Precision::Strict };
            let plan = Plan::new(&conv, request, PlanOptions::default(), &device).expect("a plan");
            let near = plan.neighbours(&conv, request, &device);
            assert!(near.len() > 4, "{pass}: {near:?}");
            for other in &near {
                assert_eq!(other.check(&conv, request, &device), Ok(()));
                assert!(*other != plan && other.algorithm() == plan.algorithm());
                let (Some(own), Some(tile)) = (plan.tile(), other.tile()) else { continue };
                let moved = own.fields().into_iter().zip(tile.fields());
                let moved = moved.filter(|((_, from), (_, to))| from != to);
                for ((name, from), (_, to)) in moved {
                    let little = match name {
                        "block_m" => 64,
                        "block_n" => 32,
                        _ => 1,
                    };
                    let factor = to == 2 * from || from == 2 * to;
                    assert!(factor || to.abs_diff(from) == little, "{name}: {from} to {to}");
                }
            }
            let cut =
                near.iter().any(|other| other.splits != plan.splits && other.tile() == plan.tile());
            assert!(cut, "{pass}");
        }
    }
}
