"""The operators on JAX's arrays: values, gradients, and calls from traced functions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import windowpane.functional as F
import windowpane.jax
from jax.test_util import check_grads

# On a machine with a GPU JAX would put arrays there, and only that GPU computes with them; the tests name other devices.
jax.config.update("jax_platforms", "cpu")


def distinct(*shape: int) -> Any:
    numbers = np.random.default_rng(0).permutation(int(np.prod(shape)))
    return jnp.asarray(numbers.reshape(shape) / numbers.size, jnp.float32)


CASES = {
    "max_pool2d": ((2, 3, 8, 7), [], {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    "avg_pool2d": ((2, 3, 8, 7), [], {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
    "avg_pool1d": ((3, 9), [], {"kernel_size": 2}),
    "lp_pool2d": ((2, 3, 8, 8), [], {"norm_type": 2, "kernel_size": 2}),
    "adaptive_avg_pool3d": ((1, 2, 5, 4, 6), [], {"output_size": 2}),
    "adaptive_max_pool1d": ((1, 2, 9), [], {"output_size": 4}),
    "min_pool2d": ((2, 3, 8, 7), [], {"kernel_size": 3, "stride": 2, "padding": 1}),
    "sum_pool2d": ((2, 3, 8, 7), [], {"kernel_size": 2}),
    "stochastic_pool2d": ((2, 2, 4, 5), [], {"kernel_size": 2, "stride": 1, "seed": 3}),
    "stochastic_pool1d": ((2, 2, 9), [], {"kernel_size": 3, "stride": 2, "training": False}),
    "fractional_max_pool2d": ((2, 3, 8, 7), [], {"kernel_size": 2, "output_size": (4, 5), "seed": 3}),
    "fractional_max_pool3d": ((1, 2, 5, 4, 6), [], {"kernel_size": 2, "output_ratio": 0.5}),
    "global_min_pool2d": ((2, 3, 5, 4), [], {}),
    "global_sum_pool1d": ((2, 3, 5), [], {}),
    "adaptive_lp_pool2d": ((1, 2, 5, 4), [], {"norm_type": 2, "output_size": 2}),
    "conv2d": ((2, 4, 8, 7), [(6, 2, 3, 3), (6,)], {"stride": 2, "padding": 1, "groups": 2}),
    "conv1d": ((1, 2, 9), [(3, 2, 3)], {"padding": "same"}),
    "conv_transpose2d": ((2, 4, 4, 5), [(4, 3, 3, 3), (6,)], {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    shape, others, options = CASES[name]
    arrays = [distinct(*shape), *(distinct(*other) - 0.5 for other in others)]

    def work(*arrays: Any) -> Any:
        return getattr(F, name)(*arrays, **options, device="host")

    y = work(*arrays)
    expected = getattr(F, name)(*map(np.asarray, arrays), **options, device="host")
    assert isinstance(y, jax.Array)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(jax.jit(work)(*arrays), expected, rtol=1e-6, atol=1e-6)
    check_grads(work, arrays, order=1, modes=["rev"], atol=0.05, rtol=0.05, eps=1e-3)
    total = jax.grad(lambda *arrays: (work(*arrays) ** 2).sum())
    np.testing.assert_allclose(jax.jit(total)(*arrays), total(*arrays), rtol=1e-5)


def test_unpooling() -> None:
    x = distinct(2, 3, 8, 8)

    def work(x: Any) -> Any:
        y, indices = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(y, indices, 2)

    expected = work(np.asarray(x))
    for call in (work, jax.jit(work)):
        np.testing.assert_array_equal(call(x), expected)
        np.testing.assert_array_equal(jax.grad(lambda x: call(x).sum())(x), expected != 0)


def test_indices_of_random_poolings() -> None:
    x, samples = distinct(2, 3, 8, 7), jnp.asarray(np.random.default_rng(1).random((2, 3, 2)), jnp.float32)

    def drawn(x: Any, _: Any) -> Any:
        return F.stochastic_pool2d(x, 3, 2, 1, return_indices=True, seed=9)

    def fractional(x: Any, samples: Any) -> Any:
        return F.fractional_max_pool2d(x, 2, (5, 4), return_indices=True, _random_samples=samples)

    for work in (drawn, fractional):
        expected, positions = work(np.asarray(x), np.asarray(samples))
        counts = np.zeros((2, 3, 56))
        for at in np.ndindex(positions.shape):
            counts[(*at[:2], positions[at])] += 1
        for call in (work, jax.jit(work)):
            y, indices = call(x, samples)
            np.testing.assert_array_equal(y, expected)
            np.testing.assert_array_equal(indices, positions)
            # Each number gets the gradients of all windows that it was taken from, and random numbers get none.
            dx, none = jax.grad(lambda x, samples: call(x, samples)[0].sum(), (0, 1))(x, samples)
            np.testing.assert_array_equal(dx, counts.reshape(x.shape))
            assert not none.any()


@pytest.mark.parametrize("dtype", ["bool", "int16", "uint16", "int32", "uint32"])
def test_integers(dtype: str) -> None:
    x = np.random.default_rng(1).integers(0, 60000, (1, 2, 9)).astype(dtype)
    for pool in (F.max_pool1d, F.min_pool1d):
        for call in (pool, jax.jit(pool, static_argnums=1)):
            y = call(jnp.asarray(x), 3)
            assert y.dtype == dtype
            np.testing.assert_array_equal(y, pool(x, 3))
    with pytest.raises(TypeError, match="floating-point"):
        F.sum_pool1d(jnp.asarray(x), 3)


@pytest.fixture
def x64() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


#: What JAX raises for an error inside of a program.
ERRORS = (RuntimeError, ValueError)


def indexed(x: Any) -> Any:
    return F.max_pool2d(x, 3, 2, 1, return_indices=True)


def test_traced_arrays_are_used_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    x, seen = distinct(2, 3, 8, 8), []
    pool = windowpane.jax._native.extremum_pool

    def spy(x: Any, *options: Any) -> Any:
        seen.append(np.from_dlpack(x).__array_interface__["data"][0])
        return pool(x, *options)

    monkeypatch.setattr(windowpane.jax._native, "extremum_pool", spy)
    jax.block_until_ready(jax.jit(indexed)(x))
    assert seen == [x.unsafe_buffer_pointer()]


def test_traced_errors_have_their_text() -> None:
    unpool = jax.jit(lambda y, indices: F.max_unpool2d(y, indices, 2))
    with pytest.raises(ERRORS, match="ValueError: index 99 of element 0 is not a position"):
        jax.block_until_ready(unpool(jnp.ones((1, 1, 2, 2)), jnp.full((1, 1, 2, 2), 99)))


def test_programs_depend_on_nothing_but_the_work() -> None:
    x = distinct(2, 3, 8, 8)
    texts = {jax.jit(lambda x: F.avg_pool2d(x, size)).lower(x).as_text() for size in (2, 3, 2, 3)}
    assert len(texts) == 2


def test_threads() -> None:
    x = distinct(2, 3, 32, 32)
    call, gradient = jax.jit(indexed), jax.jit(jax.grad(lambda x: indexed(x)[0].sum()))
    expected = (indexed(x), jax.grad(lambda x: indexed(x)[0].sum())(x))

    def work(_: int) -> Any:
        return [(call(x), gradient(x)) for _ in range(25)]

    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(work, range(4)):
            for made in jax.block_until_ready(found):
                jax.tree.map(np.testing.assert_array_equal, made, expected)


def test_vmap() -> None:
    x, w = distinct(4, 2, 3, 8, 7), distinct(5, 3, 3, 3)

    def convolved(x: Any) -> Any:
        return F.conv2d(x, w)

    for work in (indexed, convolved, jax.grad(lambda x: (convolved(x) ** 2).sum())):
        expected = [work(each) for each in x]
        for call in (jax.vmap(work), jax.jit(jax.vmap(work))):
            for at, found in enumerate(expected):
                made = jax.tree.map(lambda array: array[at], call(x))
                jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), made, found)


@pytest.mark.parametrize("shape", [(2, 3, 8, 7), (0, 3, 8, 7), (3, 8, 7)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_traced_types_and_shapes(shape: tuple[int, ...], dtype: str) -> None:
    x = distinct(*shape).astype(dtype)
    for made, expected in zip(jax.jit(indexed)(x), indexed(x), strict=True):
        assert made.dtype == expected.dtype
        np.testing.assert_array_equal(made, expected)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64"])
def test_64_bits(dtype: str) -> None:
    x = distinct(2, 3, 8, 8).astype("float64") * 384
    x = x.astype(dtype) + x.astype(dtype) ** 5
    y, indices = jax.jit(indexed)(x)
    assert (y.dtype, indices.dtype) == (dtype, "int64")
    jax.tree.map(np.testing.assert_array_equal, (y, indices), indexed(np.asarray(x)))
    if dtype == "float64":
        unpool = jax.jit(lambda y, indices: F.max_unpool2d(y, indices, 2))
        np.testing.assert_array_equal(unpool(y, indices), F.max_unpool2d(y, indices, 2))
        for other in (indices + 2**32, indices - 5, indices - 2**40):
            with pytest.raises(ERRORS, match="not a position"):
                jax.block_until_ready(unpool(y, other))
            with pytest.raises(ERRORS, match="not a position"):
                jax.block_until_ready(F.max_unpool2d(y, other, 2))


def test_options_may_be_numpys_numbers() -> None:
    x = distinct(2, 3, 8, 8)
    for work in (
        lambda x: F.stochastic_pool2d(abs(x), np.int64(2), seed=np.int64(5)),
        lambda x: F.avg_pool2d(x, 2, ceil_mode=np.bool_(True), count_include_pad=np.bool_(False)),
        lambda x: F.avg_pool2d(x, 2, divisor_override=np.int64(3)),
    ):
        np.testing.assert_array_equal(jax.jit(work)(x), work(x))


def test_other_platforms_go_through_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    x = distinct(2, 3, 8, 7)
    monkeypatch.setattr(windowpane.jax, "_HANDLERS", {})
    call = jax.jit(lambda x: indexed(x))
    assert "callback" in call.lower(x).as_text()
    jax.tree.map(np.testing.assert_array_equal, call(x), indexed(x))
