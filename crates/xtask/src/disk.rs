//! Free disk space: the gate prints it after each step, and makes room before its last ones.

use std::fs;
use std::path::Path;

use crate::Result;
use crate::shell::{self, target_folder};

/// The bytes that the gate's last steps need, with some to spare: the debug builds of the workspace, its tests and Burn's
/// took 12 GB.
const NEEDED: u64 = 20 << 30;

/// The folders of the target folder that no later step of the gate uses.
const DONE: [&str; 5] = ["doc", "fuzz", "python", "release", "wheels"];

/// The free bytes in the target folder's file system, if `df` says.
pub(crate) fn free() -> Option<u64> {
    shell::ask("df", &["-Pk", &shell::root().display().to_string()]).as_deref().and_then(parse)
}

/// A number of bytes in words.
pub(crate) fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / (1u64 << 30) as f64)
}

/// The fourth column of the second line, in bytes.
fn parse(table: &str) -> Option<u64> {
    let kilobytes: u64 = table.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kilobytes << 10)
}

/// Removes what earlier steps built and later ones do not use, if the disk has too little space for these.
pub(crate) fn make_room() -> Result<()> {
    let Some(before) = free() else { return Ok(()) };
    if before >= NEEDED {
        return Ok(());
    }
    for folder in DONE.map(|name| target_folder().join(name)) {
        remove(&folder)?;
    }
    let after = free().unwrap_or(before);
    println!("{} were free; without {}: {}", gigabytes(before), DONE.join(", "), gigabytes(after));
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    match folder.is_dir() {
        true => Ok(fs::remove_dir_all(folder)?),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_read_from_the_table() {
        let table = "Filesystem 1024-blocks     Used Available Capacity Mounted on\n\
                     /dev/vda     263174212 12331220  17825792      43% /\n";
        assert_eq!(parse(table), Some(17 << 30));
        assert_eq!(parse("df: no such file\n"), None);
        assert_eq!(gigabytes(17 << 30), "17.0 GB");
    }
}
