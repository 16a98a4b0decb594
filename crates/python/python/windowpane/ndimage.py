"""Filters of images and volumes with SciPy's names, order and defaults.

Arrays are numpy's, cupy's, jax's or dask's, of any number of axes. Results are those of `scipy.ndimage`: identical, except
that averages of floating-point numbers are rounded once per pass and not after each axis. `device` names who computes,
as in `windowpane.functional`.

The time of extrema and averages does not grow with the size of a rectangular window. A footprint of another shape costs
two comparisons for each run of its elements along the last axis.

Ranks are `median_filter`, `rank_filter` and `percentile_filter`. Their time grows with the window. Under a footprint that is
not a rectangle of at most three axes, the elements are copied once for each element of the footprint, part by part. A window
with NaN has the rank NaN, which SciPy leaves open.

A dask array is computed in its chunks, with halos as wide as the window reaches, and the result is the same. Elements
are numpy's real numbers of up to 64 bits. uint64 beyond 2**53 is refused, and so is int64 on a device that lacks it.

>>> import numpy
>>> maximum_filter(numpy.array([[1, 5, 2, 4]], dtype="uint8"), (1, 3))
array([[5, 5, 5, 4]], dtype=uint8)
>>> block_reduce(numpy.array([[1, 1, 7, 8], [1, 3, 7, 9]]), 2, "mode")
array([[1, 7]])
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from windowpane._arrays import Options, window
from windowpane._engines import (
    engine_of,
    extremum_under,
    mode_pool,
    own_avg_pool,
    pad,
    rank_pool,
)
from windowpane._integers import EXACT, NATIVE, fitting, ordered

Reduction = Literal["mean", "max", "min", "mode"]
#: How many axes a kernel works on at once.
_AXES = 3
#: How many elements a block has at most whose most frequent one every device finds.
_COUNTED = 46340
#: How many elements a block has at most whose most frequent one numpy finds by comparing each pair.
_COMPARED = 32
#: How many elements under footprints are copied at once.
_COPIED = 1 << 24
_MODES = {
    "reflect": "reflect",
    "grid-mirror": "reflect",
    "mirror": "mirror",
    "nearest": "nearest",
    "wrap": "wrap",
    "grid-wrap": "wrap",
    "constant": "constant",
    "grid-constant": "constant",
}


def _library(x: Any) -> Any:
    """The module with numpy's functions for an array."""
    for base in type(x).__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("jax", "jaxlib"):
            return sys.modules["jax.numpy"]
        if name in ("numpy", "cupy"):
            return sys.modules[name]
        if name == "dask":
            return sys.modules["dask.array"]
        if name == "torch":
            raise TypeError("an image is an array of numpy, cupy, jax or dask; found one of torch")
    return np


def _image(x: Any) -> tuple[Any, Any]:
    """An array, and the module with its library's functions."""
    library = _library(x)
    x = np.asarray(x) if library is np else x
    if x.dtype.kind not in "biuf":
        raise TypeError(f"elements are real numbers; found {x.dtype}")
    return x, library


