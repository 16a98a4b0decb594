"""PyTorch: gradients, compilation, modules, and `patch`, which replaces a model's own.

Importing this module gives the functions of `windowpane.functional` gradients on PyTorch's tensors. They are operators
of `torch.library`, so `torch.compile(fullgraph=True)` takes them as they are, but for medians, modes and `quantized_conv*`.
Gradients are those of `backward`; there are no forward-mode ones, and `torch.func` cannot differentiate them.

    import torch
    import windowpane.functional as F
    import windowpane.torch

    model = windowpane.torch.patch(model, x)       # its poolings and convolutions, where ours are faster for x
    print(windowpane.torch.report(model))          # what was replaced, and why
    y = F.max_pool2d(x, 3, stride=2, padding=1)    # or single functions
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from windowpane import _native
from windowpane import functional as F
from windowpane._arrays import FractionalOptions, Options, output_size
from windowpane._engines import ENGINES, mean_gradient
from windowpane._integers import always_fits, check_sum, has, narrowed

# A window as the arguments of an operator, and the device that computes with what is in the memory of the CPU.
_WINDOW = "SymInt[] kernel, int[] stride, int[] padding, int[] dilation, bool ceil, bool adaptive"

# The windows of a fractional max pooling.
_PLACES = "int[] kernel, SymInt[] output, SymInt seed"


def _arguments(options: Options) -> tuple[Any, ...]:
    return (
        options["kernel"],
        options["stride"],
        options["padding"],
        options["dilation"],
        options["ceil"],
        options["adaptive"],
    )


def _options(
    kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, adaptive: bool
) -> Options:
    return {
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "ceil": ceil,
        "adaptive": adaptive,
    }


def _size(x: Any, window: Any) -> list[Any]:
    """The extents of the output."""
    return output_size(x.shape[-len(window[0]) :], _options(*window))


_TENSOR = torch.empty(0)


def _take(result: Any) -> Any:
    """A result as a tensor. As a capsule it needs no negotiation about streams: they are ordered already."""
    tensor = result.like(_TENSOR)
    return torch.from_dlpack(result.__dlpack__()) if tensor is None else tensor


def _plain(tensor: Any) -> Any:
    """A tensor apart from graphs of gradients."""
    return tensor.detach() if tensor.requires_grad else tensor


def _take_both(y: Any, winners: Any) -> tuple[Any, Any]:
    """Values and positions as tensors. Positions from the memory of the CPU have 64 bits, of which kernels use 32."""
    return _take(y), _take(winners).to(torch.int32)


def _with_indices(y: Any) -> tuple[Any, Any]:
    """A result without its elements, and its positions."""
    return y, torch.empty_like(y, dtype=torch.int32)


def _lead(x: Any, rank: int) -> list[Any]:
    """The batch, if there is one, and the channels."""
    return list(x.shape[:-rank])


def _memory_format(rank: int, *tensors: Any) -> Any:
    """How a result is stored: as the first of the tensors whose memory has only one of the two layouts.

    It is what the native part decides from the strides. Only batches of images and volumes on a GPU are kept channels last.
    """
    for own in tensors:
        if rank < 2 or own.dim() != rank + 2 or not own.is_cuda or own.numel() == 0:
            break
        last = torch.channels_last if rank == 2 else torch.channels_last_3d
        if own.is_contiguous(memory_format=last) and not own.is_contiguous():
            return last
        if own.shape[1] != 1 and any(extent != 1 for extent in own.shape[2:]):
            break
    return torch.contiguous_format


def _made(shape: Any, rank: int, *tensors: Any) -> Any:
    """A result of this shape from these tensors, without its elements."""
    x, memory_format = tensors[0], _memory_format(rank, *tensors)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=memory_format)


def _pooled_fake(x: Any, window: Any) -> Any:
    rank = len(window[0])
    return _made(_lead(x, rank) + _size(x, window), rank, x)


def _is_integer(x: Any) -> bool:
    return not (x.is_floating_point() or x.is_complex())


def _range(x: Any) -> tuple[int, int]:
    """The least and the greatest of integers."""
    if x.dtype == torch.uint64:
        raise TypeError("PyTorch compares no uint64; convert the tensor to int64")
    x = x.to(torch.int64)
    return (int(x.min()), int(x.max())) if x.numel() else (0, 0)


def _ordered(x: Any, device: str | None) -> Any:
    """The elements in a type that the device has, in the same order."""
    if not _is_integer(x) or has(device, str(x.dtype).removeprefix("torch.")):
        return x
    if x.dtype == torch.bool:
        return x.to(torch.uint8)
    return x.to(getattr(torch, narrowed(*_range(x))))


def _summed(x: Any, rank: int) -> Any:
    """The elements as float64, in which every sum over the last axes is exact."""
    count = math.prod(x.shape[-rank:])
    if not always_fits(x.dtype.itemsize, count):
        least, most = _range(x)
        check_sum(max(-least, most), count)
    return x.to(torch.float64)


def _extremum_pool(x: Any, minimum: bool, *rest: Any) -> Any:
    *window, device = rest
    x = _plain(x)
    found, _ = _native.extremum_pool(_ordered(x, device), _options(*window), minimum, False, device)
    y = _take(found)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _extremum_pool_fake(x: Any, minimum: bool, *rest: Any) -> Any:
    return _pooled_fake(x, rest[:-1])


def _extremum_pool_with_indices(x: Any, minimum: bool, *rest: Any) -> Any:
    *window, device = rest
    x = _plain(x)
    found = _native.extremum_pool(_ordered(x, device), _options(*window), minimum, True, device)
    y, winners = _take_both(*found)
    return y.to(x.dtype), winners


def _extremum_pool_with_indices_fake(x: Any, minimum: bool, *rest: Any) -> Any:
    return _with_indices(_extremum_pool_fake(x, minimum, *rest))


def _extremum_pool_backward(dy: Any, winners: Any, size: Any, drawn: bool, *rest: Any) -> Any:
    *window, device = rest
    dx = _native.extremum_pool_backward(
        _plain(dy), winners, list(size), _options(*window), drawn, device
    )
    return _take(dx)


def _extremum_pool_backward_fake(dy: Any, winners: Any, size: Any, *rest: Any) -> Any:
    return _made(_lead(dy, len(size)) + list(size), len(size), dy, winners)


def _stochastic_pool(x: Any, seed: int, *rest: Any) -> Any:
    *window, device = rest
    return _take_both(
        *_native.stochastic_pool(_plain(x), seed, _options(*window), True, device)
    )


def _stochastic_pool_fake(x: Any, seed: int, *rest: Any) -> Any:
    return _with_indices(_pooled_fake(x, rest[:-1]))


def _stochastic_mean(x: Any, *rest: Any) -> Any:
    *window, device = rest
    return _take(_native.stochastic_mean(_plain(x), _options(*window), device))


def _stochastic_mean_fake(x: Any, *rest: Any) -> Any:
    return _pooled_fake(x, rest[:-1])


def _fractional_options(kernel: Any, output: Any, seed: int) -> FractionalOptions:
    return {"kernel": list(kernel), "output": list(output), "seed": seed}


def _fractional_max_pool(x: Any, samples: Any, *rest: Any) -> Any:
    *windows, device = rest
    options = _fractional_options(*windows)
    return _take_both(*_native.fractional_max_pool(_plain(x), samples, options, True, device))


def _fractional_max_pool_fake(x: Any, samples: Any, kernel: Any, output: Any, *rest: Any) -> Any:
    rank = len(output)
    return _with_indices(_made(_lead(x, rank) + list(output), rank, x))


def _fractional_max_pool_backward(
    dy: Any, winners: Any, size: Any, samples: Any, *rest: Any
) -> Any:
    *windows, device = rest
    options = _fractional_options(*windows)
    return _take(
        _native.fractional_max_pool_backward(
            _plain(dy), winners, list(size), samples, options, device
        )
    )


_fractional_max_pool_backward_fake = _extremum_pool_backward_fake


def _avg_pool(x: Any, *rest: Any) -> Any:
    *window, counts, divisor, device = rest
    return _take(_native.avg_pool(_plain(x), _options(*window), counts, divisor, device))


def _avg_pool_fake(x: Any, *rest: Any) -> Any:
    return _pooled_fake(x, rest[:-3])


def _avg_pool_backward(dy: Any, size: Any, *rest: Any) -> Any:
    *window, counts, divisor, device = rest
    options = _options(*window)
    return _take(
        _native.avg_pool_backward(_plain(dy), list(size), options, counts, divisor, device)
    )


def _avg_pool_backward_fake(dy: Any, size: Any, *rest: Any) -> Any:
    return _made(_lead(dy, len(size)) + list(size), len(size), dy)


def _lp_pool(x: Any, p: float, *rest: Any) -> Any:
    *window, device = rest
    return _take(_native.lp_pool(_plain(x), p, _options(*window), device))


def _lp_pool_fake(x: Any, p: float, *rest: Any) -> Any:
    return _pooled_fake(x, rest[:-1])


def _lp_pool_backward(dy: Any, x: Any, p: float, *rest: Any) -> Any:
    *window, device = rest
    return _take(_native.lp_pool_backward(_plain(dy), _plain(x), p, _options(*window), device))


def _lp_pool_backward_fake(dy: Any, x: Any, p: float, *rest: Any) -> Any:
    return _made(x.shape, len(rest[0]), dy, x)


def _max_unpool(y: Any, winners: Any, size: Any, device: Any) -> Any:
    return _take(_native.max_unpool(_plain(y), winners, list(size), device))


def _max_unpool_fake(y: Any, winners: Any, size: Any, device: Any) -> Any:
    return _made(_lead(y, len(size)) + list(size), len(size), y, winners)


def _max_unpool_backward(dx: Any, winners: Any, rank: int, device: Any) -> Any:
    return _take(_native.max_unpool_backward(_plain(dx), winners, rank, device))


def _max_unpool_backward_fake(dx: Any, winners: Any, rank: int, device: Any) -> Any:
    return _made(winners.shape, rank, dx, winners)


def _conv(x: Any, w: Any, bias: Any, *rest: Any) -> Any:
    *window, groups, device = rest
    bias = None if bias is None else _plain(bias)
    options = _options(*window)
    return _take(_native.convolve(_plain(x), _plain(w), bias, options, groups, device))


def _conv_fake(x: Any, w: Any, bias: Any, *rest: Any) -> Any:
    *window, _, _ = rest
    rank = len(window[0])
    return _made(_lead(x, rank)[:-1] + [w.shape[0]] + _size(x, window), rank, x, w)


def _conv_transpose(x: Any, w: Any, size: Any, *rest: Any) -> Any:
    *window, groups, device = rest
    return _take(
        _native.convolve_transposed(
            _plain(x), _plain(w), None, list(size), _options(*window), groups, device
        )
    )


def _conv_transpose_fake(x: Any, w: Any, size: Any, *rest: Any) -> Any:
    rank, groups = len(size), rest[-2]
    return _made(_lead(x, rank)[:-1] + [w.shape[1] * groups] + list(size), rank, x, w)


def _conv_weight(dy: Any, x: Any, *rest: Any) -> Any:
    *window, groups, device = rest
    return _take(
        _native.convolve_backward_weight(
            _plain(dy), _plain(x), _options(*window), groups, device
        )
    )


def _conv_weight_fake(dy: Any, x: Any, *rest: Any) -> Any:
    kernel, groups = rest[0], rest[-2]
    rank = len(kernel)
    channel = -rank - 1
    return _made([dy.shape[channel], x.shape[channel] // groups, *kernel], rank, dy, x)


# PyTorch leaves out arguments with their defaults, so there are none.
_END = "str? device) -> Tensor"
_SCHEMAS = {
    "extremum_pool": f"(Tensor x, bool minimum, {_WINDOW}, {_END}",
    "extremum_pool_with_indices": (
        f"(Tensor x, bool minimum, {_WINDOW}, str? device) -> (Tensor, Tensor)"
    ),
    "extremum_pool_backward": (
        f"(Tensor dy, Tensor indices, SymInt[] size, bool drawn, {_WINDOW}, {_END}"
    ),
    # A seed that changes from step to step compiles nothing anew.
    "stochastic_pool": f"(Tensor x, SymInt seed, {_WINDOW}, str? device) -> (Tensor, Tensor)",
    "stochastic_mean": f"(Tensor x, {_WINDOW}, {_END}",
    "fractional_max_pool": f"(Tensor x, Tensor? samples, {_PLACES}, str? device) -> (Tensor, Tensor)",
    "fractional_max_pool_backward": (
        f"(Tensor dy, Tensor indices, SymInt[] size, Tensor? samples, {_PLACES}, {_END}"
    ),
    "avg_pool": f"(Tensor x, {_WINDOW}, bool counts, int? divisor, {_END}",
    "avg_pool_backward": f"(Tensor dy, SymInt[] size, {_WINDOW}, bool counts, int? divisor, {_END}",
    "lp_pool": f"(Tensor x, float p, {_WINDOW}, {_END}",
    "lp_pool_backward": f"(Tensor dy, Tensor x, float p, {_WINDOW}, {_END}",
    "max_unpool": f"(Tensor y, Tensor indices, SymInt[] size, {_END}",
    "max_unpool_backward": f"(Tensor dx, Tensor indices, int rank, {_END}",
    "conv": f"(Tensor x, Tensor w, Tensor? bias, {_WINDOW}, int groups, {_END}",
    "conv_transpose": f"(Tensor x, Tensor w, SymInt[] size, {_WINDOW}, int groups, {_END}",
    "conv_weight": f"(Tensor dy, Tensor x, {_WINDOW}, int groups, {_END}",
}


def _define() -> None:
    tags = [torch.Tag.pt2_compliant_tag]
    # Compilers then leave these operators out of CUDA graphs.
    if hasattr(torch.Tag, "cudagraph_unsafe"):
        tags.append(torch.Tag.cudagraph_unsafe)
    for name, schema in _SCHEMAS.items():
        operator = f"windowpane::{name}"
        torch.library.define(operator, schema, tags=tags)
        torch.library.impl(operator, ("cpu", "cuda"))(globals()[f"_{name}"])
        torch.library.register_fake(operator)(globals()[f"_{name}_fake"])


def _is_watched() -> bool:
    """Whether something beside autograd looks at calls: a compiler, a transform or a mode."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.jit.is_tracing()
    )


