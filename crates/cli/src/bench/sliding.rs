//! The fields that all cases with a sliding window share.

use serde::Deserialize;
use windowpane::{Element, Extents, Layout, Padding, Rounding, Same, Tensor, Window};

use crate::failure::Failure;

/// The input and the window that slides over it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Sliding {
    pub(super) n: usize,
    pub(super) c: usize,
    pub(super) size: Vec<usize>,
    #[serde(default)]
    pub(super) k: Vec<usize>,
    #[serde(default)]
    pub(super) s: Vec<usize>,
    #[serde(default)]
    pub(super) p: Vec<Sides>,
    #[serde(default)]
    pub(super) d: Vec<usize>,
    /// The padding that keeps the extents, in place of `p`: `upper` or `lower`.
    #[serde(default)]
    pub(super) same: Option<String>,
    /// The number of windows on each axis, in place of `k`, `s`, `p` and `d`.
    #[serde(default)]
    pub(super) adaptive: Option<Vec<usize>>,
    #[serde(default)]
    pub(super) ceil: bool,
}

/// The padding of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum Sides {
    /// As much before as after.
    Both(usize),
    /// Before and after.
    Each([usize; 2]),
}

/// The numbers of a field, one per axis.
pub(super) fn extents(name: &str, numbers: &[usize]) -> Result<Extents, Failure> {
    Extents::try_from(numbers).map_err(|error| Failure::Failed(format!("`{name}`: {error}")))
}

/// The padding that a field `p` gives.
pub(super) fn padding(p: &[Sides]) -> Result<Padding, Failure> {
    let side = |i: usize| -> Vec<usize> {
        let of = |sides: &Sides| match sides {
            Sides::Both(both) => *both,
            Sides::Each(sides) => sides[i],
        };
        p.iter().map(of).collect()
    };
    Ok(Padding::Explicit { before: extents("p", &side(0))?, after: extents("p", &side(1))? })
}

impl Sliding {
    pub(super) fn window(&self) -> Result<Window, Failure> {
        let instead = |of: &str, unused: &[(&str, bool)]| match unused.iter().find(|it| it.1) {
            Some((field, _)) => Err(Failure::Failed(format!(
                "the case has `{of}` and `{field}`; leave one of the two out"
            ))),
            None => Ok(()),
        };
        let set = [("k", &self.k), ("s", &self.s), ("d", &self.d)];
        let set = set.map(|(field, numbers)| (field, !numbers.is_empty()));
        let padded = [("p", !self.p.is_empty())];
        let rounding = if self.ceil { Rounding::Ceil } else { Rounding::Floor };
        if let Some(outputs) = &self.adaptive {
            instead("adaptive", &set)?;
            instead("adaptive", &[padded[0], ("same", self.same.is_some())])?;
            return Ok(Window::adaptive(extents("adaptive", outputs)?).rounding(rounding));
        }
        let padding = match self.same.as_deref() {
            None => padding(&self.p)?,
            Some(same) => {
                instead("same", &padded)?;
                Padding::Same(if same == "lower" { Same::Lower } else { Same::Upper })
            }
        };
        Ok(Window::new(extents("k", &self.k)?)
            .stride(extents("s", &self.s)?)
            .padding(padding)
            .dilation(extents("d", &self.d)?)
            .rounding(rounding))
    }

    /// The input's dimensions, in memory order.
    pub(super) fn dims(&self, layout: Layout) -> Vec<usize> {
        Self::dims_of(self.n, self.c, &self.size, layout)
    }

    /// The dimensions, in memory order, of a tensor of these extents.
    pub(super) fn dims_of(n: usize, c: usize, size: &[usize], layout: Layout) -> Vec<usize> {
        let (before, after) = match layout {
            Layout::ChannelsLast => (None, Some(c)),
            Layout::ChannelsFirst => (Some(c), None),
        };
        let space = size.iter().copied();
        [n].into_iter().chain(before).chain(space).chain(after).collect()
    }

