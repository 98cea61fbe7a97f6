"""CUDA graph of blocks: the whole step, from the batch to the update, is recorded once and replayed."""

from .cupy_conv import *
