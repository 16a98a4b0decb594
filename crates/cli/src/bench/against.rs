//! Compares a run with an earlier one: which cases became faster or slower, were added or removed.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::print::percent;
use super::row::{self, Line, Row, Time};
use crate::failure::Failure;

/// The rows of an earlier run with their keys, in order.
pub(super) struct Earlier {
    rows: Vec<(String, Row)>,
    /// The relative change of a time that is tolerated.
    threshold: f64,
}

/// How a case changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Faster,
    Slower,
    /// It ran before and fails now.
    Broken,
    /// It failed before and runs now. Earlier versions called it `mended`.
    #[serde(alias = "mended")]
    Fixed,
    /// The earlier run has no such case.
    New,
    /// The earlier run has it, and this run does not, although its options include such cases.
    Gone,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Broken => "broken",
            Self::Fixed => "fixed",
            Self::New => "new",
            Self::Gone => "gone",
        }
    }

    /// Whether such a case makes the run fail.
    pub(super) fn is_bad(self) -> bool {
        matches!(self, Self::Slower | Self::Broken)
    }
}

/// A case that changed, was added or was removed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Moved {
    /// The path of the case.
    pub(super) moved: String,
    pub(super) backend: String,
    pub(super) verdict: Verdict,
    pub(super) before_ms: Option<f64>,
    pub(super) after_ms: Option<f64>,
    /// The relative difference that noise can explain.
    pub(super) noise: f64,
}

/// How well two runs agree, noise included, which shows how reproducible a run is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Agreement {
    /// How many cases have times that differ by at most `within`, `of` those with two times.
    pub(super) agree: usize,
    pub(super) of: usize,
    pub(super) within: f64,
    /// How many of the other cases are marked as noisy in one of the runs.
    pub(super) noisy: usize,
    /// The rows of the earlier run that this run's options exclude: other backends, another cache
    /// mode, or cases that the filter removes. Earlier versions called them `unasked`.
    #[serde(alias = "unasked", default, skip_serializing_if = "is_zero")]
    pub(super) excluded: usize,
}

fn is_zero(rows: &usize) -> bool {
    *rows == 0
}

/// Prints `27 of 30 cases agree within 5 %; 2 of the others are marked as noisy`, and how many rows
/// of the earlier run this run's options exclude.
impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agree, of, within, noisy, excluded } = self;
        write!(f, "{agree} of {of} cases agree within {}", percent(*within))?;
        if agree < of {
            write!(f, "; {noisy} of the others are marked as noisy")?;
        }
        match excluded {
            0 => Ok(()),
            _ => write!(f, "; this run's options exclude {excluded} rows of the earlier run"),
        }
    }
}

impl Earlier {
    /// How well these rows, of a run with this filter, agree with the earlier ones.
    pub(super) fn agreement(&self, rows: &[&Row], filter: &str) -> Agreement {
        let within = self.threshold;
        let excluded = self.lost(rows).filter(|row| !asked(row, rows, filter)).count();
        let mut agreement = Agreement { agree: 0, of: 0, within, noisy: 0, excluded };
        for row in rows {
            let before = self.row(&key(row)).and_then(Row::time);
            let Some((before, after)) = before.zip(row.time()) else { continue };
            agreement.of += 1;
            match before.agrees(after, within) {
                true => agreement.agree += 1,
                false => agreement.noisy += usize::from(before.noisy || after.noisy),
            }
        }
        agreement
    }

    pub(super) fn read(path: &Path, threshold: f64) -> Result<Self, Failure> {
        let rows = row::read(path)?.into_iter().filter_map(|line| match line {
            Line::Row(row) => Some(row),
            Line::Ceiling(_) | Line::Agreement(_) | Line::Moved(_) => None,
        });
        let earlier = Self::of(rows, threshold);
        if earlier.rows.is_empty() {
            let file = path.display();
            let message =
                format!("{file}: has no rows of cases; write it with `bench --format json`");
            return Err(Failure::Failed(message));
        }
        Ok(earlier)
    }

