//! What the choice among kernels costs, by their recorded times.

use windowpane_geometry::{Divisor, IndexBase};

use super::tests::check_limits;
use super::*;
use crate::device::profiles::{self, Profile};
use crate::device::recorded::{RECORDED, Record, check_choices};

impl Record {
    fn pooling(&self) -> Pooling {
        Pooling::new(self.input(), &self.window(), self.layout()).expect("a pooling")
    }

    fn problem<'a>(&self, pooling: &'a Pooling) -> Problem<'a> {
        let problem = Problem::new(pooling, self.reduction(), self.dtype());
        Problem { gradient: self.text("pass") == "bwd", ..problem }
    }

    fn reduction(&self) -> Reduction {
        match (self.text("kind") == "maxpool", self.0["indices"] == true) {
            (true, true) => Reduction::max(Output::ValuesAndIndices(IndexBase::Plane)),
            (true, false) => Reduction::max(Output::Values),
            (false, _) => Reduction::Average(Divisor::Valid),
        }
    }
}

/// The chosen kernel is nearly always the fastest.
#[test]
fn the_choice_is_nearly_always_the_fastest() {
    for (records, Profile { capabilities: device, .. }) in RECORDED {
        let poolings: Vec<_> = poolings(records).collect();
        check_choices(poolings.iter().map(|record| {
            let pooling = record.pooling();
            let plan = Plan::new(record.problem(&pooling), &device).expect("a plan");
            (record, plan.algorithm().name())
        }));
    }
}

/// Every device with a profile has a plan within its limits for each recorded problem. Where a result depends on many
/// elements, most of which its neighbours depend on too, no unit reads all of them for it alone; only for gradients of
/// maxima over volumes there is no other kernel.
#[test]
fn known_devices_have_sensible_plans() {
    for Profile { name, capabilities: device } in profiles::PROFILES {
        for record in RECORDED.iter().flat_map(|(records, _)| poolings(records)) {
            let pooling = record.pooling();
            let problem = record.problem(&pooling);
            let plan = Plan::new(problem, &device).expect("a plan");
            check_limits(name, &plan, problem, &device);
            // A gradient reads the windows over an element, at most all that there are.
            let axes = pooling.grid().axes().iter();
            let over = |axis: &Axis| axis.kernel().div_ceil(axis.stride()).min(axis.output());
            let windows: usize = axes.map(over).product();
            let reads = if problem.gradient { windows } else { pooling.grid().taps() };
            let shared = reads >= 64 && windows > 1;
            let alone = [Algorithm::Direct, Algorithm::Gather].contains(&plan.algorithm());
            let is_volume = pooling.grid().axes()[0].kernel() > 1;
            let only_gathered = problem.gradient && problem.reduction.is_extremum() && is_volume;
            assert!(!(alone && shared) || only_gathered, "{name}: {plan:?}: {}", record.0);
        }
    }
}

fn poolings(records: &str) -> impl Iterator<Item = Record> {
    records.lines().map(Record::parse).filter(|record| record.text("kind").ends_with("pool"))
}
