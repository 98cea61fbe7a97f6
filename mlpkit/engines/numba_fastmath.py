"""The loops of `numba_parallel`, compiled with leave to reorder sums, without which no sum can use vectors."""

from ._compile import FASTMATH, compile_loops
from .python_loops import *

globals().update(vars(compile_loops(__name__, parallel=True, fastmath=FASTMATH)))
