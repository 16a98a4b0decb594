"""JAX: gradients, and calls from inside `jax.jit`.

Importing this module gives the functions of `windowpane.functional` gradients on JAX's arrays, which are used where
they are: outside `jax.jit` by DLPack, inside by `jax.ffi`, where results are copied once on their device. Inside,
arrays go through the memory of the CPU, by `jax.pure_callback`, if they are on a device that this build cannot use, if
JAX is older than 0.5, or 0.6 on a GPU, or for extrema of integers that kernels lack. There is no forward mode
(`jax.jvp`), and there are no second gradients. Indices have 32 bits unless `jax_enable_x64` is set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from windowpane import _native
from windowpane._arrays import FractionalOptions, Options, output_size
from windowpane._engines import ENGINES, Native, mean_gradient
from windowpane._integers import has, is_integer

_NATIVE = Native()
#: With the version, because the texts of `_call` are for the native functions of this one.
_TARGET = f"windowpane-{_native.__version__}"
#: The platforms whose arrays are used where they are, inside `jax.jit` too.
_HANDLERS = _native.xla_handlers() if hasattr(jax, "ffi") else {}
if jax.__version_info__ < (0, 6):
    # It does not say which device a call is on.
    _HANDLERS.pop("CUDA", None)
for _platform, _handler in _HANDLERS.items():
    jax.ffi.register_ffi_target(_TARGET, _handler, platform=_platform)


def _call(shapes: Any, name: str, *arguments: Any) -> Any:
    """Calls a native function with arrays and options, inside a traced function when that is called."""
    places = [place for place, given in enumerate(arguments) if isinstance(given, (jax.Array, np.ndarray))]
    arrays = [arguments[place] for place in places]
    if not _traced(arrays):
        return jax.tree.map(jax.dlpack.from_dlpack, getattr(_native, name)(*arguments))
    options = [None if place in places else given for place, given in enumerate(arguments)]
    # A text, rather than a number for a function of this process: compiled programs may be stored for another process.
    work = json.dumps([name, places, options], default=lambda number: number.item())
    leaves, tree = jax.tree.flatten(shapes)

    def where_they_are(*arrays: Any) -> Any:
        call = jax.ffi.ffi_call(_TARGET, leaves, vmap_method="sequential")
        return call(*arrays, work=work)

    def through_cpu(*arrays: Any) -> Any:
        def read(*found: Any) -> Any:
            return [np.from_dlpack(array) for array in _run(work, found)]

        return _through_cpu(read, leaves, *arrays)

    platforms = {platform.lower(): where_they_are for platform in _HANDLERS}
    made = jax.lax.platform_dependent(*arrays, default=through_cpu, **platforms)
    return tree.unflatten(made)


def _run(work: str, arrays: Sequence[Any]) -> list[Any]:
    """Calls the native function that a text of `_call` describes. The handler of XLA calls this."""
    name, places, options = _read(work)
    arguments = list(options)
    for place, array in zip(places, arrays, strict=True):
        arguments[place] = array
    made: list[Any] = jax.tree.leaves(getattr(_native, name)(*arguments))
    return made


_read = lru_cache(json.loads)


def _through_cpu(work: Callable[..., Any], shapes: Any, *arrays: Any) -> Any:
    """Does work on arrays; on copies in the memory of the CPU, inside a traced function when that is called."""
    if not _traced(arrays):
        return work(*arrays)

    def late(*found: Any) -> Any:
        made = work(*(np.asarray(array) for array in found))
        return jax.tree.map(lambda array, like: np.asarray(array, like.dtype), made, shapes)

    return jax.pure_callback(late, shapes, *arrays, vmap_method="sequential")


def _with_gradient(
    function: Callable[..., Any], forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """A function with a gradient. Where nothing asks for that, JAX is left out: it takes longer than most poolings."""
    watched = jax.custom_vjp(function)
    watched.defvjp(forward, backward)
    return lambda *arrays: watched(*arrays) if _traced(arrays) else function(*arrays)


def _traced(arrays: Sequence[Any]) -> bool:
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def _like(x: Any, space: Any, channels: int | None = None, dtype: Any = None) -> Any:
    """The shape of a result with the batch of `x`, and with its channels unless there are others."""
    lead = list(x.shape[: -len(space)])
    if channels is not None:
        lead[-1] = channels
    return jax.ShapeDtypeStruct((*lead, *space), x.dtype if dtype is None else dtype)


def _shape(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _pooled(x: Any, options: Options) -> list[Any]:
    return output_size(x.shape[-len(options["kernel"]) :], options)


def _narrow(indices: Any) -> Any:
    """Positions in 32 bits, as kernels have them; those that do not fit become others that no plane has."""
    if indices.dtype != "int64":
        return indices
    # An array of numpy may have positions that JAX would cut off.
    library = np if isinstance(indices, np.ndarray) else jnp
    return library.clip(indices, -(2**31), 2**31 - 1).astype("int32")


def _indexed(
    pool: Callable[..., Any],
    gradient: Callable[..., Any],
    size: list[int],
    indices: bool,
    x: Any,
    *others: Any,
) -> tuple[Any, Any]:
    """Values and, with `indices`, positions, with outputs of this size.

    `pool(shapes, indices, x, *others)` makes them, and `gradient(shape, dy, winners, *others)` the gradient of `x`; the
    others have none.
    """

    def made(indices: bool, x: Any, *others: Any) -> Any:
        winners = _like(x, size, dtype="int32") if indices else None
        y, winners = pool((_like(x, size), winners), indices, x, *others)
        return y, None if winners is None else winners.astype(int)

    def pooled(x: Any, *others: Any) -> Any:
        return made(indices, x, *others)

    def forward(x: Any, *others: Any) -> Any:
        y, winners = made(True, x, *others)
        return (y, winners if indices else None), (winners, others)

    def backward(saved: Any, made: Any) -> Any:
        (winners, others), dy = saved, made[0]
        shape = _like(dy, x.shape[-len(size) :])
        return gradient(shape, dy, winners.astype("int32"), *others), *[None] * len(others)

    found: tuple[Any, Any] = _with_gradient(pooled, forward, backward)(x, *others)
    return found


def _extremum_backward(
    x: Any, options: Options, drawn: bool, device: str | None
) -> Callable[..., Any]:
    """The gradient of a pooling of `x` with these windows, from the positions of extrema or of numbers drawn."""
    space = list(x.shape[-len(options["kernel"]) :])

    def gradient(shape: Any, dy: Any, winners: Any) -> Any:
        name = "extremum_pool_backward"
        return _call(shape, name, dy, winners, space, options, drawn, device)

    return gradient


def _weight_gradient(
    w: Any, dy: Any, x: Any, options: Options, groups: int, device: str | None
) -> Any:
    """The gradient of the filters of a convolution of `x`."""
    return _call(_shape(w), "convolve_backward_weight", dy, x, options, groups, device)


class _Engine:
    """The operators on arrays, with their gradients."""

    def extremum_pool(
        self, x: Any, options: Options, minimum: bool, indices: bool, device: str | None
    ) -> tuple[Any, Any]:
        def pool(shapes: Any, indices: bool, x: Any) -> Any:
            if not is_integer(x) or has(device, x.dtype.name):
                return _call(shapes, "extremum_pool", x, options, minimum, indices, device)
            # The numbers say which type has them all.
            work = partial(_NATIVE.extremum_pool, options=options, minimum=minimum)
            return _through_cpu(partial(work, indices=indices, device=device), shapes, x)

        gradient = _extremum_backward(x, options, False, device)
        return _indexed(pool, gradient, _pooled(x, options), indices, x)

    def stochastic_pool(
        self, x: Any, options: Options, seed: int, indices: bool, device: str | None
    ) -> tuple[Any, Any]:
        def pool(shapes: Any, indices: bool, x: Any) -> Any:
            return _call(shapes, "stochastic_pool", x, seed, options, indices, device)

        gradient = _extremum_backward(x, options, True, device)
        return _indexed(pool, gradient, _pooled(x, options), indices, x)

    def stochastic_mean(self, x: Any, options: Options, device: str | None) -> Any:
        def pool(x: Any) -> Any:
            shape = _like(x, _pooled(x, options))
            return _call(shape, "stochastic_mean", x, options, device)

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

        return _with_gradient(pool, forward, backward)(x)

    def fractional_max_pool(
        self, x: Any, samples: Any, options: FractionalOptions, indices: bool, device: str | None
    ) -> tuple[Any, Any]:
        space = list(x.shape[-len(options["kernel"]) :])

        def pool(shapes: Any, indices: bool, x: Any, samples: Any = None) -> Any:
            return _call(shapes, "fractional_max_pool", x, samples, options, indices, device)

        def gradient(shape: Any, dy: Any, winners: Any, samples: Any = None) -> Any:
            name = "fractional_max_pool_backward"
            return _call(shape, name, dy, winners, space, samples, options, device)

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

        def pool(x: Any) -> Any:
            return _call(_like(x, size), "avg_pool", x, options, counts, divisor, device)

        def backward(_: Any, dy: Any) -> Any:
            given = (space, options, counts, divisor, device)
            return (_call(_like(dy, space), "avg_pool_backward", dy, *given),)

        return _with_gradient(pool, lambda x: (pool(x), None), backward)(x)

    def sum_pool(self, x: Any, options: Options, device: str | None) -> Any:
        return self.avg_pool(x, options, True, 1, device)

    def lp_pool(self, x: Any, p: float, options: Options, device: str | None) -> Any:
        size = _pooled(x, options)

        def pool(x: Any) -> Any:
            return _call(_like(x, size), "lp_pool", x, p, options, device)

        def backward(x: Any, dy: Any) -> Any:
            shape = _like(x, x.shape[-len(size) :])
            return (_call(shape, "lp_pool_backward", dy, x, p, options, device),)

        return _with_gradient(pool, lambda x: (pool(x), x), backward)(x)

    def max_unpool(self, x: Any, indices: Any, size: list[int], device: str | None) -> Any:
        def unpool(y: Any, indices: Any) -> Any:
            return _call(_like(y, size), "max_unpool", y, _narrow(indices), size, device)

        def backward(indices: Any, dx: Any) -> Any:
            shape = jax.ShapeDtypeStruct(indices.shape, dx.dtype)
            given = (indices.astype("int32"), len(size), device)
            # Positions have no gradient.
            none = np.zeros(indices.shape, jax.dtypes.float0)
            return _call(shape, "max_unpool_backward", dx, *given), none

        return _with_gradient(unpool, lambda y, indices: (unpool(y, indices), indices), backward)(x, indices)

    def conv(
        self, x: Any, w: Any, bias: Any, options: Options, groups: int, device: str | None
    ) -> Any:
        rank = len(options["kernel"])
        size, space = _pooled(x, options), list(x.shape[-rank:])

        def convolve(x: Any, w: Any) -> Any:
            shape = _like(x, size, w.shape[0])
            return _call(shape, "convolve", x, w, None, options, groups, device)

        def backward(saved: Any, dy: Any) -> Any:
            x, w = saved
            given = (None, space, options, groups, device)
            dx = _call(_like(x, space), "convolve_transposed", dy, w, *given)
            return dx, _weight_gradient(w, dy, x, options, groups, device)

        y = _with_gradient(convolve, lambda x, w: (convolve(x, w), (x, w)), backward)(x, w)
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

        def convolve(x: Any, w: Any) -> Any:
            shape = _like(x, size, w.shape[1] * groups)
            return _call(shape, "convolve_transposed", x, w, None, size, options, groups, device)

        def backward(saved: Any, dy: Any) -> Any:
            x, w = saved
            dx = _call(_shape(x), "convolve", dy, w, None, options, groups, device)
            return dx, _weight_gradient(w, x, dy, options, groups, device)

        y = _with_gradient(convolve, lambda x, w: (convolve(x, w), (x, w)), backward)(x, w)
        return y if bias is None else y + bias.reshape(-1, *[1] * rank)


ENGINES[jax.Array] = _Engine()
