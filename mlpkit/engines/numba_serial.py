"""The loops of `python_loops`, compiled by Numba, and nothing else changed."""

from ._compile import compile_loops
from .python_loops import *

globals().update(vars(compile_loops(__name__)))
