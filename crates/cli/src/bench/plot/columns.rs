//! Bars of many cases: thin bars in two columns, grouped by kind, pass, type and layout.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::super::print::percent;
use super::bars::{Bar, Bars, Case};
use super::raster::ADVANCE;
use super::{Area, BLACK, Drawn, GREY, GRID, WIDTH, fitting, line, text};

const THICK: i32 = 4;
const GAP: i32 = 4;
/// A row is at least as high as the name of its case.
const ROW: i32 = 17;
const SECTION: i32 = 24;
const COLUMN: i32 = WIDTH as i32 / 2;
/// The edges of the bars in their column.
const LEFT: i32 = 206;
const RIGHT: i32 = COLUMN - 28;

/// An entry of a column: the heading of a group, or a case.
enum Item<'a> {
    Section(&'a str),
    Case(&'a Case),
}

/// The cases in two columns of about the same height.
pub(super) struct Columns<'a> {
    bars: &'a Bars,
    columns: [Vec<Item<'a>>; 2],
}

impl<'a> Columns<'a> {
    pub(super) fn of(bars: &'a Bars) -> Self {
        let mut sections: Vec<(&str, Vec<&Case>)> = Vec::new();
        for case in &bars.cases {
            match sections.iter_mut().find(|(section, _)| *section == case.section) {
                Some((_, cases)) => cases.push(case),
                None => sections.push((&case.section, vec![case])),
            }
        }
        let mut columns = Self { bars, columns: [Vec::new(), Vec::new()] };
        let row = columns.row();
        let height = |cases: &[&Case]| SECTION + cases.len() as i32 * row;
        let all: i32 = sections.iter().map(|(_, cases)| height(cases)).sum();
        let mut above = 0;
        for (section, cases) in sections {
            // Goes to the column that contains its middle.
            let height = height(&cases);
            let column = usize::from(2 * above + height > all);
            above += height;
            columns.columns[column].push(Item::Section(section));
            columns.columns[column].extend(cases.into_iter().map(Item::Case));
        }
        columns
    }

    /// The height of a case.
    fn row(&self) -> i32 {
        (self.bars.whose.len() as i32 * THICK + GAP).max(ROW)
    }

    /// The height of the taller column.
    pub(super) fn height(&self) -> i32 {
        let height = |column: &Vec<Item>| column.iter().map(|item| self.height_of(item)).sum();
        self.columns.iter().map(height).max().unwrap_or_default()
    }

    fn height_of(&self, item: &Item) -> i32 {
        match item {
            Item::Section(_) => SECTION,
            Item::Case(_) => self.row(),
        }
    }

    /// Draws the columns below a height.
    pub(super) fn draw<B: DrawingBackend>(&self, area: &Area<B>, top: i32) -> Drawn<B> {
        for (i, items) in self.columns.iter().enumerate().filter(|(_, items)| !items.is_empty()) {
            self.draw_column(area, items, (i as i32 * COLUMN, top))?;
        }
        Ok(())
    }

    fn draw_column<B: DrawingBackend>(
        &self,
        area: &Area<B>,
        items: &[Item],
        (left, top): (i32, i32),
    ) -> Drawn<B> {
        let bottom = top + items.iter().map(|item| self.height_of(item)).sum::<i32>();
        let place = |share: f64| {
            let share = share.min(self.bars.most) / self.bars.most;
            left + LEFT + (share * f64::from(RIGHT - LEFT)).round() as i32
        };
        for (share, words) in self.bars.ticks(50) {
            let at = place(share);
            line(area, (at, top), (at, bottom), GRID)?;
            text(area, &words, (at, bottom + 12), HPos::Center, BLACK)?;
        }
        let mut y = top;
        for item in items {
            match item {
                Item::Section(name) => {
                    let (from, to) = (left + 12, left + RIGHT);
                    let over = y + SECTION - 20;
                    area.draw(&Rectangle::new([(from, over), (to, over + 17)], WHITE.filled()))?;
                    text(area, name, (from, over + 8), HPos::Left, BLACK)?;
                    line(area, (from, over + 18), (to, over + 18), GREY)?;
                }
                Item::Case(case) => {
                    let name = fitting(&case.name, LEFT - 24, ADVANCE);
                    let middle = y + self.row() / 2;
                    text(area, &name, (left + LEFT - 8, middle), HPos::Right, BLACK)?;
                    self.draw_bars(area, &case.bars, (left + LEFT, y), place)?;
                }
            }
            y += self.height_of(item);
        }
        // Drawn over the bars, so that the distance to 100 % is visible.
        line(area, (place(1.0), top), (place(1.0), bottom), BLACK)
    }

    fn draw_bars<B: DrawingBackend>(
        &self,
        area: &Area<B>,
        bars: &[Bar],
        (left, top): (i32, i32),
        place: impl Fn(f64) -> i32,
    ) -> Drawn<B> {
        let top = top + (self.row() - bars.len() as i32 * THICK) / 2;
        for (i, bar) in bars.iter().enumerate() {
            let (above, below) = (top + i as i32 * THICK, top + (i as i32 + 1) * THICK - 1);
            match bar {
                Bar::Reached { share, .. } => {
                    let style = self.bars.colors[i].filled();
                    let end = place(*share).max(left + 1);
                    area.draw(&Rectangle::new([(left, above), (end, below)], style))?;
                }
                // A cross, as the legend says.
                Bar::Failed => cross(area, (left + 5, (above + below) / 2))?,
                Bar::Absent => {}
            }
        }
        Ok(())
    }
}

/// The mark for a case that did not run.
pub(super) fn cross<B: DrawingBackend>(area: &Area<B>, (x, y): (i32, i32)) -> Drawn<B> {
    line(area, (x - 2, y - 2), (x + 2, y + 2), BLACK)?;
    line(area, (x - 2, y + 2), (x + 2, y - 2), BLACK)
}

/// The label of a share on the axis; the last one may stand for more.
pub(super) fn tick(share: f64, beyond: bool) -> String {
    match beyond {
        true => format!("> {}", percent(share)),
        false => percent(share),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(sections: usize, cases: usize, contestants: usize) -> Bars {
        let bars = vec![Bar::Reached { share: 0.5, ms: 1.0 }; contestants];
        let case = |i: usize| Case {
            name: format!("case {i}"),
            section: format!("section {}", i % sections),
            bars: bars.clone(),
        };
        let whose = (0..contestants).map(|i| format!("contestant {i}")).collect();
        let colors = vec![BLACK; contestants];
        Bars { whose, colors, cases: (0..cases).map(case).collect(), most: 1.0, beyond: false }
    }

    /// All benchmark cases of pooling and convolution, four contestants side by side.
    #[test]
    fn many_cases_fit_on_a_page() {
        let bars = bars(21, 115, 4);
        assert!(bars.height() <= 1600, "{}", bars.height());
        let columns = Columns::of(&bars);
        let items: usize = columns.columns.iter().map(Vec::len).sum();
        assert_eq!(items, 115 + 21);
    }

    #[test]
    fn columns_are_about_as_high() {
        let bars = bars(8, 80, 2);
        let [first, second] = Columns::of(&bars).columns.map(|column| column.len());
        assert_eq!((first, second), (44, 44));
    }
}
