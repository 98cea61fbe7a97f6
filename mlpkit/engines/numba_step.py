"""Numba, a whole step: a few calls of compiled code, each shared out among all cores, with the products of `gemm`.

Of the first layer's inputs, each core has a part; of the batch, a share; of the gradient and its update, a part: see
`loops.step`. Only one Python thread at a time may use it: see `numba_parallel`.
"""

from .loops import fused as _fused
from .loops import gemm as _gemm
from .loops import step as _step
from .loops.compiler import FASTMATH, Threads, compile_loops
from .numba_blocked import *

_FAST = {"fastmath": FASTMATH, "error_model": "numpy"}
fused = compile_loops(__name__, _fused, parallel=True, **_FAST)
one_core = compile_loops(f"{__name__}_one_core", _fused, **_FAST)
_CALLS = vars(one_core) | {"multiply": _gemm.multiply, "prefetch": _gemm.prefetch}
step = compile_loops(__name__, _step, parallel=True, calls=_CALLS, **_FAST)
gather = fused.gather
axpy = fused.axpy
sgd_update = fused.sgd_update
momentum_update = fused.momentum_update
nesterov_update = fused.nesterov_update
rmsprop_update = fused.rmsprop_update
adam_update = fused.adam_update
