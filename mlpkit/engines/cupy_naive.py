"""CuPy, NumPy's lines: the baseline's own functions, in which `np` now means CuPy.

The arrays are on the GPU, and each operation is a kernel there. Nothing else has changed: NumPy's functions have their
namesakes in CuPy, which are called instead. Only its random numbers have none: a kernel of ours draws them for dropout.
"""

from types import FunctionType

from mlpkit.kernels import gpu

from . import numpy_baseline
from .numpy_baseline import *

gpu.require()

import cupy as cp  # noqa: E402  (`require` says what to do where this fails)

from mlpkit.kernels.cnn import dropout as _dropout  # noqa: E402

from .cuda.copies import Copies  # noqa: E402

# The names that the functions find, each other's among them
_names = {**vars(numpy_baseline), "np": cp}
_names |= {
    name: FunctionType(function.__code__, _names, name, function.__defaults__)
    for name, function in vars(numpy_baseline).items()
    if isinstance(function, FunctionType) and function.__module__ == numpy_baseline.__name__
}
globals().update({name: _names[name] for name in vars(numpy_baseline) if isinstance(_names[name], FunctionType)})


_fetching = cp.cuda.Stream(non_blocking=True)


def threads():
    """Of the host's threads a GPU needs one: there are none to choose."""
    return None


def asarray(array, dtype=None):
    return cp.ascontiguousarray(cp.asarray(array), dtype)


def to_numpy(array):
    return cp.asnumpy(cp.stack(array) if isinstance(array, list) else array)


def fetch(*arrays):
    """Copy to pinned memory, on a stream of its own: what is asked for next need not wait for the copies."""
    there = [cp.stack(array) if isinstance(array, list) else array for array in arrays]
    _fetching.wait_event(cp.cuda.get_current_stream().record())
    return Copies(_fetching, there)


def synchronize():
    cp.cuda.get_current_stream().synchronize()


def now():
    return cp.cuda.get_current_stream().record()


def elapsed(begin, end):
    return cp.cuda.get_elapsed_time(begin, end) / 1e3


def dropout(x, rate, key, step):
    return _dropout.dropout(x, rate, key, step)
