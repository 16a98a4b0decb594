"""Pooling and convolution with PyTorch's names, order and defaults, on arrays of any library.

Arrays are channels first: a batch of samples, or one sample without the batch axis. On a CUDA device a batch of images
or volumes may be channels last in memory, as PyTorch's `channels_last`, and results then are too. Importing
`windowpane.torch` or `windowpane.jax` adds gradients.

Work runs where `device` says (see `windowpane.devices()`). Without it, arrays on a CUDA device stay there; arrays in
the memory of the CPU are pooled there, and convolutions and ranks of them run on the best device that computes with the
type of their elements.

Beside PyTorch's functions there are `min_pool*`, `sum_pool*`, `median_pool*`, `mode_pool*`, `stochastic_pool*`,
`adaptive_{min,sum,lp}_pool*` and `global_{max,min,avg,sum,lp}_pool*`, whose results keep the pooled axes with an extent of 1,
and `quantized_conv*`, for int8. `avg_pool1d` takes a `divisor_override` as the others do, and there is a `fractional_max_pool1d`.

`stochastic_pool*` and `fractional_max_pool*` get their random numbers from a `seed`, which is 0 unless the caller gives another:
the same seed gives the same result on every device, so use another one for each training step.

A result has the type of the first argument, with one exception: averages of integers are float64, and their sums int64.
Both are exact before the one rounding of an average. Maxima and minima take all integers and truth values. Kernels have
int64, int32, uint32, int16, uint16, int8, uint8 and bool. Others, and int64 where the named device lacks it, are converted on
the way in and back, and have to be within 2**53; so do sums of integers; others are refused. Averages and sums of JAX's
integers are refused too, and so are norms, convolutions, stochastic and fractional pooling of integers.

What else differs from PyTorch: `lp_pool*` sums magnitudes, where PyTorch keeps signs for an odd `norm_type`, and a window
that `ceil_mode` cuts off is not scaled up; `norm_type` is at least 1. `padding="same"` works with even kernels as in
PyTorch. Indices are int64, whatever the type of the elements. `fractional_max_pool*` places its windows with float32, PyTorch
with the type of the elements.

>>> import numpy
>>> max_pool1d(numpy.array([[[1, 5, 2, 4]]], dtype="int32"), 2)
array([[[5, 4]]], dtype=int32)
>>> avg_pool1d(numpy.array([[[1, 5, 2, 4]]], dtype="uint16"), 2)
array([[[3., 3.]]])
>>> global_sum_pool2d(numpy.ones((1, 3, 4, 4), dtype=bool)).tolist()
[[[[16]], [[16]], [[16]]]]
>>> stochastic_pool1d(numpy.array([[[0.0, 5.0, -1.0, 3.0]]]), 2, seed=7)
array([[[5., 3.]]])
>>> fractional_max_pool1d(numpy.array([[[5.0, 1.0, 2.0, 3.0, 4.0]]]), 2, output_ratio=0.6).shape
(1, 1, 3)
>>> pixels, filters = numpy.array([[[100, -20, 127]]], dtype="int8"), numpy.array([[[1, 2]]], dtype="int8")
>>> quantized_conv1d(pixels, filters, numpy.array([0.5], dtype="float32"), activation="relu")
array([[[ 30., 117.]]], dtype=float32)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, SupportsIndex

from windowpane._arrays import (
    Numbers,
    Options,
    Ratios,
    SupportsDLPack,
    numbers,
    ratios,
    space_of,
    window,
)
from windowpane._engines import cast, engine_of, mode_pool, quantized_conv, rank_pool
from windowpane._integers import ordered

_Parameters = ParamSpec("_Parameters")


def _of_rank(
    function: Callable[Concatenate[int, _Parameters], Any], rank: int
) -> Callable[_Parameters, Any]:
    def of_rank(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Any:
        return function(rank, *args, **kwargs)

    signature = inspect.signature(function)
    _, *parameters = signature.parameters.values()
    of_rank.__name__ = of_rank.__qualname__ = f"{function.__name__.removeprefix('_')}{rank}d"
    of_rank.__doc__ = function.__doc__
    of_rank.__annotations__ = {**function.__annotations__}
    del of_rank.__annotations__["rank"]
    vars(of_rank)["__signature__"] = signature.replace(parameters=parameters)
    return of_rank


def _of_each_rank(
    function: Callable[Concatenate[int, _Parameters], Any],
) -> tuple[Callable[_Parameters, Any], Callable[_Parameters, Any], Callable[_Parameters, Any]]:
    """A function of the number of axes as three functions, for signals, images and volumes: `…1d`, `…2d`, `…3d`."""
    return _of_rank(function, 1), _of_rank(function, 2), _of_rank(function, 3)


def _with_small_padding(options: Options) -> Options:
    """The options of a pooling, whose windows all contain an input as in PyTorch."""
    for pad, size in zip(options["padding"], options["kernel"], strict=True):
        if 2 * pad > size:
            raise ValueError(f"padding is at most half of kernel_size; found {pad} for {size}")
    return options


def _adaptive(x: SupportsDLPack, rank: int, output: int | Sequence[int | None] | None) -> Options:
    space = space_of(x, rank)
    wanted = list(output) if isinstance(output, Sequence) else [output] * rank
    if len(wanted) == 1:
        wanted *= rank
    if len(wanted) != rank:
        raise ValueError(
            f"output_size needs {rank} numbers, or one for all axes; found {len(wanted)}"
        )
    sizes = [own if size is None else size for size, own in zip(wanted, space, strict=True)]
    return {
        "kernel": numbers(sizes, rank, "output_size", 1),
        "stride": [],
        "padding": [],
        "dilation": [],
        "ceil": False,
        "adaptive": True,
    }


def _extrema(
    rank: int, x: SupportsDLPack, options: Options, minimum: bool, indices: bool, device: str | None
) -> Any:
    space_of(x, rank)
    y, winners = engine_of(x).extremum_pool(x, options, minimum, indices, device)
    return (y, winners) if indices else y


def _averages(
    rank: int,
    x: SupportsDLPack,
    options: Options,
    counts: bool,
    divisor: int | None,
    device: str | None,
) -> Any:
    space_of(x, rank)
    if divisor is not None and divisor < 1:
        raise ValueError(f"divisor_override is at least 1; found {divisor}")
    return engine_of(x).avg_pool(x, options, counts, divisor, device)


def _sums(rank: int, x: SupportsDLPack, options: Options, device: str | None) -> Any:
    space_of(x, rank)
    return engine_of(x).sum_pool(x, options, device)


def _norms(rank: int, x: SupportsDLPack, p: float, options: Options, device: str | None) -> Any:
    space_of(x, rank)
    return engine_of(x).lp_pool(x, float(p), options, device)


@_of_each_rank
def _max_pool(
    rank: int,
    input: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The maximum of each window, and with `return_indices` its position in the plane."""
    options = window(rank, kernel_size, stride, padding, dilation, ceil_mode)
    return _extrema(rank, input, _with_small_padding(options), False, return_indices, device)