def _operator(name: str) -> Callable[..., Any]:
    """An operator as a function that avoids PyTorch's dispatcher where nobody looks at the call: for operators in Python the
    dispatcher takes longer than many of their kernels."""
    here, watched = globals()[f"_{name}"], getattr(torch.ops.windowpane, name)

    def call(*inputs: Any) -> Any:
        if _is_watched():
            return watched(*inputs)
        has_gradient = False
        for own in inputs:
            if isinstance(own, torch.Tensor):
                # The dispatcher knows what is no plain memory: subclasses, views of the negative, tensors without elements.
                if type(own) not in (torch.Tensor, nn.Parameter) or own.is_neg() or own.is_meta:
                    return watched(*inputs)
                has_gradient = has_gradient or own.requires_grad
        if has_gradient and torch.is_grad_enabled():
            function = _FUNCTIONS.get(name)
            return function.apply(*inputs) if function else watched(*inputs)
        return here(*inputs)

    return call


_define()
# Operators with their gradients, for autograd.
_FUNCTIONS: dict[str, Any] = {}
_OPS: Any = type("_OPS", (), {name: staticmethod(_operator(name)) for name in _SCHEMAS})


def _gradient(
    name: str, save: Callable[[Any, Any, Any], None], backward: Callable[..., Any]
) -> None:
    """Registers the gradient of an operator: `backward` returns those of its first arguments."""

    def padded(context: Any, *gradients: Any) -> Any:
        found = backward(context, *gradients)
        return (*found, *[None] * (context.count - len(found)))

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.count = len(inputs)
        save(ctx, inputs, output)

    torch.library.register_autograd(f"windowpane::{name}", padded, setup_context=setup)

    def forward(context: Any, *inputs: Any) -> Any:
        output = globals()[f"_{name}"](*inputs)
        setup(context, inputs, output)
        return output

    methods = {"forward": staticmethod(forward), "backward": staticmethod(padded)}
    _FUNCTIONS[name] = type(name, (torch.autograd.Function,), methods)


