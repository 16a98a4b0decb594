//! The same Burn program with and without windowpane gives the same numbers.
//!
//! Each test runs twice: see [`both`].

#[path = "../shared/both.rs"]
mod both;
#[path = "../shared/draw.rs"]
mod draw;
mod network;
mod operators;

use both::{Numbers, both, read, write};

/// Whether this is the process without windowpane.
fn is_plain() -> bool {
    std::env::var_os(both::PLAIN).is_some()
}

#[test]
fn numbers_are_saved_and_read() {
    let numbers = vec![("a b".into(), vec![1.5, f32::NEG_INFINITY]), ("none".into(), Vec::new())];
    assert_eq!(read(&write(&numbers)), numbers);
}
