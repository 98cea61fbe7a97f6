"""CUDA, a plan of blocks: layers that follow each other are computed together, in memory that is planned ahead."""

from mlpkit.kernels import gpu

from .cupy_conv import *

gpu.require_capability(9.0)  # its blocks are written for Hopper
