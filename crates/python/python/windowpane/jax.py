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
from windowpane._arrays import FractionalOptions, Options, converter, output_size
from windowpane._engines import ENGINES, Native, mean_gradient
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


def _indexed(
    pool: Callable[..., Any],
    gradient: Callable[..., Any],
    size: list[int],
    indices: bool,
    x: Any,
    *others: Any,
) -> tuple[Any, Any]:
    """Values and, with `indices`, positions: what `pool(x, *others, indices=…)` makes, with outputs of this size.

    `gradient(dy, winners, *others)` is that of `x`; the others have none.
    """

    def made(indices: bool, x: Any, *others: Any) -> Any:
        winners = _like(x, size, dtype=_index_type()) if indices else None
        return _call(partial(pool, indices=indices), (_like(x, size), winners), x, *others)

    @jax.custom_vjp
    def pooled(x: Any, *others: Any) -> Any:
        return made(indices, x, *others)

    def forward(x: Any, *others: Any) -> Any:
        y, winners = made(True, x, *others)
        return (y, winners if indices else None), (winners, others)

    def backward(saved: Any, made: Any) -> Any:
        (winners, others), dy = saved, made[0]

        def work(dy: Any, winners: Any, *others: Any) -> Any:
            return converter(dy)(gradient(dy, winners.astype("int32"), *others))

        space = x.shape[-len(size) :]
        return _call(work, _like(dy, space), dy, winners, *others), *[None] * len(others)

    pooled.defvjp(forward, backward)
    found: tuple[Any, Any] = pooled(x, *others)
    return found


def _extremum_backward(
    x: Any, options: Options, drawn: bool, device: str | None
) -> Callable[..., Any]:
    """The gradient of a pooling of `x` with these windows, from the positions of extrema or of numbers drawn."""
    space = list(x.shape[-len(options["kernel"]) :])

    def gradient(dy: Any, winners: Any) -> Any:
        return _native.extremum_pool_backward(dy, winners, space, options, drawn, device)

    return gradient


class _Engine:
    """The operators on arrays, with their gradients."""

    def extremum_pool(
        self, x: Any, options: Options, minimum: bool, indices: bool, device: str | None
    ) -> tuple[Any, Any]:
        pool = partial(_NATIVE.extremum_pool, options=options, minimum=minimum, device=device)
        gradient = _extremum_backward(x, options, False, device)
        return _indexed(pool, gradient, _pooled(x, options), indices, x)

    def stochastic_pool(
        self, x: Any, options: Options, seed: int, indices: bool, device: str | None
    ) -> tuple[Any, Any]:
        pool = partial(_NATIVE.stochastic_pool, options=options, seed=seed, device=device)
        gradient = _extremum_backward(x, options, True, device)
        return _indexed(pool, gradient, _pooled(x, options), indices, x)

    def stochastic_mean(self, x: Any, options: Options, device: str | None) -> Any:
        @jax.custom_vjp
        def pool(x: Any) -> Any:
            work = partial(_NATIVE.stochastic_mean, options=options, device=device)
            return _call(work, _like(x, _pooled(x, options)), x)

        def forward(x: Any) -> Any:
            y = pool(x)
            return y, (x, y)

        def backward(saved: Any, dy: Any) -> Any:
            x, y = saved

            def sum_pool(weights: Any) -> Any:
                return self.sum_pool(weights, options, device)

            def adjoint(shares: Any) -> Any:
                return jax.vjp(sum_pool, jnp.zeros_like(x))[1](shares)[0]

            return (mean_gradient(jnp.where, sum_pool, adjoint, x, y, dy),)

        pool.defvjp(forward, backward)
        return pool(x)

    def fractional_max_pool(
        self, x: Any, samples: Any, options: FractionalOptions, indices: bool, device: str | None
    ) -> tuple[Any, Any]:
        space = list(x.shape[-len(options["kernel"]) :])

        def pool(x: Any, samples: Any = None, *, indices: bool) -> Any:
            return _NATIVE.fractional_max_pool(x, samples, options, indices, device)

        def gradient(dy: Any, winners: Any, samples: Any = None) -> Any:
            return _native.fractional_max_pool_backward(
                dy, winners, space, samples, options, device
            )

        given = () if samples is None else (samples,)
        return _indexed(pool, gradient, options["output"], indices, x, *given)

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
