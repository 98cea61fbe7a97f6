"""CUDA graph of cuBLAS's kernels: those of `cupy_fused`, recorded once as a graph and replayed step by step.

An operation at a time it computes as `cupy_fused`; what runs whole epochs is the executor of the same name.
"""

from .cupy_fused import *
