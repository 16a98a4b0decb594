//! Measured speeds of devices, from which the times of kernels are estimated: how they are measured, and the file that
//! keeps them.

use std::time::Duration;

use windowpane_geometry::DType;
use windowpane_kernels::Speeds;

use crate::{ArithmeticUnit, Device, Result, Tensor};

/// The environment variable with the path of a file of speeds.
const VARIABLE: &str = "WINDOWPANE_SPEEDS";

/// What to do about a file that cannot be used.
const CALIBRATE: &str = "unset it, or let `windowpane calibrate` write the file while it is unset";

/// The first line of the file.
const TITLE: &str = "# windowpane: speeds of devices, version 1";

/// The bytes of a copy that a cache of unknown size is expected to hold.
const CACHED: usize = 4 << 20;

/// The launches of a window, and the number of windows; the fastest counts.
const LAUNCHES: u32 = 64;
const WINDOWS: u32 = 8;

impl Device {
    /// The speeds from which the times of kernels are estimated; `None` for `host`, which has none to choose from.
    ///
    /// They are recorded for known devices and estimated for others, unless `WINDOWPANE_SPEEDS` names a file that has
    /// the device. `windowpane calibrate` writes one.
    pub fn speeds(&self) -> Option<Speeds> {
        self.capabilities().map(|known| known.speeds)
    }

    /// Measures the speeds, in some seconds.
    pub(crate) fn measure_speeds(&self) -> Result<Option<Speeds>> {
        let Some(known) = self.capabilities() else { return Ok(None) };
        let launch = self.time_of_copy(DType::F32.size())?;
        // A quarter, because a copy reads and writes, and a cache is not filled evenly.
        let cached = known.cache_bytes.map_or(CACHED, |bytes| (bytes / 4).max(1 << 16));
        let copied = self.time_of_copy(cached / 2)?.saturating_sub(launch);
        let memory = self.peak_copy_bandwidth()?;
        let products = |dtype, unit| -> Result<f64> {
            Ok(self.peak_arithmetic(dtype, unit)?.unwrap_or(0.0) / 2.0)
        };
        let matrix = products(DType::F16, ArithmeticUnit::Matrix)?
            .max(products(DType::BF16, ArithmeticUnit::Matrix)?);
        Ok(Some(Speeds {
            memory: memory as u64,
            cache: (cached as f64 / copied.as_secs_f64().max(1e-9)).max(memory) as u64,
            vector: products(DType::F32, ArithmeticUnit::Vector)? as u64,
            matrix: matrix as u64,
            // There is no simple loop to time.
            warpgroup: known.speeds.warpgroup,
            launch: launch.as_nanos() as u64,
        }))
    }

    /// The time of one of many copies in a row, from a recording if the device supports it.
    fn time_of_copy(&self, bytes: usize) -> Result<Duration> {
        let elements = (bytes / DType::F32.size()).max(1);
        let source = Tensor::random(self, DType::F32, [elements], 1)?;
        let mut target = Tensor::random(self, DType::F32, [elements], 2)?;
        let mut copies =
            self.record(|| (0..LAUNCHES).try_for_each(|_| target.copy_from(&source)))?;
        let mut fastest = Duration::MAX;
        for _ in 0..WINDOWS {
            let ((), took) = self.time(|| copies.replay())?;
            fastest = fastest.min(took / LAUNCHES);
        }
        Ok(fastest)
    }
}

/// The speeds of a device as the text of a file.
pub(crate) fn print(device: &str, speeds: &Speeds) -> String {
    let lines = named(speeds).map(|(name, value)| format!("{name} = {value}\n")).concat();
    format!("{TITLE}\n[{device}]\n{lines}")
}

/// The speeds of a device in the file that the user named, if it has the device.
pub(crate) fn asked(device: &str) -> Result<Option<Speeds>, String> {
    let Some(path) = std::env::var_os(VARIABLE) else { return Ok(None) };
    let file = path.to_string_lossy();
    let text = std::fs::read_to_string(&path).map_err(|error| {
        format!("{VARIABLE} names {file}, which cannot be read: {error}; {CALIBRATE}")
    })?;
    parse(&text, device)
        .map_err(|reason| format!("{VARIABLE} names {file}, where {reason}; {CALIBRATE}"))
}

/// The section of a device in a file of speeds.
fn parse(text: &str, device: &str) -> Result<Option<Speeds>, String> {
    let mut lines = text.lines().zip(1..);
    if lines.next().is_none_or(|(first, _)| first.trim_end() != TITLE) {
        return Err(format!("the first line is not `{TITLE}`"));
    }
    let (mut found, mut is_here): (Vec<(&str, u64)>, _) = (Vec::new(), false);
    for (line, number) in lines.map(|(line, number)| (line.trim(), number)) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_here = name == device;
        } else if let Some((name, value)) = line.split_once(" = ") {
            let value = value.parse().map_err(|_| format!("line {number} has no whole number"))?;
            found.extend(is_here.then_some((name, value)));
        } else if !line.is_empty() {
            return Err(format!("line {number} is neither `[device]` nor `name = number`"));
        }
    }
    if found.is_empty() {
        return Ok(None);
    }
    let speed = |name: &str| {
        let value = found.iter().rev().find(|(known, _)| *known == name);
        value.map(|(_, value)| *value).ok_or_else(|| format!("[{device}] has no `{name}`"))
    };
    let speeds = Speeds {
        memory: speed("memory")?,
        cache: speed("cache")?,
        vector: speed("vector")?,
        matrix: speed("matrix")?,
        warpgroup: speed("warpgroup")?,
        launch: speed("launch")?,
    };
    match [speeds.memory, speeds.cache, speeds.vector].contains(&0) {
        true => Err(format!("[{device}] has a speed of 0")),
        false => Ok(Some(speeds)),
    }
}

/// The speeds with the names that the file has.
fn named(speeds: &Speeds) -> [(&'static str, u64); 6] {
    let Speeds { memory, cache, vector, matrix, warpgroup, launch } = *speeds;
    [
        ("memory", memory),
        ("cache", cache),
        ("vector", vector),
        ("matrix", matrix),
        ("warpgroup", warpgroup),
        ("launch", launch),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEEDS: Speeds =
        Speeds { memory: 5, cache: 6, vector: 7, matrix: 0, warpgroup: 0, launch: 8 };

    fn text(device: &str) -> String {
        print(device, &SPEEDS)
    }

    #[test]
    fn a_section_is_read_for_its_device_only() {
        assert_eq!(parse(&text("cuda X"), "cuda X"), Ok(Some(SPEEDS)));
        assert_eq!(parse(&text("cuda X"), "cuda Y"), Ok(None));
        let both = text("cuda Y") + text("cuda X").trim_start_matches(TITLE);
        assert_eq!(parse(&both, "cuda X"), Ok(Some(SPEEDS)));
    }

    #[test]
    fn what_is_no_file_of_speeds_is_refused() {
        let whole = text("cuda X");
        let refused = |text: &str| parse(text, "cuda X").expect_err("no file of speeds");
        assert!(refused("").contains("first line"));
        assert!(refused(&whole.replace("launch = 8\n", "")).contains("no `launch`"));
        assert!(refused(&whole.replace("= 8", "= fast")).contains("line 8 has no whole number"));
        assert!(refused(&whole.replace("memory = 5", "memory 5")).contains("line 3 is neither"));
        assert!(refused(&whole.replace("memory = 5", "memory = 0")).contains("speed of 0"));
    }
}
