//! Timing: timing runs, called windows in this file, of launches back to back, timed by the device's clock and replayed
//! from a recording if the device supports it, to keep CPU overhead out.
//!
//! With cold caches a window is one launch. Before it, outside the window, a tensor larger than any cache is
//! filled with random numbers. Timing the fill and subtracting it would add noise larger than most launches.
//! The fill also keeps the device busy while the host queues the launch, so that the window contains only the
//! launch.

use std::time::{Duration, Instant};

use windowpane::{DType, Device, Tensor};

use super::Work;
use crate::failure::Failure;

/// The target duration of a window: long compared with the cost of starting and ending it.
const WINDOW: Duration = Duration::from_micros(2500);

/// The most launches of a window; drivers can queue that many.
const MOST_LAUNCHES: u32 = 400;

/// The target duration of all windows of a case, and their least and largest number.
const ALL_WINDOWS: Duration = Duration::from_millis(50);
const FEWEST_WINDOWS: u32 = 5;
const MOST_WINDOWS: u32 = 20;

/// A launch that takes longer than this runs only as often as a median needs.
const SLOW: Duration = Duration::from_millis(500);

/// More than the host needs to start a window, including its first launch.
const START: Duration = Duration::from_micros(200);

/// The head start before a window: the target duration of one fill (long compared with queuing it), the
/// elements it may have, and the longest total duration of all fills.
const FILL: Duration = Duration::from_micros(50);
const SCRATCH: [usize; 3] = [1 << 22, 1 << 24, 1 << 26];
const LONGEST_HEAD_START: Duration = Duration::from_millis(20);

/// How long a GPU is kept busy at most before a case, because some drivers lower the clocks between short bursts.
const WAKE: Duration = Duration::from_millis(500);

/// The target duration of a round of fills in that time. It is enough if a fill takes no longer than this many times the
/// fastest one.
const WAKE_ROUND: Duration = Duration::from_millis(5);
const AWAKE: f64 = 1.1;

/// The size of the fill before each launch with cold caches: more than the caches of GPUs (at most 256 MiB)
/// and CPUs hold, or the largest buffer of the device.
const FLUSH_ELEMENTS: [usize; 3] = [96 << 20, 32 << 20, 16 << 20];

/// The windows of a case with cold caches, one launch each; fewer if the host does the filling.
const COLD_WINDOWS: u32 = 15;

/// Windows that differ by more than this share of their median count as noisy.
pub(super) const NOISE: f64 = 0.05;

/// The measured time of a case.
pub(super) struct Measured {
    /// The median over the windows.
    pub(super) seconds: f64,
    /// The time of the fastest window.
    pub(super) fastest: f64,
    /// The host's time for the first launch and its wait. Kernels that were not compiled before are compiled in it.
    pub(super) first: f64,
    /// The interquartile range of the windows, relative to the median.
    pub(super) spread: f64,
    pub(super) windows: u32,
    /// The number of launches in a window.
    pub(super) launches: u32,
    /// Whether they were replayed from a recording.
    pub(super) recorded: bool,
    pub(super) algorithm: String,
    /// The tile sizes, if there are any.
    pub(super) tile: Option<String>,
    pub(super) bytes: u64,
    pub(super) operations: Option<u64>,
    /// All operations, including those of a pooling.
    pub(super) arithmetic: u64,
    /// The worst error in units of its bound, if results were checked.
    pub(super) error: Option<f64>,
    /// Whether the caches were evicted before each launch.
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
    /// The tensor filled before each launch with cold caches.
    flush: Option<Tensor>,
    /// How long the device rests before its windows.
    rest: Duration,
    /// Seconds of a launch above which one window is enough.
    patience: f64,
}

/// A large tensor and the time that the device takes to fill it.
struct HeadStart {
    scratch: Tensor,
    lasts: Duration,
    /// The fastest fill so far, if the device has been awake.
    fastest: Option<Duration>,
}

/// The time of a launch in each window, and the number of launches in a window.
struct Timed {
    seconds: Vec<f64>,
    launches: u32,
    recorded: bool,
}

