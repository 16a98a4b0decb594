"""The filters beside SciPy's, the reductions beside scikit-image's, and chunks beside the whole."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import windowpane
from hypothesis import given, settings
from hypothesis import strategies as st
from windowpane import ndimage as W

S = pytest.importorskip("scipy.ndimage")
measure = pytest.importorskip("skimage.measure")

DEVICES = sorted({"host", windowpane.devices()[0].replace("host:0", "host")})
TYPES = ["uint8", "int8", "uint16", "int16", "int32", "uint32", "int64", "float32", "float64", "bool"]
MODES = ["reflect", "mirror", "nearest", "wrap", "constant"]
FLAT = ["maximum_filter", "minimum_filter"]
RANKS = ["median_filter", "rank_filter", "percentile_filter"]
GREY = ["grey_erosion", "grey_dilation", "grey_opening", "grey_closing", "white_tophat", "black_tophat", "morphological_gradient"]
BINARY = ["binary_erosion", "binary_dilation", "binary_opening", "binary_closing"]


@st.composite
def images(draw: Any, types: Any = TYPES) -> Any:
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    dtype = np.dtype(draw(st.sampled_from(types)))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).integers(-100, 100, shape)
    if dtype == np.uint64:
        # What a negative number wraps to is more than a float64 holds.
        numbers = abs(numbers)
    return (numbers % 2 == 0) if dtype == bool else numbers.astype(dtype)


@st.composite
def windows(draw: Any, x: Any, names: Any) -> Any:
    """A filter and its options, for an image."""
    axes = draw(st.lists(st.integers(0, x.ndim - 1), min_size=1, max_size=3, unique=True).map(sorted))
    sizes = [draw(st.integers(1, 6)) for _ in axes]
    options: dict[str, Any] = {"axes": tuple(axes)}
    if draw(st.booleans()):
        shape = np.random.default_rng(draw(st.integers(0, 99))).random(sizes) < 0.6
        shape[tuple(size // 2 for size in sizes)] = True
        options["footprint"] = shape
        options["mode"] = draw(st.sampled_from(MODES))
    else:
        options["size"] = tuple(sizes)
        options["mode"] = [draw(st.sampled_from(MODES)) for _ in axes]
    options["origin"] = [draw(st.integers(-(size // 2), (size - 1) // 2)) for size in sizes]
    # As it is mirrored, an even window may not be moved as far.
    if draw(st.sampled_from(names)) not in FLAT + RANKS:
        options["origin"] = 0
    options["cval"] = draw(st.integers(0, 1)) if x.dtype == bool else draw(st.integers(0, 100))
    return options


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=120)
@given(st.data())
def test_extrema_are_those_of_scipy(device: str, data: Any) -> None:
    name = data.draw(st.sampled_from(FLAT + GREY))
    types = TYPES + ["uint64"] * (name in FLAT)
    x = data.draw(images([kind for kind in types if kind != "bool" or name != "morphological_gradient"]))
    options = data.draw(windows(x, [name]))
    expected = getattr(S, name)(x, **options)
    found = getattr(W, name)(x, **options, device=device if x.dtype != np.float64 else "host")
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@settings(deadline=None)
@given(st.data())
def test_borders_by_a_kernel_are_those_of_numpy(data: Any) -> None:
    """What is past the edges is the same, whether a kernel writes it or the array's library."""
    x = data.draw(images(TYPES))
    options = data.draw(windows(x, ["maximum_filter"]))
    expected = W.maximum_filter(x, **options, device="host")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(W, "_is_native", lambda x: False)
        found = W.maximum_filter(x, **options, device="host")
    np.testing.assert_array_equal(found, expected)


