//! Shares memory between Burn and windowpane: Burn's tensors as windowpane's, and results as Burn's tensors.

use std::sync::{Mutex, PoisonError};

use burn_backend::DType as BurnType;
use burn_cubecl::fusion::CubeFusionHandle;
use burn_fusion::stream::Context;
use burn_ir::{HandleContainer, TensorIr};
use cubecl::client::Client;
use windowpane::{DType, Device, Layout, Tensor};

/// Why windowpane does not compute an operation.
pub(crate) type Refusal = String;

/// The device of a client. It is kept, because it remembers which kernels it has chosen.
pub(crate) fn device(client: &Client) -> Device {
    static KNOWN: Mutex<Vec<Device>> = Mutex::new(Vec::new());
    // A device is added in one step, so a poisoned list is still right.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let service = client.service_id();
    let same = |device: &&Device| device.client().is_some_and(|own| own.service_id() == service);
    if let Some(device) = known.iter().find(same) {
        return device.clone();
    }
    let device = Device::from_client(client.clone());
    known.push(device.clone());
    device
}

/// The real shape and type of a tensor; those in a fused operation are placeholders.
pub(crate) fn real<'a>(
    context: &'a Context<CubeFusionHandle>,
    tensor: &TensorIr,
) -> Result<&'a TensorIr, Refusal> {
    context.tensors.get(&tensor.id).ok_or_else(|| "Burn gave no shape of a tensor".into())
}

/// A tensor of Burn that an operation reads.
pub(crate) struct Operand {
    handle: CubeFusionHandle,
    dtype: DType,
    /// Samples, channels, then the axes, in every layout.
    pub(crate) shape: Vec<usize>,
}

impl Operand {
    pub(crate) fn of(
        context: &Context<CubeFusionHandle>,
        tensor: &TensorIr,
    ) -> Result<Self, Refusal> {
        Self::new(&context.handles, real(context, tensor)?)
    }

    /// The operand of a tensor with its real shape.
    pub(crate) fn new(
        handles: &HandleContainer<CubeFusionHandle>,
        real: &TensorIr,
    ) -> Result<Self, Refusal> {
        // Only looked at, never taken: Burn frees what is not read again after the operation has run.
        let handle = handles.get_handle_ref(&real.id);
        let handle = handle.ok_or("an earlier operation failed to make the input")?.clone();
        if handle.tiles.is_some() || handle.qparams.is_some() {
            return Err("the input is stored in tiles or quantized".into());
        }
        let (dtype, shape) = (to_dtype(handle.dtype)?, real.shape.to_vec());
        if shape.contains(&0) {
            return Err("the input is empty".into());
        }
        if handle.strides.len() != shape.len() {
            let (strides, axes) = (handle.strides.len(), shape.len());
            return Err(format!("the input has {strides} strides for {axes} axes"));
        }
        Ok(Self { handle, dtype, shape })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.handle.client
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The layout of its memory, if it has exactly one of the two.
    pub(crate) fn layout(&self) -> Option<Layout> {
        match [Layout::ChannelsFirst, Layout::ChannelsLast].map(|layout| self.is_in(layout)) {
            [true, false] => Some(Layout::ChannelsFirst),
            [false, true] => Some(Layout::ChannelsLast),
            _ => None,
        }
    }

    fn is_in(&self, layout: Layout) -> bool {
        let strides = strides(&self.shape, layout);
        let mut axes = self.shape.iter().zip(self.handle.strides.iter().zip(strides));
        // Where an axis has one position, its stride is never used.
        axes.all(|(extent, (found, expected))| *extent == 1 || *found == expected)
    }

    /// The tensor in a layout: Burn's memory itself, or a copy if that has another layout.
    pub(crate) fn tensor(&self, device: &Device, layout: Layout) -> Result<Tensor, Refusal> {
        let layouts = [layout, other(layout)];
        let (tensor, found) = match layouts.into_iter().find(|layout| self.is_in(*layout)) {
            Some(found) => (self.shared(device, found)?, found),
            None => (self.contiguous(device)?, Layout::ChannelsFirst),
        };
        if found == layout {
            return Ok(tensor);
        }
        tensor.to_layout(found, layout).map_err(refusal)
    }

    /// The tensor with its axes in Burn's order: for a bias, which has one.
    pub(crate) fn flat(&self, device: &Device) -> Result<Tensor, Refusal> {
        match self.is_in(Layout::ChannelsFirst) {
            true => self.shared(device, Layout::ChannelsFirst),
            false => self.contiguous(device),
        }
    }

    fn shared(&self, device: &Device, layout: Layout) -> Result<Tensor, Refusal> {
        let dims = dims(&self.shape, layout);
        let tensor = Tensor::from_handle(device, self.dtype, self.handle.handle.clone(), dims);
        match tensor {
            // A slice may start where vectors cannot be loaded.
            Err(_) if self.handle.handle.offset_start.is_some_and(|offset| offset > 0) => {
                let tensor = self.contiguous(device)?;
                match layout {
                    Layout::ChannelsFirst => Ok(tensor),
                    _ => tensor.to_layout(Layout::ChannelsFirst, layout).map_err(refusal),
                }
            }
            tensor => tensor.map_err(refusal),
        }
    }

    /// A copy with its axes in Burn's order: of a slice, or of a tensor with other strides.
    fn contiguous(&self, device: &Device) -> Result<Tensor, Refusal> {
        let binding = self.handle.clone().binding(self.shape.iter().copied().into());
        let dtype = burn_backend::cubecl::dtype_to_elem_type(self.handle.dtype);
        let copy = cubecl::std::tensor::into_contiguous(self.client(), binding, dtype);
        Tensor::from_handle(device, self.dtype, copy.handle, &self.shape).map_err(refusal)
    }
}

/// The layout of the first operand that has exactly one; Burn's order if none has.
pub(crate) fn layout_of(operands: &[&Operand]) -> Layout {
    operands.iter().find_map(|operand| operand.layout()).unwrap_or(Layout::ChannelsFirst)
}

/// A result, and the layout of its memory.
pub(crate) struct Made<'a> {
    pub(crate) tensor: Tensor,
    pub(crate) layout: Layout,
    pub(crate) out: &'a TensorIr,
}

