//! Reads any lines as the arguments of a command line: the result is a command or an error with a message.

#![no_main]

use std::ffi::OsString;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let arguments = bytes.split(|byte| *byte == b'\n').map(argument);
    let arguments = ["windowpane".into()].into_iter().chain(arguments).collect();
    if let Err(error) = windowpane_cli::parse_arguments(arguments) {
        assert!(!error.is_empty());
    }
});

/// An argument as the system passes it, which need not be valid text.
#[cfg(unix)]
fn argument(bytes: &[u8]) -> OsString {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(bytes).to_owned()
}

#[cfg(not(unix))]
fn argument(bytes: &[u8]) -> OsString {
    String::from_utf8_lossy(bytes).into_owned().into()
}
