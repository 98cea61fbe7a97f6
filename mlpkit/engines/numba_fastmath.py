"""The loops of `numba_parallel`, compiled with leave to reorder: else a loop that adds up can't use vectors."""

from .loops.compiler import FASTMATH, compile_loops
from .python_loops import *

globals().update(vars(compile_loops(__name__, parallel=True, fastmath=FASTMATH)))
