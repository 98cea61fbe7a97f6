"""Numba loops, parallel, fastmath: with permission to reorder, as a loop that adds up can't use vectors without."""

from .loops.compiler import FASTMATH, compile_loops
from .python_loops import *

globals().update(vars(compile_loops(__name__, parallel=True, fastmath=FASTMATH)))
