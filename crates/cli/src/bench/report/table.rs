//! Tables of chosen cases with custom names: a file `NAME.table` next to a device's runs lists the cases
//! and columns; the runs supply the numbers.

use std::fs;
use std::path::Path;

use super::super::row::{self, Line, Row, Time};
use super::super::{Format, lines, print};
use crate::failure::Failure;

/// The text of a cell for which no run has a value.
const NOTHING: &str = "–";

/// The description of a table, read from its file.
pub(super) struct Table {
    header: Vec<String>,
    columns: Vec<Column>,
    rows: Vec<Wanted>,
    /// The text below the table, with placeholders in braces.
    note: String,
}

/// A row: its name, and a pattern of cases in which `*` stands for any text.
struct Wanted {
    words: String,
    cases: String,
}

/// One side's and the other side's milliseconds in one case.
type Times = (f64, f64);

/// The value that a column shows for the fastest of some contestants.
enum Column {
    /// A value of the single case of a row.
    Time(fn(&Time) -> Option<String>, Vec<String>),
    /// A value computed from two sides' times in each case of a row.
    Ratio(fn(&[Times]) -> String, Vec<String>, Vec<String>),
}

impl Table {
    /// Reads a table's file and fills it from runs.
    pub(super) fn fill(path: &Path, lines: &[Line]) -> Result<String, Failure> {
        let wrong = |what: String| Failure::Failed(format!("{}: {what}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| {
            wrong(format!("cannot be read: {error}; put the table's file beside the runs"))
        })?;
        Self::parse(&text).and_then(|table| table.markdown(lines)).map_err(wrong)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (mut note, mut found) = (Vec::new(), Vec::new());
        for (_, line) in lines::of(text).filter(|(_, line)| !line.starts_with('#')) {
            match line.strip_prefix('>') {
                Some(words) => note.push(words.trim()),
                None => found.push(line.split('|').map(|cell| cell.trim().to_owned()).collect()),
            }
        }
        let mut found = found.into_iter();
        let what = "has no columns; the first line names them, the second what each shows";
        let (header, shown): (Vec<String>, Vec<String>) =
            found.next().zip(found.next()).ok_or(what)?;
        if header.len() != shown.len() {
            let (named, shown) = (header.len(), shown.len());
            return Err(format!(
                "names {named} columns but describes {shown}; make the two lines match"
            ));
        }
        let columns = shown[1..].iter().map(|column| Column::parse(column));
        let columns = columns.collect::<Result<_, _>>()?;
        let rows = found.map(|cells| match <[String; 2]>::try_from(cells) {
            Ok([words, cases]) => Ok(Wanted { words, cases: row::respelled(&cases) }),
            Err(cells) => Err(format!("`{}` is not a row; write `name | case`", cells.join(" | "))),
        });
        Ok(Self { header, columns, rows: rows.collect::<Result<_, _>>()?, note: note.join("\n") })
    }

    fn markdown(&self, lines: &[Line]) -> Result<String, String> {
        let all = print::rows(lines);
        for name in self.columns.iter().flat_map(Column::contestants) {
            if !all.iter().any(|row| row.whose() == *name && row.time().is_some()) {
                return Err(format!("no run has a time of `{name}`; record it or drop its column"));
            }
        }
        let mut table = print::table(Format::Markdown);
        table.set_header(&self.header);
        print::right_from(&mut table, 1);
        let mut shown = Vec::new();
        for Wanted { words, cases } in &self.rows {
            let own = all.iter().copied().filter(|row| is_like(&row.case(), cases));
            let own = print::by_case(&own.collect::<Vec<_>>());
            if own.is_empty() {
                return Err(format!("no run has the case `{cases}`; record it or drop its row"));
            }
            let cells = self.columns.iter().map(|column| column.cell(&own));
            let cells = cells.collect::<Result<Vec<_>, _>>();
            let cells = cells.map_err(|what| format!("`{words}`: {what}"))?;
            table.add_row([vec![words.clone()], cells].concat());
            shown.extend(own.into_iter().flatten());
        }
        shown.retain(|row| {
            self.columns.iter().flat_map(Column::contestants).any(|name| row.whose() == *name)
        });
        let note = filled(&self.note, |place| told(place, lines, &shown))?;
        Ok(if note.is_empty() { format!("{table}\n") } else { format!("{table}\n\n{note}\n") })
    }
}

