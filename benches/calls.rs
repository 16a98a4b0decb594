//! The host's time for a call, next to that for launching an empty kernel with as many buffers: the cost of planning,
//! checking and allocating, on every device with kernels.
//!
//! `cargo bench --bench calls --features cuda -- cuda`, for one backend, or without its name for all

use std::time::{Duration, Instant};

use cubecl::prelude::*;
use windowpane::{AvgPool, Conv, DType, Device, Layout, MaxPool, Result, Tensor};

/// The number of calls in a round, and the number of rounds, of which the fastest counts. CubeCL's queue holds 64
/// launches and allocations, and a call makes at most ten: in a longer round the host would wait for CubeCL's thread.
const CALLS: u32 = 6;
const ROUNDS: u32 = 1000;

fn main() -> Result<()> {
    // A test run executes every case once, so that none breaks unnoticed.
    let benched = std::env::args().any(|word| word == "--bench");
    let rounds = if benched {
        Rounds { calls: CALLS, rounds: ROUNDS }
    } else {
        Rounds { calls: 1, rounds: 0 }
    };
    let only = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    println!("{:10} {:34} {:>9} {:>9} {:>6}", "device", "call", "µs", "empty µs", "ratio");
    for device in Device::all() {
        let Some(client) = device.client() else { continue };
        if only.as_ref().is_some_and(|name| *name != device.backend().to_string()) {
            continue;
        }
        let empty = |buffers: usize| {
            let handles: Vec<_> = (0..buffers).map(|_| client.empty(1 << 10)).collect();
            time(rounds, || {
                launch_empty(client, &handles);
                Ok(())
            })
        };
        let [two, three] = [empty(2)?, empty(3)?];
        for (name, empty, took) in calls(&device, rounds)?
            .into_iter()
            .map(|(name, buffers, took)| (name, if buffers == 2 { two } else { three }, took))
        {
            let micros = |time: Duration| time.as_secs_f64() * 1e6;
            let (took, empty) = (micros(took), micros(empty));
            let device = device.to_string();
            println!("{device:10} {name:34} {took:9.2} {empty:9.2} {:6.2}", took / empty);
        }
    }
    Ok(())
}

/// How often calls are timed.
#[derive(Clone, Copy)]
struct Rounds {
    calls: u32,
    rounds: u32,
}

/// The name of each call, its number of buffers, and its time.
fn calls(device: &Device, rounds: Rounds) -> Result<Vec<(&'static str, usize, Duration)>> {
    let dtype = if device.supports(DType::BF16) { DType::BF16 } else { DType::F32 };
    // Small, so that devices finish the work sooner than it is launched.
    let x = Tensor::random(device, dtype, [1, 14, 14, 16], 1)?;
    let w = Tensor::random(device, dtype, [16, 3, 3, 16], 2)?;
    let (first, dense) = (Tensor::random(device, dtype, [1, 16, 14, 14], 1)?, Conv::new([3, 3]));
    let weights = Tensor::random(device, dtype, [16, 16, 3, 3], 2)?;
    let dense = dense.padding([1, 1]);
    let turned = dense.layout(Layout::ChannelsFirst);
    let turned = turned.filter_layout(windowpane::FilterLayout::Fchw);
    let max = MaxPool::new([3, 3]).stride([2, 2]).padding([1, 1]);
    let average = AvgPool::new([3, 3]).padding([1, 1]);
    let plan = max.plan(device, dtype, x.dims())?;
    let forward = dense.plan(device, dtype, x.dims(), w.dims())?;
    let filter = dense.plan_backward_weight(device, dtype, x.dims(), w.dims())?;
    let mut results = Vec::new();
    Ok(vec![
        ("max pooling", 2, time(rounds, || max.forward(&x).map(drop))?),
        ("its plan, remembered", 2, time(rounds, || max.plan(device, dtype, x.dims()).map(drop))?),
        ("max pooling by a plan, memory kept", 2, {
            time(rounds, || plan.run(&[&x], &mut results))?
        }),
        ("average pooling", 2, time(rounds, || average.forward(&x).map(drop))?),
        ("convolution", 3, time(rounds, || dense.forward(&x, &w, None).map(drop))?),
        ("its plan, remembered", 3, {
            time(rounds, || dense.plan(device, dtype, x.dims(), w.dims()).map(drop))?
        }),
        ("its data gradient", 3, {
            time(rounds, || dense.backward_data(&x, &w, x.dims()).map(drop))?
        }),
        ("its weight gradient", 3, time(rounds, || dense.backward_weight(&x, &x).map(drop))?),
        ("convolution by a plan", 3, {
            time(rounds, || forward.run(&[&x, &w], &mut results).map(drop))?
        }),
        ("weight gradient by a plan", 3, {
            time(rounds, || filter.run(&[&x, &x], &mut results).map(drop))?
        }),
        ("convolution, channels first", 3, {
            time(rounds, || turned.forward(&first, &weights, None).map(drop))?
        }),
    ])
}

/// The mean time of a call in the fastest round. Launched work gets time to finish between rounds.
fn time(
    Rounds { calls, rounds }: Rounds,
    mut call: impl FnMut() -> Result<()>,
) -> Result<Duration> {
    let mut fastest = Duration::MAX;
    for _ in 0..=rounds {
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        fastest = fastest.min(start.elapsed() / calls);
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(fastest)
}

fn launch_empty(client: &cubecl::client::Client, handles: &[cubecl::server::Handle]) {
    let (cubes, units) = (CubeCount::Static(1, 1, 1), CubeDim::new_1d(32));
    // SAFETY: nothing is read or written.
    let buffer = |nth: usize| unsafe { BufferArg::from_raw_parts(handles[nth].clone(), 256) };
    unsafe {
        match handles.len() {
            2 => empty_of_two::launch_unchecked(client, cubes, units, buffer(0), buffer(1)),
            _ => empty_of_three::launch_unchecked(
                client,
                cubes,
                units,
                buffer(0),
                buffer(1),
                buffer(2),
            ),
        }
    }
}

#[cube(launch_unchecked)]
fn empty_of_two(_a: &[f32], _b: &mut [f32]) {}

#[cube(launch_unchecked)]
fn empty_of_three(_a: &[f32], _b: &[f32], _c: &mut [f32]) {}
