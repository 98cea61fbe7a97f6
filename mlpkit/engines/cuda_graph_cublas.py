"""CUDA graph of cuBLAS's kernels: those of `cupy_fused`, recorded once as a graph and replayed step by step."""

from .cupy_fused import *
