"""The operators in PyTorch beside PyTorch's own: values, gradients, compilation, modules."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import windowpane
import windowpane.functional as F
import windowpane.torch as wt
from torch import nn
from torch.nn import functional as T

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() and "cuda:0" in windowpane.devices() else [])
# On a GPU images and volumes may be channels last.
PLACES = [(device, last) for device in DEVICES for last in (False, True)[: 1 + (device == "cuda")]]


def draw(*shape: int, device: str = "cpu", seed: int = 0, distinct: bool = False) -> Any:
    """Numbers for gradients by differences: distinct ones keep every maximum where it is."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel()
    x = torch.randperm(count, generator=generator) if distinct else torch.randn(count, generator=generator)
    x = x.to(torch.float64).reshape(shape)
    return (x / count if distinct else x).to(device).requires_grad_()


def placed(x: Any, last: bool) -> Any:
    """Batches of images, volumes and filters with the channels last in memory."""
    if not last or x.ndim not in (4, 5):
        return x
    memory_format = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
    return x.detach().contiguous(memory_format=memory_format).requires_grad_(x.requires_grad)


# Each case: a function's name, the inputs, and options.
def cases(device: str, last: bool = False) -> list[Any]:
    maxima = [draw(2, 3, 12, device=device, distinct=True), draw(2, 2, 7, 6, device=device, distinct=True)]
    maxima.append(draw(1, 2, 5, 4, 6, device=device, distinct=True))
    found: list[Any] = []
    for rank, x in enumerate(maxima, start=1):
        for options in ({"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}):
            found.append((f"max_pool{rank}d", [x], options))
            found.append((f"avg_pool{rank}d", [x], options))
            found.append((f"avg_pool{rank}d", [x], {**options, "count_include_pad": False}))
        found.append((f"max_pool{rank}d", [x], {"kernel_size": 2, "stride": 1, "dilation": 2}))
        found.append((f"lp_pool{rank}d", [x], {"norm_type": 2, "kernel_size": 2}))
        found.append((f"adaptive_max_pool{rank}d", [x], {"output_size": 3}))
        found.append((f"adaptive_avg_pool{rank}d", [x], {"output_size": [2] * rank}))
        shape = [3] * rank
        w, bias = draw(4, x.shape[1] // 1, *shape, device=device), draw(4, device=device)
        found.append((f"conv{rank}d", [x, w, bias], {"stride": 2, "padding": 1}))
        found.append((f"conv{rank}d", [x, w], {"padding": "same"}))
        each = draw(2 * x.shape[1], 1, *shape, device=device)
        found.append((f"conv{rank}d", [x, each], {"groups": x.shape[1], "padding": 2, "dilation": 2}))
        turned = draw(x.shape[1], 2, *shape, device=device)
        own = {"stride": 2, "padding": 1, "output_padding": 1}
        found.append((f"conv_transpose{rank}d", [x, turned, draw(2, device=device)], own))
        grouped = draw(x.shape[1], 2, *shape, device=device)
        found.append((f"conv_transpose{rank}d", [x, grouped], {"groups": x.shape[1]}))
    found.append(("avg_pool2d", [maxima[1]], {"kernel_size": 2, "divisor_override": 3}))
    for rank in (2, 3):
        samples = torch.rand(2, 2, rank, generator=torch.Generator().manual_seed(rank)).to(device, torch.float64)
        for size in ({"output_size": (3, 2, 4)[:rank]}, {"output_ratio": (0.5, 0.6, 0.5)[:rank]}):
            options = {"kernel_size": 2, **size, "_random_samples": samples}
            found.append((f"fractional_max_pool{rank}d", [maxima[rank - 1]], options))
    # A sample without the batch.
    found.append(("max_pool2d", [draw(2, 6, 6, device=device, distinct=True)], {"kernel_size": 2}))
    found.append(("conv2d", [draw(2, 6, 6, device=device), draw(3, 2, 3, 3, device=device)], {}))
    return [(name, [placed(x, last) for x in inputs], options) for name, inputs, options in found]


@pytest.mark.parametrize(("device", "last"), PLACES)
def test_values_are_those_of_pytorch(device: str, last: bool) -> None:
    for name, inputs, options in cases(device, last):
        ours = getattr(F, name)(*inputs, **options)
        theirs = getattr(T, name)(*inputs, **options)
        torch.testing.assert_close(ours, theirs, msg=lambda text: f"{name} {options}: {text}")
        assert ours.device == inputs[0].device and ours.requires_grad
        if last:
            assert torch.equal(placed(ours, True).detach(), ours) and placed(ours, True).stride() == ours.stride(), name


@pytest.mark.parametrize(("device", "last"), PLACES)
def test_gradients_are_those_of_differences(device: str, last: bool) -> None:
    for name, inputs, options in cases(device, last):
        assert torch.autograd.gradcheck(lambda *x: getattr(F, name)(*x, **options), inputs), (name, options)


# Those that PyTorch lacks, and what they are in its terms.
OTHERS: dict[str, Any] = {
    "min_pool2d": (lambda x: F.min_pool2d(x, 3, 2, 1), lambda x: -T.max_pool2d(-x, 3, 2, 1)),
    "adaptive_min_pool2d": (lambda x: F.adaptive_min_pool2d(x, 3), lambda x: -T.adaptive_max_pool2d(-x, 3)),
    "global_min_pool2d": (lambda x: F.global_min_pool2d(x), lambda x: x.amin((2, 3), keepdim=True)),
    "global_max_pool2d": (lambda x: F.global_max_pool2d(x), lambda x: x.amax((2, 3), keepdim=True)),
    "sum_pool2d": (lambda x: F.sum_pool2d(x, 3, 2, 1), lambda x: T.avg_pool2d(x, 3, 2, 1, divisor_override=1)),
    "global_sum_pool2d": (lambda x: F.global_sum_pool2d(x), lambda x: x.sum((2, 3), keepdim=True)),
    "global_avg_pool2d": (lambda x: F.global_avg_pool2d(x), lambda x: x.mean((2, 3), keepdim=True)),
    "adaptive_lp_pool2d": (lambda x: F.adaptive_lp_pool2d(x, 2, (7, 1)), lambda x: x.norm(dim=3, keepdim=True)),
    "global_lp_pool2d": (lambda x: F.global_lp_pool2d(x, 3), lambda x: x.flatten(2).norm(3, dim=2)[..., None, None]),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("device", DEVICES)
def test_functions_that_pytorch_lacks(name: str, device: str) -> None:
    ours, theirs = OTHERS[name]
    x = draw(2, 2, 7, 6, device=device, distinct=True)
    torch.testing.assert_close(ours(x), theirs(x))
    own, other = (torch.autograd.grad(call(x).square().sum(), x)[0] for call in (ours, theirs))
    torch.testing.assert_close(own, other)
    assert torch.autograd.gradcheck(ours, [x])


def test_second_gradients() -> None:
    for name, inputs, options in cases("cpu"):
        if "2d" in name and "lp_pool" not in name:
            assert torch.autograd.gradgradcheck(lambda *x: getattr(F, name)(*x, **options), inputs), (name, options)


def test_indices_and_unpooling() -> None:
    x = draw(2, 3, 8, 8, distinct=True)
    y, indices = F.max_pool2d(x, 2, return_indices=True)
    expected, theirs = T.max_pool2d(x, 2, return_indices=True)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(indices, theirs)
    back = F.max_unpool2d(y.detach().requires_grad_(), indices, 2)
    torch.testing.assert_close(back, T.max_unpool2d(y, indices, 2))
    pooled = y.detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda y: F.max_unpool2d(y, indices, 2), [pooled])
    with pytest.raises(ValueError, match="index"):
        F.max_unpool2d(y, indices + 64, 2)


# Poolings with random numbers, and the dimensions of an input.
RANDOM: list[Any] = [
    (F.stochastic_pool1d, (2, 3, 12), {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2}),
    (F.stochastic_pool2d, (2, 2, 7, 6), {"kernel_size": 2, "stride": 1}),
    (F.stochastic_pool3d, (2, 5, 4, 6), {"kernel_size": 2, "ceil_mode": True}),
    (F.fractional_max_pool1d, (2, 3, 12), {"kernel_size": 2, "output_size": 7}),
    (F.fractional_max_pool2d, (2, 7, 6), {"kernel_size": (2, 3), "output_ratio": (0.5, 0.7)}),
    (F.fractional_max_pool3d, (1, 2, 5, 4, 6), {"kernel_size": 2, "output_size": (4, 3, 2)}),
]


@pytest.mark.parametrize(("pool", "shape", "options"), RANDOM)
@pytest.mark.parametrize(("device", "last"), PLACES)
def test_poolings_with_a_seed(pool: Any, shape: Any, options: Any, device: str, last: bool) -> None:
    x = placed(draw(*shape, device=device, distinct=True), last)

    def work(x: Any, seed: int, indices: bool = False) -> Any:
        return pool(x, **options, seed=seed, return_indices=indices)

    assert torch.autograd.gradcheck(lambda x: work(x, 5), [x])
    assert torch.autograd.gradgradcheck(lambda x: work(x, 5), [x])
    torch._dynamo.reset()
    compiled = torch.compile(work, fullgraph=True, backend="aot_eager")
    for seed in (5, 6, 2**32 - 1):
        expected, positions = pool(x.detach().cpu().numpy(), **options, seed=seed, return_indices=True)
        for call in (work, compiled):
            y, indices = call(x, seed, True)
            assert y.device == x.device and y.requires_grad and indices.dtype == torch.int64
            assert torch.equal(y.detach().cpu(), torch.from_numpy(expected))
            assert torch.equal(indices.cpu(), torch.from_numpy(positions))
            assert torch.equal(call(x, seed), y)


@pytest.mark.parametrize("pool", [lambda x, seed: F.stochastic_pool2d(x, 2, seed=seed), lambda x, seed: F.fractional_max_pool2d(x, 2, 4, seed=seed)])
def test_a_seed_that_changes_is_not_compiled_anew(pool: Any) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled, x = torch.compile(pool, fullgraph=True, backend=backend), torch.rand(1, 2, 8, 8)
    for seed in range(5, 12):
        assert torch.equal(compiled(x, seed), pool(x, seed))
    # The first seed is a constant, the second makes it an argument.
    assert len(graphs) <= 2


def mean_of_weights(x: Any) -> Any:
    """The mean of stochastic pooling; a window without a positive number gives 0."""
    weights = x.relu()
    total = T.avg_pool2d(weights, 2)
    return torch.where(total > 0, T.avg_pool2d(weights**2, 2) / total.where(total > 0, 1), 0)


def test_the_mean_of_stochastic_pooling() -> None:
    x = draw(2, 3, 8, 9, seed=3)
    assert (mean_of_weights(x) == 0).any()

    def mean(x: Any) -> Any:
        return F.stochastic_pool2d(x, 2, training=False)

    compiled = torch.compile(mean, fullgraph=True, backend="aot_eager")
    for call in (mean, compiled):
        torch.testing.assert_close(call(x), mean_of_weights(x))
        own, other = (torch.autograd.grad(pool(x).square().sum(), x)[0] for pool in (call, mean_of_weights))
        torch.testing.assert_close(own, other)
    for options in ({"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}, {"kernel_size": 2, "stride": 1, "dilation": 3}):
        assert torch.autograd.gradcheck(lambda x: F.stochastic_pool2d(x, **options, training=False), [x])
    assert torch.autograd.gradgradcheck(mean, [x])


@pytest.mark.parametrize("rank", [2, 3])
def test_fractional_modules_draw_the_windows_that_pytorchs_do(rank: int) -> None:
    kind = getattr(nn, f"FractionalMaxPool{rank}d")
    for shape, size in [((2, 3), {"output_size": 5}), ((3,), {"output_ratio": 0.6})]:
        x = torch.randn(*shape, *(9, 12, 11)[:rank])
        theirs, ours = kind(3, **size, return_indices=True), wt.patch(kind(3, **size, return_indices=True))
        assert type(ours) is getattr(wt, f"FractionalMaxPool{rank}d")
        for seed in range(3):
            torch.manual_seed(seed)
            expected = theirs(x)
            torch.manual_seed(seed)
            found = ours(x)
            assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    fixed = wt.patch(kind(2, output_size=4, _random_samples=torch.rand(8, 3, rank)))
    x = torch.randn(2, 3, *(9, 12, 11)[:rank])
    assert torch.equal(fixed(x), kind(2, output_size=4, _random_samples=fixed._random_samples)(x))


@pytest.mark.parametrize(("device", "last"), PLACES)
def test_operators_pass_pytorchs_own_check(device: str, last: bool) -> None:
    def own(*shape: int, distinct: bool = False) -> Any:
        return placed(draw(*shape, device=device, distinct=distinct), last)

    ops = torch.ops.windowpane
    x, w, bias = own(2, 4, 8, 9, distinct=True), own(6, 2, 3, 3), own(6)
    window = ([3, 3], [2, 2], [1, 1], [1, 1], True, False)
    adaptive = ([3, 4], [], [], [], False, True)
    plain = ([3, 3], [2, 2], [1, 1], [1, 1], False, False)
    winners = ops.extremum_pool_with_indices(x, False, *plain, None)[1]
    dy = own(2, 4, 4, 5)
    torch.library.opcheck(ops.extremum_pool, (x, True, *window, None))
    torch.library.opcheck(ops.extremum_pool_with_indices, (x, True, *window, None))
    torch.library.opcheck(ops.extremum_pool_with_indices, (x, False, *adaptive, None))
    torch.library.opcheck(ops.extremum_pool_backward, (dy, winners, [8, 9], False, *plain, None))
    torch.library.opcheck(ops.stochastic_pool, (x, 7, *window, None))
    drawn = ops.stochastic_pool(x, 7, *plain, None)[1]
    torch.library.opcheck(ops.extremum_pool_backward, (dy, drawn, [8, 9], True, *plain, None))
    torch.library.opcheck(ops.stochastic_mean, (x, *window, None))
    samples = torch.rand(2, 4, 2, device=device)
    for given in (samples, None):
        places = ([3, 2], [4, 5], 7)
        torch.library.opcheck(ops.fractional_max_pool, (x, given, *places, None))
        largest = ops.fractional_max_pool(x, given, *places, None)[1]
        torch.library.opcheck(ops.fractional_max_pool_backward, (dy, largest, [8, 9], given, *places, None))
    torch.library.opcheck(ops.avg_pool, (x, *window, False, None, None))
    torch.library.opcheck(ops.avg_pool, (x, *adaptive, True, None, None))
    torch.library.opcheck(ops.lp_pool, (x, 2.0, *plain, None))
    torch.library.opcheck(ops.max_unpool, (dy, winners, [8, 9], None))
    torch.library.opcheck(ops.conv, (x, w, bias, *plain, 2, None))
    torch.library.opcheck(ops.conv_transpose, (own(2, 6, 4, 5), w, [8, 9], *plain, 2, None))
    torch.library.opcheck(ops.conv_weight, (own(2, 6, 4, 5), x, *plain, 2, None))
    # Each array has its own layout, and arrays that are both: one channel, and one pixel.
    first = draw(2, 6, 4, 5, device=device)
    torch.library.opcheck(ops.conv_weight, (first, x, *plain, 2, None))
    torch.library.opcheck(ops.extremum_pool_backward, (dy.detach().contiguous(), winners, [8, 9], False, *plain, None))
    torch.library.opcheck(ops.conv, (x, w.detach().contiguous(), None, *plain, 2, None))
    torch.library.opcheck(ops.conv, (draw(2, 1, 8, 9, device=device), own(6, 1, 3, 3), None, *plain, 1, None))
    torch.library.opcheck(ops.conv, (draw(2, 1, 8, 9, device=device), own(6, 1, 1, 1), None, [1, 1], *plain[1:], 1, None))
    torch.library.opcheck(ops.conv, (draw(2, 4, 1, 1, device=device), own(6, 4, 3, 3), None, *plain, 1, None))
    torch.library.opcheck(ops.avg_pool, (x[:, :, ::2, 1:], *window, False, None, None))
    torch.library.opcheck(ops.avg_pool, (x[:0], *window, False, None, None))


def model() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 3, padding="same", groups=4),
        nn.AvgPool2d(2),
        nn.ConvTranspose2d(8, 4, 3, 2),
        nn.LPPool2d(2, 2),
        nn.AdaptiveMaxPool2d((5, None)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def test_patched_models_compute_the_same() -> None:
    theirs, ours = model(), wt.patch(model())
    kinds = [type(module).__module__ for module in ours]
    assert kinds.count("windowpane.torch") == 8
    x = torch.randn(2, 3, 20, 24)
    torch.testing.assert_close(ours(x), theirs(x))
    for module in (ours, theirs):
        module(x).square().sum().backward()
    for own, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(own.grad, other.grad)
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_patch_leaves_what_would_change() -> None:
    odd, whole = nn.LPPool2d(3, 2), nn.Sequential(nn.LPPool2d(2, 2, ceil_mode=True), nn.MaxUnpool2d(2))
    assert type(wt.patch(odd)) is nn.LPPool2d
    wt.patch(whole)
    assert type(whole[0]) is nn.LPPool2d and type(whole[1]) is wt.MaxUnpool2d
    y, indices = T.max_pool2d(torch.randn(1, 2, 6, 6), 2, return_indices=True)
    torch.testing.assert_close(whole[1](y, indices), nn.MaxUnpool2d(2)(y, indices))


def test_a_report_says_what_was_replaced_and_why_not() -> None:
    class Own(nn.MaxPool2d):
        pass

    whole = nn.Sequential(nn.MaxPool2d(2), Own(1), nn.LPPool2d(3, 1), wt.AvgPool2d(1), nn.Flatten())
    found = wt.report(wt.patch(whole))
    assert [own.name for own in found.choices] == ["0", "1", "2", "3"]
    assert [own.replaced for own in found.choices] == [True, False, False, False]
    for own, reason in zip(found.choices, ["not timed", "Own is a subclass", "would differ", "already"]):
        assert reason in own.reason
    lines = str(found).splitlines()
    assert lines[0].split()[:2] == ["module", "kind"] and len(lines) == 5
    assert lines[1].split()[:3] == ["0", "MaxPool2d", "yes"]
    with pytest.raises(ValueError, match="patch"):
        wt.report(nn.Sequential())


@pytest.mark.parametrize("training", [False, True])
def test_what_is_faster_is_replaced(training: bool) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # The cost of ours does not grow with the window.
            self.large = nn.MaxPool2d(63, 1, 31)
            self.norm = nn.BatchNorm2d(2)
            self.unused = nn.AvgPool2d(2)

        def forward(self, x: Any) -> Any:
            return self.large(self.norm(x))

    whole = Branch().train(training)
    theirs = Branch().train(training)
    x = torch.randn(1, 2, 160, 160)
    wt.patch(whole, x)
    choices = {own.name: own for own in wt.report(whole).choices}
    large, unused = choices["large"], choices["unused"]
    assert large.ours and large.theirs and large.replaced == (large.ours < large.theirs)
    assert large.reason == ("faster" if large.replaced else "not faster")
    assert type(whole.large).__module__ == ("windowpane.torch" if large.replaced else nn.MaxPool2d.__module__)
    assert large.replaced, str(wt.report(whole))
    assert not unused.replaced and "do not reach" in unused.reason and unused.ours is None
    # The run on the inputs has changed neither statistics nor modes.
    assert whole.training == training and whole.norm.training == training
    assert torch.equal(whole.norm.running_mean, theirs.norm.running_mean)
    torch.testing.assert_close(whole(x), theirs(x))


def test_what_cannot_run_here_stays() -> None:
    # There are no convolutions of complex numbers.
    layer = nn.Conv1d(2, 2, 3, dtype=torch.complex64)
    (choice,) = wt.report(wt.patch(layer, torch.zeros(1, 2, 8, dtype=torch.complex64))).choices
    assert type(layer) is nn.Conv1d and not choice.replaced and "complex64" in choice.reason


INTEGERS = [torch.bool, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: Any) -> None:
    x = torch.randint(0, 2 if dtype == torch.bool else 100, (2, 3, 8, 6)).to(dtype)
    wide = x.to(torch.float64)
    y, indices = F.max_pool2d(x, 2, return_indices=True)
    assert y.dtype == dtype and torch.equal(y.to(torch.float64), T.max_pool2d(wide, 2))
    assert torch.equal(F.min_pool2d(x, 2).to(torch.float64), -T.max_pool2d(-wide, 2))
    sums, means = F.sum_pool2d(x, 2), F.avg_pool2d(x, 2)
    assert sums.dtype == torch.int64 and means.dtype == torch.float64
    torch.testing.assert_close(means, T.avg_pool2d(wide, 2))
    assert torch.equal(sums.to(torch.float64), T.avg_pool2d(wide, 2, divisor_override=1))
    compiled = torch.compile(lambda x: F.max_pool2d(x, 2), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x).to(torch.float64), y.to(torch.float64))


def test_integers_that_no_float64_tells_apart() -> None:
    x = torch.tensor([[[1 << 60, (1 << 60) + 1, -(1 << 63), (1 << 63) - 1]]])
    assert F.max_pool1d(x, 2).tolist() == [[[(1 << 60) + 1, (1 << 63) - 1]]]
    assert F.min_pool1d(x, 2).tolist() == [[[1 << 60, -(1 << 63)]]]


def test_integers_that_are_refused() -> None:
    with pytest.raises(TypeError, match="uint64"):
        F.max_pool1d(torch.ones(1, 1, 8, dtype=torch.uint64), 2)
    with pytest.raises(ValueError, match="2\\*\\*53"):
        F.sum_pool1d(torch.full((1, 1, 8), 1 << 51), 2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_models_compile_without_a_break(dynamic: bool) -> None:
    # This compiler runs everything of PyTorch's but the last, which needs a C++ compiler.
    compiled = torch.compile(wt.patch(model()), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    theirs = model()
    for size in (20, 24):
        x = torch.randn(2, 3, size, 24)
        torch.testing.assert_close(compiled(x), theirs(x))
    compiled(x).sum().backward()


def test_functions_compile_without_a_break() -> None:
    def work(x: Any) -> Any:
        y, indices = F.max_pool2d(x, 2, return_indices=True)
        return F.avg_pool2d(F.max_unpool2d(y, indices, 2), 3, padding=1)

    x = torch.randn(1, 2, 8, 8)
    compiled = torch.compile(work, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), work(x))


def test_tensors_that_are_no_plain_memory() -> None:
    negative = torch.complex(torch.zeros(1, 1, 4), torch.arange(4.0)[None, None]).conj().imag
    assert negative.is_neg()
    torch.testing.assert_close(F.avg_pool1d(negative, 2), T.avg_pool1d(negative, 2))
    assert F.max_pool2d(torch.ones(1, 1, 4, 4, device="meta"), 2).shape == (1, 1, 2, 2)


def test_autocast_leaves_f64() -> None:
    x, w = draw(1, 2, 5, 5).detach(), draw(3, 2, 3, 3, seed=1).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(F.conv2d(x, w), T.conv2d(x, w))


def test_autocast_and_types() -> None:
    x, layer = torch.randn(1, 2, 8, 8), wt.Conv2d(2, 3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        y = F.max_pool2d(x.to(dtype), 2)
        assert y.dtype == dtype
        assert torch.equal(y, T.max_pool2d(x.to(dtype), 2))
    with torch.no_grad():
        assert not F.max_pool2d(draw(1, 2, 8, 8), 2).requires_grad
