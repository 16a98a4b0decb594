//! Reads any text as a table of tuned plans: the result is an error that names a line, or a table that is the
//! same after printing and reading it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use windowpane::Tuned;

fuzz_target!(|text: &str| match text.parse::<Tuned>() {
    Ok(tuned) => assert_eq!(tuned.to_string().parse(), Ok(tuned)),
    Err(error) => assert!(error.to_string().starts_with("line ")),
});
