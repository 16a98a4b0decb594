//! Prints the lines of a run: each as it is measured, or all as one table.

use std::io::{self, IsTerminal};

use comfy_table::{CellAlignment, Table};

use super::Format;
use super::against::Earlier;
use super::row::{self, Ceiling, Line, Row, Time};
use crate::failure::Failure;
use crate::progress::{Progress, say};
use crate::table as tables;

/// The number of characters of an error that a cell shows.
const CELL: usize = 48;

/// Prints a run.
pub(super) struct Printer {
    format: Format,
    lines: Vec<Line>,
}

impl Printer {
    pub(super) fn new(asked: Option<Format>) -> Self {
        Self { format: format(asked), lines: Vec::new() }
    }

    /// Adds a line. JSON is printed at once, so that an interrupted run has printed all it measured.
    pub(super) fn add(&mut self, progress: &Progress, line: Line) -> Result<(), Failure> {
        if self.format == Format::Json {
            progress.say(row::json(&line)?)?;
        }
        self.lines.push(line);
        Ok(())
    }

    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Prints the table, unless the format is JSON.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        if self.format == Format::Json {
            return Ok(());
        }
        for line in ceilings(&self.lines) {
            say(line)?;
        }
        let rows = rows(&self.lines);
        say(table_of(self.format, &rows))?;
        // A cell is too narrow for a whole error.
        let failed = rows.iter().filter_map(|row| Some((row, row.error()?)));
        for (row, error) in failed.filter(|(_, error)| error.chars().count() > CELL) {
            say(format!("{} on {}: {error}", row.case(), row.whose()))?;
        }
        Ok(())
    }

    /// Prints which of the filtered cases changed, were added or were removed since an earlier run, and
    /// returns how many are slower or broken.
    pub(super) fn moved(&self, earlier: &Earlier, filter: &str) -> Result<usize, Failure> {
        let rows = rows(&self.lines);
        let moved = earlier.changes(&rows, filter);
        let agreement = earlier.agreement(&rows, filter);
        if self.format == Format::Json {
            say(row::json(&agreement)?)?;
            for moved in &moved {
                say(row::json(moved)?)?;
            }
        } else {
            let mut table = table(self.format);
            table.set_header(["case", "backend", "change", "before, ms", "after, ms", "noise"]);
            for moved in &moved {
                let ms = |ms: Option<f64>| ms.map_or("–".into(), |ms| format!("{ms}"));
                table.add_row([
                    moved.moved.clone(),
                    moved.backend.clone(),
                    moved.verdict.name().into(),
                    ms(moved.before_ms),
                    ms(moved.after_ms),
                    percent(moved.noise),
                ]);
            }
            match moved.len() {
                0 => say("no case changed")?,
                _ => say(table)?,
            }
            say(agreement)?;
        }
        Ok(moved.iter().filter(|moved| moved.verdict.is_bad()).count())
    }
}

/// The requested format, else a table on a terminal and JSON in a pipe.
pub(super) fn format(asked: Option<Format>) -> Format {
    let usual = if io::stdout().is_terminal() { Format::Table } else { Format::Json };
    asked.unwrap_or(usual)
}

pub(super) fn table(format: Format) -> Table {
    match format {
        Format::Markdown => tables::markdown(),
        _ => tables::new(),
    }
}

pub(super) fn rows(lines: &[Line]) -> Vec<&Row> {
    let rows = lines.iter().filter_map(|line| match line {
        Line::Row(row) => Some(row),
        Line::Ceiling(_) | Line::Agreement(_) | Line::Moved(_) => None,
    });
    rows.collect()
}

/// One line for each of our devices, with its measured peaks.
pub(super) fn ceilings(lines: &[Line]) -> Vec<String> {
    let mut devices: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for line in lines {
        let Line::Ceiling(ceiling) = line else { continue };
        let Some(text) = words(ceiling).filter(|_| !ceiling.backend.is_empty()) else { continue };
        match devices.iter_mut().find(|(backend, ..)| *backend == ceiling.backend) {
            Some((.., texts)) => texts.push(text),
            None => devices.push((&ceiling.backend, &ceiling.device, vec![text])),
        }
    }
    let told = |(backend, device, texts): (&str, &str, Vec<String>)| {
        format!("{backend} ({device}): {}", texts.join("; "))
    };
    devices.into_iter().map(told).collect()
}

fn words(ceiling: &Ceiling) -> Option<String> {
    let words = match (ceiling.gbs, ceiling.tflops) {
        (Some(gbs), _) => match ceiling.bytes {
            Some(bytes) => format!("copy of {} MB {gbs} GB/s", bytes >> 20),
            None => format!("copy {gbs} GB/s"),
        },
        (None, Some(tflops)) => {
            let dtype = ceiling.dtype.as_deref().unwrap_or_default();
            format!("{dtype} on {} units {tflops} TFLOP/s", ceiling.ceiling)
        }
        (None, None) => return None,
    };
    Some(match &ceiling.cache {
        Some(cache) => format!("{words} with {cache} caches"),
        None => words,
    })
}

