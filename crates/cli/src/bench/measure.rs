//! Timing: launches back to back inside windows that the device's clock times, out of a recording where
//! the device makes one, so that as little of the host's as can be is between them.
//!
//! With cold caches a window is one launch, and before it a tensor larger than any cache is filled
//! with random numbers, outside of the window. A fill inside and subtracted would add its own noise,
//! which is larger than what most launches take. The fill also keeps the device busy while the host
//! queues the launch, so that the window holds the launch alone.

use std::time::{Duration, Instant};

use windowpane::{DType, Device, Tensor};

use super::Work;
use crate::failure::Failure;

/// How long a window should last: long beside what starting and ending it costs.
const WINDOW: Duration = Duration::from_micros(2500);

/// The most launches of a window, which a driver's queue holds easily.
const MOST_LAUNCHES: u32 = 400;

/// How long all windows of a case together should last, the fewest and the most of them.
const ALL_WINDOWS: Duration = Duration::from_millis(50);
const FEWEST_WINDOWS: u32 = 5;
const MOST_WINDOWS: u32 = 20;

/// A launch that takes longer than this is not made more often than a median needs.
const SLOW: Duration = Duration::from_millis(500);

/// More than what starting a window takes the host, its first launch among it.
const START: Duration = Duration::from_micros(200);

/// How long filling the head start's tensor should last, long beside queuing it, the elements that
/// it may have, and how long all fills before a window may last.
const FILL: Duration = Duration::from_micros(50);
const SCRATCH: [usize; 3] = [1 << 22, 1 << 24, 1 << 26];
const LONGEST_HEAD_START: Duration = Duration::from_millis(20);

/// What is filled before each launch with cold caches: more than the caches of GPUs and of
/// processors hold, 256 MiB being the largest of the former; or what a device can have.
const FLUSH_ELEMENTS: [usize; 3] = [96 << 20, 32 << 20, 16 << 20];

/// The windows of a case with cold caches, each a launch; fewer where filling takes the host.
const COLD_WINDOWS: u32 = 15;

/// Windows that differ by more than this share of their median are noise.
pub(super) const NOISE: f64 = 0.05;

/// What one launch of a case took.
pub(super) struct Measured {
    /// The median over the windows.
    pub(super) seconds: f64,
    /// The fastest window's.
    pub(super) fastest: f64,
    /// The distance of the quarters of the windows, as a share of the median.
    pub(super) spread: f64,
    pub(super) windows: u32,
    /// The launches of a window.
    pub(super) launches: u32,
    /// Whether they came out of a recording.
    pub(super) recorded: bool,
    pub(super) algorithm: String,
    /// How a product of matrices is cut up.
    pub(super) tile: Option<String>,
    pub(super) bytes: u64,
    pub(super) operations: Option<u64>,
    /// All operations, those of a pooling among them.
    pub(super) arithmetic: u64,
    /// The worst error of a result, in units of its bound, if it was looked for.
    pub(super) error: Option<f64>,
    /// Whether the caches were filled with other things before each launch.
    pub(super) cold: bool,
}

impl Measured {
    pub(super) fn is_noisy(&self) -> bool {
        self.spread > NOISE
    }
}

/// Times cases on a device.
pub(super) struct Stopwatch {
    device: Device,
    head_start: Option<HeadStart>,
    /// What is filled before each launch with cold caches.
    flush: Option<Tensor>,
    /// How long the device rests before its windows.
    rest: Duration,
}

/// A large tensor, and how long the device takes to fill it.
struct HeadStart {
    scratch: Tensor,
    lasts: Duration,
}

/// What a launch took in each window, and the launches of a window.
struct Timed {
    seconds: Vec<f64>,
    launches: u32,
    recorded: bool,
}

/// A launch, as a window saw it.
#[derive(Clone, Copy)]
struct Launch {
    /// What the device took.
    device: Duration,
    /// What the host took to queue it.
    host: Duration,
}

