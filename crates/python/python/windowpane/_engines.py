"""Who computes with an array: the native module, unless its library has more to ask for, such as gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from windowpane import _native
from windowpane._arrays import FractionalOptions, Options, SupportsDLPack, converter
from windowpane._integers import is_integer, ordered, summed


class Engine(Protocol):
    """The operators on arrays of one library; results are arrays of that library.

    Those with `indices` return values and positions, or values and None.
    """

    def extremum_pool(
        self, x: Any, options: Options, minimum: bool, indices: bool, device: str | None
    ) -> tuple[Any, Any]: ...
    def stochastic_pool(
        self, x: Any, options: Options, seed: int, indices: bool, device: str | None
    ) -> tuple[Any, Any]: ...
    def stochastic_mean(self, x: Any, options: Options, device: str | None) -> Any: ...
    def fractional_max_pool(
        self, x: Any, samples: Any, options: FractionalOptions, indices: bool, device: str | None
    ) -> tuple[Any, Any]: ...
    def avg_pool(
        self, x: Any, options: Options, counts: bool, divisor: int | None, device: str | None
    ) -> Any: ...
    def sum_pool(self, x: Any, options: Options, device: str | None) -> Any: ...
    def lp_pool(self, x: Any, p: float, options: Options, device: str | None) -> Any: ...
    def max_unpool(self, x: Any, indices: Any, size: list[int], device: str | None) -> Any: ...
    def conv(
        self, x: Any, w: Any, bias: Any, options: Options, groups: int, device: str | None
    ) -> Any: ...
    def conv_transpose(
        self,
        x: Any,
        w: Any,
        bias: Any,
        size: list[int],
        options: Options,
        groups: int,
        device: str | None,
    ) -> Any: ...


class Native:
    """The native module, for arrays of any library."""

    def extremum_pool(
        self, x: Any, options: Options, minimum: bool, indices: bool, device: str | None
    ) -> tuple[Any, Any]:
        wide, back = ordered(x, device)
        found = _native.extremum_pool(wide, options, minimum, indices, device)
        y, winners = _converted(x, *found)
        return back(y), winners

    def stochastic_pool(
        self, x: Any, options: Options, seed: int, indices: bool, device: str | None
    ) -> tuple[Any, Any]:
        return _converted(x, *_native.stochastic_pool(x, seed, options, indices, device))

    def stochastic_mean(self, x: Any, options: Options, device: str | None) -> Any:
        return converter(x)(_native.stochastic_mean(x, options, device))

    def fractional_max_pool(
        self, x: Any, samples: Any, options: FractionalOptions, indices: bool, device: str | None
    ) -> tuple[Any, Any]:
        return _converted(x, *_native.fractional_max_pool(x, samples, options, indices, device))

    def avg_pool(
        self, x: Any, options: Options, counts: bool, divisor: int | None, device: str | None
    ) -> Any:
        wide = summed(x, len(options["kernel"])) if is_integer(x) else x
        return converter(x)(_native.avg_pool(wide, options, counts, divisor, device))

    def sum_pool(self, x: Any, options: Options, device: str | None) -> Any:
        y = self.avg_pool(x, options, True, 1, device)
        return y.astype("int64") if is_integer(x) else y

    def lp_pool(self, x: Any, p: float, options: Options, device: str | None) -> Any:
        return converter(x)(_native.lp_pool(x, p, options, device))

    def max_unpool(self, x: Any, indices: Any, size: list[int], device: str | None) -> Any:
        if on_gpu(indices):
            indices = cast(indices, "int32")
        return converter(x)(_native.max_unpool(x, indices, size, device))

    def conv(
        self, x: Any, w: Any, bias: Any, options: Options, groups: int, device: str | None
    ) -> Any:
        return converter(x)(_native.convolve(x, w, bias, options, groups, device))

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
        convert = converter(x)
        if bias is None or not on_gpu(x):
            return convert(
                _native.convolve_transposed(x, w, bias, size, options, groups, device)
            )
        y = convert(_native.convolve_transposed(x, w, None, size, options, groups, device))
        return y + bias.reshape((-1, *[1] * len(size)))


def extremum_under(x: Any, options: Options, footprint: Any, minimum: bool, device: str | None) -> Any:
    """The extremum of what a window around each element reads where a footprint is true. It has no gradient."""
    taps = footprint.reshape(-1).tolist()
    return converter(x)(_native.extremum_under(x, options["kernel"], taps, minimum, device))


def pad(x: Any, options: Options, mode: str, value: float) -> Any:
    """An array with what a window around each element reads past the edges, by SciPy's modes. It has no gradient."""
    return converter(x)(_native.pad(x, options, mode, value, None))


