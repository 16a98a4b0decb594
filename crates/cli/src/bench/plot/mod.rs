//! Pictures of a run: every case on its device's roofline, and the contestants side by side.
//!
//! The same drawing code writes SVG and PNG. An SVG contains text; a PNG uses a small font that is
//! compiled in, so that no installed font is needed.

mod bars;
mod columns;
mod raster;
mod roofline;

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::print;
use super::row::Line;
use crate::failure::Failure;
use crate::output::Output;

use bars::Bars;
use raster::Raster;
use roofline::Roofline;

/// The width of a README page.
const WIDTH: u32 = 960;

/// The palette of Okabe and Ito, which is readable with colour blindness.
const BLACK: RGBColor = RGBColor(0, 0, 0);
const ORANGE: RGBColor = RGBColor(230, 159, 0);
const SKY: RGBColor = RGBColor(86, 180, 233);
const GREEN: RGBColor = RGBColor(0, 158, 115);
const BLUE: RGBColor = RGBColor(0, 114, 178);
const VERMILLION: RGBColor = RGBColor(213, 94, 0);
const PURPLE: RGBColor = RGBColor(204, 121, 167);
/// Two more, for backends that the palette has no colour for.
const YELLOW: RGBColor = RGBColor(240, 228, 66);
const BROWN: RGBColor = RGBColor(140, 86, 40);
/// Grid lines and secondary text.
const GRID: RGBColor = RGBColor(222, 222, 222);
const GREY: RGBColor = RGBColor(110, 110, 110);

/// A file to draw to.
pub(super) struct Picture {
    output: Output,
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Format {
    Svg,
    Png,
}

/// The parts of a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Parts {
    All,
    Rooflines,
    Bars,
}

impl Picture {
    /// Checks, before anything is measured, that the file can be drawn and written.
    pub(super) fn new(path: &Path) -> Result<Self, Failure> {
        let format = match path.extension().and_then(|end| end.to_str()) {
            Some("svg") => Format::Svg,
            Some("png") => Format::Png,
            _ => {
                let path = path.display();
                let message =
                    format!("{path} is not a picture; use a name that ends in .svg or .png");
                return Err(Failure::Arguments(message));
            }
        };
        Ok(Self { output: Output::new(path)?, format })
    }

    /// Draws everything that these lines contain.
    pub(super) fn draw(&self, lines: &[Line]) -> Result<(), Failure> {
        self.draw_parts(lines, Parts::All)
    }

    pub(super) fn draw_parts(&self, lines: &[Line], parts: Parts) -> Result<(), Failure> {
        let figure = Figure::of(lines, parts);
        if figure.height() == 0 {
            let path = self.output.path().display();
            let message =
                format!("{path}: nothing to draw: no case has both a time and a measured peak");
            return Err(Failure::Failed(message));
        }
        let bytes = match self.format {
            Format::Svg => figure.svg()?.into_bytes(),
            Format::Png => figure.png()?,
        };
        self.output.place_bytes(&bytes)
    }
}

/// The drawing: rooflines above, bars below.
struct Figure {
    rooflines: Vec<Roofline>,
    bars: Option<Bars>,
}

type Area<B> = DrawingArea<B, Shift>;
type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

impl Figure {
    fn of(lines: &[Line], parts: Parts) -> Self {
        let rooflines = if parts == Parts::Bars { Vec::new() } else { Roofline::all(lines) };
        let bars = if parts == Parts::Rooflines { None } else { Bars::of(&print::rows(lines)) };
        Self { rooflines, bars }
    }

    fn height(&self) -> u32 {
        self.rooflines_height() + self.bars.as_ref().map_or(0, Bars::height)
    }

    fn rooflines_height(&self) -> u32 {
        roofline::height(self.rooflines.len())
    }

    fn svg(&self) -> Result<String, Failure> {
        let mut text = String::new();
        let backend = SVGBackend::with_string(&mut text, (WIDTH, self.height()));
        self.draw(backend.into_drawing_area()).map_err(failed)?;
        Ok(text)
    }

    fn png(&self) -> Result<Vec<u8>, Failure> {
        let mut raster = Raster::new(WIDTH, self.height());
        self.draw((&mut raster).into_drawing_area()).map_err(failed)?;
        Ok(raster.into_png())
    }

    fn draw<B: DrawingBackend>(&self, area: Area<B>) -> Drawn<B> {
        area.fill(&WHITE)?;
        let (upper, lower) = area.split_vertically(self.rooflines_height());
        if !self.rooflines.is_empty() {
            roofline::draw(&self.rooflines, &upper)?;
        }
        if let Some(bars) = &self.bars {
            bars.draw(&lower)?;
        }
        area.present()
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("the picture cannot be drawn: {error}"))
}

