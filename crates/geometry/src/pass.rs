use core::fmt;

/// What of a convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The output.
    Forward,
    /// The gradient with respect to the input.
    Data,
    /// The gradient with respect to the filters.
    Filter,
    /// The gradient with respect to the bias.
    Bias,
}

impl Pass {
    /// What is computed, in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "convolution",
            Self::Data => "convolution's data gradient",
            Self::Filter => "convolution's filter gradient",
            Self::Bias => "convolution's bias gradient",
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
