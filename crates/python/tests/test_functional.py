"""The operators compared with plain numpy, on every device that the wheel reaches."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import windowpane
import windowpane.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from windowpane._arrays import window
from windowpane._engines import pad

DEVICES = windowpane.devices()
TYPES = [np.float64, np.float32, np.float16]
INTEGERS = [np.int64, np.int32, np.uint32, np.int16, np.uint16, np.int8, np.uint8, np.bool_]
# Those that kernels lack.
CONVERTED = [np.uint64]


def spread(x: Any, dtype: Any) -> Any:
    """Numbers from -8 to 8 over the range of a type, as far as a float64 and 32-bit integers hold them."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return x > 0
    if dtype.kind == "f":
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    # Every device has 32-bit integers, and many have no float64.
    least, most = max(limits.min, -(1 << 31)), min(limits.max, (1 << (32 if dtype == np.uint32 else 31)) - 1)
    return np.interp(x, [-8, 8], [least, most]).round().clip(least, most).astype(dtype)


def windows(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, fill: float) -> Any:
    """All windows of the last axes: outputs first on those axes, then taps."""
    rank = len(kernel)
    pads = [(0, 0)] * (x.ndim - rank) + [(p, p) for p in padding]
    padded = np.pad(x.astype(np.float64), pads, constant_values=fill)
    view = padded
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    view = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(-rank, 0)))
    steps = (slice(None),) * (x.ndim - rank)
    return view[steps + tuple(slice(None, None, s) for s in stride) + tuple(slice(None, None, d) for d in dilation)]


@st.composite
def pools(draw: Any) -> Any:
    rank = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    stride = [draw(st.integers(1, 3)) for _ in range(rank)]
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    dilation = [draw(st.integers(1, 2)) for _ in range(rank)]
    space = [draw(st.integers((k - 1) * d + 1, 9)) for k, d in zip(kernel, dilation)]
    batch, channels = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**32 - 1))
    x = np.random.default_rng(seed).integers(-8, 9, (batch, channels, *space))
    return rank, x, kernel, stride, padding, dilation


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=25)
@given(pools(), st.sampled_from([np.float32, *INTEGERS, *CONVERTED]), st.sampled_from(["max", "min"]))
def test_extrema(device: str, case: Any, dtype: Any, name: str) -> None:
    rank, x, kernel, stride, padding, dilation = case
    x = spread(x, dtype)
    pool = getattr(F, f"{name}_pool{rank}d")
    y, winners = pool(x, tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), return_indices=True, device=device)
    taps = tuple(range(-rank, 0))
    outside = np.inf if name == "min" else -np.inf
    view = windows(x, kernel, stride, padding, dilation, outside)
    expected = getattr(view, name)(axis=taps)
    assert y.dtype == x.dtype and winners.dtype == np.int64
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(pool(x, kernel, stride, padding, dilation, device=device), y)
    # The first of several equal extrema, in row-major order of the taps.
    positions = np.arange(np.prod(x.shape[2:])).reshape(x.shape[2:])
    positions = np.broadcast_to(positions, x.shape)
    there = windows(positions, kernel, stride, padding, dilation, -1)
    first = np.where((view == expected[(..., *[None] * rank)]) & (there >= 0), there, np.inf).min(axis=taps)
    np.testing.assert_array_equal(winners, first)


@pytest.mark.parametrize("device", [None, *DEVICES])
def test_integers_that_no_float64_tells_apart(device: str | None) -> None:
    x = np.array([[[2**53, 2**53 + 1, 2**53, -(2**63), 2**63 - 1, 2**63 - 2]]])
    try:
        maxima, places = F.max_pool1d(x, 3, return_indices=True, device=device)
        medians, modes = (pool(x, 3, device=device) for pool in (F.median_pool1d, F.mode_pool1d))
    except ValueError as error:
        # A device without int64, which is not chosen unless it is named.
        assert device is not None and device.startswith("wgpu") and "2**53" in str(error)
        return
    assert maxima.dtype == medians.dtype == modes.dtype == np.int64
    assert maxima.tolist() == [[[2**53 + 1, 2**63 - 1]]] and places.tolist() == [[[1, 4]]]
    assert medians.tolist() == [[[2**53, 2**63 - 2]]]
    assert modes.tolist() == [[[2**53, -(2**63)]]]


@pytest.mark.parametrize("device", DEVICES)
def test_unpooled_integers(device: str) -> None:
    for dtype in INTEGERS:
        x = np.array([[[3, 0, 0, 2]]]).astype(dtype)
        y, places = F.max_pool1d(x, 2, return_indices=True, device=device)
        try:
            back = F.max_unpool1d(y, places, 2, device=device)
        except ValueError as error:
            assert dtype == np.int64 and device.startswith("wgpu") and "has no i64" in str(error)
            continue
        assert back.dtype == dtype
        np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=25)