def _save_extremum_pool(context: Any, inputs: Any, output: Any) -> None:
    x, context.minimum, *context.rest = inputs
    context.save_for_backward(x)


def _extremum_pool_gradient(context: Any, dy: Any) -> Any:
    (x,) = context.saved_tensors
    _, winners = _OPS.extremum_pool_with_indices(x, context.minimum, *context.rest)
    size = x.shape[-len(context.rest[0]) :]
    return (_OPS.extremum_pool_backward(dy, winners, size, False, *context.rest),)


def _save_indices(context: Any, inputs: Any, output: Any) -> None:
    x, _, *context.rest = inputs
    context.size = x.shape[-len(context.rest[0]) :]
    context.save_for_backward(output[1])


def _extremum_pool_with_indices_gradient(context: Any, dy: Any, _: Any) -> Any:
    (winners,) = context.saved_tensors
    return (_OPS.extremum_pool_backward(dy, winners, context.size, False, *context.rest),)


def _stochastic_pool_gradient(context: Any, dy: Any, _: Any) -> Any:
    (drawn,) = context.saved_tensors
    return (_OPS.extremum_pool_backward(dy, drawn, context.size, True, *context.rest),)


def _save_stochastic_mean(context: Any, inputs: Any, output: Any) -> None:
    x, *context.rest = inputs
    context.save_for_backward(x, output)


