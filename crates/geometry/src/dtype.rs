use core::fmt;
use core::str::FromStr;

/// The type of a tensor's elements.
///
/// `bool` is stored in one byte, 0 or 1. It is an integer type: its maximum is the logical or, and its minimum the and.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum DType {
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    U32,
    I16,
    U16,
    I8,
    U8,
    Bool,
}

impl DType {
    /// Every type: floats, then integers, each the widest first.
    pub const ALL: [Self; 12] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::I64,
        Self::I32,
        Self::U32,
        Self::I16,
        Self::U16,
        Self::I8,
        Self::U8,
        Self::Bool,
    ];

    /// The bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::BF16)
    }

    /// The least and the greatest number of an integer type; `None` for a float.
    pub fn integers(self) -> Option<(i64, i64)> {
        match self {
            Self::I64 => Some((i64::MIN, i64::MAX)),
            Self::I32 => Some((i32::MIN.into(), i32::MAX.into())),
            Self::U32 => Some((0, u32::MAX.into())),
            Self::I16 => Some((i16::MIN.into(), i16::MAX.into())),
            Self::U16 => Some((0, u16::MAX.into())),
            Self::I8 => Some((i8::MIN.into(), i8::MAX.into())),
            Self::U8 => Some((0, u8::MAX.into())),
            Self::Bool => Some((0, 1)),
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
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I16 => "i16",
            Self::U16 => "u16",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::Bool => "bool",
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
        f.write_str("unknown element type; use one of ")?;
        let mut separator = "";
        DType::ALL
            .into_iter()
            .try_for_each(|dtype| write!(f, "{}{dtype}", core::mem::replace(&mut separator, ", ")))
    }
}

impl core::error::Error for UnknownDType {}

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<Self, UnknownDType> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or(UnknownDType)
    }
}