@given(pools(), st.sampled_from([np.float32, np.uint16, np.uint32, np.int64, np.bool_]))
def test_medians(device: str, case: Any, dtype: Any) -> None:
    rank, x, kernel, stride, padding, dilation = case
    x = spread(x, dtype)
    view = windows(x, kernel, stride, padding, dilation, np.inf)
    taps = np.sort(view.reshape(*view.shape[:-rank], -1), axis=-1)
    middle = (taps < np.inf).sum(axis=-1, keepdims=True) // 2
    expected = np.take_along_axis(taps, middle, axis=-1)[..., 0]
    y = getattr(F, f"median_pool{rank}d")(x, kernel, stride, padding, dilation, device=device)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=25)
@given(pools(), st.sampled_from([np.float32, np.uint16, np.uint32, np.int64, np.bool_]))
def test_modes(device: str, case: Any, dtype: Any) -> None:
    rank, x, kernel, stride, padding, dilation = case
    x = spread(x, dtype)
    view = windows(x, kernel, stride, padding, dilation, np.inf)
    taps = view.reshape(*view.shape[:-rank], -1)

    def most(taps: Any) -> Any:
        numbers, counts = np.unique(taps[taps < np.inf], return_counts=True)
        return numbers[counts.argmax()]

    y = getattr(F, f"mode_pool{rank}d")(x, kernel, stride, padding, dilation, device=device)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, np.apply_along_axis(most, -1, taps))


def uniform(seed: int, count: int) -> Any:
    """The random numbers of a seed, by position."""

    def mixed(bits: Any) -> Any:
        bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(0x7FEB352D)
        bits = (bits ^ (bits >> np.uint32(15))) * np.uint32(0x846CA68B)
        return bits ^ (bits >> np.uint32(16))

    own = np.full(1, seed, np.uint32)
    bits = mixed(mixed(np.arange(count, dtype=np.uint32) ^ mixed(own)) + own)
    return (bits >> np.uint32(8)).astype(np.float32) / np.float32(1 << 24)


SEEDS = st.sampled_from([0, 1, 77, 2**32 - 1])


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=25)
@given(pools(), SEEDS)
def test_stochastic_pools(device: str, case: Any, seed: int) -> None:
    rank, x, kernel, stride, padding, dilation = case
    x = x.astype(np.float32)
    pool = getattr(F, f"stochastic_pool{rank}d")

    def taps(x: Any) -> Any:
        view = windows(x, kernel, stride, padding, dilation, -1)
        return view.reshape(*view.shape[:-rank], -1)

    positions = taps(np.broadcast_to(np.arange(np.prod(x.shape[2:])).reshape(x.shape[2:]), x.shape))
    weights = np.where(positions >= 0, taps(x).clip(min=0), 0)
    # Sums of these integers are exact in float32.
    running = weights.cumsum(axis=-1)
    total = running[..., -1:]
    u = uniform(seed, total.size).reshape(total.shape)
    limit = u * total.astype(np.float32)
    chosen = ((positions >= 0) & ((running > limit) | (running == total))).argmax(axis=-1)
    expected = np.take_along_axis(positions, chosen[..., None], -1)[..., 0]
    y, drawn = pool(x, kernel, stride, padding, dilation, return_indices=True, seed=seed, device=device)
    assert y.dtype == x.dtype and drawn.dtype == np.int64
    np.testing.assert_array_equal(drawn, expected)
    planes = x.reshape(*x.shape[:2], -1)
    values = np.take_along_axis(planes, expected.reshape(*x.shape[:2], -1).astype(int), -1)
    np.testing.assert_array_equal(y, values.reshape(y.shape))
    np.testing.assert_array_equal(pool(x, kernel, stride, padding, dilation, seed=seed, device=device), y)
    mean = pool(x, kernel, stride, padding, dilation, training=False, device=device)
    squares = (weights**2).sum(axis=-1)
    np.testing.assert_allclose(mean, squares / np.maximum(total[..., 0], 1), rtol=1e-5)


@st.composite
def fractions(draw: Any) -> Any:
    rank = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    output = [draw(st.integers(1, 5)) for _ in range(rank)]
    space = [draw(st.integers(k + o - 1, k + o + 5)) for k, o in zip(kernel, output)]
    batch, channels = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rank, rng.integers(-8, 9, (batch, channels, *space)).astype(np.float32), kernel, output, rng


