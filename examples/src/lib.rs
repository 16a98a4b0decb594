//! Examples of windowpane, one idea per file; the files are in the parent folder.
