"""CUDA's driver itself, for the few of its functions that CuPy has no word for: NVIDIA's `cuda-bindings` calls them.

Where it was measured, on an H100's host, they take less time than calls by ctypes: 4.3 to 8.7 us instead of 21 for a
launch with attributes, 2.7 instead of 13 for a tensor map.
"""

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver

cuda = driver  # by this name in the modules that ask it

_IN_C: dict[type, Any] = {np.int32: ctypes.c_int32, np.float32: ctypes.c_float, np.float64: ctypes.c_double}


def call(function, *arguments):
    """Return the list of what a function of the driver gives. Raises RuntimeError, which says why, where it refuses."""
    status, *found = function(*arguments)
    if status:
        raise RuntimeError(f"CUDA's driver refused {function.__name__}: {cuda.CUresult(status).name}.")
    return found


class Arguments:
    """A kernel's arguments as the driver wants them: `address`, of their addresses, as long as this lives.

    values: arrays, addresses as integers, NumPy's numbers and structs, and numbers of ctypes, whose value is read when
    the kernel is launched.
    """

    def __init__(self, values):
        self.kept, self.c_values = values, [in_c(value) for value in values]
        self.places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, self.c_values))
        self.address = ctypes.addressof(self.places)


def in_c(value):
    """Return an argument as an object of ctypes."""
    if isinstance(value, ctypes._SimpleCData):
        return value
    if isinstance(value, int):
        return ctypes.c_void_p(value)
    if isinstance(value, np.generic):
        known = _IN_C.get(type(value))
        return known(value) if known else (ctypes.c_char * value.nbytes).from_buffer_copy(value.tobytes())
    if hasattr(value.data, "ptr"):
        return ctypes.c_void_p(value.data.ptr)
    return (ctypes.c_char * value.nbytes).from_buffer_copy(value)  # a struct