def fractional_max(x: Any, kernel: Any, output: Any, samples: Any) -> tuple[Any, Any]:
    """The maxima and their positions; the numbers are in the order of the axes."""
    y, winners = np.zeros((*x.shape[:2], *output), x.dtype), np.zeros((*x.shape[:2], *output), np.int64)
    for at in np.ndindex(y.shape):
        starts = []
        for i, own, k, o, u in zip(at[2:], x.shape[2:], kernel, output, samples[at[:2]]):
            step = np.float32(own - k) / np.float32(max(o - 1, 1))
            start = int((np.float32(i) + u) * step) - int(u * step)
            starts.append(own - k if i + 1 == o else start)
        plane = x[at[:2]]
        part = plane[tuple(slice(start, start + k) for start, k in zip(starts, kernel))]
        y[at] = part.max()
        inner = np.unravel_index(part.argmax(), part.shape)
        winners[at] = np.ravel_multi_index(tuple(np.add(starts, inner)), plane.shape)
    return y, winners


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=25)
@given(fractions(), SEEDS)
def test_fractional_max_pools(device: str, case: Any, seed: int) -> None:
    rank, x, kernel, output, rng = case
    pool = getattr(F, f"fractional_max_pool{rank}d")
    shape = (*x.shape[:2], rank)
    y, winners = pool(x, kernel, output, return_indices=True, seed=seed, device=device)
    expected, positions = fractional_max(x, kernel, output, uniform(seed, int(np.prod(shape))).reshape(shape))
    assert y.dtype == x.dtype and winners.dtype == np.int64
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(winners, positions)
    np.testing.assert_array_equal(pool(x, kernel, output, seed=seed, device=device), y)
    # PyTorch has the width first for images.
    samples = rng.random(shape, dtype=np.float32)
    expected, positions = fractional_max(x, kernel, output, samples[..., ::-1] if rank == 2 else samples)
    y, winners = pool(x, kernel, output, None, True, samples, device=device)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(winners, positions)
    # Those of further samples are left out, and their type is converted.
    more = np.concatenate([samples, samples]).astype(np.float64)
    np.testing.assert_array_equal(pool(x, kernel, output, _random_samples=more, device=device), y)
    np.testing.assert_array_equal(pool(x[0], kernel, output, _random_samples=more, device=device), y[0])


def scattered(dy: Any, indices: Any, shape: Any) -> Any:
    """Each gradient added at its position in its plane."""
    dx = np.zeros((*shape[:2], int(np.prod(shape[2:]))))
    for at in np.ndindex(dy.shape):
        dx[(*at[:2], indices[at])] += dy[at]
    return dx.reshape(shape)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_poolings_with_a_seed(device: str) -> None:
    from windowpane import _native

    rng = np.random.default_rng(8)
    x, samples = rng.random((2, 3, 9, 8), dtype=np.float32), rng.random((2, 3, 2), dtype=np.float32)

    def gradient_of(shape: Any) -> Any:
        return rng.integers(-8, 9, shape).astype(np.float32)

    # GPUs have a kernel for large windows of maxima, which numbers that were drawn must not get.
    for own, size in [(x, [3, 2]), (rng.random((1, 2, 64, 64), dtype=np.float32), [8, 8])]:
        window = {**OPTIONS, "kernel": size, "stride": [1, 1], "padding": [1, 0], "dilation": [1, 1]}
        found = [np.from_dlpack(made) for made in _native.stochastic_pool(own, 5, window, True, device)]
        dy = gradient_of(found[0].shape)
        dx = _native.extremum_pool_backward(dy, found[1], list(own.shape[2:]), window, True, device)
        np.testing.assert_array_equal(np.from_dlpack(dx), scattered(dy, found[1], own.shape))

    for given in (samples, None):
        places = {"kernel": [3, 2], "output": [6, 7], "seed": 5}
        found = [np.from_dlpack(own) for own in _native.fractional_max_pool(x, given, places, True, device)]
        dy = gradient_of(found[0].shape)
        dx = _native.fractional_max_pool_backward(dy, found[1], [9, 8], given, places, device)
        np.testing.assert_array_equal(np.from_dlpack(dx), scattered(dy, found[1], x.shape))


