"""NumPy's products, Numba between: BLAS multiplies matrices, and Numba does the rest in as few passes as it can.

The compiled loops run on one core: OpenBLAS keeps threads of its own waiting on the others.
"""

from .loops import fused as _fused
from .loops.compiler import FASTMATH, compile_loops
from .numpy_baseline import *

fused = compile_loops(__name__, _fused, fastmath=FASTMATH, error_model="numpy")
axpy = fused.axpy
sgd_update = fused.sgd_update
momentum_update = fused.momentum_update
nesterov_update = fused.nesterov_update
rmsprop_update = fused.rmsprop_update
adam_update = fused.adam_update
