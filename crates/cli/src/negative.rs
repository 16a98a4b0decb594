//! Negative numbers given as the value of a flag; no flag accepts one.
//!
//! Clap would report `-1` as an unknown flag. A better error says which values the preceding flag
//! accepts. So the two are joined, as `--stride=-1`, before clap sees them, and the flag's own parser
//! refuses the number.

use std::ffi::{OsStr, OsString};

/// Joins every negative number with the flag before it.
pub(crate) fn joined(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    let mut flags = true;
    for argument in arguments {
        // After `--` nothing is a flag.
        flags &= argument != "--";
        match joined.last_mut() {
            Some(flag) if flags && is_negative(&argument) && awaits_value(flag) => {
                flag.push("=");
                flag.push(argument);
            }
            _ => joined.push(argument),
        }
    }
    joined
}

/// Whether the argument looks like a negative number.
fn is_negative(argument: &OsStr) -> bool {
    let Some(rest) = argument.to_str().and_then(|text| text.strip_prefix('-')) else {
        return false;
    };
    let rest = rest.to_ascii_lowercase();
    let digits = rest.strip_prefix('.').unwrap_or(&rest);
    digits.starts_with(|c: char| c.is_ascii_digit()) || rest == "inf" || rest == "nan"
}

/// Whether the argument is a flag without an attached value.
fn awaits_value(argument: &OsStr) -> bool {
    argument.to_str().is_some_and(|text| {
        let name = text.trim_start_matches('-');
        text.starts_with('-') && name.starts_with(char::is_alphabetic) && !name.contains('=')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(arguments: &str) -> String {
        let joined = joined(arguments.split(' ').map(OsString::from).collect());
        let joined: Vec<_> = joined.iter().map(|argument| argument.to_string_lossy()).collect();
        joined.join(" ")
    }

    #[test]
    fn negative_numbers_are_values() {
        for (typed, seen) in [
            ("--padding -1,1", "--padding=-1,1"),
            ("--p -.5 -o -1", "--p=-.5 -o=-1"),
            ("--p -inf --threshold -NaN", "--p=-inf --threshold=-NaN"),
            // A flag that takes no value reports that itself.
            ("--ceil -2 --stride -2", "--ceil=-2 --stride=-2"),
        ] {
            assert_eq!(spelled(typed), seen);
        }
    }

    #[test]
    fn all_else_is_left_alone() {
        for typed in [
            "--stride=2 -1",
            "--stride 2 -1",
            "pool -1",
            "--padding 1:2,0:1",
            "--quiet --ceil -o y.npy",
            "--stride -- -1",
            "-- --stride -1",
            "- -1",
            "--p -x",
            "--p -infinite",
        ] {
            assert_eq!(spelled(typed), typed);
        }
    }
}
