"""Numba loops: those of `python_loops`, compiled, and nothing else changed."""

from .loops.compiler import compile_loops
from .python_loops import *

globals().update(vars(compile_loops(__name__)))
