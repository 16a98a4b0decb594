"""Pooling and convolution with PyTorch's names, order and defaults, on arrays of any library.

Arrays are channels first: a batch of samples, or one sample without the axis of the batch. A result is an array of the
library that the first argument is of. Work runs on the best device of the machine, or on the one that `device` names
(see `windowpane.devices()`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windowpane import _native
from windowpane._arrays import Options, SupportsDLPack, lacks_batch, like, numbers
from windowpane._native import Array

Numbers = int | tuple[int, ...] | list[int]


def _options(
    rank: int,
    kernel: Numbers,
    stride: Numbers | None,
    padding: Numbers,
    dilation: Numbers = 1,
    ceil: bool = False,
) -> Options:
    kernel_size = numbers(kernel, rank, "kernel_size")
    return {
        "kernel": kernel_size,
        "stride": kernel_size if stride is None else numbers(stride, rank, "stride"),
        "padding": numbers(padding, rank, "padding"),
        "dilation": numbers(dilation, rank, "dilation"),
        "ceil": ceil,
        "adaptive": False,
    }


def _adaptive(x: SupportsDLPack, rank: int, output: int | Sequence[int | None]) -> Options:
    wanted = [output] * rank if isinstance(output, int) else list(output)
    if len(wanted) != rank:
        raise ValueError(f"output_size needs {rank} numbers, or one for all axes; found {len(wanted)}")
    space = list(x.shape)[-rank:]
    sizes = [int(own) if size is None else int(size) for size, own in zip(wanted, space, strict=True)]
    return {
        "kernel": sizes,
        "stride": [],
        "padding": [],
        "dilation": [],
        "ceil": False,
        "adaptive": True,
    }


class _Batched:
    """An array with the axis of a batch, and results without it if the array had none."""

    def __init__(self, x: SupportsDLPack, rank: int) -> None:
        self.caller = x
        self.alone = lacks_batch(x, rank)
        array: Any = x
        self.array: SupportsDLPack = array[None] if self.alone else array

    def like(self, result: Array) -> Any:
        array = like(self.caller, result)
        return array[0] if self.alone and not isinstance(array, Array) else array


def _max_pool(
    rank: int, x: SupportsDLPack, options: Options, indices: bool, device: str | None
) -> Any:
    batched = _Batched(x, rank)
    y, winners = _native.max_pool(batched.array, options, indices, device)
    if winners is None:
        return batched.like(y)
    return batched.like(y), batched.like(winners)


def max_pool1d(
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
    """The maximum of each window of signals.

    >>> import numpy
    >>> max_pool1d(numpy.array([[[1.0, 5.0, 2.0, 4.0]]]), 2)
    array([[[5., 4.]]])
    """
    options = _options(1, kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool(1, input, options, return_indices, device)


def max_pool2d(
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
    """The maximum of each window of images, and with `return_indices` its position in the plane."""
    options = _options(2, kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool(2, input, options, return_indices, device)


def max_pool3d(
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
    """The maximum of each window of volumes."""
    options = _options(3, kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool(3, input, options, return_indices, device)


def _avg_pool(
    rank: int,
    x: SupportsDLPack,
    options: Options,
    counts: bool,
    divisor: int | None,
    device: str | None,
) -> Any:
    batched = _Batched(x, rank)
    return batched.like(_native.avg_pool(batched.array, options, counts, divisor, device))


def avg_pool1d(
    input: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    *,
    device: str | None = None,
) -> Any:
    """The average of each window of signals."""
    options = _options(1, kernel_size, stride, padding, ceil=ceil_mode)
    return _avg_pool(1, input, options, count_include_pad, None, device)


def avg_pool2d(
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
    """The average of each window of images."""
    options = _options(2, kernel_size, stride, padding, ceil=ceil_mode)
    return _avg_pool(2, input, options, count_include_pad, divisor_override, device)


def avg_pool3d(
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
    """The average of each window of volumes."""
    options = _options(3, kernel_size, stride, padding, ceil=ceil_mode)
    return _avg_pool(3, input, options, count_include_pad, divisor_override, device)


def _lp_pool(
    rank: int, x: SupportsDLPack, p: float, options: Options, device: str | None
) -> Any:
    batched = _Batched(x, rank)
    return batched.like(_native.lp_pool(batched.array, float(p), options, device))


def lp_pool1d(
    input: SupportsDLPack,
    norm_type: float,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    ceil_mode: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The norm of each window of signals, of magnitudes: PyTorch's sums keep signs where `norm_type` is odd."""
    options = _options(1, kernel_size, stride, 0, ceil=ceil_mode)
    return _lp_pool(1, input, norm_type, options, device)


