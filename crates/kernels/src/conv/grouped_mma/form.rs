//! The compile-time options of the kernel: the layout of a cube's pixels, weights, sums and results.

use windowpane_geometry::{Convolution, Tile};

use crate::conv::common::{Epilogue, Gather, Run, inner, weight_steps};
use crate::conv::problem::Pass;

/// The number of channels in a chunk, which is also the number of elements in a strip; and the units of a plane.
pub(super) const CHUNK: u32 = 8;
pub(super) const PLANE: u32 = 32;

/// The number of tiles that are rows of half a fragment: 7 of 8, because most images are a multiple of 7 wide.
pub(super) const TILES: u32 = 7;

/// The numbers of lines of windows that a plane may walk.
pub(super) const WALKS: [u32; 3] = [4, 7, 14];

/// The number of halves of a fragment's rows.
pub(super) const HALVES: u32 = 2;

/// The most fragments of weights that a plane holds during a walk.
const MOST_HELD: u32 = 16;

/// The compile-time options of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// The number of neighbouring walks of a plane, of its groups, and of the chunks of a cube's channels.
    pub(super) walks: u32,
    pub(super) members: u32,
    pub(super) chunks: u32,
    pub(super) lanes: u32,
    /// The number of channels in a group.
    pub(super) group: u32,
    /// The lines of windows of a walk, or of each half of it.
    pub(super) height: Run,
    /// The windows of a tile.
    pub(super) tile: Run,
    /// The step in weights from one line of taps to the next.
    pub(super) weight_step: u32,
    /// Whether results are staged as unfinished sums, so that the epilogue is applied when they are stored to memory.
    pub(super) late: bool,
}

impl Form {
    pub(super) fn new(
        conv: &Convolution,
        pass: Pass,
        gather: &Gather,
        tile: &Tile,
        epilogue: &Epilogue<'_>,
    ) -> Self {
        let [_, height, width] = gather.axes;
        let group = inner(conv, pass) as u32;
        Self {
            walks: tile.block_m / walk_windows(group, tile.ratio_m),
            members: tile.ratio_n,
            chunks: tile.block_n / CHUNK,
            lanes: tile.elems_per_thread,
            group,
            height: Run::new(tile.ratio_m, &height),
            tile: Run::new(CHUNK / group, &width),
            weight_step: (height.tap_jump * weight_steps(conv, pass).kernel[1]) as u32,
            late: epilogue.bias.is_some() || epilogue.residual.is_some(),
        }
    }

    /// The number of pixels in a strip, of windows in a tile, and of groups in a chunk; all are the same.
    pub(super) fn wide(&self) -> u32 {
        CHUNK / self.group
    }

    /// The number of cubes on each axis of a launch: chunks of channels by windows along the width, lines, and samples.
    pub(super) fn cubes(&self, conv: &Convolution, gather: &Gather) -> [usize; 3] {
        let [_, height, width] = gather.axes;
        let chunks = conv.input().channels() / (CHUNK * self.chunks) as usize;
        let across = chunks * width.rows.div_ceil(self.windows() as usize);
        [across, height.rows.div_ceil(self.lines() as usize), conv.input().batch()]
    }

    pub(super) fn units(&self) -> u32 {
        self.chunks * self.wide() / self.members * PLANE
    }

    /// Whether the halves of a fragment's rows are two lines of windows; otherwise they are tiles of one line.
    pub(super) fn is_split(&self) -> bool {
        self.group == 1
    }

    /// The number of lines of windows of a cube.
    pub(super) fn lines(&self) -> u32 {
        self.height.rows * if self.is_split() { HALVES } else { 1 }
    }

    /// The number of neighbouring tiles of a walk, and of a cube.
    pub(super) fn walk_tiles(&self) -> u32 {
        TILES * if self.is_split() { 1 } else { HALVES }
    }

    pub(super) fn tiles(&self) -> u32 {
        self.walks * self.walk_tiles()
    }

    /// The number of windows along the width of a walk, and of a cube.
    pub(super) fn walk_windows(&self) -> u32 {
        self.walk_tiles() * self.wide()
    }

    pub(super) fn windows(&self) -> u32 {
        self.walks * self.walk_windows()
    }