def _stochastic_mean_gradient(context: Any, dy: Any) -> Any:
    x, y = context.saved_tensors
    *window, device = context.rest
    size, sums = x.shape[-len(window[0]) :], (*window, True, 1, device)

    def sum_pool(weights: Any) -> Any:
        return _OPS.avg_pool(weights, *sums)

    def adjoint(shares: Any) -> Any:
        return _OPS.avg_pool_backward(shares, size, *sums)

    return (mean_gradient(torch.where, sum_pool, adjoint, x, y, dy),)


def _save_fractional_max_pool(context: Any, inputs: Any, output: Any) -> None:
    x, samples, *context.rest = inputs
    context.size = x.shape[-len(context.rest[0]) :]
    context.save_for_backward(samples, output[1])


def _fractional_max_pool_gradient(context: Any, dy: Any, _: Any) -> Any:
    samples, winners = context.saved_tensors
    size = context.size
    return (_OPS.fractional_max_pool_backward(dy, winners, size, samples, *context.rest),)


def _save_moved(context: Any, inputs: Any, output: Any) -> None:
    context.save_for_backward(inputs[1])
    context.rank = len(inputs[2])


def _moved_gradient(context: Any, ddx: Any) -> Any:
    # Each gradient was moved to the position of its extremum; a window without elements has none.
    (winners,) = context.saved_tensors
    flat = winners.flatten(-context.rank)
    taken = ddx.flatten(-context.rank).gather(-1, flat.clamp(min=0).long())
    return (taken.where(flat >= 0, 0).reshape(winners.shape),)


def _save_avg_pool(context: Any, inputs: Any, output: Any) -> None:
    x, *context.rest = inputs
    context.size = x.shape[-len(context.rest[0]) :]


def _avg_pool_gradient(context: Any, dy: Any) -> Any:
    return (_OPS.avg_pool_backward(dy, context.size, *context.rest),)


def _save_avg_pool_backward(context: Any, inputs: Any, output: Any) -> None:
    _, _, *context.rest = inputs


def _avg_pool_backward_gradient(context: Any, ddx: Any) -> Any:
    return (_OPS.avg_pool(ddx, *context.rest),)


def _save_lp_pool(context: Any, inputs: Any, output: Any) -> None:
    x, *context.rest = inputs
    context.save_for_backward(x)