impl Stopwatch {
    /// A stopwatch for warm caches, or cold ones, and for a device that rests so long before its windows.
    pub(super) fn new(device: Device, cold: bool, rest: Duration) -> Result<Self, Failure> {
        let flush = if cold { Some(flush(&device)?) } else { None };
        Ok(Self { device, head_start: None, flush, rest })
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether the caches are filled with other things before each launch.
    pub(super) fn is_cold(&self) -> bool {
        self.flush.is_some()
    }

    pub(super) fn measure(&mut self, work: &mut dyn Work) -> Result<Measured, Failure> {
        // The first launch compiles; a kernel that fails says so here.
        work.launch()?;
        work.wait()?;
        std::thread::sleep(self.rest);
        let Timed { mut seconds, launches, recorded } = match self.flush {
            Some(_) => self.cold_windows(work)?,
            None => self.warm_windows(work)?,
        };
        // A failure between the first launch and the last must not pass for a fast one.
        work.wait()?;
        let Windows { median, fastest, spread } = Windows::of(&mut seconds)?;
        Ok(Measured {
            seconds: median,
            fastest,
            spread,
            windows: seconds.len() as u32,
            launches,
            recorded,
            algorithm: work.algorithm(),
            tile: work.tile(),
            bytes: work.bytes(),
            operations: work.operations(),
            arithmetic: work.arithmetic(),
            error: None,
            cold: self.is_cold(),
        })
    }

    /// Windows of launches back to back.
    fn warm_windows(&mut self, work: &mut dyn Work) -> Result<Timed, Failure> {
        // Twice, for a window that the host was late for makes a launch look longer than it is.
        let mut launch = self.window(3, None, || (0..3).try_for_each(|_| work.launch()))?;
        let mut launches = launches_of(launch.device);
        if launches > 1 || launch.device < WINDOW {
            let repeated = || (0..launches).try_for_each(|_| work.launch());
            launch = self.window(launches, Some(launch), repeated)?;
            launches = launches_of(launch.device);
        }
        let device = self.device.clone();
        let mut recording = device.record(|| (0..launches).try_for_each(|_| work.launch()))?;
        let mut seconds = Vec::new();
        for _ in 0..windows_of(launch.device * launches) {
            launch = self.window(launches, Some(launch), || recording.replay())?;
            seconds.push(launch.device.as_secs_f64());
        }
        Ok(Timed { seconds, launches, recorded: recording.is_kept() })
    }

    /// Windows of a launch each, other things filling the caches before it.
    fn cold_windows(&mut self, work: &mut dyn Work) -> Result<Timed, Failure> {
        let mut seconds = Vec::new();
        let windows = if self.device.has_clock() { COLD_WINDOWS } else { FEWEST_WINDOWS };
        let device = self.device.clone();
        let mut recording = device.record(|| work.launch())?;
        for seed in 0..windows {
            if let Some(flush) = &mut self.flush {
                flush.randomize(seed)?;
            }
            if !self.device.has_clock() {
                // Without the device's clock the fill would be timed too.
                self.device.wait()?;
            }
            let ((), took) = self.device.time(|| recording.replay())?;
            seconds.push(took.as_secs_f64());
            if took > SLOW && seconds.len() >= FEWEST_WINDOWS as usize {
                break;
            }
        }
        Ok(Timed { seconds, launches: 1, recorded: recording.is_kept() })
    }

    /// One window of so many launches. `before` is how long they took so far.
    fn window(
        &mut self,
        launches: u32,
        before: Option<Launch>,
        work: impl FnOnce() -> windowpane::Result<()> + Send,
    ) -> Result<Launch, Failure> {
        if let Some(before) = before {
            self.occupy(before, launches)?;
        }
        let (host, device) = self.device.time(|| {
            let start = Instant::now();
            work()?;
            Ok(start.elapsed())
        })?;
        let host = host / launches;
        // A queue that the head start has filled makes the host wait, which is not queuing.
        let host = before.map_or(host, |before| host.min(before.host));
        Ok(Launch { device: device / launches, host })
    }

    /// Gives the device something to do while the host starts a window and queues launches that are shorter
    /// than queuing them; else the window would hold the host's time too.
    fn occupy(&mut self, launch: Launch, launches: u32) -> Result<(), Failure> {
        let long = launch.device > 2 * launch.host;
        // Where the processor stands for the device neither is ever ahead of the other.
        if !self.device.has_clock() || (long && self.device.is_emulated()) {
            return Ok(());
        }
        if self.head_start.is_none() {
            self.head_start = Some(HeadStart::new(&self.device)?);
        }
        let Some(HeadStart { scratch, lasts }) = &mut self.head_start else { return Ok(()) };
        // Half as much again, for queuing is not always as fast.
        let queuing = launch.host.as_secs_f64() * f64::from(launches) * 1.5;
        let queuing = if long { 0.0 } else { queuing };
        let needed = (START.as_secs_f64() + queuing).min(LONGEST_HEAD_START.as_secs_f64());
        for seed in 0..(needed / lasts.as_secs_f64().max(1e-6)).ceil() as u32 {
            scratch.randomize(seed)?;
        }
        Ok(())
    }
}

/// What the windows of a case tell.
#[derive(Debug, PartialEq)]
struct Windows {
    median: f64,
    fastest: f64,
    /// The distance of their quarters, as a share of the median.
    spread: f64,
}

impl Windows {
    /// Sorts the windows' times and sums them up. A time that is none, of one window or of all, is a
    /// failure of the clock, never a fast launch.
    fn of(seconds: &mut [f64]) -> Result<Self, Failure> {
        let is_time = |seconds: &f64| *seconds > 0.0 && seconds.is_finite();
        if let Some(bad) = seconds.iter().find(|seconds| !is_time(seconds)) {
            return Err(Failure::Failed(format!(
                "the device's clock measured nothing: a window took {bad} s"
            )));
        }
        seconds.sort_by(f64::total_cmp);
        let median = quantile(seconds, 0.5);
        if !is_time(&median) {
            return Err(Failure::Failed("the device's clock measured nothing".into()));
        }
        let spread = (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / median;
        Ok(Self { median, fastest: quantile(seconds, 0.0), spread })
    }
}

/// The largest tensor to flush caches with that the device can have.
fn flush(device: &Device) -> windowpane::Result<Tensor> {
    let [largest, smaller @ ..] = FLUSH_ELEMENTS;
    let make = |elements| {
        let tensor = Tensor::random(device, DType::F32, [elements], 0)?;
        tensor.wait()?;
        Ok(tensor)
    };
    make(largest)
        .or_else(|error| smaller.into_iter().find_map(|elements| make(elements).ok()).ok_or(error))
}

impl HeadStart {
    /// The smallest tensor that takes long enough, or the largest that the device can have.
    fn new(device: &Device) -> Result<Self, Failure> {
        let mut found = Self::of(device, SCRATCH[0])?;
        for elements in SCRATCH.into_iter().skip(1) {
            if found.lasts >= FILL {
                break;
            }
            match Self::of(device, elements) {
                Ok(larger) => found = larger,
                Err(_) => break,
            }
        }
        Ok(found)
    }

