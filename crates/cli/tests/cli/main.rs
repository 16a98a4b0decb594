//! Runs the binary as users do and checks its output, its files and its errors. One file per command.

mod bench;
mod conv;
mod devices;
mod example;
#[cfg(unix)]
mod faults;
#[cfg(unix)]
mod files;
mod formats;
mod fractional;
mod help;
mod morphology;
mod plan;
mod pool;
mod pool_backward;
mod refusals;
mod support;
mod unpool;