/// Gives Burn the memory of results: of all of them or, if one is not what Burn expects, of none.
pub(crate) fn give(
    context: &mut Context<CubeFusionHandle>,
    like: &Operand,
    made: Vec<Made<'_>>,
) -> Result<(), Refusal> {
    let outs: Result<Vec<_>, _> =
        made.iter().map(|made| real(context, made.out).cloned()).collect();
    let outs = outs?;
    let made = made.into_iter().zip(&outs).map(|(made, out)| Made { out, ..made }).collect();
    register(&mut context.handles, like, made)
}

/// As [`give`], for outputs with their real shapes.
pub(crate) fn register(
    handles: &mut HandleContainer<CubeFusionHandle>,
    like: &Operand,
    made: Vec<Made<'_>>,
) -> Result<(), Refusal> {
    let mut ready = Vec::new();
    for Made { tensor, layout, out } in made {
        let shape = out.shape.to_vec();
        if (tensor.dims(), tensor.dtype()) != (&*dims(&shape, layout), to_dtype(out.dtype)?) {
            let (found, dtype) = (tensor.dims(), tensor.dtype());
            return Err(format!(
                "Burn expects {shape:?}, and windowpane made {found:?} of {dtype}"
            ));
        }
        let memory = tensor.handle().ok_or("the result is empty")?;
        let handle = CubeFusionHandle {
            client: like.client().clone(),
            handle: memory,
            device: like.handle.device.clone(),
            dtype: out.dtype,
            strides: strides(&shape, layout).into(),
            tiles: None,
            qparams: None,
        };
        ready.push((out.id, handle));
    }
    for (id, handle) in ready {
        handles.register_handle(id, handle);
    }
    Ok(())
}

pub(crate) fn refusal(error: windowpane::Error) -> Refusal {
    error.to_string()
}

pub(crate) fn to_dtype(dtype: BurnType) -> Result<DType, Refusal> {
    Ok(match dtype {
        BurnType::F64 => DType::F64,
        BurnType::F32 => DType::F32,
        BurnType::F16 => DType::F16,
        BurnType::BF16 => DType::BF16,
        BurnType::I32 => DType::I32,
        other => return Err(format!("windowpane has no {other:?}")),
    })
}

fn other(layout: Layout) -> Layout {
    match layout {
        Layout::ChannelsFirst => Layout::ChannelsLast,
        Layout::ChannelsLast => Layout::ChannelsFirst,
    }
}

/// The dimensions in memory order.
pub(crate) fn dims(shape: &[usize], layout: Layout) -> Vec<usize> {
    in_memory(shape.len(), layout).map(|axis| shape[axis]).collect()
}

/// The strides of a tensor without gaps, in Burn's order of the axes.
fn strides(shape: &[usize], layout: Layout) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    let mut step = 1;
    for axis in in_memory(shape.len(), layout).rev() {
        strides[axis] = step;
        step *= shape[axis];
    }
    strides
}

/// Burn's axes in the order in which they lie in memory.
fn in_memory(rank: usize, layout: Layout) -> impl DoubleEndedIterator<Item = usize> {
    // Channels are axis 1, and last in memory where they are last.
    let last = layout == Layout::ChannelsLast && rank > 2;
    (0..rank).map(move |place| match place {
        0 => 0,
        _ if !last => place,
        _ if place == rank - 1 => 1,
        _ => place + 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_those_of_a_layout() {
        let shape = [2, 3, 4, 5];
        assert_eq!(strides(&shape, Layout::ChannelsFirst), [60, 20, 5, 1]);
        assert_eq!(strides(&shape, Layout::ChannelsLast), [60, 1, 15, 3]);
        assert_eq!(dims(&shape, Layout::ChannelsLast), [2, 4, 5, 3]);
        assert_eq!(strides(&[7], Layout::ChannelsFirst), [1]);
        assert_eq!(strides(&[2, 3, 4], Layout::ChannelsLast), [12, 1, 3]);
    }
}
