"""one CUDA kernel, an image a block: a network that sees, from its pixels to all its gradients."""

from mlpkit.kernels import gpu

from .cupy_conv import *

gpu.require_capability(8.0)  # a thread has a register for each two weights
