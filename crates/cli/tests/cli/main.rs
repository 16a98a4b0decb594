//! The binary as users run it: what it prints, what it writes, and how it refuses. A file a command.

mod bench;
mod conv;
mod devices;
mod example;
#[cfg(unix)]
mod faults;
#[cfg(unix)]
mod files;
mod help;
mod plan;
mod pool;
mod pool_backward;
mod refusals;
mod support;
mod unpool;
