use ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};

use crate::{Device, Element, Result, Tensor};

impl Tensor {
    /// Copies an array to a device, keeping the order of its axes.
    pub fn from_array<T: Element, S: Data<Elem = T>, D: Dimension>(
        device: &Device,
        array: &ArrayBase<S, D>,
    ) -> Result<Self> {
        let contiguous = array.as_standard_layout();
        let elements = contiguous.as_slice().unwrap_or_default();
        Self::from_slice(device, elements, array.shape())
    }

    /// Waits for the elements and reads them into an array.
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>> {
        let array = ArrayD::from_shape_vec(IxDyn(self.dims()), self.to_vec()?);
        Ok(array.expect("a tensor has as many elements as its dimensions say"))
    }
}