    fn of(device: &Device, elements: usize) -> Result<Self, Failure> {
        let mut scratch = Tensor::random(device, DType::F32, [elements], 0)?;
        scratch.wait()?;
        let fills = 4;
        let ((), lasts) =
            device.time(|| (0..fills).try_for_each(|seed| scratch.randomize(seed)))?;
        Ok(Self { scratch, lasts: lasts / fills })
    }
}

/// The launches that make a window.
fn launches_of(launch: Duration) -> u32 {
    let launches = WINDOW.as_secs_f64() / launch.as_secs_f64().max(1e-9);
    (launches as u32).clamp(1, MOST_LAUNCHES)
}

/// The windows that make a median.
fn windows_of(window: Duration) -> u32 {
    let windows = ALL_WINDOWS.as_secs_f64() / window.as_secs_f64().max(1e-9);
    (windows as u32).clamp(FEWEST_WINDOWS, MOST_WINDOWS)
}

/// The number below which this share of sorted numbers is, between two of them if need be.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = share * last as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_numbers() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.5), 3.0);
        assert_eq!(quantile(&[1.0, 2.0], 0.75), 1.75);
        assert_eq!(quantile(&[7.0], 0.25), 7.0);
    }

    /// However few they are among times that are right.
    #[test]
    fn times_that_are_none_are_failures() {
        let windows = |seconds: &[f64]| Windows::of(&mut seconds.to_vec());
        let right = windows(&[3.0, 1.0, 2.0]).expect("times");
        assert_eq!(right, Windows { median: 2.0, fastest: 1.0, spread: 0.5 });
        for bad in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY] {
            for seconds in [vec![bad; 5], vec![1.0, bad, 1.0, 1.0, 1.0]] {
                let error = windows(&seconds).expect_err("no time").to_string();
                assert!(error.contains("clock measured nothing"), "{seconds:?}: {error}");
            }
        }
        assert!(windows(&[]).is_err());
    }

    /// Work that does nothing but tell when it was launched.
    struct Idle(Vec<Instant>);

    impl Work for Idle {
        fn launch(&mut self) -> windowpane::Result<()> {
            self.0.push(Instant::now());
            Ok(())
        }

        fn wait(&self) -> windowpane::Result<()> {
            Ok(())
        }

        fn algorithm(&self) -> String {
            "idle".into()
        }

        fn bytes(&self) -> u64 {
            0
        }

        fn operations(&self) -> Option<u64> {
            None
        }
    }

    /// After the first launch, which compiles, and before all that are timed.
    #[test]
    fn devices_rest_before_their_windows() {
        let rest = Duration::from_millis(300);
        let mut stopwatch = Stopwatch::new(Device::host(), false, rest).expect("a stopwatch");
        let mut idle = Idle(Vec::new());
        // Whether nothing at all takes any time is another matter.
        let _ = stopwatch.measure(&mut idle);
        assert!(idle.0[1] - idle.0[0] >= rest);
    }

    #[test]
    fn windows_are_long_and_enough() {
        assert_eq!(launches_of(Duration::from_micros(8)), 312);
        assert_eq!(launches_of(Duration::from_nanos(10)), MOST_LAUNCHES);
        assert_eq!(launches_of(Duration::from_secs(1)), 1);
        assert_eq!(windows_of(Duration::from_micros(2400)), 20);
        assert_eq!(windows_of(Duration::from_micros(4900)), 10);
        assert_eq!(windows_of(Duration::from_millis(100)), FEWEST_WINDOWS);
        assert_eq!(windows_of(Duration::from_secs(2)), FEWEST_WINDOWS);
    }
}
