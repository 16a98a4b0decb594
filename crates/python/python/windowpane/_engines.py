"""Who computes with an array: the native module, unless its library has more to ask for, such as gradients."""

from __future__ import annotations

from typing import Any, Protocol

from windowpane import _native
from windowpane._arrays import Options, SupportsDLPack, converter
from windowpane._integers import is_integer, ordered, summed


class Engine(Protocol):
    """The operators on arrays of one library; results are arrays of that library."""

    def extremum_pool(
        self, x: Any, options: Options, minimum: bool, device: str | None
    ) -> Any: ...
    def extremum_pool_with_indices(
        self, x: Any, options: Options, minimum: bool, device: str | None
    ) -> Any: ...
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
        self, x: Any, options: Options, minimum: bool, device: str | None
    ) -> Any:
        wide, back = ordered(x)
        y, _ = _native.extremum_pool(wide, options, minimum, False, device)
        return back(converter(x)(y))

    def extremum_pool_with_indices(
        self, x: Any, options: Options, minimum: bool, device: str | None
    ) -> Any:
        (wide, back), convert = ordered(x), converter(x)
        y, winners = _native.extremum_pool(wide, options, minimum, True, device)
        indices = convert(winners)
        # On a GPU they have 32 bits.
        return back(convert(y)), _cast(indices, "int64") if on_gpu(x) else indices

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
            indices = _cast(indices, "int32")
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


def rank_pool(x: Any, rank: int | None, options: Options, device: str | None) -> Any:
    """The number of each window that `rank` others precede, or the median. It has no gradient, so one function serves
    every library."""
    return converter(x)(_native.rank_pool(x, rank, options, device))


def mode_pool(x: Any, options: Options, device: str | None) -> Any:
    """The most frequent number of each window; the smallest one if several are equally frequent. No gradient."""
    return converter(x)(_native.mode_pool(x, options, device))


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


def _cast(indices: Any, dtype: str) -> Any:
    """Indices in another type, by their own library."""
    if hasattr(indices, "astype"):
        return indices.astype(dtype)
    return {"int32": indices.int, "int64": indices.long}[dtype]()
