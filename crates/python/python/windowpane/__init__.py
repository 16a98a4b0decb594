"""Pooling and convolution on every GPU, for arrays of any library that speaks DLPack.

`windowpane.functional` has the operators with PyTorch's names, order and defaults, and `windowpane.ndimage` SciPy's filters.
`windowpane.torch` and `windowpane.jax` add gradients, and modules for PyTorch.
"""

from windowpane import functional
from windowpane._native import Array, __version__, devices

__all__ = ["Array", "__version__", "devices", "functional"]
