"""CUDA graph of an epoch: all its full batches are one graph, and so one launch."""

from .cuda_graph import *
