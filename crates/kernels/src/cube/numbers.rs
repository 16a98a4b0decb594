//! Launch arguments from the host's numbers, by name.

/// Converts a number of the host to the type of a kernel's argument. Plans have checked that counts fit in 32 bits.
pub(crate) trait Number<T> {
    fn number(self) -> T;
}

impl<T> Number<T> for T {
    fn number(self) -> T {
        self
    }
}

impl Number<u32> for usize {
    fn number(self) -> u32 {
        self as u32
    }
}

impl Number<i32> for usize {
    fn number(self) -> i32 {
        self as i32
    }
}

impl Number<i32> for i64 {
    fn number(self) -> i32 {
        self as i32
    }
}

/// A struct of launch arguments, whose fields are converted with [`Number`].
macro_rules! numbers {
    ($args:ident { $($name:ident $(: $value:expr)?),* $(,)? }) => {
        $args { $($name: $crate::cube::numbers!(@ $name $($value)?)),* }
    };
    (@ $name:ident) => { $crate::cube::Number::number($name) };
    (@ $name:ident $value:expr) => { $crate::cube::Number::number($value) };
}

pub(crate) use numbers;
