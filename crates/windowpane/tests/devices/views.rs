//! Parts of tensors, and memory with strides, compared with plain indexing on the host.

use proptest::prelude::*;
use proptest::sample::Index;
use windowpane::{DType, Error, MaxPool, Tensor};
use windowpane_testing::{executed, on_every_device, proptest};

use crate::pool::{devices, ok};

/// The elements at strides from the element `first` on. Each axis has an extent and a stride, in elements of `size` bytes.
fn picked(bytes: &[u8], size: usize, first: usize, axes: &[[usize; 2]]) -> Vec<u8> {
    let elements: usize = axes.iter().map(|[extent, _]| extent).product();
    let mut picked = Vec::new();
    for nth in 0..elements {
        let (mut rest, mut at) = (nth, first);
        for [extent, stride] in axes.iter().rev() {
            at += rest % extent * stride;
            rest /= extent;
        }
        picked.extend_from_slice(&bytes[at * size..][..size]);
    }
    picked
}

/// Dimensions that fill vectors, or do not.
fn dims() -> impl Strategy<Value = Vec<usize>> {
    let last = prop_oneof![1..7usize, Just(64usize), Just(256usize)];
    (prop::collection::vec(1..6usize, 0..4), last)
        .prop_map(|(outer, last)| [outer, vec![last]].concat())
}

on_every_device! {
    /// A part has the elements that the host picks, whether it is shared or copied, and so has a part of the part.
    fn parts_are_the_hosts(device, case in (dims(), any::<[Index; 4]>(), any::<u32>())) {
        let (dims, [dtype, dim, start, len], seed) = case;
        let dtype = *dtype.get(&device.dtypes().collect::<Vec<_>>());
        let mut tensor = ok(Tensor::random(device, dtype, &dims, seed))?;
        let mut expected = ok(tensor.to_bytes())?;
        for _ in 0..2 {
            let dims = tensor.dims().to_vec();
            let dim = dim.index(dims.len());
            let start = start.index(dims[dim] + 1);
            let len = len.index(dims[dim] - start + 1);
            let inner: usize = dims[dim + 1..].iter().product();
            let outer = dims[..dim].iter().product();
            let axes = [[outer, dims[dim] * inner], [len * inner, 1]];
            tensor = ok(tensor.narrow(dim, start, len))?;
            prop_assert_eq!(tensor.dims()[dim], len);
            expected = picked(&expected, dtype.size(), start * inner, &axes);
            prop_assert!(ok(tensor.to_bytes())? == expected, "{dtype} {dims:?} {dim} {start} {len}");
        }
        executed("parts", dtype);
        Ok(())
    }
}

/// Samples of a batch are shared: operators and reads find them where they are, and nothing overwrites them.
#[test]
fn samples_are_shared() {
    for device in devices() {
        for dtype in
            [DType::F32, DType::F16, DType::U8].into_iter().filter(|it| device.supports(*it))
        {
            let (dims, pool) = ([6, 16, 16, 4], MaxPool::new(2));
            let mut x = Tensor::random(&device, dtype, dims, 1).unwrap();
            let bytes = x.to_bytes().unwrap();
            let sample = bytes.len() / 6;
            let part = x.narrow(0, 2, 3).unwrap();
            let expected = bytes[2 * sample..5 * sample].to_vec();
            assert!(part.to_bytes().unwrap() == expected, "{device} {dtype}");
            let copy = Tensor::from_bytes(&device, dtype, &expected, part.dims()).unwrap();
            let [found, other] =
                [&part, &copy].map(|x| pool.forward(x).unwrap().to_bytes().unwrap());
            assert!(found == other, "{device} {dtype}");
            #[cfg(feature = "kernels")]
            if let (Some(whole), Some(part)) = (x.clone().handle(), part.handle()) {
                use cubecl::server::Overlap;
                assert_eq!(whole.overlap(&part), Overlap::Partial, "{device} {dtype}");
                assert_eq!(part.size_in_used(), expected.len() as u64, "{device} {dtype}");
                let rows = x.narrow(1, 0, 8).unwrap().handle().unwrap();
                assert_eq!(whole.overlap(&rows), Overlap::Disjoint, "{device} {dtype}");
                // One sample lies in one piece, and so do its rows.
                let rows = x.narrow(0, 1, 1).unwrap().narrow(1, 4, 8).unwrap().handle().unwrap();
                assert_eq!(whole.overlap(&rows), Overlap::Partial, "{device} {dtype}");
            }
            x.randomize(2).unwrap();
            assert!(x.to_bytes().unwrap() != bytes, "{device} {dtype}");
            assert!(part.to_bytes().unwrap() == expected, "{device} {dtype}");
        }
    }
}