def _lp_pool_gradient(context: Any, dy: Any) -> Any:
    (x,) = context.saved_tensors
    return (_OPS.lp_pool_backward(dy, x, *context.rest),)


def _save_max_unpool(context: Any, inputs: Any, output: Any) -> None:
    _, winners, size, context.device = inputs
    context.rank = len(size)
    context.save_for_backward(winners)


def _max_unpool_gradient(context: Any, dx: Any) -> Any:
    (winners,) = context.saved_tensors
    return (_OPS.max_unpool_backward(dx, winners, context.rank, context.device),)


def _save_conv(context: Any, inputs: Any, output: Any) -> None:
    x, w, bias, *context.rest = inputs
    context.save_for_backward(x, w)


def _conv_gradient(context: Any, dy: Any) -> Any:
    x, w = context.saved_tensors
    rank = len(context.rest[0])
    # As the forward pass was, whatever the layout that the gradient comes in.
    dy = dy.contiguous(memory_format=_memory_format(rank, x, w))
    dx = dw = dbias = None
    if context.needs_input_grad[0]:
        dx = _OPS.conv_transpose(dy, w, x.shape[-rank:], *context.rest)
    if context.needs_input_grad[1]:
        dw = _OPS.conv_weight(dy, x, *context.rest)
    if context.needs_input_grad[2]:
        axes = [axis for axis in range(dy.ndim) if axis != dy.ndim - rank - 1]
        dbias = dy.sum(axes)
    return dx, dw, dbias


def _save_conv_transpose(context: Any, inputs: Any, output: Any) -> None:
    x, w, _, *context.rest = inputs
    context.save_for_backward(x, w)


def _conv_transpose_gradient(context: Any, dy: Any) -> Any:
    x, w = context.saved_tensors
    dy = dy.contiguous(memory_format=_memory_format(len(context.rest[0]), x, w))
    dx = dw = None
    if context.needs_input_grad[0]:
        dx = _OPS.conv(dy, w, None, *context.rest)
    if context.needs_input_grad[1]:
        dw = _OPS.conv_weight(x, dy, *context.rest)
    return dx, dw


def _save_conv_weight(context: Any, inputs: Any, output: Any) -> None:
    dy, x, *context.rest = inputs
    context.save_for_backward(dy, x)


def _conv_weight_gradient(context: Any, ddw: Any) -> Any:
    dy, x = context.saved_tensors
    rank = len(context.rest[0])
    ddy = dx = None
    if context.needs_input_grad[0]:
        ddy = _OPS.conv(x, ddw, None, *context.rest)
    if context.needs_input_grad[1]:
        dx = _OPS.conv_transpose(dy, ddw, x.shape[-rank:], *context.rest)
    return ddy, dx


_gradient("extremum_pool", _save_extremum_pool, _extremum_pool_gradient)
_gradient(
    "extremum_pool_with_indices",
    _save_indices,
    _extremum_pool_with_indices_gradient,
)
_gradient("extremum_pool_backward", _save_moved, _moved_gradient)
_gradient("stochastic_pool", _save_indices, _stochastic_pool_gradient)
_gradient("stochastic_mean", _save_stochastic_mean, _stochastic_mean_gradient)
_gradient("fractional_max_pool", _save_fractional_max_pool, _fractional_max_pool_gradient)
_gradient("fractional_max_pool_backward", _save_moved, _moved_gradient)
_gradient("avg_pool", _save_avg_pool, _avg_pool_gradient)
_gradient("avg_pool_backward", _save_avg_pool_backward, _avg_pool_backward_gradient)
_gradient("lp_pool", _save_lp_pool, _lp_pool_gradient)
_gradient("max_unpool", _save_max_unpool, _max_unpool_gradient)
_gradient("conv", _save_conv, _conv_gradient)
_gradient("conv_transpose", _save_conv_transpose, _conv_transpose_gradient)
_gradient("conv_weight", _save_conv_weight, _conv_weight_gradient)


def _autocast(*tensors: Any) -> tuple[Any, ...]:
    """The tensors in the type that autocasting wants for convolutions."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)

    def cast(own: torch.Tensor | None) -> torch.Tensor | None:
        # As PyTorch's: integers and f64 stay.
        return own if own is None or not own.is_floating_point() or own.dtype == torch.float64 else own.to(dtype)

    return tuple(cast(own) for own in tensors)


def _wide(found: Any, indices: bool) -> tuple[Any, Any]:
    """Values and, if they were asked for, positions in PyTorch's type for them."""
    y, winners = found
    return y, winners.to(torch.int64) if indices else None


