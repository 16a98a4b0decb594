//! Reads any text as lines of cases and plans them: the result is a plan or an error, whatever the numbers.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = windowpane_cli::plan_cases(text) {
        assert!(!error.is_empty());
    }
});
