use std::borrow::Cow;
use std::sync::Arc;
#[cfg(feature = "kernels")]
use std::sync::atomic::{AtomicBool, Ordering};

use windowpane_geometry::{DType, LIMIT, Layout, Quantity, Shape};
use windowpane_reference::Scalar;

use crate::element::{HostBuffer, elements_of, sealed::Sealed, with_element};
use crate::{Backend, Device, Element, Error, Result};

/// An array on a device, with its dimensions in memory order.
///
/// Cloning is cheap: clones share the elements. Operators never change them; only a [replay](crate::Recording::replay)
/// overwrites the results of its work, in all clones and [parts](Self::narrow).
#[derive(Clone, Debug)]
pub struct Tensor {
    device: Device,
    dtype: DType,
    dims: Vec<usize>,
    data: Data,
}

#[derive(Clone, Debug)]
enum Data {
    Host(HostBuffer),
    #[cfg(feature = "kernels")]
    Device {
        /// The memory of the elements.
        handle: cubecl::server::Handle,
        owners: Arc<Owners>,
        /// The operator that made it, for errors that appear when it is read.
        work: Arc<str>,
        /// Checks that must pass before it is valid, including those of its inputs, each once.
        doubts: Vec<Arc<Doubt>>,
    },
}

/// Counts the tensors that share memory, clones and parts, as well as CubeCL does: memory with a single owner may be
/// overwritten.
#[cfg(feature = "kernels")]
#[derive(Debug)]
struct Owners {
    /// Whether code outside this crate has the handle too, and so may own the memory.
    lent: AtomicBool,
}

/// A kernel's report of indices out of range.
#[cfg(feature = "kernels")]
#[derive(Debug)]
struct Doubt {
    /// The first element whose index is out of range, as an `i32`.
    note: cubecl::server::Handle,
    indices: cubecl::server::Handle,
}

/// The name of random generation in error messages.
const FILLING: &str = "filling with random numbers";

