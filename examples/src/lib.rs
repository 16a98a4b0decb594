//! Examples of windowpane, one idea a file; the files are in the folder.
