"""The loops of `python_loops`, compiled by Numba for all cores: the turns of each `prange` are shared out."""

from ._compile import compile_loops
from .python_loops import *

globals().update(vars(compile_loops(__name__, parallel=True)))
