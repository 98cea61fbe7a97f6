"""CUDA, a plan of blocks: layers that follow each other are computed together, in memory that is planned ahead.

An operation at a time it computes as `cupy_conv`; what runs whole epochs is the executor of the same name.
"""

from mlpkit.kernels import gpu

from .cupy_conv import *

gpu.require_capability(9.0)  # its blocks are written for Hopper