def lp_pool2d(
    input: SupportsDLPack,
    norm_type: float,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    ceil_mode: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The norm of each window of images, of magnitudes: PyTorch's sums keep signs where `norm_type` is odd."""
    options = _options(2, kernel_size, stride, 0, ceil=ceil_mode)
    return _lp_pool(2, input, norm_type, options, device)


def lp_pool3d(
    input: SupportsDLPack,
    norm_type: float,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    ceil_mode: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The norm of each window of volumes, of magnitudes: PyTorch's sums keep signs where `norm_type` is odd."""
    options = _options(3, kernel_size, stride, 0, ceil=ceil_mode)
    return _lp_pool(3, input, norm_type, options, device)


def adaptive_max_pool1d(
    input: SupportsDLPack,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The maxima of windows that make outputs of this size."""
    return _max_pool(1, input, _adaptive(input, 1, output_size), return_indices, device)


def adaptive_max_pool2d(
    input: SupportsDLPack,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The maxima of windows that make outputs of this size; `None` keeps the input's extent."""
    return _max_pool(2, input, _adaptive(input, 2, output_size), return_indices, device)


def adaptive_max_pool3d(
    input: SupportsDLPack,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
    *,
    device: str | None = None,
) -> Any:
    """The maxima of windows that make outputs of this size; `None` keeps the input's extent."""
    return _max_pool(3, input, _adaptive(input, 3, output_size), return_indices, device)


def adaptive_avg_pool1d(
    input: SupportsDLPack,
    output_size: int | Sequence[int | None],
    *,
    device: str | None = None,
) -> Any:
    """The averages of windows that make outputs of this size."""
    return _avg_pool(1, input, _adaptive(input, 1, output_size), True, None, device)


def adaptive_avg_pool2d(
    input: SupportsDLPack,
    output_size: int | Sequence[int | None],
    *,
    device: str | None = None,
) -> Any:
    """The averages of windows that make outputs of this size; `None` keeps the input's extent."""
    return _avg_pool(2, input, _adaptive(input, 2, output_size), True, None, device)


def adaptive_avg_pool3d(
    input: SupportsDLPack,
    output_size: int | Sequence[int | None],
    *,
    device: str | None = None,
) -> Any:
    """The averages of windows that make outputs of this size; `None` keeps the input's extent."""
    return _avg_pool(3, input, _adaptive(input, 3, output_size), True, None, device)


def _max_unpool(
    rank: int,
    x: SupportsDLPack,
    indices: SupportsDLPack,
    kernel: Numbers,
    stride: Numbers | None,
    padding: Numbers,
    output: Sequence[int] | None,
    device: str | None,
) -> Any:
    window = _options(rank, kernel, stride, padding)
    batched, winners = _Batched(x, rank), _Batched(indices, rank)
    if output is None:
        space = list(batched.array.shape)[-rank:]
        sizes = [
            (extent - 1) * step - 2 * pad + size
            for extent, step, pad, size in zip(
                space, window["stride"], window["padding"], window["kernel"], strict=True
            )
        ]
    else:
        sizes = [int(size) for size in output][-rank:]
    return batched.like(_native.max_unpool(batched.array, winners.array, sizes, device))


def max_unpool1d(
    input: SupportsDLPack,
    indices: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    output_size: Sequence[int] | None = None,
    *,
    device: str | None = None,
) -> Any:
    """The maxima back at their places in signals, zeros elsewhere."""
    return _max_unpool(1, input, indices, kernel_size, stride, padding, output_size, device)


def max_unpool2d(
    input: SupportsDLPack,
    indices: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    output_size: Sequence[int] | None = None,
    *,
    device: str | None = None,
) -> Any:
    """The maxima back at their places in images, zeros elsewhere."""
    return _max_unpool(2, input, indices, kernel_size, stride, padding, output_size, device)


def max_unpool3d(
    input: SupportsDLPack,
    indices: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    output_size: Sequence[int] | None = None,
    *,
    device: str | None = None,
) -> Any:
    """The maxima back at their places in volumes, zeros elsewhere."""
    return _max_unpool(3, input, indices, kernel_size, stride, padding, output_size, device)


def _conv(
    rank: int,
    x: SupportsDLPack,
    weight: SupportsDLPack,
    bias: SupportsDLPack | None,
    stride: Numbers,
    padding: Numbers | str,
    dilation: Numbers,
    groups: int,
    device: str | None,
) -> Any:
    batched = _Batched(x, rank)
    kernel = [int(size) for size in weight.shape][2:]
    if padding == "valid":
        padding = 0
    elif padding == "same":
        spread = [
            (size - 1) * step
            for size, step in zip(kernel, numbers(dilation, rank, "dilation"), strict=True)
        ]
        if any(size % 2 for size in spread):
            raise ValueError(
                "padding='same' needs a kernel that reaches as far to both sides; pad the input, or use an odd kernel"
            )
        if any(step != 1 for step in numbers(stride, rank, "stride")):
            raise ValueError("padding='same' needs a stride of 1")
        padding = [size // 2 for size in spread]
    elif isinstance(padding, str):
        raise ValueError(f"padding is 'same', 'valid' or numbers; found {padding!r}")
    options = _options(rank, kernel, stride, padding, dilation)
    result = _native.convolve(batched.array, weight, bias, options, groups, device)
    return batched.like(result)


def conv1d(
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
    """The convolution of signals with filters of shape (filters, channels / groups, width)."""
    return _conv(1, input, weight, bias, stride, padding, dilation, groups, device)


def conv2d(
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
    """The convolution of images with filters of shape (filters, channels / groups, height, width)."""
    return _conv(2, input, weight, bias, stride, padding, dilation, groups, device)


def conv3d(
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
    """The convolution of volumes with filters of shape (filters, channels / groups, depth, height, width)."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups, device)


def _conv_transpose(
    rank: int,
    x: SupportsDLPack,
    weight: SupportsDLPack,
    stride: Numbers,
    padding: Numbers,
    output_padding: Numbers,
    groups: int,
    dilation: Numbers,
    device: str | None,
) -> Any:
    batched = _Batched(x, rank)
    shape = [int(extent) for extent in weight.shape]
    options = _options(rank, shape[2:], stride, padding, dilation)
    more = numbers(output_padding, rank, "output_padding")
    batch, _, *space = [int(extent) for extent in batched.array.shape]
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
    for further, step, spread in zip(more, options["stride"], options["dilation"], strict=True):
        if further >= max(step, spread):
            raise ValueError("output_padding has to be less than the stride or the dilation")
    dims = [batch, shape[1] * groups, *sizes]
    result = _native.convolve_transposed(batched.array, weight, dims, options, groups, device)
    return batched.like(result)


def _with_bias(y: Any, bias: Any, rank: int) -> Any:
    return y if bias is None else y + bias.reshape((-1,) + (1,) * rank)


def conv_transpose1d(
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
    """The transposed convolution of signals; the caller's library adds the bias."""
    y = _conv_transpose(
        1, input, weight, stride, padding, output_padding, groups, dilation, device
    )
    return _with_bias(y, bias, 1)


def conv_transpose2d(
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
    """The transposed convolution of images; the caller's library adds the bias."""
    y = _conv_transpose(
        2, input, weight, stride, padding, output_padding, groups, dilation, device
    )
    return _with_bias(y, bias, 2)


def conv_transpose3d(
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
    """The transposed convolution of volumes; the caller's library adds the bias."""
    y = _conv_transpose(
        3, input, weight, stride, padding, output_padding, groups, dilation, device
    )
    return _with_bias(y, bias, 3)

