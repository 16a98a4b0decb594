//! The building blocks of kernels: arithmetic along an axis, checked buffers, arguments that may be missing, conversions of elements, registers that
//! loops update, nested loops, random numbers, transposes, and the position of a unit.

pub(crate) mod axis;
pub(crate) mod buffers;
pub(crate) mod convert;
mod numbers;
pub(crate) mod optional;
pub(crate) mod random;
pub(crate) mod ranges;
pub(crate) mod registers;
pub(crate) mod transpose;
pub(crate) mod unit;

pub(crate) use {
    axis::{AxisArgs, AxisForm, axis_args, coordinate, taps_of},
    convert::{
        Widening, accumulator, elem, multiply_add, nearest_integers, rectified, round, widen,
        widen_kept,
    },
    numbers::{Number, numbers},
    registers::{Registers, zeros},
    unit::{grid, unit_position},
};

/// The bytes of a sector: the least that memory and caches move.
pub(crate) const SECTOR: usize = 32;
