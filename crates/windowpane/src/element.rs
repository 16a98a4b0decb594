use core::{fmt, ops::Deref};
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
    use std::sync::Arc;

    use super::HostBuffer;

    pub trait Sealed: Sized {
        /// What files and devices hold in place of elements: any bits are one.
        type Stored: bytemuck::Pod;

        fn from_stored(stored: Vec<Self::Stored>) -> Vec<Self>;
        fn into_host(values: Vec<Self>) -> HostBuffer;
        fn lent(owner: Arc<dyn AsRef<[Self]> + Send + Sync>) -> HostBuffer;
        fn from_host(buffer: &HostBuffer) -> Option<&[Self]>;
    }
}

/// Elements in the memory of the host, which clones share.
#[allow(unreachable_pub, reason = "the sealed half of a public trait names it")]
#[derive(Clone)]
pub enum Elements<T> {
    Own(Arc<Vec<T>>),
    /// Those that someone else keeps, and their number.
    Lent(Arc<dyn AsRef<[T]> + Send + Sync>, usize),
}

impl<T> Deref for Elements<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Own(elements) => elements,
            Self::Lent(owner, count) => {
                let elements = (**owner).as_ref();
                assert_eq!(elements.len(), *count, "an owner of elements has changed their number");
                elements
            }
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Elements<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&**self).finish()
    }
}

impl<T: Copy> Elements<T> {
    /// Replaces the elements with as many others, in the same memory unless it is shared.
    fn copy_from(&mut self, source: &[T]) {
        match self {
            Self::Own(elements) => Arc::make_mut(elements).copy_from_slice(source),
            Self::Lent(..) => *self = Self::Own(Arc::new(source.to_vec())),
        }
    }
}

/// The elements of a tensor on `host`.
#[derive(Clone, Debug)]
#[allow(unreachable_pub, reason = "the sealed half of a public trait names it")]
pub enum HostBuffer {
    F64(Elements<f64>),
    F32(Elements<f32>),
    F16(Elements<f16>),
    BF16(Elements<bf16>),
    I64(Elements<i64>),
    I32(Elements<i32>),
    U32(Elements<u32>),
    I16(Elements<i16>),
    U16(Elements<u16>),
    I8(Elements<i8>),
    U8(Elements<u8>),
    Bool(Elements<bool>),
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
                    HostBuffer::$variant(Elements::Own(Arc::new(values)))
                }

                fn lent(owner: Arc<dyn AsRef<[Self]> + Send + Sync>) -> HostBuffer {
                    let count = (*owner).as_ref().len();
                    HostBuffer::$variant(Elements::Lent(owner, count))
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
                        target.copy_from(source);
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
