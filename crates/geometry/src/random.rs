//! Random numbers that are a function of a seed and a position, so that they can be computed in any order on any device.

/// A random number from 0 to 1 (1 excluded) for a position, the same on every device: a multiple of 2⁻²⁴.
///
/// ```
/// use windowpane_geometry::uniform;
///
/// assert_eq!(uniform(7, 0), uniform(7, 0));
/// assert_ne!(uniform(7, 0), uniform(7, 1));
/// assert!((0..1000).all(|position| (0.0..1.0).contains(&uniform(7, position))));
/// ```
pub fn uniform(seed: u32, position: u32) -> f32 {
    let bits = mixed(mixed(position ^ mixed(seed)).wrapping_add(seed));
    // As many bits as an f32 has digits.
    (bits >> 8) as f32 / 16_777_216.0
}

/// Every bit of the result depends on every bit of `bits`.
fn mixed(bits: u32) -> u32 {
    let bits = (bits ^ (bits >> 16)).wrapping_mul(0x7feb_352d);
    let bits = (bits ^ (bits >> 15)).wrapping_mul(0x846c_a68b);
    bits ^ (bits >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of numbers in 16 equal parts, for consecutive positions and for consecutive seeds, and of pairs of
    /// neighbours: no part is far from its share.
    #[test]
    fn numbers_are_spread_evenly() {
        const NUMBERS: u32 = 1 << 16;
        let part = |number: f32| (number * 16.0) as usize;
        for seed in [0, 1, 77, u32::MAX] {
            let (mut along, mut across, mut pairs) = ([0u32; 16], [0u32; 16], [0u32; 256]);
            for i in 0..NUMBERS {
                along[part(uniform(seed, i))] += 1;
                across[part(uniform(i, seed))] += 1;
                pairs[16 * part(uniform(seed, i)) + part(uniform(seed, i + 1))] += 1;
            }
            // Five standard deviations of a count.
            let near = |counts: &[u32]| {
                let share = f64::from(NUMBERS) / counts.len() as f64;
                counts.iter().all(|count| (f64::from(*count) - share).powi(2) < 25.0 * share)
            };
            assert!(near(&along) && near(&across) && near(&pairs), "{seed}");
        }
    }
}
