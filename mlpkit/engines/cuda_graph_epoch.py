"""CUDA graph of an epoch: all its full batches are one graph, and so one launch.

An operation at a time it computes as `cuda_graph`; what runs whole epochs is the executor of the same name.
"""

from .cuda_graph import *
