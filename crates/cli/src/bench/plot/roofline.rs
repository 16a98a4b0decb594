//! Rooflines: operations per second over operations per byte, both on logarithmic axes.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::super::row::{Ceiling, Line, Row, pass_name};
use super::bars::colors;
use super::raster::{ADVANCE, TITLE_ADVANCE};
use super::{Area, BLACK, Drawn, GREY, GRID, fitting, line, text, title, upward_text};

const PANEL_HEIGHT: u32 = 380;
const LEGEND_HEIGHT: u32 = 58;

/// The edges of the plot in its panel. The right margin has room for the names of the roofs, so that
/// no name is on a line.
const LEFT: i32 = 74;
const RIGHT: i32 = 26 + 12 * ADVANCE;
const TOP: i32 = 56;
const BOTTOM: i32 = PANEL_HEIGHT as i32 - 60;

/// The height of a line of text.
const LINE: i32 = 15;

/// A device with its peaks and its cases, either with warm caches or with cold ones.
#[derive(Clone)]
pub(super) struct Roofline {
    /// The contestant, which decides the colour.
    whose: String,
    title: String,
    /// The bandwidth of the copy in GB/s.
    copy: f64,
    /// The name of each arithmetic peak, and its GOp/s.
    arithmetic: Vec<(String, f64)>,
    points: Vec<Point>,
}

/// A case: operations per byte, GOp/s, and its kind.
#[derive(Clone)]
struct Point {
    intensity: f64,
    gops: f64,
    kind: Kind,
}

/// Decides the shape of a case's mark.
#[derive(Clone, Debug, PartialEq)]
struct Kind {
    kind: String,
    pass: String,
}

impl Roofline {
    /// One for every device with a measured copy and a case; cold caches get a separate one.
    pub(super) fn all(lines: &[Line]) -> Vec<Self> {
        let mut copies: Vec<&Ceiling> = Vec::new();
        for ceiling in ceilings(lines).filter(|it| it.gbs.is_some() && !it.backend.is_empty()) {
            // The first copy of each device is the largest.
            if !copies.iter().any(|known| known.is_beside(ceiling)) {
                copies.push(ceiling);
            }
        }
        let rooflines = copies.into_iter().filter_map(|copy| Self::of(copy, lines));
        rooflines.filter(|roofline| !roofline.points.is_empty()).collect()
    }

    fn of(copy: &Ceiling, lines: &[Line]) -> Option<Self> {
        let own = ceilings(lines).filter(|ceiling| ceiling.is_beside(copy));
        let arithmetic = own.filter_map(|ceiling| {
            let name = format!("{} {}", ceiling.dtype.as_deref()?, ceiling.ceiling);
            Some((name, ceiling.tflops? * 1e3))
        });
        let rows = lines.iter().filter_map(|line| match line {
            Line::Row(row) if row.peer.is_none() && row.whose() == copy.whose() => Point::of(row),
            _ => None,
        });
        Some(Self {
            whose: copy.whose().into_owned(),
            // The title omits the driver, which is in the rows.
            title: format!("{}: {}", copy.whose(), copy.device.split(", driver").next()?),
            copy: copy.gbs.unwrap_or(f64::NAN),
            arithmetic: arithmetic.collect(),
            points: rows.collect(),
        })
    }

    /// The axes of a plot that ends at this pixel on the right.
    fn axes(&self, right: i32) -> (Axis, Axis) {
        let most = self.arithmetic.iter().map(|(_, gops)| *gops).reduce(f64::max);
        let ridge = most.map(|most| most / self.copy);
        let x = self.points.iter().map(|point| point.intensity).chain(ridge.map(|x| 1.5 * x));
        let x = Axis::over(x, LEFT, right);
        let roof = most.unwrap_or(self.copy * x.high());
        let y = self.points.iter().map(|point| point.gops).chain([roof]);
        (x, Axis::over(y, BOTTOM, TOP))
    }

