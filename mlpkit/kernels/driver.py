"""CUDA's driver itself, for the few of its functions that CuPy has no word for: ctypes calls them."""

import ctypes
import sys
from functools import cache

FILE = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@cache
def load():
    """Return the driver's library, whose functions return 0 or an error's number. Raises OSError where none is."""
    return ctypes.CDLL(FILE)