    /// Halves the first axis that is not already short, and returns whether there was one. The width comes
    /// last, because some kernels and tiles apply only to wide images. Adaptive windows would not be the same windows
    /// of a shorter axis.
    pub(super) fn halve(&mut self) -> bool {
        if self.adaptive.is_some() {
            return false;
        }
        // The window, and as many steps as register tiles and vectors of outputs need.
        let steps = 32;
        let least = |i: usize| self.d[i] * (self.k[i] - 1) + 1 + steps * self.s[i];
        let Some(first) = (0..self.size.len()).find(|i| self.size[*i] > least(*i)) else {
            return false;
        };
        self.size[first] = (self.size[first] / 2).max(least(first));
        true
    }
}

/// Some of the positions below a number, evenly spread, with the first and the last. Not a list: a case may have more
/// samples than memory holds positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    all: usize,
    kept: usize,
}

impl Spread {
    /// At most `most` of the positions below `all`.
    pub(super) fn new(all: usize, most: usize) -> Self {
        Self { all, kept: all.min(most) }
    }

    pub(super) fn len(self) -> usize {
        self.kept
    }

    pub(super) fn positions(self) -> impl Iterator<Item = usize> {
        let Self { all, kept } = self;
        // All positions, or the first and the last and those between them.
        (0..kept).map(move |i| if kept == all { i } else { i * (all - 1) / (kept - 1).max(1) })
    }
}

/// The elements of an array at these positions of an axis.
pub(super) fn select<T: Copy>(array: &[T], dims: &[usize], axis: usize, picks: &[usize]) -> Vec<T> {
    let inner: usize = dims[axis + 1..].iter().product();
    let rows = array.chunks((dims[axis] * inner).max(1));
    rows.flat_map(|row| picks.iter().flat_map(move |i| &row[i * inner..][..inner]))
        .copied()
        .collect()
}

/// The axis of the channels of such an array.
pub(super) fn channel_axis(layout: Layout, dims: &[usize]) -> usize {
    match layout {
        Layout::ChannelsLast => dims.len() - 1,
        Layout::ChannelsFirst => 1,
    }
}

/// The elements of these samples and channels of a tensor.
pub(super) fn planes<T: Element>(
    tensor: &Tensor,
    layout: Layout,
    samples: Spread,
    channels: &[usize],
) -> Result<Vec<T>, Failure> {
    let (elements, mut dims) = (tensor.to_vec::<T>()?, tensor.dims().to_vec());
    let channel = channel_axis(layout, &dims);
    if (samples.len(), channels.len()) == (dims[0], dims[channel]) {
        return Ok(elements);
    }
    let picks: Vec<_> = samples.positions().collect();
    let elements = select(&elements, &dims, 0, &picks);
    dims[0] = samples.len();
    Ok(select(&elements, &dims, channel, channels))
}

#[cfg(test)]
mod tests {
    use windowpane::Device;

    use super::*;

    #[test]
    fn positions_are_spread_from_the_first_to_the_last() {
        let positions = |all, most| Spread::new(all, most).positions().collect::<Vec<_>>();
        assert_eq!(positions(10, 4), [0, 3, 6, 9]);
        assert_eq!(positions(3, 9), [0, 1, 2]);
        assert_eq!(positions(5, 1), [0]);
        assert_eq!(positions(0, 4), [0; 0]);
        assert_eq!(Spread::new(usize::MAX, usize::MAX).len(), usize::MAX);
    }

    #[test]
    fn arrays_are_cut_along_an_axis() {
        let array = [0, 1, 2, 10, 11, 12];
        assert_eq!(select(&array, &[2, 3], 1, &[0, 2]), [0, 2, 10, 12]);
        assert_eq!(select(&array, &[2, 3], 0, &[1]), [10, 11, 12]);
    }

    #[test]
    fn planes_are_of_samples_and_channels() {
        let elements: Vec<i32> = (0..3 * 2 * 4).collect();
        let cut = |dims, layout| {
            let tensor = Tensor::from_slice(&Device::host(), &elements, dims).expect("a tensor");
            planes::<i32>(&tensor, layout, Spread::new(3, 2), &[1]).expect("numbers")
        };
        assert_eq!(cut([3, 2, 4], Layout::ChannelsFirst), [4, 5, 6, 7, 20, 21, 22, 23]);
        assert_eq!(cut([3, 2, 4], Layout::ChannelsLast), [1, 5, 17, 21]);
    }
}
