//! The pipeline: stages in shared memory that are handed over between the producer and the warpgroups.
//!
//! ```text
//! stage        0         1         2
//!          ┌─────────┬─────────┬─────────┐
//! rows     │ parts.. │ parts.. │ parts.. │    a block of each operand, with all parts of its factors
//! columns  │ parts.. │ parts.. │ parts.. │
//!          └─────────┴─────────┴─────────┘
//! full     the producer arrives, and the bytes that it announced
//! empty    each warp that multiplies arrives when it has read the stage
//! ```
//!
//! A barrier starts a new phase when all have arrived. A wait names the phase that must be over by its parity. A stage
//! is filled and emptied once per phase of its barriers, so this is the parity of the number of times that it was used.
//! The producer waits for the phase *before* its own, in which the stage was last read; before its first phase there
//! is one that counts as over.
//!
//! Where taps share runs of pixels, the memory of the rows is a separate ring of runs. The run of a step is free
//! whenever its stage is (`Im2colWalk::row_stages`), and needs no barriers of its own. A resident operand has a place for each
//! step of a tile, and is loaded with the other operand of a cube's first tile.

use cubecl::ir::AddressSpace;
use cubecl::ir::dialect::general::ReinterpretCastOp;
use cubecl::ir::types::PointerType;
use cubecl::ir::types::barrier::{BarrierLevel, BarrierType};
use cubecl::prelude::barrier::Barrier;
use cubecl::prelude::*;
use cubecl::wgmma::MatrixDescriptor;

use super::form::Form;

#[derive(CubeType)]
pub(super) struct Pipeline<E: Float> {
    pub(super) rows: Shared<[E]>,
    pub(super) columns: Shared<[E]>,
    pub(super) full: Barriers,
    pub(super) empty: Barriers,
}

/// Shared memory of `elements` elements, aligned to the swizzle pattern.
#[cube]
pub(super) fn memory<E: Float>(#[comptime] elements: u32) -> Shared<[E]> {
    Shared::<[E]>::new_aligned_slice(comptime!(elements as usize), 1024usize)
}

#[cube]
impl<E: Float> Pipeline<E> {
    /// Makes the producer wait until a stage has been read. Returns the stage's full barrier, which must then be given
    /// the number of bytes to wait for.
    pub(super) fn wait_empty(&self, state: PipelineState) -> Barrier {
        let phase_before = state.phase ^ 1u32;
        barrier_of(&self.empty, state.stage).wait_parity(phase_before);
        barrier_of(&self.full, state.stage)
    }

    /// Makes a warp wait until a stage is full.
    pub(super) fn wait_full(&self, state: PipelineState) {
        barrier_of(&self.full, state.stage).wait_parity(state.phase);
    }

    /// Releases a stage, if this unit acts for its warp.
    pub(super) fn release(&self, stage: u32, leads: bool) {
        // Before the branch: if only one unit of a warp computed the address, the assembler would treat all code around it as
        // divergent.
        let barrier = barrier_of(&self.empty, stage);
        if leads {
            barrier.arrive();
        }
    }

    /// A part of the rows as the matrix units read them. `nth_part` counts the parts of all stages.
    pub(super) fn rows_of(
        &self,
        nth_part: u32,
        first_row: u32,
        #[comptime] form: Form,
    ) -> MatrixDescriptor<E> {
        let size = comptime!(form.rows_part());
        let at = (nth_part * size + first_row * comptime!(form.row())) as usize;
        MatrixDescriptor::<E>::new(
            &self.rows[at..at + comptime!(size as usize)],
            form.rows_layout(),
        )
    }

    /// A part of the columns.
    pub(super) fn columns_of(&self, nth_part: u32, #[comptime] form: Form) -> MatrixDescriptor<E> {
        let size = comptime!(form.columns_part());
        let at = (nth_part * size) as usize;
        MatrixDescriptor::<E>::new(
            &self.columns[at..at + comptime!(size as usize)],
            form.columns_layout(),
        )
    }
}

/// The stage that a role is at, and the phase of its barriers.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct PipelineState {
    pub(super) stage: u32,
    /// The parity of the number of times that the stage was used before.
    phase: u32,
}

#[cube]
impl PipelineState {
    pub(super) fn first() -> PipelineState {
        PipelineState { stage: 0u32.runtime(), phase: 0u32.runtime() }
    }

    pub(super) fn advance(&mut self, #[comptime] stages: u32) {
        self.stage = following(self.stage, stages);
        self.phase = select(self.stage == 0, self.phase ^ 1u32, self.phase);
    }
}

/// The place of a step's rows or columns; `resident` is the number of steps that are resident, or 0.
#[cube]
pub(super) fn place(step: u32, state: PipelineState, #[comptime] resident: u32) -> u32 {
    if comptime!(resident > 1) {
        step
    } else if comptime!(resident == 1) {
        0u32.runtime()
    } else {
        state.stage
    }
}

/// The next place in a ring of places.
#[cube]
pub(super) fn following(slot: u32, #[comptime] places: u32) -> u32 {
    let next = slot + 1;
    select(next == comptime!(places), 0u32, next)
}

/// A barrier for each stage. A barrier is a word of shared memory, and CubeCL 0.12.0-pre.1 compiles arrays of words, but none of
/// barriers.
pub(super) type Barriers = Shared<[u64]>;

/// Barriers that complete after `arrivals` arrivals.
#[cube]
pub(super) fn barriers(#[comptime] stages: u32, #[comptime] arrivals: u32) -> Barriers {
    let barriers = Shared::<[u64]>::new_slice(comptime!(stages as usize));
    if UNIT_POS == 0 {
        #[unroll]
        for stage in 0..stages {
            barrier_of(&barriers, stage.runtime()).init_manual(arrivals);
        }
    }
    barriers
}

/// The barrier of a stage.
#[cube]
fn barrier_of(barriers: &Barriers, stage: u32) -> Barrier {
    intrinsic!(|scope| {
        let stage = usize::__expand_cast_from(scope, stage);
        let word = barriers.__expand_index_method(scope, stage).value(scope);
        let barrier = BarrierType::get(scope.ctx(), BarrierLevel::Cube).into();
        let barrier = PointerType::get(scope.ctx(), barrier, AddressSpace::Shared).to_handle();
        let cast = ReinterpretCastOp::new(scope.ctx_mut(), barrier, word);
        scope.register_with_result(&cast).into()
    })
}