max_pool1d, max_pool2d, max_pool3d = _max_pool


@_of_each_rank
def _min_pool(
    rank: int,
    input: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The minimum of each window, and with `return_indices` its position in the plane."""
    options = window(rank, kernel_size, stride, padding, dilation, ceil_mode)
    return _extrema(rank, input, _with_small_padding(options), True, return_indices, device)


min_pool1d, min_pool2d, min_pool3d = _min_pool


@_of_each_rank
def _median_pool(
    rank: int,
    input: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The median of each window's elements inside the input: of two in the middle, the larger. It has no gradient."""
    space_of(input, rank)
    options = _with_small_padding(window(rank, kernel_size, stride, padding, dilation, ceil_mode))
    wide, back = ordered(input, device)
    return back(rank_pool(wide, None, options, device))


median_pool1d, median_pool2d, median_pool3d = _median_pool


@_of_each_rank
def _mode_pool(
    rank: int,
    input: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The most frequent of each window's elements inside the input; the smallest one if several are equally frequent.

    It has no gradient.
    """
    space_of(input, rank)
    options = _with_small_padding(window(rank, kernel_size, stride, padding, dilation, ceil_mode))
    wide, back = ordered(input, device)
    return back(mode_pool(wide, options, device))


mode_pool1d, mode_pool2d, mode_pool3d = _mode_pool


def _checked_seed(seed: int) -> int:
    if not 0 <= seed < 1 << 32:
        raise ValueError(f"seed is from 0 to 2**32 - 1; found {seed}")
    return seed


@_of_each_rank
def _stochastic_pool(
    rank: int,
    input: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    training: bool = True,
    seed: int = 0,
    device: str | None = None,
) -> Any:
    """One number of each window, drawn with a probability proportional to it, as in Caffe; a negative one counts as 0.

    Without `training` it is the mean of what all seeds draw, `Σx² / Σx` over the positive numbers.
    """
    space_of(input, rank)
    options = _with_small_padding(window(rank, kernel_size, stride, padding, dilation, ceil_mode))
    if training:
        engine, own = engine_of(input), _checked_seed(seed)
        y, drawn = engine.stochastic_pool(input, options, own, return_indices, device)
        return (y, drawn) if return_indices else y
    if return_indices:
        raise ValueError(
            "return_indices needs training=True: a mean is at no position of the input"
        )
    return engine_of(input).stochastic_mean(input, options, device)


stochastic_pool1d, stochastic_pool2d, stochastic_pool3d = _stochastic_pool


def _checked_samples(samples: Any, x: SupportsDLPack, rank: int) -> Any:
    """Random numbers as the native part takes them: as many as the input needs, in float32, in the order of the axes."""
    space_of(samples, 1, "_random_samples")
    batch, channels = ([1, *x.shape] if len(x.shape) == rank + 1 else x.shape)[:2]
    shape = tuple(samples.shape)
    if len(shape) != 3 or shape[0] < batch or shape[1:] != (channels, rank):
        raise ValueError(
            f"_random_samples needs the shape {(batch, channels, rank)}, a number for each axis of each "
            f"channel of each sample; found {shape}"
        )
    samples = cast(samples if shape[0] == batch else samples[:batch], "float32")
    # PyTorch has the width before the height for images, and after it for volumes.
    if rank != 2:
        return samples
    return samples.flip(-1) if hasattr(samples, "flip") else samples[..., ::-1]


@_of_each_rank
def _fractional_max_pool(
    rank: int,
    input: SupportsDLPack,
    kernel_size: Numbers,
    output_size: Numbers | None = None,
    output_ratio: Ratios | None = None,
    return_indices: bool = False,
    _random_samples: SupportsDLPack | None = None,
    *,
    seed: int = 0,
    device: str | None = None,
) -> Any:
    """The maxima of windows at random positions, for outputs of this size, or of this part of the input's, rounded down.

    There is a random number from 0 to 1 for each axis of each channel of each sample: a function of `seed`, or
    `_random_samples` of the shape (samples, channels, axes), in PyTorch's order.
    """
    space = space_of(input, rank)
    if output_ratio is not None and output_size is None:
        parts = zip(space, ratios(output_ratio, rank, "output_ratio"), strict=True)
        wanted: Numbers = [int(extent * ratio) for extent, ratio in parts]
    elif output_size is not None and output_ratio is None:
        wanted = output_size
    else:
        raise ValueError("output_size or output_ratio is needed, and not both; give one of them")
    samples = _random_samples
    y, winners = engine_of(input).fractional_max_pool(
        input,
        None if samples is None else _checked_samples(samples, input, rank),
        {
            "kernel": numbers(kernel_size, rank, "kernel_size", 1),
            "output": numbers(wanted, rank, "output_size", 1),
            "seed": _checked_seed(seed),
        },
        return_indices,
        device,
    )
    return (y, winners) if return_indices else y


fractional_max_pool1d, fractional_max_pool2d, fractional_max_pool3d = _fractional_max_pool


@_of_each_rank
def _avg_pool(
    rank: int,
    input: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    device: str | None = None,
) -> Any:
    """The average of each window."""
    options = _with_small_padding(window(rank, kernel_size, stride, padding, ceil=ceil_mode))
    return _averages(rank, input, options, count_include_pad, divisor_override, device)


avg_pool1d, avg_pool2d, avg_pool3d = _avg_pool


@_of_each_rank
def _sum_pool(
    rank: int,
    input: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    ceil_mode: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The sum of each window."""
    options = _with_small_padding(window(rank, kernel_size, stride, padding, ceil=ceil_mode))
    return _sums(rank, input, options, device)


sum_pool1d, sum_pool2d, sum_pool3d = _sum_pool


@_of_each_rank
def _lp_pool(
    rank: int,
    input: SupportsDLPack,
    norm_type: float,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    ceil_mode: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The norm of each window, of magnitudes: PyTorch's sums keep signs where `norm_type` is odd."""
    options = window(rank, kernel_size, stride, 0, ceil=ceil_mode)
    return _norms(rank, input, norm_type, options, device)


lp_pool1d, lp_pool2d, lp_pool3d = _lp_pool


@_of_each_rank
def _adaptive_max_pool(
    rank: int,
    input: SupportsDLPack,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The maxima of windows that make outputs of this size; `None` keeps the input's extent."""
    options = _adaptive(input, rank, output_size)
    return _extrema(rank, input, options, False, return_indices, device)


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = _adaptive_max_pool


@_of_each_rank
def _adaptive_min_pool(
    rank: int,
    input: SupportsDLPack,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The minima of windows that make outputs of this size; `None` keeps the input's extent."""
    options = _adaptive(input, rank, output_size)
    return _extrema(rank, input, options, True, return_indices, device)


adaptive_min_pool1d, adaptive_min_pool2d, adaptive_min_pool3d = _adaptive_min_pool


@_of_each_rank
def _adaptive_avg_pool(
    rank: int,
    input: SupportsDLPack,
    output_size: int | Sequence[int | None],
    *,
    device: str | None = None,
) -> Any:
    """The averages of windows that make outputs of this size; `None` keeps the input's extent."""
    return _averages(rank, input, _adaptive(input, rank, output_size), True, None, device)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = _adaptive_avg_pool


@_of_each_rank
def _adaptive_sum_pool(
    rank: int,
    input: SupportsDLPack,
    output_size: int | Sequence[int | None],
    *,
    device: str | None = None,
) -> Any:
    """The sums of windows that make outputs of this size; `None` keeps the input's extent."""
    return _sums(rank, input, _adaptive(input, rank, output_size), device)


adaptive_sum_pool1d, adaptive_sum_pool2d, adaptive_sum_pool3d = _adaptive_sum_pool


@_of_each_rank
def _adaptive_lp_pool(
    rank: int,
    input: SupportsDLPack,
    norm_type: float,
    output_size: int | Sequence[int | None],
    *,
    device: str | None = None,
) -> Any:
    """The norms of windows that make outputs of this size; `None` keeps the input's extent."""
    return _norms(rank, input, norm_type, _adaptive(input, rank, output_size), device)


adaptive_lp_pool1d, adaptive_lp_pool2d, adaptive_lp_pool3d = _adaptive_lp_pool


@_of_each_rank
def _global_max_pool(
    rank: int,
    input: SupportsDLPack,
    return_indices: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The maxima of each plane, with axes of 1 in its place."""
    options = _adaptive(input, rank, 1)
    return _extrema(rank, input, options, False, return_indices, device)


global_max_pool1d, global_max_pool2d, global_max_pool3d = _global_max_pool


@_of_each_rank
def _global_min_pool(
    rank: int,
    input: SupportsDLPack,
    return_indices: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The minima of each plane, with axes of 1 in its place."""
    options = _adaptive(input, rank, 1)
    return _extrema(rank, input, options, True, return_indices, device)


global_min_pool1d, global_min_pool2d, global_min_pool3d = _global_min_pool


@_of_each_rank
def _global_avg_pool(
    rank: int,
    input: SupportsDLPack,
    *,
    device: str | None = None,
) -> Any:
    """The averages of each plane, with axes of 1 in its place."""
    return _averages(rank, input, _adaptive(input, rank, 1), True, None, device)


global_avg_pool1d, global_avg_pool2d, global_avg_pool3d = _global_avg_pool


@_of_each_rank
def _global_sum_pool(
    rank: int,
    input: SupportsDLPack,
    *,
    device: str | None = None,
) -> Any:
    """The sums of each plane, with axes of 1 in its place."""
    return _sums(rank, input, _adaptive(input, rank, 1), device)


global_sum_pool1d, global_sum_pool2d, global_sum_pool3d = _global_sum_pool


@_of_each_rank
def _global_lp_pool(
    rank: int,
    input: SupportsDLPack,
    norm_type: float,
    *,
    device: str | None = None,
) -> Any:
    """The norms of each plane, with axes of 1 in its place."""
    return _norms(rank, input, norm_type, _adaptive(input, rank, 1), device)


global_lp_pool1d, global_lp_pool2d, global_lp_pool3d = _global_lp_pool


def _near(wanted: Sequence[SupportsIndex], sizes: list[int], stride: list[int]) -> list[int]:
    """The size that the caller wants of an output, which the stride leaves open."""
    rank = len(sizes)
    if len(wanted) not in (rank, rank + 2):
        raise ValueError(f"output_size needs {rank} or {rank + 2} numbers; found {len(wanted)}")
    found = numbers(wanted[-rank:], rank, "output_size", 1)
    for size, own, step in zip(found, sizes, stride, strict=True):
        if not own - step < size < own + step:
            raise ValueError(
                f"output_size is between {own - step} and {own + step} on each axis; found {size}"
            )
    return found


@_of_each_rank
def _max_unpool(
    rank: int,
    input: SupportsDLPack,
    indices: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    output_size: Sequence[SupportsIndex] | None = None,
    *,
    device: str | None = None,
) -> Any:
    """Each maximum at its index, zeros elsewhere."""
    options = window(rank, kernel_size, stride, padding)
    space = space_of(input, rank)
    space_of(indices, rank, "indices")
    sizes = [
        (extent - 1) * step - 2 * pad + size
        for extent, step, pad, size in zip(
            space, options["stride"], options["padding"], options["kernel"], strict=True
        )
    ]
    if output_size is not None:
        sizes = _near(output_size, sizes, options["stride"])
    whole = numbers(sizes, rank, "the output", 1)
    return engine_of(input).max_unpool(input, indices, whole, device)


max_unpool1d, max_unpool2d, max_unpool3d = _max_unpool


def _kernel_of(weight: SupportsDLPack, rank: int) -> list[int]:
    space_of(weight, rank, "weight")
    shape = [int(extent) for extent in weight.shape]
    if len(shape) != rank + 2:
        raise ValueError(f"weight needs {rank + 2} axes; found {len(shape)}")
    return shape[2:]


def _conv_window(
    rank: int,
    weight: SupportsDLPack,
    stride: Numbers,
    padding: Numbers | str,
    dilation: Numbers,
) -> Options:
    same = padding == "same"
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"padding is 'same', 'valid' or numbers; found {padding!r}")
        padding = 0
    options = window(rank, _kernel_of(weight, rank), stride, padding, dilation)
    if same:
        if any(step != 1 for step in options["stride"]):
            raise ValueError("padding='same' needs a stride of 1")
        options["padding"] = []
    return options


@_of_each_rank
def _conv(
    rank: int,
    input: SupportsDLPack,
    weight: SupportsDLPack,
    bias: SupportsDLPack | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    device: str | None = None,
) -> Any:
    """The convolution with filters of shape (filters, channels / groups, …)."""
    space_of(input, rank)
    options = _conv_window(rank, weight, stride, padding, dilation)
    (group_count,) = numbers(groups, 1, "groups", 1)
    return engine_of(input).conv(input, weight, bias, options, group_count, device)


conv1d, conv2d, conv3d = _conv


@_of_each_rank
def _quantized_conv(
    rank: int,
    input: SupportsDLPack,
    weight: SupportsDLPack,
    scale: SupportsDLPack,
    bias: SupportsDLPack | None = None,
    stride: Numbers = 1,
    padding: Numbers | str = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    *,
    activation: str = "none",
    dtype: str = "float32",
    device: str | None = None,
) -> Any:
    """The convolution of int8 with int8 filters: `activation(scale * sum + bias)`, with a float32 `scale` for each filter.

    The sums are exact. `dtype` is float32, float16, bfloat16 or int8, which is rounded to the nearest, to even numbers in
    the middle, and clamped; `activation` is none, relu, leaky or leaky:SLOPE, and unless `dtype` is int8 also relu6, gelu or
    silu.
    """
    space_of(input, rank)
    options = _conv_window(rank, weight, stride, padding, dilation)
    (group_count,) = numbers(groups, 1, "groups", 1)
    if dtype not in _OUTPUTS:
        raise ValueError(f"dtype is one of {', '.join(_OUTPUTS)}; found {dtype!r}")
    return quantized_conv(
        input, weight, scale, bias, options, group_count, activation, _OUTPUTS[dtype], device
    )


quantized_conv1d, quantized_conv2d, quantized_conv3d = _quantized_conv
#: The types of the results of quantized convolutions, and their names in the native part.
_OUTPUTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8"}


@_of_each_rank
def _conv_transpose(
    rank: int,
    input: SupportsDLPack,
    weight: SupportsDLPack,
    bias: SupportsDLPack | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
    *,
    device: str | None = None,
) -> Any:
    """The transposed convolution with filters of shape (channels, filters / groups, …)."""
    space = space_of(input, rank)
    options = window(rank, _kernel_of(weight, rank), stride, padding, dilation)
    more = numbers(output_padding, rank, "output_padding")
    for further, step, spread in zip(more, options["stride"], options["dilation"], strict=True):
        if further >= max(step, spread):
            raise ValueError("output_padding has to be less than the stride or the dilation")
    sizes = [
        (extent - 1) * step - 2 * pad + spread * (size - 1) + 1 + further
        for extent, step, pad, spread, size, further in zip(
            space,
            options["stride"],
            options["padding"],
            options["dilation"],
            options["kernel"],
            more,
            strict=True,
        )
    ]
    whole = numbers(sizes, rank, "the output", 1)
    (group_count,) = numbers(groups, 1, "groups", 1)
    return engine_of(input).conv_transpose(input, weight, bias, whole, options, group_count, device)


conv_transpose1d, conv_transpose2d, conv_transpose3d = _conv_transpose


__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_lp_pool1d",
    "adaptive_lp_pool2d",
    "adaptive_lp_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "adaptive_min_pool1d",
    "adaptive_min_pool2d",
    "adaptive_min_pool3d",
    "adaptive_sum_pool1d",
    "adaptive_sum_pool2d",
    "adaptive_sum_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "fractional_max_pool1d",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "global_avg_pool1d",
    "global_avg_pool2d",
    "global_avg_pool3d",
    "global_lp_pool1d",
    "global_lp_pool2d",
    "global_lp_pool3d",
    "global_max_pool1d",
    "global_max_pool2d",
    "global_max_pool3d",
    "global_min_pool1d",
    "global_min_pool2d",
    "global_min_pool3d",
    "global_sum_pool1d",
    "global_sum_pool2d",
    "global_sum_pool3d",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "median_pool1d",
    "median_pool2d",
    "median_pool3d",
    "min_pool1d",
    "min_pool2d",
    "min_pool3d",
    "mode_pool1d",
    "mode_pool2d",
    "mode_pool3d",
    "quantized_conv1d",
    "quantized_conv2d",
    "quantized_conv3d",
    "stochastic_pool1d",
    "stochastic_pool2d",
    "stochastic_pool3d",
    "sum_pool1d",
    "sum_pool2d",
    "sum_pool3d",
]