    fn draw<B: DrawingBackend>(&self, area: &Area<B>, color: RGBColor) -> Drawn<B> {
        let right = area.dim_in_pixel().0 as i32 - RIGHT;
        let words = fitting(&self.title, right + RIGHT - LEFT + 30, TITLE_ADVANCE);
        title(area, &words, (LEFT - 50, 18))?;
        let copy = format!("copy: {:.1} GB/s", self.copy);
        text(area, &copy, (LEFT - 50, 40), HPos::Left, GREY)?;
        let (x, y) = self.axes(right);
        grid(area, &x, &y)?;
        self.draw_roofs(area, &x, &y)?;
        for point in &self.points {
            let at = (x.place(point.intensity), y.place(point.gops));
            mark(area, at, &point.kind, color)?;
        }
        Ok(())
    }

    fn draw_roofs<B: DrawingBackend>(&self, area: &Area<B>, x: &Axis, y: &Axis) -> Drawn<B> {
        let roof = ShapeStyle::from(&BLACK).stroke_width(2);
        let most = self.arithmetic.iter().map(|(_, gops)| *gops).reduce(f64::max);
        // Starts at the left edge, or where it rises above the lower one.
        let start = x.low().max(y.low() / self.copy);
        let end = most.map_or(x.high(), |most| most / self.copy).min(x.high());
        if start < end {
            let place = |at: f64| (x.place(at), y.place(self.copy * at));
            line(area, place(start), place(end), roof)?;
        }
        let mut roofs: Vec<_> = self.arithmetic.iter().collect();
        roofs.sort_by(|(_, lower), (_, higher)| higher.total_cmp(lower));
        let heights: Vec<i32> = roofs.iter().map(|(_, gops)| y.place(*gops)).collect();
        for (((name, gops), height), label) in roofs.iter().zip(&heights).zip(apart(&heights)) {
            let ridge = x.place((gops / self.copy).max(x.low()));
            line(area, (ridge, *height), (x.to, *height), roof)?;
            line(area, (x.to, *height), (x.to + 10, label), GREY)?;
            text(area, name, (x.to + 14, label), HPos::Left, BLACK)?;
        }
        Ok(())
    }
}

/// Heights for labels, from the top down: each as near to its own line as the distance between labels
/// and the bottom of the plot allow.
fn apart(heights: &[i32]) -> Vec<i32> {
    let mut labels: Vec<i32> = Vec::new();
    for height in heights {
        let least = labels.last().map_or(i32::MIN, |above| above + LINE);
        labels.push(least.max(*height));
    }
    let mut most = BOTTOM;
    for label in labels.iter_mut().rev() {
        *label = (*label).min(most);
        most = *label - LINE;
    }
    labels
}

impl Point {
    fn of(row: &Row) -> Option<Self> {
        let time = row.time()?;
        let intensity = time.intensity.filter(|intensity| *intensity > 0.0)?;
        let kind = Kind { kind: row.kind.clone(), pass: pass_name(&row.pass).into() };
        Some(Self { intensity, gops: intensity * time.gbs, kind })
    }
}

fn ceilings(lines: &[Line]) -> impl Iterator<Item = &Ceiling> {
    lines.iter().filter_map(|line| match line {
        Line::Ceiling(ceiling) => Some(ceiling),
        Line::Row(_) | Line::Agreement(_) | Line::Moved(_) => None,
    })
}

/// The height of the legend and the panels, two per row; an odd last panel has a row of its own.
pub(super) fn height(panels: usize) -> u32 {
    let rows = panels.div_ceil(2) as u32;
    if rows == 0 { 0 } else { LEGEND_HEIGHT + rows * PANEL_HEIGHT }
}

pub(super) fn draw<B: DrawingBackend>(rooflines: &[Roofline], area: &Area<B>) -> Drawn<B> {
    let (legend, panels) = area.split_vertically(LEGEND_HEIGHT);
    title(
        &legend,
        "Throughput of each case below its device's measured peaks, higher is better",
        (24, 18),
    )?;
    let mut kinds: Vec<&Kind> = Vec::new();
    for point in rooflines.iter().flat_map(|roofline| &roofline.points) {
        if !kinds.contains(&&point.kind) {
            kinds.push(&point.kind);
        }
    }
    let mut x = 34;
    for kind in kinds {
        let name = format!("{} {}", kind.kind, kind.pass);
        mark(&legend, (x, 44), kind, GREY)?;
        text(&legend, &name, (x + 12, 44), HPos::Left, BLACK)?;
        x += 40 + name.len() as i32 * super::raster::ADVANCE;
    }
    let colors =
        colors(&rooflines.iter().map(|roofline| roofline.whose.clone()).collect::<Vec<_>>());
    let rooflines: Vec<_> = rooflines.iter().zip(colors).collect();
    let rows = panels.split_evenly((rooflines.len().div_ceil(2), 1));
    for (row, rooflines) in rows.iter().zip(rooflines.chunks(2)) {
        let panels = row.split_evenly((1, rooflines.len()));
        for (panel, (roofline, color)) in panels.iter().zip(rooflines) {
            roofline.draw(panel, *color)?;
        }
    }
    Ok(())
}