    /// The number of strips that a tile reads, and the number of pairs of them.
    pub(super) fn reach(&self) -> u32 {
        self.tile.pixels().1.div_ceil(self.wide())
    }

    pub(super) fn steps(&self) -> u32 {
        self.reach().div_ceil(2)
    }

    /// The number of strips of a pair. The last pair may have only one.
    pub(super) fn paired(&self, s: u32) -> u32 {
        (self.reach() - 2 * s).min(2)
    }

    /// Whether a unit has weights in at most one strip of a pair. This is the case where the taps reach over fewer
    /// elements than there are between the unit's last element of one strip and its first of the other.
    fn has_one_of_pair(&self) -> bool {
        let span = (self.tile.taps.max(1) - 1) * self.tile.tap_step.unsigned_abs();
        self.group == 1 && span + 1 < CHUNK
    }

    /// The number of loads of two weights for a line of taps, and the first and last strip that a load is for.
    pub(super) fn weight_loads(&self) -> u32 {
        if self.has_one_of_pair() { self.steps() } else { self.reach() }
    }

    pub(super) fn strips_of_load(&self, load: u32) -> (u32, u32) {
        if self.has_one_of_pair() {
            (2 * load, 2 * load + self.paired(load) - 1)
        } else {
            (load, load)
        }
    }

    /// The distance in strips from one tile to the next.
    pub(super) fn stride(&self) -> u32 {
        self.tile.step as u32
    }

    /// Whether weights are held in registers for a whole walk.
    pub(super) fn is_held(&self) -> bool {
        self.height.taps * self.steps() <= MOST_HELD
    }

    pub(super) fn held_lines(&self) -> u32 {
        if self.is_held() { self.height.taps } else { 1 }
    }

    /// The number of lines of pixels that a walk reads.
    pub(super) fn walk_lines(&self) -> u32 {
        self.height.pixels().1
    }

    /// The last line of pixels of a walk that line `j` of windows reads.
    pub(super) fn last_line(&self, j: u32) -> u32 {
        self.height.pixel(j, 0).max(self.height.pixel(j, self.height.taps - 1))
    }

    /// The distance in lines of pixels from the start of one half to that of the other.
    pub(super) fn half_step(&self) -> u32 {
        if self.is_split() { self.height.rows * self.height.step as u32 } else { 0 }
    }

    /// The number of lines of pixels in shared memory, and the number of strips of each line.
    pub(super) fn pixel_lines(&self) -> u32 {
        self.half_step() + self.walk_lines()
    }

    pub(super) fn pitch(&self) -> u32 {
        (self.tiles() - 1) * self.stride() + self.reach()
    }

    /// The number of strips of a tile's results.
    pub(super) fn parts(&self) -> u32 {
        if self.late { 2 } else { 1 }
    }

    /// The line in shared memory where line `j` of windows of a half is stored: in the place of pixels that are no
    /// longer needed, or, for unfinished sums, which are wider, after all pixels.
    pub(super) fn result_line(&self, half: u32, j: u32) -> u32 {
        let line = half * self.height.rows + j;
        match (self.late, half) {
            (true, _) => line,
            (false, 0) => j,
            (false, _) => self.half_step() + self.last_line(j),
        }
    }

    pub(super) fn result_pitch(&self) -> u32 {
        if self.late { self.tiles() * self.parts() } else { self.pitch() }
    }

    pub(super) fn result_first(&self) -> u32 {
        if self.late { self.pixel_lines() * self.pitch() } else { 0 }
    }

    /// The distance in strips from one group to the next.
    pub(super) fn group_step(&self) -> u32 {
        let laid = if self.late { self.lines() * self.result_pitch() } else { 0 };
        self.pixel_lines() * self.pitch() + laid
    }

    /// The distance in strips from one chunk to the next. It includes padding, so that the chunks of a pixel do not
    /// share banks.
    pub(super) fn chunk_step(&self) -> u32 {
        let strips = self.wide() * self.group_step();
        let wanted = 8 / self.chunks.min(8);
        strips + (wanted + 8 - strips % 8) % 8
    }

    /// The number of strips in shared memory. One is added, because a unit may address the missing second strip of the
    /// last pair.
    pub(super) fn shared(&self) -> u32 {
        self.chunks * self.chunk_step() + 1
    }

