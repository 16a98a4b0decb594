use std::collections::HashMap;
use std::sync::Mutex;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};
use windowpane::{Backend, Device};

/// What a test learns when it asks for a device by its backend.
pub enum Named {
    /// The device.
    Found(Device),
    /// Why there is none, which nobody minds.
    Skipped(String),
}

/// Device 0 of a backend, opened once a process.
///
/// # Panics
/// If `WINDOWPANE_REQUIRE` lists the backend and it is not there.
pub fn named_device(backend: Backend) -> Named {
    static OPEN: Mutex<Option<HashMap<Backend, Result<Device, String>>>> = Mutex::new(None);
    // A poisoned map is whole all the same: an entry is there or it is not.
    let mut open = OPEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let device = open
        .get_or_insert_default()
        .entry(backend)
        .or_insert_with(|| Device::new(backend, 0).map_err(|error| error.to_string()))
        .clone();
    drop(open);
    match device {
        Ok(device) => Named::Found(device),
        Err(reason) if required(backend) => {
            panic!("WINDOWPANE_REQUIRE asks for {backend}: {reason}")
        }
        Err(reason) => Named::Skipped(reason),
    }
}

fn required(backend: Backend) -> bool {
    let list = std::env::var("WINDOWPANE_REQUIRE").unwrap_or_default();
    let mut names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.any(|name| {
        name.parse::<Backend>().unwrap_or_else(|error| panic!("WINDOWPANE_REQUIRE: {error}"))
            == backend
    })
}

/// Draws cases and runs a property on each, on device 0 of a backend.
pub fn run_cases<S: Strategy>(
    backend: Backend,
    strategy: S,
    property: impl Fn(&Device, S::Value) -> Result<(), TestCaseError>,
) {
    let device = match named_device(backend) {
        Named::Found(device) => device,
        Named::Skipped(reason) => return eprintln!("skipped {backend}: {reason}"),
    };
    let cases = match std::env::var("WINDOWPANE_CASES") {
        Ok(cases) => cases.parse().expect("WINDOWPANE_CASES is a number"),
        Err(_) => 64,
    };
    let config = Config {
        cases,
        // Failures are told as cases to paste; a file beside a carried test binary helps nobody.
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        max_shrink_iters: 2000,
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&strategy, |case| property(&device, case));
    if let Err(error) = result {
        panic!("on {device} ({}): {error}", device.name());
    }
}