impl Tensor {
    /// Copies elements to a device.
    ///
    /// ```
    /// use windowpane::{Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 2.0, 3.0], [1, 3, 1])?;
    /// assert_eq!(x.dims(), [1, 3, 1]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn from_slice<T: Element>(
        device: &Device,
        elements: &[T],
        dims: impl AsRef<[usize]>,
    ) -> Result<Self> {
        Self::from_elements(device, Cow::Borrowed(elements), dims)
    }

    /// Moves elements to a device; on `host` they stay where they are.
    pub fn from_vec<T: Element>(
        device: &Device,
        elements: Vec<T>,
        dims: impl AsRef<[usize]>,
    ) -> Result<Self> {
        Self::from_elements(device, Cow::Owned(elements), dims)
    }

    /// A tensor on `host` over elements that stay where they are, in memory that someone else keeps.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use windowpane::{MaxPool, Tensor};
    ///
    /// let image = Arc::new(vec![1.0f32, 5.0, 2.0, 4.0]);
    /// let x = Tensor::from_owner(image.clone(), [1, 4, 1])?;
    /// assert_eq!(x.as_bytes().map(<[u8]>::as_ptr), Some(image.as_ptr().cast()));
    /// assert_eq!(MaxPool::new(2).forward(&x)?.to_vec::<f32>()?, [5.0, 4.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn from_owner<T: Element>(
        owner: Arc<dyn AsRef<[T]> + Send + Sync>,
        dims: impl AsRef<[usize]>,
    ) -> Result<Self> {
        let dims = check_dims(dims.as_ref(), (*owner).as_ref().len())?;
        Ok(Self::on_host(&Device::host(), dims, T::lent(owner)))
    }

    /// Elements on a device; on `host` they stay where they are, if they are given away.
    pub(crate) fn from_elements<T: Element>(
        device: &Device,
        elements: Cow<'_, [T]>,
        dims: impl AsRef<[usize]>,
    ) -> Result<Self> {
        let dims = check_dims(dims.as_ref(), elements.len())?;
        device.require(T::DTYPE)?;
        #[cfg(feature = "kernels")]
        if let (Some(target), false) = (device.target(), elements.is_empty()) {
            check_buffer(device, target.device, T::DTYPE, elements.len())?;
            let bytes: &[u8] = bytemuck::cast_slice(&elements);
            let handle = match target.device.buffer_size(T::DTYPE, elements.len()) {
                size if size == bytes.len() => target.client.create_from_slice(bytes),
                size => {
                    let mut padded = bytes.to_vec();
                    padded.resize(size, 0);
                    target.client.create_from_slice(&padded)
                }
            };
            return Ok(Self::on_device(device, T::DTYPE, dims, handle, "an upload"));
        }
        if let Cow::Borrowed(elements) = &elements {
            device.require_memory(size_of_val(*elements), "a copy")?;
        }
        Ok(Self::on_host(device, dims, T::into_host(elements.into_owned())))
    }

    /// Copies elements, given as bytes in memory order, to a device. Any byte but 0 is a true `bool`.
    pub fn from_bytes(
        device: &Device,
        dtype: DType,
        bytes: &[u8],
        dims: impl AsRef<[usize]>,
    ) -> Result<Self> {
        check_dims(dims.as_ref(), bytes.len() / dtype.size())?;
        with_element!(dtype, T => {
            let elements = match bytemuck::checked::try_cast_slice::<u8, T>(bytes) {
                Ok(elements) => Cow::Borrowed(elements),
                // The bytes are not aligned, there are some too many, or one is not 0 or 1 as of a bool.
                Err(_) => Cow::Owned(elements_of::<T>(bytes)),
            };
            Self::from_elements(device, elements, dims)
        })
    }

    /// A tensor over memory that a CubeCL program has allocated; nothing is copied. `dims` are in memory order, and
    /// the elements lie one after the other from the handle's offset.
    ///
    /// The device must be that of the client which allocated the memory: see [`Device::from_client`]. The tensor
    /// never writes to the memory, because others may own it too; work that is launched later and writes to it
    /// changes the tensor.
    ///
    /// ```
    /// use windowpane::{DType, Device, MaxPool, Tensor};
    ///
    /// # let Some(client) = Device::best().client().cloned() else { return Ok(()) };
    /// // In a program with a client of its own:
    /// let memory = client.empty(8 * 8 * 4 * size_of::<f32>());
    /// let device = Device::from_client(client);
    /// let x = Tensor::from_handle(&device, DType::F32, memory, [1, 8, 8, 4])?;
    /// let y = MaxPool::new([2, 2]).forward(&x)?;
    /// let pooled = y.handle().expect("y is not empty"); // for the program's own kernels
    /// # assert_eq!(pooled.size_in_used(), 4 * 4 * 4 * 4);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    #[cfg(feature = "kernels")]
    pub fn from_handle(
        device: &Device,
        dtype: DType,
        handle: cubecl::server::Handle,
        dims: impl AsRef<[usize]>,
    ) -> Result<Self> {
        let dims = dims.as_ref().to_vec();
        let elements = count(&dims)?;
        let capabilities = require_own(device, dtype, &handle)?;
        windowpane_kernels::check_buffer(capabilities, "the tensor", dtype, &handle, elements)
            .map_err(|reason| device.refuses(reason.into()))?;
        if elements == 0 {
            return Ok(Self::empty(device, dtype, dims));
        }
        Ok(Self::lent(device, dtype, dims, handle))
    }

    /// A tensor over memory that a CubeCL program has allocated, whose elements lie at strides: neighbours along an axis
    /// are as many elements apart as its stride says, and the first element is at the handle's offset. A stride of 0
    /// repeats elements.
    ///
    /// Elements that lie one after the other are shared, as by [`from_handle`](Self::from_handle). All others are copied
    /// on the device into this order, and so are elements at an offset that kernels cannot read at. A copy does not change
    /// with the memory.
    ///
    /// ```
    /// use windowpane::{DType, Device, Tensor};
    ///
    /// # let Some(client) = Device::best().client().cloned() else { return Ok(()) };
    /// // A program has two channels of three samples each, and windowpane needs three pixels of two channels each.
    /// let memory = client.create_from_slice(bytemuck::cast_slice(&[1f32, 2.0, 3.0, 10.0, 20.0, 30.0]));
    /// let device = Device::from_client(client);
    /// let x = Tensor::from_strided_handle(&device, DType::F32, memory, [1, 3, 2], [6, 1, 3])?;
    /// assert_eq!(x.dims(), [1, 3, 2]);
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    #[doc(alias("permute", "expand", "contiguous", "as_strided"))]
    #[cfg(feature = "kernels")]
    pub fn from_strided_handle(
        device: &Device,
        dtype: DType,
        handle: cubecl::server::Handle,
        dims: impl AsRef<[usize]>,
        strides: impl AsRef<[usize]>,
    ) -> Result<Self> {
        let (dims, strides) = (dims.as_ref().to_vec(), strides.as_ref());
        if strides.len() != dims.len() {
            return Err(Error::StridesMismatch { strides: strides.to_vec(), dims });
        }
        let elements = count(&dims)?;
        require_own(device, dtype, &handle)?;
        let axes: Vec<[usize; 2]> =
            dims.iter().zip(strides).map(|(dim, stride)| [*dim, *stride]).collect();
        let needed = windowpane_kernels::strided::span(&axes);
        // The handle's own size wraps around if its offsets are past its end.
        let cut = handle.offset_start.unwrap_or(0).saturating_add(handle.offset_end.unwrap_or(0));
        let found = handle.size().saturating_sub(cut) / dtype.size() as u64;
        if needed as u64 > found {
            let strides = strides.to_vec();
            return Err(Error::StridesTooFar { dims, strides, needed, found });
        }
        if elements == 0 {
            return Ok(Self::empty(device, dtype, dims));
        }
        Self::lent(device, dtype, vec![elements], handle).at_strides(dims, 0, &axes)
    }

    /// A tensor over memory from outside.
    #[cfg(feature = "kernels")]
    fn lent(
        device: &Device,
        dtype: DType,
        dims: Vec<usize>,
        handle: cubecl::server::Handle,
    ) -> Self {
        let tensor = Self::on_device(device, dtype, dims, handle, "memory from outside");
        tensor.lend();
        tensor
    }

    /// The memory of the elements, for kernels of other crates on [`Device::client`]; `None` on `host`, and for a tensor
    /// without elements.
    ///
    /// The elements lie one after the other from the handle's offset, in the order of [`dims`](Self::dims). Errors of
    /// the work that made them appear when the memory is read. Results of an unpooling whose indices are out of range
    /// are reported only by [`wait`](Self::wait) and by reading the tensor.
    #[cfg(feature = "kernels")]
    pub fn handle(&self) -> Option<cubecl::server::Handle> {
        let (_, handle) = self.memory()?;
        self.lend();
        Some(handle.clone())
    }

    /// Notes that code outside this crate has the memory, so that it is never overwritten.
    #[cfg(feature = "kernels")]
    fn lend(&self) {
        if let Data::Device { owners, .. } = &self.data {
            // The count of owners orders this store before a later look for a single owner.
            owners.lent.store(true, Ordering::Relaxed);
        }
    }

    /// The same elements in memory order, under other dimensions; nothing is copied.
    ///
    /// ```
    /// use windowpane::{Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 2.0, 3.0, 4.0], [4])?;
    /// assert_eq!(x.reshape([1, 2, 2])?.dims(), [1, 2, 2]);
    /// assert!(x.reshape([3]).is_err());
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    #[doc(alias("view", "flatten", "squeeze", "unsqueeze"))]
    pub fn reshape(&self, dims: impl AsRef<[usize]>) -> Result<Self> {
        let dims = check_dims(dims.as_ref(), self.len())?;
        Ok(Self { dims, ..self.clone() })
    }

    /// A part of the tensor: the positions from `start` to `start + len` of one dimension, and all of the others.
    ///
    /// On a device, a range of samples is not copied: the part shares the memory of the whole and keeps it allocated. The
    /// same is true of the second dimension if there is one sample, and so on. The part must start where kernels can read,
    /// at a multiple of 16 to 256 bytes, depending on the device. All other parts are copied, and so are those on `host`.
    ///
    /// ```
    /// use windowpane::{DType, Device, MaxPool, Tensor};
    ///
    /// let x = Tensor::random(&Device::best(), DType::F32, [8, 16, 16, 4], 1)?;
    /// let y = MaxPool::new(2).forward(&x.narrow(0, 2, 3)?)?; // the samples 2, 3 and 4
    /// assert_eq!(y.dims(), [3, 8, 8, 4]);
    /// let rows = x.narrow(1, 0, 6)?; // the first 6 rows of each sample: a copy
    /// assert_eq!(rows.dims(), [8, 6, 16, 4]);
    /// assert!(x.narrow(0, 6, 3).is_err());
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    #[doc(alias("slice", "slice_axis", "split"))]
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        self.device.require_alive()?;
        let whole = self.dims.get(dim).copied();
        let Some(whole) = whole.filter(|whole| start <= *whole && len <= whole - start) else {
            return Err(Error::OutsideOfDimension { dims: self.dims.clone(), dim, start, len });
        };
        if len == whole {
            return Ok(self.clone());
        }
        let mut dims = self.dims.clone();
        dims[dim] = len;
        let inner: usize = dims[dim + 1..].iter().product();
        #[cfg(feature = "kernels")]
        if let Data::Device { .. } = &self.data {
            if len == 0 {
                return Ok(Self::empty(&self.device, self.dtype, dims));
            }
            let outer = dims[..dim].iter().product();
            return self.at_strides(
                dims,
                start * inner,
                &[[outer, whole * inner], [len * inner, 1]],
            );
        }
        let elements = dims.iter().product::<usize>();
        self.device.require_memory(elements.saturating_mul(self.dtype.size()), "a part")?;
        let buffer = self.read()?;
        with_element!(self.dtype, T => {
            let rows = element_slice::<T>(&buffer).chunks_exact((whole * inner).max(1));
            let parts = rows.flat_map(|row| &row[start * inner..(start + len) * inner]);
            Ok(Self::on_host(&self.device, dims, T::into_host(parts.copied().collect())))
        })
    }

    /// The elements at strides from the element `first` on, in the same memory if they are dense there and kernels can read
    /// at their offset, and else in a copy. The tensor is on the device and holds all of them, at least one; each axis has
    /// its extent and its stride.
    #[cfg(feature = "kernels")]
    fn at_strides(&self, dims: Vec<usize>, first: usize, axes: &[[usize; 2]]) -> Result<Self> {
        use windowpane_kernels::{check_buffer, strided};
        let (device, dtype, elements) = (&self.device, self.dtype, count(&dims)?);
        let (Some((_, handle)), Some(target)) = (self.memory(), device.target()) else {
            unreachable!("the caller knows that it is on the device");
        };
        let from = handle.clone().offset_start((first * dtype.size()) as u64);
        if strided::is_dense(axes)
            && check_buffer(target.device, "the part", dtype, &from, elements).is_ok()
        {
            let after = from.size_in_used() - target.device.buffer_size(dtype, elements) as u64;
            let mut part = Self { dims, ..self.clone() };
            if let Data::Device { handle, .. } = &mut part.data {
                *handle = from.offset_end(after);
            }
            return Ok(part);
        }
        let to = memory(device, target, dtype, elements)?;
        strided::copy(target, dtype, &from, &to, axes)
            .map_err(|reason| device.refuses(reason.into()))?;
        let work = format!("a copy of a part of {dims:?}");
        Ok(Self::on_device(device, dtype, dims, to, work).doubted_with(&[self]))
    }

    /// Random numbers, generated on the device: uniform from −0.5 to 0.5, for integer types whole
    /// numbers from 0 to 127, for `bool` 0 and 1. The same seed gives the same numbers on the same device.
    ///
    /// ```
    /// use windowpane::{DType, Device, Tensor};
    ///
    /// let x = Tensor::random(&Device::best(), DType::F32, [8, 56, 56, 64], 1)?;
    /// assert_eq!(x.len(), 8 * 56 * 56 * 64);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn random(
        device: &Device,
        dtype: DType,
        dims: impl AsRef<[usize]>,
        seed: u32,
    ) -> Result<Self> {
        let dims = dims.as_ref().to_vec();
        let elements = count(&dims)?;
        device.require(dtype)?;
        #[cfg(feature = "kernels")]
        if let (Some(target), true) = (device.target(), elements > 0) {
            let handle = memory(device, target, dtype, elements)?;
            windowpane_kernels::fill_random(target, dtype, &handle, elements, seed)
                .map_err(|reason| device.refuses(reason.into()))?;
            return Ok(Self::on_device(device, dtype, dims, handle, FILLING));
        }
        device.require_memory(elements.saturating_mul(dtype.size()), FILLING)?;
        Ok(Self::on_host(device, dims, with_element!(dtype, T => random::<T>(elements, seed))))
    }

    /// Replaces the elements with new random numbers, in the same memory unless a clone exists.
    pub fn randomize(&mut self, seed: u32) -> Result<()> {
        self.device.require_alive()?;
        #[cfg(feature = "kernels")]
        if let (Some(handle), Some(target)) = (self.own_handle().cloned(), self.device.target()) {
            let elements = count(&self.dims)?;
            windowpane_kernels::fill_random(target, self.dtype, &handle, elements, seed)
                .map_err(|reason| self.device.refuses(reason.into()))?;
            self.made_by(FILLING, Vec::new());
            return Ok(());
        }
        *self = Self::random(&self.device, self.dtype, &self.dims, seed)?;
        Ok(())
    }

    /// Replaces the elements with those of another tensor of the same device, type and dimensions,
    /// in the same memory unless a clone exists.
    ///
    /// On a device this is one kernel that reads and writes every element once, a reference for the
    /// speed of other kernels.
    ///
    /// ```
    /// use windowpane::{DType, Device, Tensor};
    ///
    /// let host = Device::host();
    /// let source = Tensor::from_slice(&host, &[1.0f32, 2.0], [2])?;
    /// let mut target = Tensor::random(&host, DType::F32, [2], 1)?;
    /// target.copy_from(&source)?;
    /// assert_eq!(target.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    pub fn copy_from(&mut self, source: &Self) -> Result<()> {
        self.device.require_alive()?;
        if source.device != self.device {
            let (expected, found) = (self.device.clone(), source.device.clone());
            return Err(Error::DeviceMismatch { expected, found });
        }
        if source.dtype != self.dtype {
            return Err(Error::DTypeMismatch { asked: self.dtype, found: source.dtype });
        }
        if source.dims != self.dims {
            return Err(Error::DimsMismatch {
                expected: self.dims.clone(),
                found: source.dims.clone(),
            });
        }
        #[cfg(feature = "kernels")]
        if let (Some((_, from)), Some(to), Some(target)) =
            (source.memory(), self.own_handle().cloned(), source.device.target())
        {
            windowpane_kernels::copy(target, self.dtype, from, &to, count(&self.dims)?)
                .map_err(|reason| self.device.refuses(reason.into()))?;
            // The copy is valid only if the source is.
            if let Data::Device { work, doubts, .. } = &source.data {
                self.made_by(work.clone(), doubts.clone());
            }
            return Ok(());
        }
        match (&mut self.data, &source.data) {
            (Data::Host(target), Data::Host(source)) => {
                target.copy_from(source);
                Ok(())
            }
            // A clone exists.
            #[cfg(feature = "kernels")]
            _ => {
                *self = Self::random(&self.device, self.dtype, &self.dims, 0)?;
                self.copy_from(source)
            }
        }
    }

    /// A tensor whose elements are in host memory: on `host`, or empty.
    pub(crate) fn on_host(device: &Device, dims: Vec<usize>, buffer: HostBuffer) -> Self {
        let dtype = buffer.dtype();
        Self { device: device.clone(), dtype, dims, data: Data::Host(buffer) }
    }

    /// A tensor without elements, for which nothing is allocated or launched.
    #[cfg(feature = "kernels")]
    pub(crate) fn empty(device: &Device, dtype: DType, dims: Vec<usize>) -> Self {
        Self::on_host(device, dims, HostBuffer::from_bytes(dtype, &[]))
    }

    #[cfg(feature = "kernels")]
    pub(crate) fn on_device(
        device: &Device,
        dtype: DType,
        dims: Vec<usize>,
        handle: cubecl::server::Handle,
        work: impl Into<Arc<str>>,
    ) -> Self {
        crate::recording::note(&handle);
        Self {
            device: device.clone(),
            dtype,
            dims,
            data: Data::Device {
                handle,
                owners: Arc::new(Owners { lent: false.into() }),
                work: work.into(),
                doubts: Vec::new(),
            },
        }
    }

    /// Records what rewrote the elements, and which checks must pass before they are valid.
    #[cfg(feature = "kernels")]
    fn made_by(&mut self, maker: impl Into<Arc<str>>, reasons: Vec<Arc<Doubt>>) {
        if let Data::Device { work, doubts, .. } = &mut self.data {
            *work = maker.into();
            *doubts = reasons;
        }
    }

    /// The same tensor, valid only if the index check of an unpooling passes.
    #[cfg(feature = "kernels")]
    pub(crate) fn doubted(
        mut self,
        note: cubecl::server::Handle,
        indices: cubecl::server::Handle,
    ) -> Self {
        if let Data::Device { doubts, .. } = &mut self.data {
            doubts.push(Arc::new(Doubt { note, indices }));
        }
        self
    }

    /// The same tensor, valid only if the tensors it was made from are.
    #[cfg(feature = "kernels")]
    pub(crate) fn doubted_with(mut self, sources: &[&Self]) -> Self {
        if let Data::Device { doubts, .. } = &mut self.data {
            for source in sources {
                let Data::Device { doubts: theirs, .. } = &source.data else { continue };
                for doubt in theirs {
                    if !doubts.iter().any(|known| Arc::ptr_eq(known, doubt)) {
                        doubts.push(doubt.clone());
                    }
                }
            }
        }
        self
    }

    /// Waits for the checks of the tensor's inputs and returns the first failure.
    #[cfg(feature = "kernels")]
    fn check_doubts(&self) -> Result<()> {
        use windowpane_kernels::pool::unpool::NONE_OUT_OF_RANGE;
        use windowpane_reference::pool::backward::IndexOutOfRange;
        let Data::Device { work, doubts, .. } = &self.data else { return Ok(()) };
        let Some(client) = self.device.own_client() else { return Ok(()) };
        let read = |handle: &cubecl::server::Handle| {
            let bytes = self.device.read(client, handle, work)?;
            Ok::<Vec<i32>, Error>(bytemuck::pod_collect_to_vec(&bytes))
        };
        for doubt in doubts {
            let first = read(&doubt.note)?.first().copied().unwrap_or(NONE_OUT_OF_RANGE);
            if first != NONE_OUT_OF_RANGE {
                let at = first as usize;
                let index = read(&doubt.indices)?.get(at).copied().unwrap_or(i32::MIN);
                return Err(IndexOutOfRange { at, index }.into());
            }
        }
        Ok(())
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its dimensions, in memory order.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The number of its elements.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for the elements and reads them; errors of the work that made them are returned here.
    #[doc(alias("numpy", "tolist", "item"))]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            return Err(Error::DTypeMismatch { asked: T::DTYPE, found: self.dtype });
        }
        Ok(element_slice::<T>(&self.read()?).to_vec())
    }

    /// Waits for the elements and reads them as bytes in memory order.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        Ok(self.read()?.bytes().to_vec())
    }

    /// The elements as bytes in memory order, if they are in the memory of the host.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        self.host_buffer().map(HostBuffer::bytes)
    }

    /// Waits for the elements and returns errors of the work that made them, without reading them.
    pub fn wait(&self) -> Result<()> {
        #[cfg(feature = "kernels")]
        if let (Data::Device { handle, work, .. }, Some(client)) =
            (&self.data, self.device.own_client())
        {
            let handle = handle.clone();
            let ask = |client: cubecl::client::Client| async move {
                client.sync_buffers([&handle]).await
            };
            self.device.hear(client, work, ask)?;
            return self.check_doubts();
        }
        Ok(())
    }

    /// The same tensor on another device.
    #[doc(alias("cuda", "cpu", "to"))]
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        if *device == self.device {
            return Ok(self.clone());
        }
        let buffer = self.read()?;
        if device.backend() == Backend::Host {
            return Ok(Self::on_host(device, self.dims.clone(), buffer));
        }
        Self::from_bytes(device, self.dtype, buffer.bytes(), &self.dims)
    }

    /// The same numbers in another type, each rounded once; integer types clamp, and have 0 for NaN. A `bool` is whether
    /// a number is not 0.
    ///
    /// They are converted on the device, except from f64, between floats and i64, and from floats to u32: then they are
    /// read, and converted on the host.
    #[doc(alias("astype", "cast", "type", "half", "float", "double"))]
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        self.device.require(dtype)?;
        let work = format!("a conversion to {dtype}");
        #[cfg(feature = "kernels")]
        if let (Some((_, source)), Some(target)) = (self.memory(), self.device.target())
            && windowpane_kernels::can_cast([self.dtype, dtype])
        {
            let handle = memory(&self.device, target, dtype, self.len())?;
            windowpane_kernels::cast(target, [self.dtype, dtype], source, &handle, self.len())
                .map_err(|reason| self.device.refuses(reason.into()))?;
            let cast = Self::on_device(&self.device, dtype, self.dims.clone(), handle, work);
            return Ok(cast.doubted_with(&[self]));
        }
        let bytes = self.len().saturating_mul(dtype.size());
        self.device.require_memory(bytes, work)?;
        let buffer = self.read()?;
        with_element!(dtype, To => {
            // By name: the types' own conversions from f64 round twice.
            let elements: Vec<To> = with_element!(self.dtype, From => {
                let numbers = element_slice::<From>(&buffer).iter();
                numbers.map(|x| <To as Scalar>::converted_from(*x)).collect()
            });
            Self::from_elements(&self.device, elements.into(), &self.dims)
        })
    }

    /// The same numbers in another layout, rearranged on the device.
    ///
    /// ```
    /// use windowpane::{Device, Layout, Tensor};
    ///
    /// // Two channels of three samples each; then three pixels of two channels each.
    /// let x = Tensor::from_slice(&Device::host(), &[1.0f32, 2.0, 3.0, 10.0, 20.0, 30.0], [1, 2, 3])?;
    /// let y = x.to_layout(Layout::ChannelsFirst, Layout::ChannelsLast)?;
    /// assert_eq!(y.dims(), [1, 3, 2]);
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
    /// # Ok::<(), windowpane::Error>(())
    /// ```
    #[doc(alias("permute", "memory_format", "channels_last", "contiguous"))]
    pub fn to_layout(&self, from: Layout, to: Layout) -> Result<Self> {
        self.device.require_alive()?;
        let shape = Shape::from_dims(&self.dims, from)?;
        let dims: Vec<usize> = shape.dims(to).collect();
        let matrices = match from {
            Layout::ChannelsFirst => [shape.batch(), shape.channels(), shape.plane()],
            Layout::ChannelsLast => [shape.batch(), shape.plane(), shape.channels()],
        };
        if from == to || matrices[1] == 1 || matrices[2] == 1 {
            return Ok(Self { dims, ..self.clone() });
        }
        #[cfg(feature = "kernels")]
        if let (Some((_, source)), Some(target)) = (self.memory(), self.device.target()) {
            let handle = memory(&self.device, target, self.dtype, self.len())?;
            windowpane_kernels::transpose(target, self.dtype, source, &handle, matrices)
                .map_err(|reason| self.device.refuses(reason.into()))?;
            let work = format!("a change of layout of {:?}", self.dims);
            let turned = Self::on_device(&self.device, self.dtype, dims, handle, work);
            return Ok(turned.doubted_with(&[self]));
        }
        let bytes = self.len().saturating_mul(self.dtype.size());
        self.device.require_memory(bytes, "a change of layout")?;
        let buffer = self.read()?;
        with_element!(self.dtype, T => {
            let [_, rows, columns] = matrices;
            let elements = element_slice::<T>(&buffer).chunks_exact((rows * columns).max(1));
            let turned = |matrix: &[T]| -> Vec<T> {
                let column = |nth| (0..rows).map(move |row| matrix[row * columns + nth]);
                (0..columns).flat_map(column).collect()
            };
            Ok(Self::on_host(&self.device, dims, T::into_host(elements.flat_map(turned).collect())))
        })
    }

    /// The elements, if they are already in host memory.
    pub(crate) fn host_buffer(&self) -> Option<&HostBuffer> {
        match &self.data {
            Data::Host(buffer) => Some(buffer),
            #[cfg(feature = "kernels")]
            Data::Device { .. } => None,
        }
    }

    /// The elements, if they are on a device that CubeCL reaches, and its client.
    #[cfg(feature = "kernels")]
    pub(crate) fn memory(&self) -> Option<(&cubecl::client::Client, &cubecl::server::Handle)> {
        match &self.data {
            Data::Device { handle, .. } => {
                crate::recording::note(handle);
                Some((self.device.own_client()?, handle))
            }
            Data::Host(_) => None,
        }
    }

    /// The memory of the elements, if no other tensor shares it.
    #[cfg(feature = "kernels")]
    pub(crate) fn own_handle(&mut self) -> Option<&cubecl::server::Handle> {
        match &mut self.data {
            Data::Device { handle, owners, .. } => {
                let own = Arc::get_mut(owners).is_some_and(|own| !*own.lent.get_mut());
                let own = own.then_some(&*handle);
                own.into_iter().for_each(crate::recording::note);
                own
            }
            Data::Host(_) => None,
        }
    }

    /// The elements, in host memory.
    pub(crate) fn read(&self) -> Result<HostBuffer> {
        match &self.data {
            Data::Host(buffer) => Ok(buffer.clone()),
            #[cfg(feature = "kernels")]
            Data::Device { handle, work, .. } => {
                self.check_doubts()?;
                let client = self.device.own_client().expect("a tensor with a handle has a client");
                let bytes = self.device.read(client, handle, work)?;
                // A packed tensor is padded.
                let bytes = &bytes[..bytes.len().min(self.len() * self.dtype.size())];
                Ok(HostBuffer::from_bytes(self.dtype, bytes))
            }
        }
    }
}

