//! Tests of the test suite itself: cases that execute nothing do not count.

use std::cell::{Cell, RefCell};

use proptest::prelude::*;
use windowpane::{Backend, DType, Device};
use windowpane_testing::{Demand, executed, proptest, run_cases};

/// Cases that no kernel executes are redrawn, and the share of a kernel without cases goes to the others.
#[test]
fn cases_that_run_nothing_are_drawn_again() {
    let (runs, drawn) = (Cell::new(0u32), Cell::new(0u32));
    let kernels = ["odd", "none"];
    run_cases(
        "suite",
        Backend::Host,
        Demand::Any,
        |_| kernels.to_vec(),
        || 0..1000u32,
        |_, kernel, case| {
            drawn.set(drawn.get() + 1);
            if kernel == "odd" && case % 2 == 1 {
                executed(kernel, DType::F32);
                runs.set(runs.get() + 1);
            }
            Ok(())
        },
    );
    let cases = std::env::var("WINDOWPANE_CASES").map_or(32, |cases| cases.parse().unwrap());
    assert_eq!(runs.get(), cases);
    assert!(drawn.get() > cases);
}

/// A property fails if its kernels execute none of its cases.
#[test]
#[should_panic(expected = "cases were executed")]
fn properties_that_run_nothing_fail() {
    run_cases("suite", Backend::Host, Demand::Any, |_| vec![()], || 0..1000u32, |_, (), _| Ok(()));
}

/// A property that is about every kernel of a list fails if one of them executes no case, whatever the others do.
#[test]
#[should_panic(expected = "\"none\" executed no case")]
fn kernels_that_run_nothing_fail() {
    let kernels = |_: &Device| vec!["odd", "none"];
    run_cases(
        "suite",
        Backend::Host,
        Demand::Every,
        kernels,
        || 0..1000u32,
        |_, kernel, case| {
            if kernel == "odd" && case % 2 == 1 {
                executed(kernel, DType::F32);
            }
            Ok(())
        },
    );
}

/// Within a run, draws depend on the seed and the property, not on earlier draws.
#[test]
fn a_seed_draws_the_same() {
    let draw = |property: &str| {
        let drawn = RefCell::new(Vec::new());
        run_cases(
            property,
            Backend::Host,
            Demand::Any,
            |_| vec![()],
            any::<u64>,
            |_, (), case| {
                executed("none", DType::F32);
                drawn.borrow_mut().push(case);
                Ok(())
            },
        );
        drawn.into_inner()
    };
    let first = draw("suite");
    assert_ne!(first, draw("another"));
    assert_eq!(first, draw("suite"));
}

/// A failure names the seed that draws its case again.
#[test]
#[should_panic(expected = "WINDOWPANE_SEED=")]
fn failures_say_their_seed() {
    let fails = |_: &Device, (), _| Err(TestCaseError::fail("it is wrong"));
    run_cases("suite", Backend::Host, Demand::Any, |_| vec![()], || 0..1000u32, fails);
}
