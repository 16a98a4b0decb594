"""The native part of windowpane."""

from typing import Any, final

from windowpane._arrays import FractionalOptions, Options, SupportsDLPack

__all__ = [
    "Array",
    "__version__",
    "avg_pool",
    "avg_pool_backward",
    "convolve",
    "convolve_backward_weight",
    "convolve_transposed",
    "devices",
    "extremum_pool",
    "extremum_pool_backward",
    "extremum_under",
    "fractional_max_pool",
    "fractional_max_pool_backward",
    "lp_pool",
    "lp_pool_backward",
    "max_unpool",
    "max_unpool_backward",
    "mode_pool",
    "pad",
    "quantized_convolve",
    "rank_pool",
    "stochastic_mean",
    "stochastic_pool",
    "supports",
    "xla_handlers",
]
__version__: str

@final
class Array:
    """A result, for any library that speaks DLPack: in the memory of the CPU, or where its inputs are."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def like(self, x: object) -> Any | None:
        """An array of the library of `x`, made by DLPack's functions for C; none if the library lacks them."""

    def __dlpack_device__(self) -> tuple[int, int]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

def devices() -> list[str]:
    """The names of the devices of this machine, the preferred first."""

def extremum_pool(
    x: SupportsDLPack, options: Options, minimum: bool, indices: bool, name: str | None
) -> tuple[Array, Array | None]: ...
def extremum_pool_backward(
    dy: SupportsDLPack,
    indices: SupportsDLPack,
    size: list[int],
    options: Options,
    drawn: bool,
    name: str | None,
) -> Array: ...
def stochastic_pool(
    x: SupportsDLPack, seed: int, options: Options, indices: bool, name: str | None
) -> tuple[Array, Array | None]: ...
def stochastic_mean(x: SupportsDLPack, options: Options, name: str | None) -> Array: ...
def fractional_max_pool(
    x: SupportsDLPack,
    samples: SupportsDLPack | None,
    options: FractionalOptions,
    indices: bool,
    name: str | None,
) -> tuple[Array, Array | None]: ...
def fractional_max_pool_backward(
    dy: SupportsDLPack,
    indices: SupportsDLPack,
    size: list[int],
    samples: SupportsDLPack | None,
    options: FractionalOptions,
    name: str | None,
) -> Array: ...
def avg_pool(
    x: SupportsDLPack,
    options: Options,
    counts: bool,
    divisor: int | None,
    name: str | None,
    truncates: bool = False,
) -> Array: ...
def avg_pool_backward(
    dy: SupportsDLPack,
    size: list[int],
    options: Options,
    counts: bool,
    divisor: int | None,
    name: str | None,
) -> Array: ...
def lp_pool(x: SupportsDLPack, p: float, options: Options, name: str | None) -> Array: ...
def lp_pool_backward(
    dy: SupportsDLPack, x: SupportsDLPack, p: float, options: Options, name: str | None
) -> Array: ...
def rank_pool(
    x: SupportsDLPack, rank: int | None, options: Options, name: str | None
) -> Array: ...
def mode_pool(x: SupportsDLPack, options: Options, name: str | None) -> Array: ...
def extremum_under(
    x: SupportsDLPack, kernel: list[int], footprint: list[bool], minimum: bool, name: str | None
) -> Array: ...
def pad(
    x: SupportsDLPack, options: Options, mode: str, value: float, name: str | None
) -> Array: ...
def max_unpool(
    y: SupportsDLPack, indices: SupportsDLPack, output: list[int], name: str | None
) -> Array: ...
def max_unpool_backward(
    dx: SupportsDLPack, indices: SupportsDLPack, rank: int, name: str | None
) -> Array: ...
def convolve(
    x: SupportsDLPack,
    w: SupportsDLPack,
    bias: SupportsDLPack | None,
    options: Options,
    groups: int,
    name: str | None,
) -> Array: ...
def quantized_convolve(
    x: SupportsDLPack,
    w: SupportsDLPack,
    scale: SupportsDLPack,
    bias: SupportsDLPack | None,
    options: Options,
    groups: int,
    activation: str,
    output: str,
    name: str | None,
) -> Array: ...
def convolve_transposed(
    x: SupportsDLPack,
    w: SupportsDLPack,
    bias: SupportsDLPack | None,
    size: list[int],
    options: Options,
    groups: int,
    name: str | None,
) -> Array: ...
def convolve_backward_weight(
    dy: SupportsDLPack, x: SupportsDLPack, options: Options, groups: int, name: str | None
) -> Array: ...
def supports(name: str, dtype: str) -> bool: ...
def xla_handlers() -> dict[str, Any]:
    """XLA's names of the platforms whose arrays are used where they are, each with a handler for `jax.ffi`."""