    /// The number of strips (of all groups of a chunk) that are staged, and the number of tiles of results to store.
    pub(super) fn staged(&self) -> u32 {
        self.pixel_lines() * self.pitch() * self.chunks
    }

    pub(super) fn result_tiles(&self) -> u32 {
        self.lines() * self.tiles() * self.chunks
    }

    /// The number of strips or tiles that a unit handles at once, 8 pixels together.
    pub(super) fn ahead(&self) -> u32 {
        CHUNK / self.wide()
    }

    /// The number of vectors in a group.
    pub(super) fn vectors(&self) -> u32 {
        (self.group / self.lanes).max(1)
    }
}

/// The number of windows of a walk of `lines` lines, for groups of `group` channels.
pub(super) fn walk_windows(group: u32, lines: u32) -> u32 {
    HALVES * TILES * (CHUNK / group) * lines
}

#[cfg(test)]
mod tests {
    use windowpane_geometry::{DType, Extents, Filter, FilterLayout, Layout, Shape, Window};

    use super::super::config::supports;
    use super::*;

    fn forms(
        group: usize,
        kernel: [usize; 2],
        stride: [usize; 2],
        dilation: [usize; 2],
    ) -> Vec<Form> {
        let shape = Shape::new(1, 32, Extents::from([40, 40])).unwrap();
        let filter = Filter::new(32, group, Extents::from(kernel)).unwrap();
        let window = Window::new(kernel).stride(stride).dilation(dilation).padding([1, 2]);
        let (last, fhwc) = (Layout::ChannelsLast, FilterLayout::Fhwc);
        let conv = Convolution::new(shape, filter, &window, 32 / group, last, fhwc).unwrap();
        let tile = Tile {
            block_m: 2 * walk_windows(group as u32, 7),
            block_n: 32,
            block_k: 16,
            ratio_m: 7,
            ratio_n: 2,
            elems_per_thread: 8,
            stages: 1,
        };
        let passes = [Pass::Forward, Pass::Data];
        let passes = passes.into_iter().filter(|pass| supports(&conv, *pass, DType::F16).is_ok());
        let form = |pass, gather| Form::new(&conv, pass, &gather, &tile, &Epilogue::NONE);
        passes
            .flat_map(|pass| Gather::all(&conv, pass).map(move |gather| form(pass, gather)))
            .flat_map(|form| [form, Form { late: true, ..form }])
            .collect()
    }

    /// An image of one pixel along the width that, with stride 2, is in no window: its gradient has no taps.
    #[test]
    fn coordinates_in_no_window_are_for_others() {
        let shape = Shape::new(1, 32, Extents::from([5, 1])).unwrap();
        let filter = Filter::new(32, 4, Extents::from([3, 1])).unwrap();
        let window = Window::new([3, 1]).stride([1, 2]).padding([1, 1]);
        let (last, fhwc) = (Layout::ChannelsLast, FilterLayout::Fhwc);
        let conv = Convolution::new(shape, filter, &window, 8, last, fhwc).unwrap();
        let supports = |pass| supports(&conv, pass, DType::F16).is_ok();
        assert!(supports(Pass::Forward) && !supports(Pass::Data));
    }

    fn all_forms() -> Vec<Form> {
        let windows = [
            ([3, 3], [1, 1], [1, 1]),
            ([7, 7], [1, 1], [1, 1]),
            ([5, 2], [2, 3], [1, 2]),
            ([1, 1], [1, 1], [1, 1]),
            ([2, 4], [1, 1], [3, 2]),
            ([9, 3], [1, 1], [1, 4]),
        ];
        let forms: Vec<_> = windows
            .into_iter()
            .flat_map(|(kernel, stride, dilation)| {
                [1, 2, 4, 8].into_iter().flat_map(move |g| forms(g, kernel, stride, dilation))
            })
            .collect();
        assert_eq!(forms.len(), 88);
        assert!(
            forms.iter().any(|form| !form.is_held()) && forms.iter().any(|form| form.is_held())
        );
        forms
    }

    /// The first line of windows, and the first line of pixels, of each half of a walk.
    fn halves(form: &Form) -> impl Iterator<Item = (u32, u32)> {
        let halves = if form.is_split() { HALVES } else { 1 };
        let (rows, step) = (form.height.rows, form.half_step());
        (0..halves).map(move |half| (half * rows, half * step))
    }