/// The time of a launch within one window.
#[derive(Clone, Copy)]
struct Launch {
    /// The device time.
    device: Duration,
    /// The time that the host needed to queue it.
    host: Duration,
}

impl Stopwatch {
    /// A stopwatch for warm or cold caches; the device rests for `rest` before its windows.
    pub(super) fn new(device: Device, cold: bool, rest: Duration) -> Result<Self, Failure> {
        let flush = if cold { Some(flush(&device)?) } else { None };
        Ok(Self { device, head_start: None, flush, rest, patience: f64::INFINITY })
    }

    /// From now on, a launch that takes longer than this is timed only roughly, in one window.
    pub(super) fn give_up_after(&mut self, seconds: f64) {
        self.patience = seconds;
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether the caches are evicted before each launch.
    pub(super) fn is_cold(&self) -> bool {
        self.flush.is_some()
    }

    pub(super) fn measure(&mut self, work: &mut dyn Work) -> Result<Measured, Failure> {
        // The first launch compiles the kernel; a failing kernel reports its error here.
        self.device.wait()?;
        let start = Instant::now();
        work.launch()?;
        work.wait()?;
        let first = start.elapsed().as_secs_f64();
        std::thread::sleep(self.rest);
        self.wake()?;
        let Timed { mut seconds, launches, recorded } = match self.flush {
            Some(_) => self.cold_windows(work)?,
            None => self.warm_windows(work)?,
        };
        // A failure between the first and the last launch must not look like a fast launch.
        work.wait()?;
        let Windows { median, fastest, spread } = Windows::of(&mut seconds)?;
        Ok(Measured {
            seconds: median,
            fastest,
            first,
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
        // Measured twice, because a late host makes a launch look longer than it is.
        let mut launch = self.window(3, None, || (0..3).try_for_each(|_| work.launch()))?;
        if launch.device.as_secs_f64() > self.patience {
            let seconds = vec![launch.device.as_secs_f64()];
            return Ok(Timed { seconds, launches: 3, recorded: false });
        }
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
        Ok(Timed { seconds, launches, recorded: recording.is_captured() })
    }

    /// Windows of one launch each, with the caches evicted before it.
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
                // Without the device's clock the fill would be included in the time.
                self.device.wait()?;
            }
            let mut runs = 0;
            let ((), took) = self.device.time(|| {
                runs += 1;
                recording.replay()
            })?;
            // If the clock measured nothing at first, the caches were warm when it did.
            if runs == 1 {
                seconds.push(took.as_secs_f64());
            }
            if took > SLOW && seconds.len() >= FEWEST_WINDOWS as usize {
                break;
            }
        }
        Ok(Timed { seconds, launches: 1, recorded: recording.is_captured() })
    }

    /// One window of `launches` launches; `before` is the estimated time of one.
    fn window(
        &mut self,
        launches: u32,
        before: Option<Launch>,
        mut work: impl FnMut() -> windowpane::Result<()> + Send,
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
        // If the head start fills the queue, the host waits, and that wait is not queuing time.
        let host = before.map_or(host, |before| host.min(before.host));
        Ok(Launch { device: device / launches, host })
    }

    /// Keeps a GPU busy until its clocks are as high as they were.
    fn wake(&mut self) -> Result<(), Failure> {
        if !self.device.has_clock() || self.device.is_emulated() {
            return Ok(());
        }
        let device = self.device.clone();
        let HeadStart { scratch, lasts, fastest } = self.head_start()?;
        let fills = (WAKE_ROUND.as_secs_f64() / lasts.as_secs_f64().max(1e-6)).ceil() as u32;
        let start = Instant::now();
        let fill = awake(*fastest, || {
            let ((), round) =
                device.time(|| (0..fills).try_for_each(|seed| scratch.randomize(seed)))?;
            Ok((round / fills, start.elapsed()))
        })?;
        (*lasts, *fastest) = (fill, Some(fill));
        Ok(())
    }

    fn head_start(&mut self) -> Result<&mut HeadStart, Failure> {
        let made = match self.head_start.take() {
            Some(made) => made,
            None => HeadStart::new(&self.device)?,
        };
        Ok(self.head_start.insert(made))
    }

