//! Reads any text as lines of cases, and plans what it finds: an error or a plan, whatever the numbers.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = windowpane_cli::plan_cases(text) {
        assert!(!error.is_empty());
    }
});