/// Memory that a part shares is not overwritten while the part or the whole is there, and a part by itself may be.
#[test]
fn parts_keep_their_elements() {
    for device in devices() {
        let mut x = Tensor::random(&device, DType::F32, [4, 256], 1).unwrap();
        let before = x.to_vec::<f32>().unwrap();
        let mut part = x.narrow(0, 1, 2).unwrap();
        x.randomize(2).unwrap();
        assert_eq!(part.to_vec::<f32>().unwrap(), before[256..768], "{device}");
        let other = x.to_vec::<f32>().unwrap();
        part = x.narrow(0, 3, 1).unwrap();
        part.randomize(3).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), other, "{device}");
        part = x.narrow(0, 2, 2).unwrap();
        let clone = part.clone();
        drop(x);
        part.randomize(4).unwrap();
        assert_eq!(clone.to_vec::<f32>().unwrap(), other[512..], "{device}");
        drop(clone);
        part.randomize(5).unwrap();
        let new = Tensor::random(&device, DType::F32, [2, 256], 5).unwrap();
        assert_eq!(part.to_vec::<f32>().unwrap(), new.to_vec::<f32>().unwrap(), "{device}");
    }
}

/// Positions and dimensions that a tensor does not have are refused, and no positions are a tensor.
#[test]
fn parts_that_are_not_there_are_refused() {
    for device in devices() {
        let x = Tensor::random(&device, DType::F32, [4, 3], 1).unwrap();
        for (dim, start, len) in
            [(0, 0, 5), (0, 4, 1), (1, 3, 1), (2, 0, 0), (0, usize::MAX, 2), (0, 1, usize::MAX)]
        {
            let error = x.narrow(dim, start, len).expect_err("it is not there");
            assert!(matches!(error, Error::OutsideOfDimension { .. }), "{device}: {error}");
        }
        let error = x.narrow(1, 2, 2).expect_err("it is not there").to_string();
        assert!(
            error.contains("positions 2..4 of dimension 1") && error.contains("[4, 3]"),
            "{error}"
        );
        for (dim, start) in [(0, 4), (0, 2), (1, 0), (1, 3)] {
            let none = x.narrow(dim, start, 0).unwrap();
            assert!(none.is_empty() && none.to_vec::<f32>().unwrap().is_empty(), "{device}");
            assert_eq!(none.device(), &device);
            assert!(none.narrow(dim, 0, 0).unwrap().is_empty(), "{device}");
        }
    }
}

#[cfg(feature = "kernels")]
mod strided {
    use windowpane::kernels::{self, BufferError, Capabilities, PlanError, Target};
    use windowpane::{Backend, Device, Layout};
    use windowpane_testing::{Demand, run_cases};

    use crate::pool::Check;

    use super::*;

    /// Memory of a device with random elements, and their bytes.
    fn memory(
        device: &Device,
        dtype: DType,
        elements: usize,
        seed: u32,
    ) -> (cubecl::server::Handle, Vec<u8>) {
        let random = Tensor::random(&Device::host(), dtype, [elements], seed).unwrap();
        let mut bytes = random.to_bytes().unwrap();
        // Where kernels lack a type, its elements are in whole words.
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        (device.client().expect("it has one").create_from_slice(&bytes), bytes)
    }

    fn reach(axes: &[[usize; 2]]) -> usize {
        1 + axes.iter().map(|[extent, stride]| (extent - 1) * stride).sum::<usize>()
    }

    /// A tensor over memory of which the first `first` elements are not its own, and the elements that it should have.
    fn check(device: &Device, dtype: DType, first: usize, axes: &[[usize; 2]], seed: u32) -> Check {
        let (memory, bytes) = memory(device, dtype, first + reach(axes), seed);
        let memory = memory.offset_start((first * dtype.size()) as u64);
        let [dims, strides] = [0, 1].map(|of| axes.iter().map(|axis| axis[of]).collect::<Vec<_>>());
        let x = ok(Tensor::from_strided_handle(device, dtype, memory, &dims, &strides))?;
        prop_assert_eq!(x.dims(), dims);
        let (found, expected) = (ok(x.to_bytes())?, picked(&bytes, dtype.size(), first, axes));
        prop_assert!(found == expected, "{device} {dtype} from {first} on: {axes:?}");
        Ok(())
    }