def test_reductions_of_nothing_are_empty() -> None:
    x = np.zeros((0, 8), np.uint8)
    for func in ("mean", "max", "min", "mode"):
        assert [level.shape for level in W.pyramid(x, func=func)] == [(0, 8), (0, 4), (0, 2), (0, 1)]
        assert W.block_reduce(x, 3, func).shape == (0, 3)


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=120)
@given(st.data())
def test_ranks_are_those_of_scipy(device: str, data: Any) -> None:
    name = data.draw(st.sampled_from(RANKS))
    x = data.draw(images(TYPES + ["uint64"]))
    options = data.draw(windows(x, [name]))
    # SciPy takes one mode for all axes.
    options["mode"] = options["mode"] if isinstance(options["mode"], str) else options["mode"][0]
    shape = options.get("footprint")
    count = int(np.prod(options["size"]) if shape is None else shape.sum())
    if name == "rank_filter":
        options["rank"] = data.draw(st.integers(-count, count - 1))
    if name == "percentile_filter":
        options["percentile"] = data.draw(st.one_of(st.integers(-100, 100), st.floats(0, 100)))
    # With one axis more, because SciPy 1.17 filters an array of one axis as if its footprint had no holes.
    axes = tuple(axis + 1 for axis in options["axes"])
    expected = getattr(S, name)(x[None], **{**options, "axes": axes})[0]
    found = getattr(W, name)(x, **options, device=device if x.dtype != np.float64 else "host")
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_ranks_of_large_windows() -> None:
    rng = np.random.default_rng(7)
    x = rng.integers(0, 2**16, (70, 90)).astype(np.uint16)
    at = np.hypot(*np.indices((17, 17)) - 8) <= 8
    np.testing.assert_array_equal(W.median_filter(x, 21), S.median_filter(x, 21))
    np.testing.assert_array_equal(W.median_filter(x, footprint=at), S.median_filter(x, footprint=at))
    volume = rng.random((9, 8, 7, 6), np.float32)
    np.testing.assert_array_equal(W.median_filter(volume, 3), S.median_filter(volume, 3))
    np.testing.assert_array_equal(W.rank_filter(volume, 5, (1, 3, 3, 3)), S.rank_filter(volume, 5, (1, 3, 3, 3)))


def test_ranks_under_footprints_are_copied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(8).integers(0, 999, (23, 11)).astype(np.int32)
    cross = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], bool)
    expected = S.percentile_filter(x, 30, footprint=cross)
    for copied in (1, 130, 1 << 24):
        monkeypatch.setattr(W, "_COPIED", copied)
        np.testing.assert_array_equal(W.percentile_filter(x, 30, footprint=cross), expected)


