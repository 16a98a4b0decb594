"""Integers that kernels or a device lack, computed in types that they have, with the same results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from windowpane import _native

#: A float64 holds all integers of at most this magnitude.
EXACT = 1 << 53

#: The integers that kernels have. Some devices lack int64.
NATIVE = ("int64", "int32", "uint32", "int16", "uint16", "int8", "uint8", "bool")


def is_integer(x: Any) -> bool:
    """Whether an array of numpy, or of a library with numpy's types, has integers or truth values."""
    return getattr(getattr(x, "dtype", None), "kind", None) in ("b", "i", "u")


def has(device: str | None, name: str) -> bool:
    """Whether kernels have integers of this name, on this device if one is named. Others are pooled where they can be."""
    return name in NATIVE and (device is None or _native.supports(device, name))


def ordered(x: Any, device: str | None) -> tuple[Any, Callable[[Any], Any]]:
    """The elements in a type that the device has, in the same order, and the way back.

    An array of a library without numpy's types stays as it is.
    """
    if not is_integer(x):
        return x, lambda y: y
    dtype = x.dtype
    if dtype.isnative and has(device, dtype.name):
        return x, lambda y: y
    if dtype.kind == "b":
        to = "uint8"
    elif dtype.itemsize < 4:
        to = f"{dtype.kind}{dtype.itemsize}"  # in the machine's byte order
    elif dtype.name == "uint32":
        top = dtype.type(1 << 31)
        return (x ^ top).view("int32"), lambda y: y.view("uint32") ^ top
    else:
        to = narrowed(*_range(x))
    return x.astype(to), lambda y: y.astype(dtype)


def fitting(x: Any) -> Any:
    """Integers in at most 32 bits, or None if some do not fit."""
    if x.dtype.itemsize < 8:
        return x
    least, most = _range(x)
    if -(1 << 31) <= least and most < 1 << 31:
        return x.astype("int32")
    return x.astype("uint32") if least >= 0 and most < 1 << 32 else None


def narrowed(least: int, most: int) -> str:
    """The type for 64-bit integers between these."""
    if max(-least, most) > EXACT:
        raise ValueError("64-bit integers are pooled where a float64 holds them: within 2**53")
    # Every device has 32-bit integers, and many have no float64.
    return "int32" if -(1 << 31) <= least and most < 1 << 31 else "float64"


def summed(x: Any, rank: int) -> Any:
    """The elements as float64, in which every sum over the last axes is exact."""
    count = math.prod(x.shape[-rank:])
    if not always_fits(x.dtype.itemsize, count):
        least, most = _range(x)
        check_sum(max(-least, most), count)
    return x.astype("float64")


def always_fits(itemsize: int, count: int) -> bool:
    """Whether a float64 holds every sum of `count` integers of this size in bytes."""
    bits = 8 * itemsize
    return bits < 53 and count <= 1 << (53 - bits)


def check_sum(magnitude: int, count: int) -> None:
    """Refuses sums of integers that a float64 does not hold."""
    if magnitude * count > EXACT:
        raise ValueError(
            f"sums of {count} integers of up to {magnitude} may not fit in a float64, which is exact "
            "within 2**53; convert the array to floating-point numbers"
        )


def _range(x: Any) -> tuple[int, int]:
    return (int(x.min()), int(x.max())) if x.size else (0, 0)