def test_the_ratio_of_a_fractional_pool_is_rounded_down() -> None:
    x = np.random.default_rng(7).random((2, 3, 11, 9))
    for ratio, output in [(0.5, (5, 4)), ((0.3, 0.8), (3, 7)), ([0.99], (10, 8))]:
        y = F.fractional_max_pool2d(x, 2, output_ratio=ratio, seed=3)
        np.testing.assert_array_equal(y, F.fractional_max_pool2d(x, 2, output, seed=3))
    np.testing.assert_array_equal(F.fractional_max_pool2d(x, 1, output_ratio=1), x)
    assert (F.fractional_max_pool2d(x, 2, 4, seed=3) != F.fractional_max_pool2d(x, 2, 4, seed=4)).any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_adaptive_and_global_pools(device: str, rank: int) -> None:
    x = np.random.default_rng(rank).integers(-50, 50, (2, 3, *[7, 6, 5][:rank])).astype(np.float32)
    size = [3, 4, 2][:rank]
    axes = tuple(range(2, 2 + rank))

    def norm(part: Any, axis: Any) -> Any:
        return np.sqrt((part.astype(np.float64) ** 2).sum(axis=axis))

    families: dict[str, Any] = {"max": np.max, "min": np.min, "avg": np.mean, "sum": np.sum, "lp": norm}
    for name, reduce in families.items():
        before = [2] if name == "lp" else []
        y = getattr(F, f"adaptive_{name}_pool{rank}d")(x, *before, size, device=device)
        assert y.shape == (2, 3, *size)
        for at in np.ndindex(*size):
            spans = [slice(i * own // out, -(-(i + 1) * own // out)) for i, own, out in zip(at, x.shape[2:], size)]
            np.testing.assert_allclose(y[(..., *at)], reduce(x[(..., *spans)], axis=axes), rtol=1e-6)
        whole = getattr(F, f"global_{name}_pool{rank}d")(x, *before, device=device)
        np.testing.assert_allclose(whole[(..., *[0] * rank)], reduce(x, axis=axes), rtol=1e-6)
        assert whole.shape == (2, 3, *[1] * rank)
    _, winners = getattr(F, f"global_min_pool{rank}d")(x, True, device=device)
    np.testing.assert_array_equal(winners.reshape(2, 3), x.reshape(2, 3, -1).argmin(axis=2))
    _, winners = getattr(F, f"adaptive_min_pool{rank}d")(x, size, True, device=device)
    lowest = getattr(F, f"adaptive_min_pool{rank}d")(x, size, device=device)
    np.testing.assert_array_equal(np.take_along_axis(x.reshape(2, 3, -1), winners.reshape(2, 3, -1), 2), lowest.reshape(2, 3, -1))


@pytest.mark.parametrize("dtype", [*INTEGERS, *CONVERTED])
def test_sums_and_averages_of_integers(dtype: Any) -> None:
    x = spread(np.random.default_rng(6).integers(-8, 9, (2, 3, 8, 6)), dtype)
    blocks = windows(x, [2, 3], [2, 3], [0, 0], [1, 1], 0)
    sums, means = F.sum_pool2d(x, (2, 3)), F.avg_pool2d(x, (2, 3))
    assert sums.dtype == np.int64 and means.dtype == np.float64
    np.testing.assert_array_equal(sums, blocks.sum(axis=(-2, -1)))
    np.testing.assert_array_equal(means, blocks.sum(axis=(-2, -1)) / 6)
    total = F.global_sum_pool2d(x)
    assert total.dtype == np.int64
    np.testing.assert_array_equal(total[..., 0, 0], x.astype(np.int64).sum(axis=(2, 3)))


def test_integers_of_another_byte_order() -> None:
    for dtype in ["<i4", ">i4", "<u4", ">u4", ">u2", "<i8", ">i8"]:
        x = np.array([[[1, 70, 2, 40]]], dtype=dtype)
        np.testing.assert_array_equal(F.max_pool1d(x, 2), [[[70, 40]]])
        np.testing.assert_array_equal(F.sum_pool1d(x, 2), [[[71, 42]]])


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=25)
@given(pools(), st.booleans())
def test_averages(device: str, case: Any, counts: bool) -> None:
    rank, x, kernel, stride, padding, _ = case
    x, ones = x.astype(np.float32), [1] * rank
    pool = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][rank - 1]
    y = pool(x, kernel, stride, padding, count_include_pad=counts, device=device)
    taps = tuple(range(-rank, 0))
    sums = windows(x, kernel, stride, padding, ones, 0).sum(axis=taps)
    inside = windows(np.ones_like(x), kernel, stride, padding, ones, 0).sum(axis=taps)
    np.testing.assert_allclose(y, sums / (np.prod(kernel) if counts else inside), rtol=1e-6, atol=1e-6)


def convolved(x: Any, w: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """The sums of products, in float64."""
    rank, each, filters = len(kernel), w.shape[1], w.shape[0] // groups
    view = windows(x, kernel, stride, padding, dilation, 0)
    inner = tuple(range(2 + rank, 2 + 2 * rank))
    parts = []
    for group in range(groups):
        own = view[:, group * each : (group + 1) * each]
        part = w[group * filters : (group + 1) * filters].astype(np.float64)
        parts.append(np.tensordot(own, part, axes=((1, *inner), (1, *range(2, 2 + rank)))))
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=25)
@given(pools(), st.integers(1, 2), st.integers(1, 3), st.sampled_from(["float32", "int8"]))
def test_quantized_convolutions(device: str, case: Any, groups: int, filters: int, dtype: str) -> None:
    rank, x, kernel, stride, padding, dilation = case
    random = np.random.default_rng(filters)
    x = np.concatenate([x] * groups, axis=1)
    x = random.integers(-128, 128, x.shape).astype(np.int8)
    w = random.integers(-128, 128, (groups * filters, x.shape[1] // groups, *kernel)).astype(np.int8)
    # Powers of two, so that nothing is rounded but a result in int8.
    scale = np.exp2(-random.integers(7, 14, groups * filters)).astype(np.float32)
    bias = random.integers(-9, 9, groups * filters).astype(np.float32)
    conv = [F.quantized_conv1d, F.quantized_conv2d, F.quantized_conv3d][rank - 1]
    y = conv(
        x, w, scale, bias, tuple(stride), tuple(padding), tuple(dilation), groups,
        activation="relu", dtype=dtype, device=device,
    )
    sums = convolved(x, w, kernel, stride, padding, dilation, groups)
    one = (-1, *[1] * rank)
    expected = np.maximum(sums * scale.reshape(one) + bias.reshape(one), 0)
    if dtype == "int8":
        expected = np.rint(expected).clip(-128, 127)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=25)
@given(pools(), st.integers(1, 2), st.integers(1, 3))
def test_convolutions(device: str, case: Any, groups: int, filters: int) -> None:
    rank, x, kernel, stride, padding, dilation = case
    x = np.concatenate([x] * groups, axis=1).astype(np.float32)
    each = x.shape[1] // groups
    w = np.random.default_rng(filters).integers(-4, 5, (groups * filters, each, *kernel)).astype(np.float32)
    bias = np.arange(groups * filters, dtype=np.float32)
    conv = [F.conv1d, F.conv2d, F.conv3d][rank - 1]
    y = conv(x, w, bias, tuple(stride), tuple(padding), tuple(dilation), groups, device=device)
    sums = convolved(x, w, kernel, stride, padding, dilation, groups)
    expected = sums + bias.reshape(-1, *[1] * rank)
    np.testing.assert_array_equal(y, expected)

    # The transposed convolution is the adjoint: ⟨conv(x), g⟩ = ⟨x, conv_transpose(g)⟩.
    transpose = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][rank - 1]
    g = np.random.default_rng(1).integers(-4, 5, y.shape).astype(np.float32)
    lost = [
        (size + 2 * p - (k - 1) * d - 1) % s
        for size, p, k, d, s in zip(x.shape[2:], padding, kernel, dilation, stride)
    ]
    back = transpose(g, w, None, stride, padding, lost, groups, dilation, device=device)
    assert back.shape == x.shape
    shifts = np.arange(x.shape[1], dtype=np.float32)
    biased = transpose(g, w, shifts, stride, padding, lost, groups, dilation, device=device)
    np.testing.assert_array_equal(biased, back + shifts.reshape(-1, *[1] * rank))
    plain = expected - bias.reshape(-1, *[1] * rank)
    assert float((plain * g).sum()) == float((x.astype(np.float64) * back).sum())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
