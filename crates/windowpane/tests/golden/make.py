"""Makes golden.jsonl: what PyTorch computes in f64, a case a line. Run it where PyTorch is installed:

    python make.py > golden.jsonl

Inputs are small multiples of 1/8, so that sums of products are exact in f32 too. All tensors are channels first. Where
PyTorch has no such option, the case is made of what it has: SAME and unequal padding of padding by
itself, before pooling or convolution.
"""

import itertools
import json
import math

import torch
import torch.nn.functional as F

torch.manual_seed(20261123)
F64 = torch.float64
MAX = [F.max_pool1d, F.max_pool2d, F.max_pool3d]
AVERAGE = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d]
NORM = [F.lp_pool1d, F.lp_pool2d, F.lp_pool3d]
UNPOOL = [F.max_unpool1d, F.max_unpool2d, F.max_unpool3d]
CONV = [F.conv1d, F.conv2d, F.conv3d]
ADAPTIVE_MAX = [F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d]
ADAPTIVE_AVERAGE = [F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d]


def numbers(*dims, low=-24, high=25):
    return torch.randint(low, high, dims).to(F64) / 8


def write(value):
    if isinstance(value, torch.Tensor):
        flat = value.detach().flatten().tolist()
        return {"dims": list(value.shape), "data": [write(x) for x in flat]}
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value == int(value) and value != 0 else value
    return value


def case(name, op, tensors, **options):
    line = {"name": name, "op": op, **options}
    line.update({key: write(value) for key, value in tensors.items()})
    print(json.dumps(line, separators=(",", ":")))


def gradients(y, *sources):
    """An output gradient, and what comes back of it."""
    dy = numbers(*y.shape)
    return dy, torch.autograd.grad(y, sources, dy)


def same(side, extents, kernel, stride, dilation):
    """The padding before and after on each axis."""
    padding = []
    for length, k, s, d in zip(extents, kernel, stride, dilation):
        total = max(0, (math.ceil(length / s) - 1) * s + d * (k - 1) + 1 - length)
        less = total // 2
        padding.append([less, total - less] if side == "upper" else [total - less, less])
    return padding


def pad(x, padding, value):
    """Pads by itself; PyTorch names the last axis first."""
    return F.pad(x, list(itertools.chain(*reversed(padding))), value=value)


def both(padding):
    return [[p, p] for p in padding]


def maxima(name, x, kernel, stride, padding, dilation, ceil=False, **options):
    x.requires_grad_()
    rank = len(kernel)
    y, at = MAX[rank - 1](x, kernel, stride, padding, dilation, ceil, return_indices=True)
    dy, (dx,) = gradients(y, x)
    options.update(kernel=kernel, stride=stride, padding=both(padding), dilation=dilation, ceil=ceil)
    case(name, "max", dict(x=x, y=y, indices=at, dy=dy, dx=dx), **options)


def averages(name, x, kernel, stride, padding, ceil, divisor):
    x.requires_grad_()
    rank = len(kernel)
    options = dict(ceil_mode=ceil, count_include_pad=divisor == "padded")
    if isinstance(divisor, int):
        options["divisor_override"] = divisor
    y = AVERAGE[rank - 1](x, kernel, stride, padding, **options)
    dy, (dx,) = gradients(y, x)
    case(name, "average", dict(x=x, y=y, dy=dy, dx=dx), kernel=kernel, stride=stride,
         padding=both(padding), dilation=[1] * rank, ceil=ceil, divisor=divisor)


def norms(name, p, x, kernel, stride):
    """Neither ceil nor padding: PyTorch scales a norm of fewer taps, which SEMANTICS 4.1 does not."""
    x.requires_grad_()
    rank = len(kernel)
    y = NORM[rank - 1](x, p, kernel if rank > 1 else kernel[0], stride if rank > 1 else stride[0])
    dy, (dx,) = gradients(y, x)
    case(name, "norm", dict(x=x, y=y, dy=dy, dx=dx), p=p, kernel=kernel, stride=stride,
         padding=both([0] * rank), dilation=[1] * rank)


