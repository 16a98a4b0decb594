"""Arrays on a CUDA device: the same results without a copy, in the order of every library's streams."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import windowpane
import windowpane.functional as F

torch = pytest.importorskip("torch")

if not torch.cuda.is_available() or "cuda:0" not in windowpane.devices():
    pytest.skip("no CUDA device that both PyTorch and windowpane reach", allow_module_level=True)

from torch.nn import functional as T


def image(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype)


def busy() -> None:
    """Keeps the current stream from what comes next for some milliseconds."""
    torch.cuda._sleep(20_000_000)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_results_stay_on_the_device(dtype: Any) -> None:
    x, w, bias = image(2, 8, 33, 35, dtype=dtype), image(6, 8, 3, 3, dtype=dtype), image(6, dtype=dtype)
    y, indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    expected, theirs = T.max_pool2d(x, 3, 2, 1, return_indices=True)
    assert y.device == x.device and y.dtype == dtype and indices.dtype == torch.int64
    assert torch.equal(y, expected) and torch.equal(indices, theirs)
    tolerance = {"rtol": 0.02, "atol": 0.02} if dtype in (torch.float16, torch.bfloat16) else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(F.avg_pool2d(x, 3, 2, 1), T.avg_pool2d(x, 3, 2, 1), **tolerance)
    torch.backends.cudnn.allow_tf32 = False
    torch.testing.assert_close(F.conv2d(x, w, bias, 2, 1), T.conv2d(x, w, bias, 2, 1), **tolerance)
    turned = (w.transpose(0, 1).contiguous(), bias, 2, 1, 1)
    torch.testing.assert_close(F.conv_transpose2d(x, *turned), T.conv_transpose2d(x, *turned), **tolerance)
    pooled, positions = T.max_pool2d(x, 2, return_indices=True)
    back = F.max_unpool2d(pooled, positions, 2, output_size=(33, 35))
    assert torch.equal(back, T.max_unpool2d(pooled, positions, 2, output_size=(33, 35)))
    assert F.max_pool2d(x[:0], 2).shape == (0, 8, 16, 17)
    with pytest.raises(ValueError, match="index"):
        F.max_unpool2d(y, indices + 5000, 2)


def test_views_are_copied() -> None:
    x = image(4, 8, 20, 24)
    odd = image(4 * 8 * 20 * 24 + 1)[1:].view(4, 8, 20, 24)
    for view in [x[::2], x.transpose(2, 3), x[..., 3:], x[1:, 2:], odd, x[:1].expand(3, -1, -1, -1)]:
        assert torch.equal(F.max_pool2d(view, 3), T.max_pool2d(view, 3))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_an_aligned_dense_input_is_not_copied(memory_format: Any) -> None:
    x = torch.zeros(1, 4, 1 << 14, 1 << 14, device="cuda").contiguous(memory_format=memory_format)
    x[0, 0, -1, -1] = 1
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    y = F.max_pool2d(x, 32)
    torch.cuda.synchronize()
    assert before - torch.cuda.mem_get_info()[0] < x.nbytes // 2
    assert y[0, 0, -1, -1] == 1 and y.sum() == 1
    assert y.is_contiguous(memory_format=memory_format)


def test_work_is_ordered_on_every_stream() -> None:
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    x = torch.zeros(4, 8, 64, 64, device="cuda")
    torch.cuda.synchronize()
    for number in range(30):
        with torch.cuda.stream(streams[number % 3]):
            busy()
            x.fill_(number)
            y = F.max_pool2d(x, 2)
            # Its memory is overwritten as soon as the pooling has read it.
            x.fill_(-1)
            assert bool((y == number).all()), number
            torch.cuda.synchronize()


def test_memory_of_results_is_used_again_in_order() -> None:
    side = torch.cuda.Stream()
    x = torch.zeros(4, 8, 256, 256, device="cuda")
    for number in range(20):
        y = F.max_pool2d(x.fill_(number), 2)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            busy()
            seen = y.clone()
        del y
        # This takes the memory that the other stream has still to read.
        z = F.max_pool2d(x.fill_(-5), 2)
        side.synchronize()
        assert bool((seen == number).all()) and bool((z == -5).all())


def test_results_go_to_a_stream_that_another_library_names() -> None:
    x = image(1, 2, 8, 8)
    result, _ = windowpane._native.extremum_pool(x, OPTIONS, False, False, None)  # type: ignore[attr-defined]
    assert result.__dlpack_device__() == (2, 0)
    for stream in (None, -1, 1, 2, torch.cuda.Stream().cuda_stream):
        taken = torch.from_dlpack(result.__dlpack__(stream=stream, max_version=(1, 0)))
        assert torch.equal(taken, T.max_pool2d(x, 2)) and taken.data_ptr() % 16 == 0
    with pytest.raises(ValueError, match="stream"):
        result.__dlpack__(stream=0)
    with pytest.raises(BufferError):
        result.__dlpack__(copy=True)


OPTIONS = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "dilation": [1, 1], "ceil": False, "adaptive": False}


def test_a_capture_is_refused_and_survives() -> None:
    x = image(1, 2, 8, 8)
    F.max_pool2d(x, 2)
    torch.cuda.synchronize()
    graph, told = torch.cuda.CUDAGraph(), ""
    with torch.cuda.graph(graph):
        y = x * 2
        try:
            F.max_pool2d(x, 2)
        except RuntimeError as error:
            told = str(error)
    assert "CUDA graph" in told
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, x * 2)
    assert torch.equal(F.max_pool2d(x, 2), T.max_pool2d(x, 2))


def test_threads_on_their_own_streams() -> None:
    failed: list[Any] = []

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for step in range(50):
                    x = torch.full((2, 4, 32 + seed, 32), float(seed * 100 + step), device="cuda")
                    y = F.avg_pool2d(F.max_pool2d(x, 2), 2)
                    del x
                    assert bool((y == seed * 100 + step).all()), (seed, step)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_devices_are_not_mixed() -> None:
    x, w = image(1, 2, 8, 8), torch.randn(3, 2, 3, 3)
    with pytest.raises(ValueError, match="one device"):
        F.conv2d(x, w)
    with pytest.raises(ValueError, match="cuda:0"):
        F.max_pool2d(x, 2, device="host")
    assert F.max_pool2d(x, 2, device="cuda").shape == (1, 2, 4, 4)
    with pytest.raises(TypeError, match="windowpane.torch"):
        windowpane._native.extremum_pool(x.requires_grad_(), OPTIONS, False, False, None)  # type: ignore[attr-defined]


def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    from windowpane import ndimage

    x = cupy.random.rand(2, 3, 16, 16, dtype=cupy.float32)
    y, indices = F.max_pool2d(x, 2, return_indices=True)
    assert isinstance(y, cupy.ndarray) and indices.dtype == cupy.int64
    np.testing.assert_array_equal(y.get(), F.max_pool2d(x.get(), 2, device="host"))
    np.testing.assert_array_equal(F.max_pool2d(x[:, ::2], 2).get(), y.get()[:, ::2])
    with cupy.cuda.Stream(non_blocking=True):
        z = F.max_pool2d(x * 3 + 1, 2)
        np.testing.assert_array_equal(z.get(), y.get() * 3 + 1)
    volume = (cupy.random.rand(20, 30, 40) * 1000).astype(cupy.uint16)
    found = ndimage.minimum_filter(volume, (3, 4, 5), mode="mirror")
    assert isinstance(found, cupy.ndarray) and found.dtype == cupy.uint16
    np.testing.assert_array_equal(found.get(), ndimage.minimum_filter(volume.get(), (3, 4, 5), mode="mirror", device="host"))
    np.testing.assert_array_equal(
        ndimage.block_reduce(volume, 2, "mode").get(), ndimage.block_reduce(volume.get(), 2, "mode")
    )


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "float32", "bool"])
def test_filters_of_cupys_arrays(dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    from windowpane import ndimage

    rng = np.random.default_rng(3)
    for shape in [(301, 260), (40, 37, 66), (3, 5, 20, 17)]:
        x = (rng.random(shape) * 250 - 100 * (dtype[0] == "i")).astype(dtype)
        there = cupy.asarray(x)
        for mode, size in [("reflect", 15), ("mirror", 3), ("nearest", 7), ("wrap", 5), ("constant", 4), ("reflect", 2)]:
            for name in ["maximum_filter", "minimum_filter", "uniform_filter", "grey_opening", "median_filter"]:
                if name == "median_filter" and (size > 5 or len(shape) > 2):
                    continue
                function = getattr(ndimage, name)
                found, expected = function(there, size, mode=mode), function(x, size, mode=mode, device="host")
                assert isinstance(found, cupy.ndarray) and found.dtype == expected.dtype
                if dtype == "float32" and name == "uniform_filter":
                    np.testing.assert_allclose(found.get(), expected, rtol=1e-5, err_msg=f"{name} {mode}")
                else:
                    np.testing.assert_array_equal(found.get(), expected, err_msg=f"{name} {mode} {size} {shape}")
        for func in ("mean", "max", "mode"):
            level, expected = (ndimage.pyramid(own, 2, func, 2)[1] for own in (there, x))
            tolerance = 1e-6 if dtype == "float32" and func == "mean" else 0
            np.testing.assert_allclose(level.get(), expected, rtol=tolerance, atol=0, err_msg=func)


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    x = jax.random.normal(jax.random.key(0), (2, 3, 16, 16))
    work = jax.jit(lambda x: x @ x.swapaxes(2, 3))
    for _ in range(5):
        made = work(x)
        y = F.max_pool2d(made, 2)
        assert y.device == x.device
        np.testing.assert_array_equal(np.asarray(y), F.max_pool2d(np.asarray(made), 2, device="host"))
        x = x + y.sum() * 1e-6
