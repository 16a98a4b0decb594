//! A prepared case: memory, the strategies that compute it, and the expected result.

use cubecl::ir::{ElemType, FloatKind, IntKind};
use cubecl::prelude::TensorBinding;
use cubecl::server::Handle;
use cubecl::std::tensor::TensorHandle;
use windowpane::{DType, Device, Tensor};

use crate::{Result, text};

/// A case with everything needed to run it.
pub(crate) struct Contest {
    /// The least bytes that a launch moves, and the operations of a convolution, counted as in our runs.
    pub(crate) bytes: u64,
    pub(crate) operations: Option<u64>,
    pub(crate) output: Memory,
    pub(crate) expected: Expected,
    pub(crate) candidates: Vec<Candidate>,
}

/// A launch, which may be refused.
pub(crate) type Launch = dyn FnMut() -> Result<()> + Send;

/// A strategy and its name.
pub(crate) struct Candidate {
    pub(crate) name: String,
    pub(crate) launch: Box<Launch>,
}

impl Candidate {
    pub(crate) fn new(
        name: impl Into<String>,
        launch: impl FnMut() -> Result<()> + Send + 'static,
    ) -> Self {
        Self { name: name.into(), launch: Box::new(launch) }
    }
}

/// A tensor without gaps on a device.
#[derive(Clone)]
pub(crate) struct Memory {
    handle: Handle,
    dims: Vec<usize>,
    dtype: DType,
}

/// How many elements are compared at the beginning and at the end.
const COMPARED: usize = 1 << 20;

impl Memory {
    /// The same numbers as those of [`Tensor::random`].
    pub(crate) fn random(device: &Device, dtype: DType, dims: &[usize], seed: u32) -> Result<Self> {
        let memory = Self::new(device, dtype, dims)?;
        memory.fill(device, seed)?;
        Ok(memory)
    }

    pub(crate) fn new(device: &Device, dtype: DType, dims: &[usize]) -> Result<Self> {
        let client = device.client().ok_or("`host` has no kernels")?;
        let bytes = dims.iter().product::<usize>() * dtype.size();
        Ok(Self { handle: client.empty(bytes), dims: dims.to_vec(), dtype })
    }

    fn fill(&self, device: &Device, seed: u32) -> Result<()> {
        let client = device.client().ok_or("`host` has no kernels")?;
        let capabilities = windowpane_kernels::Capabilities::of(client);
        let target = windowpane_kernels::Target { client, device: &capabilities };
        windowpane_kernels::fill_random(target, self.dtype, &self.handle, self.len(), seed)
            .map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Fills it with other numbers, so that a strategy that writes nothing is detected.
    pub(crate) fn spoil(&self, device: &Device) -> Result<()> {
        self.fill(device, 77)
    }

    fn len(&self) -> usize {
        self.dims.iter().product()
    }

    pub(crate) fn elem(&self) -> ElemType {
        elem(self.dtype)
    }

    pub(crate) fn binding(&self) -> TensorBinding {
        TensorHandle::new_contiguous(self.dims.clone(), self.handle.clone(), self.elem()).binding()
    }

    /// The first elements and the last.
    fn ends(&self, device: &Device) -> Result<[Vec<f32>; 2]> {
        let client = device.client().ok_or("`host` has no kernels")?;
        let skipped = (self.len().saturating_sub(COMPARED) * self.dtype.size()) as u64;
        let read = |handle: Handle| {
            let bytes = client.read_one(handle).map_err(text)?;
            floats(self.dtype, &bytes)
        };
        let handle = || self.handle.clone();
        Ok([read(handle().offset_end(skipped))?, read(handle().offset_start(skipped))?])
    }
}

/// The expected result.
pub(crate) struct Expected([Vec<f32>; 2]);

/// The largest difference from our result, relative to the largest element: a rough check for kernels that
/// leave something out. Accumulating in 8-bit precision passes it.
const TOLERANCE: f32 = 0.05;

impl Expected {
    /// Our result.
    pub(crate) fn of(ours: &Tensor) -> Result<Self> {
        let bytes = ours.to_bytes().map_err(text)?;
        let some = COMPARED.min(ours.len()) * ours.dtype().size();
        let first = floats(ours.dtype(), &bytes[..some])?;
        let last = floats(ours.dtype(), &bytes[bytes.len() - some..])?;
        Ok(Self([first, last]))
    }

    /// Returns an error if the memory holds something else.
    pub(crate) fn hold(&self, device: &Device, output: &Memory) -> Result<()> {
        let found = output.ends(device)?;
        for (found, expected) in found.iter().zip(&self.0) {
            let largest = expected.iter().fold(0.0f32, |most, number| most.max(number.abs()));
            let off = found.iter().zip(expected).map(|(found, right)| (found - right).abs());
            // NaN counts as the largest difference.
            let worst = off
                .fold(0.0f32, |most, off| if off.is_nan() { f32::INFINITY } else { most.max(off) });
            if found.len() != expected.len() || worst > TOLERANCE * largest {
                return Err(format!("the result is wrong: off by {worst} where {largest} is most"));
            }
        }
        Ok(())
    }
}

fn floats(dtype: DType, bytes: &[u8]) -> Result<Vec<f32>> {
    let len = bytes.len() / dtype.size();
    let tensor = Tensor::from_bytes(&Device::host(), dtype, bytes, [len]).map_err(text)?;
    tensor.to_dtype(DType::F32).and_then(|tensor| tensor.to_vec()).map_err(text)
}

fn elem(dtype: DType) -> ElemType {
    match dtype {
        DType::F64 => ElemType::Float(FloatKind::F64),
        DType::F16 => ElemType::Float(FloatKind::F16),
        DType::BF16 => ElemType::Float(FloatKind::BF16),
        DType::I32 => ElemType::Int(IntKind::I32),
        _ => ElemType::Float(FloatKind::F32),
    }
}
