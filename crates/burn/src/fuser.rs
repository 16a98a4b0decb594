//! The fuser: takes the operations that windowpane computes, and what stands between them.
//!
//! Burn cuts its queue into blocks of operations that share tensors. Each fuser sees a block's operations in order and
//! says how many of the first it would compute; the best one gets them. Two things follow for operations of ours:
//!
//! - The element-wise operations before one must be taken too, or it would be hidden behind them, or go to Burn's own
//!   fuser that changes layouts for poolings. Burn's element-wise fuser computes them.
//! - As long as any block is open, such as one with a matrix product, later operations are added also to blocks that
//!   are closed. What is left of a block is searched again, and if the order of the pieces then has a cycle, Burn
//!   computes everything without fusers. So ours says that it is closed, but goes on taking operations: more of ours,
//!   element-wise ones, changes of shape, and those of [`nn`](crate::nn).

use burn_cubecl::CubeDevice;
use burn_cubecl::fusion::{
    CubeFusionHandle, CubeOptimization, CubeOptimizationState, FallbackOperation, FusedOperation,
};
use burn_cubecl_fusion::optim::elemwise::{ElementWiseFuser, ElemwiseOptimization};
use burn_fusion::stream::Context;
use burn_fusion::{FuserProperties, FuserStatus, NumOperations, OperationFuser};
use burn_ir::{BaseOperationIr, OperationIr};
use serde::{Deserialize, Serialize};

use crate::counters::count;
use crate::{nn, operation, run};

/// More than every score of Burn's own fusers, so that this one wins where it applies.
const SCORE: u64 = 1000;

/// Looks for operations of ours in a block.
#[derive(Clone)]
pub(crate) struct WindowFuser {
    device: CubeDevice,
    pieces: Vec<Piece>,
    /// Whether an operation came that it does not take.
    ended: bool,
}

/// Consecutive operations of a block.
#[derive(Clone)]
enum Piece {
    Elementwise(Box<ElementWiseFuser>),
    /// A change of shape, by Burn's own operator, or an operator of [`nn`](crate::nn).
    Single,
    Ours(Box<OperationIr>),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Elementwise(fuser) => fuser.len(),
            Self::Single | Self::Ours(_) => 1,
        }
    }
}

impl WindowFuser {
    pub(crate) fn new(device: CubeDevice) -> Self {
        Self { device, pieces: Vec::new(), ended: false }
    }

    /// Takes an element-wise operation, together with those directly before it if possible.
    fn takes_elementwise(&mut self, operation: &OperationIr) -> bool {
        let takes = |fuser: &mut ElementWiseFuser| {
            let len = fuser.len();
            fuser.fuse(operation);
            fuser.len() > len
        };
        if let Some(Piece::Elementwise(fuser)) = self.pieces.last_mut()
            && takes(fuser)
        {
            return true;
        }
        let mut fuser = ElementWiseFuser::new(self.device.clone());
        let taken = takes(&mut fuser);
        if taken {
            self.pieces.push(Piece::Elementwise(Box::new(fuser)));
        }
        taken
    }

    fn ours(&self) -> usize {
        self.pieces.iter().filter(|piece| matches!(piece, Piece::Ours(_))).count()
    }
}

impl OperationFuser<CubeOptimization> for WindowFuser {
    fn fuse(&mut self, operation: &OperationIr) {
        if self.ended {
            return;
        }
        if operation::read(operation).is_some() {
            self.pieces.push(Piece::Ours(Box::new(operation.clone())));
        } else if !self.takes_elementwise(operation) {
            match is_view(operation) || nn::is_queued(operation) {
                true => self.pieces.push(Piece::Single),
                false => self.ended = true,
            }
        }
    }

    fn finish(&mut self) -> CubeOptimization {
        let part = |piece: &mut Piece| match piece {
            // Burn's fuser is not ready for what would be no gain.
            Piece::Elementwise(fuser) if fuser.properties().ready => Part::Fused(fuser.finish()),
            Piece::Ours(operation) => Part::Ours(operation.clone()),
            piece => Part::Each(piece.len()),
        };
        CubeOptimization::new(Fused { parts: self.pieces.iter_mut().map(part).collect() })
    }

    fn reset(&mut self) {
        self.pieces.clear();
        self.ended = false;
    }

