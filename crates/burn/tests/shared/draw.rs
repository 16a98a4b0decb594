//! Random inputs, and the device of the tests.

use burn::tensor::{Device, Tensor, TensorData};

/// The device that `BURN_DEVICE` names; else, as only that is built, Burn's wgpu device: real hardware if there is any,
/// else Mesa's software Vulkan.
pub(crate) fn device() -> Device {
    Device::default()
}

/// Random numbers, the same ones for the same seed.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// From `least` to `most`.
    pub(crate) fn between(&mut self, least: usize, most: usize) -> usize {
        least + (self.bits() % (most - least + 1) as u64) as usize
    }

    /// From −1 to 1.
    pub(crate) fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (self.bits() % (1 << 24)) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// A leaf of the graph.
    pub(crate) fn tensor<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        let data = TensorData::new(self.numbers(shape.iter().product()), shape);
        Tensor::from_data(data, &device().autodiff()).require_grad()
    }

    /// An input of the given shape in one of the ways in which programs make them, and the leaf that it is made from.
    #[allow(dead_code, reason = "not every test needs all ways")]
    pub(crate) fn input<const D: usize>(&mut self, shape: [usize; D]) -> [Tensor<D>; 2] {
        match self.between(0, 3) {
            0 => {
                let leaf = self.tensor(shape);
                [leaf.clone(), leaf]
            }
            1 => {
                // Channels last, seen in Burn's order.
                let mut lying = shape;
                lying[1..].rotate_left(1);
                let leaf = self.tensor(lying);
                let axes = core::array::from_fn(|axis| match axis {
                    0 => 0,
                    1 => D as isize - 1,
                    _ => axis as isize - 1,
                });
                [leaf.clone().permute(axes), leaf]
            }
            2 => {
                // Behind element-wise operations.
                let leaf = self.tensor(shape);
                [(leaf.clone() * 0.5 + 0.25).abs(), leaf]
            }
            _ => {
                // A part of a larger tensor.
                let mut larger = shape;
                larger[1] += 2;
                let leaf = self.tensor(larger);
                [leaf.clone().narrow(1, 1, shape[1]), leaf]
            }
        }
    }
}
