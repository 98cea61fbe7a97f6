"""A whole step in a few calls of compiled code, each shared out among all cores; matrix products are those of `_gemm`.

Of the batch, each core has a share; of the gradient and its update, each has a part: see `_step`. It may be
for one Python thread at a time only: see `numba_parallel`.
"""

from weakref import WeakKeyDictionary

import numpy as np
from numba import get_num_threads

from .loops import fused as _fused
from .loops import gemm as _gemm
from .loops import step as _step
from .loops.compiler import FASTMATH, compile_loops
from .numba_blocked import *
from .numba_serial import check_labels

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
    """Take one step; see `train.train_step`. Raises for a batch that does not fit the network."""
    x = network.as_input(x)
    check_labels(labels, len(x), network.sizes[-1])
    threads = get_num_threads()
    activations, gradients, losses = _buffers_for(network, len(x), threads)
    step.backpropagate(x, labels, network.theta, network.sizes, activations, gradients, losses)
    step.parameter_gradients(x, activations, gradients, network.sizes, network.grad, threads)
    optimizer.step()
    return losses.sum()


def _buffers_for(network, n, threads):
    """Return arrays for activations, gradients `dz` and losses, the same ones as for the last batch of that size."""
    kept = _buffers.setdefault(network, {})
    if (n, threads) not in kept:
        if len(kept) > 1:  # an epoch has two sizes of batches, the last one's and that of all others
            kept.clear()
        *hidden, classes = network.sizes[1:]
        activations = [np.empty((n, features), network.dtype) for features in hidden]
        nothing = np.empty((0, classes), network.dtype)  # Numba can't tell what an empty tuple would hold
        gradients = [np.empty((n, features), network.dtype) for features in (*hidden, classes)]
        kept[n, threads] = (*activations, nothing), tuple(gradients), np.empty(min(threads, n))
    return kept[n, threads]
