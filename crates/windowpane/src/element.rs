use std::sync::Arc;

use half::{bf16, f16};
use windowpane_geometry::DType;

/// A type of tensor elements.
///
/// Sealed: the types are those of [`DType`].
pub trait Element:
    sealed::Sealed + windowpane_reference::Scalar + bytemuck::NoUninit + bytemuck::CheckedBitPattern
{
    /// The type's name at run time.
    const DTYPE: DType;
}

pub(crate) mod sealed {
    use super::HostBuffer;

    pub trait Sealed: Sized {
        /// What files and devices hold in place of elements: any bits are one.
        type Stored: bytemuck::Pod;

        fn from_stored(stored: Vec<Self::Stored>) -> Vec<Self>;
        fn into_host(values: Vec<Self>) -> HostBuffer;
        fn from_host(buffer: &HostBuffer) -> Option<&[Self]>;
    }
}

/// The elements of a tensor on `host`.
#[derive(Clone, Debug)]
#[allow(unreachable_pub, reason = "the sealed half of a public trait names it")]
pub enum HostBuffer {
    F64(Arc<Vec<f64>>),
    F32(Arc<Vec<f32>>),
    F16(Arc<Vec<f16>>),
    BF16(Arc<Vec<bf16>>),
    I64(Arc<Vec<i64>>),
    I32(Arc<Vec<i32>>),
    U32(Arc<Vec<u32>>),
    I16(Arc<Vec<i16>>),
    U16(Arc<Vec<u16>>),
    I8(Arc<Vec<i8>>),
    U8(Arc<Vec<u8>>),
    Bool(Arc<Vec<bool>>),
}

macro_rules! elements {
    ($($type:ty => $variant:ident of $stored:ty, $from_stored:expr;)*) => {
        $(
            impl Element for $type {
                const DTYPE: DType = DType::$variant;
            }

            impl sealed::Sealed for $type {
                type Stored = $stored;

                fn from_stored(stored: Vec<$stored>) -> Vec<Self> {
                    $from_stored(stored)
                }

                fn into_host(values: Vec<Self>) -> HostBuffer {
                    HostBuffer::$variant(Arc::new(values))
                }

                fn from_host(buffer: &HostBuffer) -> Option<&[Self]> {
                    match buffer {
                        HostBuffer::$variant(values) => Some(values),
                        _ => None,
                    }
                }
            }
        )*

        impl HostBuffer {
            pub(crate) fn dtype(&self) -> DType {
                match self {
                    $(Self::$variant(_) => DType::$variant,)*
                }
            }

            pub(crate) fn bytes(&self) -> &[u8] {
                match self {
                    $(Self::$variant(values) => bytemuck::cast_slice(values),)*
                }
            }

            /// Replaces the elements with as many others, in the same memory unless it is shared.
            pub(crate) fn copy_from(&mut self, source: &Self) {
                match (self, source) {
                    $((Self::$variant(target), Self::$variant(source)) => {
                        Arc::make_mut(target).copy_from_slice(source);
                    })*
                    _ => unreachable!("the caller compares the types"),
                }
            }

            /// Interprets bytes as elements.
            #[cfg(feature = "kernels")]
            pub(crate) fn from_bytes(dtype: DType, bytes: &[u8]) -> Self {
                match dtype {
                    $(DType::$variant => <$type as sealed::Sealed>::into_host(elements_of(bytes)),)*
                    other => unreachable!("{other} has no host type"),
                }
            }
        }
    };
    ($($type:ty => $variant:ident),*) => {
        elements! {
            $($type => $variant of $type, core::convert::identity;)*
            bool => Bool of u8, |bytes: Vec<u8>| bytes.into_iter().map(|byte| byte != 0).collect();
        }
    };
}

elements!(
    f64 => F64, f32 => F32, f16 => F16, bf16 => BF16,
    i64 => I64, i32 => I32, u32 => U32, i16 => I16, u16 => U16, i8 => I8, u8 => U8
);

/// The elements that these bytes hold.
pub(crate) fn elements_of<T: Element>(bytes: &[u8]) -> Vec<T> {
    T::from_stored(bytemuck::pod_collect_to_vec(bytes))
}

/// Runs a block with `$T` standing for the Rust type of a [`DType`].
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        windowpane_reference::with_element!($dtype, $T => $body, other => {
            unreachable!("{other} has no host type")
        })
    };
}
pub(crate) use with_element;

/// The same for the types that convolutions have; a plan refuses others.
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::element::with_float!(@arms $dtype, $T, $body, [
            F64 f64, F32 f32, F16 half::f16, BF16 half::bf16
        ])
    };
    (@arms $dtype:expr, $T:ident, $body:expr, [$($variant:ident $type:ty),*]) => {
        match $dtype {
            $(windowpane_geometry::DType::$variant => {
                type $T = $type;
                $body
            })*
            other => unreachable!("a plan of {other} is refused"),
        }
    };
}
pub(crate) use with_float;
