"""A kernel's launch, made ready once: its arguments are turned into C's before, and not again at each call."""

import ctypes

import cupy as cp
import numpy as np

from mlpkit.kernels import driver

_NUMBERS = {np.int32: ctypes.c_int32, np.float32: ctypes.c_float, np.float64: ctypes.c_double}


def ready(kernel, blocks, threads, arguments):
    """Return a function that launches a kernel, a `cupy.RawKernel`, on the stream of now.

    blocks, threads: how many, and in each block. arguments: arrays, addresses as integers, NumPy's numbers, and numbers
    of ctypes, whose value is read at each launch.
    """
    numbers = [_in_c(argument) for argument in arguments]
    places = (ctypes.c_void_p * len(numbers))(*map(ctypes.addressof, numbers))
    sizes = (ctypes.c_uint32(size) for size in (blocks, 1, 1, threads, 1, 1, 0))
    stream = ctypes.c_void_p(cp.cuda.get_current_stream().ptr)
    given = ctypes.c_void_p(kernel.kernel.ptr), *sizes, stream, places, None
    launch = driver.load().cuLaunchKernel

    def run(_kept=(kernel, arguments, numbers)):  # C knows addresses only
        if status := launch(*given):
            raise RuntimeError(f"the driver launches no such kernel: CUDA error {status}.")

    return run


def _in_c(value):
    if isinstance(value, ctypes._SimpleCData):
        return value
    if isinstance(value, cp.ndarray):
        return ctypes.c_void_p(value.data.ptr)
    return ctypes.c_void_p(value) if isinstance(value, int) else _NUMBERS[type(value)](value)