    /// Runs a property on every backend with kernels.
    fn on_kernels<S: Strategy>(
        name: &str,
        strategy: impl Fn() -> S,
        property: impl Fn(&Device, S::Value) -> Check,
    ) {
        for backend in Backend::ALL.into_iter().filter(|backend| *backend != Backend::Host) {
            let kernels = |_: &Device| vec![()];
            run_cases(name, backend, Demand::Any, kernels, &strategy, |device, (), case| {
                property(device, case)
            });
        }
    }

    /// One of the types that the device has.
    fn one_type(device: &Device, pick: Index) -> DType {
        *pick.get(&device.dtypes().collect::<Vec<_>>())
    }

    /// Elements at any strides, also overlapping and repeated ones, from any offset.
    #[test]
    fn any_strides_are_the_hosts() {
        let axes = || prop::collection::vec([1..6usize, 0..40usize], 0..6);
        let cases = || (axes(), 0..70usize, any::<Index>(), any::<u32>());
        on_kernels("any_strides_are_the_hosts", cases, |device, (axes, first, pick, seed)| {
            let dtype = one_type(device, pick);
            executed("strides", dtype);
            check(device, dtype, first, &axes, seed)
        });
    }

    /// Tensors whose dimensions are permuted, and of which a part is taken, as frameworks do.
    #[test]
    fn permuted_parts_are_the_hosts() {
        let cases = || (dims(), any::<[Index; 4]>(), 0..4usize, any::<Index>(), any::<u32>());
        let name = "permuted_parts_are_the_hosts";
        on_kernels(name, cases, |device, (dims, picks, first, pick, seed)| {
            let stride = |nth: usize| dims[nth + 1..].iter().product::<usize>();
            let mut axes: Vec<[usize; 2]> =
                dims.iter().enumerate().map(|(nth, extent)| [*extent, stride(nth)]).collect();
            let last = axes.len() - 1;
            axes.swap(picks[0].index(last + 1), last);
            axes.swap(picks[1].index(last + 1), 0);
            let cut = picks[2].index(last + 1);
            axes[cut][0] = 1 + picks[3].index(axes[cut][0]);
            let dtype = one_type(device, pick);
            executed("permutations", dtype);
            // From multiples of what vectors hold, too.
            check(device, dtype, first * 32, &axes, seed)
        });
    }

    /// A channels-first tensor that is read as channels-last is its change of layout, also from an offset.
    #[test]
    fn channels_first_memory_is_read_as_channels_last() {
        for device in devices().into_iter().filter(|device| device.client().is_some()) {
            for dtype in device.dtypes() {
                for [n, c, h, w] in [[2, 3, 17, 19], [1, 64, 14, 14], [3, 70, 7, 5], [2, 1, 4, 4]] {
                    let (memory, bytes) = memory(&device, dtype, n * c * h * w, 1);
                    let strides = [c * h * w, w, 1, h * w];
                    let x =
                        Tensor::from_strided_handle(&device, dtype, memory, [n, h, w, c], strides)
                            .unwrap();
                    let bytes = &bytes[..n * c * h * w * dtype.size()];
                    let same = Tensor::from_bytes(&device, dtype, bytes, [n, c, h, w]).unwrap();
                    let same = same.to_layout(Layout::ChannelsFirst, Layout::ChannelsLast).unwrap();
                    assert_eq!(x.dims(), same.dims());
                    assert!(
                        x.to_bytes().unwrap() == same.to_bytes().unwrap(),
                        "{device} {dtype}: {n} {c} {h} {w}"
                    );
                    let axes = [[n, c * h * w], [h, w], [w, 1], [c, h * w]];
                    check(&device, dtype, 3, &axes, 2).unwrap();
                }
            }
        }
    }

