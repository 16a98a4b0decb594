use core::fmt;

/// A pass of a convolution: forward, or one of its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The output.
    Forward,
    /// The data gradient: with respect to the input.
    Data,
    /// The weight gradient: with respect to the filters.
    Weight,
    /// The bias gradient: with respect to the bias.
    Bias,
}

impl Pass {
    /// The name of the pass.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "convolution",
            Self::Data => "convolution's data gradient",
            Self::Weight => "convolution's weight gradient",
            Self::Bias => "convolution's bias gradient",
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
