"""CUDA graph of our kernels: nine a step, in which a product's kernel also does what follows element by element."""

from functools import cache

import cupy as cp
import numpy as np

from .cuda.kernel import kernel, overlapping
from .cupy_fused import *
from .cupy_fused import sgd_update as _sgd_with_a_number

THREADS = 256  # a block of sgd.cu


def sgd_update(theta, grad, lr):
    """Update theta in place. lr: a number, or where a step is recorded an array of one, on the GPU."""
    if not isinstance(lr, cp.ndarray):
        return _sgd_with_a_number(theta, grad, lr)
    blocks = -(-theta.size // (2 * THREADS))
    _sgd(theta.dtype)((blocks,), (THREADS,), (theta, grad, lr, np.int32(theta.size)))


@cache
def _sgd(dtype):
    return overlapping(kernel("sgd", "sgd", dtype))
