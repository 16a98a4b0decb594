//! `bench`, `verify` and `report`: many cases.

mod against;
pub(crate) mod cases;
mod refusals;
mod report;
mod times;
mod verify;