def test_types(device: str, dtype: Any) -> None:
    x = np.random.default_rng(1).random((2, 3, 9, 8)).astype(dtype)
    try:
        y = F.max_pool2d(x, 3, 2, 1, device=device)
    except ValueError as error:
        # WGSL has no f64, and half of the devices with shaders no f16.
        assert device.split(":")[0] in ("wgpu", "vulkan") and "f64" in str(error), error
        return
    assert isinstance(y, np.ndarray) and y.dtype == dtype and y.flags.aligned
    np.testing.assert_array_equal(y, windows(x, [3, 3], [2, 2], [1, 1], [1, 1], -np.inf).max(axis=(-2, -1)))
    norm = F.lp_pool2d(x, 2, 2, device=device).astype(np.float64)
    squares = (windows(x, [2, 2], [2, 2], [0, 0], [1, 1], 0) ** 2).sum(axis=(-2, -1))
    np.testing.assert_allclose(norm, np.sqrt(squares), rtol=4 * float(np.finfo(dtype).eps))
    # These move numbers without computing others.
    for pooled, indices in [
        F.stochastic_pool2d(x, 2, return_indices=True, seed=1, device=device),
        F.fractional_max_pool2d(x, 2, 3, return_indices=True, seed=1, device=device),
    ]:
        assert pooled.dtype == dtype
        taken = np.take_along_axis(x.reshape(2, 3, -1), indices.reshape(2, 3, -1), 2)
        np.testing.assert_array_equal(pooled, taken.reshape(pooled.shape))


