//! `windowpane report`: joins recorded runs, ours and other libraries'.

mod again;
mod place;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::plot::{Parts, Picture};
use super::row::{self, Line, Row};
use super::{Format, print};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::say;

use again::Agreement;
use table::Table;

const EXAMPLE: &str = "\
Example: our run beside one of PyTorch
  windowpane report ours.jsonl torch.jsonl

Example: write a page and two pictures per folder of recorded runs, and fill the tables of a page
  windowpane report benches/results --into docs/benchmarks --fill README.md

A folder holds the runs of one device. If several files have the same case of the same contestant,
the last file by name counts. DAY.again.jsonl is a second run of DAY.jsonl: a case is marked as
noisy if the two differ by more than 5 %. highlights.txt lists the cases of a small picture, one per
line, as stem/maxpool/fwd/f32/nhwc. A ratio is the time of the fastest peer over our fastest time on
the same day; it is meaningful only if both ran on the same machine.

--fill writes a table between the lines <!-- bench: gpu/stems --> and <!-- bench: end --> of a page.
The file stems.table in the folder gpu describes it: a line with the names of the columns, a line
with what each shows, one line per row, and the text below the table.
  # A comment.
  pooling          | cuda    | % of copy  | PyTorch  | PyTorch / cuda
                   | ms cuda | share cuda | ms torch | ratio torch / cuda
  max, every other | stem/maxpool/fwd/f32/nhwc
  > {device cuda}, {days}; a copy runs at {copy cuda}.
A column shows ms, share (of measured peak) or tflops of a contestant, or of the fastest of several,
as in torch,torch_compile. For one contestant over another it shows ratio, least, most, total (of
the summed times) or cases. In a case * stands for any text; ratio is then the geometric mean over
all matching cases.";

/// The arguments of `report`.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Report {
    /// Runs in JSON lines, or folders of them, or folders of such folders
    #[arg(required = true, value_name = "RUN.jsonl|FOLDER")]
    runs: Vec<PathBuf>,
    /// Output format [default: table on a terminal, else json]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Draw the cases on rooflines, and the contestants side by side
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    plot: Option<PathBuf>,
    /// Write a Markdown page and its pictures for each group of runs into this folder
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["plot", "format"])]
    into: Option<PathBuf>,
    /// Write tables into the marked places of this page; may be repeated
    #[arg(long, value_name = "PAGE.md", conflicts_with_all = ["plot", "format"])]
    fill: Vec<PathBuf>,
}

/// Runs that belong together: those of one device, or all named files.
struct Group {
    name: String,
    folder: PathBuf,
    lines: Vec<Line>,
    /// How well second runs agree with these.
    agreement: Agreement,
    /// The cases of the small picture, if the folder lists any.
    highlights: Vec<String>,
}

/// The file that lists the cases of the small picture, one path per line.
const HIGHLIGHTS: &str = "highlights.txt";

impl Report {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let groups = self.groups()?;
        if self.into.is_some() || !self.fill.is_empty() {
            return self.write(&groups);
        }
        let picture = self.plot.as_ref().map(|path| Picture::new(path)).transpose()?;
        let lines: Vec<Line> = groups.into_iter().flat_map(|group| group.lines).collect();
        let format = print::format(self.format);
        match format {
            Format::Json => lines.iter().try_for_each(|line| say(row::json(line)?))?,
            _ => {
                print::ceilings(&lines).into_iter().try_for_each(say)?;
                say(print::table_of(format, &print::rows(&lines)))?;
                means(&print::rows(&lines)).into_iter().try_for_each(say)?;
            }
        }
        picture.map_or(Ok(()), |picture| picture.draw(&lines))
    }

    /// Writes the pages of the groups and fills others. Errors in tables are reported before any write.
    fn write(&self, groups: &[Group]) -> Result<(), Failure> {
        let mut filled = Vec::new();
        for path in &self.fill {
            let page = place::fill(path, |name| table(groups, name))?;
            filled.push((Output::new(path)?, page));
        }
        if let Some(folder) = &self.into {
            groups.iter().try_for_each(|group| group.write(folder))?;
        }
        filled.iter().try_for_each(|(output, page)| {
            output.place_bytes(page.as_bytes())?;
            say(output.path().display())
        })
    }

    /// The files, by the folder that they are in.
    fn groups(&self) -> Result<Vec<Group>, Failure> {
        let mut found: Vec<(PathBuf, Vec<PathBuf>)> = Vec::new();
        for path in &self.runs {
            collect(path, &mut found)?;
        }
        if found.is_empty() {
            let runs = self.runs.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
            let message =
                format!("{}: contains no .jsonl files; name recorded runs", runs.join(", "));
            return Err(Failure::Failed(message));
        }
        found.into_iter().map(|(folder, files)| Group::read(&folder, files)).collect()
    }
}