fn grid<B: DrawingBackend>(area: &Area<B>, x: &Axis, y: &Axis) -> Drawn<B> {
    for (value, words) in x.ticks() {
        let at = x.place(value);
        line(area, (at, TOP), (at, BOTTOM), GRID)?;
        text(area, &words, (at, BOTTOM + 14), HPos::Center, BLACK)?;
    }
    for (value, words) in y.ticks() {
        let at = y.place(value);
        line(area, (LEFT, at), (x.to, at), GRID)?;
        text(area, &words, (LEFT - 8, at), HPos::Right, BLACK)?;
    }
    let middle = ((LEFT + x.to) / 2, BOTTOM + 36);
    text(area, "operations per byte", middle, HPos::Center, BLACK)?;
    upward_text(area, "GOp/s (1e9 operations per second)", (14, (TOP + BOTTOM) / 2))
}

/// A case in the colour of its backend. The shape shows the kind: hollow for gradients, and pointing
/// down for the weight gradient.
fn mark<B: DrawingBackend>(
    area: &Area<B>,
    (x, y): (i32, i32),
    kind: &Kind,
    color: RGBColor,
) -> Drawn<B> {
    let style = match &*kind.pass {
        "fwd" => ShapeStyle::from(&color).filled(),
        _ => ShapeStyle::from(&color).stroke_width(2),
    };
    match &*kind.kind {
        "maxpool" if style.filled => area.draw(&Circle::new((x, y), 5, style)),
        // Two thin rings, because a thick one is drawn with holes.
        "maxpool" => {
            area.draw(&Circle::new((x, y), 5, color))?;
            area.draw(&Circle::new((x, y), 4, color))
        }
        "avgpool" => area.draw(&Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], style)),
        _ => {
            let up = if kind.pass == "weight" { -1 } else { 1 };
            let corners = vec![(x, y - 6 * up), (x + 5, y + 4 * up), (x - 5, y + 4 * up)];
            match style.filled {
                true => area.draw(&Polygon::new(corners, style)),
                false => {
                    let first = corners[0];
                    let around = corners.into_iter().chain([first]).collect::<Vec<_>>();
                    area.draw(&PathElement::new(around, style))
                }
            }
        }
    }
}

/// A logarithmic axis from one pixel to another.
struct Axis {
    /// The exponents at its ends.
    low: i32,
    high: i32,
    from: i32,
    to: i32,
}

impl Axis {
    /// The decades that hold all of these numbers.
    fn over(numbers: impl Iterator<Item = f64>, from: i32, to: i32) -> Self {
        let numbers: Vec<f64> = numbers.filter(|number| *number > 0.0).map(f64::log10).collect();
        let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if !(low.is_finite() && high.is_finite()) {
            return Self { low: 0, high: 1, from, to };
        }
        // A mark on an edge would be half outside.
        let (low, high) = ((low - 0.05).floor() as i32, (high + 0.05).ceil() as i32);
        Self { low, high: high.max(low + 1), from, to }
    }

    fn low(&self) -> f64 {
        10f64.powi(self.low)
    }

    fn high(&self) -> f64 {
        10f64.powi(self.high)
    }

