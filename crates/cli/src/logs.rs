//! `windowpane -v`: logs on stderr.

use std::io;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::{self, format::FmtSpan};
use tracing_subscriber::prelude::*;

/// Prints logs from now on: all of windowpane's, and warnings of its libraries.
///
/// A pooling or a convolution is a span, which gets a line when it ends.
pub(crate) fn print() {
    let shown = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("windowpane", LevelFilter::DEBUG);
    let lines =
        fmt::layer().with_writer(io::stderr).with_span_events(FmtSpan::CLOSE).with_ansi(false);
    tracing_subscriber::registry().with(lines).with(shown).init();
}
