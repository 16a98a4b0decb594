//! Files of JSON lines. Blank lines, line endings of other systems, and a byte order mark, which some editors write,
//! are accepted.

use std::fs;
use std::path::Path;

use crate::failure::Failure;

/// Reads a file.
pub(super) fn text(path: &Path) -> Result<String, Failure> {
    let cannot = |reason| Failure::Failed(format!("{}: cannot be read: {reason}", path.display()));
    let bytes = fs::read(path).map_err(|error| cannot(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| cannot("it is no text in UTF-8".into()))
}

/// The lines that are not blank, and their numbers from 1.
pub(super) fn of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.lines().zip(1..).map(|(line, i)| (i, line.trim())).filter(|(_, line)| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_blank_lines_are_no_lines() {
        let lines = |text| of(text).collect::<Vec<_>>();
        assert_eq!(lines("\u{feff}{}\r\n\r\n \t\n{1}\r\n"), [(1, "{}"), (4, "{1}")]);
        assert_eq!(lines("a\nb"), [(1, "a"), (2, "b")]);
        assert_eq!(lines("\u{feff}"), []);
    }
}