def test_adaptive_and_unpooling() -> None:
    x = np.random.default_rng(2).random((2, 3, 7, 10))
    y = F.adaptive_avg_pool2d(x, (3, None), device="host")
    assert y.shape == (2, 3, 3, 10)
    rows = [x[:, :, i * 7 // 3 : -(-(i + 1) * 7 // 3)].mean(axis=2) for i in range(3)]
    np.testing.assert_allclose(y, np.stack(rows, axis=2), rtol=1e-14)
    top, winners = F.adaptive_max_pool2d(x, 1, True, device="host")
    np.testing.assert_array_equal(top[..., 0, 0], x.max(axis=(2, 3)))
    np.testing.assert_array_equal(winners[..., 0, 0], x.reshape(2, 3, -1).argmax(axis=2))
    y, winners = F.max_pool2d(x, 2, return_indices=True, device="host")
    back = F.max_unpool2d(y, winners, 2, output_size=x.shape, device="host")
    np.testing.assert_array_equal(back, np.where(back != 0, x, 0))
    assert back.shape == x.shape and (back != 0).sum() == y.size


def test_strides_of_views_are_followed() -> None:
    x = np.random.default_rng(3).random((4, 6, 12, 10))
    for view in [x[::2], x[:, ::-1], x.transpose(0, 1, 3, 2), x[..., 1:9:2], np.broadcast_to(x[:1], x.shape)]:
        expected = F.max_pool2d(np.ascontiguousarray(view), 2, device="host")
        np.testing.assert_array_equal(F.max_pool2d(view, 2, device="host"), expected)
    empty = F.max_pool2d(x[:0], 2, device="host")
    assert empty.shape == (0, 6, 6, 5)
    read_only = x.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(F.max_pool2d(read_only, 2, device="host"), F.max_pool2d(x, 2, device="host"))


def test_one_sample_needs_no_batch() -> None:
    x = np.random.default_rng(4).random((3, 8, 8))
    w = np.random.default_rng(5).random((3, 2, 3, 3))
    y, winners = F.max_pool2d(x[None], 2, return_indices=True, device="host")
    calls: list[Any] = [
        lambda x: F.max_pool2d(x, 2, device="host"),
        lambda x: F.max_pool2d(x, 2, return_indices=True, device="host")[1],
        lambda x: F.adaptive_avg_pool2d(x, 3, device="host"),
        lambda x: F.stochastic_pool2d(x, 2, return_indices=True, seed=5, device="host")[1],
        lambda x: F.fractional_max_pool2d(x, 2, 3, return_indices=True, seed=5, device="host")[1],
        lambda x: F.conv2d(x, w.transpose(1, 0, 2, 3), device="host"),
        lambda x: F.conv_transpose2d(x, w, np.ones(2), device="host"),
    ]
    for call in calls:
        np.testing.assert_array_equal(call(x), call(x[None])[0])
    back = F.max_unpool2d(y[0], winners[0], 2, device="host")
    np.testing.assert_array_equal(back, F.max_unpool2d(y, winners, 2, device="host")[0])


def test_ceil_divisor_and_padding_words() -> None:
    x = np.arange(7.0).reshape(1, 1, 7)
    np.testing.assert_array_equal(F.max_pool1d(x, 2, ceil_mode=True, device="host"), [[[1, 3, 5, 6]]])
    np.testing.assert_array_equal(F.avg_pool1d(x, 2, ceil_mode=True, device="host"), [[[0.5, 2.5, 4.5, 6]]])
    image = np.arange(16.0).reshape(1, 1, 4, 4)
    sums = F.avg_pool2d(image, 2, divisor_override=1, device="host")
    np.testing.assert_array_equal(sums, [[[[10, 18], [42, 50]]]])
    np.testing.assert_allclose(F.lp_pool1d(-x, 3, 7, device="host"), [[[441 ** (1 / 3)]]], rtol=1e-14)
    ones = np.ones((1, 1, 2, 2))
    assert F.conv2d(image, ones, padding="valid", device="host").shape == (1, 1, 3, 3)
    # An even kernel reaches one further after than before.
    same = F.conv2d(image, ones, padding="same", device="host")
    padded = np.pad(image[0, 0], ((0, 1), (0, 1)))
    expected = sum(padded[i : i + 4, j : j + 4] for i in range(2) for j in range(2))
    np.testing.assert_array_equal(same[0, 0], expected)


def quantized(x: Any, **options: Any) -> Any:
    """A quantized convolution with filters that suit `x`, which has integers unless it has floats of 32 bits."""
    x = x if x.dtype == np.float32 else x.astype(np.int8)
    w = np.ones((2, x.shape[1], 3, 3), np.int8)
    return F.quantized_conv2d(x, w, np.ones(2, np.float32), **options)


class Subclass(np.ndarray[Any, Any]):
    """An array of a library that windowpane does not know, but whose base it does."""


def test_results_are_of_the_callers_library() -> None:
    x = np.arange(8.0).reshape(1, 1, 8)
    assert type(F.max_pool1d(x.view(Subclass), 2, device="host")) is np.ndarray
    y, _ = windowpane._native.extremum_pool(x, OPTIONS, False, False, "host")  # type: ignore[attr-defined]
    again = F.max_pool1d(y, 2, device="host")
    assert isinstance(again, windowpane.Array) and again.shape == (1, 1, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_is_refused_and_does_not_hang() -> None:
    x = np.ones((1, 1, 8))
    F.max_pool1d(x, 2, device="host")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            F.max_pool1d(x, 2, device="host")
            os.write(write, b"computed")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    told = os.read(read, 1000).decode()
    os.waitpid(child, 0)
    assert "spawn" in told


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: F.max_pool2d(x, 9, device="host"), ValueError, "kernel"),
        (lambda x: F.max_pool2d(x, 3, padding=2), ValueError, "at most half"),
        (lambda x: F.max_pool2d(x, -1), ValueError, "kernel_size"),
        (lambda x: F.max_pool2d(x, (2.5, 2)), TypeError, "float"),
        (lambda x: F.avg_pool2d(x, 2, divisor_override=0), ValueError, "divisor_override"),
        (lambda x: F.adaptive_avg_pool2d(x, (1, 2, 3)), ValueError, "output_size"),
        (lambda x: F.max_pool2d(x, (1, 2, 3)), ValueError, "kernel_size needs 2 numbers"),
        (lambda x: F.max_pool2d(x[0, 0], 2), ValueError, "4 axes"),
        (lambda x: F.max_pool2d(x.astype(np.uint64) << 60, 2), ValueError, "2\\*\\*53"),
        (lambda x: F.global_sum_pool2d(x.astype(np.int64) << 50), ValueError, "2\\*\\*53"),
        (lambda x: F.lp_pool2d(x.astype(np.int32), 2, 2), ValueError, "i32"),
        (lambda x: quantized(x.astype(np.float32)), TypeError, "the weight has elements of type i8"),
        (lambda x: quantized(x, dtype="uint8"), ValueError, "float16, bfloat16, int8; found 'uint8'"),
        (lambda x: quantized(x, activation="tanh"), ValueError, "relu"),
        (lambda x: quantized(x, activation="relu6", dtype="int8"), ValueError, "use none, relu or leaky"),
        (lambda x: F.stochastic_pool2d(x.astype(np.int32), 2), ValueError, "i32"),
        (lambda x: F.stochastic_pool2d(x, 2, seed=-1), ValueError, "2\\*\\*32 - 1; found -1"),
        (lambda x: F.stochastic_pool2d(x, 2, seed=1 << 32), ValueError, "seed is from 0"),
        (lambda x: F.stochastic_pool2d(x, 2, seed=1.5), TypeError, "float"),
        (lambda x: F.stochastic_pool2d(x, 2, return_indices=True, training=False), ValueError, "training=True"),
        (lambda x: F.stochastic_pool2d(x, 3, padding=2), ValueError, "at most half"),
        (lambda x: F.stochastic_pool2d(x[0, 0], 2), ValueError, "4 axes"),
        (lambda x: F.fractional_max_pool2d(x, 2), ValueError, "output_size or output_ratio"),
        (lambda x: F.fractional_max_pool2d(x, 2, 3, 0.5), ValueError, "not both"),
        (lambda x: F.fractional_max_pool2d(x, 2, (1, 2, 3)), ValueError, "output_size needs 2 numbers"),
        (lambda x: F.fractional_max_pool2d(x, 2, output_ratio=(0.5, 0.5, 0.5)), ValueError, "output_ratio needs 2"),
        (lambda x: F.fractional_max_pool2d(x, 2, output_ratio=1.5), ValueError, "output_ratio .* found 1.5"),
        (lambda x: F.fractional_max_pool2d(x, 2, output_ratio=0.1), ValueError, "output_size needs .* found 0"),
        (lambda x: F.fractional_max_pool2d(x, 3, 7), ValueError, "7 windows of 3 .* at least 9"),
        (lambda x: F.fractional_max_pool2d(x, 2, 3, seed=-1), ValueError, "seed is from 0"),
        (lambda x: F.fractional_max_pool2d(x, 2, 3, _random_samples=[0.5]), TypeError, "_random_samples .* list"),
        (lambda x: F.fractional_max_pool2d(x, 2, 3, _random_samples=np.ones((1, 2, 2))), ValueError, "\\(1, 3, 2\\)"),
        (lambda x: F.fractional_max_pool2d(x, 2, 3, _random_samples=np.ones((0, 3, 2))), ValueError, "\\(0, 3, 2\\)"),
        (lambda x: F.fractional_max_pool2d(x, 2, 3, _random_samples=np.ones((3, 2))), ValueError, "_random_samples"),
        (lambda x: F.fractional_max_pool2d(x.astype(np.int32), 2, 3), ValueError, "i32"),
        (lambda x: F.lp_pool2d(x > 0, 2, 2), ValueError, "bool"),
        (lambda x: F.max_pool2d([1, 2], 2), TypeError, "list"),
        (lambda x: F.max_pool2d(np.broadcast_to(x[:1, :1, :1, :1], (1, 1, 1 << 21, 1 << 21)), 2), ValueError, "elements"),
        (lambda x: F.max_unpool2d(x, x.astype(np.int64), 2, output_size=(99, 99)), ValueError, "output_size"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 3, 3), np.float32)), TypeError, "float|f32"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 3, 3)), np.ones((2, 2))), ValueError, "bias"),
        (lambda x: F.conv_transpose2d(x, np.ones((3, 1, 3, 3)), np.ones(5)), ValueError, "bias"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 3))), ValueError, "4 axes"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 2, 2)), stride=2, padding="same"), ValueError, "stride of 1"),
        (lambda x: F.max_pool2d(x, 2, device="nothing"), ValueError, "nothing"),
        (lambda x: F.max_pool2d(x, 2, device="host:x"), ValueError, "host:x"),
        (lambda x: F.conv2d(x, np.ones((4, 2, 3, 3)), device="host"), ValueError, "channels"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 2, 2)), padding="full"), ValueError, "full"),
    ],
)
def test_errors_are_exceptions(call: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        call(np.ones((1, 3, 8, 8)))


def test_threads_share_a_device() -> None:
    x = np.random.default_rng(5).random((2, 3, 16, 16)).astype(np.float32)
    expected = F.max_pool2d(x, 3, device="host")
    found: list[Any] = []

    def work() -> None:
        for _ in range(10):
            found.append(F.max_pool2d(x, 3, device=DEVICES[0]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    for y in found:
        np.testing.assert_array_equal(y, expected)


OPTIONS = {"kernel": [2], "stride": [2], "padding": [0], "dilation": [1], "ceil": False, "adaptive": False}


def test_results_are_arrays_for_every_library() -> None:
    from windowpane import _native

    y, none = _native.extremum_pool(np.arange(8.0).reshape(1, 1, 8), OPTIONS, False, False, "host")
    assert none is None and y.shape == (1, 1, 4) and y.__dlpack_device__() == (1, 0)
    shared, copied = np.from_dlpack(y), np.from_dlpack(y, copy=True)
    np.testing.assert_array_equal(shared, [[[1, 3, 5, 7]]])
    np.testing.assert_array_equal(copied, shared)
    assert shared.ctypes.data != copied.ctypes.data
    assert shared.ctypes.data == np.from_dlpack(y).ctypes.data
    del y
    np.testing.assert_array_equal(shared, [[[1, 3, 5, 7]]])


# The parameters of PyTorch 2, in order, with their defaults.
POOL = "input, kernel_size, stride=None, padding=0"
SIGNATURES = {
    # These PyTorch lacks.
    "min_pool": f"{POOL}, dilation=1, ceil_mode=False, return_indices=False",
    "median_pool": f"{POOL}, dilation=1, ceil_mode=False",
    "mode_pool": f"{POOL}, dilation=1, ceil_mode=False",
    "sum_pool": f"{POOL}, ceil_mode=False",
    "stochastic_pool": f"{POOL}, dilation=1, ceil_mode=False, return_indices=False",
    "adaptive_min_pool": "input, output_size, return_indices=False",
    "adaptive_sum_pool": "input, output_size",
    "adaptive_lp_pool": "input, norm_type, output_size",
    "global_max_pool": "input, return_indices=False",
    "global_avg_pool": "input",
    "global_lp_pool": "input, norm_type",
    "quantized_conv": "input, weight, scale, bias=None, stride=1, padding=0, dilation=1, groups=1",
    # These it has.
    "max_pool": f"{POOL}, dilation=1, ceil_mode=False, return_indices=False",
    # It has no divisor for signals.
    "avg_pool": f"{POOL}, ceil_mode=False, count_include_pad=True, divisor_override=None",
    "lp_pool": "input, norm_type, kernel_size, stride=None, ceil_mode=False",
    # It has none for signals.
    "fractional_max_pool": (
        "input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None"
    ),
    "adaptive_max_pool": "input, output_size, return_indices=False",
    "adaptive_avg_pool": "input, output_size",
    "max_unpool": "input, indices, kernel_size, stride=None, padding=0, output_size=None",
    "conv": "input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1",
    "conv_transpose": "input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1",
}


@pytest.mark.parametrize("family", SIGNATURES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_signatures_are_those_of_pytorch(family: str, rank: int) -> None:
    expected = SIGNATURES[family]
    found = inspect.signature(getattr(F, f"{family}{rank}d")).parameters.values()
    positional = [p for p in found if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    written = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in positional]
    assert ", ".join(written) == expected
    assert f"{family}{rank}d" in F.__all__


def test_functions_are_pickled_and_described_by_name() -> None:
    for name in F.__all__:
        function = getattr(F, name)
        assert pickle.loads(pickle.dumps(function)) is function
        assert function.__name__ == name and function.__doc__


def test_nothing_is_printed_where_there_is_no_desktop() -> None:
    code = """
import threading, windowpane
threads = [threading.Thread(target=windowpane.devices) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*windowpane.devices())
"""
    shown = {name: value for name, value in os.environ.items() if name not in ("XDG_RUNTIME_DIR", "NODEVICE_SELECT")}
    ran = subprocess.run([sys.executable, "-c", code], env=shown, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == DEVICES and ran.stderr == ""


def test_results_have_memory_of_their_own() -> None:
    x = np.arange(24.0, dtype="float32").reshape(1, 2, 3, 4)
    x.flags.writeable = False
    y = F.max_pool2d(x, 1)
    # The operator returns the input itself here.
    same = pad(x, window(2, 1, 1, 0), "wrap", 0)
    for found in (y, same):
        np.testing.assert_array_equal(found, x)
        assert not np.shares_memory(x, found)
    odd = np.ndarray((1, 2, 3, 4), "float32", buffer=bytearray(100), offset=1)
    odd[...] = x
    for view in (odd, x.transpose(0, 1, 3, 2), x[:, :, ::-1], x[..., 1:], np.asfortranarray(x)):
        np.testing.assert_array_equal(F.max_pool2d(view, 1), view)
    del x
    assert y.sum() == 276.0


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="there is no /proc/self/clear_refs")
def test_dense_arrays_are_not_copied() -> None:
    def megabytes(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) >> 10 for line in lines if line.startswith(name))

    x = np.ones((1, 1, 1 << 25), "float32")
    F.max_pool1d(x[..., : 1 << 20], 1 << 12, device="host")
    Path("/proc/self/clear_refs").write_text("5")
    used = megabytes("VmRSS")
    F.max_pool1d(x, 1 << 12, device="host")
    assert megabytes("VmHWM") - used < 64
