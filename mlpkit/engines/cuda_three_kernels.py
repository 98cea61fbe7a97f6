"""CUDA graph, three kernels a step: one for each time that a step has to wait for the whole batch."""

from .cupy_fused import *