class _Engine:
    """The operators on tensors."""

    def extremum_pool(
        self, x: Any, options: Options, minimum: bool, indices: bool, device: str | None
    ) -> tuple[Any, Any]:
        arguments = (x, minimum, *_arguments(options), device)
        # The gradient needs the indices, which are cheaper now than later.
        if indices or (torch.is_grad_enabled() and x.requires_grad):
            return _wide(_OPS.extremum_pool_with_indices(*arguments), indices)
        return _OPS.extremum_pool(*arguments), None

    def stochastic_pool(
        self, x: Any, options: Options, seed: int, indices: bool, device: str | None
    ) -> tuple[Any, Any]:
        return _wide(_OPS.stochastic_pool(x, seed, *_arguments(options), device), indices)

    def stochastic_mean(self, x: Any, options: Options, device: str | None) -> Any:
        return _OPS.stochastic_mean(x, *_arguments(options), device)

    def fractional_max_pool(
        self, x: Any, samples: Any, options: FractionalOptions, indices: bool, device: str | None
    ) -> tuple[Any, Any]:
        windows = options["kernel"], options["output"], options["seed"]
        return _wide(_OPS.fractional_max_pool(x, samples, *windows, device), indices)

    def avg_pool(
        self, x: Any, options: Options, counts: bool, divisor: int | None, device: str | None
    ) -> Any:
        wide = _summed(x, len(options["kernel"])) if _is_integer(x) else x
        return _OPS.avg_pool(wide, *_arguments(options), counts, divisor, device)

    def sum_pool(self, x: Any, options: Options, device: str | None) -> Any:
        y = self.avg_pool(x, options, True, 1, device)
        return y.to(torch.int64) if _is_integer(x) else y

    def lp_pool(self, x: Any, p: float, options: Options, device: str | None) -> Any:
        return _OPS.lp_pool(x, p, *_arguments(options), device)

    def max_unpool(self, x: Any, indices: Any, size: list[int], device: str | None) -> Any:
        return _OPS.max_unpool(x, indices.to(torch.int32), size, device)

    def conv(
        self, x: Any, w: Any, bias: Any, options: Options, groups: int, device: str | None
    ) -> Any:
        x, w, bias = _autocast(x, w, bias)
        return _OPS.conv(x, w, bias, *_arguments(options), groups, device)

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
        x, w, bias = _autocast(x, w, bias)
        y = _OPS.conv_transpose(x, w, size, *_arguments(options), groups, device)
        return y if bias is None else y + bias.reshape(-1, *[1] * len(size))


ENGINES[torch.Tensor] = _Engine()


class _MaxPool:
    _function: Callable[..., Any]

    def forward(self, input: Any) -> Any:
        m: Any = self
        return self._function(
            input,
            m.kernel_size,
            m.stride,
            m.padding,
            m.dilation,
            ceil_mode=m.ceil_mode,
            return_indices=m.return_indices,
        )


class _FractionalMaxPool:
    _function: Callable[..., Any]

    def forward(self, input: Any) -> Any:
        m: Any = self
        samples, rank = m._random_samples, len(m.kernel_size)
        if samples is None:
            # As PyTorch draws them: a seed of its generator gives the same windows.
            batch = 1 if input.dim() == rank + 1 else input.shape[0]
            shape = (batch, input.shape[-rank - 1], rank)
            samples = torch.rand(shape, dtype=input.dtype, device=input.device)
        sizes = m.kernel_size, m.output_size, m.output_ratio
        return self._function(input, *sizes, m.return_indices, samples)


class _AvgPool:
    _function: Callable[..., Any]

    def forward(self, input: Any) -> Any:
        m: Any = self
        # Signals have no such option in PyTorch.
        divisor = getattr(m, "divisor_override", None)
        return self._function(
            input, m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, divisor
        )


class _LPPool:
    _function: Callable[..., Any]

    def forward(self, input: Any) -> Any:
        m: Any = self
        return self._function(input, m.norm_type, m.kernel_size, m.stride, m.ceil_mode)


class _AdaptiveMaxPool:
    _function: Callable[..., Any]

    def forward(self, input: Any) -> Any:
        m: Any = self
        return self._function(input, m.output_size, m.return_indices)


class _AdaptiveAvgPool:
    _function: Callable[..., Any]

    def forward(self, input: Any) -> Any:
        m: Any = self
        return self._function(input, m.output_size)


class _MaxUnpool:
    _function: Callable[..., Any]

    def forward(self, input: Any, indices: Any, output_size: Any = None) -> Any:
        m: Any = self
        return self._function(
            input, indices, m.kernel_size, m.stride, m.padding, output_size=output_size
        )


class _Conv:
    _function: Callable[..., Any]

    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        m: Any = self
        padding = m.padding
        if m.padding_mode != "zeros":
            around = m._reversed_padding_repeated_twice
            input, padding = nn.functional.pad(input, around, mode=m.padding_mode), 0
        return self._function(input, weight, bias, m.stride, padding, m.dilation, m.groups)


class _ConvTranspose:
    _function: Callable[..., Any]

    def forward(self, input: Any, output_size: Any = None) -> Any:
        m: Any = self
        further = m._output_padding(
            input,
            output_size,
            m.stride,
            m.padding,
            m.kernel_size,
            len(m.kernel_size),
            m.dilation,
        )
        return self._function(
            input, m.weight, m.bias, m.stride, m.padding, further, m.groups, m.dilation
        )


class MaxPool1d(_MaxPool, nn.MaxPool1d):
    """`torch.nn.MaxPool1d`."""

    _function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool, nn.MaxPool2d):
    """`torch.nn.MaxPool2d`."""

    _function = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool, nn.MaxPool3d):
    """`torch.nn.MaxPool3d`."""

    _function = staticmethod(F.max_pool3d)