/// The table for a place named `DEVICE/TABLE`.
fn table(groups: &[Group], name: &str) -> Result<String, Failure> {
    let wrong = |what: &str| Failure::Failed(format!("the place `{name}`: {what}"));
    let (device, table) =
        name.split_once('/').ok_or_else(|| wrong("names no table; write `DEVICE/TABLE`"))?;
    let group = groups.iter().find(|group| group.name == device);
    let group = group.ok_or_else(|| wrong("no folder of that name is among the runs; name it"))?;
    Table::fill(&group.folder.join(format!("{table}.table")), &group.lines)
}

/// Adds a file, or all files of a folder and its subfolders.
fn collect(path: &Path, found: &mut Vec<(PathBuf, Vec<PathBuf>)>) -> Result<(), Failure> {
    if !path.is_dir() {
        let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        match found.iter_mut().find(|(known, _)| *known == folder) {
            Some((_, files)) => files.push(path.into()),
            None => found.push((folder, vec![path.into()])),
        }
        return Ok(());
    }
    let cannot = |error| Failure::Failed(format!("{}: cannot be read: {error}", path.display()));
    let entries = fs::read_dir(path).map_err(cannot)?;
    let mut inside: Vec<PathBuf> = Vec::new();
    for entry in entries {
        inside.push(entry.map_err(cannot)?.path());
    }
    inside.retain(|path| path.is_dir() || path.extension().is_some_and(|end| end == "jsonl"));
    inside.sort_by_cached_key(|path| order(path));
    inside.iter().try_for_each(|path| collect(path, found))
}

/// Sorts by day, and within a day our run before those of peers.
fn order(path: &Path) -> (String, bool, String) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (day, rest) = name.split_once('.').unwrap_or((&name, ""));
    (day.to_owned(), rest != "jsonl", name.clone())
}

impl Group {
    fn read(folder: &Path, files: Vec<PathBuf>) -> Result<Self, Failure> {
        let mut lines: Vec<Line> = Vec::new();
        let (again, files): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| again::is_second(file));
        for file in files {
            let new = row::read(&file)?;
            // The peaks of a later run replace those of the same backends.
            lines.retain(|old| !new.iter().any(|new| replaces(new, old)));
            lines.extend(new);
        }
        let mut agreement = Agreement::default();
        for file in again {
            agreement.hold(&mut lines, &row::read(&file)?);
        }
        // This is the order of columns and bars: ours first, then peers of any day; warm caches before cold.
        lines.sort_by_key(|line| match line {
            Line::Row(row) => (row.is_cold(), row.peer.is_some()),
            Line::Ceiling(ceiling) => (ceiling.cache.is_some(), false),
            _ => (false, false),
        });
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or("runs");
        let highlights = fs::read_to_string(folder.join(HIGHLIGHTS)).unwrap_or_default();
        let highlights = highlights.lines().map(str::trim).filter(|line| !line.is_empty());
        let highlights = highlights.map(str::to_owned).collect();
        Ok(Self { name: name.into(), folder: folder.into(), lines, agreement, highlights })
    }

    /// Writes the page and its pictures.
    fn write(&self, folder: &Path) -> Result<(), Failure> {
        fs::create_dir_all(folder).map_err(|error| {
            Failure::Failed(format!("{}: cannot be made: {error}", folder.display()))
        })?;
        let file = |end: &str| folder.join(format!("{}{end}", self.name));
        let pictures = [("-roofline.svg", Parts::Rooflines), ("-bars.svg", Parts::Bars)];
        for (end, parts) in pictures {
            Picture::new(&file(end))?.draw_parts(&self.lines, parts)?;
        }
        if !self.highlights.is_empty() {
            let lines = self.highlighted()?;
            Picture::new(&file("-highlights.svg"))?.draw_parts(&lines, Parts::Bars)?;
        }
        Output::new(&file(".md"))?.place_bytes(self.page().as_bytes())?;
        say(file(".md").display())
    }

    /// The rows of the highlights, in their order.
    fn highlighted(&self) -> Result<Vec<Line>, Failure> {
        let mut lines = Vec::new();
        for case in &self.highlights {
            let before = lines.len();
            let case = row::respelled(case);
            let own = |line: &&Line| matches!(line, Line::Row(row) if row.case() == case);
            lines.extend(self.lines.iter().filter(own).cloned());
            if lines.len() == before {
                let name = &self.name;
                let message = format!("{name}/{HIGHLIGHTS}: no run has the case `{case}`");
                return Err(Failure::Failed(message));
            }
        }
        Ok(lines)
    }

    fn page(&self) -> String {
        let (name, rows) = (&self.name, print::rows(&self.lines));
        let mut page = format!("# {name}\n\n");
        page += "Made by `windowpane report benches/results --into docs/benchmarks` from the runs \
                 in\n";
        page += &format!("`benches/results/{name}`. Edit those, not this page.\n\n");
        page += "Measured peaks:\n\n";
        for line in print::ceilings(&self.lines) {
            page += &format!("- {line}\n");
        }
        page += &format!(
            "\n![Throughput of each case below the measured peaks]({name}-roofline.svg)\n\n"
        );
        page += &format!("![Share of measured peak, by contestant]({name}-bars.svg)\n\n");
        page += "Each cell is the time of one launch in milliseconds and, in brackets, the share of \
                 the measured peak.\n`~` marks times whose timing runs differ by more than 5 %. \
                 Ratios use only peers recorded on the same day.";
        if let Some(told) = self.agreement.told() {
            page += &format!(" {told}");
        }
        page += "\n\n";
        page += &format!("{}\n", print::table_of(Format::Markdown, &rows));
        for line in means(&rows) {
            page += &format!("\n{line}  ");
        }
        page.truncate(page.trim_end().len());
        page + "\n"
    }
}

