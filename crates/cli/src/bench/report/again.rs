//! Second runs: how well they agree with the first, and which cases are noisy.

use std::path::Path;

use super::super::measure::NOISE;
use super::super::row::{Line, Outcome, Row};

/// Whether a file is a second run of the same day.
pub(super) fn is_second(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".again.jsonl")
}

/// How many cases ran twice, and how many of them have two times within the noise limit.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Agreement {
    agree: usize,
    of: usize,
}

impl Agreement {
    /// Marks as noisy the times that a second run of the same day disagrees with.
    pub(super) fn hold(&mut self, lines: &mut [Line], again: &[Line]) {
        for second in again {
            let Line::Row(second) = second else { continue };
            let Some(after) = second.time() else { continue };
            let first = lines.iter_mut().filter_map(|line| match line {
                Line::Row(row) if is_same(row, second) => Some(row),
                _ => None,
            });
            for row in first {
                let Outcome::Time(time) = &mut row.result else { continue };
                let agree = time.agrees(after, NOISE);
                self.of += 1;
                self.agree += usize::from(agree);
                time.noisy |= !agree;
            }
        }
    }

    /// The sentence for a page, if there was a second run.
    pub(super) fn told(&self) -> Option<String> {
        let Self { agree, of } = self;
        let others = if agree < of { "; the others are marked with `~` too" } else { "" };
        (*of > 0).then(|| {
            format!(
                "A second run\non the same machine agrees within 5 % in {agree} of {of} times, one per \
                 case and backend{others}."
            )
        })
    }
}

fn is_same(first: &Row, second: &Row) -> bool {
    first.case() == second.case() && first.whose() == second.whose() && first.day == second.day
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(name: &str, backend: &str, ms: f64, day: &str) -> Line {
        let row = json!({
            "name": name, "kind": "maxpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
            "backend": backend, "ms": ms,
        });
        let mut line = serde_json::from_value(row).expect("a row");
        if let Line::Row(row) = &mut line {
            row.day = day.into();
        }
        line
    }

    #[test]
    fn what_two_runs_do_not_agree_on_is_noisy() {
        let day = "2026-01-31";
        let mut lines = [
            row("a", "cuda", 1.0, day),
            row("b", "cuda", 1.0, day),
            row("c", "cuda", 1.0, day),
            row("a", "vulkan", 1.0, day),
            row("d", "cuda", 1.0, "2026-02-01"),
        ];
        let again = [
            row("a", "cuda", 1.04, day),
            row("b", "cuda", 1.06, day),
            row("c", "cuda", 0.94, day),
            row("d", "cuda", 2.0, day),
            row("e", "cuda", 2.0, day),
        ];
        let mut agreement = Agreement::default();
        assert_eq!(agreement.told(), None);
        agreement.hold(&mut lines, &again);
        assert_eq!(agreement, Agreement { agree: 1, of: 3 });
        assert!(agreement.told().is_some_and(|told| told.contains("1 of 3 times")));
        let noisy = lines.map(|line| match line {
            Line::Row(row) => row.time().is_some_and(|time| time.noisy),
            _ => false,
        });
        assert_eq!(noisy, [false, true, true, false, false]);
    }

    #[test]
    fn second_runs_are_told_by_their_names() {
        for (name, second) in [
            ("gpu/2026-01-31.again.jsonl", true),
            ("gpu/2026-01-31.jsonl", false),
            ("gpu/2026-01-31.torch.jsonl", false),
        ] {
            assert_eq!(is_second(Path::new(name)), second, "{name}");
        }
    }
}
