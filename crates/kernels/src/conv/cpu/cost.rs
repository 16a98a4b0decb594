//! Estimates the time from the products of all vectors, including padding, and from the bytes of the tensors.

use super::config::Config;
use crate::conv::common::cost;
use crate::conv::common::gather::columns;
use crate::conv::common::rules::widest_register;
use crate::conv::problem::{Pass, Task, multiplications};

/// The share of the vector units' speed that the products reach.
const REACHED: f64 = 0.5;

pub(super) fn seconds(config: Config, task: Task<'_>) -> f64 {
    let Task { conv, request, device } = task;
    let columns = columns(conv, request.pass).max(1);
    // A vector takes as long as the widest one, however many of its lanes have columns.
    let padded = columns.div_ceil(config.lanes as usize) as f64 / columns as f64;
    let lanes = f64::from(widest_register(request.dtype, device));
    let products = multiplications(conv) as f64 * padded * lanes;
    let multiplying = products / (REACHED * device.speeds.vector as f64);
    let packing = if request.pass == Pass::Weight { 0 } else { 1 };
    let moving = device.copy_seconds(cost::bytes(conv, request));
    device.launch_seconds(1 + packing) + multiplying.max(moving)
}