/// Whether a line of a later file replaces an earlier one.
fn replaces(new: &Line, old: &Line) -> bool {
    match (new, old) {
        (Line::Row(new), Line::Row(old)) => new.case() == old.case() && new.whose() == old.whose(),
        (Line::Ceiling(new), Line::Ceiling(old)) => {
            let of = |it: &row::Ceiling| {
                (it.backend.clone(), it.ceiling.clone(), it.dtype.clone(), it.cache.clone())
            };
            of(new) == of(old) && !new.backend.is_empty()
        }
        _ => false,
    }
}

/// The geometric means of the ratios by kind, pass and type; empty without peers.
fn means(rows: &[&Row]) -> Vec<String> {
    let mut groups: Vec<(String, Vec<f64>)> = Vec::new();
    for rows in print::by_case(rows) {
        let Some(ratio) = print::ratio(&rows) else { continue };
        let name =
            format!("{} {} {}", rows[0].kind, row::pass_name(&rows[0].pass), row::factors(&rows));
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, ratios)) => ratios.push(ratio),
            None => groups.push((name, vec![ratio])),
        }
    }
    let told = |(name, ratios): (String, Vec<f64>)| {
        let mean = print::mean(&ratios);
        let worst = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let cases = ratios.len();
        format!("{name}: peer / ours {mean:.2} (geometric mean of {cases} cases; worst {worst:.2})")
    };
    groups.into_iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(name: &str, whose: (&str, &str), ms: f64) -> Line {
        let mut row = json!({
            "name": name, "kind": "maxpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
            "ms": ms,
        });
        row[whose.0] = json!(whose.1);
        serde_json::from_value(row).expect("a row")
    }

    #[test]
    fn ratios_are_of_the_fastest_of_each_side() {
        let lines = [
            row("a", ("backend", "cuda"), 1.0),
            row("a", ("backend", "wgpu"), 2.0),
            row("a", ("peer", "torch"), 4.0),
            row("a", ("peer", "torch_compile"), 3.0),
            row("b", ("backend", "cuda"), 1.0),
            row("b", ("peer", "torch"), 12.0),
            row("c", ("backend", "cuda"), 1.0),
        ];
        let told = means(&print::rows(&lines));
        assert_eq!(
            told,
            ["maxpool fwd f32: peer / ours 6.00 (geometric mean of 2 cases; worst 3.00)"]
        );
    }

    /// Convolutions are joined like poolings, tf32 has separate means, and `wgrad` is shown as `weight`.
    #[test]
    fn convolutions_are_joined_by_what_they_compute_on() {
        let conv = |name: &str, whose: (&str, &str), ms: f64, precision: Option<&str>| {
            let mut row = json!({
                "name": name, "kind": "conv", "pass": "wgrad", "dtype": "f32", "layout": "nhwc",
                "ms": ms, "tflops": 50.0,
            });
            row[whose.0] = json!(whose.1);
            if let Some(precision) = precision {
                (row["precision"], row["ceiling_fraction"]) = (json!(precision), json!(0.5));
            }
            serde_json::from_value::<Line>(row).expect("a row")
        };
        let lines = [
            conv("a", ("peer", "torch"), 3.0, None),
            conv("a", ("backend", "cuda"), 2.0, None),
            conv("a_tf32", ("peer", "torch"), 1.0, None),
            conv("a_tf32", ("backend", "cuda"), 2.0, Some("tf32")),
        ];
        let rows = print::rows(&lines);
        let [strict, tf32] = &means(&rows)[..] else { panic!("two means") };
        assert!(strict.starts_with("conv weight f32: peer / ours 1.50"), "{strict}");
        assert!(tf32.starts_with("conv weight tf32: peer / ours 0.50"), "{tf32}");
        let table = print::table_of(Format::Markdown, &rows).to_string();
        let line = table.lines().find(|line| line.contains("a_tf32")).expect("a line");
        assert!(line.contains("tf32 nhwc") && line.contains("2 (50 %)"), "{table}");
        assert!(line.contains("0.50"), "{table}");
    }

    #[test]
    fn ours_come_before_the_peers_of_their_day() {
        let mut files = [
            "2026-02-01.jsonl",
            "2026-01-31.torch.jsonl",
            "2026-01-31.jsonl",
            "2026-01-31.cubek.jsonl",
        ];
        files.sort_by_cached_key(|file| order(Path::new(file)));
        let ends = files.map(|file| &file[8..]);
        assert_eq!(ends, ["31.jsonl", "31.cubek.jsonl", "31.torch.jsonl", "01.jsonl"]);
    }

    /// A run of another day may come from another machine and is not used in a ratio.
    #[test]
    fn ratios_are_of_one_day() {
        let on = |day: &str, mut line: Line| {
            if let Line::Row(row) = &mut line {
                row.day = day.into();
            }
            line
        };
        let lines = [
            on("2026-01-31", row("a", ("backend", "cuda"), 1.0)),
            on("2026-01-30", row("a", ("peer", "cubek"), 2.0)),
            on("2026-01-31", row("a", ("peer", "torch"), 3.0)),
        ];
        assert_eq!(print::ratio(&print::rows(&lines)), Some(3.0));
        assert_eq!(print::ratio(&print::rows(&lines[..2])), None);
    }

    /// Times with cold caches appear next to those with warm ones and are not used in a ratio.
    #[test]
    fn cold_caches_are_contestants_of_their_own() {
        let mut cold = row("a", ("backend", "cuda"), 0.5);
        if let Line::Row(Row { result: row::Outcome::Time(time), .. }) = &mut cold {
            time.cache = "cold".into();
        }
        let warm = row("a", ("backend", "cuda"), 1.0);
        assert!(!replaces(&cold, &warm) && !replaces(&warm, &cold) && replaces(&cold, &cold));
        let lines = [warm, cold, row("a", ("peer", "torch"), 3.0)];
        let rows = print::rows(&lines);
        assert_eq!(print::ratio(&rows), Some(3.0));
        let table = print::table_of(Format::Markdown, &rows).to_string();
        assert!(table.contains("| cuda, ms | cuda cold, ms | torch, ms |"), "{table}");
    }

    /// Peaks with cold caches appear next to those with warm ones and are marked.
    #[test]
    fn cold_ceilings_are_told_apart() {
        let copy = |gbs: f64, cache: Option<&str>| {
            let mut line = json!({
                "ceiling": "copy", "bytes": 1 << 20, "gbs": gbs, "backend": "cuda", "device": "a GPU",
            });
            if let Some(cache) = cache {
                line["cache"] = json!(cache);
            }
            serde_json::from_value::<Line>(line).expect("a ceiling")
        };
        let (warm, cold) = (copy(9.0, None), copy(4.0, Some("cold")));
        assert!(!replaces(&cold, &warm) && !replaces(&warm, &cold));
        assert!(replaces(&copy(8.0, None), &warm) && replaces(&copy(3.0, Some("cold")), &cold));
        assert_eq!(
            print::ceilings(&[warm, cold]),
            ["cuda (a GPU): copy of 1 MB 9 GB/s; copy of 1 MB 4 GB/s with cold caches"]
        );
    }

    /// A failure with cold caches does not take the place of a time with warm ones.
    #[test]
    fn cold_failures_replace_cold_rows_alone() {
        let warm = row("a", ("backend", "cuda"), 1.0);
        let failed = json!({
            "name": "a", "kind": "maxpool", "pass": "fwd", "dtype": "f32", "layout": "nhwc",
            "backend": "cuda", "error": "no memory", "cache": "cold",
        });
        let failed = serde_json::from_value::<Line>(failed).expect("a row");
        assert!(!replaces(&failed, &warm) && replaces(&failed, &failed));
    }

    #[test]
    fn later_rows_take_the_place_of_earlier_ones() {
        let old = row("a", ("backend", "cuda"), 1.0);
        assert!(replaces(&row("a", ("backend", "cuda"), 2.0), &old));
        assert!(!replaces(&row("a", ("backend", "wgpu"), 2.0), &old));
        assert!(!replaces(&row("b", ("backend", "cuda"), 2.0), &old));
    }
}