    /// Keeps the device busy while the host starts a window and queues launches that run faster than the
    /// host can queue them; otherwise the window would include CPU time.
    fn occupy(&mut self, launch: Launch, launches: u32) -> Result<(), Failure> {
        let long = launch.device > 2 * launch.host;
        // An emulated device runs on the CPU, so neither side can get ahead.
        if !self.device.has_clock() || (long && self.device.is_emulated()) {
            return Ok(());
        }
        let HeadStart { scratch, lasts, .. } = self.head_start()?;
        // 50 % more, because queuing time varies.
        let queuing = launch.host.as_secs_f64() * f64::from(launches) * 1.5;
        let queuing = if long { 0.0 } else { queuing };
        let needed = (START.as_secs_f64() + queuing).min(LONGEST_HEAD_START.as_secs_f64());
        for seed in 0..(needed / lasts.as_secs_f64().max(1e-6)).ceil() as u32 {
            scratch.randomize(seed)?;
        }
        Ok(())
    }
}

/// The statistics of a case's windows.
#[derive(Debug, PartialEq)]
struct Windows {
    median: f64,
    fastest: f64,
    /// The interquartile range, relative to the median.
    spread: f64,
}

impl Windows {
    /// Sorts and summarises the windows' times. A time of zero is a failure of the clock, never a fast
    /// launch.
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

/// The largest tensor for evicting caches that the device can allocate.
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
    /// The smallest tensor that takes long enough to fill, or the largest that the device can allocate.
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
        Ok(Self { scratch, lasts: lasts / fills, fastest: None })
    }
}

/// Repeats rounds, each of which returns the time of a fill and the time since the first began, until a fill is as fast as
/// the fastest one; at most for [`WAKE`], and that long if none is known. Returns the fastest.
fn awake(
    fastest: Option<Duration>,
    mut round: impl FnMut() -> windowpane::Result<(Duration, Duration)>,
) -> windowpane::Result<Duration> {
    let mut found = fastest.unwrap_or(Duration::MAX);
    loop {
        let (fill, since) = round()?;
        let usual = fastest.is_some_and(|fastest| fill <= fastest.mul_f64(AWAKE));
        found = found.min(fill);
        if usual || since >= WAKE {
            return Ok(found);
        }
    }
}

/// The number of launches for a window.
fn launches_of(launch: Duration) -> u32 {
    let launches = WINDOW.as_secs_f64() / launch.as_secs_f64().max(1e-9);
    (launches as u32).clamp(1, MOST_LAUNCHES)
}

/// The number of windows for a median.
fn windows_of(window: Duration) -> u32 {
    let windows = ALL_WINDOWS.as_secs_f64() / window.as_secs_f64().max(1e-9);
    (windows as u32).clamp(FEWEST_WINDOWS, MOST_WINDOWS)
}

/// The quantile of sorted numbers, interpolated between two of them if necessary.
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

    /// Even if only a few times are zero.
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

    /// Work that only records when it was launched.
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
        // The measured time may be zero and is not checked.
        let _ = stopwatch.measure(&mut idle);
        assert!(idle.0[1] - idle.0[0] >= rest);
    }

    /// Until a fill is as fast as the fastest one was, and at first, or where it stays slow, for as long as a device may
    /// take to wake.
    #[test]
    fn devices_are_awake_before_their_windows() {
        let micros = Duration::from_micros;
        let rounds = |fastest: Option<u64>, fills: &[u64]| {
            let mut count = 0u32;
            let found = awake(fastest.map(micros), || {
                let fill = *fills.get(count as usize).unwrap_or(&fills[fills.len() - 1]);
                count += 1;
                Ok((micros(fill), WAKE_ROUND * count))
            });
            (count, found.expect("a time").as_micros())
        };
        let all = (WAKE.as_micros() / WAKE_ROUND.as_micros()) as u32;
        assert_eq!(rounds(None, &[50]), (all, 50));
        assert_eq!(rounds(Some(50), &[51]), (1, 50));
        assert_eq!(rounds(Some(50), &[300, 290, 54, 50]), (3, 50));
        assert_eq!(rounds(Some(50), &[300]), (all, 50));
        assert_eq!(rounds(Some(50), &[40]), (1, 40));
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
