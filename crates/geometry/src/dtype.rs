use core::fmt;
use core::str::FromStr;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum DType {
    F64,
    F32,
    F16,
    BF16,
    I32,
    I16,
    U16,
    I8,
    U8,
}

impl DType {
    /// Every type, the widest first.
    pub const ALL: [Self; 9] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::I32,
        Self::I16,
        Self::U16,
        Self::I8,
        Self::U8,
    ];

    /// The bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 => 1,
        }
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::BF16)
    }

    /// The least and the greatest number of an integer type; `None` for a float.
    pub fn integers(self) -> Option<(i32, i32)> {
        match self {
            Self::I32 => Some((i32::MIN, i32::MAX)),
            Self::I16 => Some((i16::MIN.into(), i16::MAX.into())),
            Self::U16 => Some((0, u16::MAX.into())),
            Self::I8 => Some((i8::MIN.into(), i8::MAX.into())),
            Self::U8 => Some((0, u8::MAX.into())),
            Self::F64 | Self::F32 | Self::F16 | Self::BF16 => None,
        }
    }

    /// The name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::U16 => "u16",
            Self::I8 => "i8",
            Self::U8 => "u8",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for an unknown type name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownDType;

impl fmt::Display for UnknownDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown element type; use one of f64, f32, f16, bf16, i32, i16, u16, i8, u8")
    }
}

impl core::error::Error for UnknownDType {}

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<Self, UnknownDType> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or(UnknownDType)
    }
}
