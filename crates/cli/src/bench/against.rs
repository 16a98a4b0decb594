//! What moved since an earlier run.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::print::percent;
use super::row::{self, Line, Row, Time};
use crate::failure::Failure;

/// The rows of an earlier run, by what they are of.
pub(super) struct Earlier {
    rows: HashMap<String, Row>,
    /// By how much a time may change, as a share of it.
    threshold: f64,
}

/// How a case changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Faster,
    Slower,
    /// It ran, and does no more.
    Broken,
    /// It did not run, and does.
    Mended,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Broken => "broken",
            Self::Mended => "mended",
        }
    }

    /// Whether a run with such a case has failed.
    pub(super) fn is_bad(self) -> bool {
        matches!(self, Self::Slower | Self::Broken)
    }
}

/// A case that moved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Moved {
    /// The case, in one word.
    pub(super) moved: String,
    pub(super) backend: String,
    pub(super) verdict: Verdict,
    pub(super) before_ms: Option<f64>,
    pub(super) after_ms: Option<f64>,
    /// What may be noise, as a share.
    pub(super) noise: f64,
}

/// How far two runs agree, noise and all: what a run can be trusted to tell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Agreement {
    /// The cases whose times differ by no more than a share, of those that have two.
    pub(super) agree: usize,
    pub(super) of: usize,
    pub(super) within: f64,
    /// Those of the others that a run has marked as noisy.
    pub(super) noisy: usize,
}

/// Prints `27 of 30 cases agree within 5 %; of the others 2 are marked as noisy`.
impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agree, of, within, noisy } = self;
        write!(f, "{agree} of {of} cases agree within {}", percent(*within))?;
        match of - agree {
            0 => Ok(()),
            _ => write!(f, "; of the others {noisy} are marked as noisy"),
        }
    }
}

impl Earlier {
    /// How far these rows agree with the earlier ones.
    pub(super) fn agreement(&self, rows: &[&Row]) -> Agreement {
        let within = self.threshold;
        let mut agreement = Agreement { agree: 0, of: 0, within, noisy: 0 };
        for row in rows {
            let before = self.rows.get(&key(row)).and_then(Row::time);
            let Some((before, after)) = before.zip(row.time()) else { continue };
            agreement.of += 1;
            let (less, more) = (before.ms.min(after.ms), before.ms.max(after.ms));
            match more <= less * (1.0 + within) {
                true => agreement.agree += 1,
                false => agreement.noisy += usize::from(before.noisy || after.noisy),
            }
        }
        agreement
    }

    pub(super) fn read(path: &Path, threshold: f64) -> Result<Self, Failure> {
        let rows = row::read(path)?.into_iter().filter_map(|line| match line {
            Line::Row(row) => Some((key(&row), row)),
            Line::Ceiling(_) | Line::Agreement(_) | Line::Moved(_) => None,
        });
        Ok(Self { rows: rows.collect(), threshold })
    }

    /// How many of these the earlier run has not.
    pub(super) fn lacks(&self, rows: &[&Row]) -> usize {
        rows.iter().filter(|row| !self.rows.contains_key(&key(row))).count()
    }

    /// How a case moved, if it did.
    pub(super) fn moved(&self, after: &Row) -> Option<Moved> {
        let before = self.rows.get(&key(after))?;
        let (verdict, noise) = match (before.time(), after.time()) {
            (Some(before), Some(after)) => self.change(before, after)?,
            (Some(_), None) => (Verdict::Broken, 0.0),
            (None, Some(_)) => (Verdict::Mended, 0.0),
            (None, None) => return None,
        };
        Some(Moved {
            moved: after.case(),
            backend: after.whose().into(),
            verdict,
            before_ms: before.time().map(|time| time.ms),
            after_ms: after.time().map(|time| time.ms),
            noise: row::rounded(noise),
        })
    }