class FractionalMaxPool2d(_FractionalMaxPool, nn.FractionalMaxPool2d):
    """`torch.nn.FractionalMaxPool2d`."""

    _function = staticmethod(F.fractional_max_pool2d)


class FractionalMaxPool3d(_FractionalMaxPool, nn.FractionalMaxPool3d):
    """`torch.nn.FractionalMaxPool3d`."""

    _function = staticmethod(F.fractional_max_pool3d)


class AvgPool1d(_AvgPool, nn.AvgPool1d):
    """`torch.nn.AvgPool1d`."""

    _function = staticmethod(F.avg_pool1d)


class AvgPool2d(_AvgPool, nn.AvgPool2d):
    """`torch.nn.AvgPool2d`."""

    _function = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool, nn.AvgPool3d):
    """`torch.nn.AvgPool3d`."""

    _function = staticmethod(F.avg_pool3d)


class LPPool1d(_LPPool, nn.LPPool1d):
    """`torch.nn.LPPool1d`."""

    _function = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool, nn.LPPool2d):
    """`torch.nn.LPPool2d`."""

    _function = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool, nn.LPPool3d):
    """`torch.nn.LPPool3d`."""

    _function = staticmethod(F.lp_pool3d)


class AdaptiveMaxPool1d(_AdaptiveMaxPool, nn.AdaptiveMaxPool1d):
    """`torch.nn.AdaptiveMaxPool1d`."""

    _function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool, nn.AdaptiveMaxPool2d):
    """`torch.nn.AdaptiveMaxPool2d`."""

    _function = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool, nn.AdaptiveMaxPool3d):
    """`torch.nn.AdaptiveMaxPool3d`."""

    _function = staticmethod(F.adaptive_max_pool3d)


class AdaptiveAvgPool1d(_AdaptiveAvgPool, nn.AdaptiveAvgPool1d):
    """`torch.nn.AdaptiveAvgPool1d`."""

    _function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool, nn.AdaptiveAvgPool2d):
    """`torch.nn.AdaptiveAvgPool2d`."""

    _function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool, nn.AdaptiveAvgPool3d):
    """`torch.nn.AdaptiveAvgPool3d`."""

    _function = staticmethod(F.adaptive_avg_pool3d)


class MaxUnpool1d(_MaxUnpool, nn.MaxUnpool1d):
    """`torch.nn.MaxUnpool1d`."""

    _function = staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpool, nn.MaxUnpool2d):
    """`torch.nn.MaxUnpool2d`."""

    _function = staticmethod(F.max_unpool2d)


class MaxUnpool3d(_MaxUnpool, nn.MaxUnpool3d):
    """`torch.nn.MaxUnpool3d`."""

    _function = staticmethod(F.max_unpool3d)


class Conv1d(_Conv, nn.Conv1d):
    """`torch.nn.Conv1d`."""

    _function = staticmethod(F.conv1d)


class Conv2d(_Conv, nn.Conv2d):
    """`torch.nn.Conv2d`."""

    _function = staticmethod(F.conv2d)


class Conv3d(_Conv, nn.Conv3d):
    """`torch.nn.Conv3d`."""

    _function = staticmethod(F.conv3d)


class ConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d`."""

    _function = staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d`."""

    _function = staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d`."""

    _function = staticmethod(F.conv_transpose3d)


_MODULES = {
    base: ours
    for ours in list(globals().values())
    if isinstance(ours, type) and issubclass(ours, nn.Module)
    for base in ours.__bases__
    if issubclass(base, nn.Module)
}


# Those whose gradients PyTorch adds up in any order on a GPU, or scatters in any order forward:
# see `torch.use_deterministic_algorithms`.
_UNORDERED = (
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool2d,
    nn.AvgPool3d,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
    nn.MaxPool3d,
    nn.MaxUnpool1d,
    nn.MaxUnpool2d,
    nn.MaxUnpool3d,
)


@dataclass(frozen=True)
class Choice:
    """What `patch` decided about one module, and why."""

    #: The module's name in the model; that of the model itself is empty.
    name: str
    #: The name of the class in `torch.nn`.
    kind: str
    replaced: bool
    reason: str
    #: Seconds of a call, and of its gradients if the module is in training, where they were measured.
    ours: float | None = None
    theirs: float | None = None


@dataclass(frozen=True)
class Report:
    """What `patch` decided about each pooling and convolution of a model; it prints as a table."""

    choices: tuple[Choice, ...]

    def __str__(self) -> str:
        def milliseconds(seconds: float | None) -> str:
            return "" if seconds is None else f"{seconds * 1e3:.3f}"

        rows = [("module", "kind", "windowpane ms", "torch ms", "replaced", "reason")]
        for own in self.choices:
            times = milliseconds(own.ours), milliseconds(own.theirs)
            answer = "yes" if own.replaced else "no"
            rows.append((own.name or "(model)", own.kind, *times, answer, own.reason))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join(lines)