/// The elements of a buffer that is known to have this type.
pub(crate) fn element_slice<T: Element>(buffer: &HostBuffer) -> &[T] {
    T::from_host(buffer).expect("the buffer's type was matched by the caller")
}

/// The number of elements, if kernels can index that many.
pub(crate) fn count(dims: &[usize]) -> Result<usize> {
    let product = dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
    match product {
        Some(elements) if elements <= LIMIT => Ok(elements),
        asked => Err(windowpane_geometry::Error::TooLarge {
            axis: None,
            what: Quantity::Elements,
            asked,
            limit: LIMIT,
        }
        .into()),
    }
}

/// Refuses memory of another device, and types that the device lacks.
#[cfg(feature = "kernels")]
fn require_own<'a>(
    device: &'a Device,
    dtype: DType,
    handle: &cubecl::server::Handle,
) -> Result<&'a windowpane_kernels::Capabilities> {
    device.require(dtype)?;
    let is_own = device.own_client().is_some_and(|own| own.service_id() == handle.service);
    let capabilities = device.capabilities().filter(|_| is_own);
    capabilities.ok_or_else(|| Error::ForeignHandle { device: device.clone() })
}

/// Allocates memory for elements; the device may refuse too large a buffer.
#[cfg(feature = "kernels")]
pub(crate) fn memory(
    device: &Device,
    target: windowpane_kernels::Target<'_>,
    dtype: DType,
    elements: usize,
) -> Result<cubecl::server::Handle> {
    check_buffer(device, target.device, dtype, elements)?;
    Ok(target.client.empty(target.device.buffer_size(dtype, elements)))
}