    /// A time has changed where its median has by more than the threshold and the noise of both
    /// runs, and where its fastest window has gone the same way: others on the machine slow
    /// windows down, and make none faster.
    fn change(&self, before: &Time, after: &Time) -> Option<(Verdict, f64)> {
        if before.cache != after.cache {
            return None;
        }
        let noise = before.spread + after.spread;
        let (least, limit) = (1.0 + self.threshold, 1.0 + self.threshold.max(noise));
        let median = after.ms / before.ms;
        let fastest = before.ms_fastest.zip(after.ms_fastest);
        let fastest = fastest.map_or(median, |(before, after)| after / before);
        if median > limit && fastest > least {
            return Some((Verdict::Slower, noise));
        }
        (median < 1.0 / limit && fastest < 1.0 / least).then_some((Verdict::Faster, noise))
    }
}

/// What a row is of.
fn key(row: &Row) -> String {
    format!("{} {}", row.case(), row.whose())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(ms: f64, fastest: f64, spread: f64) -> Row {
        serde_json::from_value(json!({
            "name": "a", "kind": "maxpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
            "backend": "cpu", "ms": ms, "ms_fastest": fastest, "spread": spread,
        }))
        .expect("a row")
    }

    fn broken() -> Row {
        serde_json::from_value(json!({
            "name": "a", "kind": "maxpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
            "backend": "cpu", "error": "it did not run",
        }))
        .expect("a row")
    }

    fn verdict(before: Row, after: &Row) -> Option<Verdict> {
        let earlier = Earlier { rows: HashMap::from([(key(&before), before)]), threshold: 0.05 };
        earlier.moved(after).map(|moved| moved.verdict)
    }

    #[test]
    fn only_what_is_no_noise_has_moved() {
        let quiet = || row(1.0, 1.0, 0.01);
        assert_eq!(verdict(quiet(), &row(1.04, 1.04, 0.01)), None);
        assert_eq!(verdict(quiet(), &row(1.06, 1.06, 0.01)), Some(Verdict::Slower));
        assert_eq!(verdict(quiet(), &row(0.9, 0.9, 0.01)), Some(Verdict::Faster));
        // As far apart as the windows of one run.
        assert_eq!(verdict(quiet(), &row(1.3, 1.2, 0.4)), None);
        // Caches that were warm in one run only.
        let mut cold = row(9.0, 9.0, 0.0);
        if let super::row::Outcome::Time(time) = &mut cold.result {
            time.cache = "cold".into();
        }
        assert_eq!(verdict(quiet(), &cold), None);
        // A median that others on the machine have moved.
        assert_eq!(verdict(quiet(), &row(1.3, 1.01, 0.02)), None);
    }

    /// Two runs agree where their medians are close, whatever may have moved them apart.
    #[test]
    fn agreement_is_of_times_as_they_are() {
        let before = row(1.0, 1.0, 0.0);
        let earlier = Earlier { rows: HashMap::from([(key(&before), before)]), threshold: 0.05 };
        let agreement = |after: Row| {
            let Agreement { agree, of, noisy, .. } = earlier.agreement(&[&after]);
            (agree, of, noisy)
        };
        assert_eq!(agreement(row(1.04, 1.0, 0.0)), (1, 1, 0));
        assert_eq!(agreement(row(0.94, 0.94, 0.0)), (0, 1, 0));
        let mut noisy = row(1.3, 1.0, 0.4);
        if let super::row::Outcome::Time(time) = &mut noisy.result {
            time.noisy = true;
        }
        assert_eq!(agreement(noisy), (0, 1, 1));
        assert_eq!(agreement(broken()), (0, 0, 0));
        let told = Agreement { agree: 27, of: 30, within: 0.05, noisy: 2 }.to_string();
        assert_eq!(told, "27 of 30 cases agree within 5 %; of the others 2 are marked as noisy");
    }

    #[test]
    fn cases_break_and_are_mended() {
        assert_eq!(verdict(row(1.0, 1.0, 0.0), &broken()), Some(Verdict::Broken));
        assert_eq!(verdict(broken(), &row(1.0, 1.0, 0.0)), Some(Verdict::Mended));
        assert_eq!(verdict(broken(), &broken()), None);
        assert!(Verdict::Broken.is_bad() && !Verdict::Mended.is_bad());
    }
}
