"""one CUDA kernel, an image a block: a network that sees, from its pixels to all its gradients."""

from mlpkit.kernels import gpu

from .cupy_conv import *

gpu.require_capability(9.0, alone=True)  # limit.cu is for sm_90a