    /// The pixels that a window reads at every tap are among the strips and lines that its tile's walk loads.
    #[test]
    fn walks_read_every_tap() {
        for form in all_forms() {
            let lines = Run { rows: form.lines(), ..form.height };
            for (first, start) in halves(&form) {
                for (j, th) in
                    (0..form.height.rows).flat_map(|j| (0..form.height.taps).map(move |th| (j, th)))
                {
                    let line = form.height.pixel(j, th);
                    assert_eq!(start + line, lines.pixel(first + j, th), "{form:?}");
                    assert!(line <= form.last_line(j) && line < form.walk_lines(), "{form:?}");
                    assert!(start + line < form.pixel_lines(), "{form:?}");
                }
            }
            for (window, tap) in
                (0..form.wide()).flat_map(|i| (0..form.tile.taps).map(move |tap| (i, tap)))
            {
                let strip = form.tile.pixel(window, tap) / form.wide();
                assert!(strip < form.reach() && strip / 2 < form.steps(), "{form:?}");
                assert!(strip % 2 < form.paired(strip / 2), "{form:?}");
            }
            assert_eq!((form.tiles() - 1) * form.stride() + form.reach(), form.pitch());
            assert!(form.pixel_lines() * form.pitch() <= form.group_step(), "{form:?}");
            assert_eq!(form.chunk_step() % 8, 2, "{form:?}");
            assert!(form.ahead() * form.wide() <= u32::BITS, "{form:?}");
        }
    }

    /// No unit has weights in two strips of the same load, and each strip has exactly one load.
    #[test]
    fn loads_of_weights_are_for_one_strip_each() {
        let all = all_forms();
        assert!(all.iter().any(Form::has_one_of_pair));
        assert!(all.iter().any(|form| form.group == 1 && !form.has_one_of_pair()));
        for form in all {
            let loads = || (0..form.weight_loads()).map(|load| form.strips_of_load(load));
            let strips: Vec<_> = loads().flat_map(|(first, last)| first..=last).collect();
            assert_eq!(strips, (0..form.reach()).collect::<Vec<_>>(), "{form:?}");
            // The pixels that each window of the tile reads; from them follow the elements for which a unit has
            // weights.
            let elements: Vec<_> = (0..form.wide())
                .map(|i| (0..form.tile.taps).map(|tap| form.tile.pixel(i, tap)).collect::<Vec<_>>())
                .collect();
            for (quad, taps) in (0..4).flat_map(|quad| elements.iter().map(move |e| (quad, e))) {
                let is_read = |strip: u32| {
                    let at = (strip * CHUNK + 2 * quad) / form.group;
                    let next = (strip * CHUNK + 2 * quad + 1) / form.group;
                    taps.contains(&at) || taps.contains(&next)
                };
                for (first, last) in loads() {
                    assert!((first..=last).filter(|strip| is_read(*strip)).count() < 2, "{form:?}");
                }
            }
        }
    }

    /// Results are stored where no later line of a walk reads, and no other result is stored.
    #[test]
    fn results_take_the_place_of_pixels_that_are_read() {
        for form in all_forms() {
            let mut taken = vec![];
            for (half, (first, _)) in halves(&form).enumerate() {
                for j in 0..form.height.rows {
                    let laid = form.result_line(half as u32, j);
                    assert!(!taken.contains(&laid), "{form:?}");
                    taken.push(laid);
                    let end = form.result_first() + (laid + 1) * form.result_pitch();
                    assert!(end <= form.group_step(), "{form:?}");
                    if form.late {
                        assert_eq!(laid, first + j, "{form:?}");
                        continue;
                    }
                    // The same expression as in `read_piece`.
                    let moved = (first + j) * form.height.step as u32 + form.last_line(0);
                    assert_eq!(laid, if first == 0 { j } else { moved }, "{form:?}");
                    for later in form.last_line(j) + 1..form.walk_lines() {
                        let read = halves(&form).any(|(_, start)| start + later == laid);
                        assert!(!read, "{form:?}: {laid} is read after {j}");
                    }
                }
            }
            // Results do not overwrite tiles of the same line that a later walk reads.
            assert!(form.walk_tiles() <= form.walk_tiles() * form.stride(), "{form:?}");
        }
    }
}
