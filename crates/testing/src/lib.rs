//! Shared by the tests of windowpane: generated inputs, error bounds, and a macro that runs a property on every device.
//!
//! ```text
//! on_every_device! {
//!     fn a_property(device, case in PoolCase::any(), kernel in kernels_of(device)) {
//!         …
//!         executed(plan.algorithm(), dtype);
//!         …
//!     }
//! }
//! ```
//!
//! defines a module `a_property` with one test for each backend. A backend that the build or the machine lacks is
//! reported as skipped, unless it is listed as in `WINDOWPANE_REQUIRE=host,cpu,wgpu`: then its absence is a failure.
//!
//! The cases of a test, 32 or as many as `WINDOWPANE_CASES` says, are shared among the kernels; without `kernel in`
//! there is one share. A case that does not call [`executed`] did not run, and another is drawn in its place; a test
//! that executes fewer than half of its cases fails. With `; every kernel in` in place of `, kernel in` it also fails
//! if one of the kernels executed no case. `WINDOWPANE_SEED` repeats the cases of a failed run, and
//! `WINDOWPANE_TABLE=1` prints how many cases each kernel executed in each type.

mod bounds;
mod conv;
mod data;
mod devices;
mod pool;

pub use bounds::{assert_same, assert_totals, assert_totals_tf32, rounded_sum};
pub use conv::{ConvCase, Role};
pub use data::{Fill, Flavour};
pub use devices::{Demand, Named, executed, named_device, run_cases};
pub use pool::PoolCase;
#[doc(hidden)]
pub use proptest;

/// Calls a check for one of the listed element types: the one that `pick` chooses from those that the device has.
#[macro_export]
macro_rules! on_one_type {
    ($device:expr, $pick:expr, [$($T:ident),*], $check:ident($($argument:expr),*)) => {{
        let types = [$(<$T as windowpane::Element>::DTYPE),*];
        let types: Vec<_> = types.into_iter().filter(|dtype| $device.supports(*dtype)).collect();
        let picked = *$pick.get(&types);
        $crate::on_one_type!(@each picked, [$($T),*], $check, $device, ($($argument),*))
    }};
    (@each $picked:ident, [$($T:ident),*], $check:ident, $device:expr, $arguments:tt) => {{
        $(if $picked == <$T as windowpane::Element>::DTYPE {
            return $crate::on_one_type!(@call $check::<$T>, $device, $arguments).map_err(|error| {
                $crate::proptest::test_runner::TestCaseError::fail(format!("{}: {error}", $picked))
            });
        })*
        unreachable!("{} is one of those listed", $picked)
    }};
    (@call $check:expr, $device:expr, ($($argument:expr),*)) => {
        $check($device, $($argument),*)
    };
}

/// Runs a property on every device: see the documentation of the crate.
#[macro_export]
macro_rules! on_every_device {
    ($(
        $(#[$doc:meta])*
        fn $name:ident(
            $device:ident, $case:ident in $strategy:expr
            $(, $kernel:ident in $kernels:expr)? $(; every $each:ident in $all:expr)?
        ) $body:block
    )*) => {$(
        $(#[$doc])*
        mod $name {
            #[allow(unused_imports, reason = "a property need not name what its strategy does")]
            use super::*;

            #[allow(unused_variables, reason = "not every list of kernels asks the device")]
            fn property(backend: windowpane::Backend) {
                $crate::run_cases(
                    stringify!($name),
                    backend,
                    $crate::on_every_device!(@demand $($each)?),
                    |$device| $crate::on_every_device!(@kernels $($kernels)? $($all)?),
                    || $strategy,
                    |$device, $crate::on_every_device!(@kernel $($kernel)? $($each)?), $case| $body,
                );
            }

            $crate::on_every_device!(@tests
                host Host, cpu Cpu, wgpu Wgpu, vulkan Vulkan, metal Metal, cuda Cuda, hip Hip
            );
        }
    )*};
    (@demand) => { $crate::Demand::Any };
    (@demand $each:ident) => { $crate::Demand::Every };
    (@kernels) => { vec![()] };
    (@kernels $kernels:expr) => { $kernels };
    (@kernel) => { () };
    (@kernel $kernel:ident) => { $kernel };
    (@tests $($test:ident $backend:ident),*) => {$(
        #[test]
        fn $test() {
            property(windowpane::Backend::$backend);
        }
    )*};
}
