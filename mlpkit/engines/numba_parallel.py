"""Numba loops, parallel: those of `python_loops`, compiled for all cores, which share the turns of each `prange`.

Numba's threads serve one Python thread at a time where its only layer is "workqueue" (Numba's documentation, "The
Threading Layers"): two that train at once would end the process. Where it is OpenMP, as usual on Linux, a process that
has run such loops can't be forked: `multiprocessing.get_context("spawn")` begins others.
"""

from .loops.compiler import compile_loops
from .python_loops import *

globals().update(vars(compile_loops(__name__, parallel=True)))
