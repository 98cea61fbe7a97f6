"""Numba loops, blocked product: those of `numba_fastmath`, with a product that knows registers and caches (`gemm`)."""

from .loops import gemm as _gemm
from .loops.compiler import FASTMATH, compile_loops
from .python_loops import *

globals().update(vars(compile_loops(__name__, parallel=True, fastmath=FASTMATH, calls={"matmul": _gemm.matmul})))
