//! The marked places of a page that `--fill` writes tables into.
//!
//! A place is everything between a line `<!-- bench: DEVICE/TABLE -->` and a line
//! `<!-- bench: end -->`; both are comments and invisible on the page.

use std::path::Path;

use super::super::lines;
use crate::failure::Failure;

/// The name in the line that ends a place.
const END: &str = "end";

/// The text of a page with its places filled; `table` gives the table of a name.
pub(super) fn fill(
    path: &Path,
    table: impl Fn(&str) -> Result<String, Failure>,
) -> Result<String, Failure> {
    let text = lines::text(path)?;
    let wrong =
        |i: usize, what: &str| Failure::Failed(format!("{}, line {i}: {what}", path.display()));
    let (mut filled, mut open, mut places, mut in_code) = (String::new(), None, 0, false);
    for (i, line) in (1..).zip(text.split_inclusive('\n')) {
        in_code ^= line.trim_start().starts_with("```");
        match (marked(line).filter(|_| !in_code), open) {
            (None, None) => filled += line,
            (None, Some(_)) => {}
            (Some(END), Some(_)) => {
                filled += line;
                open = None;
            }
            (Some(END), None) => {
                return Err(wrong(i, "a place ends that did not begin; remove this line"));
            }
            (Some(_), Some(_)) => {
                let what = "a place begins inside another; end that with `<!-- bench: end -->`";
                return Err(wrong(i, what));
            }
            (Some(name), None) => {
                // Without an empty line Markdown joins the table and the comment.
                filled += &format!("{line}\n{}\n", table(name)?);
                (open, places) = (Some(i), places + 1);
            }
        }
    }
    match open {
        Some(i) => Err(wrong(i, "the place has no end; mark it with `<!-- bench: end -->`")),
        None if places == 0 => {
            let path = path.display();
            let message = format!(
                "{path}: has no place to fill; mark it with `<!-- bench: DEVICE/TABLE -->` and \
                 `<!-- bench: end -->`, each on a line"
            );
            Err(Failure::Failed(message))
        }
        None => Ok(filled),
    }
}

/// The name in a line that marks a place.
fn marked(line: &str) -> Option<&str> {
    Some(line.trim().strip_prefix("<!-- bench:")?.strip_suffix("-->")?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let page = folder.path().join("page.md");
        std::fs::write(&page, text).expect("a file for the test");
        let table = |name: &str| Ok(format!("the table {name}\n"));
        fill(&page, table).map_err(|failure| failure.to_string())
    }

    /// The old table is replaced, everything else stays, and filling again changes nothing.
    #[test]
    fn a_place_has_its_table_and_nothing_else() {
        let text = "before\r\n<!-- bench: gpu/stems -->\nold\n\nold\n<!-- bench: end -->\nafter";
        let new = "before\r\n<!-- bench: gpu/stems -->\n\nthe table gpu/stems\n\n<!-- bench: end -->\nafter";
        assert_eq!(filled(text).as_deref(), Ok(new));
        assert_eq!(filled(new).as_deref(), Ok(new));
        let example = "```md\n<!-- bench: a/b -->\n```\n";
        let text = format!("{example}{new}");
        assert_eq!(filled(&text), Ok(text));
    }

    #[test]
    fn marks_that_do_not_match_are_refused() {
        let (begin, end) = ("<!-- bench: a/b -->\n", "<!-- bench: end -->\n");
        for (text, word) in [
            ("no place\n".to_owned(), "no place to fill"),
            (format!("x\n{begin}y\n"), "line 2: the place has no end"),
            (format!("x\n{end}"), "line 2: a place ends that did not begin"),
            (format!("{begin}{begin}{end}"), "line 2: a place begins inside another"),
        ] {
            let error = filled(&text).expect_err(&text);
            assert!(error.contains(word), "`{word}` is not in {error}");
        }
    }
}
