//! Bars: for each case, the share of the measured peak that every contestant reaches.
//!
//! A few cases get thick bars with their times. Many cases get thin bars in two columns; their times
//! are in the table.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::super::print::by_case;
use super::super::row::{Row, factors, pass_name};
use super::columns::{Columns, cross, tick};
use super::raster::ADVANCE;
use super::{
    Area, BLACK, BLUE, BROWN, Drawn, GREEN, GREY, GRID, ORANGE, PURPLE, SKY, VERMILLION, WIDTH,
    YELLOW, fitting, line, text, title,
};

const HEAD: i32 = 62;
const FOOT: i32 = 58;
const BAR: i32 = 13;
const GAP: i32 = 12;
const LEFT: i32 = 372;
/// The right end of the axis; times may extend beyond it.
const RIGHT: i32 = WIDTH as i32 - 110;

/// The largest number of cases that get bars with their times.
const FEW: usize = 14;

/// Cases, and the contestants in the order of their bars.
pub(super) struct Bars {
    pub(super) whose: Vec<String>,
    /// Their colours, in the same order.
    pub(super) colors: Vec<RGBColor>,
    pub(super) cases: Vec<Case>,
    /// The share at the right edge.
    pub(super) most: f64,
    /// Whether a bar is longer than that.
    pub(super) beyond: bool,
}

/// A case: its name, the section it belongs to, and its bars.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) section: String,
    pub(super) bars: Vec<Bar>,
}

/// The result of a contestant: share of peak and milliseconds, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Bar {
    Reached { share: f64, ms: f64 },
    Failed,
    Absent,
}

impl Bars {
    /// `None` if no case has a share of peak.
    pub(super) fn of(rows: &[&Row]) -> Option<Self> {
        let mut whose: Vec<String> = Vec::new();
        for row in rows {
            if !whose.iter().any(|known| *known == row.whose()) {
                whose.push(row.whose().into_owned());
            }
        }
        let cases: Vec<_> = by_case(rows).iter().map(|rows| case(rows, &whose)).collect();
        let shares = cases.iter().flat_map(|case| &case.bars).filter_map(|bar| match bar {
            Bar::Reached { share, .. } => Some(*share),
            _ => None,
        });
        let longest = shares.reduce(f64::max)?;
        // Caches and emulated devices exceed the copy; bars far beyond are cut off and marked.
        let most = if longest > 1.0 { (longest * 5.0).ceil().min(10.0) / 5.0 } else { 1.0 };
        let colors = colors(&whose);
        Some(Self { whose, colors, cases, most, beyond: longest > most })
    }

    fn are_few(&self) -> bool {
        self.cases.len() <= FEW
    }

    pub(super) fn height(&self) -> u32 {
        (self.bottom() + FOOT) as u32
    }

    fn group_height(&self) -> i32 {
        (self.whose.len() as i32 * BAR).max(BAR + 4) + GAP
    }

    fn bottom(&self) -> i32 {
        let bars = match self.are_few() {
            true => self.cases.len() as i32 * self.group_height(),
            false => Columns::of(self).height(),
        };
        HEAD + bars
    }

    fn place(&self, share: f64) -> i32 {
        LEFT + (share.min(self.most) / self.most * f64::from(RIGHT - LEFT)).round() as i32
    }

    pub(super) fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B> {
        let and_times = if self.are_few() { "; labels: time of one launch" } else { "" };
        title(area, &format!("Share of measured peak, higher is better{and_times}"), (24, 18))?;
        self.draw_legend(area)?;
        let words = "measured peak: the bandwidth of a plain copy, or arithmetic throughput";
        text(area, words, (WIDTH as i32 - 24, self.bottom() + 38), HPos::Right, BLACK)?;
        if !self.are_few() {
            return Columns::of(self).draw(area, HEAD);
        }
        self.draw_axis(area)?;
        for (i, Case { name, section, bars }) in self.cases.iter().enumerate() {
            let name = format!("{name} {section}");
            let top = HEAD + i as i32 * self.group_height() + GAP / 2;
            let middle = top + (self.group_height() - GAP) / 2;
            let name = fitting(&name, LEFT - 20, ADVANCE);
            text(area, &name, (LEFT - 10, middle), HPos::Right, BLACK)?;
            for (j, bar) in bars.iter().enumerate() {
                self.draw_bar(area, bar, j, top + j as i32 * BAR)?;
            }
        }
        // Drawn over the bars, so that the distance to 100 % is visible.
        let (whole, bottom) = (self.place(1.0), self.bottom());
        line(area, (whole, HEAD), (whole, bottom), BLACK)?;
        for (i, Case { bars, .. }) in self.cases.iter().enumerate() {
            let top = HEAD + i as i32 * self.group_height() + GAP / 2;
            for (j, bar) in bars.iter().enumerate() {
                self.draw_words(area, bar, top + j as i32 * BAR)?;
            }
        }
        Ok(())
    }

