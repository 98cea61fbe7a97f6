"""CUDA graph, answers in integers: trains as `cuda_conv_graph` does, and what it compiles predicts with bytes.

`network.compiled(n, calibration=X)` has integers of 8 bits unless another precision is asked for: see `nn.quantize`.
Their kernels are in `kernels/int8`.
"""

from .cupy_conv import *

OWN = ()
