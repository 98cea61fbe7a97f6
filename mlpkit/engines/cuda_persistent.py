"""one persistent CUDA kernel: its blocks stay for an epoch, keep what they own, and hand each other numbers.

An operation at a time it computes as `cupy_fused`; what runs whole epochs is the executor of the same name.
"""

from mlpkit.kernels import gpu

from .cupy_fused import *

gpu.require_capability(8.0)  # threads copy asynchronously