/// Refuses more elements than the device takes in one buffer.
#[cfg(feature = "kernels")]
fn check_buffer(
    device: &Device,
    capabilities: &windowpane_kernels::Capabilities,
    dtype: DType,
    elements: usize,
) -> Result<()> {
    let bytes = capabilities.buffer_size(dtype, elements) as u64;
    let limit = capabilities.buffer_bytes;
    if bytes <= limit {
        return Ok(());
    }
    let reason = windowpane_kernels::PlanError::BufferTooLarge { bytes, limit };
    Err(device.refuses(reason))
}

/// Random numbers for `host`: one sequence repeated, because generating each number would take longer
/// than the work done with them.
fn random<T: Element>(elements: usize, seed: u32) -> HostBuffer {
    const STRETCH: usize = (1 << 20) + 7;
    let mut bits = u64::from(seed);
    let stretch: Vec<T> = (0..elements.min(STRETCH))
        .map(|_| {
            bits = bits.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let unit = (bits >> 40) as f64 / (1u64 << 24) as f64;
            let integers = if T::DTYPE == DType::Bool { 2.0 } else { 128.0 };
            T::from_f64(if T::DTYPE.is_float() { unit - 0.5 } else { (unit * integers).floor() })
        })
        .collect();
    T::into_host(stretch.iter().copied().cycle().take(elements).collect())
}

