"""Launches that may begin before the one before them is over ("CUDA Driver API", cuLaunchKernelEx).

A kernel begins when the one before it on the stream has ended. Between the two the GPU is idle for a microsecond or so.
A kernel that waits by itself, with `griddepcontrol_wait` of ptx.cuh before it reads or writes memory, may be placed on
the GPU while the one before it is still at work. CuPy has no word for that, so ctypes calls the driver.
"""

import ctypes
from functools import cache

import numpy as np

COOPERATIVE, PROGRAMMATIC_STREAM_SERIALIZATION = 2, 6  # CU_LAUNCH_ATTRIBUTE_*


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid_block_shared", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class Early:
    """A kernel of CuPy's that is called as it is, and that waits by itself for the kernel before it."""

    def __init__(self, kernel):
        self.launched = kernel

    @property
    def kernel(self):
        """What takes `enable_cooperative_groups`, as of CuPy's kernels."""
        return self

    def __call__(self, grid, block, arguments, shared_mem=0, enable_cooperative_groups=False):
        """Ask for the kernel on the current stream. Raises RuntimeError where the driver refuses."""
        import cupy

        values = [_value(each) for each in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        ids = [PROGRAMMATIC_STREAM_SERIALIZATION, COOPERATIVE][: 1 + enable_cooperative_groups]
        attributes = (_Attribute * len(ids))()
        for attribute, number in zip(attributes, ids, strict=True):
            attribute.id, attribute.value[0] = number, 1
        sizes = (*grid, 1, 1, *block, 1, 1)
        config = _Config(
            (ctypes.c_uint * 7)(*sizes[:6], shared_mem),
            cupy.cuda.get_current_stream().ptr,
            ctypes.addressof(attributes),
            len(ids),
        )
        status = _driver().cuLaunchKernelEx(
            ctypes.byref(config), ctypes.c_void_p(self.launched.kernel.ptr), pointers, None
        )
        if status:
            raise RuntimeError(f"the driver launches no {grid[0]} blocks of {block[0]} threads: CUDA error {status}.")


def _value(argument):
    """Return an argument's bytes as a contiguous NumPy array."""
    address = getattr(getattr(argument, "data", None), "ptr", None)  # of an array of CuPy's
    return np.ascontiguousarray(argument) if address is None else np.array(address, np.uint64)


@cache
def _driver():
    return ctypes.CDLL("libcuda.so.1")
