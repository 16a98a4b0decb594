//! Benchmarks of windowpane; the groups are in the folder's files.
