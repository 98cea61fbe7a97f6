"""A whole step in a few calls of compiled code, each shared out among all cores; matrix products are those of `_gemm`.

Of the batch, each core has a share; of the gradient and its update, each has a part: see `_step`.
"""

from weakref import WeakKeyDictionary

import numpy as np
from numba import get_num_threads

from . import _fused, _gemm, _step
from ._compile import FASTMATH, compile_loops
from .numba_blocked import *

_FAST = {"fastmath": FASTMATH, "error_model": "numpy"}
fused = compile_loops(__name__, _fused, parallel=True, **_FAST)
one_core = compile_loops(f"{__name__}_one_core", _fused, **_FAST)
step = compile_loops(__name__, _step, parallel=True, calls=vars(one_core) | {"multiply": _gemm.multiply}, **_FAST)
gather = fused.gather
axpy = fused.axpy
sgd_update = fused.sgd_update
momentum_update = fused.momentum_update
nesterov_update = fused.nesterov_update
rmsprop_update = fused.rmsprop_update
adam_update = fused.adam_update

_buffers: WeakKeyDictionary = WeakKeyDictionary()  # of each network


def train_step(network, optimizer, x, labels):
    """Take one step; see `train.train_step`."""
    threads = get_num_threads()
    activations, gradients, losses = _buffers_for(network, len(x), threads)
    step.backpropagate(x, labels, network.theta, network.sizes, activations, gradients, losses)
    step.parameter_gradients(x, activations, gradients, network.sizes, network.grad, threads)
    optimizer.step()
    return losses.sum()


def _buffers_for(network, n, threads):
    kept = _buffers.setdefault(network, {})
    if (n, threads) not in kept:
        layers = [np.empty((n, features), network.dtype) for features in 2 * network.sizes[1:]]
        half = len(layers) // 2
        kept[n, threads] = tuple(layers[:half]), tuple(layers[half:]), np.empty(min(threads, n))
    return kept[n, threads]
