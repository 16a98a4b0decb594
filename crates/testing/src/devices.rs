use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt::{Debug, Display};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io::Write;
use std::sync::{Mutex, OnceLock};

use proptest::strategy::Strategy;
use proptest::test_runner::{
    Config, FileFailurePersistence, RngSeed, TestCaseError, TestError, TestRunner,
};
use windowpane::{Backend, DType, Device};

/// The outcome of asking for a device by its backend.
pub enum Named {
    /// The device.
    Found(Device),
    /// The reason why there is none, where none is required.
    Skipped(String),
}

/// Device 0 of a backend, opened once per process.
///
/// # Panics If `WINDOWPANE_REQUIRE` lists the backend and it is not there.
pub fn named_device(backend: Backend) -> Named {
    static OPEN: Mutex<Option<HashMap<Backend, Result<Device, String>>>> = Mutex::new(None);
    // A poisoned map is still consistent: an entry exists or it does not.
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

/// The environment variables for the number of cases, for their seed, and for the table.
const CASES: &str = "WINDOWPANE_CASES";
const SEED: &str = "WINDOWPANE_SEED";
const TABLE: &str = "WINDOWPANE_TABLE";

/// The default number of cases of a property on a device.
const USUAL_CASES: u32 = 32;

/// The most draws per case of a kernel, and the smallest number of cases for which draws are allowed: special kernels
/// apply to few problems.
const DRAWS: u32 = 30;
const FEWEST_CASES: u32 = 4;

/// The most draws per case where every kernel has to execute cases.
const DRAWS_OF_EVERY: u32 = 500;

/// How often the share of a kernel that applies to too few problems is given to the others.
const ROUNDS: usize = 3;

thread_local! {
    /// The cases that the property on this thread has executed, by kernel and type.
    static EXECUTED: RefCell<BTreeMap<String, u32>> = const { RefCell::new(BTreeMap::new()) };
}

/// Counts a case as executed: by this kernel, in this type. A case that executes nothing is drawn again.
pub fn executed(kernel: impl Display, dtype: DType) {
    let cell = format!("{kernel} {dtype}");
    EXECUTED.with_borrow_mut(|cells| *cells.entry(cell).or_default() += 1);
}

/// Which kernels of a list have to execute cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Any: together at least half of the cases.
    Any,
    /// Every one. Each has two cases at least, and many draws for them.
    Every,
}

/// Draws cases and runs a property on each, on device 0 of a backend, with an equal share for each kernel. If there
/// is no kernel the property is skipped.
///
/// # Panics
/// If a case fails, if fewer than half of the cases were executed, or if a kernel that has to execute cases executed
/// none.
pub fn run_cases<K: Copy + Debug, S: Strategy>(
    property: &str,
    backend: Backend,
    demand: Demand,
    kernels: impl Fn(&Device) -> Vec<K>,
    strategy: impl Fn() -> S,
    check: impl Fn(&Device, K, S::Value) -> Result<(), TestCaseError>,
) {
    let device = match named_device(backend) {
        Named::Found(device) => device,
        Named::Skipped(reason) => return eprintln!("skipped {backend}: {reason}"),
    };
    let kernels = kernels(&device);
    if kernels.is_empty() {
        return eprintln!("skipped {backend}: it has no kernel that {property} is about");
    }
    let cases = number(CASES).unwrap_or(USUAL_CASES);
    let (least, draws) = match demand {
        Demand::Any => (0, DRAWS),
        Demand::Every => (2, DRAWS_OF_EVERY),
    };
    EXECUTED.take();
    let (mut done, mut kernels) = (0, kernels);
    // If a kernel applies to too few problems, the others take its share.
    for round in 0..ROUNDS {
        let share = cases.saturating_sub(done).div_ceil(kernels.len().max(1) as u32);
        if share == 0 {
            break;
        }
        let share = share.max(least);
        kernels.retain(|kernel| {
            let seed = seed_of(property, backend, &(round, kernel));
            let check = |case| check(&device, *kernel, case);
            let drawn = draw(share, draws, seed, &strategy(), check).unwrap_or_else(|failure| {
                let (seed, name) = (self::seed(), device.name());
                panic!("{property} by {kernel:?} on {device} ({name}), {SEED}={seed}: {failure}")
            });
            assert!(
                drawn > 0 || demand == Demand::Any,
                "{property} on {device}, {SEED}={}: {kernel:?} executed no case",
                self::seed()
            );
            done += drawn;
            drawn == share
        });
    }
    let executed = EXECUTED.take();
    if std::env::var_os(TABLE).is_some() {
        let cells = executed.iter().map(|(cell, n)| format!("{cell} {n}"));
        let line = format!(
            "{property} on {backend}: {done} cases; {}\n",
            cells.collect::<Vec<_>>().join(", ")
        );
        // Written directly, because the harness hides what passing tests print.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    assert!(
        done >= cases.div_ceil(2),
        "{property} on {device}, {SEED}={}: only {done} of {cases} cases were executed: {executed:?}",
        seed()
    );
}

/// Draws until `cases` were executed or too many were rejected; returns how many were executed.
fn draw<S: Strategy>(
    cases: u32,
    draws: u32,
    seed: u64,
    strategy: &S,
    check: impl Fn(S::Value) -> Result<(), TestCaseError>,
) -> Result<u32, TestError<S::Value>> {
    let config = Config {
        cases,
        max_global_rejects: cases.max(FEWEST_CASES) * draws,
        rng_seed: RngSeed::Fixed(seed),
        // Failures are printed as cases to paste; a file is of no use next to a test binary that was copied elsewhere.
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        max_shrink_iters: 2000,
        ..Config::default()
    };
    let passed = Cell::new(0);
    let count = || EXECUTED.with_borrow(|cells| cells.values().sum::<u32>());
    let result = TestRunner::new(config).run(strategy, |case| {
        let before = count();
        check(case)?;
        if count() == before {
            return Err(TestCaseError::reject("no kernel ran"));
        }
        passed.set(passed.get() + 1);
        Ok(())
    });
    match result {
        // The caller counts what was executed.
        Ok(()) | Err(TestError::Abort(_)) => Ok(passed.get()),
        Err(failure) => Err(failure),
    }
}

/// The seed of this run: the variable's, or a random one.
fn seed() -> u64 {
    static ANY: OnceLock<u64> = OnceLock::new();
    *ANY.get_or_init(|| {
        number(SEED).unwrap_or_else(|| RandomState::new().build_hasher().finish() >> 32)
    })
}

/// The seed of a kernel's share of a property, independent of the other tests.
fn seed_of(property: &str, backend: Backend, kernel: &impl Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed(), property, backend.name(), format!("{kernel:?}")).hash(&mut hasher);
    hasher.finish()
}

/// The number in a variable, if it is set.
fn number<T: std::str::FromStr>(variable: &str) -> Option<T> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is `{text}`; make it a number")))
}
