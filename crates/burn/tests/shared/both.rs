//! Runs a test with windowpane and without.
//!
//! windowpane is installed for a whole process, so a test runs itself a second time in a process that does not install
//! it, and compares the numbers of the two.

use std::path::PathBuf;
use std::process::Command;

/// Numbers under a name, in the order in which they were computed.
pub(crate) type Numbers = Vec<(String, Vec<f32>)>;

/// Set in the process without windowpane: the file for its numbers.
pub(crate) const PLAIN: &str = "WINDOWPANE_BURN_PLAIN";

/// What `compute` gives with windowpane and without; `None` in the process without it, which only saves its numbers.
pub(crate) fn both(test: &str, compute: impl Fn() -> Numbers) -> Option<[Numbers; 2]> {
    if let Some(file) = std::env::var_os(PLAIN) {
        std::fs::write(file, write(&compute())).expect("the other process waits for the numbers");
        return None;
    }
    windowpane_burn::install().expect("no test runs a tensor operation first");
    let installed = compute();
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test.replace("::", "-"));
    let mut plain = Command::new(std::env::current_exe().expect("this test"));
    let plain = plain.args(["--exact", test, "--nocapture"]).env(PLAIN, &file).output();
    let plain = plain.expect("this test runs again");
    let said = [&plain.stdout, &plain.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(plain.status.success(), "{test} without windowpane: {}", said.join("\n"));
    let plain = read(&std::fs::read_to_string(&file).expect("the other process has saved them"));
    assert_eq!(plain.len(), installed.len());
    Some([installed, plain])
}

/// One line per name, with the bits of the numbers.
pub(crate) fn write(numbers: &Numbers) -> String {
    let bits = |values: &[f32]| -> String {
        values.iter().map(|value| format!("\t{:08x}", value.to_bits())).collect()
    };
    numbers.iter().map(|(name, values)| format!("{name}{}\n", bits(values))).collect()
}

pub(crate) fn read(text: &str) -> Numbers {
    let line = |line: &str| {
        let mut words = line.split('\t');
        let name = words.next().unwrap_or_default().to_owned();
        let value = |bits: &str| f32::from_bits(u32::from_str_radix(bits, 16).expect("bits"));
        (name, words.map(value).collect())
    };
    text.lines().map(line).collect()
}
