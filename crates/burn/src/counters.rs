//! Counts what was replaced.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

static COUNTS: Mutex<BTreeMap<&'static str, Count>> = Mutex::new(BTreeMap::new());

/// How often an operator of Burn ran, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// How often windowpane computed it.
    pub replaced: u64,
    /// How often Burn's own operator computed it, because windowpane could not.
    pub fell_back: u64,
    /// The reason of the last fallback.
    pub reason: Option<String>,
}

/// What was replaced in this process so far: see [`counters`].
///
/// Prints one line per operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    counts: BTreeMap<&'static str, Count>,
}

impl Counters {
    /// How many operations windowpane computed.
    pub fn replaced(&self) -> u64 {
        self.counts.values().map(|count| count.replaced).sum()
    }

    /// How many operations Burn's own operators computed, because windowpane could not.
    pub fn fell_back(&self) -> u64 {
        self.counts.values().map(|count| count.fell_back).sum()
    }

    /// The counts of an operator, by Burn's name, such as `conv2d` or `max_pool2d_with_indices_backward`.
    pub fn of(&self, operator: &str) -> Count {
        self.counts.get(operator).cloned().unwrap_or_default()
    }

    /// The counts of every operator that ran, by Burn's name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Count)> {
        self.counts.iter().map(|(name, count)| (*name, count))
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.counts.keys().map(|name| name.len()).max().unwrap_or(0).max(8);
        write!(f, "{:width$}  replaced  fell back", "operator")?;
        for (name, Count { replaced, fell_back, reason }) in &self.counts {
            write!(f, "\n{name:width$}  {replaced:8}  {fell_back:9}")?;
            if let Some(reason) = reason {
                write!(f, "  {reason}")?;
            }
        }
        Ok(())
    }
}

/// What was replaced in this process so far.
///
/// Burn runs operations later than they are written, so read a result first. If Burn finds no valid order for the pieces
/// of its queue that fusers would take, it runs all of them without fusers, and they are not counted.
pub fn counters() -> Counters {
    Counters { counts: lock().clone() }
}

/// Counts an operation; a reason means that Burn's operator computes it.
pub(crate) fn count(operator: &'static str, refused: Option<String>) {
    let mut counts = lock();
    let count = counts.entry(operator).or_default();
    match refused {
        None => count.replaced += 1,
        reason => {
            count.fell_back += 1;
            count.reason = reason;
        }
    }
}

fn lock() -> std::sync::MutexGuard<'static, BTreeMap<&'static str, Count>> {
    // Every count is written in one step, so a poisoned map is still right.
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_and_print() {
        count("conv2d", None);
        count("conv2d", None);
        count("max_pool1d", Some("it is too long".into()));
        let counters = counters();
        assert_eq!((counters.replaced(), counters.fell_back()), (2, 1));
        assert_eq!(counters.of("conv2d").replaced, 2);
        assert_eq!(counters.of("conv3d"), Count::default());
        let lines = "operator    replaced  fell back\n\
                     conv2d             2          0\n\
                     max_pool1d         0          1  it is too long";
        assert_eq!(counters.to_string(), lines);
    }
}