def adaptive(name, x, output):
    x.requires_grad_()
    rank = len(output)
    y, at = ADAPTIVE_MAX[rank - 1](x, output, return_indices=True)
    dy, (dx,) = gradients(y, x)
    case(f"{name} max", "max", dict(x=x, y=y, indices=at, dy=dy, dx=dx), adaptive=output)
    y = ADAPTIVE_AVERAGE[rank - 1](x, output)
    dy, (dx,) = gradients(y, x)
    case(f"{name} average", "average", dict(x=x, y=y, dy=dy, dx=dx), adaptive=output, divisor="padded")


def unpooled(name, x, kernel, stride):
    """Windows side by side: where two indices name one place, PyTorch leaves open which counts."""
    rank = len(kernel)
    y, at = MAX[rank - 1](x, kernel, stride, return_indices=True)
    y = y.detach().requires_grad_()
    back = UNPOOL[rank - 1](y, at, kernel, stride, output_size=x.shape)
    dy, (dx,) = gradients(back, y)
    case(name, "unpool", dict(x=y, indices=at, y=back, dy=dy, dx=dx), output=list(x.shape[2:]))


def convolution(name, x, w, stride, padding, dilation, groups, bias=None):
    rank = w.dim() - 2
    sources = [x.requires_grad_(), w.requires_grad_()]
    if bias is not None:
        sources.append(bias.requires_grad_())
    y = CONV[rank - 1](pad(x, padding, 0.0), w, bias, stride, 0, dilation, groups)
    dy, found = gradients(y, *sources)
    tensors = dict(x=x, w=w, y=y, dy=dy, dx=found[0], dw=found[1])
    if bias is not None:
        tensors.update(bias=bias, db=found[2])
    case(name, "conv", tensors, kernel=list(w.shape[2:]), stride=stride, padding=padding,
         dilation=dilation, groups=groups)


def same_cases():
    for side, stride in itertools.product(["upper", "lower"], [[1, 1], [2, 2], [3, 2]]):
        kernel, dilation, x = [4, 3], [1, 1], numbers(1, 2, 7, 6)
        padding = same(side, x.shape[2:], kernel, stride, dilation)
        options = dict(kernel=kernel, stride=stride, dilation=dilation, same=side)
        name = f"same {side} stride {stride}"
        y = F.max_pool2d(pad(x, padding, -math.inf), kernel, stride)
        case(f"{name} max", "max", dict(x=x, y=y), **options)
        sums = F.avg_pool2d(pad(x, padding, 0.0), kernel, stride, divisor_override=1)
        taps = F.avg_pool2d(pad(torch.ones_like(x), padding, 0.0), kernel, stride, divisor_override=1)
        case(f"{name} average of valid", "average", dict(x=x, y=sums / taps), divisor="valid", **options)
        case(f"{name} average of padded", "average", dict(x=x, y=sums / 12), divisor="padded", **options)
    x, w = numbers(1, 2, 6, 7), numbers(3, 2, 4, 3)
    y = F.conv2d(x, w, padding="same", dilation=[1, 2])
    case("same conv", "conv", dict(x=x, w=w, y=y), kernel=[4, 3], stride=[1, 1], dilation=[1, 2],
         same="upper", groups=1)


