"""Arrays of the caller's library: what is known of them, and how results become theirs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

if TYPE_CHECKING:
    from windowpane._native import Array


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


_MODULES = {"jaxlib": "jax.dlpack", "jax": "jax.dlpack"}


def like(x: Any, result: Array) -> Any:
    """The result as an array of the library that `x` is of, without a copy; itself if that library is unknown."""
    library = type(x).__module__.partition(".")[0]
    module = importlib.import_module(_MODULES.get(library, library))
    from_dlpack = getattr(module, "from_dlpack", None)
    return result if from_dlpack is None else from_dlpack(result)


def lacks_batch(x: SupportsDLPack, rank: int) -> bool:
    """Whether an array is one sample, and not a batch of samples."""
    axes = len(x.shape)
    if axes == rank + 1:
        return True
    if axes == rank + 2:
        return False
    raise ValueError(
        f"an array of {rank + 2} axes (or {rank + 1}, without a batch) is needed; found {axes} axes"
    )


def numbers(value: int | tuple[int, ...] | list[int], rank: int, name: str) -> list[int]:
    """A number for each axis."""
    if isinstance(value, int):
        return [value] * rank
    found = [int(number) for number in value]
    if len(found) == 1:
        return found * rank
    if len(found) != rank:
        raise ValueError(f"{name} needs {rank} numbers, or one for all axes; found {len(found)}")
    return found
