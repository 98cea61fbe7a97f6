"""CUDA graph of blocks: the whole step, from the batch to the update, is recorded once and replayed."""

from mlpkit.kernels import gpu

from .cupy_conv import *

gpu.require_capability(9.0)  # its blocks are written for Hopper