def _is_dask(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "dask"


def _axes_of(axes: Any, ndim: int) -> list[int]:
    if axes is None:
        return list(range(ndim))
    wanted = [operator.index(axis) for axis in (axes if isinstance(axes, Iterable) else [axes])]
    found = [axis + ndim if axis < 0 else axis for axis in wanted]
    if any(not 0 <= axis < ndim for axis in found) or len(set(found)) != len(found):
        raise ValueError(f"axes name each of {ndim} axes at most once; found {wanted}")
    return found


def _each(value: Any, count: int, name: str) -> list[Any]:
    """A value for each axis."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return [value] * count
    found = list(value)
    if len(found) != count:
        raise RuntimeError(f"{name} needs {count} values, or one for all axes; found {len(found)}")
    return found


def _reach(sizes: Sequence[int], origins: Sequence[int]) -> list[tuple[int, int]]:
    """How far windows reach before and after their element."""
    for size, origin in zip(sizes, origins, strict=True):
        if size < 1:
            raise RuntimeError(f"a window has a size of at least 1; found {size}")
        if not 0 <= size // 2 + origin < size:
            raise ValueError(f"invalid origin: {origin} for a window of {size}")
    return [
        (size // 2 + origin, size - 1 - size // 2 - origin)
        for size, origin in zip(sizes, origins, strict=True)
    ]


def _seen_past(extent: int, reach: tuple[int, int], mode: str) -> Any:
    """The positions along an axis whose elements are seen before and after it."""
    at = np.concatenate([np.arange(-reach[0], 0), np.arange(extent, extent + reach[1])])
    if mode == "nearest" or extent == 1:
        return at.clip(0, extent - 1)
    if mode == "wrap":
        return at % extent
    period = 2 * extent - 2 * (mode == "mirror")
    at %= period
    # The edge is seen twice by "reflect", and once by "mirror".
    return np.minimum(at, period - (mode == "reflect") - at)


def _extended(
    x: Any, library: Any, axes: list[int], reach: Any, modes: Any, cval: Any
) -> Any:
    """An array with the elements that windows see past its edges."""
    for mode in modes:
        if mode not in _MODES:
            raise RuntimeError(f"boundary mode not supported: {mode!r}")
    sides = [(*own, _MODES[mode]) for own, mode in zip(reach, modes, strict=True)]
    wider = [(axis, *own) for axis, own in zip(axes, sides, strict=True) if own[0] or own[1]]
    if not wider:
        return x
    kinds = {kind for *_, kind in wider}
    if len(wider) <= _AXES and len(kinds) == 1 and _is_native(x):
        value = cval if kinds == {"constant"} else 0
        if abs(value) <= EXACT:
            return _padded(x, library, wider, value)
    inside = [slice(0, extent) for extent in x.shape]
    shape = list(x.shape)
    for axis, (before, after) in zip(axes, reach, strict=True):
        inside[axis] = slice(before, before + x.shape[axis])
        shape[axis] += before + after
    wide = _put(library.empty(shape, dtype=x.dtype), tuple(inside), x)
    # Axis by axis, so that corners are seen along one axis past the edge of another.
    for axis, own, mode in zip(axes, reach, modes, strict=True):
        lead, extent = (slice(None),) * axis, x.shape[axis]
        edges = [(0, own[0]), (own[0] + extent, shape[axis])]
        seen = None if _MODES[mode] == "constant" else own[0] + _seen_past(extent, own, _MODES[mode])
        for start, end in edges:
            if start == end:
                continue
            if seen is None:
                values = x.dtype.type(cval)
            else:
                values = library.take(wide, library.asarray(seen[: end - start]), axis=axis)
                seen = seen[end - start :]
            wide = _put(wide, (*lead, slice(start, end)), values)
    return wide


def _is_native(x: Any) -> bool:
    """Whether the elements of an array have a type that kernels have."""
    known = x.dtype.name in NATIVE if x.dtype.kind in "biu" else x.dtype.itemsize <= 8
    return known and x.dtype.isnative and hasattr(x, "__dlpack_device__")


def _padded(x: Any, library: Any, wider: list[tuple[int, int, int, str]], cval: float) -> Any:
    """An array with the elements that windows see past its edges.

    One kernel writes them, where the array's library takes several for each edge, or one thread. For each axis `wider` has
    the numbers of elements before and after it, and the mode, which is the same for all.
    """
    axes, before, after, modes = zip(*wider, strict=True)
    sizes = [1 + sum(own) for own in zip(before, after, strict=True)]

    def work(planes: Any, options: Options) -> Any:
        return pad(planes, options, modes[0], cval)

    return _planes(x, library, axes, window(len(axes), sizes, 1, before), work)


def _put(x: Any, part: tuple[slice, ...], values: Any) -> Any:
    """An array with other values in a part of it; it is the same array if its library can change arrays."""
    if hasattr(x, "at"):
        return x.at[part].set(values)
    x[part] = values
    return x


def _is_seen_inside(reach: tuple[int, int], mode: str) -> bool:
    """Whether what a window sees past an edge are only copies of elements that it contains. Extrema then need no copies."""
    return reach[0] == reach[1] and _MODES.get(mode) in ("reflect", "mirror", "nearest")


def _code(x: Any, device: str | None) -> tuple[Any, Callable[[Any], Any]]:
    """The elements in a type that kernels compute with, in the same order, and the way back."""
    if x.dtype.kind == "f" and x.dtype.itemsize > 8:
        raise TypeError(f"elements have at most 64 bits; found {x.dtype}")
    return ordered(x, device)


def _planes(
    x: Any, library: Any, axes: Sequence[int], options: Options, work: Callable[[Any, Options], Any]
) -> Any:
    """Pools over axes of an array, as work on its last axes after a batch and channels does."""
    first = max(0, x.ndim - _AXES)
    if min(axes) >= first:
        # The other ones of the last axes have windows of one element, so that nothing is moved.
        last = range(min(axes), x.ndim)
        if list(axes) != list(last):
            options = _spread(options, [list(axes).index(axis) if axis in axes else None for axis in last])
        space = x.shape[last.start :]
        y = work(x.reshape(1, -1, *space), options)
        return y.reshape(*x.shape[: last.start], *y.shape[2:])
    rank = len(axes)
    end = tuple(range(-rank, 0))
    moved = library.moveaxis(x, tuple(axes), end)
    lead, space = moved.shape[:-rank], moved.shape[-rank:]
    y = work(moved.reshape(1, -1, *space), options)
    return library.moveaxis(y.reshape(*lead, *y.shape[-rank:]), end, tuple(axes))


def _spread(options: Options, places: Sequence[int | None]) -> Options:
    """A window over more axes: each has the numbers of one of the window's, or one element."""

    def spread(values: list[int], other: int) -> list[int]:
        return [other if place is None else values[place] for place in places]

    return {
        "kernel": spread(options["kernel"], 1),
        "stride": spread(options["stride"], 1),
        "padding": spread(options["padding"], 0),
        "dilation": spread(options["dilation"], 1),
        "ceil": options["ceil"],
        "adaptive": False,
    }


def _groups(axes: Sequence[int], *values: Sequence[int]) -> Iterable[Any]:
    """Axes whose windows do something, as many at once as a kernel takes: the axes, their sizes, and their other values."""
    left = [own for own in zip(axes, *values, strict=True) if own[1] > 1]
    for at in range(0, len(left), _AXES):
        yield tuple(map(list, zip(*left[at : at + _AXES], strict=True)))


def _pooled(
    x: Any,
    library: Any,
    axes: Sequence[int],
    sizes: Sequence[int],
    minimum: bool,
    strides: Sequence[int] | None = None,
    ceil: bool = False,
    padding: Sequence[int] | None = None,
    device: str | None = None,
) -> Any:
    """The extremum of each window, in a type of `_code`'s. Windows reach into the padding, which has no elements."""
    if x.size == 0:
        return x
    for group, extents, pads in _groups(axes, sizes, padding or [0] * len(axes)):
        options = window(len(group), extents, extents if strides else 1, pads, ceil=ceil)

        def pool(planes: Any, options: Options) -> Any:
            return engine_of(planes).extremum_pool(planes, options, minimum, False, device)[0]

        x = _planes(x, library, group, options, pool)
    return x


def _moved(x: Any, axes: Sequence[int], offsets: Sequence[int], space: Sequence[int]) -> Any:
    """The part of an extended array that is seen at an offset."""
    part = [slice(None)] * x.ndim
    for axis, offset, extent in zip(axes, offsets, space, strict=True):
        part[axis] = slice(offset, offset + extent)
    return x[tuple(part)]


def _over_footprint(
    x: Any,
    library: Any,
    axes: list[int],
    footprint: Any,
    space: list[int],
    minimum: bool,
    device: str | None,
) -> Any:
    """The extremum under a footprint of an extended array."""
    order = np.argsort(axes)
    footprint = footprint.transpose(order)
    axes, space = [axes[own] for own in order], [space[own] for own in order]
    first = max(0, len(axes) - _AXES)
    middle = [extent // 2 for extent in footprint.shape[first:]]
    found: Any = None
    choose = library.minimum if minimum else library.maximum
    for lead in np.ndindex(footprint.shape[:first]):
        taps = footprint[lead]
        if not taps.any():
            continue

        def pool(planes: Any, options: Options, taps: Any = taps) -> Any:
            return extremum_under(planes, options, taps, minimum, device)

        seen = _moved(x, axes[:first], lead, space[:first])
        seen = _planes(seen, library, axes[first:], window(taps.ndim, taps.shape, 1, 0), pool)
        seen = _moved(seen, axes[first:], middle, space[first:])
        found = seen if found is None else choose(found, seen)
    return found.copy() if library is np else found


def _over_structure(
    x: Any, library: Any, axes: list[int], footprint: Any, structure: Any, space: list[int], minimum: bool
) -> Any:
    """The extremum of an extended array with heights added, as SciPy computes it: in float64."""
    found: Any = None
    choose = library.minimum if minimum else library.maximum
    x = x.astype(np.float64)
    for tap in np.argwhere(footprint):
        height = float(structure[tuple(tap)])
        seen = _moved(x, axes, tap.tolist(), space) + (-height if minimum else height)
        found = seen if found is None else choose(found, seen)
    return found


def _ranked(
    x: Any, axes: list[int], sizes: Sequence[int], library: Any, rank: int, device: str | None
) -> Any:
    """The element of each window at a rank, without borders, in a type of `_code`'s; at most `_AXES` sizes are above 1."""
    for group, extents in _groups(axes, sizes):
        options = window(len(group), extents, 1, 0)

        def pool(planes: Any, options: Options) -> Any:
            return rank_pool(planes, rank, options, device)

        x = _planes(x, library, group, options, pool)
    return x


def _ranked_under(
    x: Any,
    axes: list[int],
    footprint: Any,
    space: list[int],
    library: Any,
    rank: int,
    device: str | None,
) -> Any:
    """The element under a footprint at a rank, of an extended array in a type of `_code`'s."""
    taps = np.argwhere(footprint)
    options = window(2, (len(taps), 1), 1, 0)
    # The elements under a tap are neighbours, and those under all taps are a column.
    seen = [_moved(x, axes, tap.tolist(), space) for tap in taps]
    shape = seen[0].shape
    rows = max(1, _COPIED // max(1, len(taps) * (seen[0].size // shape[0])))
    parts = []
    for start in range(0, shape[0], rows):
        columns = library.stack([part[start : start + rows].reshape(-1) for part in seen])
        found = rank_pool(columns[None, None], rank, options, device)
        parts.append(found.reshape(-1, *shape[1:]))
    return library.concatenate(parts)


def _holds(dtype: Any, number: float) -> bool:
    """Whether a type has a number."""
    if dtype.kind == "f":
        return True
    if dtype.kind == "b":
        return number in (0, 1)
    limits = np.iinfo(dtype)
    return limits.min <= number <= limits.max and number == int(number)


def _delivered(result: Any, output: Any, library: Any) -> Any:
    """A result in the array or the type that the caller asked for."""
    if output is None:
        return result
    if isinstance(output, type | np.dtype | str):
        return result.astype(np.dtype(output))
    if library is not np and library.__name__ != "cupy":
        raise TypeError("output is a type here: arrays of this library cannot be written to")
    if output.shape != result.shape:
        raise RuntimeError(f"output shape not correct: {output.shape} for {result.shape}")
    output[...] = result
    return output


def _in_chunks(
    x: Any, work: Callable[[Any], Any], axes: list[int], reach: Any, modes: Any
) -> Any:
    """Filters each chunk of a dask array with a halo."""
    depth: dict[int, int] = {axis: 0 for axis in range(x.ndim)}
    boundary: dict[int, str] = {axis: "none" for axis in range(x.ndim)}
    for axis, own, mode in zip(axes, reach, modes, strict=True):
        # As wide on both sides, because what is seen past an edge may be a mirror image of what is before it.
        depth[axis] = max(own)
        # At the edges of the whole the filter itself sees no further, but where it wraps around.
        boundary[axis] = "periodic" if _MODES.get(mode) == "wrap" else "none"
    module = sys.modules["dask.array"]
    return module.map_overlap(work, x, depth=depth, boundary=boundary, meta=x._meta)


def _window_of(
    size: Any, footprint: Any, structure: Any, axes: list[int]
) -> tuple[list[int], Any]:
    """The sizes of a window, and its footprint unless that is the whole window without heights."""
    if footprint is not None:
        footprint = np.asarray(footprint, dtype=bool)
        if footprint.ndim != len(axes):
            raise RuntimeError(
                f"footprint.ndim ({footprint.ndim}) must match len(axes) ({len(axes)})"
            )
        if not footprint.any():
            raise ValueError("All-zero footprint is not supported.")
        sizes = list(footprint.shape)
    elif size is None:
        raise RuntimeError("no footprint provided")
    else:
        sizes = [int(own) for own in _each(size, len(axes), "size")]
    is_whole = footprint is not None and structure is None and bool(footprint.all())
    return sizes, None if is_whole else footprint


def _extremum(
    x: Any,
    size: Any,
    footprint: Any,
    structure: Any,
    output: Any,
    mode: Any,
    cval: float,
    origin: Any,
    axes: Any,
    minimum: bool,
    device: str | None,
) -> Any:
    if size is not None and footprint is not None:
        warnings.warn("ignoring size because footprint is set", UserWarning, stacklevel=3)
    x, library = _image(x)
    axes = _axes_of(axes, x.ndim)
    origins = [operator.index(own) for own in _each(origin, len(axes), "origin")]
    modes = _each(mode, len(axes), "mode")
    if structure is not None:
        structure = np.asarray(structure, dtype=np.float64)
        footprint = np.ones(structure.shape, bool) if footprint is None else footprint
    sizes, footprint = _window_of(size, footprint, structure, axes)
    reach = _reach(sizes, origins)
    if _is_dask(x):
        own = functools.partial(
            _extremum,
            size=None if footprint is not None else sizes,
            footprint=footprint,
            structure=structure,
            output=None,
            mode=modes,
            cval=cval,
            origin=origins,
            axes=axes,
            minimum=minimum,
            device=device,
        )
        return _delivered(_in_chunks(x, own, axes, reach, modes), output, library)
    if x.size == 0:
        return _delivered(x.copy(), output, library)
    if "constant" in {_MODES.get(own) for own in modes} and not _holds(x.dtype, cval):
        raise ValueError(f"cval is a number that {x.dtype} holds; found {cval}")
    space = [x.shape[axis] for axis in axes]
    padding = [0] * len(axes)
    if footprint is None:
        inside = [_is_seen_inside(own, mode) for own, mode in zip(reach, modes, strict=True)]
        padding = [own[0] if free else 0 for own, free in zip(reach, inside, strict=True)]
        reach = [(0, 0) if free else own for own, free in zip(reach, inside, strict=True)]
    wide = _extended(x, library, axes, reach, modes, cval)
    if structure is not None:
        heights = _over_structure(wide, library, axes, footprint, structure, space, minimum)
        return _delivered(heights.astype(x.dtype), output, library)
    wide, back = _code(wide, device)
    if footprint is None:
        found = _pooled(wide, library, axes, sizes, minimum, padding=padding, device=device)
    else:
        found = _over_footprint(wide, library, axes, footprint, space, minimum, device)
    found = back(found)
    return _delivered(x.copy() if found is x else found, output, library)


def maximum_filter(
    input: Any,
    size: Any = None,
    footprint: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The maximum under a window, or under a footprint."""
    return _extremum(
        input, size, footprint, None, output, mode, cval, origin, axes, False, device
    )



def minimum_filter(
    input: Any,
    size: Any = None,
    footprint: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The minimum under a window, or under a footprint."""
    return _extremum(
        input, size, footprint, None, output, mode, cval, origin, axes, True, device
    )



def _rank(
    x: Any,
    rank_of: Callable[[int], int],
    size: Any,
    footprint: Any,
    output: Any,
    mode: Any,
    cval: float,
    origin: Any,
    axes: Any,
    device: str | None,
) -> Any:
    """The element of each window at a rank, which follows from the number of its elements."""
    if size is not None and footprint is not None:
        warnings.warn("ignoring size because footprint is set", UserWarning, stacklevel=3)
    x, library = _image(x)
    axes = _axes_of(axes, x.ndim)
    origins = [operator.index(own) for own in _each(origin, len(axes), "origin")]
    modes = _each(mode, len(axes), "mode")
    sizes, footprint = _window_of(size, footprint, None, axes)
    reach = _reach(sizes, origins)
    rank = rank_of(math.prod(sizes) if footprint is None else int(footprint.sum()))
    if _is_dask(x):
        own = functools.partial(
            _rank,
            rank_of=rank_of,
            size=None if footprint is not None else sizes,
            footprint=footprint,
            output=None,
            mode=modes,
            cval=cval,
            origin=origins,
            axes=axes,
            device=device,
        )
        return _delivered(_in_chunks(x, own, axes, reach, modes), output, library)
    if x.size == 0:
        return _delivered(x.copy(), output, library)
    if "constant" in {_MODES.get(own) for own in modes} and not _holds(x.dtype, cval):
        raise ValueError(f"cval is a number that {x.dtype} holds; found {cval}")
    space = [x.shape[axis] for axis in axes]
    wide, back = _code(_extended(x, library, axes, reach, modes, cval), device)
    if footprint is None and sum(own > 1 for own in sizes) > _AXES:
        footprint = np.ones(sizes, bool)
    if footprint is None:
        found = back(_ranked(wide, axes, sizes, library, rank, device))
    else:
        found = back(_ranked_under(wide, axes, footprint, space, library, rank, device))
    return _delivered(x.copy() if found is x else found, output, library)


def _middle(count: int) -> int:
    return count // 2


def _place(count: int, rank: int) -> int:
    found = rank + count if rank < 0 else rank
    if not 0 <= found < count:
        raise RuntimeError(f"rank not within filter footprint size: {rank} of {count}")
    return found


def _share(count: int, percentile: float) -> int:
    found = percentile + 100.0 if percentile < 0.0 else percentile
    if not 0.0 <= found <= 100.0:
        raise RuntimeError(f"invalid percentile: {percentile}")
    return count - 1 if found == 100.0 else int(float(count) * found / 100.0)


def median_filter(
    input: Any,
    size: Any = None,
    footprint: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The middle element under a window, or under a footprint; of two in the middle the larger."""
    return _rank(input, _middle, size, footprint, output, mode, cval, origin, axes, device)


def rank_filter(
    input: Any,
    rank: int,
    size: Any = None,
    footprint: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The element under a window that `rank` others precede, from the smallest; from the largest if it is negative."""
    of = functools.partial(_place, rank=operator.index(rank))
    return _rank(input, of, size, footprint, output, mode, cval, origin, axes, device)


def percentile_filter(
    input: Any,
    percentile: float,
    size: Any = None,
    footprint: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The element under a window at a percentile, from 0 for the smallest to 100 for the largest; or from -100 to 0."""
    of = functools.partial(_share, percentile=float(percentile))
    return _rank(input, of, size, footprint, output, mode, cval, origin, axes, device)


def uniform_filter(
    input: Any,
    size: Any = 3,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The average under a window. Averages of integers are cut off after each axis, as SciPy's are."""
    x, library = _image(input)
    axes = _axes_of(axes, x.ndim)
    sizes = [int(own) for own in _each(size, len(axes), "size")]
    origins = [operator.index(own) for own in _each(origin, len(axes), "origin")]
    modes = _each(mode, len(axes), "mode")
    reach = _reach(sizes, origins)
    if _is_dask(x):
        filter = functools.partial(
            uniform_filter,
            size=sizes,
            mode=modes,
            cval=cval,
            origin=origins,
            axes=axes,
            device=device,
        )
        return _delivered(_in_chunks(x, filter, axes, reach, modes), output, library)
    if x.size == 0:
        return _delivered(x.copy(), output, library)
    is_narrow = _is_narrow(x.dtype, max(sizes, default=1)) and _holds(x.dtype, cval)
    if x.dtype.kind == "f" or is_narrow:
        # Averages along an axis do not change what is past the edges of another.
        found = _extended(x, library, axes, reach, modes, cval)
        if is_narrow:
            for axis, size in zip(axes, sizes, strict=True):
                found = _truncated(found, library, axis, size, device)
        else:
            found = _average(found, library, axes, sizes, device=device)
        return _delivered(x.copy() if found is x else found, output, library)
    for axis, size, own, mode in zip(axes, sizes, reach, modes, strict=True):
        wide = _extended(x.astype(np.float64), library, [axis], [own], [mode], cval)
        x = _average(wide, library, [axis], [size], device=device).astype(x.dtype)
    return _delivered(x.copy() if x is input else x, output, library)


def _is_narrow(dtype: Any, count: int) -> bool:
    """Whether kernels add `count` integers of this type."""
    if dtype.kind not in "iu" or dtype.itemsize > 2:
        return False
    limits = np.iinfo(dtype)
    return max(-int(limits.min), int(limits.max)) * count < 1 << 31


def _truncated(x: Any, library: Any, axis: int, size: int, device: str | None) -> Any:
    """The average of each window along an axis, without borders, cut off; elements are of narrow types."""

    def pool(planes: Any, options: Options) -> Any:
        return own_avg_pool(planes, options, size, device, truncates=True)

    return x if size == 1 else _planes(x, library, [axis], window(1, size, 1, 0), pool)


def _average(
    x: Any,
    library: Any,
    axes: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int] | None = None,
    ceil: bool = False,
    device: str | None = None,
) -> Any:
    """The average of each window, without borders. A window that is cut off has fewer elements."""
    for group, extents in _groups(axes, sizes):
        options = window(len(group), extents, extents if strides else 1, 0, ceil=ceil)

        def pool(planes: Any, options: Options) -> Any:
            return engine_of(planes).avg_pool(planes, options, False, None, device)

        x = _planes(x, library, group, options, pool)
    return x


def _dilation(
    x: Any,
    size: Any,
    footprint: Any,
    structure: Any,
    output: Any,
    mode: Any,
    cval: float,
    origin: Any,
    axes: Any,
    device: str | None,
) -> Any:
    """The maximum under the mirrored window."""
    if size is None and footprint is None and structure is None:
        raise ValueError("size, footprint, or structure must be specified")
    count = len(_axes_of(axes, _image(x)[0].ndim))
    footprint, structure = _mirrored(footprint), _mirrored(structure)
    shape = next((own.shape for own in (footprint, structure) if own is not None), None)
    sizes = _each(size, count, "size") if shape is None else shape
    origins = _each(origin, count, "origin")
    # An even window has no middle, and mirroring moves it by one.
    origins = [-own - (extent % 2 == 0) for own, extent in zip(origins, sizes, strict=True)]
    return _extremum(
        x, size, footprint, structure, output, mode, cval, origins, axes, False, device
    )


def _mirrored(shape: Any) -> Any:
    return None if shape is None else np.flip(np.asarray(shape))


def _erosion(
    x: Any,
    size: Any,
    footprint: Any,
    structure: Any,
    output: Any,
    mode: Any,
    cval: float,
    origin: Any,
    axes: Any,
    device: str | None,
) -> Any:
    """The minimum under the window."""
    if size is None and footprint is None and structure is None:
        raise ValueError("size, footprint, or structure must be specified")
    return _extremum(
        x, size, footprint, structure, output, mode, cval, origin, axes, True, device
    )


def grey_erosion(
    input: Any,
    size: Any = None,
    footprint: Any = None,
    structure: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The minimum under a window, less the heights of the structure if it has some."""
    return _erosion(input, size, footprint, structure, output, mode, cval, origin, axes, device)



def grey_dilation(
    input: Any,
    size: Any = None,
    footprint: Any = None,
    structure: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The maximum under the mirrored window, plus the heights of the structure if it has some."""
    return _dilation(input, size, footprint, structure, output, mode, cval, origin, axes, device)



def grey_opening(
    input: Any,
    size: Any = None,
    footprint: Any = None,
    structure: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The dilation of the erosion, which removes what is bright and narrower than the window."""
    low = _erosion(input, size, footprint, structure, None, mode, cval, origin, axes, device)
    return _dilation(low, size, footprint, structure, output, mode, cval, origin, axes, device)



def grey_closing(
    input: Any,
    size: Any = None,
    footprint: Any = None,
    structure: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The erosion of the dilation, which fills what is dark and narrower than the window."""
    high = _dilation(input, size, footprint, structure, None, mode, cval, origin, axes, device)
    return _erosion(high, size, footprint, structure, output, mode, cval, origin, axes, device)



def morphological_gradient(
    input: Any,
    size: Any = None,
    footprint: Any = None,
    structure: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The dilation less the erosion."""
    high = _dilation(input, size, footprint, structure, None, mode, cval, origin, axes, device)
    low = _erosion(input, size, footprint, structure, None, mode, cval, origin, axes, device)
    return _delivered(high - low, output, _library(low))



def white_tophat(
    input: Any,
    size: Any = None,
    footprint: Any = None,
    structure: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The input less its opening: what is bright and narrower than the window."""
    low = _erosion(input, size, footprint, structure, None, mode, cval, origin, axes, device)
    opened = _dilation(low, size, footprint, structure, None, mode, cval, origin, axes, device)
    return _delivered(_less(_image(input)[0], opened), output, _library(low))



def black_tophat(
    input: Any,
    size: Any = None,
    footprint: Any = None,
    structure: Any = None,
    output: Any = None,
    mode: Any = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The closing less the input: what is dark and narrower than the window."""
    high = _dilation(input, size, footprint, structure, None, mode, cval, origin, axes, device)
    closed = _erosion(high, size, footprint, structure, None, mode, cval, origin, axes, device)
    return _delivered(_less(closed, _image(input)[0]), output, _library(high))



def _less(a: Any, b: Any) -> Any:
    return a ^ b if a.dtype == np.bool_ else a - b


def _binary(
    x: Any,
    structure: Any,
    iterations: Any,
    mask: Any,
    output: Any,
    border: Any,
    origin: Any,
    axes: Any,
    dilate: bool,
    device: str | None,
) -> Any:
    x, library = _image(x)
    axes = _axes_of(axes, x.ndim)
    x = x != 0
    if structure is None:
        # An element and its neighbours along the axes.
        centred = np.indices([3] * len(axes)) - 1
        structure = np.abs(centred).sum(axis=0) <= 1
    structure = np.asarray(structure, dtype=bool)
    origins = _each(origin, len(axes), "origin")
    if dilate:
        structure = np.flip(structure)
        even = [extent % 2 == 0 for extent in structure.shape]
        origins = [-own - moved for own, moved in zip(origins, even, strict=True)]
    if mask is not None and tuple(mask.shape) != tuple(x.shape):
        raise RuntimeError("mask and input must have equal sizes")
    rounds = operator.index(iterations)
    if rounds < 1 and _is_dask(x):
        raise ValueError("a dask array needs a number of iterations")
    for done in itertools.count(1):
        before = x
        x = _extremum(
            x, None, structure, None, None, "constant", bool(border), origins, axes, not dilate, device
        )
        if mask is not None:
            x = library.where(mask, x, before)
        if done == rounds or rounds < 1 and bool((x == before).all()):
            break
    return _delivered(x, output, library)


def binary_erosion(
    input: Any,
    structure: Any = None,
    iterations: int = 1,
    mask: Any = None,
    output: Any = None,
    border_value: int = 0,
    origin: Any = 0,
    brute_force: bool = False,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """Whether all elements under the structure are set, repeatedly; below one iteration, until nothing changes.

    `brute_force` changes nothing here.
    """
    return _binary(
        input, structure, iterations, mask, output, border_value, origin, axes, False, device
    )


def binary_dilation(
    input: Any,
    structure: Any = None,
    iterations: int = 1,
    mask: Any = None,
    output: Any = None,
    border_value: int = 0,
    origin: Any = 0,
    brute_force: bool = False,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """Whether an element under the mirrored structure is set, repeatedly; see `binary_erosion`."""
    return _binary(
        input, structure, iterations, mask, output, border_value, origin, axes, True, device
    )


def binary_opening(
    input: Any,
    structure: Any = None,
    iterations: int = 1,
    output: Any = None,
    origin: Any = 0,
    mask: Any = None,
    border_value: int = 0,
    brute_force: bool = False,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The dilation of the erosion; see `binary_erosion`."""
    rest = (border_value, origin, axes)
    low = _binary(input, structure, iterations, mask, None, *rest, False, device)
    return _binary(low, structure, iterations, mask, output, *rest, True, device)


def binary_closing(
    input: Any,
    structure: Any = None,
    iterations: int = 1,
    output: Any = None,
    origin: Any = 0,
    mask: Any = None,
    border_value: int = 0,
    brute_force: bool = False,
    *,
    axes: Any = None,
    device: str | None = None,
) -> Any:
    """The erosion of the dilation; see `binary_erosion`."""
    rest = (border_value, origin, axes)
    high = _binary(input, structure, iterations, mask, None, *rest, True, device)
    return _binary(high, structure, iterations, mask, output, *rest, False, device)


def block_reduce(
    image: Any,
    block_size: Any = 2,
    func: Reduction = "mean",
    cval: float = 0,
    *,
    device: str | None = None,
) -> Any:
    """The reduction of disjoint blocks, as `skimage.measure.block_reduce`; `cval` fills blocks at the end.

    `mode` is the most frequent element of a block; the smallest one if several are equally frequent; NaN if there is
    one. The array's own library computes it for integers that do not fit in 32 bits, for JAX's arrays, and for blocks
    along more than three axes.
    """
    x, library = _image(image)
    sizes = _blocks(block_size, x.ndim, func)
    if _is_dask(x):
        return _reduced_in_chunks(
            x, sizes, functools.partial(block_reduce, block_size=sizes, func=func, cval=cval, device=device), func
        )
    widths = [(0, -extent % size) for extent, size in zip(x.shape, sizes, strict=True)]
    if any(after for _, after in widths):
        x = library.pad(x, widths, mode="constant", constant_values=cval)
    return _reduced(x, library, sizes, func, device)


def pyramid(
    image: Any,
    factor: Any = 2,
    func: Reduction = "mean",
    levels: int | None = None,
    *,
    device: str | None = None,
) -> list[Any]:
    """The image, its reduction by `factor`, the reduction of that, and so on.

    There are `levels` images at most; the last has one element on each axis that has a factor. A block that the image's end cuts
    off has fewer elements, unlike one of `block_reduce`. Averages have the type of the image; those of integers are
    rounded to the nearest, to even ones in the middle.
    """
    x, library = _image(image)
    sizes = _blocks(factor, x.ndim, func)
    found = [x]
    while levels is None or len(found) < levels:
        if all(size == 1 or extent <= 1 for extent, size in zip(x.shape, sizes, strict=True)):
            break
        own = functools.partial(_level, sizes=sizes, func=func, device=device)
        x = _reduced_in_chunks(x, sizes, own, func, x.dtype) if _is_dask(x) else own(x)
        found.append(x)
    return found


def _level(x: Any, sizes: list[int], func: Reduction, device: str | None) -> Any:
    x, library = _image(x)
    if x.size == 0:
        return _reduced(x, library, sizes, func, device).astype(x.dtype)
    groups = list(_groups(range(x.ndim), [min(own) for own in zip(sizes, x.shape, strict=True)]))
    if func == "mean" and len(groups) == 1 and _is_narrow(x.dtype, math.prod(sizes)):
        # Kernels round as this function does.
        ((axes, extents),) = groups
        options = window(len(axes), extents, extents, 0, ceil=True)
        return _planes(x, library, axes, options, lambda own, window: own_avg_pool(own, window, None, device))
    y = _reduced(x, library, sizes, func, device)
    return (y if x.dtype.kind == "f" or y.dtype == x.dtype else library.rint(y)).astype(x.dtype)


def _blocks(size: Any, ndim: int, func: Reduction) -> list[int]:
    if func not in ("mean", "max", "min", "mode"):
        raise ValueError(f"func is 'mean', 'max', 'min' or 'mode'; found {func!r}")
    sizes = [operator.index(own) for own in _each(size, ndim, "block_size")]
    if min(sizes, default=1) < 1:
        raise ValueError(f"a block has a size of at least 1; found {sizes}")
    return sizes


def _reduced(
    x: Any, library: Any, sizes: list[int], func: Reduction, device: str | None
) -> Any:
    """The reduction of disjoint blocks, which the end of the array may cut off."""
    if x.size == 0:
        shape = [-(-extent // size) for extent, size in zip(x.shape, sizes, strict=True)]
        return library.empty(shape, dtype=x.dtype if func != "mean" or x.dtype.kind == "f" else np.float64)
    if func == "mode":
        y = _mode(x, library, sizes, device)
        # Integers may be computed in another width or byte order.
        return y if y.dtype == x.dtype else y.astype(x.dtype)
    axes = list(range(x.ndim))
    # A block that is longer than its axis is the whole axis.
    sizes = [min(size, extent) for size, extent in zip(sizes, x.shape, strict=True)]
    if func == "mean":
        x = x if x.dtype.kind == "f" else x.astype(np.float64)
        return _average(x, library, axes, sizes, sizes, True, device)
    y, back = _code(x, device)
    return back(_pooled(y, library, axes, sizes, func == "min", sizes, True, device=device))


def _mode(x: Any, library: Any, sizes: list[int], device: str | None) -> Any:
    """The most frequent element of each block; the smallest one if several are equally frequent."""
    within = [min(size, extent) for size, extent in zip(sizes, x.shape, strict=True)]
    groups = list(_groups(range(x.ndim), within))
    is_here = library is np and device in (None, "host")
    if (
        x.size == 0
        or len(groups) != 1
        or library.__name__ == "jax.numpy"
        or (math.prod(within) > _COUNTED and not is_here)
    ):
        return _mode_by_pairs(x, library, sizes)
    if x.dtype.kind == "f":
        labels = x + 0 if x.dtype.itemsize <= 8 else None  # so that -0.0 counts as 0.0
    else:
        labels = fitting(x)
    if labels is None:
        return _mode_by_pairs(x, library, sizes)
    coded, back = ordered(labels, device)
    ((axes, extents),) = groups
    options = window(len(axes), extents, extents, 0, ceil=True)
    y = _planes(coded, library, axes, options, lambda own, window: mode_pool(own, window, device))
    return back(y)


def _mode_by_pairs(x: Any, library: Any, sizes: list[int]) -> Any:
    """As `_mode`, by the array's own library."""
    if math.prod(sizes) > _COMPARED:
        return _mode_by_sorting(x, library, sizes)
    widths = [(0, -extent % size) for extent, size in zip(x.shape, sizes, strict=True)]
    is_cut = any(after for _, after in widths)
    wide = library.pad(x, widths, mode="constant", constant_values=0) if is_cut else x

    def parts(array: Any) -> list[Any]:
        """The first elements of all blocks, the second, and so on."""
        starts = itertools.product(*map(range, sizes))
        return [array[tuple(map(slice, start, array.shape, sizes))] for start in starts]

    values = parts(wide)
    counts = [library.ones(values[0].shape, dtype=np.uint8) for _ in values]
    if is_cut:
        there = library.pad(library.ones(x.shape, dtype=np.uint8), widths, mode="constant", constant_values=0)
        counts = [own.copy() for own in parts(there)]
    for (own, first), (other, second) in itertools.combinations(enumerate(values), 2):
        # What is not there equals nothing.
        same = (first == second) & (counts[own] > 0) & (counts[other] > 0) if is_cut else first == second
        counts[own] = counts[own] + same
        counts[other] = counts[other] + same
    best, most = values[0], counts[0]
    for value, count in zip(values[1:], counts[1:], strict=True):
        wins = (count > most) | ((count == most) & (value < best))
        best, most = library.where(wins, value, best), library.maximum(most, count)
    return best.copy() if library is np else best


def _mode_by_sorting(x: Any, library: Any, sizes: list[int]) -> Any:
    """As `_mode_by_pairs`, for blocks with too many pairs of elements."""
    widths = [(0, -extent % size) for extent, size in zip(x.shape, sizes, strict=True)]
    split = [part for extent, size, (_, more) in zip(x.shape, sizes, widths, strict=True)
             for part in ((extent + more) // size, size)]
    order = (*range(0, 2 * x.ndim, 2), *range(1, 2 * x.ndim, 2))

    def blocks(array: Any) -> Any:
        padded = library.pad(array, widths, mode="constant", constant_values=0)
        turned = padded.reshape(split).transpose(order)
        return turned.reshape(*split[::2], -1)

    values, counts = blocks(x), blocks(library.ones(x.shape, dtype=np.int32))
    places = library.argsort(values, axis=-1)
    values = library.take_along_axis(values, places, axis=-1)
    counts = library.take_along_axis(counts, places, axis=-1)
    best, most, run = values[..., 0], counts[..., 0], counts[..., 0]
    for at in range(1, values.shape[-1]):
        same = values[..., at] == values[..., at - 1]
        run = library.where(same, run, 0) + counts[..., at]
        best = library.where(run > most, values[..., at], best)
        most = library.maximum(most, run)
    return best


def _reduced_in_chunks(
    x: Any, sizes: list[int], work: Callable[[Any], Any], func: Reduction, dtype: Any = None
) -> Any:
    """Reduces each chunk of a dask array, after moving their borders to those of blocks."""
    chunks = []
    for own, size, extent in zip(x.chunks, sizes, x.shape, strict=True):
        borders = {at - at % size for at in itertools.accumulate(own[:-1])} - {0}
        edges = [0, *sorted(borders), extent]
        chunks.append(tuple(end - start for start, end in zip(edges, edges[1:])))
    smaller = [tuple(-(-own // size) for own in axis) for axis, size in zip(chunks, sizes, strict=True)]
    if dtype is None:
        dtype = np.float64 if func == "mean" and x.dtype.kind != "f" else x.dtype
    return x.rechunk(tuple(chunks)).map_blocks(work, chunks=tuple(smaller), dtype=dtype, meta=x._meta.astype(dtype))


__all__ = [
    "binary_closing",
    "binary_dilation",
    "binary_erosion",
    "binary_opening",
    "black_tophat",
    "block_reduce",
    "grey_closing",
    "grey_dilation",
    "grey_erosion",
    "grey_opening",
    "maximum_filter",
    "median_filter",
    "minimum_filter",
    "morphological_gradient",
    "percentile_filter",
    "pyramid",
    "rank_filter",
    "uniform_filter",
    "white_tophat",
]