    fn status(&self) -> FuserStatus {
        match &*self.pieces {
            _ if self.ended => FuserStatus::Closed,
            [] => FuserStatus::Open,
            [Piece::Elementwise(fuser)] => fuser.status(),
            _ => FuserStatus::Closed,
        }
    }

    fn properties(&self) -> FuserProperties {
        let ours = self.ours();
        let score = |piece: &Piece| match piece {
            Piece::Elementwise(fuser) => fuser.properties().score,
            Piece::Single => 0,
            Piece::Ours(_) => SCORE,
        };
        let score = if ours == 0 { 0 } else { self.pieces.iter().map(score).sum() };
        FuserProperties { score, ready: ours > 0 }
    }

    fn len(&self) -> usize {
        self.pieces.iter().map(Piece::len).sum()
    }

    fn clone_dyn(&self) -> Box<dyn OperationFuser<CubeOptimization>> {
        Box::new(self.clone())
    }
}

/// Whether an operation only shows a tensor in another shape. Burn's element-wise fuser does not start with one.
fn is_view(operation: &OperationIr) -> bool {
    use BaseOperationIr::{Expand, Permute, Reshape, Slice, SwapDims};
    let (OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base)) =
        operation
    else {
        return false;
    };
    matches!(base, Reshape(_) | SwapDims(_) | Permute(_) | Expand(_) | Slice(_))
}

/// Operations of a block, at least one of them ours.
///
/// It holds no plan: Burn uses it again for other sizes.
pub(crate) struct Fused {
    parts: Vec<Part>,
}

/// Consecutive operations that are computed together.
enum Part {
    /// In one kernel of Burn's.
    Fused(CubeOptimization),
    /// This many, each as it was queued.
    Each(usize),
    /// By windowpane.
    Ours(Box<OperationIr>),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Self::Fused(fused) => fused.num_ops_fused(),
            Self::Each(count) => *count,
            Self::Ours(_) => 1,
        }
    }
}

/// What Burn saves of a part.
#[derive(Serialize, Deserialize)]
pub(crate) enum State {
    Fused(CubeOptimizationState),
    Each(usize),
    Ours(Box<OperationIr>),
}

impl FusedOperation for Fused {
    const NAME: &'static str = "windowpane";
    type State = Vec<State>;

    fn num_ops_fused(&self) -> usize {
        self.parts.iter().map(Part::len).sum()
    }

    fn max_relative_shape_id(&self) -> Option<usize> {
        let highest = |part: &Part| match part {
            Part::Fused(fused) => fused.max_relative_shape_id(),
            _ => None,
        };
        self.parts.iter().filter_map(highest).max()
    }

    fn run(
        &mut self,
        context: &mut Context<CubeFusionHandle>,
        fallback: &dyn Fn(usize) -> Box<dyn FallbackOperation>,
    ) {
        let mut done = 0;
        for part in &mut self.parts {
            match part {
                Part::Fused(fused) => fused.run(context, &|nth| fallback(done + nth)),
                Part::Each(count) => {
                    (done..done + *count).for_each(|nth| fallback(nth).run(context));
                }
                Part::Ours(operation) => run_ours(operation, context, || fallback(done)),
            }
            done += part.len();
        }
    }

    fn to_state(&self) -> Vec<State> {
        let state = |part: &Part| match part {
            Part::Fused(fused) => State::Fused(fused.to_state()),
            Part::Each(count) => State::Each(*count),
            Part::Ours(operation) => State::Ours(operation.clone()),
        };
        self.parts.iter().map(state).collect()
    }

    fn from_state(device: &CubeDevice, state: Vec<State>) -> Self {
        let part = |state| match state {
            State::Fused(state) => Part::Fused(CubeOptimization::new(
                ElemwiseOptimization::from_state(device, state.decode()),
            )),
            State::Each(count) => Part::Each(count),
            State::Ours(operation) => Part::Ours(operation),
        };
        Self { parts: state.into_iter().map(part).collect() }
    }
}

/// Computes an operation with windowpane, or else with Burn's own operator, and counts it.
fn run_ours(
    operation: &OperationIr,
    context: &mut Context<CubeFusionHandle>,
    burns: impl FnOnce() -> Box<dyn FallbackOperation>,
) {
    // Only operations that can be read are taken, but a saved state may be of another version.
    let Some(ours) = operation::read(operation) else { return burns().run(context) };
    let refused = run::run(&ours.operator, context).err();
    if refused.is_some() {
        burns().run(context);
    }
    count(ours.name, refused);
}
