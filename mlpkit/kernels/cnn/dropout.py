"""Dropout on the GPU: a kernel that draws NumPy's own numbers, each where it is needed, and keeps no mask.

The step may lie on the GPU, for a recorded graph reads it again each time, and so drops others each time.
"""

from functools import cache

import numpy as np

from mlpkit import kernels

THREADS = 128  # a block; each has eight values
REALS = {np.dtype("f4"): "float", np.dtype("f8"): "double"}
STEPS = {np.dtype("i4"): "int", np.dtype("i8"): "long long"}


def dropout(x, rate, key, step):
    """Return what `engines.numpy_baseline.dropout` returns, bit by bit, of a CuPy array of float32 or float64.

    step: an integer, or a CuPy array of one int32 or int64, which is read when the kernel runs. Raises TypeError for
    arrays of other types.
    """
    import cupy as cp

    there = isinstance(step, cp.ndarray)
    if x.dtype not in REALS or (there and step.dtype not in STEPS):
        raise TypeError(
            "dropout takes numbers of float32 or float64, and a step that is an integer or an array of one int32 or "
            f"int64, not {x.dtype} and {step.dtype if there else type(step).__name__}."
        )
    x = cp.ascontiguousarray(x)
    y = cp.empty(x.shape, x.dtype)
    scale = x.dtype.type(1 / (1 - rate))
    steps = (np.int64(0), step) if there else (np.int64(step), np.uint64(0))
    arguments = (x, y, np.int64(x.size), np.float32(rate), scale, *map(np.uint64, key), *steps)
    _kernel(x.dtype, step.dtype if there else np.dtype("i8"))((blocks(x.size),), (THREADS,), arguments)
    return y


def blocks(size):
    """Return how many blocks a launch for so many values has: one at least."""
    return max(1, -(-size // (8 * THREADS)))


@cache
def _kernel(dtype, step_dtype):
    return kernels.load("dropout", REAL=REALS[dtype], STEP=STEPS[step_dtype]).get_function("dropout")
