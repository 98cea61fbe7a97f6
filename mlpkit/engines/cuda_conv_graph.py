"""CUDA graph of blocks: the whole step, from the batch to the update, is recorded once and replayed.

An operation at a time it computes as `cupy_conv`; what runs whole epochs is the executor of the same name.
"""

from mlpkit.kernels import gpu

from .cupy_conv import *

gpu.require_capability(9.0)  # its blocks are written for Hopper
