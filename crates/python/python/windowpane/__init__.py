"""Pooling and convolution on every GPU, for arrays of any library that speaks DLPack.

`windowpane.functional` has the operators with PyTorch's names, order and defaults.
"""

from windowpane import functional
from windowpane._native import Array, __version__, devices

__all__ = ["Array", "__version__", "devices", "functional"]