_REPORTS: WeakKeyDictionary[Any, Report] = WeakKeyDictionary()


def patch(model: Any, *inputs: Any) -> Any:
    """Replaces the poolings and convolutions in a model by those of this module, and returns the model.

    With `inputs`, the model is run on them once, each pooling and convolution is timed with what it was given there, and
    those are replaced that are faster here. Modules in training are timed with their gradients. If
    `torch.use_deterministic_algorithms` is on, those are replaced too whose results on a GPU would otherwise differ from run
    to run. Without `inputs` nothing is timed, and all are replaced.

    Parameters, hooks and names stay. Subclasses of PyTorch's modules are left alone, and so is an `LPPool` whose results
    would differ: with an odd power, or with windows that `ceil_mode` cuts off. `report(model)` lists what was decided.
    """
    seen = _calls(model, inputs) if inputs else None
    choices = []
    for name, module in model.named_modules():
        base = next((base for base in _MODULES if isinstance(module, base)), None)
        if base is None:
            continue
        choice = _choose(name, module, base, seen)
        if choice.replaced:
            module.__class__ = _MODULES[base]
        choices.append(choice)
    _REPORTS[model] = Report(tuple(choices))
    return model


def report(model: Any) -> Report:
    """What `patch` decided about a model: which modules it replaced, which not, and why."""
    found = _REPORTS.get(model)
    if found is None:
        raise ValueError("the model was not given to windowpane.torch.patch")
    return found


def _choose(name: str, module: Any, base: Any, seen: dict[Any, Any] | None) -> Choice:
    kind, ours = base.__name__, _MODULES[base]
    if type(module) is ours:
        return Choice(name, kind, False, "is windowpane's already")
    if type(module) is not base:
        return Choice(name, kind, False, f"{type(module).__qualname__} is a subclass")
    if issubclass(ours, _LPPool) and _differs(module):
        return Choice(name, kind, False, "results would differ: odd norm_type, or ceil_mode")
    if seen is None:
        return Choice(name, kind, True, "not timed: patch had no inputs")
    if module not in seen:
        return Choice(name, kind, False, "the inputs do not reach it")
    arguments, options = seen[module]
    try:
        own, other = _times(module, ours, arguments, options)
    except (TypeError, ValueError, RuntimeError) as error:
        return Choice(name, kind, False, f"windowpane refuses: {error}")
    if own < other:
        return Choice(name, kind, True, "faster", own, other)
    on_gpu = any(isinstance(own, torch.Tensor) and own.is_cuda for own in arguments)
    if torch.are_deterministic_algorithms_enabled() and on_gpu and base in _UNORDERED:
        return Choice(name, kind, True, "deterministic", own, other)
    return Choice(name, kind, False, "not faster", own, other)


def _calls(model: Any, inputs: Any) -> dict[Any, Any]:
    """What each pooling and convolution is given when the model is run, without changing its state."""
    found: dict[Any, Any] = {}

    def keep(module: Any, arguments: Any, options: Any) -> None:
        found.setdefault(module, (arguments, options))

    kinds: Any = tuple(_MODULES)
    hooks = [
        module.register_forward_pre_hook(keep, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, kinds)
    ]
    modes = [(module, module.training) for module in model.modules()]
    # In training a forward pass changes statistics, of batch normalization for example.
    model.eval()
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for module, training in modes:
            module.training = training
        for hook in hooks:
            hook.remove()
    return found


def _times(module: Any, ours: Any, arguments: Any, options: Any) -> tuple[float, float]:
    """Seconds of a call here, and of PyTorch's: the best of a few, in turns."""
    theirs, trains = type(module), module.training and torch.is_grad_enabled()
    fresh = [_plain(own).clone() if isinstance(own, torch.Tensor) else own for own in arguments]
    wanted = list(module.parameters())
    if trains:
        floats = [
            own for own in fresh if isinstance(own, torch.Tensor) and own.is_floating_point()
        ]
        wanted = [own for own in wanted if own.requires_grad] + [
            own.requires_grad_() for own in floats
        ]

    def run() -> float:
        start = _now(fresh)
        with torch.set_grad_enabled(trains):
            y = module.forward(*fresh, **options)
            y = y[0] if isinstance(y, tuple) else y
            if trains:
                torch.autograd.grad(y, wanted, torch.ones_like(y))
        return _now(fresh) - start

    best = {ours: math.inf, theirs: math.inf}
    try:
        # The first call of each compiles kernels.
        for turn in range(6):
            for kind in best:
                module.__class__ = kind
                seconds = run()
                best[kind] = min(best[kind], seconds) if turn else math.inf
    finally:
        module.__class__ = theirs
    return best[ours], best[theirs]


def _now(arguments: Any) -> float:
    """The time after all that was launched."""
    if any(isinstance(own, torch.Tensor) and own.is_cuda for own in arguments):
        torch.cuda.synchronize()
    return perf_counter()


def _differs(module: Any) -> bool:
    return module.ceil_mode or math.fmod(module.norm_type, 2) != 0 or module.norm_type < 1


__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "Choice",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "Report",
    "patch",
    "report",
]
