use core::fmt;

/// What may be done with the tensors of a convolution before a kernel computes with them, besides a change of their layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Pixels that windows of one tap skip are removed first, or inserted as zeros at the end
    /// ([`sampled`](crate::Convolution::sampled)).
    Sampled,
    /// Filters that are read are transposed first, so that their channels are contiguous and not their taps.
    FiltersLast,
    /// Blocks of pixels, which a window moves by in one step, become one pixel each
    /// ([`space_to_depth`](crate::Convolution::space_to_depth)).
    SpaceToDepth,
}

impl Change {
    /// Every change.
    pub const ALL: [Self; 3] = [Self::Sampled, Self::FiltersLast, Self::SpaceToDepth];

    /// The name in plans and in files of tuned choices.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sampled => "sampled",
            Self::FiltersLast => "filters-last",
            Self::SpaceToDepth => "space-to-depth",
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