def rank_pool(x: Any, rank: int | None, options: Options, device: str | None) -> Any:
    """The number of each window that `rank` others precede, or the median. It has no gradient, so one function serves
    every library."""
    return converter(x)(_native.rank_pool(x, rank, options, device))


def mode_pool(x: Any, options: Options, device: str | None) -> Any:
    """The most frequent number of each window; the smallest one if several are equally frequent. No gradient."""
    return converter(x)(_native.mode_pool(x, options, device))


def quantized_conv(
    x: Any,
    w: Any,
    scale: Any,
    bias: Any,
    options: Options,
    groups: int,
    activation: str,
    output: str,
    device: str | None,
) -> Any:
    """The convolution of int8, with a scale for each filter. No gradient."""
    found = _native.quantized_convolve(x, w, scale, bias, options, groups, activation, output, device)
    return converter(x)(found)


def mean_gradient(
    where: Callable[..., Any],
    sum_pool: Callable[[Any], Any],
    adjoint: Callable[[Any], Any],
    x: Any,
    y: Any,
    dy: Any,
) -> Any:
    """The gradient of the mean of stochastic pooling, `y = Σw² / Σw` with `w = max(x, 0)`.

    Where `x` is positive it is the sum of `dy·(2w − y) / Σw` over the windows of `x`. `sum_pool` computes the sum of each
    window, and `adjoint` for each element the sum over its windows.
    """
    weights = where(x <= 0, 0, x)
    total = sum_pool(weights)
    # A window of the sum 0 has no positive element.
    share = dy / where(total == 0, 1, total)
    return where(x <= 0, 0, 2 * weights * adjoint(share) - adjoint(share * y))


def own_avg_pool(
    x: Any, options: Options, divisor: int | None, device: str | None, truncates: bool = False
) -> Any:
    """Averages in the type of the elements, and sums with the divisor 1. Those of integers, which have at most 16 bits, are
    rounded to the nearest, to even ones in the middle, or truncated, and clamped to the type."""
    return converter(x)(_native.avg_pool(x, options, False, divisor, device, truncates))


_NATIVE = Native()
#: Engines for arrays of a type, which the modules for a library add.
ENGINES: dict[type[Any], Engine] = {}


def engine_of(x: SupportsDLPack) -> Engine:
    """The engine for an array."""
    for kind, engine in ENGINES.items():
        if isinstance(x, kind):
            return engine
    return _NATIVE


def on_gpu(x: SupportsDLPack) -> bool:
    """Whether an array is in the memory of a CUDA device."""
    return int(x.__dlpack_device__()[0]) == 2


def cast(x: Any, dtype: str) -> Any:
    """An array with elements of another type, by its own library."""
    if hasattr(x, "astype"):
        return x.astype(dtype)
    return {"int32": x.int, "int64": x.long, "float32": x.float}[dtype]()


def _converted(x: Any, y: Any, winners: Any) -> tuple[Any, Any]:
    """Values and positions, if there are any, as arrays of the library of `x`."""
    convert = converter(x)
    if winners is None:
        return convert(y), None
    indices = convert(winners)
    # On a GPU they have 32 bits.
    return convert(y), cast(indices, "int64") if on_gpu(x) else indices
