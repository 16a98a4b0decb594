//! Arguments that a kernel may not have.

use cubecl::prelude::*;

/// An argument that a kernel may not have.
///
/// CubeCL keeps compiled kernels on disk by a hash of their arguments, which does not include the variant of a
/// `ComptimeOption`: a kernel with the first of two such arguments would be taken for one with the second. `is_given` is
/// part of the hash.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Optional<T: CubeType> {
    pub(crate) given: ComptimeOption<T>,
    #[cube(comptime)]
    pub(crate) is_given: bool,
}

/// The launch argument, given or not.
pub(crate) fn optional<T: LaunchArg>(arg: Option<T::RuntimeArg>) -> OptionalLaunch<T> {
    let is_given = arg.is_some();
    OptionalLaunch::new(ComptimeOptionArgs::from(arg), is_given)
}
