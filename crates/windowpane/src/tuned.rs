//! The results of tuning, in this process and as text that can be saved.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

#[cfg(feature = "kernels")]
use windowpane_geometry::{Axis, Grid};
use windowpane_geometry::{Change, Layout, Tile, TileOverrides};

#[cfg(feature = "kernels")]
use crate::Device;
use crate::{ConvAlgorithm, PoolAlgorithm};

/// Convolutions and poolings whose kernels and tiles were chosen by measuring: a table that can be saved as text and
/// that later plans use.
///
/// ```
/// use windowpane::{Conv, DType, Device, Tuned};
///
/// let device = Device::host();
/// let conv = Conv::new([3, 3]).padding([1, 1]);
/// let plan = conv.plan(&device, DType::F32, &[1, 8, 8, 4], &[4, 3, 3, 4])?;
/// let plan = plan.tune()?; // measures, and remembers
///
/// let text = Tuned::all().to_string(); // to be written to a file, and in another process:
/// text.parse::<Tuned>()?.apply();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It applies only to problems with the same shapes on devices with the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuned {
    /// By device and problem.
    found: BTreeMap<(String, String), Found>,
}

/// The choice for a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Conv(FoundConv),
    Pool(PoolAlgorithm),
}

/// The choice for a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundConv {
    pub(crate) algorithm: ConvAlgorithm,
    /// The layout that the kernel computes in; `None` for the planner's choice.
    pub(crate) layout: Option<Layout>,
    /// What else is done with the tensors first.
    pub(crate) change: Option<Change>,
    pub(crate) tile: Option<Tile>,
    /// The number of parts of each sum (split-K).
    pub(crate) splits: usize,
}

/// The first word of a pooling's problem.
pub(crate) const POOLING: &str = "pooling";

/// The choices that plans in this process use.
static REMEMBERED: RwLock<Tuned> = RwLock::new(Tuned::new());

/// How often the table has changed.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// A number that changes whenever plans may change.
#[cfg(feature = "kernels")]
pub(crate) fn generation() -> usize {
    GENERATION.load(Ordering::Acquire)
}

impl Tuned {
    const fn new() -> Self {
        Self { found: BTreeMap::new() }
    }

