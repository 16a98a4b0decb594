"""Pooling and convolution with PyTorch's names, order and defaults, on arrays of any library.

Arrays are channels first: a batch of samples, or one sample without the batch axis. A result has the type of the first
argument. Work runs on the best device of the machine that computes with the type of the elements, or on the one that
`device` names (see `windowpane.devices()`). Arrays on a CUDA device stay there. Importing `windowpane.torch` or
`windowpane.jax` adds gradients.

What differs from PyTorch: `lp_pool*` sums magnitudes, where PyTorch keeps signs for an odd `norm_type`, and a window
that `ceil_mode` cuts off is not scaled up; `norm_type` is at least 1. `padding="same"` works with even kernels as in
PyTorch. Indices are int64, whatever the type of the elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

from windowpane._arrays import Numbers, Options, SupportsDLPack, numbers, space_of
from windowpane._engines import engine_of


def _options(
    rank: int,
    kernel: Numbers,
    stride: Numbers | None,
    padding: Numbers,
    dilation: Numbers = 1,
    ceil: bool = False,
) -> Options:
    kernel_size = numbers(kernel, rank, "kernel_size", 1)
    return {
        "kernel": kernel_size,
        "stride": kernel_size if stride is None else numbers(stride, rank, "stride", 1),
        "padding": numbers(padding, rank, "padding"),
        "dilation": numbers(dilation, rank, "dilation", 1),
        "ceil": ceil,
        "adaptive": False,
    }


def _with_small_padding(options: Options) -> Options:
    """The options of a pooling, whose windows all contain an input as in PyTorch."""
    for pad, size in zip(options["padding"], options["kernel"], strict=True):
        if 2 * pad > size:
            raise ValueError(f"padding is at most half of kernel_size; found {pad} for {size}")
    return options


def _adaptive(x: SupportsDLPack, rank: int, output: Any) -> Options:
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


def _max_pool(
    rank: int, x: SupportsDLPack, options: Options, indices: bool, device: str | None
) -> Any:
    space_of(x, rank)
    if indices:
        return engine_of(x).max_pool_with_indices(x, options, device)
    return engine_of(x).max_pool(x, options, device)


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
    >>> max_pool1d(numpy.array([[[1, 5, 2, 4]]], dtype="int32"), 2)
    array([[[5, 4]]], dtype=int32)
    """
    options = _with_small_padding(_options(1, kernel_size, stride, padding, dilation, ceil_mode))
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
    options = _with_small_padding(_options(2, kernel_size, stride, padding, dilation, ceil_mode))
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
    options = _with_small_padding(_options(3, kernel_size, stride, padding, dilation, ceil_mode))
    return _max_pool(3, input, options, return_indices, device)


def _avg_pool(
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
    options = _with_small_padding(_options(1, kernel_size, stride, padding, ceil=ceil_mode))
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
    options = _with_small_padding(_options(2, kernel_size, stride, padding, ceil=ceil_mode))
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
    options = _with_small_padding(_options(3, kernel_size, stride, padding, ceil=ceil_mode))
    return _avg_pool(3, input, options, count_include_pad, divisor_override, device)


def _lp_pool(
    rank: int, x: SupportsDLPack, p: float, options: Options, device: str | None
) -> Any:
    space_of(x, rank)
    return engine_of(x).lp_pool(x, float(p), options, device)


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
    options = _with_small_padding(_options(1, kernel_size, stride, 0, ceil=ceil_mode))
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
    options = _with_small_padding(_options(2, kernel_size, stride, 0, ceil=ceil_mode))
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
    options = _with_small_padding(_options(3, kernel_size, stride, 0, ceil=ceil_mode))
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
    output: Sequence[SupportsIndex] | None,
    device: str | None,
) -> Any:
    window = _options(rank, kernel, stride, padding)
    space = space_of(x, rank)
    space_of(indices, rank, "indices")
    default = [
        (extent - 1) * step - 2 * pad + size
        for extent, step, pad, size in zip(
            space, window["stride"], window["padding"], window["kernel"], strict=True
        )
    ]
    sizes = default
    if output is not None:
        if len(output) not in (rank, rank + 2):
            raise ValueError(
                f"output_size needs {rank} or {rank + 2} numbers; found {len(output)}"
            )
        sizes = numbers(output[-rank:], rank, "output_size", 1)
        for size, own, step in zip(sizes, default, window["stride"], strict=True):
            if not own - step < size < own + step:
                raise ValueError(
                    f"output_size is between {own - step} and {own + step} on each axis; found {size}"
                )
    whole = numbers(sizes, rank, "the output", 1)
    return engine_of(x).max_unpool(x, indices, whole, device)


def max_unpool1d(
    input: SupportsDLPack,
    indices: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    output_size: Sequence[SupportsIndex] | None = None,
    *,
    device: str | None = None,
) -> Any:
    """Each maximum at its index in signals, zeros elsewhere."""
    return _max_unpool(1, input, indices, kernel_size, stride, padding, output_size, device)


def max_unpool2d(
    input: SupportsDLPack,
    indices: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    output_size: Sequence[SupportsIndex] | None = None,
    *,
    device: str | None = None,
) -> Any:
    """Each maximum at its index in images, zeros elsewhere."""
    return _max_unpool(2, input, indices, kernel_size, stride, padding, output_size, device)


def max_unpool3d(
    input: SupportsDLPack,
    indices: SupportsDLPack,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    output_size: Sequence[SupportsIndex] | None = None,
    *,
    device: str | None = None,
) -> Any:
    """Each maximum at its index in volumes, zeros elsewhere."""
    return _max_unpool(3, input, indices, kernel_size, stride, padding, output_size, device)


def _kernel_of(weight: SupportsDLPack, rank: int) -> list[int]:
    space_of(weight, rank, "weight")
    shape = [int(extent) for extent in weight.shape]
    if len(shape) != rank + 2:
        raise ValueError(f"weight needs {rank + 2} axes; found {len(shape)}")
    return shape[2:]


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
    space_of(x, rank)
    same = padding == "same"
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"padding is 'same', 'valid' or numbers; found {padding!r}")
        padding = 0
    options = _options(rank, _kernel_of(weight, rank), stride, padding, dilation)
    if same:
        if any(step != 1 for step in options["stride"]):
            raise ValueError("padding='same' needs a stride of 1")
        options["padding"] = []
    (group_count,) = numbers(groups, 1, "groups", 1)
    return engine_of(x).conv(x, weight, bias, options, group_count, device)


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
    bias: SupportsDLPack | None,
    stride: Numbers,
    padding: Numbers,
    output_padding: Numbers,
    groups: int,
    dilation: Numbers,
    device: str | None,
) -> Any:
    space = space_of(x, rank)
    options = _options(rank, _kernel_of(weight, rank), stride, padding, dilation)
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
    size = numbers(sizes, rank, "the output", 1)
    (group_count,) = numbers(groups, 1, "groups", 1)
    return engine_of(x).conv_transpose(x, weight, bias, size, options, group_count, device)


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
    """The transposed convolution of signals."""
    return _conv_transpose(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation, device
    )


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
    """The transposed convolution of images."""
    return _conv_transpose(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation, device
    )


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
    """The transposed convolution of volumes."""
    return _conv_transpose(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation, device
    )


__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
]