impl Column {
    fn parse(text: &str) -> Result<Self, String> {
        let names = |text: &str| text.split(',').map(str::to_owned).collect();
        Ok(match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["ms", of] => Self::Time(ms, names(of)),
            ["share", of] => {
                Self::Time(|time| time.ceiling_fraction.map(print::percent), names(of))
            }
            ["tflops", of] => Self::Time(|time| time.tflops.map(digits), names(of)),
            [what, of, "/", over] => {
                let tell: fn(&[Times]) -> String = match what {
                    "ratio" => |all| times(print::mean(&ratios(all))),
                    "least" => |all| times(least(&ratios(all))),
                    "most" => |all| times(most(&ratios(all))),
                    "total" => |all| times(total(all)),
                    "cases" => |all| all.len().to_string(),
                    _ => return Err(unknown(text)),
                };
                Self::Ratio(tell, names(of), names(over))
            }
            _ => return Err(unknown(text)),
        })
    }

    fn contestants(&self) -> impl Iterator<Item = &String> {
        let (of, over): (_, &[String]) = match self {
            Self::Time(_, of) => (of, &[]),
            Self::Ratio(_, of, over) => (of, over),
        };
        of.iter().chain(over)
    }

    /// The cell of a row with these cases.
    fn cell(&self, cases: &[Vec<&Row>]) -> Result<String, String> {
        let cell = match self {
            Self::Time(tell, of) => {
                let [rows] = cases else {
                    let several = cases.len();
                    return Err(format!(
                        "matches {several} cases, but a time needs exactly one; name one case"
                    ));
                };
                fastest(rows, of).and_then(tell)
            }
            Self::Ratio(tell, of, over) => {
                let both =
                    |rows: &Vec<&Row>| Some((fastest(rows, of)?.ms, fastest(rows, over)?.ms));
                let all: Vec<Times> = cases.iter().filter_map(both).collect();
                (!all.is_empty()).then(|| tell(&all))
            }
        };
        Ok(cell.unwrap_or_else(|| NOTHING.into()))
    }
}

/// The error for a column's text.
fn unknown(text: &str) -> String {
    format!(
        "a column cannot show `{text}`; write ms, share or tflops and a contestant, or ratio, least, \
         most, total or cases and `one / other`"
    )
}

/// The shortest time of these contestants.
fn fastest<'a>(rows: &[&'a Row], whose: &[String]) -> Option<&'a Time> {
    let own = rows.iter().filter(|row| whose.iter().any(|name| row.whose() == *name));
    own.filter_map(|row| row.time()).min_by(|a, b| a.ms.total_cmp(&b.ms))
}

/// The text for a placeholder: a device, the days of the shown rows, or a measured peak.
fn told(place: &str, lines: &[Line], shown: &[&Row]) -> Result<String, String> {
    let ceiling = |kind: &str, dtype: Option<&str>, whose: &str| {
        let own = lines.iter().filter_map(|line| match line {
            Line::Ceiling(ceiling) => Some(ceiling),
            _ => None,
        });
        own.filter(|own| {
            own.ceiling == kind && own.dtype.as_deref() == dtype && own.whose() == whose
        })
        .max_by_key(|own| own.bytes)
    };
    let told = match place.split_whitespace().collect::<Vec<_>>()[..] {
        ["device", whose] => {
            let own = shown.iter().find(|row| row.whose() == whose && !row.device.is_empty());
            own.map(|row| row.device.clone())
        }
        ["days"] => Some(days(shown)),
        ["copy", whose] => ceiling("copy", None, whose).and_then(|own| own.gbs).map(|gbs| {
            if gbs < 1e3 {
                format!("{} GB/s", digits(gbs))
            } else {
                format!("{} TB/s", digits(gbs / 1e3))
            }
        }),
        ["matrix", dtype, whose] => ceiling("matrix", Some(dtype), whose)
            .and_then(|own| own.tflops)
            .map(|tflops| format!("{} TFLOP/s", digits(tflops))),
        _ => {
            return Err(format!(
                "a note cannot contain `{{{place}}}`; write days, `device CONTESTANT`, `copy CONTESTANT` \
                 or `matrix TYPE CONTESTANT`"
            ));
        }
    };
    told.ok_or_else(|| {
        format!("no run has a value for `{{{place}}}`; record it or remove it from the note")
    })
}

