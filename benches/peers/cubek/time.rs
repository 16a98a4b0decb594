//! Timing as in `windowpane bench`: windows of many launches back to back, replayed from a recording if the
//! device supports it, timed by the device's clock, with work before a window that keeps the device busy
//! while the host queues it.

use std::time::{Duration, Instant};

use windowpane::{DType, Device, Tensor};

use crate::contest::Launch;
use crate::{Result, text};

const WINDOW: f64 = 2.5e-3;
const WINDOWS: usize = 15;
const FEWEST_WINDOWS: usize = 5;
const MOST_LAUNCHES: f64 = 400.0;
/// The longest total duration of the trial launches.
const GLANCE: f64 = 1e-3;
/// A launch that takes longer than this runs only as often as necessary.
const SLOW: f64 = 0.5;
/// More than the host needs to start a window.
const START: f64 = 200e-6;
const LONGEST_HEAD_START: f64 = 20e-3;
const SCRATCH: usize = 1 << 24;

pub(crate) struct Clock {
    device: Device,
    /// The tensor filled before a window, and the time of a fill.
    scratch: Option<(Tensor, f64)>,
}

/// The time of a launch in seconds.
pub(crate) struct Measured {
    pub(crate) median: f64,
    pub(crate) fastest: f64,
    /// The interquartile range of the windows, relative to the median.
    pub(crate) spread: f64,
    pub(crate) windows: usize,
    pub(crate) launches: usize,
    pub(crate) recorded: bool,
}

/// Seconds of a launch on the device, and of queuing it on the host.
#[derive(Clone, Copy)]
struct Seen {
    device: f64,
    host: f64,
}

impl Clock {
    pub(crate) fn new(device: &Device) -> Self {
        Self { device: device.clone(), scratch: None }
    }

    /// Seconds of a launch, roughly; the first has run already.
    pub(crate) fn glance(&mut self, launch: &mut Launch) -> Result<f64> {
        let first = self.window(launch, 1, None)?;
        if first.device > SLOW {
            return Ok(first.device);
        }
        let launches = of_window(GLANCE, first.device);
        let (a, b) = (self.window(launch, launches, Some(first))?, first);
        let again = self.window(launch, launches, Some(Seen { host: a.host.min(b.host), ..a }))?;
        Ok(a.device.min(again.device))
    }

    /// `spoil` is called before the windows, so that the result that is checked was written by them.
    pub(crate) fn measure(
        &mut self,
        launch: &mut Launch,
        spoil: impl FnOnce() -> Result<()>,
    ) -> Result<Measured> {
        let mut seen = self.window(launch, 1, None)?;
        let mut launches = of_window(WINDOW, seen.device);
        // Measured twice, because a late host makes a launch look longer than it is.
        seen = self.window(launch, launches, Some(seen))?;
        launches = of_window(WINDOW, seen.device);
        let windows = match launches {
            1 if seen.device > SLOW => 3,
            1 => FEWEST_WINDOWS,
            _ => WINDOWS,
        };
        let mut refused = None;
        let device = self.device.clone();
        let work = || {
            let done = (0..launches).try_for_each(|_| launch());
            refused = done.err().or(refused.take());
            Ok(())
        };
        let mut recording = device.record(work).map_err(text)?;
        spoil()?;
        let mut seconds = Vec::new();
        seen = Seen { device: seen.device * launches as f64, host: seen.host * launches as f64 };
        for _ in 0..windows {
            seen = self.window(&mut || recording.replay().map_err(text), 1, Some(seen))?;
            seconds.push(seen.device / launches as f64);
        }
        let recorded = recording.is_captured();
        drop(recording);
        if let Some(error) = refused {
            return Err(error);
        }
        seconds.sort_by(f64::total_cmp);
        let (median, quarter) = (seconds[windows / 2], windows / 4);
        if median <= 0.0 {
            return Err("the device's clock measured nothing".into());
        }
        let spread = (seconds[windows - 1 - quarter] - seconds[quarter]) / median;
        Ok(Measured { median, fastest: seconds[0], spread, windows, launches, recorded })
    }

    fn window(
        &mut self,
        launch: &mut (dyn FnMut() -> Result<()> + Send),
        launches: usize,
        before: Option<Seen>,
    ) -> Result<Seen> {
        if let Some(before) = before {
            self.occupy(before, launches)?;
        }
        let mut refused = None;
        let (host, device) = self
            .device
            .time(|| {
                let start = Instant::now();
                for _ in 0..launches {
                    if let Err(error) = launch() {
                        refused = Some(error);
                        break;
                    }
                }
                Ok(start.elapsed())
            })
            .map_err(text)?;
        if let Some(error) = refused {
            return Err(error);
        }
        let each = |whole: Duration| whole.as_secs_f64() / launches as f64;
        // If the queue is full, the host waits, and that wait is not queuing time.
        let host = before.map_or(each(host), |before| before.host.min(each(host)));
        Ok(Seen { device: each(device), host })
    }

    fn occupy(&mut self, seen: Seen, launches: usize) -> Result<()> {
        let long = seen.device > 2.0 * seen.host;
        // An emulated device runs on the CPU, so neither side can get ahead.
        if !self.device.has_clock() || (long && self.device.is_emulated()) {
            return Ok(());
        }
        if self.scratch.is_none() {
            let mut scratch =
                Tensor::random(&self.device, DType::F32, [SCRATCH], 0).map_err(text)?;
            scratch.wait().map_err(text)?;
            let fill = || (0..4).try_for_each(|seed| scratch.randomize(seed));
            let ((), lasts) = self.device.time(fill).map_err(text)?;
            self.scratch = Some((scratch, lasts.as_secs_f64() / 4.0));
        }
        let Some((scratch, lasts)) = &mut self.scratch else { return Ok(()) };
        // 50 % more, because queuing time varies.
        let queuing = if long { 0.0 } else { seen.host * launches as f64 * 1.5 };
        let needed = (START + queuing).min(LONGEST_HEAD_START);
        for seed in 0..(needed / lasts.max(1e-6)).ceil() as u32 {
            scratch.randomize(seed).map_err(text)?;
        }
        Ok(())
    }
}

/// The number of launches for a window of this duration.
fn of_window(window: f64, launch: f64) -> usize {
    (window / launch.max(1e-9)).clamp(1.0, MOST_LAUNCHES) as usize
}
