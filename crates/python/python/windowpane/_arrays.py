"""Arrays of the caller's library: how results become theirs, and numbers for each axis."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, SupportsFloat, SupportsIndex, TypedDict, TypeVar

Numbers = SupportsIndex | Sequence[SupportsIndex]
Ratios = SupportsFloat | Sequence[SupportsFloat]
_Number = TypeVar("_Number", int, float)


class SupportsDLPack(Protocol):
    """An array that other libraries can read: numpy's, torch's, jax's, cupy's and others'."""

    @property
    def shape(self) -> Any: ...
    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> Any: ...


class Options(TypedDict):
    """A window, as the native part takes it."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    ceil: bool
    adaptive: bool


class FractionalOptions(TypedDict):
    """The windows of a fractional max pooling, as the native part takes them."""

    kernel: list[int]
    output: list[int]
    seed: int


def converter(x: object) -> Callable[[Any], Any]:
    """A function that makes a result an array of the library of `x`, without a copy.

    It changes nothing where the library is unknown.
    """
    for base in type(x).__mro__:
        library = base.__module__.partition(".")[0]
        name = "jax.dlpack" if library in ("jax", "jaxlib") else library
        from_dlpack = getattr(sys.modules.get(name), "from_dlpack", None)
        if from_dlpack is not None:
            found: Callable[[Any], Any] = from_dlpack
            # A capsule needs no negotiation about streams, which are ordered already, and PyTorch takes one.
            return found if library != "torch" else lambda result: found(result.__dlpack__())
    return lambda result: result


def space_of(x: SupportsDLPack, rank: int, name: str = "input") -> list[int]:
    """The extents of the spatial axes of an array with or without a batch."""
    shape = getattr(x, "shape", None)
    if shape is None or not hasattr(x, "__dlpack__"):
        raise TypeError(
            f"{name} is an array of numpy, torch, jax or another library with __dlpack__; "
            f"found {type(x).__qualname__}"
        )
    if len(shape) not in (rank + 1, rank + 2):
        raise ValueError(
            f"{name} needs {rank + 2} axes, or {rank + 1} without a batch; found {len(shape)} axes"
        )
    return list(shape[-rank:])


def numbers(value: Numbers, rank: int, name: str, least: int = 0) -> list[int]:
    """A number for each axis."""
    # The usual types come first: the test of a protocol takes 20 µs.
    if type(value) is int and value >= least:
        return [value] * rank
    if isinstance(value, (tuple, list)):
        given = [operator.index(number) for number in value]
    elif isinstance(value, (int, SupportsIndex)):
        given = [operator.index(value)]
    else:
        given = [operator.index(number) for number in value]
    found = _of_each_axis(given, rank, name)
    if min(found) < least:
        raise ValueError(f"{name} needs numbers of at least {least}; found {min(found)}")
    return found


def ratios(value: Ratios, rank: int, name: str) -> list[float]:
    """A ratio for each axis, greater than 0 and at most 1."""
    given = [float(ratio) for ratio in (value if isinstance(value, Sequence) else [value])]
    found = _of_each_axis(given, rank, name)
    for ratio in found:
        if not 0 < ratio <= 1:
            raise ValueError(f"{name} needs numbers greater than 0 and at most 1; found {ratio}")
    return found


def _of_each_axis(given: list[_Number], rank: int, name: str) -> list[_Number]:
    """The numbers, or the only one for every axis."""
    found = given * rank if len(given) == 1 else given
    if len(found) != rank:
        raise ValueError(f"{name} needs {rank} numbers, or one for all axes; found {len(found)}")
    return found


def window(
    rank: int,
    kernel: Numbers,
    stride: Numbers | None,
    padding: Numbers,
    dilation: Numbers = 1,
    ceil: bool = False,
) -> Options:
    """The options of a window; by default the stride is the kernel."""
    kernel_size = numbers(kernel, rank, "kernel_size", 1)
    return {
        "kernel": kernel_size,
        "stride": kernel_size if stride is None else numbers(stride, rank, "stride", 1),
        "padding": numbers(padding, rank, "padding"),
        "dilation": numbers(dilation, rank, "dilation", 1),
        "ceil": ceil,
        "adaptive": False,
    }


def output_size(space: Any, options: Options) -> list[Any]:
    """The extents of the output of a window: section 1 of docs/SEMANTICS.md."""
    if options["adaptive"]:
        return options["kernel"]
    if not options["padding"]:
        return [-(-extent // step) for extent, step in zip(space, options["stride"], strict=True)]
    size = []
    for extent, taps, step, pad, spread in zip(
        space,
        options["kernel"],
        options["stride"],
        options["padding"],
        options["dilation"],
        strict=True,
    ):
        room = extent + 2 * pad - spread * (taps - 1) - 1
        count = (room + step - 1) // step + 1 if options["ceil"] else room // step + 1
        if options["ceil"] and (count - 1) * step >= extent + pad:
            count -= 1
        size.append(count)
    return size