    /// The last of several rows with the same key counts.
    fn of(rows: impl Iterator<Item = Row>, threshold: f64) -> Self {
        let mut earlier = Self { rows: Vec::new(), threshold };
        for row in rows {
            let key = key(&row);
            earlier.rows.retain(|(known, _)| *known != key);
            earlier.rows.push((key, row));
        }
        earlier
    }

    fn row(&self, key: &str) -> Option<&Row> {
        self.rows.iter().find(|(known, _)| known == key).map(|(_, row)| row)
    }

    /// The cases that changed, were added or were removed, given these rows of a run with this filter.
    pub(super) fn changes(&self, rows: &[&Row], filter: &str) -> Vec<Moved> {
        let gone = self.lost(rows).filter(|row| asked(row, rows, filter));
        let gone = gone.map(|before| Moved::of(Verdict::Gone, 0.0, Some(before), None));
        rows.iter().filter_map(|row| self.moved(row)).chain(gone).collect()
    }

    /// Our earlier rows that have no counterpart here; `bench` never measures peers.
    fn lost(&self, rows: &[&Row]) -> impl Iterator<Item = &Row> {
        let known: Vec<String> = rows.iter().map(|row| key(row)).collect();
        let lost = self.rows.iter().filter(move |(key, _)| !known.contains(key));
        lost.map(|(_, row)| row).filter(|row| row.peer.is_none())
    }

    /// How a case changed, if it did, or that it is new.
    fn moved(&self, after: &Row) -> Option<Moved> {
        let before = self.row(&key(after));
        let (verdict, noise) = match before.map(|before| (before.time(), after.time())) {
            None => (Verdict::New, 0.0),
            Some((Some(before), Some(after))) => self.change(before, after)?,
            Some((Some(_), None)) => (Verdict::Broken, 0.0),
            Some((None, Some(_))) => (Verdict::Fixed, 0.0),
            Some((None, None)) => return None,
        };
        Some(Moved::of(verdict, noise, before, Some(after)))
    }

    /// A time has changed if its median did by more than the threshold and the noise of both runs,
    /// and the fastest timing run changed in the same direction: other processes can slow runs down
    /// but cannot make them faster.
    fn change(&self, before: &Time, after: &Time) -> Option<(Verdict, f64)> {
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

impl Moved {
    /// The change from an earlier row, to a later row, or between both.
    fn of(verdict: Verdict, noise: f64, before: Option<&Row>, after: Option<&Row>) -> Self {
        let ms = |row: Option<&Row>| row.and_then(Row::time).map(|time| time.ms);
        let either = after.or(before);
        Self {
            moved: either.map(Row::case).unwrap_or_default(),
            backend: either.map(|row| row.whose().into_owned()).unwrap_or_default(),
            verdict,
            before_ms: ms(before),
            after_ms: ms(after),
            noise: row::rounded(noise),
        }
    }
}

/// Whether the options of a run with these rows and this filter include such a row.
fn asked(row: &Row, rows: &[&Row], filter: &str) -> bool {
    row.case_contains(filter) && rows.iter().any(|own| own.whose() == row.whose())
}

/// The key of a row: case and contestant.
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
        Earlier::of([before].into_iter(), 0.05).moved(after).map(|moved| moved.verdict)
    }

    #[test]
    fn only_what_is_no_noise_has_moved() {
        let quiet = || row(1.0, 1.0, 0.01);
        assert_eq!(verdict(quiet(), &row(1.04, 1.04, 0.01)), None);
        assert_eq!(verdict(quiet(), &row(1.06, 1.06, 0.01)), Some(Verdict::Slower));
        assert_eq!(verdict(quiet(), &row(0.9, 0.9, 0.01)), Some(Verdict::Faster));
        // The difference is as large as between the timing runs of one of them.
        assert_eq!(verdict(quiet(), &row(1.3, 1.2, 0.4)), None);
        // Warm caches in one run and cold ones in the other: these are different contestants.
        let mut cold = row(9.0, 9.0, 0.0);
        if let super::row::Outcome::Time(time) = &mut cold.result {
            time.cache = "cold".into();
        }
        assert_eq!(verdict(quiet(), &cold), Some(Verdict::New));
        // A median changed by other processes.
        assert_eq!(verdict(quiet(), &row(1.3, 1.01, 0.02)), None);
    }

