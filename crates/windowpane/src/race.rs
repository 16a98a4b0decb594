//! Times plans that compute the same, to find the fastest.

use crate::{Device, Result};

/// The target duration of a window of launches, its maximum number of launches, and the number of windows (the
/// fastest counts).
const WINDOW: f64 = 2e-3;
const MOST_LAUNCHES: f64 = 50.0;
const WINDOWS: usize = 5;

/// A plan that takes this many times as long as the fastest is timed only once.
const HOPELESS: f64 = 2.0;

/// The relative gain a plan needs to replace another; less may be noise.
const GAIN: f64 = 0.02;

/// The fastest plan so far, and its time in seconds.
#[derive(Clone, Copy)]
pub(crate) struct Race<P> {
    pub(crate) best: Option<(P, f64)>,
}

impl<P: Copy> Race<P> {
    pub(crate) fn new() -> Self {
        Self { best: None }
    }

    /// Times a plan whose kernel is compiled, and keeps it if it is the fastest. `launch` gives the mean seconds of one of so
    /// many launches.
    pub(crate) fn enter(
        &mut self,
        plan: P,
        mut launch: impl FnMut(u32) -> Result<f64>,
    ) -> Result<()> {
        let once = launch(1)?;
        if self.best.is_some_and(|(_, best)| once > HOPELESS * best) {
            return Ok(());
        }
        let mut fastest = f64::INFINITY;
        for _ in 0..WINDOWS {
            fastest = fastest.min(launch(launches(once))?);
        }
        if self.best.is_none_or(|(_, best)| fastest < best * (1.0 - GAIN)) {
            self.best = Some((plan, fastest));
        }
        Ok(())
    }
}

/// Whether a plan is faster than another when both run alternately, so that disturbances affect both.
pub(crate) fn is_faster<P>(
    plan: P,
    other: P,
    mut launch: impl FnMut(&P, u32) -> Result<f64>,
) -> Result<bool> {
    let both = [plan, other];
    let longest = both.iter().map(|plan| launch(plan, 1)).collect::<Result<Vec<_>>>()?;
    let longest = longest.into_iter().fold(0.0, f64::max);
    let mut fastest = [f64::INFINITY; 2];
    for _ in 0..WINDOWS {
        for (plan, fastest) in both.iter().zip(&mut fastest) {
            *fastest = fastest.min(launch(plan, launches(longest))?);
        }
    }
    Ok(fastest[0] < fastest[1] * (1.0 - GAIN))
}

/// The launches of a window, if one takes so many seconds.
fn launches(once: f64) -> u32 {
    (WINDOW / once.max(1e-9)).clamp(1.0, MOST_LAUNCHES) as u32
}

/// The mean seconds of one of `launches` launches.
pub(crate) fn mean_seconds(
    device: &Device,
    launches: u32,
    mut launch: impl FnMut() -> Result<()> + Send,
) -> Result<f64> {
    let ((), took) = device.time(|| (0..launches).try_for_each(|_| launch()))?;
    Ok(took.as_secs_f64() / f64::from(launches))
}