/// The days on which the rows were recorded, in order.
fn days(rows: &[&Row]) -> String {
    let mut days: Vec<&str> = rows.iter().map(|row| &*row.day).collect();
    days.sort_unstable();
    days.dedup();
    match days.split_last() {
        Some((last, [])) => (*last).into(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => NOTHING.into(),
    }
}

/// The text with its placeholders replaced.
fn filled(text: &str, told: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut parts = text.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (place, rest) = part
            .split_once('}')
            .ok_or_else(|| format!("the note's `{{{part}` has no end; close it"))?;
        filled += &told(place)?;
        filled += rest;
    }
    Ok(filled)
}

/// Whether a text matches a pattern in which `*` stands for any text.
fn is_like(text: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => text == pattern,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.into_iter().any(|at| is_like(&text[at..], rest))
        }),
    }
}

fn ms(time: &Time) -> Option<String> {
    let noisy = if time.noisy { "~" } else { "" };
    Some(format!("{noisy}{} ms", digits(time.ms)))
}

/// Three significant digits; two runs do not agree on more.
fn digits(number: f64) -> String {
    let shown = row::rounded(number);
    let power = if shown == 0.0 { 0 } else { shown.abs().log10().floor() as i32 };
    // Rounding up to the next power of ten adds a digit before the point.
    let up = number.abs() >= 9.995 * 10f64.powi(power);
    let places = (2 - power - i32::from(up)).max(0) as usize;
    format!("{number:.places$}")
}

fn times(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.2}") } else { digits(ratio) }
}

fn ratios(all: &[Times]) -> Vec<f64> {
    all.iter().map(|(of, over)| of / over).collect()
}

/// The ratio of the summed times.
fn total(all: &[Times]) -> f64 {
    all.iter().map(|times| times.0).sum::<f64>() / all.iter().map(|times| times.1).sum::<f64>()
}