/// One row per case, or per kernel if every kernel was timed. A single contestant gets a column per measurement; several
/// contestants get a column each, and if there are peers, a last column with the fastest peer's time over our fastest.
pub(super) fn table_of(format: Format, rows: &[&Row]) -> Table {
    let mut whose: Vec<String> = Vec::new();
    for row in rows {
        if !whose.iter().any(|known| *known == row.whose()) {
            whose.push(row.whose().into_owned());
        }
    }
    match &whose[..] {
        [_] => alone(table(format), rows),
        _ => side_by_side(table(format), rows, &whose),
    }
}

fn alone(mut table: Table, rows: &[&Row]) -> Table {
    table.set_header(["case", "type", "algorithm", "ms", "GB/s", "TFLOP/s", "of peak", "spread"]);
    right_from(&mut table, 3);
    for row in rows {
        let (case, of_type) = named(&[row]);
        let Some(time) = row.time() else {
            table.add_row([case, of_type, failure(row)]);
            continue;
        };
        table.add_row([
            case,
            of_type,
            match row.chosen {
                Some(true) => format!("{}, chosen", time.algorithm),
                _ => time.algorithm.clone(),
            },
            ms(time),
            format!("{:.1}", time.gbs),
            time.tflops.map_or("–".into(), |tflops| format!("{tflops:.2}")),
            time.ceiling_fraction.map_or("–".into(), percent),
            percent(time.spread),
        ]);
    }
    table
}

fn side_by_side(mut table: Table, rows: &[&Row], whose: &[String]) -> Table {
    let peers = rows.iter().any(|row| row.peer.is_some());
    let units = whose.iter().map(|whose| format!("{whose}, ms"));
    let mut header: Vec<String> = ["case".into(), "type".into()].into_iter().chain(units).collect();
    if peers {
        header.push("peer / ours".into());
    }
    table.set_header(header);
    right_from(&mut table, 2);
    for rows in by_case(rows) {
        let (case, of_type) = named(&rows);
        let mut cells = vec![case, of_type];
        for whose in whose {
            let row = rows.iter().find(|row| row.whose() == *whose);
            cells.push(match row.map(|row| (row, row.time())) {
                None => String::new(),
                Some((row, None)) => failure(row),
                Some((_, Some(time))) => match time.ceiling_fraction {
                    Some(share) => format!("{} ({})", ms(time), percent(share)),
                    None => ms(time),
                },
            });
        }
        if peers {
            cells.push(ratio(&rows).map_or("–".into(), |ratio| format!("{ratio:.2}")));
        }
        table.add_row(cells);
    }
    table
}

/// The rows of each case, in order of first appearance.
pub(super) fn by_case<'a>(rows: &[&'a Row]) -> Vec<Vec<&'a Row>> {
    let mut cases: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows {
        let case = row.case();
        match cases.iter_mut().find(|(known, _)| *known == case) {
            Some((_, rows)) => rows.push(row),
            None => cases.push((case, vec![row])),
        }
    }
    cases.into_iter().map(|(_, rows)| rows).collect()
}

/// The time of the fastest peer over our fastest time on the same day. Only warm caches count, because
/// peers are timed with warm caches.
pub(super) fn ratio(rows: &[&Row]) -> Option<f64> {
    let fastest = |fits: &dyn Fn(&Row) -> bool| {
        let fitting = rows.iter().filter(|row| fits(row) && !row.is_cold());
        let times = fitting.filter_map(|row| Some((row.time()?.ms, &row.day)));
        times.min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let (ours, day) = fastest(&|row| row.peer.is_none())?;
    let (peers, _) = fastest(&|row| row.peer.is_some() && row.day == *day)?;
    Some(peers / ours)
}

/// The geometric mean.
pub(super) fn mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

fn named(rows: &[&Row]) -> (String, String) {
    let (row, factors) = (rows[0], row::factors(rows));
    (
        format!("{} {} {}", row.name, row.kind, row::pass_name(&row.pass)),
        format!("{factors} {}", row.layout),
    )
}

/// Why a case has no time, short enough for a cell.
fn failure(row: &Row) -> String {
    let error = row.error().unwrap_or_default();
    match error.char_indices().nth(CELL) {
        Some((end, _)) => format!("{}…", &error[..end]),
        None => error.into(),
    }
}

fn ms(time: &Time) -> String {
    let noisy = if time.noisy { "~" } else { "" };
    format!("{noisy}{}", row::rounded(time.ms))
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

pub(super) fn right_from(table: &mut Table, first: usize) {
    for column in table.column_iter_mut().skip(first) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