/// The dimensions, if their product is the number of elements.
fn check_dims(dims: &[usize], found: usize) -> Result<Vec<usize>> {
    let needed = dims.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
    if needed != Some(found) {
        let needed = needed.map_or("more than can be counted".into(), |n| n.to_string());
        return Err(Error::Length { dims: dims.to_vec(), needed, found });
    }
    count(dims)?;
    Ok(dims.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tensor with more elements than kernels can index is refused before any launch.
    #[test]
    fn elements_are_as_many_as_kernels_count() {
        assert_eq!(count(&[LIMIT]).ok(), Some(LIMIT));
        assert_eq!(count(&[0, usize::MAX]).ok(), Some(0));
        for dims in [&[LIMIT + 1][..], &[1 << 16, 1 << 16], &[usize::MAX, 2]] {
            let error = count(dims).expect_err("too many").to_string();
            assert!(error.contains("the largest allowed, 2147483647"), "{error}");
        }
    }

    #[test]
    fn elements_that_kernels_cannot_count_are_no_tensor() {
        // Lazily zero, and never read.
        let elements = vec![0u8; LIMIT + 1];
        let error =
            Tensor::from_slice(&Device::host(), &elements, [LIMIT + 1]).expect_err("too many");
        assert!(error.to_string().contains("the largest allowed, 2147483647"), "{error}");
    }
}
