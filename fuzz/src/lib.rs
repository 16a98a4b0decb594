//! Helpers that several targets use.

use std::cell::RefCell;
use std::fs;
use std::ops::Range;
use std::path::Path;

use arbitrary::Arbitrary;
use tempfile::TempDir;
use windowpane_geometry::{Error, Extents, Padding, Pooling, Rounding, Same, Window};

/// An input and the windows that slide over it.
#[derive(Arbitrary, Debug)]
pub struct Sliding {
    /// Input, kernel, stride, dilation, padding before and after, of each axis.
    pub axes: Vec<[u8; 6]>,
    pub same: Option<bool>,
    pub ceil: bool,
    /// Whether the kernel's numbers are the output's extents.
    pub adaptive: bool,
}

impl Sliding {
    /// One number of each axis, below a limit.
    pub fn numbers(&self, which: usize, below: u8) -> Vec<usize> {
        self.axes.iter().map(|axis| (axis[which] % below).into()).collect()
    }

    /// The window. All its numbers are below these limits, which are in the order of `axes`; those of the output's
    /// extents are below `outputs`.
    pub fn window(&self, below: [u8; 6], outputs: u8) -> Result<Window, Error> {
        let extents = |i: usize| Extents::try_from(&self.numbers(i, below[i])[..]);
        if self.adaptive {
            return Ok(Window::adaptive(Extents::try_from(&self.numbers(1, outputs)[..])?));
        }
        let padding = match self.same {
            None => Padding::Explicit { before: extents(4)?, after: extents(5)? },
            Some(true) => Same::Upper.into(),
            Some(false) => Same::Lower.into(),
        };
        Ok(Window::new(extents(1)?)
            .stride(extents(2)?)
            .dilation(extents(3)?)
            .padding(padding)
            .rounding(if self.ceil { Rounding::Ceil } else { Rounding::Floor }))
    }
}

/// The numbers inside a window, and how many of its taps are inside or in the padding.
pub struct Taps<T> {
    pub numbers: Vec<T>,
    pub padded: usize,
}

/// The windows of a pooling, in the output's memory order.
pub fn windows<T: Copy>(pooling: &Pooling, x: &[T]) -> Vec<Taps<T>> {
    let (input, output, axes) = (pooling.input(), pooling.output(), pooling.grid().axes());
    let (from, to) = (input.strides(pooling.layout()), output.strides(pooling.layout()));
    let mut found: Vec<Option<Taps<T>>> = (0..output.elements()).map(|_| None).collect();
    for (n, c) in (0..output.batch()).flat_map(|n| (0..output.channels()).map(move |c| (n, c))) {
        for o in positions([0, 1, 2].map(|i| 0..axes[i].output())) {
            let taps = positions([0, 1, 2].map(|i| axes[i].inside(o[i])));
            let numbers = taps.map(|tap| {
                x[from.offset(n, c, [0, 1, 2].map(|i| axes[i].coordinate(o[i], tap[i]) as usize))]
            });
            let padded = (0..3).map(|i| axes[i].padded_taps(o[i])).product();
            found[to.offset(n, c, o)] = Some(Taps { numbers: numbers.collect(), padded });
        }
    }
    found.into_iter().map(|taps| taps.expect("each element has a window")).collect()
}

/// Every position of a box.
pub fn positions([d, h, w]: [Range<usize>; 3]) -> impl Iterator<Item = [usize; 3]> {
    d.flat_map(move |d| {
        let w = w.clone();
        h.clone().flat_map(move |h| w.clone().map(move |w| [d, h, w]))
    })
}

/// Calls `read` with the path of a file that holds `bytes`.
pub fn with_file<T>(bytes: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    thread_local! {
        static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
    }
    FOLDER.with_borrow_mut(|folder| {
        let folder =
            folder.get_or_insert_with(|| tempfile::tempdir().expect("a folder for a file"));
        let path = folder.path().join("input");
        fs::write(&path, bytes).expect("room for a small file");
        read(&path)
    })
}