def test_ranks_of_not_a_number_are_not_a_number() -> None:
    x = np.arange(36, dtype=np.float32).reshape(6, 6)
    x[2, 3] = np.nan
    for found in (W.median_filter(x, 3), W.rank_filter(x, 0, 3), W.rank_filter(x, -1, 3)):
        near = np.zeros((6, 6), bool)
        near[1:4, 2:5] = True
        np.testing.assert_array_equal(np.isnan(found), near)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_heights_are_those_of_scipy(data: Any) -> None:
    name = data.draw(st.sampled_from(GREY))
    x = data.draw(images(["int32", "float64", "int16"]))
    shape = [data.draw(st.integers(1, 3)) for _ in range(x.ndim)]
    structure = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-5, 6, shape)
    expected = getattr(S, name)(x, structure=structure)
    np.testing.assert_array_equal(getattr(W, name)(x, structure=structure), expected)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_averages_are_those_of_scipy(data: Any) -> None:
    x = data.draw(images([kind for kind in TYPES if kind != "bool"]))
    options = data.draw(windows(x, FLAT))
    shape = options.pop("footprint", None)
    if shape is not None:
        options["size"] = shape.shape
    expected = S.uniform_filter(x, **options)
    found = W.uniform_filter(x, **options)
    assert found.dtype == expected.dtype
    if x.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_averages_of_the_whole_range(dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.random.default_rng(5).integers(limits.min, limits.max, (40, 330), dtype, endpoint=True)
    x[:, :40], x[:, 200:] = limits.min, limits.max
    # The longest windows have sums of more than 16 and of more than 24 bits.
    for size in (2, 31, (1, 255), (1, 257), (3, 300)):
        np.testing.assert_array_equal(W.uniform_filter(x, size), S.uniform_filter(x, size), err_msg=str(size))
    half = W.uniform_filter(x, 9, mode="constant", cval=0.5)
    np.testing.assert_array_equal(half, S.uniform_filter(x, 9, mode="constant", cval=0.5))
    blocks = x.astype(np.float64).reshape(10, 4, 110, 3).mean(axis=(1, 3))
    np.testing.assert_array_equal(W.block_reduce(x, (4, 3)), blocks)
    np.testing.assert_array_equal(W.pyramid(x, (4, 3))[1], np.rint(blocks).astype(dtype))


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_binary_filters_are_those_of_scipy(data: Any) -> None:
    x = data.draw(images(["bool", "uint8"]))
    structure = None
    if data.draw(st.booleans()):
        shape = [data.draw(st.integers(1, 4)) for _ in range(x.ndim)]
        structure = np.random.default_rng(data.draw(st.integers(0, 99))).random(shape) < 0.7
        structure[tuple(size // 2 for size in shape)] = True
    options = {"iterations": data.draw(st.integers(1, 3)), "border_value": data.draw(st.integers(0, 1))}
    if data.draw(st.booleans()):
        options["mask"] = np.random.default_rng(1).random(x.shape) < 0.7
    for name in BINARY:
        expected = getattr(S, name)(x, structure, **options, brute_force=True)
        np.testing.assert_array_equal(getattr(W, name)(x, structure, **options), expected, err_msg=name)
    seed = x & False
    seed.flat[0] = True
    grown = S.binary_dilation(seed, iterations=-1, mask=x)
    np.testing.assert_array_equal(W.binary_dilation(seed, iterations=-1, mask=x != 0), grown)


def test_large_windows_and_discs() -> None:
    x = np.random.default_rng(3).integers(0, 2**16, (150, 130)).astype(np.uint16)
    at = np.hypot(*np.indices((31, 31)) - 15) <= 15
    np.testing.assert_array_equal(W.maximum_filter(x, 101), S.maximum_filter(x, 101))
    np.testing.assert_array_equal(W.minimum_filter(x, footprint=at), S.minimum_filter(x, footprint=at))


def test_output_and_views() -> None:
    x = np.random.default_rng(4).random((12, 10))
    kept = np.zeros((12, 10), np.float32)
    assert W.maximum_filter(x, 3, output=kept) is kept
    np.testing.assert_array_equal(kept, S.maximum_filter(x, 3).astype(np.float32))
    assert W.grey_opening(x, 3, output=np.float32).dtype == np.float32
    same = W.maximum_filter(x, 1)
    assert same is not x and not np.shares_memory(same, x)
    np.testing.assert_array_equal(W.maximum_filter(x.T[::2], 3), S.maximum_filter(x.T[::2], 3))
    assert W.maximum_filter(x[:0], 3).shape == (0, 10)
    with pytest.warns(UserWarning, match="ignoring size"):
        W.maximum_filter(x, 3, footprint=np.ones((3, 3)))


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_reductions_are_those_of_scikit_image(data: Any) -> None:
    x = data.draw(images([kind for kind in TYPES if kind != "bool"]))
    sizes = tuple(data.draw(st.integers(1, 4)) for _ in range(x.ndim))
    fill = data.draw(st.integers(0, 5))
    for name, func in [("mean", np.mean), ("max", np.max), ("min", np.min)]:
        expected = measure.block_reduce(x, sizes, func, fill)
        found = W.block_reduce(x, sizes, name, fill)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6 if name == "mean" else 0, atol=1e-5 if name == "mean" else 0)

    def most(block: Any, axis: Any) -> Any:
        flat = block.reshape(*block.shape[: x.ndim], -1)
        return np.apply_along_axis(lambda own: np.unique(own)[np.unique(own, return_counts=True)[1].argmax()], -1, flat)

    found = W.block_reduce(x, sizes, "mode", fill)
    np.testing.assert_array_equal(found, measure.block_reduce(x, sizes, most, fill))


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("uint8", [0, 1, 200, 255]),
        ("int64", [-(2**31), 7, 2**31 - 1]),
        ("uint64", [0, 2**32 - 1, 5]),
        ("uint64", [2**63, 2**64 - 1, 3]),
        ("int64", [-(2**40), 2**40]),
        ("uint32", [2**32 - 1, 2**31, 0]),
        (">i2", [-5, 300]),
        ("bool", [False, True]),
        ("float16", [0.0, -0.0, 2.5]),
        ("float64", [np.inf, -1e300, 1.0]),
    ],
)
def test_modes_of_labels(dtype: str, values: list[Any]) -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(7)
    for shape, sizes in [((6, 4, 8), (2, 2, 2)), ((8, 6), (4, 3)), ((2, 3, 4, 4, 2), (2, 3, 2, 4, 1)), ((4, 90), (4, 30))]:
        x = np.array(values, dtype)[rng.integers(0, len(values), shape)]
        split = [part for extent, size in zip(shape, sizes) for part in (extent // size, size)]
        axes = (*range(0, 2 * x.ndim, 2), *range(1, 2 * x.ndim, 2))
        blocks = x.reshape(split).transpose(axes).reshape(*split[::2], -1)
        found = W.block_reduce(x, sizes, "mode")
        assert found.dtype == x.dtype
        blocks = blocks.astype(np.uint8) if dtype == "bool" else blocks
        np.testing.assert_array_equal(found, stats.mode(blocks, axis=-1).mode)
    assert np.isnan(W.block_reduce(np.array([1.0, np.nan, 1.0, 1.0]), 4, "mode"))
    # More elements than the block has.
    np.testing.assert_array_equal(W.pyramid(np.array([3, 1, 3], np.int32), 8, "mode")[1], [3])


def test_pyramids() -> None:
    x = np.arange(5 * 7, dtype=np.uint8).reshape(5, 7)
    levels = W.pyramid(x, func="max")
    assert [level.shape for level in levels] == [(5, 7), (3, 4), (2, 2), (1, 1)]
    assert levels[1][2, 3] == 34 and levels[-1][0, 0] == 34
    assert [level.shape for level in W.pyramid(x, (1, 2), levels=2)] == [(5, 7), (5, 4)]
    means = W.pyramid(x.astype(np.float64))
    assert means[1][2, 3] == 34 and means[1][2, 0] == (28 + 29) / 2
    assert W.pyramid(x)[1].dtype == np.uint8
    labels = np.array([[1, 1, 9], [2, 1, 9], [3, 3, 9]], np.uint16)
    np.testing.assert_array_equal(W.pyramid(labels, func="mode", levels=2)[1], [[1, 9], [3, 9]])


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_chunks_are_filtered_as_the_whole(data: Any) -> None:
    da = pytest.importorskip("dask.array")
    name = data.draw(st.sampled_from(FLAT + RANKS + ["grey_opening", "grey_closing", "white_tophat", "uniform_filter"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.integers(0, 99, [data.draw(st.integers(6, 20)) for _ in range(2)]).astype(np.int16)
    options = data.draw(windows(x, [name]))
    if name == "uniform_filter":
        shape = options.pop("footprint", None)
        options.setdefault("size", None if shape is None else shape.shape)
    if name == "rank_filter":
        options["rank"] = -1
    if name == "percentile_filter":
        options["percentile"] = 30
    chunks = tuple(data.draw(st.integers(2, 8)) for _ in range(2))
    whole = getattr(W, name)(x, **options)
    parts = getattr(W, name)(da.from_array(x, chunks), **options)
    assert parts.dtype == whole.dtype
    np.testing.assert_array_equal(parts.compute(scheduler="threads"), whole)
    sizes = tuple(data.draw(st.integers(1, 4)) for _ in range(2))
    for func in ("max", "min", "mode", "mean"):
        reduced = W.block_reduce(da.from_array(x, chunks), sizes, func)
        expected = W.block_reduce(x, sizes, func)
        assert reduced.shape == expected.shape and reduced.dtype == expected.dtype
        np.testing.assert_array_equal(reduced.compute(scheduler="threads"), expected)
        for own, other in zip(W.pyramid(da.from_array(x, chunks), 2, func), W.pyramid(x, 2, func), strict=True):
            np.testing.assert_array_equal(own.compute(scheduler="threads"), other)
    binary = da.from_array(x > 50, chunks)
    closed = W.binary_closing(binary, iterations=2)
    np.testing.assert_array_equal(closed.compute(scheduler="threads"), W.binary_closing(x > 50, iterations=2))


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: W.maximum_filter(x), RuntimeError, "footprint"),
        (lambda x: W.maximum_filter(x, 0), RuntimeError, "size"),
        (lambda x: W.maximum_filter(x, 3, origin=2), ValueError, "origin"),
        (lambda x: W.maximum_filter(x, 3, mode="round"), RuntimeError, "round"),
        (lambda x: W.maximum_filter(x, 3, axes=(0, 0)), ValueError, "axes"),
        (lambda x: W.maximum_filter(x, (3, 3, 3)), RuntimeError, "size"),
        (lambda x: W.maximum_filter(x, footprint=np.zeros((3, 3))), ValueError, "All-zero"),
        (lambda x: W.maximum_filter(x.astype(np.uint8), 3, mode="constant", cval=-1), ValueError, "cval"),
        (lambda x: W.maximum_filter(x.astype(complex), 3), TypeError, "complex"),
        (lambda x: W.maximum_filter(np.full((3, 3), 2**60, np.uint64), 3), ValueError, "2\\*\\*53"),
        (lambda x: W.median_filter(x), RuntimeError, "footprint"),
        (lambda x: W.median_filter(x > 0, 3, mode="constant", cval=2), ValueError, "cval"),
        (lambda x: W.rank_filter(x, 9, 3), RuntimeError, "rank"),
        (lambda x: W.rank_filter(x, -10, 3), RuntimeError, "rank"),
        (lambda x: W.percentile_filter(x, 101, 3), RuntimeError, "percentile"),
        (lambda x: W.grey_erosion(x), ValueError, "structure"),
        (lambda x: W.block_reduce(x, 2, "median"), ValueError, "median"),
        (lambda x: W.block_reduce(x, 0), ValueError, "block"),
        (lambda x: W.binary_erosion(x, mask=np.ones(3)), RuntimeError, "mask"),
    ],
)
def test_errors_are_exceptions(call: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        call(np.ones((8, 8)))


@pytest.mark.parametrize("name", FLAT + RANKS + GREY + BINARY + ["uniform_filter"])
def test_signatures_are_those_of_scipy(name: str) -> None:
    def parts(function: Any) -> Any:
        parameters = inspect.signature(function).parameters.values()
        return [(p.name, p.default, p.kind) for p in parameters if p.name != "device"]

    assert parts(getattr(W, name)) == parts(getattr(S, name))
