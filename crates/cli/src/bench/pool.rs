//! Pooling as a case: the kinds `maxpool` and `avgpool`.

use serde::Deserialize;
use windowpane::{
    AvgPool, Device, Divisor, Extents, Layout, MaxPool, Plan, Result, Tensor, Window,
};

use super::Work;
use super::case::Case;
use crate::failure::Failure;

/// The fields of a pooling.
#[derive(Deserialize)]
struct Fields {
    n: usize,
    c: usize,
    size: Vec<usize>,
    k: Vec<usize>,
    s: Vec<usize>,
    p: Vec<usize>,
    d: Vec<usize>,
    #[serde(default)]
    indices: bool,
}

/// A pooling with what it reads and what it wrote last.
struct Pooling {
    plan: Plan,
    inputs: Vec<Tensor>,
    results: Vec<Tensor>,
}

pub(super) fn ready(case: &Case, device: &Device) -> Result<Box<dyn Work>, Failure> {
    let fields: Fields = case.fields()?;
    let (dtype, layout) = (case.dtype()?, case.layout()?);
    let (window, dims) = (fields.window()?, fields.dims(layout));
    let random = |dims: &[usize], seed| Tensor::random(device, dtype, dims, seed);
    let (plan, inputs) = match (&*case.kind, &*case.pass) {
        ("maxpool", "fwd") => {
            let pool = MaxPool::over(window).layout(layout);
            let plan = match fields.indices {
                true => pool.plan_with_indices(device, dtype, &dims)?,
                false => pool.plan(device, dtype, &dims)?,
            };
            (plan, vec![random(&dims, 1)?])
        }
        ("maxpool", "bwd") => {
            let pool = MaxPool::over(window).layout(layout);
            let plan = pool.plan_backward(device, dtype, &dims)?;
            let (y, winners) = pool.forward_with_indices(&random(&dims, 1)?)?;
            (plan, vec![random(y.dims(), 2)?, winners])
        }
        ("avgpool", pass) => {
            let pool = AvgPool::over(window).layout(layout).divisor(Divisor::Valid);
            match pass {
                "fwd" => (pool.plan(device, dtype, &dims)?, vec![random(&dims, 1)?]),
                "bwd" => {
                    let plan = pool.plan_backward(device, dtype, &dims)?;
                    let output = plan.pooling().output().dims(layout).collect::<Vec<_>>();
                    (plan, vec![random(&output, 2)?])
                }
                _ => return Err(case.unknown_pass("fwd, bwd")),
            }
        }
        _ => return Err(case.unknown_pass("fwd, bwd")),
    };
    Ok(Box::new(Pooling { plan, inputs, results: Vec::new() }))
}

impl Fields {
    fn window(&self) -> Result<Window, Failure> {
        let extents = |name: &str, numbers: &[usize]| {
            Extents::try_from(numbers)
                .map_err(|error| Failure::Failed(format!("`{name}`: {error}")))
        };
        Ok(Window::new(extents("k", &self.k)?)
            .stride(extents("s", &self.s)?)
            .padding(extents("p", &self.p)?)
            .dilation(extents("d", &self.d)?))
    }

    /// The input's dimensions, in the order of memory.
    fn dims(&self, layout: Layout) -> Vec<usize> {
        let (before, after) = match layout {
            Layout::ChannelsLast => (None, Some(self.c)),
            Layout::ChannelsFirst => (Some(self.c), None),
        };
        let space = self.size.iter().copied();
        [self.n].into_iter().chain(before).chain(space).chain(after).collect()
    }
}

impl Work for Pooling {
    fn launch(&mut self) -> Result<()> {
        self.plan.run(&self.inputs.iter().collect::<Vec<_>>(), &mut self.results)
    }

    fn wait(&self) -> Result<()> {
        self.results.iter().try_for_each(Tensor::wait)
    }

    fn algorithm(&self) -> String {
        self.plan.algorithm().to_string()
    }

    fn bytes(&self) -> u64 {
        self.plan.bytes()
    }

    fn operations(&self) -> Option<u64> {
        None
    }
}
