//! Helpers that several targets use.

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// Calls `read` with the path of a file that holds `bytes`.
pub fn with_file<T>(bytes: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    thread_local! {
        static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
    }
    FOLDER.with_borrow_mut(|folder| {
        let folder =
            folder.get_or_insert_with(|| tempfile::tempdir().expect("a folder for a file"));
        let path = folder.path().join("input");
        fs::write(&path, bytes).expect("room for a small file");
        read(&path)
    })
}