    fn draw_legend<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B> {
        let mut x = 34;
        for (whose, color) in self.whose.iter().zip(&self.colors) {
            let style = ShapeStyle::from(color).filled();
            area.draw(&Rectangle::new([(x - 6, 38), (x + 6, 50)], style))?;
            text(area, whose, (x + 12, 44), HPos::Left, BLACK)?;
            x += 40 + whose.len() as i32 * ADVANCE;
        }
        let fails = self.cases.iter().flat_map(|case| &case.bars).any(|bar| *bar == Bar::Failed);
        if fails && !self.are_few() {
            cross(area, (x, 44))?;
            text(area, "did not run", (x + 8, 44), HPos::Left, BLACK)?;
        }
        Ok(())
    }

    /// The labelled shares of the axis, `every` per cent.
    pub(super) fn ticks(&self, every: usize) -> impl Iterator<Item = (f64, String)> {
        let most = (self.most * 100.0).round() as i32;
        (0..=most).step_by(every).map(move |cent| {
            let share = f64::from(cent) / 100.0;
            (share, tick(share, self.beyond && cent == most))
        })
    }

    fn draw_axis<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B> {
        let bottom = self.bottom();
        // As many as have room for their labels.
        let every = if self.most > 1.2 { 40 } else { 20 };
        for (share, words) in self.ticks(every) {
            let at = self.place(share);
            line(area, (at, HEAD), (at, bottom), GRID)?;
            text(area, &words, (at, bottom + 14), HPos::Center, BLACK)?;
        }
        Ok(())
    }

    fn draw_bar<B: DrawingBackend>(
        &self,
        area: &Area<B>,
        bar: &Bar,
        index: usize,
        top: i32,
    ) -> Drawn<B> {
        let Bar::Reached { share, .. } = bar else { return Ok(()) };
        let end = self.place(*share).max(LEFT + 1);
        let style = ShapeStyle::from(&self.colors[index]).filled();
        area.draw(&Rectangle::new([(LEFT, top), (end, top + BAR - 2)], style))?;
        if *share > self.most {
            // A gap shows that the bar continues; text could be mistaken for a time.
            let gap = ShapeStyle::from(&WHITE).stroke_width(3);
            line(area, (end - 16, top + BAR - 2), (end - 10, top), gap)?;
        }
        Ok(())
    }

    /// The text at the end of a bar, on white so that no line crosses it.
    fn draw_words<B: DrawingBackend>(&self, area: &Area<B>, bar: &Bar, top: i32) -> Drawn<B> {
        let (words, from) = match bar {
            Bar::Reached { share, ms } => (format!("{} ms", short(*ms)), self.place(*share) + 5),
            Bar::Failed => ("did not run".into(), LEFT + 5),
            Bar::Absent => return Ok(()),
        };
        let to = from + 2 + words.len() as i32 * ADVANCE;
        area.draw(&Rectangle::new([(from, top), (to, top + BAR - 2)], WHITE.filled()))?;
        text(area, &words, (from + 2, top + BAR / 2), HPos::Left, GREY)
    }
}

/// A case and its bars. A peer's share follows from our time and share of the same peak.
fn case(rows: &[&Row], whose: &[String]) -> Case {
    let row = rows[0];
    let section = [&*row.kind, pass_name(&row.pass), factors(rows), &row.layout].join(" ");
    let ours = rows.iter().filter_map(|row| row.time());
    let measure = ours.filter_map(|time| Some(time.ceiling_fraction? * time.ms)).next();
    let bars = whose.iter().map(|whose| {
        let Some(row) = rows.iter().find(|row| row.whose() == *whose) else { return Bar::Absent };
        let Some(time) = row.time() else { return Bar::Failed };
        let share = time.ceiling_fraction.or(measure.map(|measure| measure / time.ms));
        match share {
            Some(share) => Bar::Reached { share, ms: time.ms },
            None => Bar::Absent,
        }
    });
    Case { name: row.name.clone(), section, bars: bars.collect() }
}

/// Three digits.
fn short(ms: f64) -> String {
    match ms {
        100.0.. => format!("{ms:.0}"),
        10.0.. => format!("{ms:.1}"),
        1.0.. => format!("{ms:.2}"),
        _ => {
            let places = (2.0 - ms.log10().floor()).clamp(0.0, 9.0) as usize;
            format!("{ms:.places$}")
        }
    }
}

