"""CUDA graph, three kernels a step: one for each time that a step has to wait for the whole batch.

An operation at a time it computes as `cupy_fused`; what runs whole epochs is the executor of the same name.
"""

from .cupy_fused import *
