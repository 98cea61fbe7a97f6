"""Numba, predictions in integers: trains as `numba_conv` does, and what it compiles predicts with bytes.

`network.compiled(n, calibration=X)` has integers of 8 bits unless another precision is asked for: see `nn.quantize`.
Which instructions multiply them is in `loops.dot`.
"""

from .numba_conv import *

OWN = ()  # type: ignore[assignment]