    fn place(&self, number: f64) -> i32 {
        let share = (number.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        self.from + (share.clamp(0.0, 1.0) * f64::from(self.to - self.from)).round() as i32
    }

    /// Every power of ten, and how it is written.
    fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        (self.low..=self.high).map(|exponent| {
            let value = 10f64.powi(exponent);
            let words = match exponent {
                // Longer ones would overlap the title of the axis.
                -2..=4 => format!("{value}"),
                _ => format!("1e{exponent}"),
            };
            (value, words)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::WIDTH;
    use super::*;

    #[test]
    fn axes_hold_their_numbers() {
        let axis = Axis::over([0.5, 30.0].into_iter(), 0, 300);
        assert_eq!((axis.low(), axis.high()), (0.1, 100.0));
        assert_eq!((axis.place(0.1), axis.place(1.0), axis.place(100.0)), (0, 100, 300));
        let words: Vec<_> = axis.ticks().map(|(_, words)| words).collect();
        assert_eq!(words, ["0.1", "1", "10", "100"]);
        let large: Vec<_> =
            Axis::over([2e3, 2e5].into_iter(), 0, 1).ticks().map(|(_, words)| words).collect();
        assert_eq!(large, ["1000", "10000", "1e5", "1e6"]);
        let one = Axis::over([7.0].into_iter(), 300, 0);
        assert_eq!((one.low(), one.high(), one.place(1.0)), (1.0, 10.0, 300));
    }

    #[test]
    fn every_device_has_its_own() {
        let rooflines = Roofline::all(&super::super::tests::run());
        let points: Vec<_> = rooflines.iter().map(|roofline| roofline.points.len()).collect();
        assert_eq!(points, [2, 1]);
        assert_eq!(rooflines[0].arithmetic, [("f32 vector".into(), 50e3)]);
        assert!((rooflines[0].points[0].gops - 0.45 * 3000.0).abs() < 1e-9);
    }

    /// Cold caches get roofs of their own, and cases appear under the roofs they were timed with.
    #[test]
    fn cold_caches_have_their_own() {
        let cold = r#"
{"ceiling":"copy","bytes":1048576,"gbs":900.0,"cache":"cold","backend":"cuda","device":"a GPU"}
{"ceiling":"vector","dtype":"f32","tflops":49.0,"cache":"cold","backend":"cuda","device":"a GPU"}
{"name":"stem","kind":"maxpool","pass":"fwd","dtype":"f32","layout":"nhwc","backend":"cuda","device":"a GPU","ms":0.9,"gbs":800.0,"intensity":0.45,"cache":"cold"}
"#;
        let mut lines = super::super::tests::run();
        let cold = cold.trim().lines().map(serde_json::from_str::<Line>);
        lines.extend(cold.map(|line| line.expect("a line")));
        let rooflines = Roofline::all(&lines);
        let told: Vec<_> = rooflines
            .iter()
            .map(|it| (&*it.title, it.copy, it.arithmetic.len(), it.points.len()))
            .collect();
        assert_eq!(
            told,
            [
                ("cuda: a GPU", 4000.0, 1, 2),
                ("host: a processor", 20.0, 0, 1),
                ("cuda cold: a GPU", 900.0, 1, 1),
            ]
        );
    }

    /// A single device gets the whole width, and so does the last one of three.
    #[test]
    fn a_panel_without_a_neighbour_is_wide() {
        let one = Roofline::all(&super::super::tests::run()).swap_remove(0);
        let widths = |devices: usize| {
            let mut svg = String::new();
            let area = SVGBackend::with_string(&mut svg, (WIDTH, height(devices)));
            draw(&vec![one.clone(); devices], &area.into_drawing_area()).expect("it is drawn");
            // The horizontal grid lines.
            let lines = svg.lines().filter(|line| line.contains("#DEDEDE"));
            let points = lines.filter_map(|line| line.split("points=\"").nth(1)?.split('"').next());
            let widths = points.filter_map(|points| {
                let numbers = points.split([' ', ',']).filter_map(|number| number.parse().ok());
                let [x1, y1, x2, y2]: [i32; 4] = numbers.collect::<Vec<_>>().try_into().ok()?;
                (y1 == y2).then_some(x2 - x1)
            });
            widths.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        let (half, whole) = (480 - RIGHT - LEFT, 960 - RIGHT - LEFT);
        assert_eq!(widths(1), [whole]);
        assert_eq!(widths(2), [half]);
        assert_eq!(widths(3), [half, whole]);
    }
}
