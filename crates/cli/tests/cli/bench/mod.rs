//! `bench`, `verify` and `report`: many cases.

mod against;
mod cases;
mod refusals;
mod times;
mod verify;
