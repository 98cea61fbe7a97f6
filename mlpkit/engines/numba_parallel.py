"""Numba loops, parallel: those of `python_loops`, compiled for all cores, which share the turns of each `prange`.

See `loops.sharing` for processes that are forked, and for Python's threads.
"""

from .loops.compiler import compile_loops
from .python_loops import *

globals().update(vars(compile_loops(__name__, parallel=True)))
