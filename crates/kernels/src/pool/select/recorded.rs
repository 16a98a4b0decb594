//! What the choice among kernels costs, by their recorded times.

use windowpane_geometry::{Divisor, IndexBase};

use super::*;
use crate::device::profiles;
use crate::device::recorded::{H200, Record, check_choices};

impl Record {
    fn pooling(&self) -> Pooling {
        Pooling::new(self.input(), &self.window(), self.layout()).expect("a pooling")
    }

    fn reduction(&self) -> Reduction {
        match (self.text("kind") == "maxpool", self.0["indices"] == true) {
            (true, true) => Reduction::max(Output::ValuesAndIndices(IndexBase::Plane)),
            (true, false) => Reduction::max(Output::Values),
            (false, _) => Reduction::Average(Divisor::Valid),
        }
    }
}

/// On the H200, the chosen kernel is nearly always the fastest.
#[test]
fn the_choice_is_nearly_always_the_fastest() {
    let device = &profiles::H200.capabilities;
    let is_pooling = |record: &Record| record.text("kind").ends_with("pool");
    let poolings: Vec<_> = H200.lines().map(Record::parse).filter(is_pooling).collect();
    check_choices(poolings.iter().map(|record| {
        let (pooling, gradient) = (record.pooling(), record.text("pass") == "bwd");
        let problem = Problem::new(&pooling, record.reduction(), record.dtype());
        let plan = Plan::new(Problem { gradient, ..problem }, device);
        (record, plan.expect("a plan").algorithm().name())
    }));
}