/// Draws text with its left, middle or right end at a point, upright or along an axis.
fn text<B: DrawingBackend>(
    area: &Area<B>,
    words: &str,
    at: (i32, i32),
    end: HPos,
    color: RGBColor,
) -> Drawn<B> {
    let style = ("sans-serif", 16).into_font().color(&color).pos(Pos::new(end, VPos::Center));
    area.draw(&Text::new(words, at, style))
}

fn upward_text<B: DrawingBackend>(area: &Area<B>, words: &str, at: (i32, i32)) -> Drawn<B> {
    let font = ("sans-serif", 16).into_font().transform(FontTransform::Rotate270);
    let style = font.color(&BLACK).pos(Pos::new(HPos::Center, VPos::Center));
    area.draw(&Text::new(words, at, style))
}

fn title<B: DrawingBackend>(area: &Area<B>, words: &str, at: (i32, i32)) -> Drawn<B> {
    let style = ("sans-serif", 20).into_font().color(&BLACK);
    area.draw(&Text::new(words, at, style.pos(Pos::new(HPos::Left, VPos::Center))))
}

fn line<B: DrawingBackend>(
    area: &Area<B>,
    from: (i32, i32),
    to: (i32, i32),
    style: impl Into<ShapeStyle>,
) -> Drawn<B> {
    area.draw(&PathElement::new(vec![from, to], style))
}

/// As much of a text as fits in `pixels`, with `advance` pixels per character.
fn fitting(words: &str, pixels: i32, advance: i32) -> String {
    let most = (pixels / advance).max(2) as usize;
    match words.char_indices().nth(most) {
        Some(_) => words.chars().take(most - 2).chain("..".chars()).collect(),
        None => words.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two cases on a GPU and on a CPU without an arithmetic peak, where one of them fails, and a peer for the other.
    pub(super) fn run() -> Vec<Line> {
        let text = r#"
{"ceiling":"copy","bytes":1073741824,"gbs":4000.0,"backend":"cuda","device":"a GPU"}
{"ceiling":"vector","dtype":"f32","tflops":50.0,"backend":"cuda","device":"a GPU"}
{"ceiling":"copy","bytes":1073741824,"gbs":20.0,"backend":"host","device":"a processor"}
{"name":"stem","kind":"maxpool","pass":"fwd","dtype":"f32","layout":"nhwc","backend":"cuda","device":"a GPU","ms":0.5,"gbs":3000.0,"intensity":0.45,"ceiling_fraction":0.75}
{"name":"stem","kind":"maxpool","pass":"fwd","dtype":"f32","layout":"nhwc","backend":"host","device":"a processor","ms":90.0,"gbs":10.0,"intensity":0.45,"ceiling_fraction":0.5}
{"name":"stem","kind":"maxpool","pass":"fwd","dtype":"f32","layout":"nhwc","peer":"torch","ms":0.6}
{"name":"block","kind":"conv","pass":"fwd","dtype":"f32","layout":"nhwc","backend":"cuda","device":"a GPU","ms":1.0,"gbs":300.0,"tflops":30.0,"intensity":100.0,"ceiling_fraction":0.6}
{"name":"block","kind":"conv","pass":"fwd","dtype":"f32","layout":"nhwc","backend":"host","device":"a processor","error":"no <time>"}
"#;
        let lines = text.lines().filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_str(line).expect("a line")).collect()
    }

    #[test]
    fn an_svg_says_what_it_shows() {
        let svg = Figure::of(&run(), Parts::All).svg().expect("it is drawn");
        for words in [
            "Op/s",
            "operations per byte",
            "measured peak",
            "higher is better",
            "cuda",
            "torch",
            "stem",
        ] {
            assert!(svg.contains(words), "{words}");
        }
        // A case without a time has no bar, and is not left out.
        assert!(svg.contains("block") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn a_png_is_one() {
        let figure = Figure::of(&run(), Parts::All);
        let png = figure.png().expect("it is drawn");
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
        let size = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().expect("four bytes"));
        assert_eq!((size(16), size(20)), (WIDTH, figure.height()));
    }

    #[test]
    fn parts_are_drawn_alone() {
        let height = |parts| Figure::of(&run(), parts).height();
        assert_eq!(height(Parts::Rooflines) + height(Parts::Bars), height(Parts::All));
        assert_eq!(Figure::of(&[], Parts::All).height(), 0);
    }

    #[test]
    fn long_words_are_cut() {
        assert_eq!(fitting("short", 100, 8), "short");
        assert_eq!(fitting("0123456789", 40, 8), "012..");
    }
}
