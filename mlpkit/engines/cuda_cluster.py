"""a network on eight multiprocessors: an epoch of several networks in one launch, each in a cluster of eight blocks."""

from mlpkit.kernels import gpu

from .cupy_fused import *

gpu.require_capability(9.0)  # its blocks are a cluster
