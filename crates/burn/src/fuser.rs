//! The fuser: takes an operation that windowpane computes, and the element-wise operations before it.
//!
//! The element-wise operations must be taken too. Burn cuts its queue into segments that one fuser computes, and looks
//! for an operation only at the head of a segment: a pooling behind a ReLU would be hidden, or be taken by Burn's own
//! fuser that changes layouts for poolings. They are computed by Burn's own element-wise fuser.

use burn_cubecl::CubeDevice;
use burn_cubecl::fusion::{
    CubeFusionHandle, CubeOptimization, CubeOptimizationState, FallbackOperation, FusedOperation,
};
use burn_cubecl_fusion::optim::elemwise::{ElementWiseFuser, ElemwiseOptimization};
use burn_fusion::stream::Context;
use burn_fusion::{FuserProperties, FuserStatus, NumOperations, OperationFuser};
use burn_ir::OperationIr;
use serde::{Deserialize, Serialize};

use crate::counters::count;
use crate::{asked, run};

/// More than every score of Burn's own fusers, so that this one wins where it applies.
const SCORE: u64 = 1000;

/// Looks for element-wise operations that are followed by one of ours.
#[derive(Clone)]
pub(crate) struct WindowFuser {
    before: ElementWiseFuser,
    operation: Option<OperationIr>,
    status: FuserStatus,
}

impl WindowFuser {
    pub(crate) fn new(device: CubeDevice) -> Self {
        let before = ElementWiseFuser::new(device);
        Self { before, operation: None, status: FuserStatus::Open }
    }
}

impl OperationFuser<CubeOptimization> for WindowFuser {
    fn fuse(&mut self, operation: &OperationIr) {
        if let FuserStatus::Closed = self.status {
            return;
        }
        if asked::read(operation).is_some() {
            self.operation = Some(operation.clone());
            self.status = FuserStatus::Closed;
        } else {
            self.before.fuse(operation);
            self.status = self.before.status();
        }
    }

    fn finish(&mut self) -> CubeOptimization {
        // Operations that move nothing, such as a change of shape, are no gain to Burn's fuser if they are alone.
        let before = match self.before.properties().ready {
            true => Before::Fused(self.before.finish()),
            false => Before::Each(self.before.len()),
        };
        let operation = self.operation.clone();
        let operation = operation.expect("Burn finishes a fuser only if it is ready");
        CubeOptimization::new(Fused { before, operation })
    }

    fn reset(&mut self) {
        self.before.reset();
        self.operation = None;
        self.status = FuserStatus::Open;
    }

    fn status(&self) -> FuserStatus {
        self.status
    }

    fn properties(&self) -> FuserProperties {
        let before = self.before.properties();
        FuserProperties {
            score: if self.operation.is_some() { before.score + SCORE } else { 0 },
            ready: self.operation.is_some(),
        }
    }

    fn len(&self) -> usize {
        self.before.len() + usize::from(self.operation.is_some())
    }

    fn clone_dyn(&self) -> Box<dyn OperationFuser<CubeOptimization>> {
        Box::new(self.clone())
    }
}

/// Element-wise operations, then one of ours.
///
/// It holds no plan: Burn uses it again for other sizes.
pub(crate) struct Fused {
    before: Before,
    operation: OperationIr,
}

/// The operations before ours.
enum Before {
    /// In one kernel of Burn's.
    Fused(CubeOptimization),
    /// This many, each by Burn's own operator.
    Each(usize),
}

impl Before {
    fn len(&self) -> usize {
        match self {
            Self::Fused(before) => before.num_ops_fused(),
            Self::Each(count) => *count,
        }
    }
}

/// What Burn saves of a fused operation.
#[derive(Serialize, Deserialize)]
pub(crate) struct State {
    before: BeforeState,
    operation: OperationIr,
}

#[derive(Serialize, Deserialize)]
enum BeforeState {
    Fused(CubeOptimizationState),
    Each(usize),
}

impl FusedOperation for Fused {
    const NAME: &'static str = "windowpane";
    type State = State;

    fn num_ops_fused(&self) -> usize {
        self.before.len() + 1
    }

    fn max_relative_shape_id(&self) -> Option<usize> {
        match &self.before {
            Before::Fused(before) => before.max_relative_shape_id(),
            Before::Each(_) => None,
        }
    }

    fn run(
        &mut self,
        context: &mut Context<CubeFusionHandle>,
        fallback: &dyn Fn(usize) -> Box<dyn FallbackOperation>,
    ) {
        match &mut self.before {
            Before::Fused(before) => before.run(context, fallback),
            Before::Each(count) => (0..*count).for_each(|nth| fallback(nth).run(context)),
        }
        let asked = asked::read(&self.operation);
        let refused = match &asked {
            Some(asked) => run::run(&asked.operator, context).err(),
            None => Some("its state was saved by another version".into()),
        };
        if refused.is_some() {
            fallback(self.before.len()).run(context);
        }
        count(asked.map_or("unknown", |asked| asked.name), refused);
    }

    fn to_state(&self) -> State {
        let before = match &self.before {
            Before::Fused(before) => BeforeState::Fused(before.to_state()),
            Before::Each(count) => BeforeState::Each(*count),
        };
        State { before, operation: self.operation.clone() }
    }

    fn from_state(device: &CubeDevice, state: State) -> Self {
        let elemwise = |state: CubeOptimizationState| {
            CubeOptimization::new(ElemwiseOptimization::from_state(device, state.decode()))
        };
        let before = match state.before {
            BeforeState::Fused(before) => Before::Fused(elemwise(before)),
            BeforeState::Each(count) => Before::Each(count),
        };
        Self { before, operation: state.operation }
    }
}
