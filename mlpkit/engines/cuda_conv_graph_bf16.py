"""CUDA graph of blocks in BF16: as `cuda_conv_graph`, with products of fewer bits."""

from .cupy_conv import *

GATE = (5, 3e-2)  # so many first losses are held to the baseline's, so closely