fn least(ratios: &[f64]) -> f64 {
    ratios.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(ratios: &[f64]) -> f64 {
    ratios.iter().copied().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RUN: &str = r#"
{"ceiling":"copy","bytes":1024,"gbs":9000.0,"backend":"cuda","device":"a GPU"}
{"ceiling":"copy","bytes":1073741824,"gbs":4241.0,"backend":"cuda","device":"a GPU"}
{"ceiling":"matrix","dtype":"bf16","tflops":798.14,"backend":"torch","device":"a GPU"}"#;

    fn lines() -> Vec<Line> {
        let row = |name: &str, whose: (&str, &str), ms: f64, more: Value| {
            let mut row = json!({
                "name": name, "kind": "maxpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
                "ms": ms,
            });
            row[whose.0] = json!(whose.1);
            row.as_object_mut().expect("a row").extend(more.as_object().expect("more").clone());
            row.to_string()
        };
        let cuda = |ms, name: &str| {
            row(
                name,
                ("backend", "cuda"),
                ms,
                json!({"device": "a GPU", "ceiling_fraction": 0.986}),
            )
        };
        let rows = [
            cuda(0.5, "a"),
            row("a", ("peer", "torch"), 2.0, json!({})),
            row("a", ("peer", "torch_compile"), 1.0, json!({})),
            cuda(0.125, "b"),
            row("b", ("peer", "torch"), 1.0, json!({"noisy": true})),
            cuda(0.1, "c"),
        ];
        let lines = RUN.trim().lines().map(str::to_owned).chain(rows);
        let mut lines: Vec<Line> =
            lines.map(|line| serde_json::from_str(&line).expect("a line")).collect();
        for line in &mut lines {
            if let Line::Row(row) = line {
                row.day = if row.peer.is_some() { "2026-02-01" } else { "2026-01-31" }.into();
            }
        }
        lines
    }

    fn made(text: &str) -> Result<String, String> {
        Table::parse(text).and_then(|table| table.markdown(&lines()))
    }

    #[test]
    fn a_table_shows_what_its_file_says() {
        let table = "\
# Not shown.
pooling | ours    | share      | PyTorch                | ratio

        | ms cuda | share cuda | ms torch,torch_compile | ratio torch,torch_compile / cuda
one     | a/maxpool/fwd/f32/nhwc
two     | b/maxpool/fwd/f32/nhwc
three   | c/maxpool/fwd/f32/nhwc
> On {device cuda}, {days}: a copy at {copy cuda},
> a product at {matrix bf16 torch}.";
        let shown = "\
| pooling |     ours | share |  PyTorch | ratio |
|---------|----------|-------|----------|-------|
| one     | 0.500 ms |  99 % |  1.00 ms |  2.00 |
| two     | 0.125 ms |  99 % | ~1.00 ms |  8.00 |
| three   | 0.100 ms |  99 % |        – |     – |

On a GPU, 2026-01-31 and 2026-02-01: a copy at 4.24 TB/s,
a product at 798 TFLOP/s.
";
        assert_eq!(made(table).as_deref(), Ok(shown));
    }

    /// Ratios of several cases have a mean, a minimum, a maximum and one of the summed times; cases without a time on
    /// one side are not counted.
    #[test]
    fn a_row_of_several_cases_has_ratios() {
        let table = "\
all | cases              | mean               | least              | most              | total
    | cases torch / cuda | ratio torch / cuda | least torch / cuda | most torch / cuda | total torch / cuda
f32 | */*pool/*/f32/*";
        let shown = "\
| all | cases | mean | least | most | total |
|-----|-------|------|-------|------|-------|
| f32 |     2 | 5.66 |  4.00 | 8.00 |  4.80 |
";
        assert_eq!(made(table).as_deref(), Ok(shown));
    }

    #[test]
    fn what_a_table_cannot_show_is_refused() {
        let row = "one | a/maxpool/fwd/f32/nhwc";
        for (text, word) in [
            ("", "no columns"),
            ("pooling | ours", "no columns"),
            ("pooling | ours\n | ms cuda | ms torch", "names 2 columns but describes 3"),
            ("pooling | ours\n | us cuda", "cannot show `us cuda`"),
            ("pooling | ours\n | ratio cuda torch", "cannot show `ratio cuda torch`"),
            (&format!("pooling | ours\n | ms vulkan\n{row}"), "no run has a time of `vulkan`"),
            ("pooling | ours\n | ms cuda\none", "`one` is not a row"),
            ("pooling | ours\n | ms cuda\none | z/*", "no run has the case `z/*`"),
            ("pooling | ours\n | ms cuda\none | */maxpool/*", "`one`: matches 3 cases"),
            ("pooling | ours\n | ms cuda\n> {weather}", "cannot contain `{weather}`"),
            (
                "pooling | ours\n | ms cuda\n> {copy vulkan}",
                "no run has a value for `{copy vulkan}`",
            ),
            ("pooling | ours\n | ms cuda\n> {days", "`{days` has no end"),
        ] {
            let error = made(text).expect_err(text);
            assert!(error.contains(word), "`{word}` is not in {error}");
        }
    }

    #[test]
    fn numbers_have_three_digits() {
        for (number, shown) in [
            (0.0079996, "0.00800"),
            (0.12345, "0.123"),
            (0.99996, "1.00"),
            (9.994, "9.99"),
            (9.996, "10.0"),
            (49.23, "49.2"),
            (798.14, "798"),
            (1234.5, "1234"),
            (0.0, "0.00"),
        ] {
            assert_eq!(digits(number), shown, "{number}");
        }
        assert_eq!((times(0.946), times(325.1)), ("0.95".into(), "325".into()));
    }

    #[test]
    fn stars_stand_for_any_letters() {
        for (pattern, like) in [
            ("a/maxpool", true),
            ("a/max", false),
            ("*", true),
            ("*/maxpool", true),
            ("a/*pool", true),
            ("*a*p*l", true),
            ("*b*", false),
            ("a/maxpool*", true),
            ("a/*x", false),
        ] {
            assert_eq!(is_like("a/maxpool", pattern), like, "{pattern}");
        }
    }
}
