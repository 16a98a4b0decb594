"""JAX: gradients, and calls from inside `jax.jit`.

Importing this module gives the functions of `windowpane.functional` gradients on JAX's arrays. Outside `jax.jit` arrays are
shared through DLPack; inside, they go through the memory of the CPU, by `jax.pure_callback`. There is no forward mode
(`jax.jvp`), and there are no second gradients. Indices have 32 bits unless `jax_enable_x64` is set.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from windowpane import _native
from windowpane._arrays import Options, converter, output_size
from windowpane._engines import ENGINES, Native
from windowpane._integers import is_integer

_NATIVE = Native()


def _call(work: Callable[..., Any], shapes: Any, *arrays: Any) -> Any:
    """Does work on arrays, inside a traced function when it is called."""
    if not any(isinstance(array, jax.core.Tracer) for array in arrays):
        return work(*arrays)

    def late(*found: Any) -> Any:
        made = work(*(np.asarray(array) for array in found))
        return jax.tree.map(lambda array, like: np.asarray(array, like.dtype), made, shapes)

    return jax.pure_callback(late, shapes, *arrays, vmap_method="sequential")


def _like(x: Any, space: Any, channels: int | None = None, dtype: Any = None) -> Any:
    """The shape of a result with the batch of `x`, and with its channels unless there are others."""
    lead = list(x.shape[: -len(space)])
    if channels is not None:
        lead[-1] = channels
    return jax.ShapeDtypeStruct((*lead, *space), x.dtype if dtype is None else dtype)


def _pooled(x: Any, options: Options) -> list[Any]:
    return output_size(x.shape[-len(options["kernel"]) :], options)


def _index_type() -> Any:
    return jnp.zeros(0, dtype=int).dtype


class _Engine:
    """The operators on arrays, with their gradients."""

    def extremum_pool(
        self, x: Any, options: Options, minimum: bool, device: str | None
    ) -> Any:
        @jax.custom_vjp
        def pool(x: Any) -> Any:
            work = partial(
                _NATIVE.extremum_pool, options=options, minimum=minimum, device=device
            )
            return _call(work, _like(x, _pooled(x, options)), x)

        def forward(x: Any) -> Any:
            return self._with_indices(x, options, minimum, device)

        def backward(winners: Any, dy: Any) -> Any:
            return (self._extremum_backward(dy, winners, x.shape, options, device),)

        pool.defvjp(forward, backward)
        return pool(x)

    def extremum_pool_with_indices(
        self, x: Any, options: Options, minimum: bool, device: str | None
    ) -> Any:
        @jax.custom_vjp
        def pool(x: Any) -> Any:
            return self._with_indices(x, options, minimum, device)

        def forward(x: Any) -> Any:
            y, winners = pool(x)
            return (y, winners), winners

        def backward(winners: Any, dy: Any) -> Any:
            return (self._extremum_backward(dy[0], winners, x.shape, options, device),)

        pool.defvjp(forward, backward)
        return pool(x)

    @staticmethod
    def _with_indices(x: Any, options: Options, minimum: bool, device: str | None) -> Any:
        size = _pooled(x, options)
        shapes = _like(x, size), _like(x, size, dtype=_index_type())
        pool = _NATIVE.extremum_pool_with_indices
        work = partial(pool, options=options, minimum=minimum, device=device)
        return _call(work, shapes, x)

    @staticmethod
    def _extremum_backward(
        dy: Any, winners: Any, shape: Any, options: Options, device: str | None
    ) -> Any:
        space = list(shape[-len(options["kernel"]) :])

        def work(dy: Any, winners: Any) -> Any:
            found = _native.extremum_pool_backward(
                dy, winners.astype("int32"), space, options, device
            )
            return converter(dy)(found)

        return _call(work, _like(dy, space), dy, winners)

    def avg_pool(
        self, x: Any, options: Options, counts: bool, divisor: int | None, device: str | None
    ) -> Any:
        if is_integer(x):
            # Without `jax_enable_x64` there is no type for their sums.
            raise TypeError(
                f"averages and sums of JAX's arrays need floating-point numbers; found {x.dtype}"
            )
        size, space = _pooled(x, options), list(x.shape[-len(options["kernel"]) :])

        @jax.custom_vjp
        def pool(x: Any) -> Any:
            work = partial(
                _NATIVE.avg_pool, options=options, counts=counts, divisor=divisor, device=device
            )
            return _call(work, _like(x, size), x)

        def backward(_: Any, dy: Any) -> Any:
            def work(dy: Any) -> Any:
                return converter(dy)(
                    _native.avg_pool_backward(dy, space, options, counts, divisor, device)
                )

            return (_call(work, _like(dy, space), dy),)

        pool.defvjp(lambda x: (pool(x), None), backward)
        return pool(x)

    def sum_pool(self, x: Any, options: Options, device: str | None) -> Any:
        return self.avg_pool(x, options, True, 1, device)

    def lp_pool(self, x: Any, p: float, options: Options, device: str | None) -> Any:
        size = _pooled(x, options)

        @jax.custom_vjp
        def pool(x: Any) -> Any:
            work = partial(_NATIVE.lp_pool, p=p, options=options, device=device)
            return _call(work, _like(x, size), x)

        def backward(x: Any, dy: Any) -> Any:
            def work(dy: Any, x: Any) -> Any:
                return converter(x)(_native.lp_pool_backward(dy, x, p, options, device))

            return (_call(work, _like(x, x.shape[-len(size) :]), dy, x),)

        pool.defvjp(lambda x: (pool(x), x), backward)
        return pool(x)

    def max_unpool(self, x: Any, indices: Any, size: list[int], device: str | None) -> Any:
        @jax.custom_vjp
        def unpool(y: Any, indices: Any) -> Any:
            work = partial(_NATIVE.max_unpool, size=size, device=device)
            return _call(work, _like(y, size), y, indices)

        def backward(indices: Any, dx: Any) -> Any:
            def work(dx: Any, indices: Any) -> Any:
                found = _native.max_unpool_backward(
                    dx, indices.astype("int32"), len(size), device
                )
                return converter(dx)(found)

            shape = jax.ShapeDtypeStruct(indices.shape, dx.dtype)
            # Positions have no gradient.
            none = np.zeros(indices.shape, jax.dtypes.float0)
            return _call(work, shape, dx, indices), none

        unpool.defvjp(lambda y, indices: (unpool(y, indices), indices), backward)
        return unpool(x, indices)

    def conv(
        self, x: Any, w: Any, bias: Any, options: Options, groups: int, device: str | None
    ) -> Any:
        rank = len(options["kernel"])
        size, space = _pooled(x, options), list(x.shape[-rank:])

        @jax.custom_vjp
        def convolve(x: Any, w: Any) -> Any:
            def work(x: Any, w: Any) -> Any:
                return _NATIVE.conv(x, w, None, options, groups, device)

            return _call(work, _like(x, size, w.shape[0]), x, w)

        def backward(saved: Any, dy: Any) -> Any:
            x, w = saved

            def data(dy: Any, w: Any) -> Any:
                return _NATIVE.conv_transpose(dy, w, None, space, options, groups, device)

            def weight(dy: Any, x: Any) -> Any:
                return converter(x)(
                    _native.convolve_backward_weight(dy, x, options, groups, device)
                )

            dx = _call(data, _like(x, space), dy, w)
            return dx, _call(weight, jax.ShapeDtypeStruct(w.shape, w.dtype), dy, x)

        convolve.defvjp(lambda x, w: (convolve(x, w), (x, w)), backward)
        y = convolve(x, w)
        return y if bias is None else y + bias.reshape(-1, *[1] * rank)

    def conv_transpose(
        self,
        x: Any,
        w: Any,
        bias: Any,
        size: list[int],
        options: Options,
        groups: int,
        device: str | None,
    ) -> Any:
        rank = len(size)

        @jax.custom_vjp
        def convolve(x: Any, w: Any) -> Any:
            def work(x: Any, w: Any) -> Any:
                return _NATIVE.conv_transpose(x, w, None, size, options, groups, device)

            return _call(work, _like(x, size, w.shape[1] * groups), x, w)

        def backward(saved: Any, dy: Any) -> Any:
            x, w = saved

            def data(dy: Any, w: Any) -> Any:
                return _NATIVE.conv(dy, w, None, options, groups, device)

            def weight(x: Any, dy: Any) -> Any:
                return converter(x)(
                    _native.convolve_backward_weight(x, dy, options, groups, device)
                )

            dx = _call(data, jax.ShapeDtypeStruct(x.shape, x.dtype), dy, w)
            return dx, _call(weight, jax.ShapeDtypeStruct(w.shape, w.dtype), x, dy)

        convolve.defvjp(lambda x, w: (convolve(x, w), (x, w)), backward)
        y = convolve(x, w)
        return y if bias is None else y + bias.reshape(-1, *[1] * rank)


ENGINES[jax.Array] = _Engine()