/// A colour for every contestant: its own, or one that no other contestant here has; lighter with cold
/// caches.
pub(super) fn colors(whose: &[String]) -> Vec<RGBColor> {
    let warm = |name: &str| name.strip_suffix(" cold").unwrap_or(name).to_owned();
    let mut taken: Vec<(String, RGBColor)> = Vec::new();
    for name in whose.iter().map(|name| warm(name)) {
        taken.extend(own_color(&name).map(|color| (name, color)));
    }
    let others = [BLACK, VERMILLION, GREY, SKY, PURPLE, ORANGE, BLUE, GREEN];
    let colors = whose.iter().map(|name| {
        let base = warm(name);
        let known = taken.iter().find(|(known, _)| *known == base).map(|(_, color)| *color);
        let color = known.unwrap_or_else(|| {
            let free = others.into_iter().find(|color| taken.iter().all(|(_, it)| it != color));
            let color = free.unwrap_or(GREY);
            taken.push((base.clone(), color));
            color
        });
        if base == *name { color } else { lighter(color) }
    });
    colors.collect()
}

/// The colour that a contestant has in every picture.
fn own_color(whose: &str) -> Option<RGBColor> {
    Some(match whose {
        "cuda" => GREEN,
        "vulkan" => BLUE,
        "wgpu" => SKY,
        "cpu" => ORANGE,
        "host" => PURPLE,
        "metal" => YELLOW,
        "hip" => BROWN,
        "torch" => VERMILLION,
        "torch_compile" => GREY,
        "cubek" => BLACK,
        _ => return None,
    })
}

/// Halfway to white.
fn lighter(RGBColor(red, green, blue): RGBColor) -> RGBColor {
    let lighter = |part: u8| part.midpoint(u8::MAX);
    RGBColor(lighter(red), lighter(green), lighter(blue))
}

#[cfg(test)]
mod tests {
    use super::super::super::print;
    use super::*;

    #[test]
    fn peers_are_measured_by_ours() {
        let lines = super::super::tests::run();
        let bars = Bars::of(&print::rows(&lines)).expect("bars");
        assert_eq!(bars.whose, ["cuda", "host", "torch"]);
        let Case { name, section, bars: stem } = &bars.cases[0];
        assert_eq!((&**name, &**section), ("stem", "maxpool fwd f32 nhwc"));
        assert_eq!(stem[0], Bar::Reached { share: 0.75, ms: 0.5 });
        let Bar::Reached { share, ms } = stem[2] else { panic!("torch has a time") };
        assert!((share - 0.75 * 0.5 / 0.6).abs() < 1e-9 && ms == 0.6);
        assert_eq!(bars.cases[1].bars[1..], [Bar::Failed, Bar::Absent]);
        assert_eq!(bars.most, 1.0);
    }

    #[test]
    fn no_two_of_a_record_have_one_color() {
        let warm = ["cuda", "vulkan", "wgpu", "torch", "torch_compile", "onnxruntime", "cubek"];
        let cold = ["cuda cold", "vulkan cold", "wgpu cold", "hip cold", "hip"];
        let all: Vec<_> = warm.into_iter().chain(cold).map(String::from).collect();
        let colors = colors(&all);
        assert_eq!(colors.len(), all.len());
        for (i, color) in colors.iter().enumerate() {
            assert!(!colors[..i].contains(color), "{} looks like another", all[i]);
        }
        // A contestant keeps its colour when others are added or removed.
        assert_eq!((colors[3], colors[6]), (VERMILLION, BLACK));
        assert_eq!(colors[7], RGBColor(127, 206, 185));
    }

    /// A bar that is cut off has a gap; its time is not changed.
    #[test]
    fn bars_that_go_on_have_a_gap() {
        let drawn = |share: f64| {
            let mut lines = super::super::tests::run();
            if let super::super::super::row::Line::Row(row) = &mut lines[3]
                && let super::super::super::row::Outcome::Time(time) = &mut row.result
            {
                time.ceiling_fraction = Some(share);
            }
            let bars = Bars::of(&print::rows(&lines)).expect("bars");
            let mut svg = String::new();
            let area = SVGBackend::with_string(&mut svg, (WIDTH, bars.height()));
            bars.draw(&area.into_drawing_area()).expect("it is drawn");
            let gaps = svg.lines().filter(|it| it.contains("polyline") && it.contains("#FFFFFF"));
            (gaps.count(), svg.contains("0.500 ms"), svg.contains("&gt; 0.5"))
        };
        assert_eq!(drawn(0.75), (0, true, false));
        // The peer's bar, whose share follows from this one, is cut off too.
        assert_eq!(drawn(4.0), (2, true, false));
    }

    #[test]
    fn times_are_short() {
        assert_eq!([123.4, 12.34, 1.234, 0.01234].map(short), ["123", "12.3", "1.23", "0.0123"]);
    }
}