    /// Dense elements are shared where kernels can read, and else copied.
    #[test]
    fn dense_memory_is_shared() {
        use cubecl::server::Overlap;
        for device in devices().into_iter().filter(|device| device.client().is_some()) {
            let alignment = Capabilities::of(device.client().unwrap()).offset_alignment;
            let (memory, bytes) = memory(&device, DType::F32, 1024, 1);
            let view = |offset: u64, dims: [usize; 3], strides: [usize; 3]| {
                let memory = memory.clone().offset_start(offset);
                Tensor::from_strided_handle(&device, DType::F32, memory, dims, strides).unwrap()
            };
            // The strides of dimensions of one position say nothing.
            for (offset, dims, strides) in [
                (0, [4, 8, 16], [128, 16, 1]),
                (alignment, [4, 1, 16], [16, 7, 1]),
                (alignment, [1, 8, 16], [0, 16, 1]),
            ] {
                let (x, start) = (view(offset, dims, strides), offset as usize);
                assert!(x.to_bytes().unwrap() == bytes[start..start + 4 * x.len()], "{device}");
                assert_eq!(x.handle().unwrap().overlap(&memory), Overlap::Partial, "{device}");
                assert_eq!(x.handle().unwrap().size_in_used(), 4 * x.len() as u64);
            }
            let whole = view(0, [4, 16, 16], [256, 16, 1]);
            assert_eq!(whole.handle().unwrap().overlap(&memory), Overlap::Same, "{device}");
            for copied in [view(4, [4, 8, 16], [128, 16, 1]), view(0, [4, 8, 16], [128, 1, 8])] {
                assert_eq!(
                    copied.handle().unwrap().overlap(&memory),
                    Overlap::Disjoint,
                    "{device}"
                );
            }
            // Shared memory is not the tensor's own.
            let mut x = view(0, [4, 8, 16], [128, 16, 1]);
            x.randomize(2).unwrap();
            let read = device.client().unwrap().read_one_unchecked(memory.clone());
            assert!(read[..] == bytes[..], "{device}: foreign memory was written to");
        }
    }

    /// Strides that lead out of the memory, that are too few or too many, and elements that lie across are refused.
    #[test]
    fn strides_that_do_not_fit_are_refused() {
        for device in devices().into_iter().filter(|device| device.client().is_some()) {
            let (memory, _) = memory(&device, DType::F32, 64, 1);
            let take = |offset: u64, dims: &[usize], strides: &[usize]| {
                let memory = memory.clone().offset_start(offset);
                Tensor::from_strided_handle(&device, DType::F32, memory, dims, strides)
            };
            assert!(take(0, &[4, 4], &[20, 1]).is_ok(), "{device}");
            let error = take(8, &[4, 4], &[20, 1]).unwrap_err().to_string();
            assert!(
                error.contains("strides [20, 1] need 64 elements") && error.contains("has 62"),
                "{error}"
            );
            for (offset, dims, strides) in [
                (512, &[1, 1], &[1, 1]),
                (u64::MAX, &[1, 1], &[1, 1]),
                (0, &[2, 2], &[usize::MAX, 1]),
                (0, &[3, 3], &[usize::MAX / 2, usize::MAX / 2]),
            ] {
                let error = take(offset, dims, strides).unwrap_err();
                assert!(matches!(error, Error::StridesTooFar { .. }), "{device}: {error}");
            }
            for strides in [&[1][..], &[4, 1, 1]] {
                let error = take(0, &[4, 4], strides).unwrap_err();
                assert!(matches!(error, Error::StridesMismatch { .. }), "{device}: {error}");
            }
            let error = take(0, &[1 << 20, 1 << 20], &[0, 0]).unwrap_err();
            assert!(matches!(error, Error::Geometry(_)), "{device}: {error}");
            let error = take(2, &[4], &[1]).unwrap_err();
            let across = BufferError::Misaligned { name: "the source", offset: 2, alignment: 4 };
            let refused = matches!(error, Error::Plan { reason: PlanError::Buffer(found), .. } if found == across);
            assert!(refused, "{device}: {error}");
            let none = take(0, &[0, 4], &[usize::MAX, 1]).unwrap();
            assert!(none.is_empty(), "{device}");
            let host =
                Tensor::from_strided_handle(&Device::host(), DType::F32, memory.clone(), [4], [1]);
            assert!(matches!(host, Err(Error::ForeignHandle { .. })), "{device}");
        }
    }

    /// The launch beneath refuses buffers that are too short or shared, because its kernel checks no bounds.
    #[test]
    fn a_strided_copy_refuses_buffers() {
        for device in devices() {
            let Some(client) = device.client() else { continue };
            let capabilities = Capabilities::of(client);
            let target = Target { client, device: &capabilities };
            let copy = |from: &cubecl::server::Handle, to: &cubecl::server::Handle| {
                kernels::strided::copy(target, DType::F32, from, to, &[[4, 20], [4, 1]])
            };
            let (from, to) = (client.empty(4 * 64), client.empty(4 * 16));
            assert_eq!(copy(&from, &to), Ok(()), "{device}");
            let refused = |name, needed, found| Err(BufferError::TooSmall { name, needed, found });
            assert_eq!(copy(&from.clone().offset_end(4), &to), refused("the source", 256, 252));
            assert_eq!(copy(&from, &to.clone().offset_end(4)), refused("the copy", 64, 60));
            let error = BufferError::Overlap { output: "the copy", other: "the source" };
            assert_eq!(copy(&from, &from), Err(error), "{device}");
        }
    }
}
