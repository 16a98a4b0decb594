//! How often each kernel has computed each pass in each type.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use windowpane::DType;

use super::case::Case;
use super::{Format, print, row};

/// The number of executed cases, by kernel, pass and type.
#[derive(Default)]
pub(super) struct Tally(BTreeMap<Cell, usize>);

/// A kernel, a pass and a type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Cell {
    pub(super) algorithm: String,
    pub(super) kind: String,
    pub(super) pass: String,
    pub(super) dtype: String,
}

/// A cell as a line of JSON.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    executed: usize,
    backend: &'a str,
    #[serde(flatten)]
    cell: &'a Cell,
}

impl Cell {
    pub(super) fn of(case: &Case, kernel: &str) -> Self {
        // Maxima with indices use different kernels.
        let indexed = case.pass == "fwd" && case.rest.get("indices").is_some_and(|it| it == true);
        Self {
            algorithm: kernel.into(),
            kind: case.kind.clone(),
            pass: if indexed { "fwd indexed".into() } else { case.pass.clone() },
            dtype: row::computed_in(&case.dtype, case.precision.as_deref()).into(),
        }
    }

    /// The cell in words.
    pub(super) fn words(&self) -> String {
        [&*self.algorithm, &self.kind, &self.pass, &self.dtype].join(" ")
    }
}

impl Tally {
    /// The number of such cases that a kernel has executed. The table lists the cell from now on.
    pub(super) fn seen(&mut self, case: &Case, kernel: &str) -> usize {
        *self.0.entry(Cell::of(case, kernel)).or_default()
    }

    /// Counts one more executed case.
    pub(super) fn add(&mut self, case: &Case, kernel: &str) {
        *self.0.entry(Cell::of(case, kernel)).or_default() += 1;
    }

    /// The cell with the fewest cases.
    pub(super) fn fewest(&self) -> Option<(&Cell, usize)> {
        self.0.iter().map(|(cell, executed)| (cell, *executed)).min_by_key(|(_, n)| *n)
    }

    /// The number of cells.
    pub(super) fn cells(&self) -> usize {
        self.0.len()
    }

    /// The number of cells with fewer cases than this.
    pub(super) fn short(&self, least: usize) -> usize {
        self.0.values().filter(|executed| **executed < least).count()
    }

    /// The cells as lines of JSON.
    pub(super) fn lines<'a>(&'a self, backend: &'a str) -> impl Iterator<Item = Line<'a>> {
        self.0.iter().map(move |(cell, executed)| Line { executed: *executed, backend, cell })
    }

    /// A table with one row per kernel and pass, and one column per type.
    pub(super) fn table(&self, format: Format, backend: &str) -> Table {
        let own = DType::ALL.map(|dtype| dtype.name());
        let types = own.into_iter().chain(["tf32"]);
        let types = types.filter(|dtype| self.0.keys().any(|cell| cell.dtype == **dtype));
        let types: Vec<_> = types.collect();
        let mut table = print::table(format);
        let head = [format!("executed on {backend}"), "pass".into()];
        table.set_header(head.into_iter().chain(types.iter().map(|dtype| (*dtype).into())));
        for column in 2..types.len() + 2 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut rows: Vec<_> =
            self.0.keys().map(|cell| (&cell.algorithm, &cell.kind, &cell.pass)).collect();
        rows.dedup();
        for (algorithm, kind, pass) in rows {
            let count = |dtype: &str| {
                let cell = Cell {
                    algorithm: algorithm.clone(),
                    kind: kind.clone(),
                    pass: pass.clone(),
                    dtype: dtype.into(),
                };
                self.0.get(&cell).map_or("–".into(), |executed| executed.to_string())
            };
            let head = [algorithm.clone(), format!("{kind} {pass}")];
            table.add_row(head.into_iter().chain(types.iter().map(|dtype| count(dtype))));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_counted_those_that_never_ran_too() {
        let case = |dtype: &str, indices: bool| -> Case {
            serde_json::from_value(json!({
                "name": "x", "kind": "maxpool", "pass": "fwd", "dtype": dtype, "layout": "nhwc",
                "indices": indices,
            }))
            .expect("a case")
        };
        let mut tally = Tally::default();
        assert_eq!(tally.fewest(), None);
        tally.add(&case("f32", false), "direct");
        tally.add(&case("f32", false), "direct");
        tally.add(&case("f16", true), "direct");
        assert_eq!(
            tally.fewest().map(|(cell, n)| (cell.pass.clone(), n)),
            Some(("fwd indexed".into(), 1))
        );
        assert_eq!(tally.seen(&case("f16", false), "strip"), 0);
        assert_eq!(
            tally.fewest().map(|(cell, n)| (cell.words(), n)),
            Some(("strip maxpool fwd f16".into(), 0))
        );
        assert_eq!((tally.cells(), tally.short(0), tally.short(1), tally.short(2)), (3, 0, 1, 2));
        let table = tally.table(Format::Markdown, "host").to_string();
        assert_eq!(table.lines().count(), 2 + 3, "{table}");
        assert_eq!(tally.lines("host").count(), 3);
    }
}
