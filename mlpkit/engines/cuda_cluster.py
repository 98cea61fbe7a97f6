"""a network on eight multiprocessors: an epoch of several networks in one launch, each in a cluster of eight blocks.

An operation at a time it computes as `cupy_fused`; what runs whole epochs is the executor of the same name.
"""

from mlpkit.kernels import gpu

from .cupy_fused import *

gpu.require_capability(9.0)  # its blocks are a cluster
