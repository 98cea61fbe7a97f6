"""CUDA graph of blocks in TF32: as `cuda_conv_graph`, with products of fewer bits."""

from .cupy_conv import *

GATE = (5, 2e-3)  # so many first losses are held to the baseline's, so closely