    /// Two runs agree if their medians are close, whatever the noise.
    #[test]
    fn agreement_is_of_times_as_they_are() {
        let earlier = Earlier::of([row(1.0, 1.0, 0.0)].into_iter(), 0.05);
        let agreement = |after: Row| {
            let Agreement { agree, of, noisy, .. } = earlier.agreement(&[&after], "");
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
        let told = Agreement { agree: 27, of: 30, within: 0.05, noisy: 2, excluded: 0 };
        let words = "27 of 30 cases agree within 5 %; 2 of the others are marked as noisy";
        assert_eq!(told.to_string(), words);
        let told = Agreement { excluded: 7, ..told }.to_string();
        assert_eq!(told, format!("{words}; this run's options exclude 7 rows of the earlier run"));
    }

    /// Cases that are in only one run are listed; those that the options exclude are counted.
    #[test]
    fn cases_come_and_go() {
        let named = |name: &str, backend: &str| {
            let mut row = row(1.0, 1.0, 0.0);
            (row.name, row.backend) = (name.into(), backend.into());
            row
        };
        let peer = || Row { peer: Some("torch".into()), ..named("both", "") };
        let before = [
            named("gone", "cpu"),
            named("both", "cpu"),
            named("filtered", "cpu"),
            named("gone", "cuda"),
            peer(),
        ];
        let earlier = Earlier::of(before.into_iter(), 0.05);
        let after = [named("both", "cpu"), named("gone but new", "cpu")];
        let after: Vec<&Row> = after.iter().collect();
        let told = |filter: &str| {
            let changes = earlier.changes(&after, filter).into_iter();
            let changes = changes.map(|it| {
                let name = it.moved.split('/').next().unwrap_or_default().to_owned();
                (name, it.backend, it.verdict, it.before_ms, it.after_ms)
            });
            (changes.collect::<Vec<_>>(), earlier.agreement(&after, filter).excluded)
        };
        let row = |name: &str, verdict, before, after| {
            (name.to_owned(), "cpu".to_owned(), verdict, before, after)
        };
        let new = row("gone but new", Verdict::New, None, Some(1.0));
        let gone = |name| row(name, Verdict::Gone, Some(1.0), None);
        assert_eq!(told(""), (vec![new.clone(), gone("gone"), gone("filtered")], 1));
        assert_eq!(told("gone/"), (vec![new, gone("gone")], 2));
        assert!(!Verdict::New.is_bad() && !Verdict::Gone.is_bad());
    }

    /// A case that fails with cold caches is compared with its earlier time with cold caches.
    #[test]
    fn failures_with_cold_caches_are_cold() {
        let mut before = row(1.0, 1.0, 0.0);
        if let super::row::Outcome::Time(time) = &mut before.result {
            time.cache = "cold".into();
        }
        let mut after = broken();
        assert_eq!(verdict(before.clone(), &after), Some(Verdict::New));
        if let super::row::Outcome::Error { cache, .. } = &mut after.result {
            *cache = Some("cold".into());
        }
        assert_eq!(after.whose(), "cpu cold");
        assert_eq!(verdict(before, &after), Some(Verdict::Broken));
    }

    #[test]
    fn cases_break_and_are_fixed() {
        assert_eq!(verdict(row(1.0, 1.0, 0.0), &broken()), Some(Verdict::Broken));
        assert_eq!(verdict(broken(), &row(1.0, 1.0, 0.0)), Some(Verdict::Fixed));
        assert_eq!(verdict(broken(), &broken()), None);
        assert!(Verdict::Broken.is_bad() && !Verdict::Fixed.is_bad());
    }
}
