"""The baseline's own lines, in which `np` now means CuPy: the arrays are on the GPU, each operation is a kernel there.

Nothing else has changed: NumPy's functions have their namesakes in CuPy, which are called instead.
"""

from types import FunctionType

from mlpkit.kernels import gpu

from . import numpy_baseline
from .numpy_baseline import *

gpu.require()

import cupy as cp  # noqa: E402  (`require` says what to do where this fails)


def _with_cupy(function):
    """Return a function of the baseline in which the name `np` means CuPy."""
    return FunctionType(function.__code__, {**vars(numpy_baseline), "np": cp}, function.__name__, function.__defaults__)


globals().update({name: _with_cupy(f) for name, f in vars(numpy_baseline).items() if isinstance(f, FunctionType)})


def asarray(array, dtype=None):
    return cp.ascontiguousarray(cp.asarray(array), dtype)


def to_numpy(array):
    return cp.asnumpy(cp.stack(array) if isinstance(array, list) else array)


def synchronize():
    cp.cuda.get_current_stream().synchronize()