    /// Every choice that this process has measured or loaded.
    pub fn all() -> Self {
        REMEMBERED.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes plans in this process use this table, and earlier choices for problems it does not contain.
    pub fn apply(self) {
        let mut remembered = REMEMBERED.write().unwrap_or_else(PoisonError::into_inner);
        remembered.found.extend(self.found);
        GENERATION.fetch_add(1, Ordering::Release);
    }

    /// The number of problems in the table.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

#[cfg(feature = "kernels")]
pub(crate) fn remember(device: &Device, problem: String, found: Found) {
    let found = BTreeMap::from([((name_of(device), problem), found)]);
    Tuned { found }.apply();
}

/// The choice for a problem, whose key is computed only if the table is not empty.
#[cfg(feature = "kernels")]
pub(crate) fn recall(device: &Device, problem: impl FnOnce() -> String) -> Option<Found> {
    let remembered = REMEMBERED.read().unwrap_or_else(PoisonError::into_inner);
    if remembered.is_empty() {
        return None;
    }
    remembered.found.get(&(name_of(device), problem())).copied()
}

/// The key of all devices of one kind.
#[cfg(feature = "kernels")]
fn name_of(device: &Device) -> String {
    format!("{} {}", device.backend(), device.name())
}

/// The sizes of windows as a part of a problem's text.
#[cfg(feature = "kernels")]
pub(crate) fn windows(grid: &Grid) -> String {
    let axes = || grid.axes().iter().skip(grid.axes().len() - grid.rank());
    let each = |of: fn(&Axis) -> String| axes().map(of).collect::<Vec<_>>().join(",");
    format!(
        "size={} k={} s={} d={} p={}",
        each(|axis| axis.input().to_string()),
        each(|axis| axis.kernel().to_string()),
        each(|axis| axis.stride().to_string()),
        each(|axis| axis.dilation().to_string()),
        each(|axis| format!("{}:{}", axis.before(), axis.after())),
    )
}

/// The first line of the text.
const TITLE: &str = "# windowpane: tuned plans, version 1";

/// Prints a section per device, with a line per problem: the problem, `=`, and how it runs.
impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}")?;
        let mut last = None;
        for ((device, problem), found) in &self.found {
            if last.replace(device) != Some(device) {
                writeln!(f, "[{device}]")?;
            }
            let FoundConv { algorithm, layout, change, tile, splits } = match found {
                Found::Conv(found) => found,
                Found::Pool(algorithm) => {
                    writeln!(f, "{problem} = {algorithm}")?;
                    continue;
                }
            };
            write!(f, "{problem} = {algorithm} splits={splits}")?;
            if let Some(layout) = layout {
                write!(f, " layout={layout}")?;
                if let Some(change) = change {
                    write!(f, ",{change}")?;
                }
            }
            match tile {
                Some(tile) => writeln!(f, " {tile}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

/// The error for text that is not a table of tuned plans.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not part of a table of tuned plans: {reason}; tune again")]
pub struct UnknownTuned {
    line: usize,
    reason: String,
}

impl FromStr for Tuned {
    type Err = UnknownTuned;

    fn from_str(text: &str) -> Result<Self, UnknownTuned> {
        let mut lines = text.lines().zip(1..);
        if lines.next().is_none_or(|(first, _)| first.trim_end() != TITLE) {
            let reason = format!("the first line must be `{TITLE}`");
            return Err(UnknownTuned { line: 1, reason });
        }
        let (mut tuned, mut device) = (Self::new(), None);
        for (text, line) in lines.filter(|(text, _)| !text.trim().is_empty()) {
            let text = text.trim();
            if let Some(name) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
                device = Some(name.to_owned());
                continue;
            }
            let (key, found) =
                entry(device.as_ref(), text).map_err(|reason| UnknownTuned { line, reason })?;
            tuned.found.insert(key, found);
        }
        Ok(tuned)
    }
}

/// Parses a line: the problem on its device, and how it runs.
fn entry(device: Option<&String>, text: &str) -> Result<((String, String), Found), String> {
    let device = device.ok_or("no [device] line comes before it")?;
    let (problem, found) = text.split_once(" = ").ok_or("it has no ` = `")?;
    let mut words = found.split_whitespace();
    let algorithm = words.next().ok_or("it names no algorithm")?;
    if problem.split_whitespace().next() == Some(POOLING) {
        let algorithm = algorithm.parse().map_err(|error| format!("{error}"))?;
        return Ok(((device.clone(), problem.into()), Found::Pool(algorithm)));
    }
    let algorithm = algorithm.parse().map_err(|error| format!("{error}"))?;
    let splits = words.next().and_then(|word| word.strip_prefix("splits=")?.parse().ok());
    let splits = splits.ok_or("it has no `splits=NUMBER`")?;
    let mut words = words.peekable();
    let form = words.next_if(|word| word.starts_with("layout="));
    let mut form = form.into_iter().flat_map(|word| word["layout=".len()..].splitn(2, ','));
    let layout = form.next().map(|word| match word {
        "channels-last" => Ok(Layout::ChannelsLast),
        "channels-first" => Ok(Layout::ChannelsFirst),
        _ => Err("its layout is neither channels-last nor channels-first"),
    });
    let layout = layout.transpose()?;
    let change = form.next().map(|word| {
        let known = Change::ALL.into_iter().find(|change| change.name() == word);
        known.ok_or_else(|| format!("`{word}` cannot follow a layout"))
    });
    let change = change.transpose()?;
    let tile = words.next().map(|word| {
        let overrides: TileOverrides = word.parse().map_err(|error| format!("{error}"))?;
        whole(&overrides).ok_or("its tile lacks numbers".to_owned())
    });
    let tile = tile.transpose()?;
    let found = FoundConv { algorithm, layout, change, tile, splits };
    Ok(((device.clone(), problem.into()), Found::Conv(found)))
}

/// The tile, if all its numbers are given.
fn whole(overrides: &TileOverrides) -> Option<Tile> {
    Some(Tile {
        block_m: overrides.block_m?,
        block_n: overrides.block_n?,
        block_k: overrides.block_k?,
        ratio_m: overrides.ratio_m?,
        ratio_n: overrides.ratio_n?,
        elems_per_thread: overrides.elems_per_thread?,
        stages: overrides.stages?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_come_back_from_their_text() {
        let tile = Tile {
            block_m: 128,
            block_n: 64,
            block_k: 16,
            ratio_m: 2,
            ratio_n: 2,
            elems_per_thread: 4,
            stages: 2,
        };
        let key = |device: &str, problem: &str| (device.to_owned(), problem.to_owned());
        let tuned = Tuned {
            found: BTreeMap::from([
                (
                    key("cuda NVIDIA [x], driver 1", "forward f32 n=1"),
                    Found::Conv(FoundConv {
                        algorithm: ConvAlgorithm::Simt,
                        layout: Some(Layout::ChannelsLast),
                        change: None,
                        tile: Some(tile),
                        splits: 1,
                    }),
                ),
                (
                    key("cuda NVIDIA [x], driver 1", "forward f32 n=2"),
                    Found::Conv(FoundConv {
                        algorithm: ConvAlgorithm::Direct,
                        layout: None,
                        change: None,
                        tile: None,
                        splits: 8,
                    }),
                ),
                (
                    key("wgpu other", "forward f32 n=1"),
                    Found::Conv(FoundConv {
                        algorithm: ConvAlgorithm::Direct,
                        layout: Some(Layout::ChannelsFirst),
                        change: Some(Change::Sampled),
                        tile: None,
                        splits: 1,
                    }),
                ),
                (
                    key("wgpu other", "pooling max-pooling f32 n=1"),
                    Found::Pool(PoolAlgorithm::VanHerk),
                ),
            ]),
        };
        assert_eq!(tuned.to_string().parse(), Ok(tuned.clone()));
        assert_eq!(tuned.to_string().matches('[').count(), 3);
        assert_eq!(Tuned::default().to_string().parse(), Ok(Tuned::default()));
    }

    #[test]
    fn other_texts_are_refused_by_their_line() {
        for (rest, line) in [
            ("forward = direct splits=1", 2),
            ("[a]\nforward direct splits=1", 3),
            ("[a]\nforward = fast splits=1", 3),
            ("[a]\nforward = direct", 3),
            ("[a]\npooling max = simt", 3),
            ("[a]\n\nforward = tiled splits=1 block_m=4", 4),
            ("[a]\nforward = direct splits=1 layout=nhwc", 3),
            ("[a]\nforward = direct splits=1 layout=channels-last,turned", 3),
            ("[a]\nforward = direct splits=1 layout=channels-last,blocks,sampled", 3),
        ] {
            let error = format!("{TITLE}\n{rest}\n").parse::<Tuned>().expect_err(rest);
            assert_eq!(error.line, line, "{error}");
        }
        assert_eq!("{}".parse::<Tuned>().map_err(|error| error.line), Err(1));
    }
}
