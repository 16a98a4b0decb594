//! Tuning: chooses kernel and tile by measuring, and remembers the choice.
//!
//! The search measures the default plan of every kernel, then moves from the fastest one to a faster
//! neighbour until there is none.

use windowpane_geometry::{DType, Pass, Shape, TileOverrides};
use windowpane_kernels::conv::{Arrangement, Plan};

use super::plan::{Choice, ConvPlan};
use crate::race::{Race, is_faster, mean_seconds};
use crate::tuned::{self, Found, FoundConv};
use crate::{Result, Tensor};

/// The fastest plan among those that respect the options, of which at most `most` are measured.
pub(super) fn tune(plan: &ConvPlan, most: usize) -> Result<ConvPlan> {
    let (Choice::Kernel(own), Some(capabilities)) = (plan.choice, plan.device.capabilities())
    else {
        return Ok(plan.clone());
    };
    let (problem, request) = (&plan.problem, plan.request());
    if problem.output().elements() == 0 {
        return Ok(plan.clone());
    }
    let mut search = Search::new(plan, most)?;
    search.measure(own)?;
    for other in Plan::starting_points(problem, request, capabilities) {
        search.try_plan(other);
    }
    loop {
        let before = search.race.best;
        let Some((best, _)) = before else { break };
        for near in best.neighbours(problem, request, capabilities) {
            search.try_plan(near);
        }
        if search.race.best == before || search.seen.len() >= most {
            break;
        }
    }
    let best = search.race.best.map_or(own, |(best, _)| best);
    let kernel = if best == own || search.is_faster(best, own)? { best } else { own };
    let tuned = ConvPlan { choice: Choice::Kernel(kernel), ..plan.clone() };
    if plan.is_free() {
        let Plan { arrangement, splits, .. } = kernel;
        let Arrangement { layout, change } = arrangement;
        let (algorithm, tile, layout) = (tuned.algorithm(), kernel.tile(), Some(layout));
        let found = Found::Conv(FoundConv { algorithm, layout, change, tile, splits });
        tuned::remember(&plan.device, plan.key(), found);
    }
    Ok(tuned)
}

/// The measurements so far.
struct Search<'a> {
    plan: &'a ConvPlan,
    inputs: Vec<Tensor>,
    results: Vec<Tensor>,
    seen: Vec<Plan>,
    most: usize,
    race: Race<Plan>,
}

impl<'a> Search<'a> {
    fn new(plan: &'a ConvPlan, most: usize) -> Result<Self> {
        let shape = |shape: Shape| -> Vec<usize> { shape.dims(plan.problem.layout()).collect() };
        let (x, y) = (shape(plan.problem.input()), shape(plan.problem.output()));
        let w = plan.problem.filter().dims(plan.problem.filter_layout()).collect();
        let reads = match plan.pass {
            Pass::Forward => vec![x, w],
            Pass::Data => vec![y, w],
            Pass::Weight => vec![y, x],
            Pass::Bias => vec![y],
        };
        let random =
            |(dims, seed): (Vec<usize>, u32)| Tensor::random(&plan.device, plan.dtype, dims, seed);
        let mut inputs = reads.into_iter().zip(1..).map(random).collect::<Result<Vec<_>>>()?;
        if plan.is_quantized() {
            let filters = [plan.problem.filter().count()];
            inputs.push(Tensor::random(&plan.device, DType::F32, filters, 3)?);
        }
        Ok(Self { plan, inputs, results: Vec::new(), seen: Vec::new(), most, race: Race::new() })
    }

    /// Measures a new plan if it respects the options. A plan that does not run is not a candidate.
    fn try_plan(&mut self, plan: Plan) {
        let known = self.seen.contains(&plan) || self.seen.len() >= self.most;
        if known || !self.keeps_options(&plan) {
            return;
        }
        if let Err(error) = self.measure(plan) {
            tracing::debug!(%error, ?plan, "a plan does not run and is skipped");
            // The failure stays attached to the memory that the plan should have written.
            self.results.clear();
        }
    }

    fn keeps_options(&self, plan: &Plan) -> bool {
        let conv = &self.plan.conv;
        let candidate = self.with(*plan);
        conv.algorithm.is_none_or(|asked| asked == candidate.algorithm())
            && plan.tile().is_none_or(|tile| conv.tile.over(tile) == tile)
            && (plan.tile().is_some() || conv.tile == TileOverrides::default())
    }

    fn with(&self, plan: Plan) -> ConvPlan {
        // The padding that is filled in is the same for every kernel.
        ConvPlan { choice: Choice::Kernel(plan), padded: None, ..self.plan.clone() }
    }

    /// Measures a plan, and keeps it if it is the fastest.
    fn measure(&mut self, plan: Plan) -> Result<()> {
        self.seen.push(plan);
        let candidate = self.with(plan);
        // The first launch compiles the kernel and fails if it cannot run.
        self.launch(&candidate, 1)?;
        self.results.iter().try_for_each(Tensor::wait)?;
        let mut race = self.race;
        let timed = race.enter(plan, |launches| self.launch(&candidate, launches));
        self.race = race;
        timed?;
        self.results.iter().try_for_each(Tensor::wait)
    }

    /// Whether a plan is faster than another.
    fn is_faster(&mut self, plan: Plan, other: Plan) -> Result<bool> {
        let [plan, other] = [plan, other].map(|plan| self.with(plan));
        let is_faster = is_faster(plan, other, |plan, launches| self.launch(plan, launches))?;
        self.results.iter().try_for_each(Tensor::wait)?;
        Ok(is_faster)
    }

    /// The mean seconds of one of `launches` launches.
    fn launch(&mut self, candidate: &ConvPlan, launches: u32) -> Result<f64> {
        let (inputs, results) = (&self.inputs, &mut self.results);
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        mean_seconds(&candidate.device, launches, || candidate.run(&inputs, results))
    }
}
