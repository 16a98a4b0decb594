//! Random numbers that are a function of a seed and a position, the same as those of `windowpane_geometry::uniform`.

use cubecl::prelude::*;

/// A random number from 0 to 1 (1 excluded) for a position: a multiple of 2⁻²⁴.
#[cube]
pub(crate) fn uniform(seed: u32, position: u32) -> f32 {
    f32::cast_from(mixed(mixed(position ^ mixed(seed)) + seed) >> 8) * (1.0f32 / 16_777_216.0)
}

/// Every bit of the result depends on every bit of `bits`.
#[cube]
pub(crate) fn mixed(bits: u32) -> u32 {
    let bits = (bits ^ (bits >> 16)) * 0x7feb_352du32;
    let bits = (bits ^ (bits >> 15)) * 0x846c_a68bu32;
    bits ^ (bits >> 16)
}
