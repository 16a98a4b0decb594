//! The pooling operators on `host`.

use windowpane_geometry::Pooling;
use windowpane_host::pool::{self, Poolable};
use windowpane_reference::pool::Algorithm;
use windowpane_reference::pool::stochastic::{drawn, mean};

use super::Operator;
use super::run::dims;
use crate::element::{Element, HostBuffer, sealed::Sealed, with_element};
use crate::tensor::element_slice;
use crate::{PoolAlgorithm, PoolPlan, Result, Tensor};

pub(super) fn run_on_host(
    operator: Operator,
    algorithm: PoolAlgorithm,
    plan: &PoolPlan,
    x: &Tensor,
) -> (Tensor, Option<Tensor>) {
    let buffer = x.host_buffer().expect("a tensor on host has its elements there");
    let (values, indices) = with_element!(x.dtype(), T => {
        let (values, indices) = pool_slice(operator, algorithm, &plan.pooling, element_slice::<T>(buffer));
        (T::into_host(values), indices)
    });
    let dims = dims(&plan.pooling, plan.pooling.output());
    let tensor = |buffer: HostBuffer| Tensor::on_host(&plan.device, dims.clone(), buffer);
    (tensor(values), indices.map(|indices| tensor(i32::into_host(indices))))
}

fn pool_slice<T: Element + Poolable>(
    operator: Operator,
    algorithm: PoolAlgorithm,
    pooling: &Pooling,
    x: &[T],
) -> (Vec<T>, Option<Vec<i32>>) {
    let algorithm = own(algorithm);
    match operator {
        Operator::Extremum(which, None) => (pool::extremum(which, algorithm, pooling, x), None),
        Operator::Extremum(which, Some(base)) => {
            let (values, indices) = pool::extremum_with_indices(which, algorithm, pooling, base, x);
            (values, Some(indices))
        }
        Operator::Average(divisor) => (pool::average(algorithm, pooling, divisor, x), None),
        Operator::Norm(p) => (pool::norm(pooling, p, x), None),
        Operator::Rank(rank) => (windowpane_host::rank(pooling, rank, x), None),
        Operator::Mode => (windowpane_host::mode(pooling, x), None),
        Operator::Drawn(seed, base) => {
            let (values, indices) = drawn(pooling, seed, base.unwrap_or_default(), x);
            (values, base.map(|_| indices))
        }
        Operator::MeanDrawn => (mean(pooling, x), None),
        Operator::ExtremumBackward(..)
        | Operator::DrawnBackward(_)
        | Operator::AverageBackward(_)
        | Operator::NormBackward(_)
        | Operator::Unpool(_)
        | Operator::UnpoolBackward(_) => unreachable!("{} has a way of its own", operator.name()),
    }
}

/// The algorithm of a plan on `host`.
pub(super) fn own(algorithm: PoolAlgorithm) -> Algorithm {
    match algorithm {
        PoolAlgorithm::Sliding => Algorithm::Sliding,
        _ => Algorithm::Direct,
    }
}

pub(super) fn backward_on_host(
    operator: Operator,
    plan: &PoolPlan,
    dy: &Tensor,
    winners: Option<&Tensor>,
) -> Result<Tensor> {
    let pooling = &plan.pooling;
    let buffer = dy.host_buffer().expect("a tensor on host has its elements there");
    let dx = with_element!(dy.dtype(), T => {
        let dy = element_slice::<T>(buffer);
        T::into_host(match (operator, winners) {
            (Operator::ExtremumBackward(_, base) | Operator::DrawnBackward(base), Some(winners)) => {
                let winners = winners.host_buffer().expect("a tensor on host has its elements there");
                pool::max_backward(pooling, base, dy, element_slice::<i32>(winners))?
            }
            (Operator::AverageBackward(divisor), None) => {
                pool::average_backward(pooling, divisor, dy)
            }
            _ => unreachable!("only an average's gradient has no winners"),
        })
    });
    Ok(Tensor::on_host(&plan.device, dims(pooling, pooling.input()), dx))
}