def main():
    maxima("max 1-D", numbers(2, 3, 11), [3], [2], [1], [1])
    maxima("max 2-D ceil", numbers(1, 2, 6, 7), [3, 2], [2, 2], [1, 1], [1, 1], True)
    maxima("max 2-D ceil, last window in the padding", numbers(1, 2, 5, 5), [2, 2], [3, 3], [1, 1], [1, 1], True)
    maxima("max 2-D dilation", numbers(1, 2, 8, 7), [2, 3], [1, 2], [1, 1], [3, 2])
    maxima("max 3-D", numbers(1, 2, 4, 5, 5), [2, 3, 2], [2, 1, 2], [1, 1, 1], [1, 1, 1])
    maxima("max ties", numbers(2, 2, 7, 7, low=0, high=2), [3, 3], [1, 1], [1, 1], [1, 1])
    holes = numbers(1, 2, 8, 8)
    holes[0, 0, 1:4, 2] = math.nan
    holes[0, 0, 5, 5:7] = math.nan
    holes[0, 1, 0:4, 0:4] = -math.inf
    holes[0, 1, 6, 6] = math.inf
    maxima("max NaN and infinities", holes, [3, 3], [2, 2], [1, 1], [1, 1])
    for ceil, divisor in itertools.product([False, True], ["padded", "valid", 5]):
        name = f"average 2-D {'ceil' if ceil else 'floor'} by {divisor}"
        averages(name, numbers(1, 2, 6, 7), [3, 2], [2, 3], [1, 1], ceil, divisor)
    averages("average 1-D", numbers(2, 2, 9), [4], [3], [2], True, "padded")
    averages("average 3-D", numbers(1, 2, 4, 5, 4), [2, 3, 2], [1, 2, 2], [1, 1, 1], True, "valid")
    for p in [1.0, 1.5, 2.0, 3.0]:
        norms(f"norm {p} 2-D", p, numbers(1, 2, 5, 6, low=1), [2, 3], [2, 2])
    norms("norm 2 of both signs 1-D", 2.0, numbers(2, 2, 9, low=-24), [3], [2])
    norms("norm 4 of both signs 3-D", 4.0, numbers(1, 1, 4, 4, 5, low=-24), [2, 2, 3], [2, 1, 2])
    adaptive("adaptive 1-D", numbers(2, 2, 11), [4])
    adaptive("adaptive 2-D", numbers(1, 2, 7, 5), [3, 5])
    adaptive("adaptive 2-D, more windows than coordinates", numbers(1, 2, 3, 5), [5, 7])
    adaptive("adaptive 3-D", numbers(1, 2, 4, 5, 3), [2, 3, 1])
    unpooled("unpool 1-D", numbers(2, 2, 9), [2], [2])
    unpooled("unpool 2-D", numbers(1, 2, 6, 7), [2, 3], [3, 3])
    unpooled("unpool 3-D", numbers(1, 2, 4, 4, 5), [2, 2, 2], [2, 2, 2])
    convolution("conv 1-D", numbers(2, 3, 10), numbers(4, 3, 3), [2], [[1, 1]], [2], 1, numbers(4))
    convolution("conv 2-D", numbers(2, 3, 6, 7), numbers(4, 3, 3, 3), [1, 1], [[1, 1], [1, 1]], [1, 1], 1, numbers(4))
    convolution("conv 2-D, unequal padding", numbers(1, 3, 6, 5), numbers(2, 3, 3, 2), [2, 1], [[0, 2], [1, 0]], [1, 1], 1)
    convolution("conv 2-D dilation", numbers(1, 2, 8, 7), numbers(3, 2, 3, 2), [1, 2], [[2, 2], [0, 0]], [2, 3], 1)
    convolution("conv 2-D groups", numbers(1, 4, 6, 5), numbers(6, 2, 3, 3), [2, 2], [[1, 1], [1, 1]], [1, 1], 2, numbers(6))
    convolution("conv 2-D depthwise", numbers(1, 4, 6, 6), numbers(8, 1, 3, 3), [1, 1], [[1, 1], [1, 1]], [1, 1], 4, numbers(8))
    convolution("conv 2-D of one tap", numbers(2, 8, 4, 4), numbers(8, 8, 1, 1), [1, 1], [[0, 0], [0, 0]], [1, 1], 1)
    convolution("conv 3-D", numbers(1, 2, 4, 5, 4), numbers(3, 2, 2, 3, 2), [1, 2, 1], [[1, 0], [1, 1], [0, 1]], [1, 1, 2], 1, numbers(3))
    same_cases()


main()
