//! What every case of a sliding window has.

use serde::Deserialize;
use windowpane::{Extents, Layout, Window};

use crate::failure::Failure;

/// The input and the window that slides over it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Sliding {
    pub(super) n: usize,
    pub(super) c: usize,
    pub(super) size: Vec<usize>,
    pub(super) k: Vec<usize>,
    pub(super) s: Vec<usize>,
    pub(super) p: Vec<usize>,
    pub(super) d: Vec<usize>,
}

impl Sliding {
    pub(super) fn window(&self) -> Result<Window, Failure> {
        let extents = |name: &str, numbers: &[usize]| {
            Extents::try_from(numbers)
                .map_err(|error| Failure::Failed(format!("`{name}`: {error}")))
        };
        Ok(Window::new(extents("k", &self.k)?)
            .stride(extents("s", &self.s)?)
            .padding(extents("p", &self.p)?)
            .dilation(extents("d", &self.d)?))
    }

    /// The input's dimensions, in the order of memory.
    pub(super) fn dims(&self, layout: Layout) -> Vec<usize> {
        let (before, after) = match layout {
            Layout::ChannelsLast => (None, Some(self.c)),
            Layout::ChannelsFirst => (Some(self.c), None),
        };
        let space = self.size.iter().copied();
        [self.n].into_iter().chain(before).chain(space).chain(after).collect()
    }

    /// Halves the first axis that is not short already; whether there was one. The width comes last: there
    /// are kernels and tiles for wide images alone.
    pub(super) fn halve(&mut self) -> bool {
        // The window, and as many steps as strips and vectors of outputs are long.
        let steps = 32;
        let least = |i: usize| self.d[i] * (self.k[i] - 1) + 1 + steps * self.s[i];
        let Some(first) = (0..self.size.len()).find(|i| self.size[*i] > least(*i)) else {
            return false;
        };
        self.size[first] = (self.size[first] / 2).max(least(first));
        true
    }
}
